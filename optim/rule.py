"""The contract of an update rule: one algorithm, free of variables, meshes and TensorFlow.

A rule is a frozen dataclass in `optim/rules/<algorithm>.py`, or a user's own. It is the only place of an algorithm:
the body of its class declares the arguments (default, range, meaning) in the order of the public signature, its slots
and scalars are data, and its maths is written once, on an array namespace `xp` that is `tensorflow` in the executors
and `numpy` in checks. Signatures, docstrings, checks, the tables of `dtopt migrate` and the settings of `dtopt bench`
come from there. Nothing here imports TensorFlow, so that those tables are read in milliseconds.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any

from optim.arguments import Choice, Hyperparameter
from optim.errors import HyperparameterError

Scalars = Mapping[str, Any]
"""Scalars of one step by name: Python floats, float64 tensors, or scalars cast to the dtype of the update."""

Arrays = dict[str, Any]
"""Slot values by slot name, all of one variable."""

VARIABLE, ROWS, COLUMNS, UNFACTORED, SCALAR = "variable", "rows", "columns", "unfactored", "scalar"
AS_VARIABLE = "variable"
"""`Slot.initial` of a slot that starts as a copy of its variable."""


@dataclass(frozen=True)
class Slot:
    """One piece of per-variable state.

    Attributes:
      name: as Keras 2.9 named it, for example `"m"`; the key in checkpoints and in `get_slot`.
      unit: what the numbers are, for readers and for migration: `"gradient"`, `"gradient^2"`, `"step"` (a change
        of the variable, learning rate included), `"step/lr"`, ...
      initial: the value a new slot is filled with, or `AS_VARIABLE`.
      like: the shape, see `slot_dims`.
      nonnegative: whether no step makes an element negative.
      at_least: name of the slot that this one is never below, element by element.
      few_bits: whether `slot_dtype` may store it in fewer bits: the rule bears that each element is rounded. Only slots
        that are shaped like the variable can be, and start as a number that is not negative.
    """

    name: str
    unit: str
    initial: float | str = 0.0
    like: str = VARIABLE
    nonnegative: bool = False
    at_least: str | None = None
    few_bits: bool = False


def slot_dims(like: str, rank: int) -> tuple[int, ...] | None:
    """Which dims of its variable a slot has, or None where a variable of that rank has no such slot.

    Args:
      like: `"variable"` all dims; `"scalar"` none; `"rows"` and `"columns"` all but the last, or but the one before it,
        from rank 2 on; `"unfactored"` all dims, below rank 2.
    """
    every = tuple(range(rank))
    if like == VARIABLE:
        return every
    if like == SCALAR:
        return ()
    if like == UNFACTORED:
        return every if rank < 2 else None
    if rank < 2:
        return None
    return every[:-1] if like == ROWS else (*every[:-2], rank - 1)


@dataclass(frozen=True)
class Rule:
    """One algorithm; the base of all rules, built-in ones and a user's own.

    The body of a subclass declares, in the order of the public signature, `learning_rate` and the other numbers, each a
    `Hyperparameter`, and one field made by `choice` for each structural choice; with fields, `@dataclass(frozen=True)`
    stands before the class. Numbers are not stored in a rule: they may be tensors or callables, so each step receives
    their values in `hyper`.
    """

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots that a variable may have, in the order in which checkpoints and `slot_names` list them."""
        return ()

    @property
    def scalars(self) -> Mapping[str, float]:
        """State of the whole optimizer besides `iterations`: initial float64 values by name. Mostly empty."""
        return {}

    @property
    def elementwise(self) -> bool:
        """Whether each element's update depends on no other element. If not, `update` is given whole tensors."""
        return True

    @property
    def keeps_lazy_slots(self) -> bool:
        """Whether rows that `lazy_rows` leaves out keep their slots as they keep their values."""
        return True

    def gathers(self, slots: Collection[str]) -> bool:
        """Whether `update` must be given replicated tensors, for a variable that has these slots.

        Elementwise ops and reductions are right on any layout; TensorFlow's matrix products of DTensors are not.
        """
        return False

    def slot_dims(self, slot: Slot, shape: Sequence[int], names: Sequence[str]) -> tuple[int, ...] | None:
        """Which dims of a variable of that shape, which goes by `names`, a slot has; None where it has no such slot."""
        return slot_dims(slot.like, len(shape))

    def weight_decay(self, given: float | None, shape: Sequence[int], names: Sequence[str]) -> float | None:
        """Weight decay of one variable, where `given` is what the option says."""
        return given

    @property
    def places_weight_decay(self) -> bool:
        """Whether `update` itself applies weight decay, c["weight_decay"], and nothing is to be done around it."""
        return False

    def constants(self, shape: Sequence[int], names: Sequence[str]) -> Mapping[str, float]:
        """Numbers of one variable that `coefficients` finds in `hyper`; mostly none."""
        return {}

    @property
    def has_constants(self) -> bool:
        """Whether there are any."""
        return type(self).constants is not Rule.constants

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        """Scalars of one step, computed once in float64 and shared by all variables; by default the hyperparameters.

        Args:
          xp: `numpy` or `tensorflow`.
          hyper: the hyperparameters of the algorithm, `learning_rate` and `base_learning_rate` (with and without the
            variable's factor), `weight_decay` where `places_weight_decay`, the `constants` of the variable, and the
            current `scalars`, in float64.
          step: number of this step, from 1, in float64 (`iterations + 1`).

        Returns:
          Whatever `update` needs; under the names of `scalars`, their values after this step; under "decay_rate" the
          learning rate that weight decay is multiplied with, where it is not `learning_rate`.
        """
        return dict(hyper)

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        """One step of one variable, in float32 or float64.

        `xp` offers the functions of `optim.arrays.ELEMENTWISE`, for which there is a kernel, and whatever else
        TensorFlow has, on whose ops the rule then runs.

        Returns:
          The change to add to the variable, and the new value of every slot.
        """
        raise NotImplementedError(f"{type(self).__name__} must define update(xp, variable, gradient, slots, c)")

    @classmethod
    def from_arguments(cls, choices: Mapping[str, Any], hyper: Mapping[str, Any]) -> Rule:
        """The rule of an optimizer with these checked arguments; `hyper` holds floats, tensors or callables.

        Raises:
          HyperparameterError: arguments that contradict each other.
        """
        return cls(**choices)


