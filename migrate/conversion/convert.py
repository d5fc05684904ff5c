"""The operations of the package, one function each: read, interpret, write."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from migrate import readers
from migrate.bytes.messages import LONGEST, line, some, worded
from migrate.bytes.source import open_source, watching
from migrate.claims import NONE, Origin, Questions, asking, doubts
from migrate.conversion import contents as _contents
from migrate.conversion import error_boundary, model_weights, partial
from migrate.conversion import inspection as _inspection
from migrate.conversion.commands import FAMILIES, answered, calls, instead, with_model
from migrate.conversion.partial import Choice, Patterns
from migrate.conversion.targets import WRITERS, target_of
from migrate.errors import MissingHintError, StrictError, TargetExistsError
from migrate.evidence import value_checks
from migrate.evidence.interpret import interpret
from migrate.evidence.user_input import argument_types
from migrate.evidence.user_input.hints import Hints, Variables, check_hints, check_unused
from migrate.matching.choosing import OF_NEW_CLASS, WEIGHTS_ALONE
from migrate.models import constraints, rounding
from migrate.state import OptimizerState, Stored
from migrate.writers import uploads
from optim.bytes import files, urls
from optim.errors import UnsupportedError

if TYPE_CHECKING:
    from typing_extensions import Unpack

PathLike = str | os.PathLike[str]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Report:
    """What a migration did, or with `dry_run` would do.

    Attributes:
      source: what was read, without the password of a URL.
      dest: what was written.
      target: `slots`, `keras`, `tf-keras` or `list`.
      optimizer: name of the class of `optim`.
      generation: who wrote the source, one of `generations.GENERATIONS`; None for a slot-variable checkpoint.
      iterations: the step count.
      fidelity: `exact` or `approximate`.
      reasons: why it is not exact.
      origins: the source of each value that the next step depends on; fidelity and reasons follow from it.
      matched: {`slot/variable`: `name`, `object graph`, `shape` or `position`}.
      unmapped: names of arrays that are migrated without interpretation.
      warnings: notes that do not affect the fidelity.
      variables: how many model variables there are.
      slots: how many arrays all slots have together.
      bytes: of slots and variables.
      written: False with `dry_run`.
      fresh, grown, dropped: names of variables that start fresh, that are larger in the target's model, and that it
        does not have.
      questions: open questions, and the values that answer them.
      confirm_command: a call, on the command line a command, that answers every question with one answer; may be
        empty.
      choice_commands: the same with each answer to a question with several.
    """

    source: str
    dest: str
    target: str
    optimizer: str
    generation: str | None
    iterations: int
    fidelity: str
    reasons: tuple[str, ...]
    origins: tuple[Origin, ...]
    matched: Mapping[str, str]
    unmapped: tuple[str, ...]
    warnings: tuple[str, ...]
    variables: int
    slots: int
    bytes: int
    written: bool
    fresh: tuple[str, ...] = ()
    grown: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    questions: Questions = NONE
    confirm_command: str = ""
    choice_commands: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@error_boundary.speaking()
def read(
    source: PathLike,
    *,
    format: str = "auto",
    optimizer_config: Mapping[str, Any] | None = None,
    variables: Variables | None = None,
    generation: str | None = None,
    optimizer_path: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> OptimizerState:
    """Return the optimizer state in `source`, in `optim`'s terms; arrays stay in the file until they are used.

    Args:
      source: a file, a folder, or the prefix of a TensorFlow checkpoint.
      format: name of a reader, or `auto`.
      optimizer_config: Keras JSON `{"class_name", "config"}`, adds what the source does not show.
      variables: `[{"name", "shape"}, ...]` in optimizer order, for sources without names; for others also patterns.
      generation: one of `generations.GENERATIONS`, for sources that do not show it.
      overrides: name -> value that replaces or confirms the source's; `class_name`, `generation`, `iterations` and
        the names of the optimizer's config.
      optimizer_path: one of several optimizers in a checkpoint, by its name in the error that lists them.

    Returns:
      The state: shapes as in the model, dtypes as stored, hyperparameters as keyword arguments of `optim`'s class.

    Raises:
      DtoptError: UnknownFormatError, DamagedFileError, MissingHintError, AmbiguousError, MismatchError or
        UnsupportedError, each with advice.
    """
    path = argument_types.path("source", source)
    hints: dict[str, Any] = {
        "optimizer_config": optimizer_config,
        "variables": variables,
        "generation": generation,
        "overrides": overrides,
    }
    check_hints({"format": format, "optimizer_path": optimizer_path, **hints})
    with error_boundary.reading(path), files.answers_kept(path):
        opened = open_source(path)
        content = readers.detect(path, format).read(path, generation, optimizer_path)
        _check_has_state(content)
        if isinstance(content, Stored):
            state = interpret(content, **hints)
            opened.check()
            return replace(state, opened=opened)
        check_unused(path, hints)
        opened.check()
        return replace(content, opened=opened)


def _check_has_state(content: Stored | OptimizerState) -> None:
    if isinstance(content, Stored) and content.no_state:
        raise UnsupportedError(f"{content.no_state}; {WEIGHTS_ALONE if content.optimizer_config else OF_NEW_CLASS}")


@error_boundary.speaking()
def inspect(source: PathLike, *, stats: bool = False, **hints: Unpack[Hints]) -> _inspection.Inspection:
    """Describe `source`: its format, how that was recognised, every slot, and what would be lost. Arguments as for
    `read`.

    Args:
      source: a file, a folder, or the prefix of a TensorFlow checkpoint.
      stats: read every slot once, for its norm, range and whether it is finite.
      hints: the keywords of `read`.

    Raises:
      DtoptError: as for `read`. TypeError: a keyword that is not a hint.
    """
    path = argument_types.path("source", source)
    check_hints(hints)
    ask = functools.partial(calls, "migrate.inspect", (repr(path),), {"stats": stats, **hints})
    with error_boundary.reading(path), answered(ask):
        state = read(path, **hints)
        if stats:
            state.finish_checks()
        elif not all(check.is_done for check in state.checks()):
            note = "the checksum of the whole file was not checked: --stats checks it, and reads the whole file"
            state = replace(state, warnings=(*state.warnings, note))
        result = _inspection.inspection(state, urls.shown(path), stats=stats)
        state.check_unchanged()
        confirm, choices = ask(result.questions)
        return replace(result, confirm_command=confirm, choice_commands=choices)


@error_boundary.speaking()
def contents(
    source: PathLike,
    *,
    format: str = "auto",
    generation: str | None = None,
    optimizer_path: str | None = None,
    stats: bool = False,
) -> _contents.Contents | None:
    """Return the content of `source` in its own terms, for sources that lack something and so raise in `inspect`; None
    for dtopt's own files, which are complete.

    Args:
      format, generation: as for `read`. optimizer_path: one of several optimizers in a checkpoint.
      stats: read every array once, as for `inspect`.

    Raises:
      DtoptError: UnknownFormatError, DamagedFileError or AmbiguousError, as `read`.
    """
    path = argument_types.path("source", source)
    argument_types.check(format=format, generation=generation, optimizer_path=optimizer_path)
    with error_boundary.reading(path), files.answers_kept(path):
        opened = open_source(path)
        content = readers.detect(path, format).read(path, generation, optimizer_path)
        _check_has_state(content)
        shown = _contents.contents(content, urls.shown(path), stats=stats) if isinstance(content, Stored) else None
        opened.check()
        return shown


@error_boundary.speaking()
def write(
    state: OptimizerState,
    dest: PathLike,
    *,
    to: str | None = None,
    order: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write a state completely or not at all.

    Args:
      state: what `read` returned.
      dest: the file or folder to be written.
      to: the target format: `slots`, `keras`, `tf-keras` or `list`; None derives it from the ending of `dest`.
      order: for the target `list`, the generation that will read it; None for the one that wrote the source.
      overwrite: whether a checkpoint of that format at `dest` may be replaced.
      progress: called with (bytes done, bytes in all), from any thread.

    Raises:
      HyperparameterError: an unknown target, or the ending of another target's file. TargetExistsError: `dest`
        exists.
    """
    path = argument_types.path("dest", dest)
    to = target_of(path, to, order)
    more = {"order": order} if to == "list" else {}
    _write_to_target(state, path, to, overwrite=overwrite, progress=progress, **more)


