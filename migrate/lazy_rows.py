"""Which variables had sparse gradients, where that makes a difference: rows without a gradient then kept their state.

A checkpoint does not say it. The convention: the weight of a Keras `Embedding` layer, whose name ends in `embeddings`,
had sparse gradients, as it has whenever it was trained through that layer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from migrate.algorithms.spec import STILL, Algorithm
from migrate.conventions import LAZY_ROWS, Arguments
from optim.errors import HyperparameterError

KEEP_SLOTS = "lazy_rows_keep_slots"
_EMBEDDINGS = re.compile(r"(?:^|.*[/.])embeddings(?:_\d+)?")


def put_in(
    told: Arguments, config: Mapping[str, Any], algorithm: Algorithm, generation: str, names: Sequence[str]
) -> None:
    """Add the argument `lazy_rows` where it is called for, and say so.

    Args:
      config: as `conventions.completed` returns it; its own `lazy_rows`, a list of regular expressions, wins.
      names: of the trained variables.
    """
    if LAZY_ROWS in config:
        given = config[LAZY_ROWS]
        if not isinstance(given, (list, tuple)) or not all(isinstance(pattern, str) for pattern in given):
            raise HyperparameterError(f"lazy_rows must be a list of regular expressions, got {given!r}")
        told.values[LAZY_ROWS] = list(given)
        return
    kind = algorithm.lazy({**config, **told.values}, generation)
    found = embeddings(names)
    if kind is None or not found:
        return
    if kind == STILL:
        told.values[KEEP_SLOTS] = False
    told.values[LAZY_ROWS] = [f"^{re.escape(name)}$" for name in found]
    told.warnings.append(
        f"{', '.join(found)}: taken for the weight of an Embedding layer, whose rows without a gradient this generation"
        ' leaves as they are (lazy_rows); for dense gradients put "lazy_rows": [] into the config of --optimizer-config'
    )


def embeddings(names: Sequence[str]) -> list[str]:
    """Those of the variables that are taken for the weights of Embedding layers."""
    return [name for name in names if _EMBEDDINGS.fullmatch(name)]
