"""Whether a transformation does the same to large variables as to the small ones of a trial."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


def differs(tx: Any, params: Any, cut: int) -> bool:
    """Whether its operations change if no dim is larger than `cut`; only shapes are traced."""
    import jax

    def small(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(tuple(min(n, cut) for n in leaf.shape), leaf.dtype)

    if all(max(np.shape(leaf), default=0) <= cut for leaf in jax.tree_util.tree_leaves(params)):
        return False
    whole = jax.tree_util.tree_map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    return _operations(tx, whole) != _operations(tx, jax.tree_util.tree_map(small, params))


def _operations(tx: Any, params: Any) -> list[str]:
    import jax

    traced = jax.make_jaxpr(lambda gradients, values: tx.update(gradients, tx.init(values), values))(params, params)
    return list(_operations_of(traced))


def _operations_of(closed: Any) -> Iterator[str]:
    """Yield operations with their literal numbers, and the array positions that these concern."""
    yield from (_number(value) for value in getattr(closed, "consts", ()))
    for equation in closed.jaxpr.eqns:
        written = [_number(operand.val) for operand in equation.invars if hasattr(operand, "val")]
        places = equation.outvars[0].aval.shape if equation.primitive.name == "iota" else ""
        yield f"{equation.primitive.name} {written} {places} {equation.params.get('start_indices', '')}"
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):  # such as the branches of a condition
                if hasattr(inner, "jaxpr"):
                    yield from _operations_of(inner)


def _number(value: Any) -> str:
    """A number, or the shape of an array: sizes of variables are replaced by smaller ones."""
    return repr(np.shape(value) or np.asarray(value).tolist())
