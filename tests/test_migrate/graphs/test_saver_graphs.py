"""What the graph beside a tf.train.Saver checkpoint says of its updates, and what damaged ones do not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from migrate.errors import AmbiguousError, ContradictionError, MissingHintError
from migrate.graphs import native_keras, optimizer_v2, saver, schedules, sparse_rows, tf_train
from migrate.graphs.gradients import Gradients
from migrate.graphs.writers import alone_written
from migrate.readers.savers import optimizers as saver_optimizers
from optim.bytes import protos
from tests import adversary
from tests.helpers.bundles import rewritten
from tests.places import CASE_FOLDER, CORPUS, SCOPED, WILD
from tests.test_migrate.graphs.small_graphs import small_graph


def test_slots_that_two_updates_read_have_no_owner() -> None:
    graph = saver.SaverGraph(reads={"a": frozenset({"s0", "s1", "a"}), "b": frozenset({"s2"})})
    assert graph.owners(["s0", "s1", "s2"], ["a", "b"]) == {"s0": "a", "s1": "a", "s2": "b"}
    mixed = saver.SaverGraph(reads={"a": frozenset({"s0"}), "b": frozenset({"s0"})})
    assert mixed.owners(["s0"], ["a", "b"]) is None


def test_decay_in_the_updates_of_tf_contrib_is_no_plain_adam() -> None:
    source = WILD / "tf115-f-contrib-adamw" / "source" / "model.ckpt-4"
    for hint in (None, {"class_name": "AdamWOptimizer", "config": {"weight_decay": 0.001}}):
        state = migrate.read(source, optimizer_config=hint)
        assert state.fidelity == "approximate"
        assert "weights decay while gradients are computed" in " ".join(state.reasons)
        # Each step subtracts weight_decay * p whatever the learning rate; optim's is multiplied by that.
        rate = state.hyperparameters["learning_rate"]
        assert state.hyperparameters["weight_decay"] * rate == pytest.approx(0.001, rel=1e-6)
        assert state.hyperparameters["weight_decay_exclude"] == []
    with pytest.raises(ContradictionError, match="weight_decay_per_step"):
        migrate.read(source, optimizer_config={"class_name": "AdamWOptimizer", "config": {"weight_decay": 0.002}})


LAZY = [("Adam/update_t/ScatterSub", "ScatterSub", ["t", "rows", "step"])]
TABLE = "Adam/update_t"
ROWS = [
    ("Adam/1-0.9", "Sub", ["1", "0.9"]),
    ("Adam/1-0.999", "Sub", ["1", "0.999"]),
    (f"{TABLE}/keep", "Mul", ["t/Adam", "0.9"]),
    (f"{TABLE}/Assign", "Assign", ["t/Adam", f"{TABLE}/keep"]),
    (f"{TABLE}/add", "Mul", ["step", "Adam/1-0.9"]),
    (f"{TABLE}/ScatterAdd", "ScatterAdd", ["t/Adam", "rows", f"{TABLE}/add", f"^{TABLE}/Assign"]),
    (f"{TABLE}/keep_1", "Mul", ["t/Adam_1", "0.999"]),
    (f"{TABLE}/Assign_1", "Assign", ["t/Adam_1", f"{TABLE}/keep_1"]),
    (f"{TABLE}/square", "Mul", ["step", "step"]),
    (f"{TABLE}/add_1", "Mul", [f"{TABLE}/square", "Adam/1-0.999"]),
    (f"{TABLE}/ScatterAdd_1", "ScatterAdd", ["t/Adam_1", "rows", f"{TABLE}/add_1", f"^{TABLE}/Assign_1"]),
    (f"{TABLE}/left", "Sub", ["1", "beta1_power"]),
    (f"{TABLE}/left_1", "Sub", ["1", "beta2_power"]),
    (f"{TABLE}/root", "Sqrt", [f"{TABLE}/left_1"]),
    (f"{TABLE}/longer", "Mul", ["0.01", f"{TABLE}/root"]),
    (f"{TABLE}/rate", "RealDiv", [f"{TABLE}/longer", f"{TABLE}/left"]),
    (f"{TABLE}/Sqrt", "Sqrt", [f"{TABLE}/ScatterAdd_1"]),
    (f"{TABLE}/spread", "AddV2", [f"{TABLE}/Sqrt", "1e-8"]),
    (f"{TABLE}/truediv", "RealDiv", [f"{TABLE}/mul", f"{TABLE}/spread"]),
    (f"{TABLE}/AssignSub", "AssignSub", ["t", f"{TABLE}/truediv"]),
]
"""`_apply_sparse_shared` of tf.train's Adam (training/adam.py 1.15)."""
EAGER = [*ROWS, (f"{TABLE}/mul", "Mul", [f"{TABLE}/rate", f"{TABLE}/ScatterAdd"])]
AHEAD = [
    *ROWS,
    (f"{TABLE}/mul", "Mul", [f"{TABLE}/rate", f"{TABLE}/ahead"]),
    (f"{TABLE}/ahead", "AddV2", [f"{TABLE}/ScatterAdd", "step"]),
]
"""As a subclass may have it."""


