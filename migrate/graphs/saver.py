"""Read `PREFIX.meta`, the graph that tf.train.Saver writes next to a checkpoint.

Keras's optimizers before OptimizerV2 give their slots names without meaning, `training/Adam/Variable_3`. But the update
of a variable, `w := w - f(m, v, gradient)`, reads only its own slots, and gradients read only variables. Nothing of
the graph is run.
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
    """A graph and its variables.

    Attributes:
      trainable: names of the collection TRAINABLE_VARIABLES, in order of creation, or None.
      reads: the variables that the assignments to each variable read, without initializers and restores.
    """

    version: str = ""
    trainable: tuple[str, ...] | None = None
    reads: Mapping[str, frozenset[str]] = field(default_factory=dict)
    resources: frozenset[str] = frozenset()
    """Variables that are resources: all in tf.keras from TF 1.12 on, but not in standalone Keras before 2.3."""
    updates: Mapping[str, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    """Scope of a tf.train optimizer's `apply_gradients` -> variable -> the variables that its update reads, without
    those that its gradient depends on."""
    nodes: Nodes | None = None
    """All nodes of the graph."""

    saved_as: Mapping[str, str] = field(default_factory=dict)
    """Key -> variable, if the Saver wrote a variable under another name."""

    parts: Mapping[str, str] = field(default_factory=dict)
    """New name of a variable: the whole of a part, or of a slot of a part; for a slot made in a scope and for the
    counter, the name without the scope."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """The same by their keys; those of slots of parts are shortened."""
    keys: frozenset[str] = frozenset()
    """All keys that this Saver writes; empty if the graph does not show them."""
    doubt: str = ""
    """Why a condition of training is not understood."""
    conditions: tuple[str, ...] = ()
    """Variables with which the program counts the calls that train."""
    cut: str = ""
    """Why nodes are missing; no TensorFlow loads such a graph."""

    def owners(self, slots: Collection[str], variables: Collection[str]) -> dict[str, str] | None:
        """Return the variable of each slot, None unless the updates of exactly one variable read each slot."""
        owners: dict[str, str] = {}
        for name in variables:
            for slot in self.reads.get(name, frozenset()) & frozenset(slots):
                if owners.setdefault(slot, name) != name:
                    return None
        return owners


def read(prefix: str) -> SaverGraph | None:
    """Read the graph of a checkpoint, or None or it is damaged: a checkpoint does not need it."""
    data = _bytes(prefix + ".meta")
    try:
        return None if data is None else _of_proto(protos.SaverMetaGraph.FromString(data))
    except DecodeError:
        return None


def read_saved_model(path: str) -> SaverGraph | None:
    """Read the graph that trains in a `saved_model.pb`, or None or if several differ."""
    data = _bytes(path)
    try:
        graphs = [] if data is None else [_of_proto(g) for g in protos.SavedGraphs.FromString(data).meta_graphs]
    except DecodeError:
        return None
    training = [graph for graph in graphs if graph.updates or any(graph.reads.values())]
    whole = max(training, key=lambda graph: len(_nodes_without_saver(graph)), default=None)
    return (
        whole
        if whole is not None
        and all(_nodes_without_saver(g).items() <= _nodes_without_saver(whole).items() for g in training)
        else None
    )


def _nodes_without_saver(graph: SaverGraph) -> dict[str, tuple[Any, ...]]:
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
    library = {str(function.signature.name): function for function in proto.graph_def.library.function}
    trainable = _trainable(proto)
    sides = conditions.taken(replicas.one_device(proto.graph_def.node), library, trainable or ())
    nodes = sides.nodes
    nodes.branches = sides.branches
    resources = frozenset(name for name in nodes.variables if nodes.op(name) == "VarHandleOp")
    version = str(proto.meta_info_def.tensorflow_version)
    saves = [(key, nodes.variables_of(value)) for key, value in _saved_keys(proto)]
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
        doubt=sides.doubt,
        conditions=tuple(sorted(frozenset[str]().union(*sides.branches.values()))),
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
    node_names = {str(node.name) for node in nodes}
    lacking = ((node, _node_name(input_name.removeprefix("^"))) for node in nodes for input_name in node.input)
    return next((f"lacks {name!r}, which {node.name!r} needs" for node, name in lacking if name not in node_names), "")


def _trainable(proto: Any) -> tuple[str, ...] | None:
    collection = next((c.value for c in proto.collection_def if c.key == "trainable_variables"), None)
    if collection is None:
        return None
    try:
        names = [str(protos.Variable.FromString(v).variable_name) for v in collection.bytes_list.value]
    except DecodeError:
        return None
    return tuple(dict.fromkeys(name.removesuffix(":0") for name in names))


def _reads(nodes: Nodes) -> dict[str, frozenset[str]]:
    reads: dict[str, frozenset[str]] = {}
    for write in nodes.writes():
        if write.target in nodes.variables:
            variables = nodes.variables_of(write.value)
            reads[write.target] = reads.get(write.target, frozenset()) | variables
    return reads


def _saved_as(saved: Mapping[str, frozenset[str]], parts: Collection[str]) -> dict[str, str]:
    """Variables that a Saver saves under another name, as `Saver({"w": variable})` does, or swaps:
    `MovingAverageOptimizer.swapping_saver` saves averages under the names of their variables."""
    return {
        key: next(iter(variables))
        for key, variables in saved.items()
        if key not in parts and len(variables) == 1 and key not in variables
    }


def _parts(saves: Collection[tuple[str, frozenset[str]]]) -> tuple[dict[str, str], dict[str, str]]:
    """Map the parts of partitioned variables, such as those of canned Estimators, to the name of the whole.

    A slot of `dnn/kernel/part_0` made in the scope `dnn` is the variable `dnn/dnn/kernel/part_0/Adam`. Its key removes
    as many characters from the part's name as the scope has: `dnn/kernel/t_0/Adam` (training/slot_creator.py 1.15).

    Args:
      saves: the keys that the Saver writes, each with the variables that its value depends on. All parts of a variable
        share one key.
    """
    keys = {next(iter(variables)): key for key, variables in saves if len(variables) == 1 and key not in variables}
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


def _saved_keys(proto: Any) -> Iterator[tuple[str, str]]:
    nodes = proto.graph_def.node
    scope = _node_name(str(proto.saver_def.save_tensor_name)).rpartition("/")[0]
    by_name = {str(n.name): n for n in nodes}
    for node in nodes:
        if node.op != "SaveV2" or str(node.name).rpartition("/")[0] != scope:
            continue
        inputs = [_node_name(i) for i in node.input if not i.startswith("^")]
        if len(inputs) > 2:
            yield from zip(_strings(by_name.get(inputs[1])), inputs[3:], strict=False)


def _strings(node: Any) -> list[str]:
    values = [a.value.tensor.string_val for a in node.attr if a.key == "value"] if node is not None else []
    return [bytes(text).decode("utf-8", "surrogateescape") for text in (values[0] if values else ())]


def _updates(nodes: Nodes) -> dict[str, dict[str, frozenset[str]]]:
    """Group the ops `SCOPE/update_VARIABLE/...` of `Optimizer.apply_gradients` (training/optimizer.py 1.15)."""
    updates_by_scope: dict[str, dict[str, frozenset[str]]] = {}
    for name in nodes.inputs:
        scope, _, rest = name.partition("/update_")
        owner = next((v for v in _heads(rest) if v in nodes.variables), None)
        if rest and owner is not None and not _is_of_saver(scope):
            updates = updates_by_scope.setdefault(scope, {})
            updates[owner] = updates.get(owner, frozenset()) | nodes.variables_of(name)
    return updates_by_scope


def _heads(name: str) -> list[str]:
    """`a/b/c` -> `a/b/c`, `a/b`, `a`."""
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _node_name(name: str) -> str:
    return name.partition(":")[0]
