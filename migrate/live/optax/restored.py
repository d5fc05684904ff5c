"""Restore optimizer state of any source into an optax transformation: check it by its own steps, fill new pytrees."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from migrate import claims
from migrate.algorithms import rates
from migrate.bytes.arrays import LazyArray
from migrate.bytes.source import check_unchanged
from migrate.conversion import partial
from migrate.conversion.partial import Choice
from migrate.live import cells, current_values, mapped, step_answers
from migrate.live.current_values import Assumed
from migrate.live.mapped import Mapped, Order, Target
from migrate.live.optax import sides, trees, trial
from migrate.live.optax.trees import COUNT, FIELDS, KEPT, Leaf, Optax
from migrate.live.step_answers import Row
from migrate.rules import comparison
from migrate.rules import step_factors as factors
from migrate.rules.keras_targets import initial_value
from migrate.state import OptimizerState, StoredVariable
from optim.errors import UnsupportedError


class Restored:
    """A restoration: differences are known after it is created, `run` replaces state and parameters.

    Args:
      states: of the source's groups, or its only one. whole: all of them joined.
      variables: name in the source -> name of a leaf of the parameters, keys joined by slashes, or as in
        `mapped.targets`.

    Raises:
      UnsupportedError: an algorithm that optax does not have, or a state without a place for its slots.
      MismatchError: leaves that are missing, extra, or of another shape or dtype, all of them listed.
    """

    def __init__(
        self,
        states: Sequence[OptimizerState],
        whole: OptimizerState,
        training: Optax,
        variables: Any,
        restore_variables: bool,
        choice: Choice,
    ):
        self._training, self._restore_variables = training, restore_variables
        for state in states:
            if state.algorithm not in FIELDS:
                raise UnsupportedError(
                    f"the state of {state.algorithm} is not restored into optax; of these it is: {', '.join(FIELDS)};"
                    f" or {partial.WEIGHTS_ONLY}"
                )
        self.what = "optax"
        self._parameters = trees.named(training.params)
        matching = _mapped(whole, training, variables, choice)
        self.state, self.targets, self._fresh = matching.state, matching.targets, matching.fresh
        self._parts = cells.by_state(states, matching.state, self.targets)
        self._targets = {target.place: target for target in self.targets}
        self._slot_of = {
            target.place: {field: slot for slot, field in FIELDS[state.algorithm].items()}
            for state, targets in self._parts
            for target in targets
        }
        self._leaves = trees.leaves(training.state, training.params)
        self._check_places()
        rows = (
            Assumed(t.stored, functools.partial(np.asarray, self._parameters[t.place], np.float64), t.order)
            for t in self.targets
            if not t.is_grown
        )
        self._contradictions = current_values.reasons(rows, whole.variables, restore_variables)
        self._trial = trial.Outcome()
        self._is_tried = not any(rates.is_own(s.hyperparameters.get("learning_rate")) for s, _ in self._parts)
        if self._is_tried:
            self._trial = trial.tried(self._parts, training, list(self._fresh_targets()))
        self.origins = (*self.state.origins, *claims.doubts("optax transformation", dict.fromkeys(self._doubts())))
        self.reasons = claims.reasons(self.origins)
        factors_ = {(slot, factor) for (slot, _), factor in self._trial.factors.items() if factor != 1.0}
        self.warnings = tuple(
            f"slot {slot}: its numbers are multiplied by {factor:.9g}, as the transformation stores them"
            for slot, factor in sorted(factors_)
        )

    def _fresh_targets(self) -> Iterator[Target]:
        for place in self._fresh.values():
            shape, dtype = tuple(self._parameters[place].shape), str(self._parameters[place].dtype)
            stored = StoredVariable(f"fresh {place}", None, shape, dtype, True)
            yield Target(stored, place, Order(tuple(range(len(shape)))), dtype, shape)

    def _check_places(self) -> None:
        places = [(leaf.what, leaf.name) for leaf in self._leaves if leaf.name]
        twice = sorted({f"{what} of {name}" for what, name in places if places.count((what, name)) > 1})
        if twice:
            raise UnsupportedError(
                f"the optax state has two places for {twice[0]}, and nothing shows which is the source's; restore"
                " into a transformation with one"
            )
        for state, targets in self._parts:
            fields, mine = FIELDS[state.algorithm], {target.place for target in targets}
            kinds = {what for what, name in places if name in mine}
            idle = () if state.hyperparameters.get("momentum") else trial.MOMENTA.values()
            for slot in (slot for slot in state.slots if slot in (*fields, "vhat") and slot not in idle):
                if fields.get(slot) not in kinds:
                    raise UnsupportedError(
                        f"the source's optimizer is {state.algorithm}, and the optax state has no place for its slot"
                        f" {slot} (a field {fields.get(slot)!r}); make a transformation with the rule of"
                        f" {state.algorithm}, or {partial.WEIGHTS_ONLY}"
                    )

    def _doubts(self) -> Iterator[str]:
        yield from self._contradictions
        yield from self._trial.reasons
        for state, targets in self._parts:
            yield from self._state_reasons(state, targets)
            yield from mapped.variable_reasons(state, targets)
            rows = [Row(t.stored, t.stored.name, t.place) for t in targets]
            rule = comparison.rule_of(state.algorithm, state.hyperparameters)
            yield from step_answers.differences(state, factors.OPTAX, rows, {}, decays=False)
            yield from step_answers.of_whole(state, factors.OPTAX, rule, rule, None)
            yield from self._place_reasons(state, {target.place for target in targets})

    def _state_reasons(self, state: OptimizerState, targets: Sequence[Target]) -> Iterator[str]:
        rate: Any = state.hyperparameters.get("learning_rate")
        if not self._is_tried and rates.is_own(rate):
            name = rate["class_name"]
            yield f"the source's learning rate is {name}, not a schedule of Keras, so its steps cannot be compared"
        for option, what in sides.APART.items():
            if state.hyperparameters.get(option):
                yield f"the source has {what} ({option}), and the state of a transformation has no place for them"
        if state.algorithm in comparison.RECTIFIED and state.hyperparameters.get("float32_powers"):
            yield "the source rounds its rectification to float32, by which steps differ by up to 1 %"

    def _place_reasons(self, state: OptimizerState, places: Collection[str]) -> Iterator[str]:
        """Report arrays of the optax state that the source has in another dtype, or does not have."""
        slot_of = {field: slot for slot, field in FIELDS[state.algorithm].items()}
        pairs = [(leaf, array) for leaf, array in self._paired() if leaf.name in places]
        fresh = {leaf.what for leaf, _ in pairs if slot_of.get(leaf.what) not in state.slots}
        if fresh and state.slots:
            yield f"the state has {', '.join(sorted(fresh))}, which the source does not have: it restarts"
        started = dict.fromkeys(
            leaf.what
            for leaf, array in pairs
            if not state.slots and (slot := slot_of.get(leaf.what)) and np.any(array != initial_value(state, slot))
        )
        if started:
            yield (
                f"the source has no slots yet, and {', '.join(started)} of the optax state holds other values than its"
                " new ones would"
            )
        for leaf, array in pairs:
            stored = self._stored(leaf)
            if stored is not None and str(array.dtype) != stored.dtype:
                yield f"{leaf.what} is {array.dtype} in the state, and {stored.dtype} in the source"

    def _stored(self, leaf: Leaf) -> LazyArray | None:
        """The source's array for a leaf of the state of a parameter."""
        slot = self._slot_of[leaf.name].get(leaf.what, "")
        return self.state.slots.get(slot, {}).get(self._targets[leaf.name].stored.name)

    def _paired(self) -> Iterator[tuple[Leaf, Any]]:
        import jax

        return zip(self._leaves, jax.tree_util.tree_leaves(self._training.state), strict=True)

    @property
    def unmapped(self) -> tuple[str, ...]:
        """Parts of the source without a place in the state."""
        used = {(self._slot_of[n].get(what), self._targets[n].stored.name) for what, n in self._owned()}
        lost = [f"{slot}/{name}" for slot, per in self.state.slots.items() for name in per if (slot, name) not in used]
        return (*self.state.unmapped, *lost)

    def _owned(self) -> Iterator[tuple[str, str]]:
        """Yield what each array of the optax state is, and its parameter, if the source has that."""
        return ((leaf.what, leaf.name) for leaf in self._leaves if leaf.name in self._targets)

    def run(self) -> int:
        """Replace `state`, and `params` if requested, or nothing; return the bytes of slots."""
        import jax

        moved, starts = 0, iter(jax.tree_util.tree_leaves(self._training.tx.init(self._training.params)))

        def value(what: Leaf, old: Any) -> Any:
            nonlocal moved
            start = next(starts)
            if what.what == KEPT:
                return old
            if what.what == COUNT:
                return self._counter(old)
            if what.name not in self._targets:
                return start
            stored, target = self._stored(what), self._targets[what.name]
            if stored is None:
                return old
            slot = self._slot_of[what.name].get(what.what, "")
            factor, array = self._trial.factors.get((slot, target.stored.name), 1.0), mapped.numbers(stored)
            array = array if factor == 1.0 else array * np.float64(factor)
            new = trees.like(target.filled(array, functools.partial(np.asarray, start)), old)
            moved += new.nbytes
            return new

        state = trees.filled(self._training.state, self._training.params, value)
        params = self._training.params
        if self._restore_variables:
            params = _with_stored_values(self._training, self.targets)
        check_unchanged()
        self._training.state, self._training.params = state, params
        return moved

    def _counter(self, old: Any) -> Any:
        if self.state.iterations > np.iinfo(old.dtype).max:
            raise UnsupportedError(f"the source has taken {self.state.iterations} steps, more than {old.dtype} counts")
        return trees.like(np.asarray(self.state.iterations), old)


