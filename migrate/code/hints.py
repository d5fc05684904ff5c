"""The optimizer that a program makes, as the hint that a checkpoint may need: class, config and generation."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import libcst as cst

from migrate.bytes import hint_files
from migrate.code import calls, facts, files, meanings, names, nesting, program, releases
from migrate.code.changes import changed, others
from migrate.code.changes.flow import Flow
from migrate.code.releases import Given
from migrate.errors import AmbiguousError, MissingHintError
from migrate.generations import traits
from optim.errors import DtoptError, HyperparameterError, UnsupportedError


@dataclass(frozen=True)
class CodeHint:
    """`optimizer_config` is as --optimizer-config takes it; `where` is the call, `name` what it is bound to.

    `left_out`: values that the config lacks, as the program sets them later -> where it does.
    `unread`: where the program changes the optimizer in another way. `others`: where it may make another one.
    """

    optimizer_config: dict[str, Any]
    generation: str
    where: str
    name: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    def __str__(self) -> str:
        lacking = "".join(f"; {key} is left out, as {where} sets it" for key, where in self.left_out.items())
        return f"{self.where}: {json.dumps(self.optimizer_config)} of {self.generation}{lacking}"

    def certain(self, chosen: bool) -> CodeHint:
        """Itself. Raises UnsupportedError where its call does not tell what steps were. `chosen`: by its name."""
        doubts = [*self.unread, *(() if chosen else self.others)]
        if not doubts:
            return self
        more = f", and {len(doubts) - 1} more places" if len(doubts) > 1 else ""
        given = shlex.quote(json.dumps(self.optimizer_config))
        raise UnsupportedError(
            f"what {self.where} makes is not all of it: {doubts[0]}{more}, which is not read. In place of"
            f" --optimizer-from give --generation {self.generation} --optimizer-config {given} with the values that"
            " were in force at the save"
        )


@dataclass(frozen=True)
class Unread:
    """A call of which no hint is made; `where` and `name` as a hint's."""

    error: DtoptError
    where: str
    name: str


def from_code(source: str, said: str | None = None) -> CodeHint:
    """The hint in `script.py`, `script.py:NAME` or `script.py:LINE`, which is read and not run.

    Args:
      source: NAME is what the optimizer is bound to, LINE where it is made; needed where the program makes several.
      said: as `migrate_code`'s `source`.

    Raises:
      MissingHintError: no optimizer, or none of that name. AmbiguousError: several. UnsupportedError: an argument that
        is no literal.
    """
    path, wanted = (source, "") if Path(source).exists() else _CHOSEN.match(source).groups("")  # type: ignore[union-attr]
    _check_size(path)
    given = releases.given(said) if said else None
    found = nesting.on_large_stack(lambda: hints_in(Path(path), given))
    if wanted:
        found = [hint for hint in found if hint.name == wanted or hint.where == f"{Path(path)}:{wanted}"]
    good = [hint for hint in found if isinstance(hint, CodeHint)]
    good.sort(key=lambda hint: bool(hint.unread))
    different = {json.dumps((h.optimizer_config, h.generation), sort_keys=True): h for h in good}
    if len(different) > 1:
        listed = "\n  ".join(str(hint) for hint in different.values())
        raise AmbiguousError(
            f"{path} makes several optimizers, or fits several releases: say which as {path}:NAME or :LINE, or the"
            f" release with --generation:\n  {listed}"
        )
    problems = [hint for hint in found if isinstance(hint, Unread)]
    if different and not (wanted and problems):
        return next(iter(different.values())).certain(bool(wanted))
    for problem in problems:
        raise problem.error
    raise MissingHintError(f"{path} makes no optimizer{f' at {wanted}' if wanted else ''} that is known here")


def _check_size(path: str) -> None:
    """Raises HyperparameterError for what is no regular file of a program's size."""
    try:
        hint_files.check(path)
    except OSError:
        return  # said where it is read
    except ValueError as error:
        raise HyperparameterError(str(error)) from error