def other(name: str, *inputs: str, op: str = "") -> list[Any]:
    """EAGER with another op or other inputs in one place."""
    return [(n, op or o, list(inputs) or i) if n == f"{TABLE}/{name}" else (n, o, i) for n, o, i in EAGER]


HALF_LAZY = [*LAZY, ("Adam/update_t/Assign", "Assign", ["t/Adam", "step"])]
"""As NadamOptimizer of tf.contrib.opt has it."""
DECAYED = [
    ("Adam/update_w/mul", "Mul", ["0.5", "w"]),
    ("Adam/update_w/AssignSub", "AssignSub", ["w", "Adam/update_w/mul"]),
]
POWERS = ("beta1_power", "beta2_power")
RAISED = [
    node
    for power, beta in zip(POWERS, ("0.9", "0.999"), strict=True)
    for node in (
        (f"Adam/{beta}", "Mul", [power, beta, "^Adam/update_w/ApplyAdam", "^Adam/update_t/AssignSub"]),
        (f"Adam/{power}", "Assign", [power, f"Adam/{beta}"]),
    )
]
OTHER = [("Adam/update_w/AssignSub", "AssignSub", ["w", "step"])]


def described(more: list[Any]) -> Any:
    variables = [(name, "VariableV2", []) for name in ("w", "t", "w/Adam", "w/Adam_1", "t/Adam", "t/Adam_1", *POWERS)]
    inputs = ["w", "w/Adam", "w/Adam_1", *POWERS, "0.01", "0.9", "0.999", "1e-8", "gradient"]
    constants = [(number, "Const", []) for number in ("0.01", "0.9", "0.999", "1e-8", "0.5", "1")]
    others = [(name, "Placeholder", []) for name in ("gradient", "rows", "step")]
    kernel = ("Adam/update_w/ApplyAdam", "ApplyAdam", inputs)
    graph = small_graph(*variables, *constants, *others, *RAISED, kernel, *more)
    for name, *_ in variables:
        shape = graph.by_name[name].attr.add(key="shape").value.shape
        for size in () if name in POWERS else (4, 2):
            shape.dim.add(size=size)
    return tf_train.describe(graph, {"Adam": {"w": (), "t": ()}})


