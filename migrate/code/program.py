"""Read one program: its tree with names and positions, its bindings, and the releases that it may be for."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import libcst as cst

from migrate.code import calls, facts, files, names, nesting, releases, schedules, scopes
from migrate.code.calls import Outcome, Place
from migrate.code.facts import Facts, Scope
from migrate.code.files import Program
from migrate.code.findings import UNREADABLE, UNSURE, Finding
from migrate.code.releases import KERAS, TENSORFLOW, Release, ReleaseHint
from migrate.code.tree import Edit, Tree
from migrate.code.usage import Usage
from migrate.errors import DamagedFileError

SETS_RATE = re.compile(
    r"LearningRateScheduler|ReduceLROnPlateau|\.(?:lr|learning_rate)\s*=[^=]"
    r"|set_value\([^\n]*\.(?:lr|learning_rate)\b|(?:\.lr|learning_rate)\.assign"
)
EAGER = re.compile(r"GradientTape|enable_eager_execution|implicit_gradients|gradients_function")
GRAPH = re.compile(r"\bcompute_gradients\b|\btf\.gradients\(|\bSession\(")
EMBEDDINGS = re.compile(r"\bEmbedding\s*\(|embedding_lookup|tf\.gather\(")
PYTHON2 = re.compile(
    r"^\s*print\s+[^(=\s]|^\s*except\s+\w+\s*,\s*\w+\s*:|\bxrange\b|^\s*exec\s+[\"']|\w\s*<>\s*\w", re.MULTILINE
)
MIXED_INDENT = re.compile(r"^(?: +\t|\t+ )", re.MULTILINE)
MIXED = "tabs and spaces are mixed in its indentation: replace the tabs first, as `expand -i FILE > NEW` does"


@dataclass(eq=False)
class Reading:
    """A program, with its findings and edits as its places are looked at."""

    program: Program
    tree: Tree
    names: names.Names
    facts: Facts
    target: str
    releases: Mapping[str, Sequence[Release]]
    place: Place
    entries: list[tuple[cst.CSTNode, Finding]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """For each place that fitting releases read differently: one of them, as for `--from`."""
    contradictions: tuple[str, ...] = ()
    """Contradictions between `--from` and the pins."""
    edits: dict[cst.CSTNode, Edit] = field(default_factory=dict)
    imports: set[str] = field(default_factory=set)
    replaced: set[str] = field(default_factory=set)
    """Names whose imports may now be unused."""
    uses: dict[str, str] = field(default_factory=dict)
    """The known uses of the optimizers that a name is bound to."""
    compiles: dict[str, dict[Scope, tuple[set[object], set[cst.CSTNode | None]]]] = field(default_factory=dict)
    """By name and the scope that binds it: what is compiled with it, and the loops in which that changes."""
    _places: dict[cst.CSTNode, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.optim = "dtopt_optim" if self.names.takes("optim") else "optim"

    @property
    def module(self) -> cst.Module:
        return self.tree.module

    @cached_property
    def usage(self) -> Usage:
        """The program's uses of its names."""
        return Usage(self.tree)

    @cached_property
    def has_framework(self) -> bool:
        """Whether the program imports Keras or TensorFlow."""
        return bool(names.IMPORTS.search(self.program.code))

    def has_beside(self, module: str) -> bool:
        """Whether a module is a file or folder next to the program, or in a parent folder."""
        folders = list(self.program.path.resolve().parents)[:4]
        return any((folder / f"{module}.py").is_file() or (folder / module).is_dir() for folder in folders)

    @cached_property
    def is_eager(self) -> bool:
        """Whether the program computes gradients of executed code, not of a graph."""
        return bool(EAGER.search(self.program.code))

    @cached_property
    def is_graph(self) -> bool:
        return not self.is_eager and bool(GRAPH.search(self.program.code))

    def text(self, node: cst.CSTNode) -> str:
        return self.tree.text(node)

    def scope(self, node: cst.CSTNode) -> Scope:
        return self.facts.scopes.get(node, ())

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self.tree.parent(node)

    def has(self, node: cst.CSTNode) -> bool:
        """Whether a node is part of the program as it was read."""
        return self.tree.parent(node) is not None

    def assigned_name(self, node: cst.CSTNode) -> str:
        """The only name that a value is assigned to, else empty."""
        statement = self.parent(node)
        is_one = isinstance(statement, cst.Assign) and len(statement.targets) == 1
        return names.dotted(cst.ensure_type(statement, cst.Assign).targets[0].target) if is_one else ""

    def is_optimizer(self, node: cst.BaseExpression) -> bool:
        return self.facts.kind(node, self.scope(node)) == facts.OPTIMIZER

    def class_of_string(self, call: cst.Call) -> str:
        """The canonical class of the string in `compile("adam")` or `optimizers.get("adam")`; or empty."""
        is_lookup = any(map(names.LOOKUPS.match, self.names.of(call.func)))
        can_have_optimizer = is_lookup or not self.names.of(call.func)
        value = call.args[0].value if is_lookup and call.args else facts.compiled(call) if can_have_optimizer else None
        text = value.evaluated_value if isinstance(value, cst.SimpleString) else None
        if not isinstance(text, str) or not (is_lookup or self.has_framework):
            return ""
        return names.of_string(text, self.program.code)

    def callee(self, node: cst.BaseExpression) -> frozenset[str]:
        """All framework functions that a called name may be, canonical, also through `SWA = tfa.optimizers.SWA`."""
        canonical_names = self.names.of(node)
        if not canonical_names and isinstance(node, cst.Name):
            value = self.facts.only_value(node, self.scope(node))
            canonical_names = self.names.of(value) if isinstance(value, (cst.Name, cst.Attribute)) else canonical_names
        return canonical_names if any(map(names.FRAMEWORK.match, canonical_names)) else frozenset()

    def add(self, node: cst.CSTNode, verdict: str, message: str = "", new: str = "", old: str | None = None) -> None:
        """Add a finding for a node."""
        text = old if old is not None else self.text(node)
        self.entries.append((node, Finding(str(self.program.path), 0, 0, verdict, one_line(text), new, message)))

    def outcomes(self, name: str, call: cst.Call, place: Place | None = None) -> list[Outcome]:
        """The results for a call of a class, `name` canonical, under each release that fits."""
        place = replace(place or self.place, schedule=schedules.of(call, self.tree, self.facts))
        return calls.outcomes(name, call, self.releases, place, self.module)

    def one(self, node: cst.CSTNode, answers: Sequence[Outcome]) -> Outcome | None:
        """The result common to all releases, with the most notes; None (`unsure`) if they differ."""
        different: dict[str, list[Outcome]] = {}
        for answer in answers:
            different.setdefault(answer.text, []).append(answer)
        if len(different) > 1:
            releases = dict.fromkeys(f"{answer.release.name}=={answer.release.version}" for answer in answers)
            message = f"releases that all fit differ: {'; '.join(map(_variant, different.values()))}"
            if len(releases) > 1:
                self.asked.append(list(releases)[-1])
            else:
                message += "; give the arguments in which they differ"
            self.add(node, UNSURE, message)
            return None
        return max(answers, key=lambda answer: len(answer.target.reasons) if answer.target else 0)

    def findings(self) -> list[Finding]:
        """All findings, from top to bottom."""
        findings = [replace(finding, **self._place(node)) for node, finding in self.entries]
        return sorted(findings, key=lambda f: (f.cell or 0, f.line, f.column))

    def where(self, node: cst.CSTNode) -> str:
        """FILE:LINE of a node."""
        return self._where(**self._place(node))

    def _where(self, cell: int | None, line: int, column: int) -> str:
        return f"{self.program.path}:" + (f"cell {cell}:" if cell else "") + str(line)

    def _place(self, node: cst.CSTNode) -> dict[str, Any]:
        if node not in self._places:
            self._places = self.tree.places(
                {node, *self.tree.nodes}
            )  # all at once, because each call prints the whole module
        line, column = self._places[node]
        cell, line = self.program.place(line)
        return {"cell": cell, "line": line, "column": column}


