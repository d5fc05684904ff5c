"""Graphs beside checkpoints of TensorFlow 1, and in SavedModels, that say something else than was written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from optim.bytes import protos
from tests.alterations.alteration import Alteration, Change

KERNEL = re.compile(r"(Resource)?(Sparse)?Apply\w+")
STEP = re.compile(rf"{KERNEL.pattern}|Assign(Sub|Add)?(VariableOp)?|Maximum|Minimum|L2Loss|Pow|Rsqrt|Sqrt")
"""Ops of which a step is made, first values and restores apart."""
NO_STEP = re.compile(r"(save|init)(_\d+)?/|.*/(Assign|IsInitialized/VarIsInitializedOp|AssignVariableOp)$")


def of_graphs(path: Path, name: Path) -> Iterator[Alteration]:
    """`path`: a `.meta` or `saved_model.pb`, `name` below the copy that is altered."""
    nodes = [node for graph in _graphs(_parsed(path)) for node in graph.graph_def.node]
    needed = {_plain(each) for node in nodes for each in node.input}

    def change(edit: Callable[[Any], object]) -> Change:
        return lambda folder, _: _edited(folder / name, edit)

    for node in nodes:
        if STEP.fullmatch(node.op) and not NO_STEP.match(node.name) and node.name in needed:
            gone = change(lambda g, n=node.name: _without(g, lambda each: each.name == n))
            yield Alteration("graph", f"without {node.name}", gone)
    for word in ("clip", "gradients/"):
        if any(word in node.name and node.name in needed for node in nodes):
            yield Alteration("graph", f"without {word}", change(lambda g, w=word: _without(g, lambda n: w in n.name)))
    if any(KERNEL.fullmatch(node.op) for node in nodes):
        yield Alteration("graph", "kernels take a slot for the variable", change(_turned))
        yield Alteration("graph", "kernels renamed", change(_as_of_another), False)
    variables = [node.name for node in nodes if node.op in ("VariableV2", "VarHandleOp")]
    for one, slot in [(a, b) for a in variables for b in variables if f"{a}/" in b][:4]:
        yield Alteration("graph", f"{one} and {slot} exchanged", change(lambda g, a=one, b=slot: _exchanged(g, a, b)))
    yield Alteration("graph", "as text", lambda folder, _: _as_text(folder / name))


def _parsed(path: Path) -> Any:
    kind = protos.SaverMetaGraph if path.suffix == ".meta" else protos.SavedGraphs
    return kind.FromString(path.read_bytes())


def _graphs(whole: Any) -> list[Any]:
    return [whole] if hasattr(whole, "graph_def") else list(whole.meta_graphs)


def _edited(path: Path, edit: Callable[[Any], object]) -> None:
    whole = _parsed(path)
    for graph in _graphs(whole):
        edit(graph)
    path.write_bytes(whole.SerializeToString(deterministic=True))


def _as_text(path: Path) -> None:
    path.write_text(text_format.MessageToString(_parsed(path)))


def _plain(name: str) -> str:
    return name.removeprefix("^").partition(":")[0]


def _without(graph: Any, is_gone: Callable[[Any], bool]) -> None:
    kept = [node for node in graph.graph_def.node if not is_gone(node)]
    del graph.graph_def.node[:]
    graph.graph_def.node.extend(kept)


def _turned(graph: Any) -> None:
    for node in graph.graph_def.node:
        if KERNEL.fullmatch(node.op):
            node.input[0], node.input[1] = str(node.input[1]), str(node.input[0])


def _exchanged(graph: Any, one: str, other: str) -> None:
    """In all that reads and changes them, but where they are saved and restored."""
    turn = {one: other, other: one}
    for node in graph.graph_def.node:
        if not NO_STEP.match(node.name):
            node.input[:] = [turn.get(each, each) for each in node.input]


def _as_of_another(graph: Any) -> None:
    for node in graph.graph_def.node:
        if KERNEL.fullmatch(node.op):
            node.op = re.sub(r"Apply\w+", "ApplyAdaMax" if node.op.endswith("Adam") else "ApplyAdam", node.op)
