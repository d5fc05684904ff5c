"""Gradients that a step may compute from variables that it has moved already, as `tf.gradients` without gates may.

A run of nshepperd/gpt-2's `train.py` on TensorFlow 1.15.5 (two layers, SGD) went 5% another way than its gradients.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import migrate
from migrate.graphs.late_reads import late_read
from migrate.graphs.nodes import Nodes
from optim.bytes import protos
from tests.places import FEATURES, SCOPED

Node = tuple[str, str, list[str]]
BACK, DOWN, MOVE = "gradients/MatMul_grad/MatMul_1", "gradients/MatMul_grad/MatMul", "SGD/update_w/ApplyGradientDescent"
LAYERS: list[Node] = [
    ("v", "VariableV2", []),
    ("w/read", "Identity", ["w"]),
    ("v/read", "Identity", ["v"]),
    ("hidden", "MatMul", ["x", "v/read"]),
    ("MatMul", "MatMul", ["hidden", "w/read"]),
    ("error", "Sub", ["MatMul", "y"]),
    (DOWN, "MatMul", ["error", "w/read"]),
    ("gradients/hidden_grad/MatMul_1", "MatMul", ["x", DOWN]),
    ("SGD/update_v/ApplyGradientDescent", "ApplyGradientDescent", ["v", "rate", "gradients/hidden_grad/MatMul_1"]),
]
"""The gradient of `v` is made from `w`."""
AT_ONCE: list[Node] = [(BACK, "MatMul", ["hidden", "error"]), (MOVE, "ApplyGradientDescent", ["w", "rate", BACK])]
GATED: list[Node] = [
    (BACK, "MatMul", ["hidden", "error"]),
    ("both", "NoOp", [f"^{BACK}", f"^{DOWN}"]),
    ("gated", "Identity", [BACK, "^both"]),
    (MOVE, "ApplyGradientDescent", ["w", "rate", "gated"]),
]
CLIPPED: list[Node] = [
    (BACK, "MatMul", ["hidden", "error"]),
    ("norms", "Pack", [BACK, "gradients/hidden_grad/MatMul_1"]),
    ("clipped", "Mul", [BACK, "norms"]),
    (MOVE, "ApplyGradientDescent", ["w", "rate", "clipped"]),
]


def _said(nodes: list[Node], kind: str = "VariableV2") -> str | None:
    proto = protos.SaverMetaGraph()
    for name, op, inputs in [("w", kind, list[str]()), *LAYERS, *nodes]:
        proto.graph_def.node.add(name=name, op=op, input=inputs)
    graph = Nodes(proto.graph_def.node)
    kernels = {name: graph.target(graph.inputs[name][0]) for name in graph.inputs if "/update_" in name}
    return late_read(
        graph, *({n: v for n, v in kernels.items() if ("Other/" in n) is other} for other in (False, True))
    )


def test_an_update_that_waits_for_no_other_gradient_is_told() -> None:
    assert f"{DOWN!r} reads 'w' for the gradient of another variable, and {MOVE!r} does not wait for it" in str(
        _said(AT_ONCE)
    )


@pytest.mark.parametrize("nodes", [GATED, CLIPPED])
def test_gates_and_norms_of_all_gradients_hold_updates_back(nodes: list[Node]) -> None:
    assert _said(nodes) is None


@pytest.mark.parametrize(
    ("more", "late"),
    [
        ([], False),  # a program may run each for itself
        ([("train", "NoOp", ["^SGD/update_v/ApplyGradientDescent", "^Other/update_w/ApplyGradientDescent"])], True),
    ],
)
def test_optimizers_that_step_together_hold_each_other_back(more: list[Node], late: bool) -> None:
    other = [(BACK, "MatMul", ["hidden", "error"]), (f"Other{MOVE[3:]}", "ApplyGradientDescent", ["w", "rate", BACK])]
    assert bool(_said([*other, *more])) is late
    waits = [other[0], (other[1][0], other[1][1], [*other[1][2], f"^{DOWN}"])]
    assert _said([*waits, *more]) is None


def test_a_resource_is_copied_before_it_moves() -> None:
    assert _said(AT_ONCE, "VarHandleOp") is None


def test_what_reads_a_variable_through_a_reshape_reads_it() -> None:
    turned = [("flat", "Reshape", ["w/read", "shape"]), ("loss", "Sum", ["flat", "0"])]
    late = [*turned, (BACK, "MatMul", ["hidden", "error"]), (MOVE, "ApplyGradientDescent", ["w", "rate", BACK])]
    kernel = ("SGD/update_u/ApplyGradientDescent", "ApplyGradientDescent", ["u", "rate", "loss"])
    gates = [("gated", "Identity", [BACK, f"^{DOWN}"]), (MOVE, "ApplyGradientDescent", ["w", "rate", "gated"])]
    assert _said([*late[:3], *gates]) is None
    assert "'loss' reads 'w'" in str(_said([*late[:3], *gates, ("u", "VariableV2", []), kernel]))


def test_what_loops_is_followed_once() -> None:
    loop: list[Node] = [
        ("enter", "Enter", [BACK]),
        ("turn", "Merge", ["enter", "next"]),
        ("next", "NextIteration", ["step"]),
        ("step", "MatMul", ["turn", "w/read"]),
        ("sum", "Exit", ["turn"]),
    ]
    back = (BACK, "MatMul", ["hidden", "error"])
    assert "'gradients/MatMul_grad/MatMul' reads 'w'" in str(
        _said([back, *loop, (MOVE, "ApplyGradientDescent", ["w", "rate", "sum"])])
    )
    gated: list[Node] = [("all", "Identity", ["sum", f"^{DOWN}"]), (MOVE, "ApplyGradientDescent", ["w", "rate", "all"])]
    assert _said([back, *loop, *gated]) is None


def test_a_checkpoint_of_such_a_program_is_approximate(tmp_path: Path) -> None:
    source = SCOPED / "momentum" / "source"
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    meta = tmp_path / "model.ckpt.meta"
    proto = protos.SaverMetaGraph.FromString(meta.read_bytes())
    one, other = [node for node in proto.graph_def.node if node.op == "ApplyMomentum"][:2]
    proto.graph_def.node.add(name="late", op="MatMul", input=[one.input[0], one.input[0]])
    other.input.append("^late")
    meta.write_bytes(proto.SerializeToString())
    state = migrate.read(tmp_path / "model.ckpt")
    assert state.fidelity == "approximate"
    assert f"'late' reads {one.input[0]!r} for the gradient of another variable" in " ".join(state.reasons)


@pytest.mark.parametrize(
    ("case", "has_warning"),
    [
        ("tf1.2.1-convolved-words", True),
        ("keras2.2.5-masked-output", True),
        ("keras2.3.1-activity", False),
        ("tf1.10.1-hinge", False),
    ],
)
def test_a_file_of_native_keras_says_that_its_steps_may_have_read_weights_late(case: str, has_warning: bool) -> None:
    source = FEATURES / f"{case}.h5"
    assert any("moved already, by chance" in text for text in migrate.read(source).warnings) is has_warning
