"""What kernels of tf.train take in: gradients, which programs may have changed, and slots of their own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import migrate
from migrate.errors import ContradictionError
from migrate.graphs.gradients import Gradients
from migrate.graphs.nodes import Nodes
from optim.bytes import protos
from optim.errors import HyperparameterError
from tests.places import SCOPED

SAVED = SCOPED / "momentum" / "source"
GRADIENT = "tower/gradients/tower/MatMul_grad/MatMul_1"
PRODUCT = "tower/gradients/tower/MatMul_grad/Mul"
FORWARD = [("tower/MatMul", "MatMul", list[str]()), ("out/MatMul", "MatMul", list[str]())]
Node = tuple[str, str, list[str]]

TOWERS: list[Node] = [
    ("first", "ExpandDims", [GRADIENT, "0"]),
    ("second", "ExpandDims", ["losses/out/MatMul_grad/MatMul_1", "0"]),
    ("both", "ConcatV2", ["first", "second", "0"]),
    ("given", "Mean", ["both", "0"]),
]
GATHERED: list[Node] = [
    ("sum", "VariableV2", []),
    ("zero", "Assign", ["sum", "zeros"]),
    ("zeros", "ZerosLike", ["sum"]),
    ("more", "AssignAdd", ["sum", GRADIENT]),
    ("given", "RealDiv", ["sum", "2"]),
]
FIRST, SECOND = "tower/gradients/Fill", "losses/out/MatMul_grad/MatMul_1"
SCALE: list[Node] = [(FIRST, "Fill", ["shape", "1"]), ("scaled", "Mul", [FIRST, "128"])]
BEHIND: Node = (GRADIENT, "MatMul", ["x", "scaled"])
SCALED: list[Node] = [*SCALE, BEHIND, ("given", "RealDiv", [GRADIENT, "128"])]
SCALED_BY_VARIABLE: list[Node] = [
    ("scale", "VarHandleOp", []),
    ("read", "ReadVariableOp", ["scale"]),
    (FIRST, "Fill", ["shape", "1"]),
    ("scaled", "Mul", ["read", FIRST]),
    BEHIND,
    ("by", "RealDiv", ["1", "read"]),
    ("given", "Mul", [GRADIENT, "by"]),
]
TAKEN: list[Node] = [
    ("sum", "ConditionalAccumulator", []),
    ("give", "AccumulatorApplyGradient", ["sum", "step", GRADIENT]),
    ("given", "AccumulatorTakeGradient", ["sum", "1"]),
]
GUARDED: list[Node] = [
    ("bad", "IsNan", [GRADIENT]),
    ("zeros", "ZerosLike", [GRADIENT]),
    ("given", "Select", ["bad", "zeros", GRADIENT]),
]
ROWS: list[Node] = [
    ("tower/gradients/tower/MatMul_grad/Reshape", "Reshape", ["rows", "shape"]),
    ("all", "ConcatV2", ["tower/gradients/tower/MatMul_grad/Reshape", "0"]),
    ("once", "Unique", ["all"]),
    ("size", "StridedSlice", ["shape"]),
    ("given", "UnsortedSegmentSum", [GRADIENT, "once", "size"]),
]
"""As bilm-tf adds up the rows of several towers."""
WORKERS: list[Node] = [("reduced", "HorovodAllreduce", [GRADIENT]), ("given", "RealDiv", ["reduced", "4"])]
AVERAGED: list[Node] = [
    ("mean", "VariableV2", []),
    ("kept", "Mul", ["mean", "0.9"]),
    ("next", "AddV2", ["kept", GRADIENT]),
    ("keep", "Assign", ["mean", "next"]),
]
FED: list[Node] = [("feed", "Placeholder", []), ("given", "Identity", ["feed"])]


def doubts(nodes: list[Node], dtype: int = 1, field: str | None = "float_val") -> dict[str, str]:
    """Return the doubts about the gradient `given`.

    A name that is a number is that constant, in this field of its tensor.
    """
    proto = protos.SaverMetaGraph()
    numbers = {i for _, _, inputs in nodes for i in inputs if i.lstrip("-").replace(".", "").isdigit()}
    for name, op, inputs in [*FORWARD, *nodes, *((number, "Const", []) for number in sorted(numbers))]:
        node = proto.graph_def.node.add(name=name, op=op, input=inputs)
        if op == "Const":
            tensor = node.attr.add(key="value").value.tensor
            tensor.dtype = dtype
            if field is not None:
                getattr(tensor, field).append(int(name) if dtype == 3 else float(name))
    outside: dict[str, str] = {}
    assert Gradients(Nodes(proto.graph_def.node), ["w"]).clipping("w", "given", outside) is None
    return outside


@pytest.mark.parametrize(("dtype", "field"), [(1, "float_val"), (2, "double_val"), (3, "int_val"), (19, None)])
def test_a_constant_that_is_added_to_a_gradient_is_said_whatever_its_dtype(dtype: int, field: str | None) -> None:
    """Those of float16 (19) are not read, so that nobody knows that they are zeros."""
    added: list[Node] = [(GRADIENT, "MatMul", []), ("given", "AddV2", [GRADIENT, "2"])]
    assert doubts(added, dtype, field) == {"gradients": "gradients pass through '2' before they reach the optimizer"}


@pytest.mark.parametrize("nodes", [TOWERS, GATHERED, SCALED, SCALED_BY_VARIABLE, TAKEN, GUARDED, ROWS, WORKERS, FED])
def test_what_gives_the_gradient_of_the_loss_is_passed_over(nodes: list[Node]) -> None:
    assert doubts(nodes if BEHIND in nodes else [(GRADIENT, "MatMul", []), *nodes]) == {}


@pytest.mark.parametrize("fed", [FED, [*FED[:1], *GATHERED[:3], ("more", "AssignAdd", ["sum", "feed"]), GATHERED[4]]])
def test_gradients_that_a_program_feeds_and_changes_in_the_same_graph_are_doubted(fed: list[Node]) -> None:
    """As rl-coach does, which fetches clipped ones and feeds them. A norm alone, as for a summary, changes none."""
    measured: list[Node] = [(GRADIENT, "MatMul", []), ("half", "L2Loss", [GRADIENT]), *fed]
    assert doubts(measured) == {}
    message = "'clipped' changes gradients, and the program feeds 'feed' with some"
    assert doubts([*measured, ("clipped", "Mul", [GRADIENT, "scale"])]) == {"gradients": message}


@pytest.mark.parametrize(
    ("nodes", "strange"),
    [
        ([("given", "Mul", [GRADIENT, "10"])], "given"),
        ([("given", "RealDiv", [GRADIENT, "128"])], "given"),  # a scale that the loss was not multiplied by
        ([("given", "RealDiv", ["2", GRADIENT])], "given"),
        ([("noise", "RandomStandardNormal", ["shape"]), ("given", "Add", [GRADIENT, "noise"])], "noise"),
        ([("w", "VariableV2", []), ("d", "Mul", ["w", "0.1"]), ("given", "AddV2", [GRADIENT, "d"])], "w"),
        ([("mean", "Mean", [GRADIENT, "0"]), ("given", "Sub", [GRADIENT, "mean"])], "given"),
        ([("given", "Sign", [GRADIENT])], "given"),
        ([("ids", "Tanh", ["x"]), ("given", "UnsortedSegmentSum", [GRADIENT, "ids", "2"])], "given"),  # other rows
        ([("bad", "IsFinite", [GRADIENT]), *GUARDED[1:]], "given"),  # zeros where it is finite
        ([*GUARDED[:2], ("given", "Select", ["bad", GRADIENT, "zeros"])], "given"),
        ([("sum", "Add", [GRADIENT, "w"]), ("given", "ClipByValue", ["sum", "-1", "1"]), ("w", "Tanh", [])], "w"),
        ([*GATHERED[:3], ("more", "AssignAdd", ["sum", "t"]), ("t", "Tanh", [GRADIENT]), GATHERED[4]], "t"),
        ([*GATHERED[:4], ("given", "Mul", ["sum", "3"])], "given"),
        ([("given", "AddN", [GRADIENT, GRADIENT])], "given"),
        ([("both", "AddN", [GRADIENT, SECOND]), ("given", "Mul", ["both", "3"])], "given"),
        ([("less", "RealDiv", [SECOND, "4"]), ("given", "AddV2", [GRADIENT, "less"])], "given"),
        ([("a", "VariableV2", []), ("near", "Mul", ["a", "-0.1"]), ("given", "AddV2", [GRADIENT, "near"])], "a"),
        ([GATHERED[0], *GATHERED[3:]], "sum"),
        ([*AVERAGED, ("given", "Identity", ["mean"])], "mean"),
        ([*SCALE, (GRADIENT, "MatMul", ["scaled", FIRST]), ("given", "RealDiv", [GRADIENT, "128"])], "given"),
        ([*SCALE[:1], (PRODUCT, "Mul", [FIRST, "x"]), ("given", "RealDiv", [PRODUCT, "0.5"])], "given"),
        (
            [*SCALED_BY_VARIABLE[:4], BEHIND, ("other", "VarHandleOp", []), ("given", "RealDiv", [GRADIENT, "other"])],
            "given",
        ),
        (
            [("v", "VariableV2", []), ("tower/MatMul", "MatMul", ["x", "v"]), ("given", "Identity", [GRADIENT])],
            GRADIENT,
        ),
    ],
)
def test_what_else_is_done_to_a_gradient_is_said(nodes: list[Node], strange: str) -> None:
    outside = doubts(nodes if GRADIENT in {name for name, *_ in nodes} else [(GRADIENT, "MatMul", []), *nodes])
    what = "clipping" if nodes[-1][1] == "Select" else "gradients"  # which may be a limit
    assert outside == {what: f"gradients pass through {strange!r} before they reach the optimizer"}


BY_AVERAGE: list[Node] = [
    ("square", "Mul", [GRADIENT, GRADIENT]),
    ("sum", "Sum", ["square", "0"]),
    ("inverse", "Rsqrt", ["sum"]),
    ("mean", "Mul", ["inverse", "15"]),
    ("least", "RealDiv", ["1", "0.5"]),
    ("shorter", "Minimum", ["mean", "least"]),
    ("longer", "Mul", [GRADIENT, "0.5"]),
    ("given", "Mul", ["longer", "shorter"]),
]
"""`tf.clip_by_average_norm(gradient, 0.5)` of a gradient of 15 numbers."""


@pytest.mark.parametrize(
    ("nodes", "strange"),
    [
        ([("short", "Minimum", [GRADIENT, "0.5"]), ("given", "Mul", ["short", "2"])], "short"),
        ([*GATHERED[:3], ("more", "AssignAdd", ["sum", "t"]), ("t", "ClipByValue", [GRADIENT, "-1", "1"])], "t"),
        (BY_AVERAGE, "given"),
        ([("given", "ClipByValue", [GRADIENT, "0", "1"])], "given"),
    ],
)
def test_a_limit_that_is_not_all_that_is_done_is_none_of_the_optimizer(nodes: list[Node], strange: str) -> None:
    """One before a multiplier, one of each batch that is gathered, one by a gradient's size, and one of two limits."""
    ends = nodes if nodes[-1][0] == "given" else [*nodes, GATHERED[4]]
    outside = doubts([(GRADIENT, "MatMul", []), *ends])
    assert outside == {"gradients": f"gradients pass through {strange!r} before they reach the optimizer"}


