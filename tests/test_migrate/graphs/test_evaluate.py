"""Values of nodes in float64, and the graphs that have none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from migrate.graphs.evaluate import MOST, UnknownError, evaluate, trace
from migrate.graphs.identify import Identifier
from migrate.graphs.nodes import FLOAT, INT32, Nodes, Write
from tests.test_migrate.graphs.small_graphs import small_graph


def _value(nodes: Nodes, output: str, **values: float) -> np.ndarray | None:
    traced = trace(nodes, [output], lambda name: name in values, {})
    return evaluate(nodes, traced, {name: np.asarray(number) for name, number in values.items()}).get(output)


@pytest.mark.parametrize(
    ("op", "inputs", "want"),
    [
        ("Sub", ["x", "y"], -1.5),
        ("SquaredDifference", ["x", "y"], 2.25),
        ("Rsqrt", ["y"], 0.5),
        ("ClipByValue", ["y", "x", "3.0"], 3.0),
        ("AddN", ["x", "y", "y"], 10.5),
        ("Sub", ["0.9", "x"], -1.6),  # 0.9 as the program wrote it, not as float32 has it
        ("Fill", ["shape", "x"], 2.5),
        ("MatMul", ["x", "y"], None),
        ("Sub", ["x"], None),
        ("Sub", ["x", "y:1"], None),
        ("Sub", ["x", "unknown"], None),
    ],
)
def test_an_op_gives_its_number_or_none(op: str, inputs: list[str], want: float | None) -> None:
    constants = [(number, "Const", []) for number in ("0.9", "3.0")]
    graph = small_graph(*constants, ("shape", "Placeholder", []), ("x", "Placeholder", []), ("made", op, inputs))
    value = _value(graph, "made", x=2.5, y=4.0)
    assert value == (None if want is None else pytest.approx(want, rel=1e-15))


@pytest.mark.parametrize(("dtype", "want"), [(FLOAT, 2.5), (INT32, None)])
def test_whole_numbers_are_not_divided_and_not_made_of_others(dtype: int, want: float | None) -> None:
    graph = small_graph(("divided", "Div", ["x", "y"]), ("cast", "Cast", ["x"]))
    graph.by_name["divided"].attr.add(key="T").value.type = dtype
    for key, kind in (("SrcT", FLOAT), ("DstT", dtype)):
        graph.by_name["cast"].attr.add(key=key).value.type = kind
    assert _value(graph, "divided", x=2.5, y=1.0) == want
    assert _value(graph, "cast", x=2.5) == want


def test_a_reader_that_waits_for_an_assignment_reads_what_it_wrote() -> None:
    graph = small_graph(
        ("w", "VariableV2", []),
        ("1.0", "Const", []),
        ("more", "AssignAdd", ["w", "1.0"]),
        ("before", "Identity", ["w"]),
        ("after", "Identity", ["w", "^more"]),
        ("both", "Mul", ["before", "after"]),
    )
    traced = trace(graph, ["both"], lambda _: False, {"w": [Write("more", "w", "1.0")]})
    assert evaluate(graph, traced, {"w": np.asarray(3.0)})["both"] == 12


def test_assignments_in_no_certain_order_are_unknown() -> None:
    writes = [Write("one", "w", "1.0"), Write("two", "w", "1.0")]
    nodes: list[Any] = [("w", "VariableV2", []), ("1.0", "Const", []), ("one", "AssignAdd", ["w", "1.0"])]
    for first_input, is_certain in (("w", False), ("one", True)):
        graph = small_graph(
            *nodes, ("two", "AssignAdd", [first_input, "1.0"]), ("end", "Identity", ["w", "^one", "^two"])
        )
        if not is_certain:
            with pytest.raises(UnknownError):
                trace(graph, ["end"], lambda _: False, {"w": writes})
        else:
            traced = trace(graph, ["end"], lambda _: False, {"w": writes})
            assert evaluate(graph, traced, {"w": np.asarray(3.0)})["end"] == 5


def test_a_cycle_and_a_huge_graph_are_unknown() -> None:
    cycle = small_graph(("a", "Neg", ["b"]), ("b", "Neg", ["a"]))
    chain = [(f"n{i}", "Neg", [f"n{i - 1}"]) for i in range(1, MOST + 2)]
    long = small_graph(("n0", "Placeholder", []), *chain)
    for graph, name in ((cycle, "a"), (long, f"n{MOST + 1}")):
        with pytest.raises(UnknownError):
            trace(graph, [name], lambda _: False, {})
        assert Identifier(graph, {"w": [Write(name, "w", name)]}).of("w") == []


def test_a_constant_of_many_numbers_is_unknown() -> None:
    graph = small_graph(("x", "Placeholder", []), ("0.5", "Const", []), ("made", "Mul", ["x", "0.5"]))
    tensor = next(a for a in graph.by_name["0.5"].attr if a.key == "value").value.tensor
    tensor.tensor_shape.dim.add(size=4)
    assert _value(graph, "made", x=3.0) == 1.5  # one number stands for all
    tensor.float_val.append(0.25)
    assert _value(graph, "made", x=3.0) is None
    tensor.tensor_shape.dim[0].size = 1 << 40
    assert _value(graph, "made", x=3.0) is None
