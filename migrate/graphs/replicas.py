"""Reduce graphs of MirroredStrategy to one device. Each device has its own variables and slots, `w/replica_1`.

MultiWorkerMirroredStrategy gives each worker such a graph, even with one device. `one_device` returns the graph of the
first device, with the gradients of all. It requires that every mirror changes exactly like its variable, op for op, by
the same sum of gradients (python/distribute/mirrored_strategy.py 1.15).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from migrate.graphs.nodes import PASSING, Nodes
from migrate.state import GLOBAL_STEP

_MIRROR = re.compile(r"(.+)/replica_[1-9]\d*")
_UPDATE = re.compile(r"(.+)/update_\d+(?:_\d+)?/update_(.+)")
"""`SCOPE/update_DEVICE_COUNT/update_VARIABLE/...`: `strategy.extended.update` around `Optimizer.apply_gradients`."""
_STEPS = re.compile(r"(?:Resource)?(?:(?:Sparse)?Apply\w+|Scatter\w+|Assign\w+)")
_COMPUTED = (*PASSING, "Mul", "RealDiv", "Add", "AddV2", "AddN", "Sub", "Sqrt", "Pow", "Square", "Neg", "Shape", "Fill")
"""Deterministic ops."""


def one_device(protos: Sequence[Any]) -> Sequence[Any]:
    """Return the nodes of the first device; all nodes if there is only one, or if mirrors differ from their
    variables."""
    named = [str(node.name) for node in protos if node.op == "VarHandleOp"]
    mirrors = {n: match.group(1) for n in named if (match := _MIRROR.fullmatch(n)) and match.group(1) in set(named)}
    if not mirrors and not any(_UPDATE.fullmatch(str(node.name)) for node in protos):
        return protos
    mirrored = _Mirrored(Nodes(protos), mirrors)
    return mirrored.first_device() if mirrored.all_follow() else protos


class _Mirrored:
    def __init__(self, nodes: Nodes, mirrors: Mapping[str, str]) -> None:
        self._nodes = nodes
        self._mirrors = mirrors
        self._changes: dict[str, list[str]] = {}
        """Ops that change a variable, except initializers."""
        for name, inputs in nodes.inputs.items():
            if inputs and _STEPS.fullmatch(nodes.op(name)) and not nodes.is_no_step(name):
                self._changes.setdefault(nodes.source(inputs[0]), []).append(name)

    def all_follow(self) -> bool:
        """Whether mirrors change like their variables, for everything that updates read or change. Averages of batches
        may differ between devices."""
        updates = [name for names in self._changes.values() for name in names if _UPDATE.fullmatch(name)]
        sources = {source for name in updates for source in self._nodes.parents(name)}
        of_updates = [m for m, v in self._mirrors.items() if m in sources or v in sources or v.endswith(GLOBAL_STEP)]
        return all(map(self._follows, of_updates))

    def _follows(self, mirror: str) -> bool:
        changes, first = (self._changes.get(variable, []) for variable in (mirror, self._mirrors[mirror]))
        return len(changes) == len(first) and all(any(self._same(a, b) for b in first) for a in changes)

    def _same(self, a: str, b: str) -> bool:
        """Whether a node of another device has the same value as one of the first, or the same effect on its
        variable."""
        nodes = self._nodes
        if a == b or self._mirrors.get(a) == b:
            return True
        if nodes.op(a) != nodes.op(b) or nodes.is_gradient(a):
            return False
        if nodes.op(a) == "Const":
            content = nodes.content(a)
            return content is not None and content == nodes.content(b)
        if nodes.op(a) not in _COMPUTED and not (_UPDATE.fullmatch(a) or a in self._changes_of_mirrors(b)):
            return False
        pairs = list(zip(nodes.inputs[a], nodes.inputs[b], strict=False))
        alike = len(nodes.inputs[a]) == len(nodes.inputs[b]) == len(pairs)
        return alike and bool(pairs) and all(self._same(x, y) for x, y in pairs)

    def _changes_of_mirrors(self, first: str) -> Collection[str]:
        target = self._nodes.source(self._nodes.inputs[first][0]) if self._nodes.inputs[first] else ""
        return {op for m, v in self._mirrors.items() if v == target for op in self._changes.get(m, ())}

    def first_device(self) -> list[Any]:
        gone = {op for mirror in self._mirrors for op in self._changes.get(mirror, ())} | self._mirrors.keys()
        gone |= {name for name in self._nodes.by_name if name.startswith(tuple(f"{m}/" for m in self._mirrors))}
        protos = []
        for name, node in self._nodes.by_name.items():
            if name in gone:
                continue
            changed = type(node)()
            changed.CopyFrom(node)
            changed.name = _plain(name)
            del changed.input[:]
            for input_name in map(str, node.input):
                mark, source = ("^", input_name[1:]) if input_name.startswith("^") else ("", input_name)
                source = self._mirrors.get(source, source)
                if source.partition(":")[0] not in gone:
                    changed.input.append(f"{mark}{_plain(source)}")
            protos.append(changed)
        return protos


def _plain(name: str) -> str:
    match = _UPDATE.fullmatch(name)
    return f"{match.group(1)}/update_{match.group(2)}" if match else name
