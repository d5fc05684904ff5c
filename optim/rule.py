"""The interface of an update rule: one algorithm, free of variables, meshes and TensorFlow.

A rule is a frozen dataclass in `optim/rules/<algorithm>.py`, or a user's own. It is the only place of an algorithm. The
body of its class declares the arguments (default, range, meaning) in the order of the public signature. Its slots and
scalars are data. Its maths is written once, on an array namespace `xp`, which is `tensorflow` in the executors and
`numpy` in checks. Signatures, docstrings, checks, the tables of `dtopt migrate` and the settings of `dtopt bench` come
from there. Nothing here imports TensorFlow, so that those tables are read in milliseconds.
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
      unit: the unit of the numbers, for readers and for migration: `"gradient"`, `"gradient^2"`, `"step"` (a change of
        the variable, learning rate included), `"step/lr"`, ...
      initial: the initial value of every element, or `AS_VARIABLE`.
      like: the shape, see `slot_dims`.
      nonnegative: whether no step makes an element negative.
      at_least: name of the slot that this one is never below, element by element.
      few_bits: whether `slot_dtype` may store it in fewer bits: the rule bears that each element is rounded. Only slots
        that are shaped like the variable can be, and start as a number that is not negative.
    """

    name: str
    unit: str
    initial: float | str = 0.0
    like: str | int = VARIABLE
    nonnegative: bool = False
    at_least: str | None = None
    few_bits: bool = False


def slot_dims(like: str | int, rank: int) -> tuple[int, ...] | None:
    """Return which dims of its variable a slot has, or None if a variable of that rank lacks the slot.

    Args:
      like: `"variable"` all dims; `"scalar"` no dims; `"rows"` and `"columns"` all but the last, or but the one before
        it, from rank 2 on; `"unfactored"` all dims, below rank 2; a number that dim twice: a square matrix.
    """
    if isinstance(like, int):
        return (like, like) if like < rank else None
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
    `Hyperparameter`, and one field made by `choice` for each structural choice. With fields, write
    `@dataclass(frozen=True)` before the class. A rule does not store numbers, because they may be tensors or callables:
    each step gets their values in `hyper`.
    """

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots that a variable may have, in the order in which checkpoints and `slot_names` list them."""
        return ()

    @property
    def scalars(self) -> Mapping[str, float]:
        """State of the whole optimizer in addition to `iterations`: initial float64 values by name. Usually empty."""
        return {}

    @property
    def elementwise(self) -> bool:
        """Whether each element's update depends on no other element. If not, `update` gets whole tensors."""
        return True

    @property
    def keeps_lazy_slots(self) -> bool:
        """Whether rows that `lazy_rows` leaves out keep their slots in the same way as their values."""
        return True

    def gathers(self, slots: Collection[str]) -> bool:
        """Whether `update` needs replicated tensors, for a variable that has these slots.

        Elementwise ops and reductions are right on any layout; TensorFlow's matrix products of DTensors are not.
        """
        return False

    def slot_dims(self, slot: Slot, shape: Sequence[int], names: Sequence[str]) -> tuple[int, ...] | None:
        """Return which dims a slot has of a variable with that shape and these `names`; None if it lacks the slot."""
        return slot_dims(slot.like, len(shape))

    def weight_decay(self, option: float | None, shape: Sequence[int], names: Sequence[str]) -> float | None:
        """Return the weight decay of one variable; `option` is the value of the option `weight_decay`."""
        return option

    @property
    def places_weight_decay(self) -> bool:
        """Whether `update` itself applies weight decay, c["weight_decay"], so that nothing else must."""
        return False

    def constants(self, shape: Sequence[int], names: Sequence[str]) -> Mapping[str, float]:
        """Return numbers of one variable that `coefficients` finds in `hyper`; usually empty."""
        return {}

    @property
    def has_constants(self) -> bool:
        """Whether the rule has `constants`."""
        return type(self).constants is not Rule.constants

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        """Return the scalars of one step, computed once in float64 and shared by all variables; by default the
        hyperparameters.

        Args:
          xp: `numpy` or `tensorflow`.
          hyper: the hyperparameters of the algorithm, `learning_rate` and `base_learning_rate` (with and without the
            variable's factor), `weight_decay` if `places_weight_decay`, the `constants` of the variable, and the
            current `scalars`, in float64.
          step: number of this step, from 1, in float64 (`iterations + 1`).

        Returns:
          The scalars that `update` needs; under the names of `scalars`, their values after this step; under
          "decay_rate" the learning rate that weight decay is multiplied with, if it is not `learning_rate`.
        """
        return dict(hyper)

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        """Make one step of one variable, in float32 or float64.

        `xp` has the functions of `optim.arrays.ELEMENTWISE`, for which there is a kernel, and all other functions of
        TensorFlow. A rule that uses those runs on TensorFlow's ops.

        Returns:
          The change to add to the variable, and the new value of every slot.
        """
        raise NotImplementedError(f"{type(self).__name__} must define update(xp, variable, gradient, slots, c)")

    @classmethod
    def from_arguments(cls, choices: Mapping[str, Any], hyper: Mapping[str, Any]) -> Rule:
        """Return the rule of an optimizer with these checked arguments; `hyper` contains floats, tensors or callables.

        Raises:
          HyperparameterError: arguments that contradict each other.
        """
        return cls(**choices)


@dataclass(frozen=True)
class Whole(Rule):
    """Rules that use whole variables, by reductions."""

    @property
    def elementwise(self) -> bool:
        return False


def arguments(rule: type[Rule]) -> dict[str, Hyperparameter | Choice]:
    """Return the arguments that a class of rules declares, in the order of its body, those of its bases first.

    Raises:
      HyperparameterError: it has a `choice`, and is not a dataclass.
    """
    chosen = {f.name: f.metadata["choice"] for f in fields(rule) if "choice" in f.metadata}
    names = dict.fromkeys(name for base in reversed(rule.__mro__) for name in vars(base))
    declared = {name: inspect.getattr_static(rule, name) for name in names}
    for name, value in declared.items():
        if isinstance(value, Field):
            raise HyperparameterError(f"{rule.__name__} has the choice {name}: put @dataclass(frozen=True) before it")
    return {n: chosen.get(n, v) for n, v in declared.items() if n in chosen or isinstance(v, Hyperparameter)}


def made_from(rule: type[Rule], config: Mapping[str, Any]) -> tuple[Rule, dict[str, Any]]:
    """Return the rule with the choices of a config, and its hyperparameters; defaults for missing keys.

    Raises:
      HyperparameterError: an invalid choice, or arguments that contradict each other.
    """
    declared = arguments(rule)
    hyper = {n: config.get(n, a.default) for n, a in declared.items() if isinstance(a, Hyperparameter)}
    choices = {n: a.check(n, config.get(n, a.default)) for n, a in declared.items() if isinstance(a, Choice)}
    return rule.from_arguments(choices, hyper), hyper


def hyperparameters(rule: type[Rule]) -> dict[str, Hyperparameter]:
    """Return the numbers among `arguments`, except the learning rate."""
    return {n: a for n, a in arguments(rule).items() if isinstance(a, Hyperparameter) and n != "learning_rate"}


def default_rate(rule: type[Rule]) -> float | None:
    """Return the learning rate that a class of rules declares as its default, if any."""
    declared = arguments(rule).get("learning_rate")
    return None if declared is None else declared.default
