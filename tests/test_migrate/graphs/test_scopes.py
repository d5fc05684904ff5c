"""Savers' checkpoints of programs that open a variable scope for their optimizer, or keep its settings in variables."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import migrate
from migrate import OptimizerState
from optim.bytes import protos
from optim.errors import DtoptError
from tests.helpers.bundles import rewritten
from tests.places import SCOPED
from tests.test_migrate.graphs.small_graphs import small_graph

HINTS = {
    "adam": {"class_name": "AdamOptimizer", "config": {"learning_rate": 0.05, "beta_1": 0.8, "epsilon": 1e-8}},
    "changing": {"class_name": "AdagradOptimizer", "config": {"learning_rate": 0.025}},
}


def source(name: str) -> Path:
    return SCOPED / name / "source" / "model.ckpt"


def goes_on(name: str, folder: Path, *parts: Sequence[int], **hints: object) -> None:
    """Migrate and take the steps that TensorFlow took next: six steps round numbers below one six times.

    Args:
      parts: the variables of each call of `apply_gradients`; all of them in one where there are none.
    """
    import tensorflow as tf

    import optim

    migrate.migrate_checkpoint(hints.pop("of", source(name)), folder / "new", **hints)  # type: ignore[arg-type]
    variables = {
        v.name: tf.Variable(tf.zeros(v.shape, v.dtype)) for v in optim.describe_checkpoint(folder / "new").variables
    }
    optimizer = optim.load_checkpoint(folder / "new", variables)
    oracle = np.load(SCOPED / name / "oracle.npz")
    names = [str(variable_name) for variable_name in oracle["names"]]
    for step in range(6):
        for part in parts or [range(len(names))]:
            optimizer.apply_gradients([(tf.constant(oracle[f"grad/{step}/{i}"]), variables[names[i]]) for i in part])
        for i, variable_name in ((i, names[i]) for part in parts or [range(len(names))] for i in part):
            np.testing.assert_allclose(variables[variable_name].numpy(), oracle[f"var/{step}/{i}"], rtol=0, atol=5e-7)


@pytest.mark.parametrize(
    "name",
    [
        "adam",
        "momentum",
        "tangled",
        "loss",
        "pieces",
        "chosen",
        "parts",
        "ftrl",
        "clipped",
        "inverse",
        "warm",
        "manual",
        "floating",
        "rows_of_adam",
        "rows_of_descent",
    ],
)
@pytest.mark.quick(6)
def test_slots_in_a_scope_and_settings_in_variables(name: str, tmp_path: Path) -> None:
    state = migrate.read(source(name))
    assert state.fidelity == "exact", state.reasons
    trained = {str(variable_name) for variable_name in np.load(SCOPED / name / "oracle.npz")["names"]}
    assert all(set(per) == trained for per in state.slots.values())
    goes_on(name, tmp_path)


@pytest.mark.parametrize(("which", "trained"), [("one", [0, 1]), ("two", [2])])
def test_each_of_two_optimizers_has_a_counter_of_its_own(which: str, trained: list[int], tmp_path: Path) -> None:
    goes_on("pair", tmp_path, trained, optimizer_path=f"train/{which}")
    state = migrate.read(source("pair"), optimizer_path=f"train/{which}")
    assert (state.fidelity, state.iterations) == ("exact", 3), state.reasons


def test_scalars_without_a_name_are_no_keras_beside_slots_of_tf_train(tmp_path: Path) -> None:
    alone = copied("nameless", tmp_path)
    alone.with_suffix(".ckpt.meta").unlink()
    hint = {"class_name": "MomentumOptimizer", "config": {"learning_rate": 0.1, "momentum": 0.9, "nesterov": False}}
    state = migrate.read(alone, optimizer_config=hint)
    assert set(state.slots["m"]) == {"net/w0", "net/w1", "net/w2"}
    assert state.fidelity == "approximate"


def test_a_rate_that_is_chosen_by_the_step() -> None:
    rates = [migrate.read(source(name)).hyperparameters["learning_rate"] for name in ("pieces", "chosen")]
    assert [(rate["class_name"], rate["config"]["boundaries"]) for rate in rates] == [
        ("PiecewiseConstantDecay", [4, 6]),
        ("PiecewiseConstantDecay", [4]),
    ]
    assert np.float32(rates[1]["config"]["values"]).tolist() == np.float32([0.1, 0.05]).tolist()


def test_a_rate_that_the_graph_changes_is_a_doubt_with_its_value(tmp_path: Path) -> None:
    state = migrate.read(source("changing"))
    assert state.fidelity == "approximate"
    (reason,) = state.reasons
    assert "changes the variable 'train/rate', which it is read from" in reason
    assert "--set learning_rate=0.02500000037252903" in reason
    confirmed = {"learning_rate": 0.02500000037252903}
    assert migrate.read(source("changing"), overrides=confirmed).fidelity == "exact"
    goes_on("changing", tmp_path, overrides=confirmed)


def test_no_number_settles_a_rate_that_each_step_changes(tmp_path: Path) -> None:
    """The op that changes it is grouped with the step, as by `tf.group(train, decay)`."""
    model = copied("changing", tmp_path)
    meta = model.with_suffix(".ckpt.meta")
    proto = protos.SaverMetaGraph.FromString(meta.read_bytes())
    (writer,) = {r[1] for r in re.findall(r"('(\S+)' in the graph changes)", migrate.read(model).reasons[0])}
    (kernel,) = [n.name for n in proto.graph_def.node if n.op.startswith("Apply")][:1]
    proto.graph_def.node.add(name="both", op="NoOp", input=[f"^{writer}", f"^{kernel}"])
    meta.write_bytes(proto.SerializeToString())
    for overrides in ({}, {"learning_rate": 0.02500000037252903}):
        state = migrate.read(model, overrides=overrides)
        (reason,) = state.reasons
        assert "steps change what it is made of, and 0.025" in reason
        assert """--set 'learning_rate={"class_name": CLASS, "config": {...}}'""" in reason


@pytest.mark.parametrize("waits", [False, True])
def test_a_rate_that_a_program_sets_to_constants_is_as_one_that_it_feeds(waits: bool, tmp_path: Path) -> None:
    """`run(tf.assign(rate, 0.002 * 0.97**epoch))`, as char-rnn-tensorflow has it, unless a step waits for it."""
    model = copied("changing", tmp_path)
    meta = model.with_suffix(".ckpt.meta")
    proto = protos.SaverMetaGraph.FromString(meta.read_bytes())
    nodes = {node.name: node for node in proto.graph_def.node}
    nodes["train/Assign"].input[1] = "train/mul/y"
    if waits:
        next(n for n in nodes.values() if n.op.startswith("Apply")).input.append("^train/Assign")
    meta.write_bytes(proto.SerializeToString())
    state = migrate.read(model)
    assert state.fidelity == ("approximate" if waits else "exact"), state.reasons
    assert state.hyperparameters["learning_rate"] == np.float32(0.025)


def test_a_rate_that_nothing_trains_is_read_where_its_program_left_it_trainable(tmp_path: Path) -> None:
    """`rate = tf.Variable(0.05)`, whose gradient `minimize` does not find."""
    model = copied("adam", tmp_path)
    meta = model.with_suffix(".ckpt.meta")
    proto = protos.SaverMetaGraph.FromString(meta.read_bytes())
    (trainable,) = [collection.value for collection in proto.collection_def if collection.key == "trainable_variables"]
    trainable.bytes_list.value.append(protos.Variable(variable_name="train/rate:0").SerializeToString())
    meta.write_bytes(proto.SerializeToString())
    once, now = migrate.read(source("adam")), migrate.read(model)
    assert (now.fidelity, now.hyperparameters) == ("exact", once.hyperparameters), now.reasons


def test_a_circle_of_reads_in_a_damaged_graph_ends() -> None:
    circle = [("a", "Identity", ["b", "^set"]), ("b", "Identity", ["a"])]
    assert small_graph(("0.1", "Const", []), ("set", "Assign", ["rate", "0.1"]), *circle).sets_alone("set")


def test_one_variable_of_two_hyperparameters_is_a_doubt_of_both(tmp_path: Path) -> None:
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        weight, half = v1.get_variable("w", (2, 2)), v1.get_variable("half", initializer=0.5, trainable=False)
        step = v1.train.MomentumOptimizer(half, half).minimize(tf.reduce_sum(weight * weight), var_list=[weight])
        session.run(v1.global_variables_initializer())
        session.run(tf.group(step, v1.assign(half, 0.9 * half)))
        path = v1.train.Saver().save(session, str(tmp_path / "model.ckpt"))
    subjects = [reason.partition(":")[0] for reason in migrate.read(path).reasons]
    assert subjects == ["learning_rate", "momentum"]


def copied(name: str, folder: Path) -> Path:
    shutil.copytree(SCOPED / name / "source", folder / "source")
    return folder / "source" / "model.ckpt"


def test_a_rate_in_the_checkpoint_that_is_not_the_one_of_the_hint_is_named(tmp_path: Path) -> None:
    """Nothing but its name says that it is the rate, and a program may change it after the save, as tensorpack does."""
    alone = copied("loss", tmp_path)
    alone.with_suffix(".ckpt.meta").unlink()
    config = {"decay": 0.9, "momentum": 0.0, "epsilon": 1e-10, "centered": False, "global_clipnorm": 3.0}
    hint = {"class_name": "RMSPropOptimizer", "config": {"learning_rate": 0.1, **config}}
    overrides = {"lazy_rows": []}
    assert migrate.read(alone, optimizer_config=hint, overrides=overrides).fidelity == "exact"
    hint["config"]["learning_rate"] = 0.5
    (reason,) = migrate.read(alone, optimizer_config=hint, overrides=overrides).reasons
    assert "no graph shows the use of 'train/OptimizeLoss/learning_rate', which is 0.1" in reason
    assert "--set learning_rate=0.10000000149011612 or --set learning_rate=0.5" in reason
    assert migrate.read(alone, optimizer_config=hint, overrides={**overrides, "learning_rate": 0.5}).fidelity == "exact"


@pytest.mark.parametrize("name", ["adam", "changing"])
def test_names_alone_say_whose_the_slots_are(name: str, tmp_path: Path) -> None:
    """Which of two slots is which, and the settings, a hint says."""
    alone = copied(name, tmp_path)
    alone.with_suffix(".ckpt.meta").unlink()
    state: OptimizerState = migrate.read(alone, optimizer_config=HINTS[name])
    assert all(set(per) == {"net/w0", "net/w1", "net/w2"} for per in state.slots.values())
    goes_on(name, tmp_path, of=alone, optimizer_config=HINTS[name])


def test_slots_in_two_scopes_are_not_one_optimizer_s(tmp_path: Path) -> None:
    """Without a graph nothing says that two scopes are one optimizer's."""
    from migrate.graphs import scopes

    shapes = {"w": (2,), "b": (3,), "one/w/Adam": (2,), "one/b/Adam": (3,)}
    assert scopes.without_graph(shapes, {"Adam"}) == {"one/w/Adam": "w/Adam", "one/b/Adam": "b/Adam"}
    assert scopes.without_graph(shapes | {"two/w/Adam": (2,)}, {"Adam"}) == {}
    assert scopes.without_graph(shapes | {"w/Adam": (2,)}, {"Adam"}) == {}
    assert scopes.without_graph(shapes | {"one/w/Adam": (5,)}, {"Adam"}) == {"one/b/Adam": "b/Adam"}


