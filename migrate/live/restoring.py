"""Restore optimizer state from any source into a live optimizer: everything is checked, then everything is assigned."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from migrate import claims
from migrate.bytes.messages import line, worded
from migrate.bytes.source import watching
from migrate.conversion import error_boundary
from migrate.conversion.commands import RESTORE, answered, calls
from migrate.conversion.convert import PathLike, Progress, Report
from migrate.conversion.partial import Choice, Patterns
from migrate.errors import StrictError
from migrate.evidence.user_input import argument_types
from migrate.evidence.user_input.hints import SourceHints, check_hints
from migrate.live import adapt, cells, selection, sources, torch_optimizers, variable_matching
from migrate.live.filling import Filling
from migrate.live.optax import restored as optax_restored
from migrate.live.optax.trees import Optax

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
    """Put the optimizer state of `source` into a live optimizer completely, or not at all.

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
    options = {
        "restore_variables": restore_variables,
        "strict": strict,
        "source_variables": source_variables,
        **vars(choice),
        **hints,
    }
    ask = functools.partial(calls, RESTORE, (repr(path), "optimizer", "variables"), options)
    restores = restore_variables or weights_only
    by_mapping: Any = torch_optimizers.restored if torch_optimizers.is_torch(optimizer) else None
    by_mapping = optax_restored.restored if isinstance(optimizer, Optax) else by_mapping
    live, note = (None, "") if by_mapping else adapt(optimizer)
    live_variables = [] if by_mapping else variable_matching.live_variables(variables)
    with answered(ask):
        states, stored = sources.read_all(path, source_variables, live_variables, hints, choice)
    state = cells.joined(states, stored)
    with watching(state.opened), answered(ask):
        done: Any
        if live is None:
            done = by_mapping(states, state, optimizer, variables, restores, choice)
            _check_strict(done, strict)
            return _asking(_restore_by_mapping(path, done, restores), ask)
        for group_state in () if weights_only else states:
            cells.check_class(group_state, live.parts)
        chosen = selection.select(state, live, live_variables, variables, choice, restores)
        done = Filling(live, states, chosen, restores, weights_only)
        _check_strict(done, strict)
        done.run(progress)
        return _asking(_report(path, done, [note] if note else []), ask)


Ask = Callable[[claims.Questions], tuple[str, tuple[str, ...]]]
"""Formats calls that answer open questions."""


def _check_strict(done: Any, strict: bool) -> None:
    if strict and done.reasons:
        text = f"refused by strict, as restoring is approximate: {'; '.join(done.reasons)}"
        raise claims.asking(StrictError(text), claims.questions(done.origins))


def _asking(restoration: Restoration, ask: Ask) -> Restoration:
    asked = claims.questions(restoration.origins)
    confirm, choices = ask(asked)
    return replace(restoration, questions=asked, confirm_command=confirm, choice_commands=choices)


def _restore_by_mapping(
    source: str,
    done: Any,
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


def _report(source: str, done: Filling, notes: Iterable[str]) -> Restoration:
    state = done.state
    names = {p.stored.name: p for p in done.trained}
    matched = {}
    for slot, owners in state.slots.items():
        for name in owners:
            if name in names:
                ways = (state.matched.get(f"{slot}/{name}", "name"), names[name].how)
                matched[f"{slot}/{names[name].live.name}"] = max(ways, key=_rank)
    comparisons = [cell.compared for cell in done.cells]
    warnings = dict.fromkeys(w for comparison in comparisons for w in comparison.rule.warnings)
    warnings |= dict.fromkeys(w for comparison in comparisons for w in comparison.plan.warnings)
    return Restoration(
        source=source,
        dest=done.live.what,
        target="live",
        optimizer=state.algorithm,
        generation=state.source.generation if state.source else None,
        iterations=state.iterations,
        fidelity=claims.fidelity(done.origins),
        reasons=tuple(map(worded, map(line, done.reasons))),
        origins=done.origins,
        matched=matched,
        unmapped=tuple(done.unmapped),
        warnings=tuple(map(worded, (*state.warnings, *warnings, *notes, *done.notes()))),
        variables=len(done.pairs) if done.restores_variables else 0,
        slots=done.slots,
        bytes=done.moved,
        written=True,
        onto={p.live.name: (p.stored.name, p.how) for p in done.pairs},
        **vars(state.parts),
    )


def _rank(how: str) -> int:
    return RANK.index(how) if how in RANK else len(RANK)