_CHOSEN = re.compile(r"(.*?)(?::((?:cell \d+:)?\d+|[A-Za-z_][\w.]*))?$", re.DOTALL)
"""FILE, and NAME or the end of `where`, if there is one."""


def hints_in(path: Path, said: Given | None) -> list[CodeHint | Unread]:
    """A hint for each call of an optimizer class and each release that fits, or why there is none."""
    reading = program.read(files.read(path), "optim", said)
    found: list[tuple[cst.Call, CodeHint | Unread]] = []
    for node in reading.tree.all(cst.Call):
        for name in filter(names.old_class, reading.names.of(node.func)):
            found += [(node, hint) for hint in _of_call(reading, name, node, node.args)]
        if by_string := reading.class_of_string(node):
            found += [(node, hint) for hint in _of_call(reading, by_string, node, ())]
    if not any(isinstance(hint, CodeHint) for _, hint in found):
        return [hint for _, hint in found]
    where = Flow(reading)
    done = tuple(changed.places(reading, where, said))
    unread = [node for node, hint in found if isinstance(hint, Unread)]
    elsewhere = tuple(changed.shown(reading, node) for node in (*others.others(reading, where), *unread))
    return [
        _as_changed(reading, node, hint, where, done, elsewhere) if isinstance(hint, CodeHint) else hint
        for node, hint in found
    ]


def _shown(reading: program.Reading, node: cst.CSTNode) -> str:
    return f"{reading.where(node)} has {' '.join(reading.text(node).split())[:80]}"


def _as_changed(
    reading: program.Reading,
    node: cst.Call,
    hint: CodeHint,
    where: Flow,
    done: Sequence[changed.Place],
    elsewhere: tuple[str, ...],
) -> CodeHint:
    """Without the values that the program sets in other places than the call."""
    given = hint.optimizer_config["config"]
    config = dict(given)
    left_out: dict[str, str] = {}
    unread = [changed.shown(reading, each) for each in others.instead(reading, node, where)]
    for change in done:
        key = change.key
        if key == changed.DEFAULT_EPSILON:
            if given.get("epsilon", 0.0) is not None:
                continue  # given in the call, or without one
            key = "epsilon"
        if key == changed.GRADIENTS and traits(hint.generation).counts_in_program:
            continue  # asked about in any case, where no graph tells
        if key in given:
            config.pop(key, None)
            left_out.setdefault(key, change.where)
        else:
            unread.append(change.shown)
    document = {**hint.optimizer_config, "config": config}
    return replace(
        hint, optimizer_config=document, left_out=left_out, unread=tuple(dict.fromkeys(unread)), others=elsewhere
    )


def _of_call(
    reading: program.Reading, name: str, node: cst.Call, arguments: Sequence[cst.Arg]
) -> Sequence[CodeHint | Unread]:
    """`name`: the class, canonical. `arguments`: those of its call, none where `node` has it as a string."""
    old = names.old_class(name)
    if old is None:
        return []
    where, bound_to = reading.where(node), _bound_to(reading, node)
    found: list[CodeHint] = []
    problems: list[Unread] = []
    for release in calls.releases_of(name, reading.releases):
        try:
            known = calls.signature(name, old, release)
            if known is None:
                continue
            bound = calls.bind(arguments, known)
            given = {k: facts.literal(arguments[i].value, reading.module) for k, i in bound.items()}
            config = meanings.old_config(old, given, release)
        except DtoptError as error:
            problems.append(Unread(UnsupportedError(f"{where}: {error}"), where, bound_to))
            continue
        document = {"class_name": old.algorithm, "config": config}
        hint = CodeHint(document, old.generation or release.generation, where, bound_to)
        if hint not in found:
            found.append(hint)
    return found or problems[:1]


def _bound_to(reading: program.Reading, node: cst.Call) -> str:
    parent = reading.parent(node)
    if isinstance(parent, cst.Assign) and len(parent.targets) == 1:
        return names.dotted(parent.targets[0].target)
    return ""
