"""Prove that a migration is right: both sides are read again, by other code than wrote them, and compared.

Arrays: source and target by their readers, bit for bit, with all checksums. Format: TensorFlow's own checkpoint reader
sees the same keys, shapes, dtypes and, in tensors of up to a megabyte, the same values. Meaning: one step with a fixed
pseudo-random gradient, by `optim` from the target and by the source generation's formula (`parity`) from the source;
for a large checkpoint on a sample (`parity_sample`). Without TensorFlow, the format is not compared, the step is that
of the rule alone (`by_rule`), and a note reports that.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from migrate import claims, readers
from migrate.bytes.source import open_source
from migrate.conversion import error_boundary, partial
from migrate.conversion.convert import PathLike, Progress, described, for_target, read, read_part
from migrate.conversion.partial import Choice, Patterns
from migrate.conversion.targets import by_ending
from migrate.evidence.user_input import argument_types
from migrate.evidence.user_input.hints import Hints, check_hints
from migrate.lists import planning
from migrate.proof import documents, list_target, loaded, model_target, narrow, one_step, slots_target, tensorflow
from migrate.state import OptimizerState
from optim.bytes import files, urls
from optim.errors import HyperparameterError, UnsupportedError

if TYPE_CHECKING:
    from typing_extensions import Unpack

WITHOUT_TENSORFLOW = (
    "TensorFlow is not installed, so its own reader was not used, and dtopt computed the step"
    " alone, in float64 on numpy"
)


@dataclass(frozen=True)
class Verification:
    """Result of `verify`.

    Attributes:
      ok: whether nothing differs.
      source, dest: what was compared.
      slots, variables: how many of them were compared, bit for bit.
      iterations: the step count of both.
      differences: all of them.
      parity: the worst error of one step with each, relative to the rounding tolerance: 1 is the limit. None if no
        step was made; `notes` explain why.
      notes: what was compared on a sample, by other means, or not at all.
    """

    ok: bool
    source: str
    dest: str
    slots: int
    variables: int
    iterations: int
    differences: tuple[str, ...]
    parity: float | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@error_boundary.speaking()
def verify(
    source: PathLike,
    dest: PathLike,
    *,
    order: str | None = None,
    progress: Progress | None = None,
    fresh: Patterns = (),
    grown: Patterns = (),
    weights_only: bool = False,
    **hints: Unpack[Hints],
) -> Verification:
    """Compare a target with its source.

    A target of Keras 3 or tf_keras is read by this package's own reader, array by array. Steps are compared by the
    formulas of both releases, and with Keras's own steps after it loads the target in a separate process.

    Args:
      source: what was migrated.
      dest: what it was migrated to.
      order: for a list, the generation that will read it, as when the list was written.
      progress: called with (bytes compared, bytes in all).
      fresh, grown, weights_only, hints: as for `migrate_checkpoint`. Notes name what is fresh.

    Returns:
      What was compared, and every difference. Nothing is raised for a difference.

    Raises:
      DtoptError: one of the two cannot be read at all.
    """
    where = argument_types.path("dest", dest)
    path = argument_types.path("source", source)
    check_hints(hints, weights_only=weights_only)
    if files.canonical(path) == files.canonical(where):
        raise HyperparameterError(f"source and dest are both {path}; dest is what the migration of source wrote")
    choice = Choice.of(fresh, grown, weights_only)
    with error_boundary.reading(urls.shown(path)):
        state = read_part(path, by_ending(where), choice, hints)
    with files.here(where) as local, error_boundary.reading(urls.shown(where)):
        target = open_source(local)
        result = _compared(state, urls.shown(os.fspath(source)), local, order, progress)
        target.check()
        state.check_unchanged()
    notes = [origin.doubt for origin in state.origins if origin.subject in partial.SUBJECTS]
    return replace(result, dest=urls.shown(where), notes=(*notes, *result.notes))


def _compared(
    state: OptimizerState, source: str, dest: str, order: str | None, progress: Progress | None
) -> Verification:
    if os.path.isfile(dest):
        state.finish_checks()
    if list_target.is_list(dest):
        return _verify_list(state, source, dest, order)
    if order is not None:
        raise HyperparameterError(f"--order is the order of a list, and {dest} is not a list: remove it")
    if os.path.isfile(dest):
        return _verify_model(state, source, dest)
    return _verify_slots(state, source, dest, progress)


def _verify_slots(state: OptimizerState, source: str, dest: str, progress: Progress | None) -> Verification:
    target = slots_target.Target(dest)
    differences = [
        *slots_target.array_differences(state, target, progress),
        *slots_target.metadata_differences(state, target),
    ]
    worst, notes = None, []
    if not tensorflow.is_installed():
        notes.append(WITHOUT_TENSORFLOW)
    elif not differences:
        differences += slots_target.tensorflow_differences(target)
    if any(origin.subject == partial.OPTIMIZER for origin in state.origins):
        notes.append("no step is compared, because the optimizer is reset")
    elif not differences:
        try:
            worst, left_out = one_step.worst_error(state, target.folder)
            notes += [left_out] if left_out else []
        except UnsupportedError as error:
            notes.append(str(error))
        else:
            if not worst <= 1:
                differences.append(
                    f"a step from the target differs from the source's own by {worst:.3g} times the rounding tolerance"
                )
    return Verification(
        ok=not differences,
        source=source,
        dest=target.folder,
        slots=sum(len(owners) for owners in state.slots.values()),
        variables=sum(v.array is not None for v in state.variables),
        iterations=state.iterations,
        differences=tuple(differences),
        parity=worst,
        notes=tuple(notes),
    )


def _verify_list(state: OptimizerState, source: str, dest: str, order: str | None) -> Verification:
    plan = planning.plan(state, order)
    differences = tuple(list_target.differences(plan, dest))
    return Verification(
        ok=not differences,
        source=source,
        dest=dest,
        slots=sum(len(owners) for owners in state.slots.values()),
        variables=0,
        iterations=state.iterations,
        differences=differences,
        parity=None,
        notes=(
            f"the list of generation {plan.generation} has no hyperparameters, so no step is compared",
            *plan.reasons,
        ),
    )


def _verify_model(state: OptimizerState, source: str, dest: str) -> Verification:
    reader = readers.detect(dest)
    if reader.name not in model_target.FORMATS:
        raise UnsupportedError(f"{dest} is {reader.description}, which verify does not compare with a source")
    library = model_target.FORMATS[reader.name]
    to = {"keras": "keras", "tf_keras": "tf-keras"}[library]
    expected, target = for_target(state, to, None), read(dest)
    known = expected.reasons
    ours = narrow.as_later(state)
    compared = model_target.compared(ours, target, known)
    differences, notes = list(compared.differences), list(compared.notes)
    if not differences:
        others, otherwise, done = loaded.compared(ours, source, compared.renamed, dest, library)
        differences += others + ([] if known else otherwise)
        notes += done + (otherwise if known else [])
    if not differences:
        differences += [*documents.differences(dest, described(state, to)), *_forgotten(expected, target)]
        differences += model_target.number_differences(expected, target, state)
    return Verification(
        ok=not differences,
        source=source,
        dest=dest,
        slots=sum(len(owners) for owners in state.slots.values()),
        variables=sum(v.array is not None for v in state.variables),
        iterations=state.iterations,
        differences=tuple(differences),
        parity=compared.worst,
        notes=tuple(notes),
    )


def _forgotten(expected: OptimizerState, target: OptimizerState) -> list[str]:
    """Report reasons for inexactness that the target does not contain, though it may become a source."""
    kept = [origin.doubt for origin in target.source.doubts] if target.source is not None else []
    if len(kept) >= claims.MOST:  # it stores no more
        return []
    open_ = [origin.open for origin in expected.origins if not origin.certain]
    return [
        f"the target does not contain why it is not exact: {reason}"
        for reason in open_
        if not any(text.endswith(reason) for text in kept)
    ]
