"""Graphs, shards and object graphs of TensorFlow's checkpoints."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from optim.bytes import protos
from optim.bytes.bundle import GRAPH_KEY, BundleReader
from tests.alterations.alteration import Alteration, Change
from tests.alterations.arrays import prefix_of
from tests.alterations.graphs import of_graphs
from tests.helpers import bundles


def of_bundles(folder: Path, source: str) -> Iterator[Alteration]:
    prefix = prefix_of(folder, source)
    assert prefix is not None
    for meta in (path for path in (Path(f"{prefix}.meta"), folder / source / "saved_model.pb") if path.is_file()):
        name = meta.relative_to(folder)
        graph = "graph" if meta.suffix == ".meta" else "SavedModel"
        yield Alteration("graph", f"{graph} gone", lambda f, _, n=name: (f / n).unlink())
        for part in (2, 3, 10):
            cut = lambda f, _, n=name, p=part: _shorten(f / n, p)  # noqa: E731
            yield Alteration("graph", f"a {part}th of the {graph}", cut)
        yield from of_graphs(meta, name)
    for data in sorted(prefix.parent.glob(f"{prefix.name}.data-*")):
        name = data.relative_to(folder)
        yield Alteration("shards", f"without {data.name}", lambda f, _, n=name: (f / n).unlink())
        yield Alteration("shards", f"half of {data.name}", lambda f, _, n=name: _shorten(f / n, 2))
    bundle = BundleReader(str(prefix))
    if GRAPH_KEY in bundle:
        yield from _of_graphs(bundle, source)


def _of_graphs(bundle: BundleReader, source: str) -> Iterator[Alteration]:
    """The object graph, which says whose slot each tensor is."""
    graph = protos.ObjectGraph()
    graph.ParseFromString(bundle.load_bytes(GRAPH_KEY))

    def change(edit: Callable[[Any], object]) -> Change:
        return lambda folder, _: _regraphed(folder, source, edit)

    tables = [i for i, node in enumerate(graph.nodes) if len(node.slot_variables) > 1]
    for i in tables:
        yield Alteration("object graph", "slots renamed", change(lambda g, i=i: _renamed(g.nodes[i])))
        yield Alteration("object graph", "owners swapped", change(lambda g, i=i: _owners(g.nodes[i])))
        yield Alteration("object graph", "a slot less", change(lambda g, i=i: g.nodes[i].slot_variables.pop()))
    lists = [i for i, n in enumerate(graph.nodes) if {"0", "1"} <= {c.local_name for c in n.children}]
    for i in lists:
        yield Alteration("object graph", f"list {i} reversed", change(lambda g, i=i: _reversed(g.nodes[i])), False)
    yield Alteration("object graph", "without names", change(_unnamed), False)
    yield Alteration("object graph", "keys swapped", change(_keys_swapped))
    named = [a for n in graph.nodes for a in n.attributes if a.full_name and ".OPTIMIZER_SLOT" not in a.checkpoint_key]
    for i in range(len(named) - 1):
        swap = change(lambda g, i=i: _names_swapped(g, i))
        is_listed = re.search(r"/\d+/\.ATTRIBUTES", named[i + 1].checkpoint_key)  # in the order of the first step
        told = not is_listed or "/_trainable_variables/" in named[i + 1].checkpoint_key
        yield Alteration("object graph", f"names {i} and {i + 1} swapped", swap, told)


def _regraphed(folder: Path, source: str, edit: Callable[[Any], object]) -> None:
    prefix = prefix_of(folder, source)
    assert prefix is not None
    with bundles.rewritten(prefix) as (_, texts):
        graph = protos.ObjectGraph()
        graph.ParseFromString(texts[GRAPH_KEY])
        edit(graph)
        texts[GRAPH_KEY] = graph.SerializeToString(deterministic=True)


def _renamed(node: Any) -> None:
    """The first slot's name for all of the second's, and the other way round."""
    names = list(dict.fromkeys(slot.slot_name for slot in node.slot_variables))
    other = dict(zip(names, [*names[1:], names[0]], strict=True)) if len(names) > 1 else {names[0]: "other"}
    for slot in node.slot_variables:
        slot.slot_name = other[slot.slot_name]


def _owners(node: Any) -> None:
    a, b = (
        node.slot_variables[0],
        next(
            s
            for s in node.slot_variables
            if s.original_variable_node_id != node.slot_variables[0].original_variable_node_id
        ),
    )
    one, other = a.original_variable_node_id, b.original_variable_node_id
    for slot in node.slot_variables:
        turn = {one: other, other: one}
        slot.original_variable_node_id = turn.get(slot.original_variable_node_id, slot.original_variable_node_id)


def _reversed(node: Any) -> None:
    numbered = [child for child in node.children if child.local_name.isdecimal()]
    for child, name in zip(numbered, [c.local_name for c in reversed(numbered)], strict=True):
        child.local_name = name


def _unnamed(graph: Any) -> None:
    for node in graph.nodes:
        for attribute in node.attributes:
            attribute.full_name = ""


def _keys_swapped(graph: Any) -> None:
    """The keys of the first and the last tensor of the object graph."""
    held = [a for node in graph.nodes for a in node.attributes if "OPTIMIZER" in a.checkpoint_key] or [
        a for node in graph.nodes for a in node.attributes
    ]
    a, b = held[0], held[-1]
    a.checkpoint_key, b.checkpoint_key = str(b.checkpoint_key), str(a.checkpoint_key)


def _names_swapped(graph: Any, at: int) -> None:
    named = [a for n in graph.nodes for a in n.attributes if a.full_name and ".OPTIMIZER_SLOT" not in a.checkpoint_key]
    a, b = named[at], named[at + 1]
    a.full_name, b.full_name = str(b.full_name), str(a.full_name)


def _shorten(path: Path, part: int) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // part])