def _write_to_target(state: OptimizerState, dest: str, to: str, *, overwrite: bool, **more: Any) -> None:
    if to != "slots":
        state.finish_checks()  # the writer of slots does so while it copies
    writer = import_module(f"migrate.writers.{WRITERS[to]}")
    if urls.is_url(dest):
        writer.check_target(dest, overwrite=overwrite)
    with watching(state.opened), uploads.sent_to(dest) as path:
        writer.write(state, path, overwrite=overwrite, **more)


def _check_separate(source: str, dest: str) -> None:
    target = files.canonical(dest)
    names = [source] if files.exists(source) else [source + ".index"]
    for path in map(files.canonical, names):
        if target == path or _inside(path, target) or _inside(target, path):
            raise TargetExistsError(
                f"{dest} and the source {source} overlap: choose a separate target, as a source is never modified"
            )


def _inside(path: str, folder: str) -> bool:
    return path.startswith(folder + "/")


@error_boundary.speaking()
def migrate_checkpoint(
    source: PathLike,
    dest: PathLike,
    *,
    to: str | None = None,
    order: str | None = None,
    strict: bool = False,
    dry_run: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    fresh: Patterns = (),
    grown: Patterns = (),
    weights_only: bool = False,
    **hints: Unpack[Hints],
) -> Report:
    """Convert the optimizer state of `source` to `dest`, completely or not at all.

    Args:
      source: a file, a folder, or the prefix of a TensorFlow checkpoint. It is never changed.
      dest: the file or folder to be written.
      to, order, overwrite, progress: as for `write`.
      strict: refuse whatever is not exact.
      dry_run: do everything except writing.
      fresh: patterns of variables that get nothing from the source. `optim.load_checkpoint` keeps their values, and a
        model as target keeps those of the source; slots are initial. With `fresh` or `grown`, `variables` describes
        the model that will load the target, in new shapes: variables that it leaves out are dropped.
      grown: patterns of variables that are larger along one dim in the model that will load the target, such as with
        a longer vocabulary. Their first part comes from the source. For slot checkpoints.
      weights_only: convert the model's variables alone, with an optimizer before its first step: the source's, or
        that of `optimizer_config` or `class_name` in `overrides`.
      hints: the keywords of `read`.

    Returns:
      What was done, whether that is exact, and the reasons.

    Raises:
      StrictError: `strict`, and the conversion is not exact. TargetExistsError: also if `dest` is, contains or is in
        the source. The others are those of `read` and `write`.
    """
    path, source_path = argument_types.path("dest", dest), argument_types.path("source", source)
    check_hints(hints, weights_only=weights_only)
    to = target_of(path, to, order)
    _check_separate(source_path, path)
    if files.exists(path) and not overwrite:
        raise TargetExistsError(f"{path} exists; give another name, or --overwrite to replace it")
    choice = Choice.of(fresh, grown, weights_only)
    chosen = {**hints, **{name: value for name, value in vars(choice).items() if value}}
    options = {"to": to, "order": order, "strict": strict, "dry_run": dry_run, "overwrite": overwrite, **chosen}
    typed = functools.partial(calls, "migrate.migrate_checkpoint", (repr(source_path), repr(path)))
    with error_boundary.reading(source_path), answered(functools.partial(typed, options)):
        state = in_target = read_part(source, to, choice, hints)
        value_checks.check_settings(state)  # before anything is written

        def complete(state: OptimizerState) -> OptimizerState:
            """Add what the state's numbers show, which the target will contain."""
            nonlocal in_target
            state = value_checks.checked(state)
            in_target = _for_target_or_advice(
                state, to, order, functools.partial(instead, state, to, os.fspath(source), chosen)
            )
            if strict and in_target.fidelity != "exact":
                why = "; ".join(in_target.kept_reasons)
                text = f"refused by --strict, because the conversion is {in_target.fidelity}: {why}"
                raise asking(StrictError(text), in_target.questions)
            return state

        if to == "slots" and not dry_run and (state.fidelity == "exact" or not strict):
            _write_to_target(state, path, to, overwrite=overwrite, progress=progress, complete=complete)
        else:
            state = complete(state)
            if dry_run:
                state.finish_checks()
                state.check_unchanged()
            else:
                write(state, path, to=to, order=order, overwrite=overwrite, progress=progress)
    report = _report(in_target, urls.shown(os.fspath(source)), urls.shown(path), to, written=not dry_run)
    confirm, choices = typed({**options, "overwrite": overwrite or not dry_run}, report.questions)
    return replace(report, confirm_command=confirm, choice_commands=choices)