def _variant(same: Sequence[Outcome]) -> str:
    """Releases, and the result for a call written for one of them."""
    first, *others = dict.fromkeys(str(answer.release) for answer in same)
    named = ", ".join([first, *(other.removeprefix(f"{same[0].release.name}==") for other in others)])
    target = same[0].target
    return f"{named}: {target.call() if target else same[0].error}"


def one_line(text: str) -> str:
    """A text without line breaks and repeated spaces."""
    return re.sub(r"\s+", " ", text).strip()


def read(program: Program, target: str, release_hint: ReleaseHint | None) -> Reading:
    """Read a program. Raises DamagedFileError unless it is Python 3."""
    code = program.code
    error = nesting.syntax_error(code)
    if error is not None:
        raise DamagedFileError(_why(str(program.path), code, error))
    try:
        tree = cst.parse_module(code)
    except cst.ParserSyntaxError as other:  # Python accepts it
        mixed = MIXED_INDENT.search(code)
        line = code.count("\n", 0, mixed.start()) + 1 if mixed else other.raw_line
        raise DamagedFileError(_why(str(program.path), code, SyntaxError(MIXED, (None, line, 1, None)))) from other
    whole = Tree(tree)
    module_scopes = scopes.read(tree)
    old = next(_of_python_2(whole, module_scopes), None)
    if old is not None:
        cell, line = program.place(whole.places({old})[old][0])
        where = f"{program.path}:cell {cell}" if cell else str(program.path)
        raise DamagedFileError(_why(where, code, SyntaxError("except X, name", (None, line, 1, None))))
    magics = program.notebook.magics if program.notebook else ""
    pins = releases.pins_of(program.path, magics)
    module_names = names.Names(module_scopes, releases.kerases(pins, release_hint))
    fitting = {p: releases.candidates(p, code + magics, pins, release_hint) for p in (KERAS, TENSORFLOW)}
    by_package = calls.narrowed(whole.all(cst.Call), module_names, fitting)
    place = Place(target, bool(SETS_RATE.search(code)), bool(EMBEDDINGS.search(code)))
    texts = (releases.contradiction(package, pins, release_hint) for package in fitting)
    module_facts = facts.collect(whole, module_scopes, module_names)
    contradictions = tuple(filter(None, texts))
    return Reading(program, whole, module_names, module_facts, target, by_package, place, contradictions=contradictions)


