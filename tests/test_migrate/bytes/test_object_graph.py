"""The keys of real checkpoints against their object graphs: TensorFlow makes the one from the other."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import migrate
from migrate.bytes.object_graph import VALUE, ObjectGraph
from migrate.errors import ContradictionError, DamagedFileError
from optim.bytes import names, protos
from optim.bytes.bundle import GRAPH_KEY, BundleReader
from tests.helpers.bundles import rewritten
from tests.places import CASE_FOLDER, CORPUS


def _bundles() -> Iterator[BundleReader]:
    for index in sorted(CASE_FOLDER.rglob("*.index")):
        bundle = BundleReader(str(index.with_suffix("")))
        if GRAPH_KEY in bundle:
            yield bundle


class _Altered:
    """A bundle with another graph."""

    def __init__(self, bundle: BundleReader, graph: Any) -> None:
        self.prefix, self._keys, self._graph = bundle.prefix, [*bundle], graph.SerializeToString()

    def load_bytes(self, key: str) -> bytes:
        assert key == GRAPH_KEY
        return self._graph

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)


def _parsed(bundle: BundleReader) -> Any:
    return protos.ObjectGraph.FromString(bundle.load_bytes(GRAPH_KEY))


def _values(graph: Any) -> list[Any]:
    return [attribute for node in graph.nodes for attribute in node.attributes if attribute.name == VALUE]


def test_every_value_of_every_real_checkpoint_is_where_its_key_says() -> None:
    sizes = [len(ObjectGraph(bundle)) for bundle in _bundles()]
    assert len(sizes) >= 50


def test_a_value_that_no_object_has_is_damage() -> None:
    for bundle in _bundles():
        for i in range(len(_values(_parsed(bundle)))):
            graph = _parsed(bundle)
            _values(graph)[i].name = "OBJECT_CONFIG_JSON"
            with pytest.raises(DamagedFileError, match=r"does not list .*VARIABLE_VALUE"):
                ObjectGraph(_Altered(bundle, graph))  # type: ignore[arg-type]


def test_a_value_elsewhere_than_its_key_says_is_a_contradiction() -> None:
    for bundle in _bundles():
        for one, other in itertools.pairwise(range(len(_values(_parsed(bundle))))):
            graph = _parsed(bundle)
            a, b = _values(graph)[one], _values(graph)[other]
            a.checkpoint_key, b.checkpoint_key = str(b.checkpoint_key), str(a.checkpoint_key)
            with pytest.raises(ContradictionError, match="is, in the object graph"):
                ObjectGraph(_Altered(bundle, graph))  # type: ignore[arg-type]


def test_a_table_of_slots_that_lacks_one_or_calls_it_otherwise_is_refused() -> None:
    count = 0
    for bundle in _bundles():
        for i, node in enumerate(_parsed(bundle).nodes):
            for slot in range(len(node.slot_variables)):
                less, renamed = _parsed(bundle), _parsed(bundle)
                del less.nodes[i].slot_variables[slot]
                renamed.nodes[i].slot_variables[slot].slot_name += "x"
                for graph, error in ((less, (DamagedFileError, ContradictionError)), (renamed, ContradictionError)):
                    with pytest.raises(error):
                        ObjectGraph(_Altered(bundle, graph))  # type: ignore[arg-type]
                count += 1
    assert count > 100


@pytest.mark.parametrize("case", ["extra-tf215-adam-alone", "extra-tf215-new-adam-own-weight-ckpt"])
def test_a_slot_in_two_lists_is_damage(case: str, tmp_path: Path) -> None:
    """A key names a slot by one of the lists that have it: `_variables`, which lists all."""
    source = tmp_path / "source"
    shutil.copytree(CORPUS / case / "source", source)
    with rewritten(source / "ckpt-1") as (_, texts):
        graph = protos.ObjectGraph.FromString(texts[GRAPH_KEY])
        lists = {c.local_name: graph.nodes[c.node_id] for node in graph.nodes for c in node.children}
        lists["_momentums"].children[0].node_id = lists["_velocities"].children[0].node_id
        texts[GRAPH_KEY] = graph.SerializeToString(deterministic=True)
    config = {"class_name": "Adam", "config": {"learning_rate": 0.01}}
    with pytest.raises(DamagedFileError, match=r"object graph has optimizer/_variables/\d+.* and elsewhere"):
        migrate.read(source / "ckpt-1", optimizer_config=config)


LONG = ["/a" * 25_000, "a://" * 12_500, "_grad/" * 8_000]


@pytest.mark.parametrize("name", LONG, ids=lambda name: name[:6])
@pytest.mark.parametrize("part", ["key", "full name", "graph"])
def test_a_name_is_as_long_as_names_are(name: str, part: str, tmp_path: Path) -> None:
    """Its parts were compared with each other for hours."""
    case = "extra-k122-adam-saver" if part == "graph" else "extra-tfa19-lookahead-adam-ckpt"
    source = tmp_path / "source"
    shutil.copytree(CORPUS / case / "source", source)
    prefix = next(source.glob("*.index")).with_suffix("")
    if part == "graph":
        meta = prefix.with_suffix(".meta")
        graph = protos.SaverMetaGraph.FromString(meta.read_bytes())
        graph.graph_def.node[0].name = name
        meta.write_bytes(graph.SerializeToString())
    else:
        with rewritten(prefix) as (numbers, texts):
            if part == "key":
                numbers[name] = numbers.pop(next(iter(numbers)))
            else:
                graph = protos.ObjectGraph.FromString(texts[GRAPH_KEY])
                _values(graph)[-1].full_name = name
                texts[GRAPH_KEY] = graph.SerializeToString(deterministic=True)
    start = time.monotonic()
    with pytest.raises(DamagedFileError, match=f"a name of {len(name)} characters, .*: it is damaged; copy it again"):
        migrate.read(prefix)
    assert time.monotonic() - start < 10


def test_names_within_a_name() -> None:
    known = {"dense/kernel", "Adam", "a/b/c/d/e/f", "kernel/m/n"}
    assert sorted(names.contained("Adam/dense/kernel/m", known)) == ["Adam", "dense/kernel"]
