"""The contract of an update rule: one algorithm's maths, free of variables, meshes and TensorFlow.

A rule is a frozen dataclass in `optim/rules/<algorithm>.py`. Its maths is written once, on an array namespace
`xp` that is `tensorflow` in the executors and `numpy` in checks; both spell `sqrt`, `square`, `abs`, `sign`,
`maximum`, `minimum` and `where` alike. Because nothing here imports TensorFlow, the tables of slots can be read
by `dtopt migrate` in milliseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Scalars = Mapping[str, Any]
"""Scalars of one step by name: Python floats, float64 tensors, or scalars cast to the dtype of the update."""

Arrays = dict[str, Any]
"""Slot values by slot name, all of one variable."""


VARIABLE, ROWS, COLUMNS, UNFACTORED = "variable", "rows", "columns", "unfactored"


@dataclass(frozen=True)
class Slot:
    """One piece of per-variable state.

    Attributes:
      name: as Keras 2.9 named it, for example `"m"`; the key in checkpoints and in `get_slot`.
      unit: what the numbers are, for readers and for migration: `"gradient"`, `"gradient^2"`, `"step"` (a change
        of the variable, learning rate included), `"step/lr"`, ...
      initial: the value a new slot is filled with.
      like: the shape, see `slot_dims`.
    """

    name: str
    unit: str
    initial: float = 0.0
    like: str = VARIABLE


def slot_dims(like: str, rank: int) -> tuple[int, ...] | None:
    """Which dims of its variable a slot has, or None where a variable of that rank has no such slot.

    Args:
      like: `"variable"` all dims; `"rows"` and `"columns"` all but the last, or but the one before it, from rank 2 on;
        `"unfactored"` all dims, below rank 2.
    """
    every = tuple(range(rank))
    if like == VARIABLE:
        return every
    if like == UNFACTORED:
        return every if rank < 2 else None
    if rank < 2:
        return None
    return every[:-1] if like == ROWS else (*every[:-2], rank - 1)


class Rule(Protocol):
    """One algorithm. Implementations are frozen dataclasses of their structural choices (`nesterov`, `amsgrad`...).

    Numeric hyperparameters are not stored here: they may be tensors or callables, so each step receives their
    values in `hyper`.
    """

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots that a variable may have, in the order in which checkpoints and `slot_names` list them."""

    @property
    def scalars(self) -> Mapping[str, float]:
        """State of the whole optimizer beside `iterations`: initial float64 values by name. Mostly empty."""

    @property
    def elementwise(self) -> bool:
        """Whether each element's update depends on no other element. If not, `update` is given whole tensors."""

    @property
    def keeps_lazy_slots(self) -> bool:
        """Whether rows that `lazy_rows` leaves out keep their slots as they keep their values."""

    def gathers(self, slots: Collection[str]) -> bool:
        """Whether `update` must be given replicated tensors, for a variable that has these slots.

        Elementwise ops and reductions are right on any layout; TensorFlow's matrix products of DTensors are not.
        """

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        """Scalars of one step, computed once in float64 and shared by all variables.

        Args:
          xp: `numpy` or `tensorflow`.
          hyper: the hyperparameters of the algorithm, `learning_rate`, and the current `scalars`, in float64.
          step: number of this step, from 1, in float64 (`iterations + 1`).

        Returns:
          Whatever `update` needs; under the names of `scalars`, their values after this step.
        """

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        """One step of one variable, in float32 or float64.

        `xp` offers, beside `sqrt square abs sign maximum minimum where ones_like expand_dims matmul transpose`,
        TensorFlow's `reduce_sum` and `reduce_mean` to rules that are not elementwise.

        Returns:
          The change to add to the variable, and the new value of every slot.
        """


class Elementwise:
    """What most rules are: no state of the whole optimizer, and every element for itself."""

    @property
    def scalars(self) -> Mapping[str, float]:
        return {}

    @property
    def elementwise(self) -> bool:
        return True

    @property
    def keeps_lazy_slots(self) -> bool:
        return True

    def gathers(self, slots: Collection[str]) -> bool:
        return False


class Whole(Elementwise):
    """Rules without state of the whole optimizer that look at whole variables, by reductions."""

    @property
    def elementwise(self) -> bool:
        return False