def _of_python_2(tree: Tree, module_scopes: scopes.Scopes) -> Iterator[cst.CSTNode]:
    """Find what is only Python 2 but accepted by LibCST: `except X, name:`, unless the name is a class.

    Python 3.14 has `except X, Y:` again, of two classes.
    """
    for handler in tree.all(cst.ExceptHandler):
        caught = handler.type
        if isinstance(caught, cst.Tuple) and not caught.lpar and len(caught.elements) == 2:
            name = names.dotted(caught.elements[1].value).split(".")[0]
            if not module_scopes.of[handler].find(name) and not hasattr(builtins, name):
                yield handler


def _why(where: str, code: str, error: SyntaxError) -> str:
    at = f"{where}:{error.lineno or 1}"
    if PYTHON2.search(code):
        return f"{at} is Python 2: run 2to3 (python -m lib2to3 -w, up to Python 3.12) over it first"
    return f"{at} is not Python that can be read ({error.msg})"


def unreadable(program_path: object, error: Exception) -> Finding:
    """The finding for a whole file; the line comes from a message that begins with FILE:LINE."""
    match = re.match(rf"{re.escape(str(program_path))}:(\d+) ", str(error))
    return Finding(str(program_path), int(match[1]) if match else 1, 1, UNREADABLE, "", "", str(error))


def beside_cells(program: Program) -> list[Finding]:
    """Findings for cells that are not read, except those that never were Python and do not concern optimizers."""
    findings = []
    for cell in program.notebook.aside if program.notebook else ():
        if cell.line:
            where = f"{program.path}:cell {cell.cell}"
            message = _why(where, cell.text, SyntaxError(cell.reason, (None, cell.line, 1, None)))
            findings.append(Finding(str(program.path), cell.line, 1, UNREADABLE, "", "", message, cell.cell))
        elif files.may_have_places(cell.text):
            message = f"{cell.reason}: move it to a file, and migrate that"
            first = cell.text.strip().partition("\n")[0]
            findings.append(Finding(str(program.path), 1, 1, UNSURE, first, "", message, cell.cell))
    return findings