def test_a_multiplier_of_one_layer_is_never_exact(tmp_path: Path) -> None:
    """As `gradient_multipliers` of slim and of `optimize_loss` have it."""
    shutil.copytree(SAVED, tmp_path / "copy")
    prefix, meta = tmp_path / "copy" / "model.ckpt", tmp_path / "copy" / "model.ckpt.meta"
    assert migrate.read(prefix).fidelity == "exact"
    proto = protos.SaverMetaGraph.FromString(meta.read_bytes())
    kernel = next(node for node in proto.graph_def.node if node.op.endswith("ApplyMomentum"))
    proto.graph_def.node.add(name="ten/x", op="Const")
    proto.graph_def.node.add(name="ten", op="Mul", input=[kernel.input[3], "ten/x"])
    kernel.input[3] = "ten"
    meta.write_bytes(proto.SerializeToString())
    state = migrate.read(prefix)
    assert state.fidelity == "approximate"
    assert "gradients pass through 'ten' before they reach the optimizer" in " ".join(state.reasons)
    for limit in (None, 1.0):  # it does not clip, and scales
        assert migrate.read(prefix, overrides={"clipnorm": limit}).fidelity == "approximate"
    assert migrate.read(prefix, overrides={"gradients": "program"}).fidelity == "exact"
    with pytest.raises(HyperparameterError, match="it takes program"):
        migrate.read(prefix, overrides={"gradients": "source"})


