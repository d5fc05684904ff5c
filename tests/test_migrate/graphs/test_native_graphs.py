"""The rules that Keras had before OptimizerV2, in the graphs that five releases built of them."""

from __future__ import annotations

import json
import zipfile
from typing import Any

import numpy as np
import pytest

from migrate.facts.clipping import ALL, NORM
from migrate.graphs import native_keras
from migrate.graphs.nodes import Nodes
from migrate.graphs.writers import alone_written
from migrate.releases.narrowing import candidates
from migrate.releases.versions import Versions
from migrate.state import CHANGED, NO_KERNEL
from optim.bytes import protos
from tests.places import NATIVE_GRAPHS

FOLDER = NATIVE_GRAPHS
ANOTHER = {
    "Add": "Sub",
    "AddV2": "Sub",
    "Sub": "AddV2",
    "Mul": "RealDiv",
    "RealDiv": "Mul",
    "Pow": "Mul",
    "Sqrt": "Abs",
    "Square": "Abs",
    "Abs": "Square",
    "Maximum": "Mul",
    "Minimum": "Mul",
}
"""For an op of a rule, one that is none of it."""


def _of_release(name: str) -> tuple[dict[str, Any], list[tuple[dict[str, Any], Any]]]:
    with zipfile.ZipFile(FOLDER / name) as file:
        document = json.loads(file.read("cases.json"))
        graphs = [protos.SaverMetaGraph(graph_def=_parsed(file.read(f"{i}.pb"))) for i in range(len(document["cases"]))]
    return document, list(zip(document["cases"], graphs, strict=True))


def _parsed(data: bytes) -> Any:
    graph = type(protos.SaverMetaGraph().graph_def)()
    graph.ParseFromString(data)
    return graph


def _described(case: dict[str, Any], graph: Any, is_of_all: bool) -> native_keras.Updates:
    nodes, trained = Nodes(graph.graph_def.node), [case["variable"]]
    return native_keras.describe(nodes, case["settings"], trained, case["slots"], others=(), is_of_all=is_of_all)


def _limit_is_of_all(document: dict[str, Any]) -> bool:
    generation = "optimizer_v1" if document["is_tf_keras"] else "keras2"
    return NORM.of(candidates(generation, Versions(tensorflow=document["tensorflow"]))) == ALL


RELEASES = sorted(path.name for path in FOLDER.glob("*.zip"))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.quick(1)
def test_class_and_constants_are_those_that_the_program_gave(release: str) -> None:
    document, cases = _of_release(release)
    assert {case["class_name"] for case, _ in cases} == {
        *("SGD", "RMSprop", "Adagrad", "Adadelta"),
        *("Adam", "Adamax", "Nadam"),
    }
    for case, graph in cases:
        description = _described(case, graph, _limit_is_of_all(document))
        assert (description.class_name, description.outside) == (case["class_name"], {}), case
        assert description.constrained == ({case["variable"]} if case["kind"] not in ("plain", "rows") else set()), case
        arguments = {"clipnorm": None, "clipvalue": None, **case["arguments"]}
        for key in arguments.keys() - case["settings"].keys():
            want = arguments[key]
            assert description.config[key] == (want if want is None else pytest.approx(np.float32(want))), (case, key)


@pytest.mark.breadth
@pytest.mark.parametrize("release", RELEASES)
def test_a_hyperparameter_that_the_graph_changes_is_said(release: str) -> None:
    """As of a model with `add_update(K.update(optimizer.lr, 0.8 * optimizer.lr))`."""
    document, cases = _of_release(release)
    for case, graph in [(c, g) for c, g in cases if c["kind"] == "plain"]:
        variable_names = {"learning_rate" if key == "lr" else key: name for key, name in case["settings"].items()}
        wanted = variable_names.keys() - {"iterations", "m_schedule"}
        for key in wanted:
            graph.graph_def.node.add(name=f"less/{key}", op="Mul", input=[variable_names[key], variable_names[key]])
            graph.graph_def.node.add(name=f"set/{key}", op="Assign", input=[variable_names[key], f"less/{key}"])
        outside = _described(case, graph, _limit_is_of_all(document)).outside
        assert {key for key, how in outside.items() if f"'set/{key}' in the graph changes" in how} == wanted, case


@pytest.mark.breadth
@pytest.mark.parametrize("release", RELEASES)
def test_a_step_by_gathered_gradients_is_said(release: str) -> None:
    """As of AdamAccumulated of keras-gradient-accumulation, whose steps take a variable for the gradient."""
    document, cases = _of_release(release)
    for case, graph in [(c, g) for c, g in cases if c["kind"] == "plain" and "clipnorm" not in c["arguments"]]:
        nodes = Nodes(graph.graph_def.node)
        graph.graph_def.node.add(name="gathered", op="VariableV2")
        for node in graph.graph_def.node:
            if node.name in nodes.by_name and not nodes.is_backward(node.name):
                node.input[:] = [
                    "gathered" if nodes.is_gradient(input_name) else input_name for input_name in node.input
                ]
        assert {CHANGED, NO_KERNEL} & _described(case, graph, _limit_is_of_all(document)).outside.keys(), case


@pytest.mark.breadth
@pytest.mark.parametrize("release", RELEASES)
def test_no_rule_is_told_of_a_graph_with_another_op_or_constant(release: str) -> None:
    document, cases = _of_release(release)
    altered = 0
    for case, graph in [(c, g) for c, g in cases if c["kind"] != "rows" and "clipnorm" not in c["arguments"]]:
        right = _described(case, graph, _limit_is_of_all(document))
        for place in _of_rule(case, graph):
            if case["kind"] != "plain" and graph.graph_def.node[place].op == "Const":
                continue  # of a constraint they are the model's
            other = type(graph).FromString(graph.SerializeToString())
            _alter(other.graph_def.node[place])
            description = _described(case, other, _limit_is_of_all(document))
            assert description.outside.get(NO_KERNEL) or description.config != right.config, (
                case,
                other.graph_def.node[place],
            )
            altered += 1
    assert altered > 300


def _of_rule(case: dict[str, Any], graph: Any) -> list[int]:
    """Numbers of the nodes that make new values of the variable and its slots from the gradient."""
    nodes = Nodes(graph.graph_def.node)
    written = alone_written(nodes)
    of = [case["variable"], *case["slots"]]
    behind = {n for name in of if name in written for n in nodes.ancestors(written[name].value, to_gradients=True)}
    rule = {name for name in behind if not nodes.is_gradient(name)}
    named = list(enumerate(graph.graph_def.node))
    return [i for i, node in named if node.name in rule and (node.op in ANOTHER or _is_number(node))]


def _is_number(node: Any) -> bool:
    return node.op == "Const" and bool(node.attr[0].key) and _float_of(node) is not None


def _float_of(node: Any) -> Any:
    value = next(attribute.value for attribute in node.attr if attribute.key == "value")
    return value.tensor if value.tensor.float_val else None


def _alter(node: Any) -> None:
    if node.op in ANOTHER:
        node.op = ANOTHER[node.op]
    else:
        tensor = _float_of(node)
        # A limit of infinity becomes one that numbers reach: 1 - beta ** step is never above 1.
        tensor.float_val[0] = tensor.float_val[0] * 3 + 1 if np.isfinite(tensor.float_val[0]) else 0.5
