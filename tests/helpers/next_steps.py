"""The next steps of a source's own process, taken by ours: an oracle's gradients in, its variables after each step out.

An oracle is an `.npz` with arrays `grad/STEP/I` and `var/STEP/I` for variable I, and `at_save/var/I`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

OF_MOVEMENT, OF_VALUE = 1e-5, 2e-6
"""What rounding of float32 explains over six steps."""
NEAR = 0.3
"""Of that, which no right rule's error reaches where the source's own process is deterministic."""


def off(got: Any, want: Any, start: Any) -> float:
    """The error in units of what rounding explains: of the movement or of the value, whichever is more."""
    got, want, start = (np.asarray(x, np.float64) for x in (got, want, start))
    if got.shape != want.shape or not np.array_equal(np.isfinite(got), np.isfinite(want)):
        return float("inf")
    moved, size = np.linalg.norm(want - start), np.linalg.norm(want)
    return float(np.linalg.norm(got - want) / max(OF_MOVEMENT * moved, OF_VALUE * size, 1e-18))


def error(
    apply: Callable[[list[Any]], Any],
    live: Sequence[Any],
    oracle: Mapping[str, Any],
    steps: int,
    which: Iterable[int] | None = None,
    prefix: str = "",
) -> float:
    """The worst error over the steps, in units of what rounding explains.

    Args:
      apply: takes a step with the gradients of `live`; None where a variable had none.
      live: variables as they were at the save.
      which: numbers of `live` in the oracle; in its order by default.
      prefix: before the oracle's names.
    """
    numbers = list(range(len(live)) if which is None else which)
    starts, worst = [np.asarray(v).copy() for v in live], 0.0
    for step in range(steps):
        apply([oracle.get(f"{prefix}grad/{step}/{i}") for i in numbers])
        for i, variable, start in zip(numbers, live, starts, strict=True):
            worst = max(worst, off(np.asarray(variable), oracle[f"{prefix}var/{step}/{i}"], start))
    return worst


def applying(optimizer: Any, live: Sequence[Any]) -> Callable[[list[Any]], None]:
    """A step of an optimizer with `apply_gradients`; variables without a gradient are left out."""
    import tensorflow as tf

    def apply(gradients: list[Any]) -> None:
        optimizer.apply_gradients([(tf.constant(g), v) for g, v in zip(gradients, live, strict=True) if g is not None])

    return apply


def starts_of(oracle: Mapping[str, Any], saved: str = "at_save/var/") -> list[np.ndarray]:
    """Values of an oracle's variables at the save; `saved` is what their names begin with."""
    return [oracle[f"{saved}{i}"] for i in range(sum(key.startswith(saved) for key in oracle))]


def owners(values: Mapping[Any, np.ndarray], starts: Iterable[np.ndarray]) -> list[Any]:
    """Of each variable of an oracle, the key of the value that it had at the save.

    Raises:
      LookupError: there is none.
    """
    left, found = dict(values), []
    for i, start in enumerate(starts):
        key = next((k for k, v in left.items() if v.shape == start.shape and np.array_equal(v, start)), None)
        if key is None:
            raise LookupError(f"no variable has the value of number {i}")
        left.pop(key)
        found.append(key)
    return found


def of_slots(
    target: str | Path,
    oracle: Mapping[str, Any],
    steps: int,
    names: Sequence[str] | None = None,
    *,
    saved: str = "at_save/var/",
    **given: Any,
) -> float:
    """The worst error of a slot-variable checkpoint's next steps, in units of what rounding explains.

    Args:
      names: of the oracle's variables in the checkpoint; found by their values by default.
      saved: as of `starts_of`.
      given: to `optim.load_checkpoint`.
    """
    import tensorflow as tf

    import migrate
    import optim

    starts = starts_of(oracle, saved)
    if names is None:
        stored = {v.name: np.asarray(v.array.load()) for v in migrate.read(target).variables if v.array is not None}
        names = owners(stored, starts)
    live = [tf.Variable(start) for start in starts]
    onto = dict(zip(names, live, strict=True))
    optimizer = optim.load_checkpoint(target, onto, restore_variables=False, **given)
    return error(applying(optimizer, live), live, oracle, steps)
