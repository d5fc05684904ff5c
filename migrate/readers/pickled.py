"""Read pickles that people save of a training run: `optimizer.get_weights()`, alone or with other things.

A pickle is a list of arrays, a mapping of names to arrays, or a list or mapping of such parts: one is the optimizer's,
others are the model's weights, the optimizer's config, an epoch and the like.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from migrate.bytes.messages import some
from optim.errors import UnsupportedError

ADVICE = "Load the file where it was written, and pickle optimizer.get_weights() alone, a list of arrays"
Arrays = tuple[tuple[str, np.ndarray], ...]


@dataclass(frozen=True)
class Contents:
    """The relevant content of a pickle.

    Attributes:
      weights: of the optimizer, in order; names are its own if the pickle is a mapping.
      config: the result of `optimizer.get_config()` or `keras.optimizers.serialize`, if it is there.
      others: arrays that are not the optimizer's.
    """

    weights: Arrays
    config: Mapping[str, Any] | None = None
    others: Arrays = ()


def contents(value: Any, where: str) -> Contents:
    """Find the optimizer's arrays in a pickle.

    Args:
      value: the result of `safe_pickle.loads`. where: the file, for messages.

    Raises:
      UnsupportedError: there is no list, or several, and it is unclear which one is the optimizer's.
    """
    direct = _arrays(value, "weights")
    if direct is not None:
        return Contents(direct)
    parts = _parts(value)
    named = [key for key in parts if "optim" in key.lower()]
    if len(named) == 1 and _arrays(parts[named[0]], "") is None and not _is_config(parts[named[0]]):
        return contents(parts[named[0]], where)  # {"optimizer": {"weights": [...], "config": {...}}, "model": ...}
    arrays_by_key = {key: arrays for key, part in parts.items() if (arrays := _arrays(part, key)) is not None}
    configs = [part for part in parts.values() if _is_config(part)]
    chosen = _key_of_optimizer(arrays_by_key)
    if chosen is None:
        raise UnsupportedError(f"{where} is a pickle that is refused: {_problem(value, arrays_by_key)}. {ADVICE}")
    others = tuple(array for key, arrays in arrays_by_key.items() if key != chosen for array in arrays)
    return Contents(arrays_by_key[chosen], configs[0] if len(configs) == 1 else None, others)


def _problem(value: Any, arrays_by_key: Mapping[str, Arrays]) -> str:
    if arrays_by_key:
        return f"nothing shows that the optimizer's arrays are in {some(sorted(arrays_by_key))}, or in which of them"
    return f"it holds a {type(value).__name__} without a list of arrays"


def _parts(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    return {f"item {i}": part for i, part in enumerate(value)} if isinstance(value, list) else {}


def _arrays(value: Any, name: str) -> Arrays | None:
    """The arrays of a list of arrays only, or of a mapping of arrays and strings only."""
    if isinstance(value, Mapping):
        items = [(key, member) for key, member in value.items() if not isinstance(member, str | bool | None)]
        has_array = any(isinstance(member, np.ndarray) and member.shape for _, member in items)
    elif isinstance(value, list):
        items = [(f"{name}[{i}]", member) for i, member in enumerate(value)]
        has_array = True
    else:
        return None
    if not has_array or not all(_is_number(member) for _, member in items):
        return None
    return tuple((key, np.asarray(member)) for key, member in items)


def _is_number(value: Any) -> bool:
    return isinstance(value, (np.ndarray, int, float)) and not isinstance(value, bool)


def _is_config(value: Any) -> bool:
    """Whether it is a result of `get_config()`, with or without the class."""
    return isinstance(value, Mapping) and bool({"class_name", "learning_rate", "lr"} & value.keys())


def _key_of_optimizer(arrays_by_key: Mapping[str, Arrays]) -> str | None:
    for candidates in (
        [key for key in arrays_by_key if "optim" in key.lower()],
        [key for key in arrays_by_key if "model" not in key.lower()],
        [key for key in arrays_by_key if _has_scalar_at_end(arrays_by_key[key])],
    ):
        if len(candidates) == 1:
            return candidates[0]
    return None


def _has_scalar_at_end(arrays: Sequence[tuple[str, np.ndarray]]) -> bool:
    ends = [arrays[0][1], arrays[-1][1]] if arrays else []
    return any(array.shape == () for array in ends)