@pytest.mark.parametrize(
    ("more", "class_name", "seen"),
    [
        ([], "AdamOptimizer", False),
        (EAGER, "AdamOptimizer", True),
        (LAZY, "LazyAdamOptimizer", True),
        ([*EAGER, *DECAYED], "AdamWOptimizer", True),
        ([*EAGER, *OTHER], "AdamOptimizer", False),
        ([*LAZY, *DECAYED], "LazyAdamOptimizer", False),
        (AHEAD, "AdamOptimizer", False),
        (other("ScatterAdd", f"{TABLE}/Assign", "rows", f"{TABLE}/add"), "AdamOptimizer", True),  # TF 1.0
        (other("add", "step", "Adam/1-0.999"), "AdamOptimizer", False),
        (other("rate", "0.01", f"{TABLE}/left"), "AdamOptimizer", False),
        (other("square", "step", "t"), "AdamOptimizer", False),
        (other("ScatterAdd", "t/Adam", "rows", f"{TABLE}/add"), "AdamOptimizer", False),  # before it is set, or after
        (other("Assign", op="AssignAdd"), "AdamOptimizer", False),
        (HALF_LAZY, "LazyAdamOptimizer", False),
    ],
)
def test_what_updates_do_beside_their_kernel(more: list[Any], class_name: str, seen: bool) -> None:
    description = described(more)
    assert (description.class_name, description.seen) == (class_name, seen)
    if "AdamW" in class_name:
        assert description.config["exclude_from_weight_decay"] == ["^t(:0)?$"]


def test_a_table_with_a_rate_of_its_own_is_said() -> None:
    description = described(other("longer", "0.5", f"{TABLE}/root"))
    assert description.outside == {"learning_rate": "variables have different values of learning_rate"}


def test_a_graph_with_an_op_that_lacks_its_inputs_says_nothing(tmp_path: Path) -> None:
    source = CORPUS / "extra-tf10-adam-polynomial-saver" / "source"
    shutil.copytree(source, tmp_path / "copy")
    meta = tmp_path / "copy" / "model.ckpt.meta"
    proto = protos.SaverMetaGraph.FromString(meta.read_bytes())
    for node in proto.graph_def.node:
        if node.op == "ApplyAdam":
            del node.input[3:]
    meta.write_bytes(proto.SerializeToString())
    hint = {"class_name": "AdamOptimizer", "config": {"learning_rate": 0.05}}
    assert migrate.read(source / "model.ckpt").fidelity == "exact"
    assert migrate.read(tmp_path / "copy" / "model.ckpt", optimizer_config=hint).fidelity == "approximate"


@pytest.mark.parametrize("inputs", [[], ["w"]])
def test_an_assignment_that_lacks_its_inputs_changes_nothing(inputs: list[str]) -> None:
    graph = small_graph(("w", "VariableV2", []), ("global_step", "VariableV2", []), ("step", "AssignAdd", inputs))
    assert not list(graph.writes())
    assert not alone_written(graph)
    assert "nowhere" in schedules.never_counts(graph)
    assert native_keras.describe(graph, {}, ["w"], [], others=(), is_of_all=True) == ("", {}, {}, frozenset())


UPDATE = "Adam/Adam/update_w/"
GRADIENT = "Adam/gradients/gradients/MatMul_grad/MatMul_1"
CONSTRAINED = [("clip", "Minimum", ["w", "0.5"]), (f"{UPDATE}Assign", "AssignVariableOp", ["w", "clip"])]


def nonnegative(*after: str, op: str = "AssignVariableOp") -> list[Any]:
    """Keras's constraint NonNeg of `w`, as OptimizerV2 puts it behind its kernel."""
    reads = [(name, "ReadVariableOp", ["w", *after]) for name in ("now", "again")]
    sign = [("is", "GreaterEqual", ["again", "0"]), ("sign", "Cast", ["is"]), ("bound", "Mul", ["now", "sign"])]
    return [*reads, *sign, ("0", "Const", []), (f"{UPDATE}Assign", op, ["w", "bound"])]


LESS = [("half", "Mul", ["Adam/learning_rate", "0.5"]), ("less", "AssignVariableOp", ["Adam/learning_rate", "half"])]
HALVED = [("Adam/mul", "Mul", [GRADIENT, "0.5"])]


