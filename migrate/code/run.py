"""Read, rewrite and write programs."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from migrate.code import files, findings, imports, nesting, program, releases, rewriting, targets
from migrate.code.findings import Finding
from migrate.errors import DamagedFileError
from optim.errors import DtoptError, UnsupportedError

WINDOW = 200
"""Lines that are compared together for a diff."""


@dataclass(frozen=True)
class Change:
    """One file: `diff` as `diff -u` prints it, empty if nothing changes."""

    path: Path
    diff: str
    written: bool = False


@dataclass(frozen=True)
class CodeReport:
    """The result for all programs. `target` is one of optim, keras, tf-keras.

    `asked`: for each place that fitting releases read differently, one of them; nothing is written then.
    `contradictions`: between `source` and pins.
    """

    target: str
    findings: tuple[Finding, ...]
    changes: tuple[Change, ...]
    files: int
    asked: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Findings by verdict."""
        verdicts = [finding.verdict for finding in self.findings]
        return {verdict: verdicts.count(verdict) for verdict in findings.VERDICTS if verdict in verdicts}

    @property
    def exit_code(self) -> int:
        return 2 if self.asked else findings.exit_code(self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "files": self.files,
            "counts": self.counts,
            "findings": [finding.to_dict() for finding in self.findings],
            "changed": [str(change.path) for change in self.changes],
            "asked": len(self.asked),
            "contradictions": list(self.contradictions),
        }


def migrate_code(
    paths: Sequence[str | os.PathLike[str]], *, to: str = targets.OPTIM, source: str | None = None, write: bool = False
) -> CodeReport:
    """Migrate programs to a target's optimizers.

    Args:
      paths: .py and .ipynb files, and folders of them.
      to: "optim", "keras" (Keras 3) or "tf-keras".
      source: their release: a generation, or a release such as "keras==2.2.4"; None derives it from pins next to them
        and from their code.
      write: replace the files, each at once; by default nothing is changed. If several releases fit and read a place
        differently, that place is `unsure`, and nothing is written.

    Raises:
      HyperparameterError: an unknown target or source. NoFilesError: nothing to read.
    """
    targets.check(to)
    release_hint = releases.parse_hint(source) if source else None
    program_paths = files.find(paths)
    return nesting.on_large_stack(lambda: _migrated(program_paths, to, release_hint, write))


def _migrated(
    program_paths: Sequence[Path], to: str, release_hint: releases.ReleaseHint | None, write: bool
) -> CodeReport:
    everything: list[Finding] = []
    asked: list[str] = []
    contradictions: dict[str, None] = {}
    new: list[tuple[files.Program, str]] = []
    for path in program_paths:
        try:
            one = files.read(path)
            aside = program.beside_cells(one)
            is_of_keras = to == targets.TF_KERAS and imports.of_keras(one.code)
            if not files.may_have_places(one.code) and not is_of_keras:
                everything += [finding for finding in aside if finding.verdict != findings.UNREADABLE]
                continue
            reading = read_places(one, to, release_hint)
            code = _repeatable(one, rewriting.rewritten(reading), to, release_hint)
        except DamagedFileError as error:
            everything.append(program.unreadable(path, error))
            continue
        except Exception as error:  # one file must not hide the findings in others
            everything.append(program.unreadable(path, UnsupportedError(f"{path}: dtopt fails on it: {error!r}")))
            continue
        everything += sorted([*reading.findings(), *aside], key=lambda f: (f.cell or 0, f.line, f.column))
        asked += reading.asked
        contradictions |= dict.fromkeys(reading.contradictions)
        if code != one.code:
            new.append((one, code))
    writes = write and not asked
    changes = []
    for one, code in new:
        if writes:
            files.write(one, code)
        changes.append(Change(one.path, _diff(one, code), writes))
    return CodeReport(to, tuple(everything), tuple(changes), len(program_paths), tuple(asked), tuple(contradictions))


def _repeatable(one: files.Program, code: str, to: str, release_hint: releases.ReleaseHint | None) -> str:
    """The new program, unchanged by a second run: Keras 3 has its classes at the place of old releases."""
    if to != targets.KERAS or code == one.code:
        return code
    again = rewriting.rewritten(read_places(replace(one, code=code), to, release_hint))
    return code if again == code else releases.marked(code)


def read_places(one: files.Program, target: str, release_hint: releases.ReleaseHint | None) -> program.Reading:
    """Look at all places of a program. Raises DamagedFileError unless it is Python 3."""
    reading = program.read(one, target, release_hint)
    rewriting.look(reading)
    return reading


def _diff(one: files.Program, code: str) -> str:
    before, after = one.shown(one.code), one.shown(code)
    name = str(one.path).lstrip("/")
    lines = [f"--- a/{name}", f"+++ b/{name}"]
    for group in _Lines(before, after).get_grouped_opcodes(3):
        (_, first, _, new_first, _), (_, _, last, _, new_last) = group[0], group[-1]
        lines.append(f"@@ -{_range(first, last)} +{_range(new_first, new_last)} @@")
        for tag, start, end, new_start, new_end in group:
            if tag == "equal":
                lines += [f" {line}" for line in before[start:end]]
            else:
                lines += [f"-{line}" for line in before[start:end]]
                lines += [f"+{line}" for line in after[new_start:new_end]]
    return "\n".join(lines)


def _range(start: int, end: int) -> str:
    """A range of lines as in unified diffs: from 1; an empty range is the line before it."""
    count = end - start
    return f"{start + 1 if count else start}" + ("" if count == 1 else f",{count}")


class _Lines(difflib.SequenceMatcher[str]):
    """Compare window by window, because the total time grows quadratically with the changes."""

    def __init__(self, before: list[str], after: list[str]):
        super().__init__(None, before, after, False)
        self._before, self._after = before, after

    def get_matching_blocks(self) -> list[difflib.Match]:
        matches: list[difflib.Match] = []
        start, new_start, width = 0, 0, WINDOW
        while start < len(self._before) and new_start < len(self._after):
            a, b = self._before[start : start + width], self._after[new_start : new_start + width]
            blocks = [block for block in difflib.SequenceMatcher(None, a, b, False).get_matching_blocks() if block.size]
            at_end = start + width >= len(self._before) and new_start + width >= len(self._after)
            if not blocks and not at_end:
                width *= 2
                continue
            for x, y, size in blocks:
                last = matches[-1] if matches else difflib.Match(0, 0, 0)
                is_next = matches and (last.a + last.size, last.b + last.size) == (x + start, y + new_start)
                whole = difflib.Match(last.a, last.b, last.size + size)
                matches[-1:] = [whole] if is_next else [*matches[-1:], difflib.Match(x + start, y + new_start, size)]
            if at_end:
                break
            start, new_start, width = matches[-1].a + matches[-1].size, matches[-1].b + matches[-1].size, WINDOW
        return [*matches, difflib.Match(len(self._before), len(self._after), 0)]


__all__ = ["Change", "CodeReport", "DtoptError", "migrate_code", "read_places"]
