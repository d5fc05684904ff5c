"""Read files that a program imports from its own folder: they may change its optimizers too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import libcst as cst

from migrate.code import files, names, program
from migrate.code.changes.flow import Flow, last
from migrate.code.program import Reading
from migrate.code.releases import ReleaseHint
from migrate.code.scopes import dotted, module_of, within


class ImportedFiles:
    """`flows`: of each imported file, also of indirectly imported ones. `unread`: those that are not Python 3."""

    def __init__(self, reading: Reading, release_hint: ReleaseHint | None):
        self.flows: dict[Path, Flow] = {}
        self.unread: list[str] = []
        self._done = {reading.program.path.resolve()}
        self._root = reading.program.path.parent
        waiting = [reading]
        while waiting:
            waiting += self._read(waiting.pop(), release_hint)

    def _read(self, reading: Reading, release_hint: ReleaseHint | None) -> Iterator[Reading]:
        for path in filter(None, (self._file(reading, name) for name in _imports(reading))):
            if path.resolve() in self._done:
                continue
            self._done.add(path.resolve())
            try:
                imported = program.read(files.read(path), "optim", release_hint)
            except files.DamagedFileError as error:
                self.unread.append(str(error))
                continue
            self.flows[path] = Flow(imported)
            yield imported

    def _file(self, reading: Reading, name: str) -> Path | None:
        parts = name.lstrip(".").split(".")
        if names.FRAMEWORK.match(name):
            return None
        up = len(name) - len(name.lstrip("."))
        folder = reading.program.path.parent
        for root in [folder.joinpath(*[".."] * (up - 1))] if up else [folder, self._root, self._root / ".."]:
            for count in range(len(parts), 0, -1):
                base = root.joinpath(*parts[:count])
                for path in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
                    if path.is_file():
                        return path
        return None

    def find(self, reading: Reading, node: cst.CSTNode) -> tuple[Flow, str] | None:
        """The file of a name and its name there; None unless it is from a file that was read."""
        for source in reading.names.sources(node):
            path = self._file(reading, source)
            flow = self.flows.get(path) if path else None
            name = source.rpartition(".")[2] or last(node)
            if flow is not None and (name in flow.functions or flow.values(name)):
                return flow, name
        return None


def _imports(reading: Reading) -> Iterator[str]:
    for line in reading.tree.all(cst.Import):
        yield from (dotted(alias.name) for alias in line.names)
    for statement in reading.tree.all(cst.ImportFrom):
        module = module_of(statement)
        if isinstance(statement.names, cst.ImportStar):
            yield module
        else:
            yield from (within(module, dotted(alias.name)) for alias in statement.names)
