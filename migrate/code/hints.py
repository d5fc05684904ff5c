"""Derive from a program the hint that a checkpoint may need: class, config and generation of its optimizer."""

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
from migrate.code.releases import ReleaseHint
from migrate.errors import AmbiguousError, MissingHintError
from migrate.generations import traits
from optim.errors import DtoptError, HyperparameterError, UnsupportedError


@dataclass(frozen=True)
class CodeHint:
    """`optimizer_config` is a value for --optimizer-config; `where` is the call, `name` the name of its result.

    `left_out`: values that the program sets later, and where; the config lacks them.
    `unread`: other changes of the optimizer. `others`: places that may create another one.
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
        """Return itself. Raises UnsupportedError if its call does not determine the steps. `chosen`: by its name."""
        doubts = [*self.unread, *(() if chosen else self.others)]
        if not doubts:
            return self
        more = f", and {len(doubts) - 1} more places" if len(doubts) > 1 else ""
        config = shlex.quote(json.dumps(self.optimizer_config))
        raise UnsupportedError(
            f"the call at {self.where} does not show the whole optimizer: {doubts[0]}{more}, which is not read."
            f" Instead of --optimizer-from give --generation {self.generation} --optimizer-config {config} with the"
            " values that were used at the save"
        )


@dataclass(frozen=True)
class Unread:
    """A call without a hint; `where` and `name` as in a hint."""

    error: DtoptError
    where: str
    name: str


def from_code(source: str, release_hint: str | None = None) -> CodeHint:
    """Return the hint in `script.py`, `script.py:NAME` or `script.py:LINE`, which is read and not run.

    Args:
      source: NAME is the optimizer's name, LINE the line of its call; required if the program makes several.
        release_hint: like `migrate_code`'s `source`.

    Raises:
      MissingHintError: no optimizer, or not one with that name. AmbiguousError: several. UnsupportedError: an argument
        that is not a literal.
    """
    path, selector = (source, "") if Path(source).exists() else _CHOSEN.match(source).groups("")  # type: ignore[union-attr]
    _check_size(path)
    parsed_hint = releases.parse_hint(release_hint) if release_hint else None
    hints = nesting.on_large_stack(lambda: hints_in(Path(path), parsed_hint))
    if selector:
        hints = [hint for hint in hints if hint.name == selector or hint.where == f"{Path(path)}:{selector}"]
    good = [hint for hint in hints if isinstance(hint, CodeHint)]
    good.sort(key=lambda hint: bool(hint.unread))
    different = {json.dumps((h.optimizer_config, h.generation), sort_keys=True): h for h in good}
    if len(different) > 1:
        listed = "\n  ".join(str(hint) for hint in different.values())
        raise AmbiguousError(
            f"{path} makes several optimizers, or fits several releases: choose one as {path}:NAME or :LINE, or the"
            f" release with --generation:\n  {listed}"
        )
    problems = [hint for hint in hints if isinstance(hint, Unread)]
    if different and not (selector and problems):
        return next(iter(different.values())).certain(bool(selector))
    for problem in problems:
        raise problem.error
    raise MissingHintError(f"{path} makes no optimizer{f' at {selector}' if selector else ''} that is known here")


def _check_size(path: str) -> None:
    try:
        hint_files.check(path)
    except OSError:
        return  # reported when it is read
    except ValueError as error:
        raise HyperparameterError(str(error)) from error


_CHOSEN = re.compile(r"(.*?)(?::((?:cell \d+:)?\d+|[A-Za-z_][\w.]*))?$", re.DOTALL)
"""FILE, and NAME or the last part of `where`, if there is one."""


def hints_in(path: Path, release_hint: ReleaseHint | None) -> list[CodeHint | Unread]:
    """Return a hint, or the reason why it cannot be made, for each optimizer call and each release that fits."""
    reading = program.read(files.read(path), "optim", release_hint)
    hints_by_call: list[tuple[cst.Call, CodeHint | Unread]] = []
    for node in reading.tree.all(cst.Call):
        for name in filter(names.old_class, reading.names.of(node.func)):
            hints_by_call += [(node, hint) for hint in _of_call(reading, name, node, node.args)]
        if by_string := reading.class_of_string(node):
            hints_by_call += [(node, hint) for hint in _of_call(reading, by_string, node, ())]
    if not any(isinstance(hint, CodeHint) for _, hint in hints_by_call):
        return [hint for _, hint in hints_by_call]
    where = Flow(reading)
    changes = tuple(changed.places(reading, where, release_hint))
    unread = [node for node, hint in hints_by_call if isinstance(hint, Unread)]
    elsewhere = tuple(changed.shown(reading, node) for node in (*others.others(reading, where), *unread))
    return [
        _without_later_changes(reading, node, hint, where, changes, elsewhere) if isinstance(hint, CodeHint) else hint
        for node, hint in hints_by_call
    ]


def _without_later_changes(
    reading: program.Reading,
    node: cst.Call,
    hint: CodeHint,
    where: Flow,
    changes: Sequence[changed.Place],
    elsewhere: tuple[str, ...],
) -> CodeHint:
    call_config = hint.optimizer_config["config"]
    config = dict(call_config)
    left_out: dict[str, str] = {}
    unread = [changed.shown(reading, replacement) for replacement in others.instead(reading, node, where)]
    for change in changes:
        key = change.key
        if key == changed.DEFAULT_EPSILON:
            if call_config.get("epsilon", 0.0) is not None:
                continue  # given in the call, or without one
            key = "epsilon"
        if key == changed.GRADIENTS and traits(hint.generation).counts_in_program:
            continue  # always asked for if no graph shows it
        if key in call_config:
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
    """`name`: the class, canonical. `arguments`: those of its call, empty if `node` is its name as a string."""
    old = names.old_class(name)
    if old is None:
        return []
    where, bound_to = reading.where(node), reading.assigned_name(node)
    hints: list[CodeHint] = []
    problems: list[Unread] = []
    for release in calls.releases_of(name, reading.releases):
        try:
            constructor = calls.signature(name, old, release)
            if constructor is None:
                continue
            bound = calls.bind(arguments, constructor)
            values = {k: facts.literal(arguments[i].value, reading.module) for k, i in bound.items()}
            config = meanings.old_config(old, values, release)
        except DtoptError as error:
            problems.append(Unread(UnsupportedError(f"{where}: {error}"), where, bound_to))
            continue
        document = {"class_name": old.algorithm, "config": config}
        hint = CodeHint(document, old.generation or release.generation, where, bound_to)
        if hint not in hints:
            hints.append(hint)
    return hints or problems[:1]
