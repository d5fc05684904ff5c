"""Parameters of frameworks that know no TensorFlow names: which stored variable each is, told by a mapping alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from migrate import algorithms
from migrate.algorithms import repeated_rows
from migrate.bytes.arrays import LazyArray, widened
from migrate.bytes.messages import some
from migrate.live import values
from migrate.models import rounding
from migrate.state import OptimizerState, StoredVariable
from optim.errors import MismatchError


@dataclass(frozen=True)
class Order:
    """In which order a parameter has the numbers of its variable: with dims transposed, or as an array of places says.

    `is_told`: whether a person said it.
    """

    axes: tuple[int, ...] = ()
    places: np.ndarray | None = None
    is_told: bool = True

    def of(self, array: np.ndarray) -> np.ndarray:
        """An array of the variable's shape, in the parameter's."""
        return np.transpose(array, self.axes) if self.places is None else np.ravel(array)[self.places]

    def __str__(self) -> str:
        return f"the axes {self.axes}" if self.places is None else "its function"


@dataclass(frozen=True)
class Target:
    """A parameter, the stored variable that it is, and the order in which it has that one's numbers.

    `place` is what finds the parameter in its framework: itself for torch, its name in the pytree for optax.
    """

    stored: StoredVariable
    place: Any
    order: Order
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The parameter's."""
        places = self.order.places
        return tuple(self.stored.shape[a] for a in self.order.axes) if places is None else places.shape

    def laid_out(self, array: np.ndarray) -> np.ndarray:
        """An array shaped like the stored variable, as the parameter has its numbers; others as they are."""
        return np.array(self.order.of(array), order="C") if array.shape == self.stored.shape else array

    def value(self) -> np.ndarray:
        """The stored value in the parameter's order of dims. Raises MismatchError where the source has none."""
        if self.stored.array is None:
            raise MismatchError(f"the source holds no value of {self.stored.name}; pass restore_variables=False")
        return self.laid_out(numbers(self.stored.array))


def numbers(array: LazyArray) -> np.ndarray:
    """All of an array in its shape, in a dtype of numpy that holds it."""
    return widened(np.asarray(array.load()), array.dtype).reshape(array.shape)


def targets(
    state: OptimizerState,
    variables: Any,
    found: Callable[[Any], tuple[Any, tuple[int, ...], str] | None],
    places: Sequence[Any],
    called: str,
) -> list[Target]:
    """The parameters of a mapping, all that an optimizer has and no others.

    Args:
      variables: name in the source -> parameter, or (parameter, axes) where the parameter is the variable with its dims
        in another order, `numpy.transpose(variable, axes)`, or (parameter, function) where it is `function(variable)`.
      found: what was given for a parameter -> its place, shape and dtype; None if the optimizer does not have it.
      places: of all parameters of the optimizer. called: what a parameter is called in messages.

    Raises:
      MismatchError: no mapping; or parameters that are missing, extra, or of another shape or dtype, all listed.
    """
    if not isinstance(variables, Mapping):
        trained = [v.name for v in state.variables if v.trainable]
        raise MismatchError(
            f"give a mapping of the source's names to {called}s, or to ({called}, axes) where dims are in another"
            f" order; the source has {some(trained, between='; ')}"
        )
    stored = {v.name: v for v in state.variables}
    problems = [f"the source has no {name!r}" for name in variables if name not in stored]
    made: list[Target] = []
    for name, given in variables.items():
        if name in stored:
            made += _target(stored[name], given, found, called, problems)
    owners = {name for per in state.slots.values() for name in per} or {v.name for v in state.variables if v.trainable}
    problems += [f"no {called} is given for {name!r}" for name in sorted(owners - set(variables))]
    taken = {target.place for target in made}
    lacking = [place for place in places if place not in taken]
    problems += [f"{len(lacking)} {called}s of the optimizer are not in the mapping"] if lacking else []
    if len(taken) < len(made):
        problems.append(f"a {called} is given for two names")
    if problems:
        raise MismatchError(f"the {called}s are not those of the source: {some(problems, between='; ')}")
    return made


def _target(
    stored: StoredVariable,
    given: Any,
    found: Callable[[Any], tuple[Any, tuple[int, ...], str] | None],
    called: str,
    problems: list[str],
) -> list[Target]:
    wanted, told = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    try:
        known = found(wanted)
    except TypeError:  # what cannot be looked up
        known = None
    if known is None:
        problems.append(f"the optimizer has not what is given for {stored.name!r}")
        return []
    place, shape, dtype = known
    if dtype != stored.dtype and not values.holds(dtype, stored.dtype):
        problems.append(f"{stored.name!r} is {stored.dtype}, its {called} {dtype}, which cannot hold it")
        return []
    try:
        return [Target(stored, place, _order(stored.shape, shape, told), dtype)]
    except ValueError as error:
        problems.append(f"{stored.name!r} has shape {list(stored.shape)}, its {called} {list(shape)}: {error}")
        return []


def _order(stored: tuple[int, ...], shape: tuple[int, ...], told: Any) -> Order:
    """How an array of the stored shape gets the parameter's.

    Args:
      told: axes; or a function of an array, which rearranges it; None where nothing was said.

    Raises:
      ValueError: it does not get that shape, or not each number once.
    """
    if callable(told):
        places = np.arange(np.prod(stored, dtype=np.int64)).reshape(stored)
        moved = np.asarray(told(places))
        if moved.shape != shape or not np.array_equal(np.sort(moved, axis=None), np.ravel(places)):
            raise ValueError(
                f"the function given makes shape {list(moved.shape)}, or does not put each number there once"
            )
        return Order(places=moved)
    try:
        axes = tuple(int(a) for a in (range(len(stored)) if told is None else told))
    except (TypeError, ValueError):
        raise ValueError(f"axes {told!r} are no permutation such as (1, 0)") from None
    if sorted(axes) != list(range(len(stored))) or tuple(stored[a] for a in axes) != shape:
        raise ValueError(f"axes {list(axes)} do not make the one of the other")
    return Order(axes, is_told=told is not None)


def variable_reasons(state: OptimizerState, found: Sequence[Target]) -> Iterator[str]:
    """What steps make of some variables alone: other dtypes are rounded differently, and so on."""
    if wider := [target.stored.name for target in found if target.dtype != target.stored.dtype]:
        yield f"{some(wider)}: computed in a wider dtype than in the source"
    if rounded := rounding.difference(state, None):
        yield rounded
    different = repeated_rows.difference(state, algorithms.find(state.algorithm), (), "the live optimizer")
    if different:
        yield different