def read_part(source: PathLike, to: str, choice: Choice, hints: Hints) -> OptimizerState:
    """Return the state of a source, or the part that the user chose for a target."""
    read_hints, model = hints, None
    if choice.is_partial:
        read_hints, model = {**hints, "variables": None}, hints.get("variables")
    try:
        state = (
            model_weights.for_target(os.fspath(source), read_hints, to)
            if choice.weights_only
            else _named(source, read_hints, model)
        )
    except MissingHintError:
        if to in FAMILIES:
            _check_has_model(os.fspath(source), hints)
        raise
    return partial.applied(state, choice, to, model)


def _check_has_model(source: str, hints: Hints) -> None:
    """Raise UnsupportedError: the source does not describe its model, so no hint leads to a file of Keras."""
    reader = readers.detect(source, hints.get("format", "auto"))
    content = reader.read(source, hints.get("generation"), hints.get("optimizer_path"))
    if isinstance(content, Stored) and content.model is None:
        from migrate.models.plan import WITHOUT_MODEL

        raise UnsupportedError(f"{WITHOUT_MODEL}. {with_model('compiled', source, hints)}")


def _named(source: PathLike, hints: Hints, model: object) -> OptimizerState:
    """Do the same as `read`; a source without variable names has no part to choose."""
    try:
        return read(source, **hints)
    except MissingHintError as error:
        if model is None or "--variables" not in str(error):
            raise
        raise MissingHintError(
            "the source does not name its variables, and --variables describes the new model here: migrate all of it to"
            " slots first, with --variables that names its own, and then the part that you want from those"
        ) from error