def _exchanged(a: int, b: int) -> Callable[[Any], None]:
    def change(kernel: Any) -> None:
        first, second = str(kernel.input[a]), str(kernel.input[b])
        kernel.input[a], kernel.input[b] = second, first

    return change


def _without(last: int) -> Callable[[Any], None]:
    def change(kernel: Any) -> None:
        del kernel.input[last:]

    return change


ORDER, OWN = "reads its slots in another order than their names show", "and that variable's slots"


@pytest.mark.parametrize(
    ("name", "op", "change", "reason"),
    [
        ("adam", "ApplyAdam", _exchanged(1, 2), ORDER),
        ("adam", "ApplyAdam", _exchanged(3, 4), ORDER),
        ("adam", "ApplyAdam", _exchanged(0, 1), OWN),
        ("adam", "ApplyAdam", _exchanged(1, 9), OWN),
        ("loss", "ApplyRMSProp", _exchanged(1, 2), ORDER),
        ("momentum", "ApplyMomentum", _exchanged(1, 3), OWN),
        ("momentum", "ApplyMomentum", _without(4), "lacks this input"),
    ],
)
def test_a_kernel_that_reads_something_else_is_never_exact(
    name: str, op: str, change: Callable[[Any], None], reason: str, tmp_path: Path
) -> None:
    _refuses(name, tmp_path, lambda nodes: change(next(n for n in nodes if n.op == op)), reason)


