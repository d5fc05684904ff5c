"""tf.train.Saver checkpoints of real releases."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from migrate.algorithms import find
from migrate.errors import AmbiguousError, ContradictionError, DamagedFileError, MissingHintError, UnknownFormatError
from migrate.graphs import saver
from migrate.graphs.nodes import Nodes
from migrate.readers import detect, tf1_saver
from migrate.readers.bundle_arrays import lazy
from migrate.readers.savers import optimizers
from optim.bytes import protos
from optim.bytes.bundle import BundleReader
from optim.errors import UnsupportedError
from tests.places import CORPUS, SCOPED

KERAS = {
    "keras224-adam-saver-mlp": "keras2",
    "extra-k224-sgd-same-saver": "keras2",
    "extra-k224-sgd-flags-swapped-saver": "keras2",
    "extra-tf113-sgd-nested-saver": "optimizer_v1",
    "keras231-adadelta-saver-nested": "keras2.3",
    "extra-tf115-adam-confusing-saver": "optimizer_v2",
    "extra-tf115-rmsprop-clip-saver": "optimizer_v2",
    "extra-tf115-sgd-nesterov-clip-saver": "optimizer_v2",
    "extra-tf115-adam-amsgrad-saver": "optimizer_v2",
    "extra-k122-adam-saver": "keras1",
    "extra-k122-nadam-saver": "keras1",
    "extra-k122-sgd-nesterov-same-saver": "keras1",
    "extra-k204-sgd-frozen-saver": "keras2",
}
TRAIN = {
    "tf115-train-momentum-nesterov-mlp": {"momentum": "m"},
    "tf115-train-adadelta-mlp": {"accum": "accumulated_grad", "accum_update": "accumulated_delta_var"},
}


def _case(name: str) -> tuple[dict[str, Any], Any, str]:
    folder = CORPUS / name
    return (
        json.loads((folder / "case.json").read_text()),
        np.load(folder / "oracle.npz"),
        str(folder / "source" / "ckpt"),
    )


def _config(case: dict[str, Any]) -> dict[str, Any]:
    optimizer = case["optimizer"]
    return {"class_name": optimizer["class"], "config": optimizer.get("config") or optimizer["args"]}


def _check(state: migrate.OptimizerState, case: dict[str, Any], oracle: Any, slots: Any) -> None:
    names = [v["name"].removesuffix(":0") for v in case["trainable"]]
    assert [v.name for v in state.variables if v.trainable] == names
    by_name, checked = {v.name: v for v in state.variables}, 0
    for i, name in enumerate(names):
        array = by_name[name].array
        assert array is not None
        assert array.load().tobytes() == oracle[f"at_save/var/{i}"].tobytes()
    for key in oracle.files:
        if key.startswith("at_save/slot/") and oracle[key].shape != (1,):
            _, _, slot, i = key.split("/")
            assert state.slots[slots(slot)][names[int(i)]].load().tobytes() == oracle[key].tobytes(), key
            checked += 1
    assert checked == sum(len(owners) for owners in state.slots.values())
    assert (state.iterations, state.fidelity) == (int(oracle["iterations"]), "exact")


@pytest.mark.parametrize("name", KERAS)
def test_keras_in_graph_mode(name: str) -> None:
    case, oracle, source = _case(name)
    state = migrate.read(source, optimizer_config=_config(case))
    assert state.source is not None
    assert (state.source.format, state.source.generation) == ("tf1_saver", KERAS[name])
    _check(state, case, oracle, find(state.algorithm).slot_of)


@pytest.mark.parametrize("name", TRAIN)
def test_tf_train(name: str) -> None:
    case, oracle, source = _case(name)
    state = migrate.read(source, optimizer_config=_config(case))
    assert state.source is not None
    assert state.source.generation == "tf1"
    assert set(state.matched.values()) == {"name"}
    assert state.iterations_source == "global_step"
    _check(state, case, oracle, TRAIN[name].get)


def test_the_graph_names_owners_where_all_shapes_are_equal(tmp_path: Path) -> None:
    case, oracle, source = _case("extra-k224-sgd-same-saver")
    assert {tuple(v["shape"]) for v in case["trainable"]} == {(4, 4)}
    stored = tf1_saver.read(source)
    assert any("by the updates in the graph" in line for line in stored.evidence)
    for file in Path(source).parent.iterdir():
        if file.suffix != ".meta":
            shutil.copy(file, tmp_path / file.name)
    with pytest.raises(MissingHintError, match="--generation"):
        migrate.read(tmp_path / "ckpt", optimizer_config=_config(case))
    with pytest.raises(AmbiguousError, match="--variables"):
        migrate.read(tmp_path / "ckpt", optimizer_config=_config(case), generation="keras2")
    state = migrate.read(
        tmp_path / "ckpt",
        optimizer_config=_config(case),
        generation="keras2",
        variables=[{"name": v["name"], "shape": v["shape"]} for v in case["trainable"]],
    )
    _check(state, case, oracle, find(state.algorithm).slot_of)


def test_without_the_graph_shapes_decide_where_they_can(tmp_path: Path) -> None:
    case, oracle, source = _case("keras231-adadelta-saver-nested")
    for file in Path(source).parent.iterdir():
        if file.suffix != ".meta":
            shutil.copy(file, tmp_path / file.name)
    state = migrate.read(tmp_path / "ckpt", optimizer_config=_config(case))
    assert set(state.matched.values()) == {"shape"}
    _check(state, case, oracle, find(state.algorithm).slot_of)


def test_a_damaged_graph_is_as_none(tmp_path: Path) -> None:
    source = Path(_case("keras231-adadelta-saver-nested")[2]).parent
    shutil.copytree(source, tmp_path / "copy")
    (tmp_path / "copy" / "ckpt.meta").write_bytes(b"\xff" * 100)
    assert saver.read(str(tmp_path / "copy" / "ckpt")) is None
    assert tf1_saver.read(str(tmp_path / "copy" / "ckpt")).layers is not None


def test_scalars_of_keras_are_newer_than_the_config() -> None:
    case, _, source = _case("keras224-adam-saver-mlp")
    config = _config(case)
    config["config"] = {**config["config"], "lr": 0.5}
    with pytest.raises(ContradictionError, match=r"learning_rate is 0\.003.* in the checkpoint and 0\.5"):
        migrate.read(source, optimizer_config=config)
    del config["config"]["lr"]
    state = migrate.read(source, optimizer_config=config)
    assert state.hyperparameters["learning_rate"] == float(np.float32(0.003))
    state = migrate.read(source, optimizer_config=config, overrides={"learning_rate": 0.5})
    assert state.hyperparameters["learning_rate"] == 0.5


def test_two_optimizers_of_keras_are_refused() -> None:
    with pytest.raises(AmbiguousError, match=r"2 optimizers; choose one with --optimizer: SGD, SGD_1"):
        tf1_saver.read(_case("extra-k231-sgd-same-shapes-saver")[2])


def test_keras_1_without_its_graph_gives_no_names(tmp_path: Path) -> None:
    source = Path(_case("extra-k122-adam-saver")[2]).parent
    shutil.copytree(source, tmp_path / "copy")
    graph = tmp_path / "copy" / "ckpt.meta"
    graph.write_bytes(graph.read_bytes()[:20_000])
    for why in ("shows no optimizer|is missing", "is missing"):
        with pytest.raises(UnsupportedError, match=rf"'Variable\w*' has no name.*({why}).*\.h5"):
            tf1_saver.read(str(tmp_path / "copy" / "ckpt"))
        graph.unlink(missing_ok=True)


def test_an_optimizer_of_a_program_without_names_is_not_keras_1s() -> None:
    """As openai's pixel-cnn has it, `tf.Variable(zeros)` for each slot; its graph is there, and not asked for."""
    arrays = {key: lazy(BundleReader(_case("extra-k122-adam-saver")[2]), key) for key in ("Variable", "Variable_1")}
    with pytest.raises(
        UnsupportedError, match=r"ckpt\.meta, its graph, shows no optimizer of Keras 1.* custom optimizer"
    ):
        optimizers.of_keras1(arrays, saver.SaverGraph(nodes=Nodes([])), None, "ckpt")