@dataclass(frozen=True)
class Whole(Rule):
    """Rules that look at whole variables, by reductions."""

    @property
    def elementwise(self) -> bool:
        return False


def arguments(rule: type[Rule]) -> dict[str, Hyperparameter | Choice]:
    """The arguments that a class of rules declares, in the order of its body, those of its bases first.

    Raises:
      HyperparameterError: it has a `choice`, and is no dataclass.
    """
    chosen = {f.name: f.metadata["choice"] for f in fields(rule) if "choice" in f.metadata}
    names = dict.fromkeys(name for base in reversed(rule.__mro__) for name in vars(base))
    declared = {name: inspect.getattr_static(rule, name) for name in names}
    for name, value in declared.items():
        if isinstance(value, Field):
            raise HyperparameterError(f"{rule.__name__} has the choice {name}: put @dataclass(frozen=True) before it")
    return {n: chosen.get(n, v) for n, v in declared.items() if n in chosen or isinstance(v, Hyperparameter)}


def made_from(rule: type[Rule], config: Mapping[str, Any]) -> tuple[Rule, dict[str, Any]]:
    """The rule with the choices of a config, and its hyperparameters; defaults where the config says nothing.

    Raises:
      HyperparameterError: a choice that is none, or arguments that contradict each other.
    """
    own = arguments(rule)
    hyper = {n: config.get(n, a.default) for n, a in own.items() if isinstance(a, Hyperparameter)}
    choices = {n: a.check(n, config.get(n, a.default)) for n, a in own.items() if isinstance(a, Choice)}
    return rule.from_arguments(choices, hyper), hyper


def hyperparameters(rule: type[Rule]) -> dict[str, Hyperparameter]:
    """The numbers among `arguments`, but for the learning rate."""
    return {n: a for n, a in arguments(rule).items() if isinstance(a, Hyperparameter) and n != "learning_rate"}


def default_rate(rule: type[Rule]) -> float | None:
    """The learning rate that a class of rules declares as its default, if any."""
    declared = arguments(rule).get("learning_rate")
    return None if declared is None else declared.default