@pytest.mark.parametrize(
    ("gradient", "more", "class_name", "seen"),
    [
        (GRADIENT, [], "Adam", True),
        (GRADIENT, [("rate", "Mul", ["Adam/learning_rate", "0.5"])], None, False),
        (GRADIENT, [("rate", "ReadVariableOp", ["Adam/learning_rate"])], "Adam", True),
        ("fed", [("fed", "PlaceholderWithDefault", [GRADIENT])], "Adam", True),
        ("Adam/mul", HALVED, "Adam", False),
        (f"{UPDATE}mul", [(f"{UPDATE}mul", "Mul", [GRADIENT, "0.5"])], None, False),
        (GRADIENT, CONSTRAINED, None, True),
        (GRADIENT, nonnegative(f"^{UPDATE}ResourceApplyAdam"), "Adam", True),
        (GRADIENT, nonnegative(), None, True),
        (GRADIENT, nonnegative(f"^{UPDATE}ResourceApplyAdam", op="AssignAddVariableOp"), None, True),
        (GRADIENT, [("rate", "Cast", ["Adam/learning_rate"]), ("3", "Const", [])], "Adam", True),  # of int32
        (GRADIENT, [("rate", "Cast", ["Adam/learning_rate"]), ("1", "Const", [])], None, False),
        (GRADIENT, [("move", "AssignAddVariableOp", ["w", "0.5"])], "Adam", False),
        (GRADIENT, [("move", "ResourceScatterNdAdd", ["Adam/w/m", "0.5", "0.5"])], "Adam", False),
        (GRADIENT, [("read", "RestoreV2", []), ("give", "AssignVariableOp", ["w", "read"])], "Adam", True),
        ("Placeholder", [], "Adam", True),
        ("Placeholder", [("clipped", "Mul", [GRADIENT, "0.5"])], "Adam", False),
        (GRADIENT, LESS, "Adam", True),
    ],
)
def test_what_stands_around_the_kernel_of_an_optimizer_v2(
    gradient: str, more: list[Any], class_name: str | None, seen: bool
) -> None:
    names = ("w", "Adam/w/m", "Adam/w/v", "Adam/learning_rate", "Adam/beta_1", "Adam/beta_2", "powers", "Placeholder")
    variables = [(name, "Placeholder" if name[0] == "P" else "VarHandleOp", []) for name in names]
    rate = "rate" if any(name == "rate" for name, *_ in more) else "Adam/learning_rate"
    inputs = [*names[:3], "powers", "powers", rate, *names[4:6], "1e-7", gradient]
    constants = [(number, "Const", []) for number in ("1e-7", "0.5")]
    kernel = (f"{UPDATE}ResourceApplyAdam", "ResourceApplyAdam", inputs)
    graph = small_graph(*variables, *constants, ("MatMul", "MatMul", []), (GRADIENT, "MatMul", []), *more, kernel)
    for dtype in (name for name, *_ in more if name in ("1", "3")):
        graph.by_name["Adam/learning_rate"].attr.add(key="dtype").value.type = int(dtype)
    description = optimizer_v2.describe(graph, {"Adam/Adam": {"w": {"w", "Adam/w/m", "Adam/w/v"}}}, "Adam")
    assert (description.class_name, description.seen) == (class_name, seen)
    is_constrained = class_name is not None and any(name == f"{UPDATE}Assign" for name, *_ in more)
    assert description.constrained == ({"w"} if is_constrained else set())
    assert ("'move' also changes variables" in description.outside.get("updates", "")) == (
        "move" in [name for name, *_ in more]
    )
    assert ("gradients" in description.outside) == (
        gradient.endswith("mul") or "clipped" in [name for name, *_ in more]
    )
    assert ("'less' in the graph changes the variable" in description.outside.get("learning_rate", "")) == (
        "less" in [name for name, *_ in more]
    )


def test_a_limit_inside_another_scope_and_the_models_own_clipping() -> None:
    """Gradients of one optimizer may be clipped twice in one scope; what the model clips is no gradient."""
    gradient = "train/gradients/MatMul_grad/MatMul_1"
    clips = ("loss/clip_by_value", "ClipByValue", ["x", "-1.0", "1.0"])
    model = [("MatMul", "MatMul", ["x"]), clips, (gradient, "MatMul", ["loss/clip_by_value"])]
    once = [("train/clip_by_value", "ClipByValue", [gradient, "-1.0", "1.0"])]
    before = [("train/clip_by_norm", "Mul", [gradient])]
    twice = [*before, ("train/clip_by_value", "ClipByValue", ["train/clip_by_norm", "-1.0", "1.0"])]
    numbers = [(number, "Const", []) for number in ("-1.0", "1.0")]
    for nodes, limit in ((once, ("clipvalue", 1.0)), (twice, None)):
        outside: dict[str, str] = {}
        assert (
            Gradients(small_graph(*numbers, *model, *nodes), ["w"]).clipping("w", "train/clip_by_value", outside)
            == limit
        )
        assert bool(outside) == (limit is None)