@pytest.mark.parametrize(("name", "kept"), [("Adam", "m, v"), ("Adagrad", "accumulator")])
def test_the_model_s_variables_alone_are_no_state(name: str, kept: str, tmp_path: Path) -> None:
    """As `tf.train.Saver(tf.trainable_variables())` saves them, and DeepPavlov."""
    alone = copied("adam", tmp_path)
    alone.with_suffix(".ckpt.meta").unlink()
    with rewritten(alone) as (numbers, _):
        for key in [key for key in numbers if not re.fullmatch(r"net/w\d", key)]:
            del numbers[key]
    hint = {"class_name": f"{name}Optimizer", "config": {"learning_rate": 0.05}}
    with pytest.raises(DtoptError, match=rf"no slots \({kept}\) of {name}.*Saver\(tf\.trainable_variables\(\)\)"):
        migrate.read(alone, optimizer_config=hint, overrides={"iterations": 3})
    with pytest.raises(DtoptError, match=f"Restart {name} with --set iterations=0"):
        migrate.read(alone, optimizer_config=hint)
    assert migrate.read(alone, optimizer_config=hint, overrides={"iterations": 0}).iterations == 0


def test_a_slot_that_is_lost_is_missed(tmp_path: Path) -> None:
    """As of any other: the graph says that its Saver wrote it."""
    less = copied("adam", tmp_path)
    with rewritten(less) as (numbers, _):
        del numbers["train/net/w1/Adam_1"]
    with pytest.raises(DtoptError, match="train/net/w1/Adam_1"):
        migrate.read(less)