def test_the_class_that_only_updates_of_keras_1_show_is_asked_for() -> None:
    case, _, source = _case("extra-k122-adam-saver")
    config = {"class_name": "", "config": {**_config(case)["config"]}}
    state = migrate.read(source, optimizer_config=config["config"])
    assert (state.algorithm, state.fidelity) == ("Adam", "approximate")
    assert "--set class_name=Adam" in "".join(state.reasons)
    sure = migrate.read(source, optimizer_config=config["config"], overrides={"class_name": "Adam"})
    assert sure.fidelity == "exact"
    with pytest.raises(ContradictionError, match=r"graph specifies Adam, and .*config specifies Adamax"):
        migrate.read(source, optimizer_config={**config, "class_name": "Adamax"})


@pytest.mark.parametrize(
    ("name", "key", "wrong"),
    [
        ("keras224-adam-saver-mlp", "epsilon", 1e-3),
        ("keras231-adadelta-saver-nested", "epsilon", 1e-5),
        ("extra-k122-nadam-saver", "epsilon", 1e-7),
        ("extra-k122-adam-clip-saver", "clipnorm", 0.7),
        ("extra-k122-sgd-nesterov-same-saver", "nesterov", False),
        ("extra-tf113-sgd-nested-saver", "nesterov", True),
    ],
)
@pytest.mark.quick(2)
def test_the_graph_tells_epsilon_nesterov_and_limits_of_keras(name: str, key: str, wrong: Any) -> None:
    case, _, source = _case(name)
    config = _config(case)
    state = migrate.read(source, optimizer_config=config)
    settings = {**config["config"], key: wrong}
    with pytest.raises(ContradictionError, match=rf"{key} is .* in the source's graph and {wrong}"):
        migrate.read(source, optimizer_config={**config, "config": settings})
    del settings[key]
    without = migrate.read(source, optimizer_config={**config, "config": settings})
    assert without.hyperparameters == state.hyperparameters
    subject = "global_clipnorm" if key == "clipnorm" else key  # Keras 1 takes the norm of all gradients together
    assert next(o.kind for o in without.origins if o.subject == subject) == "graph"
    assert migrate.read(source, optimizer_config={**config, "config": {**settings, "epsilon": None}}).hyperparameters


