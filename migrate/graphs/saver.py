"""What `PREFIX.meta`, the graph that tf.train.Saver writes beside a checkpoint, says of its variables.

Keras's own optimizers (before OptimizerV2) give their slots names without meaning, `training/Adam/Variable_3`; but the
graph holds the updates, and the update of a variable reads its own slots and no other's: `w := w - f(m, v, gradient)`,
while gradients read variables only. The graph is data: nothing of it is run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from migrate.graphs import conditions, replicas, scopes
from migrate.graphs.nodes import NOT_STEPS, Nodes
from migrate.state import GLOBAL_STEP
from optim.bytes import files, names, protos

MAX_META = 1 << 30


@dataclass(frozen=True)
class SaverGraph:
    """`trainable`: names of the collection TRAINABLE_VARIABLES, in order of creation; None where there is none.

    `reads`: for each variable, the variables that the assignments to it read, initial ones and restores left out.
    """

    version: str = ""
    trainable: tuple[str, ...] | None = None
    reads: Mapping[str, frozenset[str]] = field(default_factory=dict)
    resources: frozenset[str] = frozenset()
    """Variables that are resources, as all are in tf.keras from TF 1.12 on, and none in standalone Keras before 2.3."""
    updates: Mapping[str, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    """Scope of a tf.train optimizer's `apply_gradients` -> variable -> the variables that its update there reads, but
    for those that its gradient is made from."""
    nodes: Nodes | None = None
    """All of it, for those who look further."""

    saved_as: Mapping[str, str] = field(default_factory=dict)
    """Key -> variable, where the Saver wrote a variable under another name than its own."""

    parts: Mapping[str, str] = field(default_factory=dict)
    """Variable that is a part of a partitioned one, or a slot of a part -> what the whole is called; and a slot that
    was made in a scope, or the counter -> what it is called where there is none."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """The same by their keys, which are cut for slots of parts."""
    keys: frozenset[str] = frozenset()
    """All that this Saver writes; empty where the graph does not show it."""
    doubt: str = ""
    """Of a condition on which variables are trained."""
    conditions: tuple[str, ...] = ()
    """Those by which the program counts at which of its calls variables are trained."""
    cut: str = ""
    """What says that nodes are gone from it; no TensorFlow loads such a graph."""

    def owners(self, slots: Collection[str], variables: Collection[str]) -> dict[str, str] | None:
        """Variable by slot, None unless each slot is read by the updates of exactly one variable."""
        owners: dict[str, str] = {}
        for name in variables:
            for slot in self.reads.get(name, frozenset()) & frozenset(slots):
                if owners.setdefault(slot, name) != name:
                    return None
        return owners


def read(prefix: str) -> SaverGraph | None:
    """The graph of a checkpoint, None where there is none that can be read: it is no part of the checkpoint."""
    data = _bytes(prefix + ".meta")
    try:
        return None if data is None else _of_proto(protos.SaverMetaGraph.FromString(data))
    except DecodeError:
        return None


def read_saved_model(path: str) -> SaverGraph | None:
    """The graph of a `saved_model.pb` that trains, None where none of its graphs does, or several that differ."""
    data = _bytes(path)
    try:
        graphs = [] if data is None else [_of_proto(g) for g in protos.SavedGraphs.FromString(data).meta_graphs]
    except DecodeError:
        return None
    training = [graph for graph in graphs if graph.updates or any(graph.reads.values())]
    whole = max(training, key=lambda graph: len(_program(graph)), default=None)
    return (
        whole if whole is not None and all(_program(g).items() <= _program(whole).items() for g in training) else None
    )


def _program(graph: SaverGraph) -> dict[str, tuple[Any, ...]]:
    """The nodes of a graph without those of its Saver: one that is saved twice has another Saver each time."""
    nodes = graph.nodes.by_name.items() if graph.nodes is not None else ()
    attributes = {name: sorted(a.SerializeToString() for a in node.attr) for name, node in nodes}
    return {n: (node.op, *node.input, *attributes[n]) for n, node in nodes if not _is_of_saver(n)}


def _is_of_saver(name: str) -> bool:
    return name.partition("/")[0].rstrip("_0123456789") in NOT_STEPS


def _bytes(path: str) -> bytes | None:
    try:
        if not files.is_file(path) or files.size(path) > MAX_META:
            return None
        with files.opened(path) as file:
            return file.read()
    except OSError:
        return None


def _of_proto(proto: Any) -> SaverGraph:
    names.check((node.name for node in proto.graph_def.node), "the source's graph")
    library = {str(each.signature.name): each for each in proto.graph_def.library.function}
    trainable = _trainable(proto)
    taken = conditions.taken(replicas.one_device(proto.graph_def.node), library, trainable or ())
    nodes = taken.nodes
    nodes.branches = taken.branches
    resources = frozenset(name for name in nodes.variables if nodes.op(name) == "VarHandleOp")
    version = str(proto.meta_info_def.tensorflow_version)
    saves = [(key, nodes.variables_behind(value)) for key, value in _saves(proto)]
    saved, (parts, renamed) = dict(saves), _parts(saves)
    nodes.parts = parts
    updates = _updates(nodes)
    scoped = {name: plain for name, plain in scopes.slots(nodes, updates).items() if name in saved}
    nodes.counter = scopes.counter(nodes, updates)
    if nodes.counter in saved and GLOBAL_STEP not in saved:
        scoped[nodes.counter] = GLOBAL_STEP
    return SaverGraph(
        version=version,
        trainable=trainable,
        doubt=taken.doubt,
        conditions=tuple(sorted(frozenset[str]().union(*taken.branches.values()))),
        cut=_cut(proto.graph_def.node),
        reads=_reads(nodes),
        resources=resources,
        updates=updates,
        nodes=nodes,
        saved_as=_saved_as(saved, renamed),
        parts=parts | scoped,
        renamed=renamed | scoped,
        keys=frozenset(saved),
    )


def _cut(nodes: Any) -> str:
    known = {str(node.name) for node in nodes}
    lacking = ((node, _plain(each.removeprefix("^"))) for node in nodes for each in node.input)
    return next((f"lacks {name!r}, which {node.name!r} needs" for node, name in lacking if name not in known), "")


def _trainable(proto: Any) -> tuple[str, ...] | None:
    found = next((c.value for c in proto.collection_def if c.key == "trainable_variables"), None)
    if found is None:
        return None
    try:
        names = [str(protos.Variable.FromString(v).variable_name) for v in found.bytes_list.value]
    except DecodeError:
        return None
    return tuple(dict.fromkeys(name.removesuffix(":0") for name in names))


def _reads(nodes: Nodes) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for write in nodes.writes():
        if write.target in nodes.variables:
            read = nodes.variables_behind(write.value)
            found[write.target] = found.get(write.target, frozenset()) | read
    return found


def _saved_as(saved: Mapping[str, frozenset[str]], parts: Collection[str]) -> dict[str, str]:
    """What a Saver saves under names of its program, `Saver({"w": variable})`, or swaps, as
    `MovingAverageOptimizer.swapping_saver` does: averages are saved under the names of their variables."""
    return {
        key: next(iter(behind))
        for key, behind in saved.items()
        if key not in parts and len(behind) == 1 and key not in behind
    }


def _parts(saves: Collection[tuple[str, frozenset[str]]]) -> tuple[dict[str, str], dict[str, str]]:
    """Partitioned variables, as those of canned Estimators are, under the names of the whole.

    A slot of `dnn/kernel/part_0` made in the scope `dnn` is the variable `dnn/dnn/kernel/part_0/Adam`, and its key cuts
    the name of the part by as much as the scope is long: `dnn/kernel/t_0/Adam` (training/slot_creator.py 1.15).

    Args:
      saves: the keys that the Saver writes, each with the variables that its value is read from. All parts of a
        variable have one key.
    """
    keys = {next(iter(behind)): key for key, behind in saves if len(behind) == 1 and key not in behind}
    owners = {key for variable, key in keys.items() if variable.rpartition("/part_")[0] == key}
    parts, renamed = {}, {}
    for variable, key in keys.items():
        slot = _SLOT_OF_A_PART.fullmatch(variable)
        owner = next((head for head in _heads(key) if head in owners), None)
        if owner is not None and (slot or owner == key):
            parts[variable] = f"{owner}/{slot.group(1)}" if slot else key
            renamed[key] = parts[variable]
    return parts, renamed


_SLOT_OF_A_PART = re.compile(r".+/part_\d+/(.+)")


def _saves(proto: Any) -> Iterator[tuple[str, str]]:
    """(key, what gives its value) of all that the Saver of the file writes."""
    nodes = proto.graph_def.node
    scope = _plain(str(proto.saver_def.save_tensor_name)).rpartition("/")[0]
    by_name = {str(n.name): n for n in nodes}
    for node in nodes:
        if node.op != "SaveV2" or str(node.name).rpartition("/")[0] != scope:
            continue
        inputs = [_plain(i) for i in node.input if not i.startswith("^")]
        if len(inputs) > 2:
            yield from zip(_strings(by_name.get(inputs[1])), inputs[3:], strict=False)


def _strings(node: Any) -> list[str]:
    """The strings of a constant."""
    values = [a.value.tensor.string_val for a in node.attr if a.key == "value"] if node is not None else []
    return [bytes(text).decode("utf-8", "surrogateescape") for text in (values[0] if values else ())]


def _updates(nodes: Nodes) -> dict[str, dict[str, frozenset[str]]]:
    """`SCOPE/update_VARIABLE/...` is what `Optimizer.apply_gradients` calls its ops (training/optimizer.py 1.15)."""
    found: dict[str, dict[str, frozenset[str]]] = {}
    for name in nodes.inputs:
        scope, _, rest = name.partition("/update_")
        owner = next((v for v in _heads(rest) if v in nodes.variables), None)
        if rest and owner is not None and not _is_of_saver(scope):
            updates = found.setdefault(scope, {})
            updates[owner] = updates.get(owner, frozenset()) | nodes.variables_behind(name)
    return found


def _heads(name: str) -> list[str]:
    """`a/b/c` -> `a/b/c`, `a/b`, `a`."""
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _plain(name: str) -> str:
    """`scope/Mul:1` -> `scope/Mul`."""
    return name.partition(":")[0]
