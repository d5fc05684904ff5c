"""How an HDF5 file shows which generation wrote it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from migrate.generations import KERAS1, KERAS2, KERAS2_3, KERAS3, OPTIMIZER, OPTIMIZER_V1, OPTIMIZER_V2
from migrate.releases.versions import version_tuple


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
        generation = KERAS3 if number and number[0] >= 3 else OPTIMIZER
        evidence.append("the optimizer's config and weight names are those of Keras 2.11 and later")
        return generation, tuple(evidence)
    if number and number[0] >= 3:
        return KERAS3, tuple(evidence)
    if "iter" in tails or "momentum_cache" in tails or (number and number >= (2, 4)):
        evidence.append(
            "its step counter is called 'iter', as OptimizerV2 does"
            if "iter" in tails
            else "OptimizerV2 is the default there"
        )
        return OPTIMIZER_V2, tuple(evidence)
    if version and version.endswith("-tf"):
        if "name" in config:
            evidence.append("the optimizer's config has a 'name', which only OptimizerV2 writes")
            return OPTIMIZER_V2, tuple(evidence)
        evidence.append("a tf.keras whose optimizer's config has no 'name'")
        return OPTIMIZER_V1, tuple(evidence)
    return _standalone(number, has_backend, tails, evidence)


def _standalone(
    number: tuple[int, ...] | None, has_backend: bool, tails: set[str], evidence: list[str]
) -> tuple[str | None, tuple[str, ...]]:
    if any(re.fullmatch(r"(m|v|vhat|u|moment|accumulator|delta_accumulator)_\d+(_\d+)?", t) for t in tails):
        evidence.append("slots are called m_0, accumulator_0, ... as in Keras 2.3")
        return KERAS2_3, tuple(evidence)
    if number:
        return KERAS1 if number[0] == 1 else KERAS2_3 if number >= (2, 3) else KERAS2, tuple(evidence)
    if not has_backend and "iterations" not in tails:
        evidence.append("there is no attribute backend either, as in Keras 1")
        return KERAS1, tuple(evidence)
    return None, tuple(evidence)
