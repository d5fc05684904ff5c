"""What `PREFIX.meta`, the graph that tf.train.Saver writes beside a checkpoint, says of its variables.

Keras's own optimizers (before OptimizerV2) give their slots names without meaning, `training/Adam/Variable_3`; but the
graph holds the updates, and the update of a variable reads its own slots and no other's: `w := w - f(m, v, gradient)`,
while gradients read variables only. The graph is data: nothing of it is run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from migrate import protos

MAX_META = 1 << 30
VARIABLES = ("Variable", "VariableV2", "VarHandleOp")
WRITES = ("Assign", "AssignSub", "AssignAdd", "AssignVariableOp", "AssignSubVariableOp", "AssignAddVariableOp")
RATE_AND_GRADIENT = {
    "GradientDescent": (1, 2),
    "Momentum": (2, 3),
    "Adam": (5, 9),
    "Adadelta": (3, 6),
    "Adagrad": (2, 3),
    "RMSProp": (3, 7),
    "CenteredRMSProp": (4, 8),
    "Ftrl": (4, 3),
}
"""Which inputs of a kernel `ApplyX`, `ResourceApplyX`, `SparseApplyX` are the learning rate and the gradient
(tensorflow/core/ops/training_ops.cc)."""
PASSING = ("Identity", "Cast", "ReadVariableOp")
NOT_STEPS = ("save", "report_uninitialized_variables")


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
    """Scope of a tf.train optimizer's `apply_gradients` -> variable -> the variables that its update there reads."""
    outside: Mapping[str, str] = field(default_factory=dict)
    """`learning_rate`, `clipping`: what the program does before a tf.train optimizer, of which no config tells."""

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
    path = prefix + ".meta"
    try:
        if os.path.getsize(path) > MAX_META:
            return None
        with open(path, "rb") as file:
            proto = protos.SaverMetaGraph.FromString(file.read())
    except (OSError, DecodeError):
        return None
    nodes = proto.graph_def.node
    resources = frozenset(str(n.name) for n in nodes if n.op == "VarHandleOp")
    version = str(proto.meta_info_def.tensorflow_version)
    return SaverGraph(version, _trainable(proto), _reads(nodes), resources, _updates(nodes), _outside(nodes))


def _trainable(proto: Any) -> tuple[str, ...] | None:
    found = next((c.value for c in proto.collection_def if c.key == "trainable_variables"), None)
    if found is None:
        return None
    try:
        names = [str(protos.Variable.FromString(v).variable_name) for v in found.bytes_list.value]
    except DecodeError:
        return None
    return tuple(dict.fromkeys(name.removesuffix(":0") for name in names))


def _reads(nodes: Any) -> dict[str, frozenset[str]]:
    inputs = {str(n.name): [_plain(i) for i in n.input if not i.startswith("^")] for n in nodes}
    variables = {str(n.name) for n in nodes if n.op in VARIABLES}
    found: dict[str, set[str]] = {}
    for node in nodes:
        name, target = str(node.name), (inputs[node.name] or [""])[0]
        first = name.partition("/")[0].rstrip("_0123456789")
        initial = name in (f"{target}/Assign", f"{target}/IsInitialized/VarIsInitializedOp")
        if node.op in WRITES and target in variables and not initial and first not in NOT_STEPS:
            found.setdefault(target, set()).update(_behind(inputs[name][1:], inputs, variables))
    return {name: frozenset(names) for name, names in found.items()}


def _updates(nodes: Any) -> dict[str, dict[str, frozenset[str]]]:
    """`SCOPE/update_VARIABLE/...` is what `Optimizer.apply_gradients` calls its ops (training/optimizer.py 1.15)."""
    inputs = {str(n.name): [_plain(i) for i in n.input if not i.startswith("^")] for n in nodes}
    variables = {str(n.name) for n in nodes if n.op in VARIABLES}
    found: dict[str, dict[str, frozenset[str]]] = {}
    for name in inputs:
        scope, _, rest = name.partition("/update_")
        owner = next((v for v in _heads(rest) if v in variables), None)
        if rest and owner is not None and scope.partition("/")[0].rstrip("_0123456789") not in NOT_STEPS:
            read = frozenset(_behind([name], inputs, variables))
            updates = found.setdefault(scope, {})
            updates[owner] = updates.get(owner, frozenset()) | read
    return found


def _heads(name: str) -> list[str]:
    """`a/b/c` -> `a/b/c`, `a/b`, `a`."""
    parts = name.split("/")
    return ["/".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _outside(nodes: Any) -> dict[str, str]:
    """A learning rate that is computed, and gradients that are clipped, on their way into tf.train's kernels."""
    by_name = {str(n.name): n for n in nodes}
    variables = {str(n.name) for n in nodes if n.op in VARIABLES}
    inputs = {str(n.name): [_plain(i) for i in n.input if not i.startswith("^")] for n in nodes}
    found: dict[str, str] = {}
    for node in nodes:
        places = RATE_AND_GRADIENT.get(re.sub(r"^(Resource)?(Sparse)?Apply", "", node.op))
        if places is None or "Apply" not in node.op or len(inputs[node.name]) <= max(places):
            continue
        rate, gradient = (_source(inputs[node.name][i], by_name, inputs) for i in places)
        behind = _behind([rate], inputs, variables) - {rate}
        if behind:
            found.setdefault("learning_rate", f"{rate!r} in the graph computes it from {', '.join(sorted(behind))}")
        clips = gradient in by_name and by_name[gradient].op in ("Maximum", "Minimum", "ClipByValue")
        if clips or "clip_by_" in gradient:
            found.setdefault("clipping", f"gradients go through {gradient!r} before they reach the optimizer")
    return found


def _source(name: str, by_name: Mapping[str, Any], inputs: Mapping[str, list[str]]) -> str:
    """The node where a value is made, behind those that hand it on."""
    for _ in range(len(by_name)):
        if name not in by_name or by_name[name].op not in PASSING or not inputs[name]:
            break
        name = inputs[name][0]
    return name


def _plain(name: str) -> str:
    """`scope/Mul:1` -> `scope/Mul`."""
    return name.partition(":")[0]


def _behind(starts: list[str], inputs: Mapping[str, list[str]], variables: Collection[str]) -> set[str]:
    """Variables that values depend on; variables themselves are not looked behind."""
    seen: set[str] = set()
    todo, found = list(starts), set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in variables:
            found.add(name)
        else:
            todo.extend(inputs.get(name, ()))
    return found
