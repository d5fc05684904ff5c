"""The generations of Keras optimizers, and how an HDF5 file tells which one wrote it.

| name | releases |
|---|---|
| `keras1` | standalone Keras 1.x |
| `keras2` | standalone Keras 2.0 - 2.2.5 |
| `keras2.3` | standalone Keras 2.3 |
| `optimizer_v1` | tf.keras of TF 1.4 - 1.13, and what later releases keep of it |
| `optimizer_v2` | tf.keras of TF 1.14 - 2.10, `optimizers.legacy` from 2.11 on |
| `experimental` | `optimizers.experimental` and DTensor optimizers of TF 2.9 and 2.10 |
| `optimizer` | tf.keras 2.11 - 2.15 and tf_keras |
| `keras3` | Keras 3 |
| `tf1` | tf.train.* |
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from migrate.releases.versions import version_tuple
from optim.errors import HyperparameterError

GENERATIONS = (
    "keras1",
    "keras2",
    "keras2.3",
    "optimizer_v1",
    "optimizer_v2",
    "experimental",
    "optimizer",
    "keras3",
    "tf1",
)
NATIVE = frozenset({"keras1", "keras2", "keras2.3", "optimizer_v1"})
"""Generations with Keras's own update code, before OptimizerV2."""
NEW = frozenset({"experimental", "optimizer", "keras3"})


def check(name: str) -> str:
    """The name itself; HyperparameterError with the list if it is none of GENERATIONS."""
    if name not in GENERATIONS:
        raise HyperparameterError(f"unknown generation {name!r}; --generation takes one of: {', '.join(GENERATIONS)}")
    return name


def from_hdf5(
    version: str | None, has_backend: bool, class_name: str, config: Mapping[str, Any], names: Sequence[str]
) -> tuple[str | None, tuple[str, ...]]:
    """Generation of a Keras HDF5 file, and why.

    Args:
      version: attribute `keras_version`, `has_backend`: whether `backend` is there (Keras 1 wrote none).
      class_name, config: of the innermost optimizer, as stored; names: `optimizer_weights`' weight names.
    """
    evidence = [f"attribute keras_version is {version!r}" if version else "there is no attribute keras_version"]
    tails = {n.split(":")[0].rsplit("/", 1)[-1] for n in names}
    number = version_tuple(version)
    registered = class_name.startswith("Custom>") and "iter" not in tails and "decay" not in config
    if registered or config.get("is_legacy_optimizer") is False or "iteration" in tails:
        generation = "keras3" if number and number[0] >= 3 else "optimizer"
        evidence.append("the optimizer's config and weight names are those of Keras 2.11 and later")
        return generation, tuple(evidence)
    if number and number[0] >= 3:
        return "keras3", tuple(evidence)
    if "iter" in tails or "momentum_cache" in tails or (number and number >= (2, 4)):
        evidence.append(
            "its step counter is called 'iter', as OptimizerV2 does"
            if "iter" in tails
            else "OptimizerV2 is the default there"
        )
        return "optimizer_v2", tuple(evidence)
    if version and version.endswith("-tf"):
        if "name" in config:
            evidence.append("the optimizer's config has a 'name', which only OptimizerV2 writes")
            return "optimizer_v2", tuple(evidence)
        evidence.append("a tf.keras whose optimizer's config has no 'name'")
        return "optimizer_v1", tuple(evidence)
    return _standalone(number, has_backend, tails, evidence)


def _standalone(
    number: tuple[int, ...] | None, has_backend: bool, tails: set[str], evidence: list[str]
) -> tuple[str | None, tuple[str, ...]]:
    if any(re.fullmatch(r"(m|v|vhat|u|moment|accumulator|delta_accumulator)_\d+(_\d+)?", t) for t in tails):
        evidence.append("slots are called m_0, accumulator_0, ... as in Keras 2.3")
        return "keras2.3", tuple(evidence)
    if number:
        return "keras1" if number[0] == 1 else "keras2.3" if number >= (2, 3) else "keras2", tuple(evidence)
    if not has_backend and "iterations" not in tails:
        evidence.append("there is no attribute backend either, as in Keras 1")
        return "keras1", tuple(evidence)
    return None, tuple(evidence)