def test_powers_that_are_not_multiplied_are_never_exact(tmp_path: Path) -> None:
    def change(nodes: Any) -> None:
        next(n for n in nodes if n.name == "train/Adam/mul").op = "Add"

    _refuses("adam", tmp_path, change, "'train/beta1_power' is not multiplied by its beta by exactly one op")


def test_powers_of_another_number_than_the_kernels_beta_are_never_exact(tmp_path: Path) -> None:
    def change(nodes: Any) -> None:
        raises = next(n for n in nodes if n.name == "train/Adam/mul")
        raises.input[1] = "train/Adam/beta2"

    _refuses("adam", tmp_path, change, "'train/beta1_power' is not multiplied by its beta by exactly one op")


def test_powers_that_are_raised_before_a_kernel_reads_them_are_never_exact(tmp_path: Path) -> None:
    def change(nodes: Any) -> None:
        raises = next(n for n in nodes if n.name == "train/Adam/mul")
        kept = [input_name for input_name in raises.input if not input_name.startswith("^")]
        raises.ClearField("input")
        raises.input.extend(kept)

    _refuses("adam", tmp_path, change, "'train/Adam/Assign' does not wait for")


def _refuses(name: str, folder: Path, change: Callable[[Any], None], reason: str) -> None:
    shutil.copytree(SCOPED / name / "source", folder / "copy")
    prefix, meta = folder / "copy" / "model.ckpt", folder / "copy" / "model.ckpt.meta"
    assert migrate.read(prefix).fidelity == "exact"
    proto = protos.SaverMetaGraph.FromString(meta.read_bytes())
    change(proto.graph_def.node)
    meta.write_bytes(proto.SerializeToString())
    state = migrate.read(prefix)
    assert state.fidelity == "approximate"
    assert reason in " ".join(state.reasons)


@pytest.mark.parametrize(
    ("name", "node", "op"),
    [
        ("clipped", "train/clip_by_norm/Maximum", "Minimum"),
        ("clipped", "train/clip_by_norm/Greater", "Less"),
        ("clipped", "train/clip_by_norm/Sum", "Mean"),
        ("clipped", "train/clip_by_norm/Sqrt", "Square"),
        ("clipped", "train/clip_by_norm/mul_1", "Add"),
        ("clipped", "train/clip_by_norm/truediv", "Mul"),
        ("inverse", "train/clip_by_norm/Minimum", "Maximum"),
        ("inverse", "train/clip_by_norm/Rsqrt", "Sqrt"),
        ("inverse", "train/clip_by_norm/mul", "Add"),
    ],
)
def test_what_is_not_quite_clipping_by_the_norm_is_said(name: str, node: str, op: str, tmp_path: Path) -> None:
    def change(nodes: Any) -> None:
        next(n for n in nodes if n.name == node).op = op

    _refuses(name, tmp_path, change, "clipping: ")


