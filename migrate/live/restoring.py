"""Restore optimizer state from any source into a live optimizer: everything is checked, then everything is assigned."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from migrate import claims, readers, surfaces
from migrate.algorithms import nadam
from migrate.bytes.arrays import LazyArray
from migrate.bytes.messages import some, worded
from migrate.bytes.source import check_unchanged, watching
from migrate.conversion import error_boundary, model_weights, partial
from migrate.conversion.commands import RESTORE, answered, calls
from migrate.conversion.convert import PathLike, Progress, Report, read
from migrate.conversion.partial import Choice, Patterns
from migrate.errors import AmbiguousError, StrictError
from migrate.evidence import value_checks
from migrate.evidence.user_input import argument_types
from migrate.evidence.user_input.hints import SourceHints, check_hints
from migrate.live import (
    adapt,
    conversions,
    current_values,
    optax_optimizers,
    selection,
    torch_optimizers,
    values,
    variable_matching,
)
from migrate.live.base import Live
from migrate.live.differences import Differences
from migrate.live.optax_state import Optax
from migrate.live.ours import Ours
from migrate.live.selection import Reset
from migrate.live.variable_matching import Given
from migrate.matching import choosing
from migrate.rules import comparison
from migrate.state import OptimizerState, Stored, StoredVariable
from optim import slot_layout
from optim.checkpoints import assigning
from optim.checkpoints.assigning import Assignment
from optim.checkpoints.slot_dtypes import encoded
from optim.checkpoints.variables import handle
from optim.errors import MismatchError, UnsupportedError

if TYPE_CHECKING:
    from typing_extensions import Unpack

RANK = ("name", "object graph", "shape", "position")
"""Ways of matching, the most reliable first."""


@dataclass(frozen=True)
class Restoration(Report):
    """The result of `restore`: a `Report` with the live optimizer as `dest` and the live variables' names in `matched`.

    Attributes:
      onto: {live variable: (variable of the source, how it was found: `name`, `shape` or `position`)}.
        unmapped: names of parts of the source without a place in the live optimizer.
    """

    onto: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@error_boundary.speaking()
def restore(
    source: PathLike,
    optimizer: Any,
    variables: Sequence[Any] | Mapping[str, Any],
    *,
    restore_variables: bool = False,
    strict: bool = False,
    fresh: Patterns = (),
    grown: Patterns = (),
    weights_only: bool = False,
    source_variables: Sequence[Mapping[str, Any]] | None = None,
    progress: Progress | None = None,
    **hints: Unpack[SourceHints],
) -> Restoration:
    """Put the optimizer state of `source` into a live optimizer: all of it, or none.

    Args:
      source: a file, a folder, or the prefix of a TensorFlow checkpoint, as for `read`.
      optimizer: of `optim`, the result of `optim.for_keras`, of Keras 3 on any backend, or of tf_keras
        (`optimizers` or `optimizers.legacy`), in a LossScaleOptimizer or not. New slots are created for the trainable
        ones of `variables`, in their order. Or of torch.optim, with a mapping name in the source -> parameter; or
        `migrate.Optax(tx, params)`, with a mapping name in the source -> name in the pytree, `Dense_0/kernel`. If
        dims are in another order, use (parameter, axes) or (name, axes); for other orders (parameter, function),
        which gets NumPy arrays of the source's shape and returns them in the parameter's order.
      variables: the model's variables, at least the trainable ones (of tf_keras model.trainable_variables, as those of
        a frozen layer keep trainable=True there): a sequence in the model's order, matched to the
        source by name (`variable.path` or `.name`), then shape, then position; or a mapping name in the source ->
        variable, matched by name and shape alone.
      restore_variables: also assign the stored values of the variables given.
      strict: refuse whatever is not exact.
      fresh: regular expressions, searched in the names of live variables, or in the keys of a mapping: those get
        nothing from the source, like a new last layer. They keep their values, and their slots are initial. What the
        source has instead is dropped.
      grown: the same, for variables that are larger along one dim than in the source, such as a longer vocabulary:
        the first part comes from the source, and the rest starts fresh. You promise that the order is the source's.
      weights_only: reset the optimizer: assign the values of the variables, make slots initial and the step counter
        0.
      source_variables: `variables` of `read`; for a list, None means the live variables.
      progress: called with (bytes done, bytes in all).
      hints: `format`, `optimizer_config`, `generation`, `optimizer_path` and `overrides`, as for `read`.

    Returns:
      The result. `fidelity` is `exact` if the live optimizer continues as the source would have. Hyperparameters that
      differ keep their live values, and are among the `reasons` for `approximate`.

    Raises:
      StrictError: `strict`, and it is not exact. UnsupportedError: another algorithm than the source's, or an
        optimizer of another library. MismatchError, AmbiguousError: variables. The others are those of `read`. After
        an error, optimizer and variables have their old values; new slots with initial values may exist.
    """
    path = argument_types.path("source", source)
    check_hints(hints, weights_only=weights_only)
    argument_types.check(source_variables=source_variables)
    argument_types.check_variables(variables)
    choice = Choice.of(fresh, grown, weights_only)
    restores = restore_variables or weights_only
    options = {
        "restore_variables": restore_variables,
        "strict": strict,
        "source_variables": source_variables,
        **vars(choice),
        **hints,
    }
    ask = functools.partial(calls, RESTORE, (repr(path), "optimizer", "variables"), options)
    in_torch, in_optax = torch_optimizers.is_torch(optimizer), isinstance(optimizer, Optax)
    restored = torch_optimizers.restored if in_torch else optax_optimizers.restored if in_optax else None
    live, note = (None, "") if restored else adapt(optimizer)
    given = [] if restored else variable_matching.given(variables)
    with answered(ask):
        state = _read(path, source_variables, given, hints, choice)
    with watching(state.opened), answered(ask):
        if restored:
            mapped = restored(state, optimizer, variables, restores, choice)
            _check_strict(mapped, strict)
            return _asking(_restore_by_mapping(path, mapped, restores), ask)
        assert live is not None
        if not weights_only:
            _check_class(state, live)
        chosen = selection.select(state, live, given, variables, choice, restores)
        done = _Restoring(chosen, live, restores, weights_only)
        _check_strict(done.differences, strict)
        done.run(progress)
        return _asking(done.report(path, [note] if note else []), ask)


def _read(
    path: str,
    hint: Sequence[Mapping[str, Any]] | None,
    given: Sequence[variable_matching.Given],
    hints: SourceHints,
    choice: Choice,
) -> OptimizerState:
    """Read and check a whole source; the live variables name those of a list if the user gave no names."""
    with error_boundary.reading(path):
        if choice.weights_only:
            return model_weights.of_source(path, {**hints, **({"source_variables": hint} if hint else {})})
        is_same = not choice.is_partial
        if hint is None and given and is_same and readers.detect(path, hints.get("format", "auto")).name == "list":
            hint = [{"name": g.name, "shape": list(g.shape)} for g in given if g.trainable]
        state = _read_with_flags(path, hint, given, hints)
        state.finish_checks()
        return value_checks.checked(state)


def _read_with_flags(
    path: str, hint: Sequence[Mapping[str, Any]] | None, given: Sequence[variable_matching.Given], hints: SourceHints
) -> OptimizerState:
    """Do the same as `read`; for a file of weights alone the live variables show what was frozen."""
    try:
        return read(path, variables=hint, **hints)
    except AmbiguousError:
        reader = readers.detect(path, hints.get("format", "auto"))
        found = reader.read(path, hints.get("generation"), hints.get("optimizer_path"))
        if hint is not None or not isinstance(found, Stored) or all(v.trainable is not None for v in found.variables):
            raise
        names = variable_matching.trained(given, found.variables, ordered=True)
        if not names:
            raise
        state = read(path, variables=[{"name": v.name, "shape": v.shape} for v in names], **hints)
        trained = [v.name for v in names]
        doubt = (
            f"{some(trained)}: the source does not store which variables were trained; dtopt assumes those that the"
            " live model trains"
        )
        confirm = surfaces.naming(trained)
        origin = claims.Origin(claims.TRAINED, trained, claims.COMPUTED, doubt=doubt, confirm=confirm)
        return replace(state, origins=(*state.origins, origin))


Done = (
    Differences
    | Reset
    | torch_optimizers.Restored
    | torch_optimizers.Reset
    | optax_optimizers.Restored
    | optax_optimizers.Reset
)
Ask = Callable[[claims.Questions], tuple[str, tuple[str, ...]]]
"""Formats calls that answer open questions."""


def _check_strict(done: Done, strict: bool) -> None:
    if strict and done.reasons:
        text = f"refused by strict, as restoring is approximate: {'; '.join(done.reasons)}"
        raise claims.asking(StrictError(text), claims.questions(done.origins))


def _asking(restoration: Restoration, ask: Ask) -> Restoration:
    asked = claims.questions(restoration.origins)
    confirm, choices = ask(asked)
    return replace(restoration, questions=asked, confirm_command=confirm, choice_commands=choices)


def _restore_by_mapping(
    source: str,
    done: torch_optimizers.Restored | torch_optimizers.Reset | optax_optimizers.Restored | optax_optimizers.Reset,
    restore_variables: bool,
) -> Restoration:
    moved = done.run()
    state, names = done.state, [t.stored.name for t in done.targets]
    slots = sum(name in per for per in state.slots.values() for name in names)
    return Restoration(
        source=source,
        dest=done.what,
        target="live",
        optimizer=state.algorithm,
        generation=state.source.generation if state.source else None,
        iterations=state.iterations,
        fidelity=claims.fidelity(done.origins),
        reasons=tuple(map(worded, done.reasons)),
        origins=done.origins,
        matched={f"{slot}/{name}": "name" for slot, per in state.slots.items() for name in names if name in per},
        unmapped=done.unmapped,
        warnings=tuple(map(worded, (*state.warnings, *done.warnings))),
        variables=len(names) if restore_variables else 0,
        slots=slots,
        bytes=moved,
        written=True,
        onto={name: (name, "name") for name in names},
        **vars(state.parts),
    )


def _check_class(state: OptimizerState, live: Live) -> None:
    if not comparison.same_class(state.algorithm, live.algorithm):
        raise UnsupportedError(
            f"the source's optimizer is {state.algorithm} and the live one {live.what}: their slots hold different"
            f" things; make a live {state.algorithm}, or {partial.WEIGHTS_ONLY}"
        )


class _Restoring:
    """A restoration: differences are known after it is created, `run` assigns."""

    def __init__(self, chosen: selection.Selection, live: Live, restore_variables: bool, weights_only: bool):
        self._state, self._live, self._given, self._pairs = chosen.state, live, chosen.given, chosen.pairs
        self._restore_variables = restore_variables
        self._trained = [p for p in self._pairs if p.live.trainable]
        self._trainable = [g for g in self._given if g.trainable]
        self._check_values()
        self.differences: Differences | Reset
        if weights_only:
            self.differences = Reset(self._state, live, self._trainable)
        else:
            same = (p for p in self._pairs if p.live.shape == p.stored.shape)
            contradictions = current_values.reasons(
                map(variable_matching.assumed, same), self._state.variables, restore_variables
            )
            self.differences = Differences(self._state, live, self._trainable, self._pairs, contradictions)
        missing, others = live.missing([g.variable for g in self._trainable])
        if missing or others:
            raise MismatchError(
                f"{live.what} was built on other variables than those given: not on {missing or 'none of them'}, and"
                f" also on {others or 'no others'}; give the variables that it was built on, or make a new one"
            )
        self._moved = 0
        self._slots = 0
        self._unmapped: list[str] = [*self._state.unmapped]

    # Checks.

    def _check_values(self) -> None:
        if not self._restore_variables:
            return
        found = {id(p.live): p.stored for p in self._pairs}
        fresh = self._state.parts.fresh
        given = [g for g in self._given if g.name not in fresh]
        lacking = [g.name for g in given if id(g) not in found or found[id(g)].array is None]
        if lacking:
            patterns = choosing.patterns_for(lacking, [g.name for g in given if g.name not in lacking])
            raise MismatchError(
                f"the source holds no value of {some(lacking, 8)}; leave them out, pass restore_variables=False, or let"
                f" them start fresh: {partial.call(fresh=patterns)}"
            )

    # Assigning.

    def run(self, progress: Progress | None) -> None:
        """Create missing slots, and assign everything or nothing."""
        self._live.build([g.variable for g in self._trainable])
        todo = [*self._slot_assignments(), *self._scalar_assignments(), *self._variable_assignments()]
        sizes = {id(a.value): values.size(a.value) for a in todo}
        total = sum(sizes.values())

        def assigned(value: Any) -> None:
            self._moved += sizes[id(value)]
            if progress is not None:
                progress(self._moved, total)
            if self._moved == total:
                check_unchanged()  # raised here, everything is put back

        assigning.assign_all(todo, assigned)
        self._live.settle(self._scalars)

    def _slot_assignments(self) -> Iterator[Any]:
        stored = {id(p.live): p.stored for p in self._trained}
        for given in self._trainable:
            slots = self._live.slots(given.variable)
            own = stored.get(id(given))
            for slot, variable in slots.items():
                scales = self._live.scales(given.variable, slot) if isinstance(self._live, Ours) else None
                if scales is None:
                    yield Assignment(variable, self._stored_or_initial(slot, given, own, variable))
                    continue
                whole = self._stored_or_initial(slot, given, own, variable, dtype="float32")
                for target, value in zip((variable, scales), encoded(whole, handle(variable).dtype), strict=True):
                    yield Assignment(target, value)
            if own is not None:
                names = [s for s in self._state.slots if own.name in self._state.slots[s]]
                self._slots += sum(slot in slots for slot in names)
                self._unmapped += [f"{slot}/{own.name}" for slot in names if slot not in slots]
        frozen = {p.stored.name for p in self._pairs if not p.live.trainable}
        self._unmapped += [f"{s}/{n}" for s, per in self._state.slots.items() for n in per if n in frozen]

    def _stored_or_initial(
        self, slot: str, given: Given, own: StoredVariable | None, variable: Any, dtype: str | None = None
    ) -> Any:
        array = self._stored_slot(slot, own)
        what, change = f"slot {slot} of {given.name!r}", self.differences.plan.changes.get(slot)
        start = self._live.start(slot)
        initial = values.filled(what, variable, given.variable if start is None else start, dtype)
        if array is None and start is None and own is not None and self._restore_variables:
            array, change = own.array, None
        if array is None:
            return initial
        return values.grown(values.stored(what, array, dtype or handle(variable).dtype, change), initial)

    def _stored_slot(self, slot: str, own: StoredVariable | None) -> LazyArray | None:
        if own is None:
            return None
        found = self._state.slots.get(slot, {}).get(own.name)
        if found is None and slot == "vhat":  # AMSGrad begins here: a maximum over all v so far is at least v
            return self._state.slots.get("v", {}).get(own.name)
        return found

    @property
    def _scalars(self) -> dict[str, float]:
        state, source, live = self._state, self.differences.source_rule, self.differences.rule
        known: dict[str, float] = {slot_layout.ITERATIONS: state.iterations, slot_layout.ACCUMULATED_STEPS: 0}
        steps = live.values.get("gradient_accumulation_steps")
        if steps and steps == source.values.get("gradient_accumulation_steps"):
            known |= {k: v for k, v in state.scalars.items() if k == slot_layout.ACCUMULATED_STEPS}
        if state.algorithm == "Nadam":
            known[nadam.PRODUCT] = conversions.momentum_product(source, live, state.scalars, state.iterations)
        return known

    def _scalar_assignments(self) -> Iterator[Any]:
        for name, variable, number in self._live.scalars(self._scalars):
            yield Assignment(variable, values.filled(f"{name} of the optimizer", variable, number))

    def _variable_assignments(self) -> Iterator[Any]:
        for pair in self._pairs if self._restore_variables else ():
            assert pair.stored.array is not None
            variable, what = pair.live.variable, f"variable {pair.live.name!r}"
            value = values.stored(what, pair.stored.array, handle(variable).dtype, None)
            yield Assignment(variable, values.grown(value, values.filled(what, variable, variable)))

    # Report.

    def report(self, source: str, notes: Sequence[str]) -> Restoration:
        state, differs = self._state, self.differences
        names = {p.stored.name: p for p in self._trained}
        matched = {}
        for slot, owners in state.slots.items():
            for name in owners:
                if name in names:
                    ways = (state.matched.get(f"{slot}/{name}", "name"), names[name].how)
                    matched[f"{slot}/{names[name].live.name}"] = max(ways, key=_rank)
        return Restoration(
            source=source,
            dest=self._live.what,
            target="live",
            optimizer=state.algorithm,
            generation=state.source.generation if state.source else None,
            iterations=state.iterations,
            fidelity=claims.fidelity(differs.origins),
            reasons=tuple(map(worded, differs.reasons)),
            origins=differs.origins,
            matched=matched,
            unmapped=tuple(self._unmapped),
            warnings=tuple(
                map(worded, (*state.warnings, *differs.rule.warnings, *differs.plan.warnings, *notes, *self._notes()))
            ),
            variables=len(self._pairs) if self._restore_variables else 0,
            slots=self._slots,
            bytes=self._moved,
            written=True,
            onto={p.live.name: (p.stored.name, p.how) for p in self._pairs},
            **vars(state.parts),
        )

    def _notes(self) -> Iterator[str]:
        weak = [f"{p.live.name} = {p.stored.name}" for p in self._trained if p.how == "position" and p.proven]
        if weak:
            yield f"matched by position, as names differ and shapes are not unique; values agree: {', '.join(weak)}"
        known = {id(p.live) for p in self._trained}
        owners = {name for per in self._state.slots.values() for name in per}
        fresh = [g.name for g in self._trainable if id(g) not in known and g.name not in self._state.parts.fresh]
        fresh += [p.live.name for p in self._trained if p.stored.name not in owners]
        if fresh and owners:
            yield f"never trained in the source, so their slots start fresh: {', '.join(fresh)}"


def _rank(how: str) -> int:
    return RANK.index(how) if how in RANK else len(RANK)