class Reset:
    """Set parameters to the stored values and create a new state; same interface as `Restored`."""

    def __init__(self, state: OptimizerState, training: Optax, variables: Any, choice: Choice):
        self._training, self.what = training, "optax"
        matching = _mapped(replace(state, algorithm="optax"), training, variables, choice)
        self.state, self.targets = matching.state, matching.targets
        self.origins, self.warnings, self.unmapped = self.state.origins, (), ()
        self.reasons = claims.reasons(self.origins)

    def run(self) -> int:
        """Replace `state` and `params`, or nothing; return the bytes of slots."""
        params = _with_stored_values(self._training, self.targets)
        state = self._training.tx.init(params)
        check_unchanged()
        self._training.state, self._training.params = state, params
        return 0


def restored(
    states: Sequence[OptimizerState],
    whole: OptimizerState,
    training: Optax,
    variables: Any,
    restore_variables: bool,
    choice: Choice,
) -> Restored | Reset:
    """Create the restoration, see `Restored`."""
    if choice.weights_only:
        return Reset(whole, training, variables, choice)
    return Restored(states, whole, training, variables, restore_variables, choice)


def _mapped(state: OptimizerState, training: Optax, variables: Any, choice: Choice) -> Mapped:
    parameters = trees.named(training.params)

    def lookup(name: Any) -> tuple[str, tuple[int, ...], str] | None:
        leaf = parameters.get(name) if isinstance(name, str) else None
        return None if leaf is None else (name, tuple(leaf.shape), str(leaf.dtype))

    named = {name: name for name in parameters}
    return mapped.mapped(state, variables, lookup, tuple(parameters), "leaf array", choice, named)


def _with_stored_values(training: Optax, targets: Sequence[Target]) -> Any:
    import jax

    by_place = {target.place: target for target in targets}
    new = [
        trees.like(by_place[name].value(functools.partial(np.asarray, leaf)), leaf) if name in by_place else leaf
        for name, leaf in trees.named(training.params).items()
    ]
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(training.params), new)