ADAPTIVE = [
    "keras224-adam-saver-mlp",
    "keras231-adadelta-saver-nested",
    "extra-k122-adam-saver",
    "extra-tf115-adam-confusing-saver",
    "extra-tf115-rmsprop-clip-saver",
    "extra-tf115-adam-amsgrad-saver",
]
SGD = "extra-tf115-sgd-nesterov-clip-saver"


@pytest.mark.parametrize(
    ("name", "key", "wrong"),
    [
        *((name, "clipnorm", 7.0) for name in (*ADAPTIVE, SGD, *TRAIN)),
        *((name, "clipvalue", 7.0) for name in (*ADAPTIVE, SGD, *TRAIN)),
        *((name, "epsilon", 0.25) for name in ADAPTIVE),
        (SGD, "nesterov", False),
    ],
)
@pytest.mark.quick(8)
def test_a_hint_that_the_graph_denies_is_refused(name: str, key: str, wrong: Any) -> None:
    case, _, source = _case(name)
    hint = _config(case)
    assert migrate.read(source, optimizer_config=hint).fidelity == "exact"
    with pytest.raises(ContradictionError, match=rf"{key} is .* in the source's graph and {wrong} in --optimizer"):
        migrate.read(source, optimizer_config={**hint, "config": {**hint["config"], key: wrong}})


@pytest.mark.parametrize("name", [SGD, "extra-tf115-rmsprop-clip-saver", "extra-tf115-adam-amsgrad-saver"])
def test_a_class_that_changes_gradients_in_its_own_step_is_not_keras_s(name: str, tmp_path: Path) -> None:
    """As gradient centralization in `_resource_apply_dense` does; RMSprop's formula passed over it (run in TF 1.15)."""
    case, _, source = _case(name)
    prefix = _with_nodes(source, tmp_path, _centralized)
    (reason,) = migrate.read(prefix, optimizer_config=_config(case)).reasons
    assert re.search("gradients pass through '.*/own' before they reach the optimizer", reason)
    assert migrate.read(source, optimizer_config=_config(case)).fidelity == "exact"


@pytest.mark.parametrize("name", ["keras224-adam-saver-mlp", "extra-k122-adam-saver", "keras231-adadelta-saver-nested"])
def test_gradients_that_a_class_of_native_keras_changes_are_said(name: str, tmp_path: Path) -> None:
    """As `get_gradients` of gradient-centralization-tf does (run with Keras 2.2.4 and 2.3.1)."""
    case, _, source = _case(name)

    def change(nodes: Any) -> None:
        graph = saver.read(source)
        trained = graph.nodes if graph is not None else None
        assert trained is not None
        changed = set()
        for node in [n for n in nodes if not trained.is_backward(n.name) and n.op in ("Mul", "Square", "Minimum")]:
            for i, input_name in enumerate(node.input):
                if trained.is_gradient(input_name):
                    negative = f"{input_name.partition(':')[0]}/own"
                    if negative not in changed:
                        changed.add(negative)
                        nodes.add(name=negative, op="Neg", input=[input_name])
                    node.input[i] = negative

    reasons = migrate.read(_with_nodes(source, tmp_path, change), optimizer_config=_config(case)).reasons
    assert re.search("gradients pass through '.*/own' before they reach the optimizer", " ".join(reasons))


