"""Policies of `slot_placement`: like the variable, sharded further (ZeRO-1), or where a callable puts it.

`placement` applies them to DTensor's meshes, `optim/keras/backends.py` to those of Keras.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from optim.errors import HyperparameterError

LIKE_VARIABLE = "like_variable"
ZERO1 = "zero1"
Placement = str | Callable[[Any, str], Any]


def check(placement: Any) -> Placement:
    """Return `placement` if it is valid. Raises HyperparameterError."""
    if callable(placement) or placement in (LIKE_VARIABLE, ZERO1):
        return placement
    if isinstance(placement, Mapping) and "callable" in placement:
        raise HyperparameterError(
            f"slot_placement was the callable {placement['callable']}; pass it, or another placement, again"
        )
    raise HyperparameterError(
        f"slot_placement must be {LIKE_VARIABLE!r}, {ZERO1!r} or a callable (variable, slot) -> Layout,"
        f" got {placement!r}"
    )


def to_config(placement: Placement) -> Any:
    """Return a JSON value. A callable becomes `{"callable": name}`, which shows readers what to pass again."""
    if isinstance(placement, str):
        return placement
    return {"callable": f"{placement.__module__}.{getattr(placement, '__qualname__', type(placement).__name__)}"}
