"""AdaBelief of TensorFlow Addons: the options of RectifiedAdam, and `rectify`.

Source: `optimizers/adabelief.py` of TensorFlow Addons 0.15 - 0.23.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from migrate.algorithms import rectified_adam
from migrate.algorithms.spec import NEARLY, Config


def _arguments(config: Config, generation: str) -> dict[str, Any]:
    return {**rectified_adam.ALGORITHM.arguments(config, generation), "rectify": bool(config["rectify"])}


def _defaults(generation: str) -> dict[str, Any]:
    return {**rectified_adam.ALGORITHM.defaults(generation), "epsilon": 1e-14, "rectify": True}


def _lazy(config: Config, generation: str) -> str | None:
    """Return `lazy` of RectifiedAdam; such rows' v also gains neither (0 − m)² nor ε (`_resource_apply_sparse`)."""
    return NEARLY


ALGORITHM = replace(rectified_adam.ALGORITHM, name="AdaBelief", arguments=_arguments, defaults=_defaults, lazy=_lazy)