def _for_target_or_advice(
    state: OptimizerState, to: str, order: str | None, advice: Callable[[], str]
) -> OptimizerState:
    """Do the same as `for_target`; if a model cannot be written, the error contains advice."""
    try:
        return for_target(state, to, order)
    except UnsupportedError as error:
        if to not in ("keras", "tf-keras"):
            raise
        what_to_type = advice()
        raise UnsupportedError(f"{line(str(error), LONGEST - len(what_to_type) - 2)}. {what_to_type}") from error


def for_target(state: OptimizerState, to: str, order: str | None) -> OptimizerState:
    """Return the state in the target's form, with reasons why it may not be exact."""
    if to == "list":
        from migrate.lists.planning import for_list

        return for_list(state, order)
    if to == "keras":
        from migrate.writers import keras_zip

        return keras_zip.converted(state)[0]
    if to == "tf-keras":
        from migrate.writers import keras_h5

        return keras_h5.converted(state)[0]
    different = [text for text in (rounding.difference(state, rounding.OPTIM), rounding.in_float8(state)) if text]
    state = replace(state, origins=(*state.origins, *doubts("step", different)))
    trained = [variable.name for variable in state.variables if variable.trainable]
    kept = list(constraints.of_source(state.source, trained)) if state.source is not None else []
    note = (
        f"{some(kept)}: the model constrains them after each step, which no slot checkpoint stores: optim applies the"
        " constraints of its variables, as in tf.Variable(..., constraint=...) and Keras's layers"
    )
    return replace(state, warnings=(*state.warnings, note)) if kept else state


def described(state: OptimizerState, to: str) -> dict[str, Any]:
    """A `keras` or `tf-keras` target's documents of model, loss and optimizer, as JSON."""
    writer = import_module(f"migrate.writers.{WRITERS[to]}")
    return dict(writer.described(state))


def _report(state: OptimizerState, source: str, dest: str, to: str, *, written: bool) -> Report:
    from optim.bytes.bundle import numpy_dtype

    slots = [array for owners in state.slots.values() for array in owners.values()]
    arrays = [*slots, *(v.array for v in state.variables if v.array is not None)]
    return Report(
        source=source,
        dest=dest,
        target=to,
        optimizer=state.algorithm,
        generation=state.source.generation if state.source else None,
        iterations=state.iterations,
        fidelity=state.fidelity,
        reasons=state.reasons,
        origins=state.origins,
        matched=dict(state.matched),
        unmapped=tuple(state.unmapped),
        warnings=tuple(map(worded, state.warnings)),
        variables=len(state.variables),
        slots=len(slots),
        bytes=sum(a.size * numpy_dtype(a.dtype).itemsize for a in arrays),
        written=written,
        questions=state.questions,
        **vars(state.parts),
    )