TABLES = ("extra-tf115-nadam-table-saver", "extra-tf115-rmsprop-table-saver", "extra-tf115-adamax-table-saver")


@pytest.mark.parametrize("case", TABLES)
def test_formulas_in_a_graph_tell_the_class_and_the_next_steps_are_its_own(case: str, tmp_path: Path) -> None:
    """Of RMSprop without momentum, of Nadam, and of what Adamax does with a table, there is no kernel."""
    report = migrate.migrate_checkpoint(CORPUS / case / "source" / "model.ckpt", tmp_path / "out")
    assert report.fidelity == "exact"
    assert adversary.error(CORPUS / case, tmp_path / "out") < 1


@pytest.mark.parametrize(
    ("case", "node", "op"),
    [
        ("extra-tf115-nadam-table-saver", "Nadam/mul_3", "AddV2"),
        ("extra-tf115-nadam-table-saver", "Nadam/Nadam/update_net/kernel/Square", "Abs"),
        ("extra-tf115-rmsprop-table-saver", "RMSprop/RMSprop/update_net/kernel/Sqrt", "Square"),
        ("extra-tf115-rmsprop-table-saver", "RMSprop/RMSprop/update_net/table/Sqrt", "Square"),
        ("extra-tf115-adamax-table-saver", "Adamax/Adamax/update_net/table/Maximum", "Minimum"),
    ],
)
@pytest.mark.quick(1)
def test_another_op_in_a_formula_is_another_class(case: str, node: str, op: str) -> None:
    def described_class() -> str | None:
        graph = saver._of_proto(proto)
        assert graph.nodes is not None
        return optimizer_v2.describe(graph.nodes, graph.updates, node.partition("/")[0]).class_name

    proto = protos.SaverMetaGraph.FromString((CORPUS / case / "source" / "model.ckpt.meta").read_bytes())
    assert described_class() == json.loads((CORPUS / case / "case.json").read_text())["optimizer"]["class"]
    next(graph_node for graph_node in proto.graph_def.node if graph_node.name == node).op = op
    assert described_class() is None


@pytest.mark.breadth
def test_the_schedule_decay_of_nadam_is_one_with_the_decay_that_its_graph_and_variable_have() -> None:
    source = CORPUS / "extra-tf115-nadam-table-saver" / "source" / "model.ckpt"
    for key in ("schedule_decay", "decay"):
        with pytest.raises(ContradictionError, match=r"decay is 0\.1000.* and 0\.004"):
            migrate.read(source, optimizer_config={"class_name": "Nadam", "config": {key: 0.004}})
        assert migrate.read(source, overrides={key: 0.2}).hyperparameters["schedule_decay"] == 0.2
    with pytest.raises(ContradictionError, match="which are the same setting"):
        migrate.read(source, optimizer_config={"class_name": "Nadam", "config": {"schedule_decay": 0.1, "decay": 0.2}})


def test_a_graph_that_lacks_a_variable_of_the_checkpoint_is_never_a_mere_note(tmp_path: Path) -> None:
    """The key of a slot was altered: it became a variable, and the graph was left aside as another program's."""
    case = adversary.case(CORPUS / "extra-tf115-contrib-lars-saver")
    source = tmp_path / "source"
    shutil.copytree(case.folder, source)
    prefix, hints = source / case.source, {**case.hints, "overrides": {"clipnorm": None, "nesterov": False}}
    assert migrate.read(prefix, **hints).fidelity == "exact"
    with rewritten(prefix) as (numbers, _):
        slot = next(key for key in numbers if key.endswith("bias/LARSOptimizer"))
        numbers["Adam"] = numbers.pop(slot)
    state = migrate.read(prefix, **hints)
    assert state.fidelity == "approximate"
    assert "has no variable 'Adam': it is another program's, or the checkpoint is altered" in state.reasons[0]


