"""Graphs of TensorFlow 1 in a few words."""

from __future__ import annotations

from typing import Any

from migrate.graphs.nodes import Nodes
from optim.bytes import protos


def small_graph(*nodes: tuple[str, str, list[str]]) -> Nodes:
    """A graph of (name, op, inputs); a name that is a number is that constant."""
    proto = protos.SaverMetaGraph()
    for name, op, inputs in nodes:
        node = proto.graph_def.node.add(name=name, op=op, input=inputs)
        if op == "Const":
            tensor = node.attr.add(key="value").value.tensor
            tensor.dtype = 1
            tensor.float_val.append(float(name))
    return Nodes(proto.graph_def.node)


def complete(graph: Any) -> None:
    """Add what nodes of a graph need and it lacks, as ops of which nothing is known."""
    known = {node.name for node in graph.node}
    needed = {input_name.removeprefix("^").partition(":")[0] for node in graph.node for input_name in node.input}
    for name in sorted(needed - known):
        graph.node.add(name=name, op="Unknown")
