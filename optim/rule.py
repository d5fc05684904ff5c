"""The contract of an update rule: one algorithm's maths, free of variables, meshes and TensorFlow.

A rule is a frozen dataclass in `optim/rules/<algorithm>.py`. Its maths is written once, on an array namespace
`xp` that is `tensorflow` in the executors and `numpy` in checks; both spell `sqrt`, `square`, `abs`, `sign`,
`maximum`, `minimum` and `where` alike. Because nothing here imports TensorFlow, the tables of slots can be read
by `dtopt migrate` in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Scalars = Mapping[str, Any]
"""Scalars of one step by name: Python floats, float64 tensors, or scalars cast to the dtype of the update."""

Arrays = dict[str, Any]
"""Slot values by slot name, all of one variable."""


@dataclass(frozen=True)
class Slot:
    """One piece of per-variable state.

    Attributes:
      name: as Keras 2.9 named it, for example `"m"`; the key in checkpoints and in `get_slot`.
      unit: what the numbers are, for readers and for migration: `"gradient"`, `"gradient^2"`, `"step"` (a change
        of the variable, learning rate included), `"step/lr"`, ...
      initial: the value a new slot is filled with.
      like: `"variable"` for a slot shaped like its variable.
    """

    name: str
    unit: str
    initial: float = 0.0
    like: str = "variable"


class Rule(Protocol):
    """One algorithm. Implementations are frozen dataclasses of their structural choices (`nesterov`, `amsgrad`...).

    Numeric hyperparameters are not stored here: they may be tensors or callables, so each step receives their
    values in `hyper`.
    """

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots of every variable, in the order in which checkpoints and `slot_names` list them."""

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        """Scalars of one step, computed once in float64 and shared by all variables.

        Args:
          xp: `numpy` or `tensorflow`.
          hyper: the hyperparameters of the algorithm and `learning_rate`, in float64.
          step: number of this step, from 1, in float64 (`iterations + 1`).
        """

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        """One step of one variable, all arrays of one shape, dtype and layout.

        Returns:
          The change to add to the variable, and the new value of every slot.
        """