@pytest.mark.parametrize(
    ("case", "gone"),
    [
        ("extra-tf115-rmsprop-clip-saver", "clip"),
        ("tf115-train-sgd-expdecay-convbn", "GradientDescent/update_conv/kernel/"),
    ],
)
def test_a_graph_without_nodes_that_others_need_tells_nothing(case: str, gone: str, tmp_path: Path) -> None:
    """Without those that clip there was no limit, and without an update its variable was not trained: both exact."""
    checkpoint = adversary.case(CORPUS / case)
    shutil.copytree(checkpoint.folder, tmp_path / "source")
    prefix = tmp_path / "source" / checkpoint.source
    assert migrate.read(prefix).fidelity == "exact"
    meta = Path(f"{prefix}.meta")
    proto = protos.SaverMetaGraph.FromString(meta.read_bytes())
    kept = [node for node in proto.graph_def.node if gone not in node.name]
    del proto.graph_def.node[:]
    proto.graph_def.node.extend(kept)
    meta.write_bytes(proto.SerializeToString())
    with pytest.raises(MissingHintError, match=rf"as .*\.meta lacks '[^']*{gone}.*', which .* needs: it is not as"):
        migrate.read(prefix)
    state = migrate.read(prefix, **checkpoint.hints)
    assert state.fidelity == "approximate"
    assert any("it is not as TensorFlow wrote it" in reason for reason in state.reasons)


@pytest.mark.parametrize(
    ("place", "one", "other"),
    [
        ("corpus/extra-tf115-sgd-nesterov-clip-saver", "dense/bias", "training/SGD/dense/bias/momentum"),
        ("wild/tf115-f-moving-average-optimizer", "net/out/b/Momentum", "net/out/b/ExponentialMovingAverage"),
    ],
)
def test_a_kernel_that_reads_another_slot_or_variable_than_names_tell(
    place: str, one: str, other: str, tmp_path: Path
) -> None:
    checkpoint = adversary.case(CASE_FOLDER / place)
    shutil.copytree(checkpoint.folder, tmp_path / "source")
    prefix, turn = tmp_path / "source" / checkpoint.source, {one: other, other: one}
    assert migrate.read(prefix, **checkpoint.hints).fidelity == "exact"
    meta = Path(f"{prefix}.meta")
    proto = protos.SaverMetaGraph.FromString(meta.read_bytes())
    for node in proto.graph_def.node:
        if not node.name.startswith("save/") and node.name.rpartition("/")[2] != "Assign":
            node.input[:] = [turn.get(input_name, input_name) for input_name in node.input]
    meta.write_bytes(proto.SerializeToString())
    state = migrate.read(prefix, **checkpoint.hints)
    assert state.fidelity == "approximate"
    assert "does not read the variable of its name and that variable's slots" in " ".join(state.reasons)


def test_a_saver_with_names_of_its_own(tmp_path: Path) -> None:
    """Its graph says which variable each is; without it they are called what they are not."""
    folder = CORPUS / "extra-tf115-momentum-own-keys-saver"
    hints: dict[str, Any] = {"optimizer_config": {"class_name": "MomentumOptimizer", "config": {}}}
    source = folder / "source" / "model.ckpt"
    report = migrate.migrate_checkpoint(source, tmp_path / "x", **hints)
    assert report.fidelity == "exact", report.reasons
    assert adversary.error(folder, tmp_path / "x") < 1.2
    state = migrate.read(source, **hints)
    assert state.slots["m"]["net/out/kernel"].stored_as == "mine/w/moved"
    shutil.copytree(folder / "source", tmp_path / "copy")
    meta = tmp_path / "copy" / "model.ckpt.meta"
    graph = protos.SaverMetaGraph.FromString(meta.read_bytes())
    bias = next(node for node in graph.graph_def.node if node.name == "net/hidden/bias")
    next(a for a in bias.attr if a.key == "shape").value.shape.dim[0].size = 8
    meta.write_bytes(graph.SerializeToString())
    hints["optimizer_config"]["config"] = {"learning_rate": 0.05, "momentum": 0.9, "use_nesterov": True}
    altered = migrate.read(tmp_path / "copy" / "model.ckpt", **hints)
    assert "gives what is saved as 'mine/first/bias' another shape" in "".join(altered.reasons)


