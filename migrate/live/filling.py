"""Assign a source's state to a live optimizer and its variables: everything is checked before, then all or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from migrate import claims
from migrate.algorithms import nadam
from migrate.bytes.arrays import LazyArray
from migrate.bytes.messages import some
from migrate.bytes.source import check_unchanged
from migrate.conversion import partial
from migrate.conversion.convert import Progress
from migrate.live import cells, conversions, current_values, values, variable_matching
from migrate.live.base import Live
from migrate.live.cells import Cell
from migrate.live.selection import Selection
from migrate.live.variable_matching import LiveVariable
from migrate.matching import choosing
from migrate.models import loss_scale
from migrate.state import OptimizerState, StoredVariable
from optim import slot_layout
from optim.checkpoints import assigning
from optim.checkpoints.assigning import Assignment
from optim.checkpoints.slot_dtypes import encoded
from optim.checkpoints.variables import handle
from optim.errors import MismatchError


class Filling:
    """A restoration: differences are known after it is created, `run` assigns.

    Args:
      states: of the source's groups, or its only one. chosen: all of them joined, and the live variables.

    Attributes:
      origins: those of the source, and what differs in the live optimizer.
      moved, slots, unmapped: after `run`, bytes and slots that were assigned, and parts of the source without a place.

    Raises:
      UnsupportedError: another algorithm than the source's. MismatchError: variables.
    """

    def __init__(
        self,
        live: Live,
        states: Sequence[OptimizerState],
        chosen: Selection,
        restore_variables: bool,
        weights_only: bool,
    ):
        self.state, self.live, self.pairs = chosen.state, live, chosen.pairs
        self.cells = cells.divided(live, states, chosen.state, chosen.live_variables, chosen.pairs, weights_only)
        self._live_variables, self.restores_variables = chosen.live_variables, restore_variables
        self.trained = [p for p in self.pairs if p.live.trainable]
        self._trainable = [g for g in self._live_variables if g.trainable]
        self._check_values()
        self._compare(weights_only)
        self.origins = cells.origins(self.cells)
        self.reasons = claims.reasons(self.origins)
        missing, others = live.missing([g.variable for g in self._trainable])
        if missing or others:
            raise MismatchError(
                f"{live.what} was built on other variables than those given: it lacks {missing or 'nothing'}, and also"
                f" has {others or 'nothing'}; give the variables that it was built on, or make a new one"
            )
        self.moved = self.slots = 0
        self.unmapped: list[str] = [*self.state.unmapped]

    def _compare(self, weights_only: bool) -> None:
        same = (p for p in self.pairs if p.live.shape == p.stored.shape)
        assumed = [] if weights_only else map(variable_matching.assumed, same)
        contradictions = current_values.reasons(assumed, self.state.variables, self.restores_variables)
        for number, cell in enumerate(self.cells):
            cell.compare(contradictions if number == 0 else ())

    def _check_values(self) -> None:
        if not self.restores_variables:
            return
        stored = {id(p.live): p.stored for p in self.pairs}
        fresh = self.state.parts.fresh
        kept = [g for g in self._live_variables if g.name not in fresh]
        lacking = [g.name for g in kept if id(g) not in stored or stored[id(g)].array is None]
        if lacking:
            patterns = choosing.patterns_for(lacking, [g.name for g in kept if g.name not in lacking])
            raise MismatchError(
                f"the source holds no value of {some(lacking, 8)}; leave them out, pass restore_variables=False, or let"
                f" them start fresh: {partial.call(fresh=patterns)}"
            )

    def run(self, progress: Progress | None) -> None:
        """Create missing slots, and assign everything or nothing."""
        self.live.build([g.variable for g in self._trainable])
        todo = [*self._scalar_assignments(), *self._variable_assignments()]
        todo = [*(assignment for cell in self.cells for assignment in self._slot_assignments(cell)), *todo]
        sizes = {id(a.value): values.size(a.value) for a in todo}
        total = sum(sizes.values())

        def assigned(value: Any) -> None:
            self.moved += sizes[id(value)]
            if progress is not None:
                progress(self.moved, total)
            if self.moved == total:
                check_unchanged()  # raised here, everything is put back

        assigning.assign_all(todo, assigned)
        self.live.settle({slot_layout.ITERATIONS: self.state.iterations})

    def _slot_assignments(self, cell: Cell) -> Iterator[Any]:
        stored_of = {id(p.live): p.stored for p in self.trained}
        slots_of = self.state.slots
        for live in cell.trainable:
            slots = self.live.slots(live.variable)
            stored = stored_of.get(id(live))
            for slot, variable in slots.items():
                scales = self.live.scales(live.variable, slot)
                if scales is None:
                    yield Assignment(variable, self._stored_or_initial(cell, slot, live, stored, variable))
                    continue
                whole = self._stored_or_initial(cell, slot, live, stored, variable, dtype="float32")
                for target, value in zip((variable, scales), encoded(whole, handle(variable).dtype), strict=True):
                    yield Assignment(target, value)
            if stored is not None:
                names = [s for s in slots_of if stored.name in slots_of[s]]
                self.slots += sum(slot in slots for slot in names)
                self.unmapped += [f"{slot}/{stored.name}" for slot in names if slot not in slots]
        frozen = {p.stored.name for p in cell.pairs if not p.live.trainable}
        self.unmapped += [f"{s}/{n}" for s, per in slots_of.items() for n in per if n in frozen]

    def _stored_or_initial(
        self,
        cell: Cell,
        slot: str,
        live: LiveVariable,
        stored: StoredVariable | None,
        variable: Any,
        dtype: str | None = None,
    ) -> Any:
        array = self._stored_slot(slot, stored)
        what, change = f"slot {slot} of {live.name!r}", cell.compared.plan.changes.get(slot)
        start = cell.live.start(slot)
        initial = values.filled(what, variable, live.variable if start is None else start, dtype)
        if array is None and start is None and stored is not None and self.restores_variables:
            array, change = stored.array, None
        if array is None:
            return initial
        return values.grown(values.stored(what, array, dtype or handle(variable).dtype, change), initial)

    def _stored_slot(self, slot: str, stored: StoredVariable | None) -> LazyArray | None:
        if stored is None:
            return None
        array = self.state.slots.get(slot, {}).get(stored.name)
        if array is None and slot == "vhat":  # AMSGrad begins here: a maximum over all v so far is at least v
            return self.state.slots.get("v", {}).get(stored.name)
        return array

    def _scalar_assignments(self) -> Iterator[Any]:
        assigned = set[int]()
        for cell in self.cells:
            for name, variable, number in cell.live.scalars(_scalars(cell)):
                if id(variable) not in assigned:
                    assigned.add(id(variable))
                    yield Assignment(variable, values.filled(f"{name} of the optimizer", variable, number))

    def _variable_assignments(self) -> Iterator[Any]:
        for pair in self.pairs if self.restores_variables else ():
            assert pair.stored.array is not None
            variable, what = pair.live.variable, f"variable {pair.live.name!r}"
            value = values.stored(what, pair.stored.array, handle(variable).dtype, None)
            yield Assignment(variable, values.grown(value, values.filled(what, variable, variable)))

    def notes(self) -> Iterator[str]:
        """Yield what a report should mention, and does not affect the fidelity."""
        weak = [f"{p.live.name} = {p.stored.name}" for p in self.trained if p.how == "position" and p.proven]
        if weak:
            yield f"matched by position, as names differ and shapes are not unique; values agree: {', '.join(weak)}"
        known = {id(p.live) for p in self.trained}
        owners = {name for per in self.state.slots.values() for name in per}
        fresh = [g.name for g in self._trainable if id(g) not in known and g.name not in self.state.parts.fresh]
        fresh += [p.live.name for p in self.trained if p.stored.name not in owners]
        if fresh and owners:
            yield f"never trained in the source, so their slots start fresh: {', '.join(fresh)}"


def _scalars(cell: Cell) -> dict[str, float]:
    """The state of a cell's optimizer that is not in slots."""
    state, source, live = cell.state, cell.compared.source_rule, cell.compared.rule
    known: dict[str, float] = {slot_layout.ITERATIONS: state.iterations, slot_layout.ACCUMULATED_STEPS: 0}
    steps = live.values.get("gradient_accumulation_steps")
    is_same = steps and steps == source.values.get("gradient_accumulation_steps")
    known |= loss_scale.scalars(state)
    known |= {k: v for k, v in state.scalars.items() if is_same or k != slot_layout.ACCUMULATED_STEPS}
    if state.algorithm == "Nadam":
        known[nadam.PRODUCT] = conversions.momentum_product(source, live, state.scalars, state.iterations)
    return known
