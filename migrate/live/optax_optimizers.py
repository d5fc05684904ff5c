"""Restore optimizer state of any source into an optax transformation: check it by its own steps, fill new pytrees."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from migrate import claims
from migrate.algorithms import rates
from migrate.bytes.source import check_unchanged
from migrate.conversion import partial
from migrate.conversion.partial import Choice
from migrate.live import current_values, mapped, optax_state, optax_trial, step_answers
from migrate.live.current_values import Assumed
from migrate.live.mapped import Mapped, Order, Target
from migrate.live.optax_state import COUNT, FIELDS, KEPT, Leaf, Optax
from migrate.live.step_answers import Row
from migrate.rules import comparison
from migrate.rules import step_factors as factors
from migrate.rules.keras_targets import initial_value
from migrate.state import OptimizerState, StoredVariable
from optim.errors import UnsupportedError


class Restored:
    """A restoration: differences are known after it is created, `run` replaces state and parameters.

    Args:
      variables: name in the source -> name of a leaf of the parameters, keys joined by slashes, or as in
        `mapped.targets`.

    Raises:
      UnsupportedError: an algorithm that optax does not have, or a state without a place for its slots.
      MismatchError: leaves that are missing, extra, or of another shape or dtype, all of them listed.
    """

    def __init__(self, state: OptimizerState, training: Optax, variables: Any, restore_variables: bool, choice: Choice):
        self._training, self._restore_variables = training, restore_variables
        if state.algorithm not in FIELDS:
            raise UnsupportedError(
                f"the state of {state.algorithm} is not restored into optax; of these it is: {', '.join(FIELDS)}; or"
                f" {partial.WEIGHTS_ONLY}"
            )
        self.what = "optax"
        self._fields = FIELDS[state.algorithm]
        self._parameters = optax_state.named(training.params)
        found = _mapped(state, training, variables, choice)
        self.state, self.targets, self._fresh = found.state, found.targets, found.fresh
        state = self.state
        self._leaves = optax_state.leaves(training.state, training.params)
        self._check_places()
        rows = (
            Assumed(t.stored, functools.partial(np.asarray, self._parameters[t.place], np.float64), t.order)
            for t in self.targets
            if not t.is_grown
        )
        self._contradictions = current_values.reasons(rows, state.variables, restore_variables)
        self._trial = optax_trial.Outcome()
        rate = state.hyperparameters.get("learning_rate")
        self._own_schedule = rates.is_own(rate)
        if not self._own_schedule:
            self._trial = optax_trial.tried(state, training, [*self.targets, *self._fresh_targets()])
        self.origins = (*state.origins, *claims.doubts("optax transformation", dict.fromkeys(self._doubts())))
        self.reasons = claims.reasons(self.origins)
        self.warnings = tuple(
            f"slot {slot}: its numbers are multiplied by {factor:.9g}, as the transformation stores them"
            for slot, factor in self._trial.factors.items()
            if factor != 1.0
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
        kinds = {what for what, _ in places}
        idle = () if self.state.hyperparameters.get("momentum") else optax_trial.MOMENTA.values()
        for slot in (slot for slot in self.state.slots if slot in (*self._fields, "vhat") and slot not in idle):
            if self._fields.get(slot) not in kinds:
                raise UnsupportedError(
                    f"the source's optimizer is {self.state.algorithm}, and the optax state has no place for its slot"
                    f" {slot} (a field {self._fields.get(slot)!r}); make a transformation with the rule of"
                    f" {self.state.algorithm}, or {partial.WEIGHTS_ONLY}"
                )

    def _doubts(self) -> Iterator[str]:
        state = self.state
        if self._own_schedule:
            name = state.hyperparameters["learning_rate"]["class_name"]
            yield f"the source's learning rate is {name}, not a schedule of Keras, so its steps cannot be compared"
        yield from self._contradictions
        yield from self._trial.reasons
        for option, what in optax_trial.APART.items():
            if state.hyperparameters.get(option):
                yield f"the source has {what} ({option}), and the state of a transformation has no place for them"
        if state.algorithm in comparison.RECTIFIED and state.hyperparameters.get("float32_powers"):
            yield "the source rounds its rectification to float32, by which steps differ by up to 1 %"
        yield from mapped.variable_reasons(state, self.targets)
        yield from self._factor_reasons()
        slot_of = {field: slot for slot, field in self._fields.items()}
        fresh = {leaf.what for leaf in self._leaves if leaf.name and slot_of.get(leaf.what) not in state.slots}
        if fresh and state.slots:
            yield f"the state has {', '.join(sorted(fresh))}, which the source does not have: it restarts"
        started = dict.fromkeys(
            leaf.what
            for leaf, array in self._paired()
            if not state.slots and (slot := slot_of.get(leaf.what)) and np.any(array != initial_value(state, slot))
        )
        if started:
            yield (
                f"the source has no slots yet, and {', '.join(started)} of the optax state holds other values than its"
                " new ones would"
            )
        for leaf, array in self._paired():
            owned = state.slots.get(slot_of.get(leaf.what, ""), {})
            stored = next(
                (owned[t.stored.name] for t in self.targets if t.place == leaf.name and t.stored.name in owned), None
            )
            if stored is not None and str(array.dtype) != stored.dtype:
                yield f"{leaf.what} is {array.dtype} in the state, and {stored.dtype} in the source"

    def _factor_reasons(self) -> Iterator[str]:
        rows = [Row(t.stored, t.stored.name, t.place) for t in self.targets]
        rule = comparison.rule_of(self.state.algorithm, self.state.hyperparameters)
        yield from step_answers.differences(self.state, factors.OPTAX, rows, {}, decays=False)
        yield from step_answers.of_whole(self.state, factors.OPTAX, rule, rule, None)

    def _paired(self) -> Iterator[tuple[Leaf, Any]]:
        import jax

        return zip(self._leaves, jax.tree_util.tree_leaves(self._training.state), strict=True)

    @property
    def unmapped(self) -> tuple[str, ...]:
        """Parts of the source without a place in the state."""
        kinds = {leaf.what for leaf in self._leaves if leaf.name}
        lost = [
            f"{slot}/{name}"
            for slot, per in self.state.slots.items()
            if self._fields.get(slot) not in kinds
            for name in per
        ]
        return (*self.state.unmapped, *lost)

    def run(self) -> int:
        """Replace `state`, and `params` if requested, or nothing; return the bytes of slots."""
        import jax

        targets = {target.place: target for target in self.targets}
        slot_of = {field: slot for slot, field in self._fields.items()}
        moved, starts = 0, iter(jax.tree_util.tree_leaves(self._training.tx.init(self._training.params)))

        def value(what: Leaf, old: Any) -> Any:
            nonlocal moved
            start = next(starts)
            if what.what == KEPT:
                return old
            if what.what == COUNT:
                return self._counter(old)
            if what.name not in targets:
                return start
            slot = slot_of.get(what.what, "")
            stored = self.state.slots.get(slot, {}).get(targets[what.name].stored.name)
            if stored is None:
                return old
            factor, array = self._trial.factors.get(slot, 1.0), mapped.numbers(stored)
            array = array if factor == 1.0 else array * np.float64(factor)
            new = optax_state.like(targets[what.name].filled(array, functools.partial(np.asarray, start)), old)
            moved += new.nbytes
            return new

        state = optax_state.filled(self._training.state, self._training.params, value)
        params = self._training.params
        if self._restore_variables:
            params = _with_stored_values(self._training, self.targets)
        check_unchanged()
        self._training.state, self._training.params = state, params
        return moved

    def _counter(self, old: Any) -> Any:
        if self.state.iterations > np.iinfo(old.dtype).max:
            raise UnsupportedError(f"the source has taken {self.state.iterations} steps, more than {old.dtype} counts")
        return optax_state.like(np.asarray(self.state.iterations), old)


class Reset:
    """Set parameters to the stored values and create a new state; same interface as `Restored`."""

    def __init__(self, state: OptimizerState, training: Optax, variables: Any, choice: Choice):
        self._training, self.what = training, "optax"
        found = _mapped(replace(state, algorithm="optax"), training, variables, choice)
        self.state, self.targets = found.state, found.targets
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
    state: OptimizerState, training: Optax, variables: Any, restore_variables: bool, choice: Choice
) -> Restored | Reset:
    """Create the restoration, see `Restored`."""
    if choice.weights_only:
        return Reset(state, training, variables, choice)
    return Restored(state, training, variables, restore_variables, choice)


def _mapped(state: OptimizerState, training: Optax, variables: Any, choice: Choice) -> Mapped:
    parameters = optax_state.named(training.params)

    def found(name: Any) -> tuple[str, tuple[int, ...], str] | None:
        leaf = parameters.get(name) if isinstance(name, str) else None
        return None if leaf is None else (name, tuple(leaf.shape), str(leaf.dtype))

    named = {name: name for name in parameters}
    return mapped.mapped(state, variables, found, tuple(parameters), "leaf array", choice, named)


def _with_stored_values(training: Optax, targets: Sequence[Target]) -> Any:
    import jax

    by_place = {target.place: target for target in targets}
    new = [
        optax_state.like(by_place[name].value(functools.partial(np.asarray, leaf)), leaf) if name in by_place else leaf
        for name, leaf in optax_state.named(training.params).items()
    ]
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(training.params), new)