def test_optimizers_are_as_one_only_where_they_do_the_same_with_variables_of_their_own() -> None:
    def choice(rate: str, second: str) -> saver_optimizers.Choice:
        nodes: list[Any] = [(name, "VariableV2", []) for name in ("a", "b", "a/M", "b/M", "a/M_1")]
        nodes += [(number, "Const", []) for number in ("0.5", "0.25", "0.9")]
        kernels = [("M", "a", "a/M", "0.5"), ("M_1", second, "a/M_1" if second == "a" else "b/M", rate)]
        nodes += [
            (f"{scope}/update_{v}/ApplyMomentum", "ApplyMomentum", [v, slot, rate_input, GRADIENT, "0.9"])
            for scope, v, slot, rate_input in kernels
        ]
        nodes += [(scope, "NoOp", [f"^{scope}/update_{v}/ApplyMomentum"]) for scope, v, *_ in kernels]
        graph = small_graph(*nodes)
        beside = saver.SaverGraph(nodes=graph, updates=saver._updates(graph))
        return saver_optimizers.of_train(dict.fromkeys(("a", "b", "a/M", "b/M", "a/M_1")), beside, None, "x")

    assert choice("0.5", "b").names == ("M", "M_1")
    for rate, second in (("0.25", "b"), ("0.5", "a"), ("fed", "b")):
        with pytest.raises(AmbiguousError, match="choose one with --optimizer: M, M_1"):
            choice(rate, second)


def test_a_setting_that_the_graph_made_otherwise_is_to_be_confirmed(tmp_path: Path) -> None:
    """Programs change a learning rate while they train, and hardly ever rho."""
    folder = CORPUS / "extra-tf115-rmsprop-table-saver"
    shutil.copytree(folder / "source", tmp_path / "copy")
    with rewritten(tmp_path / "copy" / "model.ckpt") as (numbers, _):
        numbers["RMSprop/rho"][...] = 0.45
        numbers["RMSprop/learning_rate"][...] = 0.01
    state = migrate.read(tmp_path / "copy" / "model.ckpt")
    (reason,) = state.reasons
    assert "'RMSprop/rho' is 0.449999988 in the checkpoint and began as 0.899999976 in its graph" in reason
    assert reason.endswith("To confirm: --set rho=0.44999998807907104")
    sure = migrate.read(tmp_path / "copy" / "model.ckpt", overrides={"rho": 0.44999998807907104})
    assert (sure.fidelity, sure.hyperparameters["rho"]) == ("exact", float(np.float32(0.45)))


@pytest.mark.parametrize("altered", [False, True])
def test_a_saved_model_that_holds_its_graph_twice(altered: bool, tmp_path: Path) -> None:
    """As with `add_meta_graph`: for training and for serving. Two that differ do not say which one trained."""
    copy = tmp_path / "copy"
    shutil.copytree(CORPUS / "extra-tf115-adam-clip-savedmodel" / "source", copy)
    path = next(copy.rglob("saved_model.pb"))
    once = migrate.read(path.parent).hyperparameters
    proto = protos.SavedGraphs.FromString(path.read_bytes())
    again = proto.meta_graphs.add()
    again.CopyFrom(proto.meta_graphs[0])
    again.graph_def.node.add(name="save_1/Const", op="Const")
    if altered:
        kernel = next(node for node in again.graph_def.node if node.op.endswith("ApplyAdam"))
        kernel.input[6], kernel.input[7] = str(kernel.input[7]), str(kernel.input[6])
    path.write_bytes(proto.SerializeToString())
    if altered:
        with pytest.raises(MissingHintError):
            migrate.read(path.parent)
    else:
        assert migrate.read(path.parent).hyperparameters == once