def test_a_norm_of_each_column_is_not_that_of_a_gradient(tmp_path: Path) -> None:
    """As of `tf.clip_by_norm(gradient, limit, axes=[0])`."""

    def change(nodes: Any) -> None:
        axes = next(n for n in nodes if n.name == "train/clip_by_norm/Const").attr
        tensor = next(a.value.tensor for a in axes if a.key == "value")
        tensor.tensor_shape.dim[0].size, tensor.tensor_content = 1, bytes(4)

    _refuses("clipped", tmp_path, change, "gradients: ")


@pytest.mark.parametrize("scope", ["clip_grad", "train/noisy_grad", "train/gradients/tower/my_grad"])
def test_a_scope_that_is_called_like_one_of_the_backward_pass_is_none(scope: str) -> None:
    outside = doubts(
        [(GRADIENT, "MatMul", []), (f"{scope}/x", "Tanh", [GRADIENT]), ("given", "Identity", [f"{scope}/x"])]
    )
    assert f"'{scope}/x'" in outside["gradients"]


@pytest.mark.parametrize("name", [f"{GRADIENT}_noisy", f"{GRADIENT}_clipped/Tanh", "train/w_grad/Tanh"])
def test_an_op_that_is_called_after_a_gradient_is_none(name: str) -> None:
    """`tf.tanh(g, name=g.op.name + "_noisy")`, and a scope called after a variable, which has no op `w_grad`."""
    nodes: list[Node] = [("w", "VarHandleOp", []), (GRADIENT, "MatMul", []), (name, "Tanh", [GRADIENT])]
    assert f"{name!r}" in doubts([*nodes, ("given", "Identity", [name])])["gradients"]


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize(("first", "second"), [(1, 19), (1, 14), (2, 1)])
def test_gradients_that_are_rounded_on_their_way_are_said(first: int, second: int, clips: bool) -> None:
    """As `hvd.Compression.fp16` does; 1, 2, 14 and 19 are float32, float64, bfloat16 and float16."""
    proto = protos.SaverMetaGraph()
    end = [("given", "ClipByValue", ["wide", "-1", "1"]), *[(n, "Const", []) for n in ("-1", "1")]]
    for name, op, inputs in [
        *FORWARD,
        (GRADIENT, "MatMul", []),
        ("sent", "Cast", [GRADIENT]),
        ("sum", "HorovodAllreduce", ["sent"]),
        ("wide", "Cast", ["sum"]),
        *(end if clips else [("given", "Identity", ["wide"])]),
    ]:
        node = proto.graph_def.node.add(name=name, op=op, input=inputs)
        kinds = {"sent": (first, second), "wide": (second, first)}.get(name, ())
        for key, kind in zip(("SrcT", "DstT"), kinds, strict=False):
            node.attr.add(key=key).value.type = kind
        if op == "Const":
            tensor = node.attr.add(key="value").value.tensor
            tensor.dtype = 1
            tensor.float_val.append(float(name))
    outside: dict[str, str] = {}
    limit = Gradients(Nodes(proto.graph_def.node), ["w"]).clipping("w", "given", outside)
    assert outside == {"gradients": "'sent' rounds gradients before they reach the optimizer"}
    assert limit is None


def test_a_sum_that_a_program_makes_in_a_scope_called_gradients_is_its_own() -> None:
    noise: list[Node] = [("noise", "RandomStandardNormal", ["shape"]), ("gradients/AddN", "AddN", [GRADIENT, "noise"])]
    assert (
        "'noise'" in doubts([(GRADIENT, "MatMul", []), *noise, ("given", "Identity", ["gradients/AddN"])])["gradients"]
    )


def test_gradients_in_a_graph_that_was_imported_into_a_scope() -> None:
    name = "copy/train/gradients/tower/MatMul_2_grad/MatMul_1"
    nodes: list[Node] = [("copy/tower/MatMul_2", "MatMul", []), (name, "MatMul", []), ("given", "Identity", [name])]
    assert doubts(nodes) == {}


