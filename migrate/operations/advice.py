"""What to type instead, where a model cannot be written: the call that fills the live optimizer of today's code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optim
from migrate import algorithms
from migrate.rules import keras_targets
from migrate.state import OptimizerState

ARGUMENTS = {"variables": "source_variables"}
"""Hints that `migrate.restore` calls otherwise."""


def restore_call(source: str, hints: Mapping[str, Any]) -> str:
    """`migrate.restore(...)` of a source with the hints that were given, for a model called `model`."""
    given = {ARGUMENTS.get(name, name): value for name, value in hints.items() if value not in (None, "auto", {})}
    named = "".join(f", {name}={value!r}" for name, value in given.items())
    return f"migrate.restore({source!r}, model.optimizer, model.weights, restore_variables=True{named})"


FAMILIES = {"keras": (keras_targets.KERAS3,), "tf-keras": (keras_targets.TF_KERAS, keras_targets.TF_KERAS_LEGACY)}
ALIKE = ("name", "lazy_rows", "float32_powers")
"""Arguments of `optim` that a call need not repeat."""


def instead(state: OptimizerState, target: str, source: str, hints: Mapping[str, Any]) -> str:
    """What to type where `--to keras` or `--to tf-keras` cannot write a model."""
    if not algorithms.is_known(state.algorithm):
        own = "" if state.algorithm in optim.__all__ else f", custom_objects={{{state.algorithm!r}: YourClass}}"
        return f"Migrate to slots (--to slots), and go on with optim.load_checkpoint(...{own})"
    made = "compiled"
    if not any(keras_targets.has(family, state.algorithm) for family in FAMILIES[target]):
        given = ", ".join(
            f"{k}={v!r}" for k, v in state.hyperparameters.items() if k not in ALIKE and v not in (None, [])
        )
        made = f"compiled with optim.for_keras(optim.{state.algorithm}({given}))"
    return f"With the model built and {made} in today's code as `model`: {restore_call(source, hints)}"