@pytest.mark.parametrize("scope", ["/own_", "/update_"])
def test_slots_of_a_program_s_own_rule_are_not_tf_train_s(scope: str, tmp_path: Path) -> None:
    """As those of simclr's LARSOptimizer, which it calls Momentum: its graph has no kernel of that class. Those of
    tf-1-x-rectified-adam's RAdamOptimizer, a subclass of tf.train's, stand where kernels do."""
    shutil.copytree(CORPUS / "extra-tf10-adam-polynomial-saver" / "source", tmp_path / "copy")
    meta = tmp_path / "copy" / "model.ckpt.meta"
    proto = protos.SaverMetaGraph.FromString(meta.read_bytes())
    for node in proto.graph_def.node:
        moves = node.op == "ApplyAdam"
        inputs = [input_name.replace("/update_", scope) for input_name in node.input]
        del node.input[:]
        node.input.extend([inputs[0], inputs[9]] if moves else inputs)
        node.op, node.name = "AssignSub" if moves else node.op, node.name.replace("/update_", scope)
    meta.write_bytes(proto.SerializeToString())
    known = {"class_name": "AdamOptimizer", "learning_rate": 0.05, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8}
    state = migrate.read(tmp_path / "copy" / "model.ckpt", overrides={**known, "clipnorm": None})
    assert state.fidelity == "approximate"
    assert "in the graph, and is no kernel of tf.train's optimizers" in " ".join(state.reasons)
    meta.unlink()
    assert migrate.read(tmp_path / "copy" / "model.ckpt", overrides={**known, "clipnorm": None}).fidelity == "exact"


def test_rows_that_a_program_moves_by_a_rule_of_its_own_are_never_exact(tmp_path: Path) -> None:
    """As a subclass of GradientDescentOptimizer may have it for sparse gradients, whose tables stand alone."""
    shutil.copytree(SCOPED / "rows_of_descent" / "source", tmp_path / "copy")
    meta = tmp_path / "copy" / "model.ckpt.meta"
    proto = protos.SaverMetaGraph.FromString(meta.read_bytes())
    scatter = next(node for node in proto.graph_def.node if node.op == "ScatterSub")
    half = f"{scatter.name.rpartition('/')[0]}/half"
    proto.graph_def.node.add(name=half, op="Mul", input=[scatter.input[2], "train/ExponentialDecay/Cast_1/x"])
    scatter.input[2] = half
    meta.write_bytes(proto.SerializeToString())
    known = {"class_name": "GradientDescentOptimizer", "learning_rate": 0.1, "clipnorm": None}
    state = migrate.read(tmp_path / "copy" / "model.ckpt", overrides=known)
    assert state.fidelity == "approximate"
    assert "updates of net/w0 change rows by a rule that tf.train does not have" in " ".join(state.reasons)


@pytest.mark.parametrize(
    ("limits", "sparse", "added", "want"),
    [
        ({"clipvalue": 0.1}, {"t"}, set(), {"repeated_rows": ["clip"]}),
        ({"global_clipnorm": 1.0}, {"t", "u"}, set(), {"repeated_rows": ["clip"]}),
        ({"clipnorm": 1.0}, {"t"}, {"t"}, {}),
        ({"clipvalue": None}, {"t"}, set(), {}),
        ({"clipvalue": 0.1}, set(), set(), {}),
        ({"clipvalue": 0.1}, {"t", "u"}, {"t"}, {"sparse clipping": sparse_rows.ROWS_APART}),
    ],
)
def test_limits_take_rows_of_a_table_that_occur_twice_apart(
    limits: dict[str, Any], sparse: set[str], added: set[str], want: dict[str, Any]
) -> None:
    """Run with TensorFlow 1.15 and 2.4: `tf.clip_by_value` of an embedding's gradient, and both norms."""
    outside: dict[str, str] = {}
    assert sparse_rows.rows_apart(limits, sparse, added, outside) | outside == want