def test_keras_2_reads_its_counter_before_or_after_on_tensorflow_113(tmp_path: Path) -> None:
    """Run with Keras 2.2.4 on TF 1.13 and 1.15, where its steps went on from either."""
    case, _, source = _case("keras224-adam-saver-mlp")
    assert migrate.read(source, optimizer_config=_config(case)).fidelity == "exact"  # on TF 1.12
    shutil.copytree(Path(source).parent, tmp_path / "copy")
    meta = tmp_path / "copy" / f"{Path(source).name}.meta"
    meta.write_bytes(meta.read_bytes().replace(b"1.12.3", b"1.15.5"))
    reasons = migrate.read(tmp_path / "copy" / Path(source).name, optimizer_config=_config(case)).reasons
    assert "reads it before or after it raises it by one" in " ".join(reasons)


def test_a_class_that_moves_variables_by_a_formula_of_its_own_is_not_keras_s(tmp_path: Path) -> None:
    case, _, source = _case("extra-tf115-rmsprop-clip-saver")
    prefix = _with_nodes(source, tmp_path, _signed)
    (reason,) = migrate.read(prefix, optimizer_config=_config(case)).reasons
    assert "in the graph by a custom rule that Keras does not have" in reason


def test_a_momentum_that_steps_make_from_gradients_is_no_number(tmp_path: Path) -> None:
    """As YellowFin's of tensor2tensor: momentum and rate, confirmed as numbers, were exact and 9e4 off."""
    source = str(SCOPED / "chosen" / "source" / "model.ckpt")

    def change(nodes: Any) -> None:
        for node in [n for n in nodes if n.op.endswith("ApplyMomentum")]:
            nodes.add(name=f"{node.name}/mu", op="Max", input=[node.input[3], node.input[3]])
            node.input[4] = f"{node.name}/mu"

    assert migrate.read(source).fidelity == "exact"
    prefix = _with_nodes(source, tmp_path, change)
    (reason,) = migrate.read(prefix, overrides={"momentum": 0.9}).reasons
    assert "uses a momentum that steps compute from gradients, which no rule here does" in reason


def _with_nodes(source: str, folder: Path, change: Callable[[Any], None]) -> Path:
    shutil.copytree(Path(source).parent, folder / "copy")
    meta = folder / "copy" / f"{Path(source).name}.meta"
    proto = protos.SaverMetaGraph.FromString(meta.read_bytes())
    change(proto.graph_def.node)
    meta.write_bytes(proto.SerializeToString())
    return folder / "copy" / Path(source).name


def _centralized(nodes: Any) -> None:
    """Each update takes another gradient, which it makes itself."""
    for node in [node for node in nodes if "/update_" in node.name]:
        for i, input_name in enumerate(node.input):
            if "/gradients/" in input_name:
                centered = f"{node.name.rpartition('/')[0]}/own"
                if not any(other.name == centered for other in nodes):
                    nodes.add(name=centered, op="Sub", input=[input_name, input_name])
                node.input[i] = centered


def _signed(nodes: Any) -> None:
    for node in nodes:
        if "/update_" in node.name and node.op == "RealDiv":
            node.op = "SquaredDifference"


@pytest.mark.parametrize("name", [SGD, "extra-tf115-adam-amsgrad-saver"])
def test_the_graph_says_all_of_an_optimizer_v2(name: str) -> None:
    """Class and options are constants and kernels, and the rest are variables in the checkpoint."""
    case, oracle, source = _case(name)
    state, hinted = migrate.read(source), migrate.read(source, optimizer_config=_config(case))
    _check(state, case, oracle, find(state.algorithm).slot_of)
    assert state.hyperparameters.keys() == hinted.hyperparameters.keys()
    for key, value in hinted.hyperparameters.items():
        expected = value if isinstance(value, (str, bool)) else pytest.approx(value, rel=1e-6)
        assert state.hyperparameters[key] == expected, key


