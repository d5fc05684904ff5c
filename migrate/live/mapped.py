"""Match parameters of frameworks without TensorFlow's names to stored variables, by a mapping alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from migrate import algorithms
from migrate.algorithms import repeated_rows
from migrate.bytes.arrays import LazyArray, widened
from migrate.bytes.messages import some
from migrate.conversion import partial, shards
from migrate.conversion.partial import Choice
from migrate.live import values
from migrate.matching import choosing
from migrate.models import rounding
from migrate.state import OptimizerState, Parts, StoredVariable
from optim import slot_layout
from optim.errors import MismatchError


@dataclass(frozen=True)
class Order:
    """The order of a parameter's numbers: dims transposed, or as an array of places.

    `is_told`: whether the user gave it.
    """

    axes: tuple[int, ...] = ()
    places: np.ndarray | None = None
    is_told: bool = True

    def of(self, array: np.ndarray) -> np.ndarray:
        """Convert an array from the variable's shape to the parameter's."""
        return np.transpose(array, self.axes) if self.places is None else np.ravel(array)[self.places]

    def __str__(self) -> str:
        return f"the axes {self.axes}" if self.places is None else "its function"


@dataclass(frozen=True)
class Target:
    """A parameter, its stored variable, and the order of its numbers.

    `place` finds the parameter in its framework: itself for torch, its name in the pytree for optax.
    """

    stored: StoredVariable
    place: Any
    order: Order
    dtype: str
    shape: tuple[int, ...]
    """The parameter's."""

    @property
    def is_grown(self) -> bool:
        return math.prod(self.shape) > math.prod(self.stored.shape)

    def laid_out(self, array: np.ndarray) -> np.ndarray:
        """Convert an array of the stored variable's shape to the parameter's order; leave others unchanged."""
        return np.array(self.order.of(array), order="C") if array.shape == self.stored.shape else array

    def filled(self, array: np.ndarray, rest: Callable[[], np.ndarray]) -> np.ndarray:
        """Convert an array to the parameter's order; a grown one gets the other numbers of `rest`, of its shape."""
        first = self.laid_out(array)
        if not self.is_grown or array.shape != self.stored.shape:
            return first
        whole = np.array(rest(), first.dtype)
        whole[tuple(map(slice, first.shape))] = first
        return whole

    def value(self, now: Callable[[], np.ndarray]) -> np.ndarray:
        """The stored value in the parameter's order of dims; the rest of a grown one from `now`.

        Raises:
          MismatchError: the source has no value.
        """
        if self.stored.array is None:
            raise MismatchError(f"the source holds no value of {self.stored.name}; pass restore_variables=False")
        return self.filled(numbers(self.stored.array), now)


@dataclass(frozen=True)
class Mapped:
    """The state for the parameters, the parameters of the source, and name -> place of those that start fresh."""

    state: OptimizerState
    targets: list[Target]
    fresh: Mapping[str, Any]


def numbers(array: LazyArray) -> np.ndarray:
    """A whole array in its shape, in a dtype of numpy that can hold it."""
    return widened(np.asarray(array.load()), array.dtype).reshape(array.shape)


Lookup = Callable[[Any], tuple[Any, tuple[int, ...], str] | None]
"""A parameter from the mapping -> its place, shape and dtype; None if the optimizer does not have it."""


def mapped(
    state: OptimizerState,
    variables: Any,
    lookup: Lookup,
    places: Sequence[Any],
    called: str,
    choice: Choice,
    named: Mapping[str, Any],
) -> Mapped:
    """Match the parameters of a mapping, which must be exactly those of the optimizer.

    Args:
      variables: name in the source -> parameter; or (parameter, axes) if the parameter is the variable with its dims
        in another order, `numpy.transpose(variable, axes)`; or (parameter, function) if it is `function(variable)`;
        or any other name -> parameter that starts fresh.
      places: of all parameters of the optimizer. called: the word for a parameter in messages.
      choice: what starts fresh, and what has grown. named: places by names that need not be in the mapping.

    Raises:
      MismatchError: no mapping; or parameters that are missing, extra, or of another shape or dtype, all listed.
      HyperparameterError: patterns that match nothing.
    """
    if not isinstance(variables, Mapping):
        trained = [v.name for v in state.variables if v.trainable]
        raise MismatchError(
            f"give a mapping of the source's names to {called}s, or to ({called}, axes) if dims are in another"
            f" order; the source has {some(trained, between='; ')}"
        )
    parameters = {name: _parameter(lookup, spec) for name, spec in variables.items()}
    there = {parameter[0] for parameter in parameters.values() if parameter is not None}
    others = {name: place for name, place in named.items() if place not in there and name not in variables}
    parts = choice.parts_of([*variables, *others], state.parts)
    fresh = {name: others[name] for name in parts.fresh if name in others}
    fresh |= {name: parameter[0] for name in parts.fresh if (parameter := parameters.get(name)) is not None}
    kept = {name: spec for name, spec in variables.items() if name not in parts.fresh}
    plain = {
        n: parameter[1] for n in kept if not isinstance(kept[n], tuple) and (parameter := parameters[n]) is not None
    }
    state, resharded = shards.resharded(state, plain, parts.grown)
    stored = {v.name: v for v in state.variables}
    strange = [name for name in kept if name not in stored]
    problems, targets_, unfit = [f"the source has no {name!r}" for name in strange], list[Target](), list(strange)
    for name in (name for name in kept if name in stored):
        before = len(problems)
        targets_ += _target(stored[name], kept[name], parameters[name], called, name in parts.grown, problems)
        unfit += [name] if len(problems) > before and parameters[name] is not None else []
    left = partial.dropped(state, {*kept, *parts.fresh})
    if not (choice.is_partial or choice.weights_only):
        problems += [f"no {called} is given for {name!r}" for name in sorted(left)]
        left = ()
    taken = {target.place for target in targets_}
    lacking = set(places) - taken - there - set(fresh.values())
    problems += [f"{len(lacking)} {called}s of the optimizer are not in the mapping"] if lacking else []
    if len(taken | set(fresh.values())) < len(targets_) + len(fresh):
        problems.append(f"a {called} is given for two names")
    if problems:
        advice = _call_with_fresh(unfit, lacking, variables, others, choice)
        raise MismatchError(f"the {called}s are not those of the source: {some(problems, between='; ')}{advice}")
    parts = Parts(tuple(fresh), tuple(t.stored.name for t in targets_ if t.is_grown), left)
    origins = (*state.origins, *partial.partial_origins(parts, resharded))
    return Mapped(replace(state, parts=parts, origins=origins), targets_, fresh)


