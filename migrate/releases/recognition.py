"""Recognize which generation wrote a source."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from migrate.generations import (
    EXPERIMENTAL,
    KERAS1,
    KERAS2,
    KERAS2_3,
    KERAS3,
    OPTIMIZER,
    OPTIMIZER_V1,
    OPTIMIZER_V2,
    TF1,
)
from migrate.releases.versions import version_tuple

SLOTS_NAMED_AFTER_CLASSES = TF1
"""The generation if slots are called `VARIABLE/CLASS`, or the graph updates variables by ops of tf.train."""
COUNTER_NAMED_ITER = OPTIMIZER_V2
"""The generation of a graph with OptimizerV2's counter, or its update ops."""
NOTHING_NAMED = KERAS1
"""The generation if variables are called `Variable_3`."""
SLOTS_NAMED_BEFORE_VARIABLES = EXPERIMENTAL
"""The generation if names are `OPTIMIZER/SLOT/VARIABLE` without an object graph, as of DTensor."""
UPDATES_OF_PLAIN_OPS = KERAS2_3
"""The generation of a graph with Keras's own update code.

Rules are the same before OptimizerV2. Arguments that some releases lack have the values of this one.
"""


def of_keras_file(is_keras3: bool) -> str:
    """Return the generation of a `.keras` or `.weights.h5`."""
    return KERAS3 if is_keras3 else OPTIMIZER


def of_native_names(is_numbered: bool, has_resources: bool) -> str:
    """Return the generation of a Saver checkpoint of Keras before OptimizerV2.

    Args:
      is_numbered: whether slots are called `m_0`.
      has_resources: whether its graph has resource variables.
    """
    return KERAS2_3 if is_numbered else OPTIMIZER_V1 if has_resources else KERAS2


def of_config(config: Mapping[str, Any]) -> str | None:
    """Return the generation of an optimizer that made no variables before its first step, like one of OptimizerV2.

    Its config has a name since TF 1.13, and the later optimizers' has jit_compile (`optimizer_v2.py` 2.0 to 2.10,
    `optimizer_experimental/optimizer.py` 2.10, `legacy/optimizer_v2.py` 2.11 to 2.15).
    """
    settings = config.get("config")
    if not isinstance(settings, Mapping) or "name" not in settings:
        return None
    return OPTIMIZER_V2 if settings.get("is_legacy_optimizer", "jit_compile" not in settings) else None


def from_objects(children: Collection[str], has_table: bool, has_powers: bool, lists_counter: bool) -> tuple[str, str]:
    """Return the generation of an optimizer in an object graph, and why.

    Args:
      children: names of what it tracks.
      has_table: whether there is a table of its slot variables.
      has_powers: whether it tracks powers of beta.
      lists_counter: whether the counter is among its `_variables`.
    """
    counts = bool({"iter", "learning_rate", "decay", "_iterations"} & set(children))
    if (has_table or has_powers) and not counts:
        return TF1, "it has a table of slot variables or powers of beta and no `iter`, as tf.train optimizers"
    if "iter" in children or has_table:
        return OPTIMIZER_V2, "it has `iter` and a table of slot variables, as OptimizerV2 (legacy) does"
    if "_trainable_variables" in children or "_trainable_variables_indices" in children:
        return KERAS3, "it tracks `_trainable_variables`, as Keras 3 does"
    if lists_counter:
        return OPTIMIZER, "`_iterations` is among its `_variables`, as in tf.keras 2.11 and later"
    return EXPERIMENTAL, "it has slots without `_iterations` in `_variables`, as in tf.keras 2.9 and 2.10"


def from_hdf5(
    version: str | None, has_backend: bool, class_name: str, config: Mapping[str, Any], names: Sequence[str]
) -> tuple[str | None, tuple[str, ...]]:
    """Return the generation of a Keras HDF5 file, and why.

    Args:
      version: attribute `keras_version`.
      has_backend: whether `backend` is there (Keras 1 did not write it).
      class_name, config: of the innermost optimizer, as stored.
      names: `optimizer_weights`' weight names.
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