def test_one_of_two_optimizers_of_keras_1() -> None:
    case, oracle, source = _case("extra-k122-adam-two-saver")
    with pytest.raises(AmbiguousError, match=r"2 optimizers; choose one with --optimizer: Variable, Variable_13"):
        tf1_saver.read(source)
    state = migrate.read(source, optimizer_config=_config(case), optimizer_path="Variable_13")
    _check(state, case, oracle, find(state.algorithm).slot_of)
    other = migrate.read(source, optimizer_config=_config(case), optimizer_path="Variable")
    assert other.iterations == 2


def test_placeholders_that_no_update_reads_are_of_the_optimizer_in_their_scope() -> None:
    case, oracle, source = _case("extra-k231-adam-two-saver")
    with pytest.raises(AmbiguousError, match=r"2 optimizers; choose one with --optimizer: Adam, Adam_1"):
        tf1_saver.read(source)
    state = migrate.read(source, optimizer_path="Adam_1", overrides={"iterations": int(oracle["iterations"])})
    _check(state, case, oracle, find(state.algorithm).slot_of)


def test_other_formats_are_told_apart() -> None:
    with pytest.raises(UnknownFormatError, match="object graph"):
        tf1_saver.read(str(CORPUS / "tf24-sgd-momentum-ckpt-convbn" / "source"))
    assert detect(_case("keras224-adam-saver-mlp")[2]).name == "tf1_saver"
    assert detect(str(CORPUS / "tf29-dtensor-adagrad-named-embed" / "source" / "ckpt")).name == "tf_dtensor_names"


def test_truncated(tmp_path: Path) -> None:
    source = Path(_case("tf115-train-adadelta-mlp")[2]).parent
    shutil.copytree(source, tmp_path / "copy")
    data = tmp_path / "copy" / "ckpt.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:-8])
    with pytest.raises(DamagedFileError, match="truncated"):
        tf1_saver.read(str(tmp_path / "copy" / "ckpt"))


@pytest.mark.parametrize(
    ("name", "prefix", "key", "value"),
    [
        (
            "tf115-train-sgd-expdecay-convbn",
            "ckpt",
            "learning_rate",
            {
                "class_name": "ExponentialDecay",
                "config": {
                    "initial_learning_rate": float(np.float32(0.1)),
                    "decay_steps": 3.0,
                    "decay_rate": float(np.float32(0.7)),
                    "staircase": True,
                },
            },
        ),
        ("tf115-train-rmsprop-centered-convbn", "ckpt-4", "clipvalue", float(np.float32(0.3))),
    ],
)
def test_what_the_program_does_around_the_optimizer_is_read(name: str, prefix: str, key: str, value: Any) -> None:
    """With a hint or without any; and without the graph nobody can know it."""
    case, _, source = _case(name)
    for hints in ({"optimizer_config": _config(case)}, {}):
        state = migrate.read(Path(source).with_name(prefix), **hints)
        assert (state.hyperparameters[key], state.fidelity) == (value, "exact")
        assert next(o.kind for o in state.origins if o.subject == key) == "graph"


@pytest.mark.parametrize("damage", ["missing", "half", "empty", "foreign", "link"])
def test_a_graph_that_is_not_there_makes_less_certain(damage: str, tmp_path: Path) -> None:
    case, _, source = _case("tf115-train-momentum-nesterov-mlp")
    folder = tmp_path / "copy"
    shutil.copytree(Path(source).parent, folder)
    prefix = folder / Path(source).name
    meta = Path(f"{prefix}.meta")
    good = meta.read_bytes()
    assert migrate.read(prefix, optimizer_config=_config(case)).fidelity == "exact"
    meta.unlink()
    if damage in ("half", "empty"):
        meta.write_bytes(good[: len(good) // 2] if damage == "half" else b"")
    elif damage == "foreign":
        other = _case("tf115-train-adadelta-mlp")[2]
        meta.write_bytes(Path(f"{other}.meta").read_bytes())
    elif damage == "link":
        meta.symlink_to("/dev/zero")
    state = migrate.read(prefix, optimizer_config=_config(case))
    assert state.fidelity == "approximate"
    assert any("clipped" in reason for reason in state.reasons)


def test_a_schedule_in_the_config_answers_that() -> None:
    schedule = {"initial_learning_rate": 0.1, "decay_steps": 3, "decay_rate": 0.7, "staircase": True}
    config = {"learning_rate": {"class_name": "ExponentialDecay", "config": schedule}}
    source = _case("tf115-train-sgd-expdecay-convbn")[2]
    state = migrate.read(source, optimizer_config={"class_name": "GradientDescentOptimizer", "config": config})
    assert (state.fidelity, state.iterations) == ("exact", 5)
