"""Ops in graphs of TensorFlow 1 that change variables, slots, powers and the step besides the optimizer."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import migrate
from optim.bytes import protos
from tests.places import SCOPED
from tests.test_migrate.graphs.small_graphs import complete

W, SLOT, COUNT = "net/w0", "train/net/w0/Momentum", "train/count"
Node = tuple[str, str, list[str]]

CHANGES: dict[str, list[Node]] = {
    "a constant more": [("y", "Const", []), ("x", "AssignAdd", [W, "y"])],
    "assigns": [("x", "AssignSub", [W, "y"])],
    "multiplies rows": [("x", "ScatterMul", [W, "i", "y"])],
    "rows that are fed": [("i", "Placeholder", []), ("x", "ScatterUpdate", [W, "i", "y"])],
    "elements": [("x", "ScatterNdAdd", [W, "i", "y"])],
    "a slice": [("x", "ResourceStridedSliceAssign", [W, "b", "e", "s", "y"])],
    "in a cond": [
        *(("p", "Placeholder", []), ("c/Switch", "RefSwitch", [W, "p"]), ("x", "Assign", ["c/Switch:1", "y"])),
        ("c/Merge", "Merge", ["c/Switch", "x"]),
    ],
    "in a loop": [("c/Enter", "RefEnter", [W]), ("x", "AssignAdd", ["c/Enter", "y"])],
    "a slot": [("x", "Assign", [SLOT, "y"])],
    "a slot in a cond": [("c/Switch", "Switch", [SLOT, "p"]), ("x", "AssignVariableOp", ["c/Switch:1", "y"])],
    "another kernel": [("x", "ApplyPowerSign", [W, "m", "r", "a", "b", "c", "g"])],
}


def changed(folder: Path, name: str, nodes: list[Node], change: Any = None) -> migrate.OptimizerState:
    """What is read of a fixture whose graph has these nodes, too."""
    shutil.copytree(SCOPED / name / "source", folder / "copy")
    meta = folder / "copy" / "model.ckpt.meta"
    proto = protos.SaverMetaGraph.FromString(meta.read_bytes())
    for node_name, op, inputs in nodes:
        proto.graph_def.node.add(name=node_name, op=op, input=inputs)
    if change is not None:
        change(proto.graph_def)
    complete(proto.graph_def)
    meta.write_bytes(proto.SerializeToString())
    return migrate.read(folder / "copy" / "model.ckpt")


@pytest.mark.parametrize("nodes", CHANGES.values(), ids=CHANGES)
def test_what_changes_a_variable_or_slot_besides_the_optimizer_is_said(nodes: list[Node], tmp_path: Path) -> None:
    state = changed(tmp_path, "momentum", nodes)
    assert state.fidelity == "approximate"
    assert "'x' also changes variables or slots of the optimizer" in " ".join(state.reasons)


@pytest.mark.parametrize(
    "nodes",
    [
        [("v", "Placeholder", []), ("x", "Assign", [W, "v"])],
        [("v", "RestoreV2", []), ("x", "Assign", [SLOT, "v"])],
        [("v", "Const", []), ("x", "Assign", [W, "v"])],
        [("n", "Neg", [W]), ("x", "ScatterNd", ["i", "n", "s"])],
        [("other", "VariableV2", []), ("x", "Assign", ["other", f"{W}/read"])],
    ],
)
def test_what_a_program_gives_and_what_only_reads_changes_nothing(nodes: list[Node], tmp_path: Path) -> None:
    assert changed(tmp_path, "momentum", nodes).fidelity == "exact"


def with_functions(*bodies: tuple[str, list[Node]], of: str, op: str, inputs: list[str]) -> Any:
    """Adds functions of the arguments `a` and `b`, and a node `x` that calls one."""

    def change(graph: Any) -> None:
        for name, nodes in bodies:
            function = graph.library.function.add()
            function.signature.name = name
            for argument_name in "ab":
                function.signature.input_arg.add(name=argument_name)
            for node, kind, node_inputs in nodes:
                node_def = function.node_def.add(name=node, op=kind, input=node_inputs)
                if kind == "If":
                    node_def.attr.add(key="then_branch").value.func.name = "inner"
        node = graph.node.add(name="x", op=op, input=inputs)
        if op != of:
            node.attr.add(key="f").value.func.name = of

    return change


ASSIGNS = ("inner", [("t", "AssignSubVariableOp", ["b", "a"])])
CALLS = ("outer", [("i", "Identity", ["a"]), ("t", "If", ["p", "b", "i:output:0"])])
"""Hands its first argument to the second of `inner`."""


@pytest.mark.parametrize(
    ("of", "op", "inputs", "fidelity"),
    [
        ("inner", "inner", ["y", W], "approximate"),
        ("inner", "inner", [W, "y"], "exact"),
        ("inner", "StatefulPartitionedCall", ["y", W], "approximate"),
        ("inner", "StatefulPartitionedCall", [W, "y"], "exact"),
        ("inner", "While", ["y", SLOT], "approximate"),
        ("inner", "If", [W, "y", "z"], "exact"),
        ("inner", "If", ["p", "y", W], "approximate"),
        ("outer", "PartitionedCall", [W, "y"], "approximate"),
        ("outer", "PartitionedCall", ["y", W], "exact"),
        ("inner", "RemoteCall", ["device", W, "y"], "approximate"),
    ],
)
def test_functions_change_what_they_are_given_for_an_argument(
    of: str, op: str, inputs: list[str], fidelity: str, tmp_path: Path
) -> None:
    state = changed(tmp_path, "momentum", [], with_functions(ASSIGNS, CALLS, of=of, op=op, inputs=inputs))
    assert state.fidelity == fidelity


def test_a_function_that_calls_itself_is_looked_into_once(tmp_path: Path) -> None:
    again = ("inner", [("t", "inner", ["a", "b"]), ("u", "AssignVariableOp", ["a", "b"])])
    change = with_functions(again, of="inner", op="inner", inputs=[W, "y"])
    assert changed(tmp_path, "momentum", [], change).fidelity == "approximate"


@pytest.mark.parametrize("how", ["cond", "loop", "sum", "function"])
def test_a_step_that_may_not_be_counted_is_said(how: str, tmp_path: Path) -> None:
    def change(graph: Any) -> None:
        node = next(n for n in graph.node if n.op == "AssignAdd" and n.input[0] == COUNT)
        if how == "cond":
            graph.node.add(name="c/Switch", op="RefSwitch", input=[COUNT, "p"])
            node.input[0] = "c/Switch:1"
        elif how == "loop":
            graph.node.add(name="c/Enter", op="RefEnter", input=[COUNT])
            node.input[0] = "c/Enter"
        elif how == "sum":
            graph.node.add(name="c/next", op="Add", input=[COUNT, node.input[1]])
            node.input[1] = "c/next"
        else:
            with_functions(ASSIGNS, of="inner", op="inner", inputs=["y", COUNT])(graph)

    assert changed(tmp_path, "momentum", []).fidelity == "exact"
    state = changed(tmp_path / how, "momentum", [], change)
    assert state.fidelity == "approximate"
    assert "learning_rate: " in " ".join(state.reasons)


def test_powers_that_two_losses_raise_count_no_steps() -> None:
    """Each variable moved once while the powers of beta were raised twice."""
    state = migrate.read(SCOPED / "twice" / "source" / "model.ckpt")
    assert state.fidelity == "approximate"
    assert "'train/beta1_power' is not multiplied by its beta by exactly one op" in " ".join(state.reasons)