def _call_with_fresh(
    unfit: Sequence[str],
    lacking: Collection[Any],
    variables: Mapping[str, Any],
    others: Mapping[str, Any],
    choice: Choice,
) -> str:
    new = [*unfit, *(name for name, place in others.items() if place in lacking)]
    nameless = len(lacking) - sum(place in lacking for place in others.values())
    if not new and not nameless:
        return ""
    patterns = choosing.patterns_for(new, [n for n in (*variables, *others) if n not in new])
    patterns += ["^new/"] if nameless else []
    options = {"fresh": [*choice.fresh, *patterns], "grown": list(choice.grown), "weights_only": choice.weights_only}
    call = partial.call("{**mapping, **new}" if nameless else "mapping", **options)
    return f". New ones may start fresh: {call}" + ", where new is {'new/0': variable, ...}" * bool(nameless)


def _parameter(lookup: Lookup, spec: Any) -> tuple[Any, tuple[int, ...], str] | None:
    parameter = spec[0] if isinstance(spec, tuple) and len(spec) == 2 else spec
    try:
        return lookup(parameter)
    except TypeError:  # not hashable
        return None


def _target(
    stored: StoredVariable,
    spec: Any,
    parameter: tuple[Any, tuple[int, ...], str] | None,
    called: str,
    may_grow: bool,
    problems: list[str],
) -> list[Target]:
    axes_given = spec[1] if isinstance(spec, tuple) and len(spec) == 2 else None
    if parameter is None:
        problems.append(f"the optimizer does not have the parameter given for {stored.name!r}")
        return []
    place, shape, dtype = parameter
    if dtype != stored.dtype and not values.holds(dtype, stored.dtype):
        problems.append(f"{stored.name!r} is {stored.dtype}, its {called} {dtype}, which cannot hold it")
        return []
    try:
        return [Target(stored, place, _order(stored.shape, shape, axes_given, may_grow), dtype, shape)]
    except ValueError as error:
        problems.append(f"{stored.name!r} has shape {list(stored.shape)}, its {called} {list(shape)}: {error}")
        return []


def _order(stored: tuple[int, ...], shape: tuple[int, ...], axes_given: Any, may_grow: bool) -> Order:
    """How an array of the stored shape becomes one of the parameter's, or its first part.

    Args:
      axes_given: axes; or a function that rearranges an array; None if the user gave neither.

    Raises:
      ValueError: the shape is different, or not each number occurs once.
    """
    if callable(axes_given):
        places = np.arange(np.prod(stored, dtype=np.int64)).reshape(stored)
        moved = np.asarray(axes_given(places))
        if moved.shape != shape or not np.array_equal(np.sort(moved, axis=None), np.ravel(places)):
            raise ValueError(
                f"the function given makes shape {list(moved.shape)}, or does not put each number there once"
            )
        return Order(places=moved)
    try:
        axes = tuple(int(a) for a in (range(len(stored)) if axes_given is None else axes_given))
    except (TypeError, ValueError):
        raise ValueError(f"axes {axes_given!r} are not a permutation such as (1, 0)") from None
    turned = tuple(stored[a] for a in axes) if sorted(axes) == list(range(len(stored))) else None
    if turned is None or not (turned == shape or (may_grow and slot_layout.is_grown(turned, shape))):
        raise ValueError(f"axes {list(axes)} do not make the one of the other")
    return Order(axes, is_told=axes_given is not None)


def variable_reasons(state: OptimizerState, targets: Sequence[Target]) -> Iterator[str]:
    """Explain differences of some variables only: other dtypes are rounded differently, and so on."""
    if wider := [target.stored.name for target in targets if target.dtype != target.stored.dtype]:
        yield f"{some(wider)}: computed in a wider dtype than in the source"
    if rounded := rounding.difference(state, None):
        yield rounded
    different = repeated_rows.difference(state, algorithms.find(state.algorithm), (), "the live optimizer")
    if different:
        yield different