def test_a_gradient_is_that_of_the_op_with_the_longest_name() -> None:
    """`gradients/a/Exp_grad` may by its name be of `Exp`, too, which another variable has."""
    ops: list[Node] = [("v", "VarHandleOp", []), ("Exp", "Exp", ["v"]), ("a/Exp", "Exp", ["x"])]
    assert (
        doubts([*ops, ("gradients/a/Exp_grad/mul", "Mul", []), ("given", "Identity", ["gradients/a/Exp_grad/mul"])])
        == {}
    )


def test_the_name_of_a_scope_clips_nothing() -> None:
    """A program may call its own `clip_by_norm`, and `tf.clip_by_average_norm` is another."""
    for scope in ("clip_by_norm", "clip_by_noise", "clip_by_average_norm"):
        outside = doubts(
            [(GRADIENT, "MatMul", []), (f"{scope}/x", "Tanh", [GRADIENT]), ("given", "Identity", [f"{scope}/x"])]
        )
        assert f"'{scope}/x'" in outside["gradients"]


CLIPPING = "train/OptimizeLoss/clip_by_global_norm/"


@pytest.mark.parametrize(
    ("case", "name", "op"),
    [
        ("loss", CLIPPING + "Minimum", "Maximum"),
        ("loss", CLIPPING + "mul", "Add"),
        ("loss", CLIPPING + "mul_1", "Add"),
        ("loss", CLIPPING + "Select", "Merge"),
        ("loss", CLIPPING + "truediv", "Mul"),
        ("loss", "train/OptimizeLoss/global_norm_1/Sum", "Mean"),
        ("loss", "train/OptimizeLoss/global_norm_1/L2Loss", "Sum"),
        ("loss", "train/OptimizeLoss/global_norm_1/global_norm", "Square"),
        ("limited", "Minimum", "Maximum"),
        ("limited", "Minimum/x", "VariableV2"),
        ("limited", "truediv", "Mul"),
        ("limited", "mul_4", "Add"),
        ("limited_below", "Maximum", "Minimum"),
        ("limited_below", "Maximum/x", "VariableV2"),
        ("scaled_clipped", "IsFinite", "IsNan"),
    ],
)
def test_what_is_not_quite_clipping_by_the_global_norm_is_said(case: str, name: str, op: str, tmp_path: Path) -> None:
    def change(nodes: Any) -> None:
        next(n for n in nodes if n.name == name).op = op

    _refuses(case, tmp_path, change, "before they reach the optimizer, which dtopt does not understand")


def test_the_rule_of_another_class_is_never_exact_under_the_name_of_one(tmp_path: Path) -> None:
    def change(nodes: Any) -> None:
        for node in nodes:
            if node.op == "ApplyGradientDescent":
                node.op = "ApplyProximalGradientDescent"

    shutil.copytree(SCOPED / "pieces" / "source", tmp_path / "copy")
    meta = tmp_path / "copy" / "model.ckpt.meta"
    proto = protos.SaverMetaGraph.FromString(meta.read_bytes())
    change(proto.graph_def.node)
    meta.write_bytes(proto.SerializeToString())
    source, hint = tmp_path / "copy" / "model.ckpt", {"class_name": "SGD", "config": {"learning_rate": 0.05}}
    with pytest.raises(ContradictionError, match=r"graph specifies ProximalGradientDescentOptimizer"):
        migrate.read(source, optimizer_config=hint)
    state = migrate.read(source, optimizer_config=hint, overrides={"class_name": "SGD", "clipnorm": None})
    assert state.fidelity == "approximate"
    assert "updates a variable by the rule of another class" in " ".join(state.reasons)


@pytest.mark.parametrize(
    ("name", "through"), [("limited_parts", "train/clip_by_norm/truediv"), ("scaled_rows", "train/mul")]
)
def test_what_is_done_to_gradients_of_parts_and_of_rows_is_said(name: str, through: str) -> None:
    """The norm of a part is not that of its variable, and Adam moves a table without a kernel."""
    state = migrate.read(SCOPED / name / "source" / "model.ckpt")
    assert state.fidelity == "approximate"
    assert state.reasons[0].startswith(f"gradients: gradients pass through {through!r}"), state.reasons