@pytest.mark.parametrize("name", ["adam", "momentum", "chosen", "pieces", "warm", "manual", "nameless"])
@pytest.mark.quick(3)
def test_a_graph_whose_nodes_lack_inputs_says_less_and_never_otherwise(name: str, tmp_path: Path) -> None:
    """One node of each op without the inputs that it must have: what is still called exact is what the sound one is."""
    sound = migrate.read(source(name))
    damaged = copied(name, tmp_path)
    graph = damaged.with_suffix(".ckpt.meta")
    whole = protos.SaverMetaGraph.FromString(graph.read_bytes())
    one_of_each = {node.op: place for place, node in enumerate(whole.graph_def.node) if node.input}
    fidelities: set[str] = set()
    refusals = []
    for place in one_of_each.values():
        altered = protos.SaverMetaGraph.FromString(whole.SerializeToString())
        del altered.graph_def.node[place].input[:]
        graph.write_bytes(altered.SerializeToString())
        try:
            state = migrate.read(damaged)
        except DtoptError as error:
            refusals.append(str(error))
            continue
        fidelities.add(state.fidelity)
        if state.fidelity == "exact":
            assert state.hyperparameters == sound.hyperparameters
            assert state.iterations == sound.iterations
            assert {slot: set(per) for slot, per in state.slots.items()} == {s: set(p) for s, p in sound.slots.items()}
    assert "exact" in fidelities
    assert refusals
    assert not [refusal for refusal in refusals if "cannot be read" in refusal]
