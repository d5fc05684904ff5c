"""The object-graph reader on real checkpoints of six generations, and on ones made here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from migrate.bytes.arrays import LazyArray
from migrate.bytes.checkpoint_paths import find_prefix
from migrate.bytes.object_graph import ObjectGraph
from migrate.errors import AmbiguousError, ContradictionError, DamagedFileError, MissingHintError, UnknownFormatError
from migrate.matching.slot_owners import Owner, match
from migrate.readers import saved_model, tf_dtensor_names, tf_object
from migrate.releases.versions import Versions
from migrate.state import Stored
from optim.bytes.bundle_writer import BundleWriter
from optim.errors import MismatchError, UnsupportedError
from tests.helpers import next_steps
from tests.helpers.bundles import of_module, rewritten, written
from tests.places import CORPUS, OBJECTS

# Case -> the reader, what is given to it, the generation, the slots under the source's own names.
CASES: dict[str, tuple[Any, str, str, set[str]]] = {
    "tf115-adadelta-checkpoint-nested": (tf_object, "ckpt-1", "optimizer_v2", {"accum_grad", "accum_var"}),
    "tf20-adadelta-tfweights-convbn": (tf_object, "ckpt.index", "optimizer_v2", {"accum_grad", "accum_var"}),
    "tf215-legacy-nadam-ckpt-embed": (tf_object, "", "optimizer_v2", {"m", "v"}),
    "tf24-sgd-momentum-ckpt-convbn": (tf_object, "", "optimizer_v2", {"momentum"}),
    "tf29-exp-adam-clipnorm-nested": (tf_object, "ckpt-1", "experimental", {"_momentums", "_velocities"}),
    "tf29-dtensor-adam-mlp": (tf_object, "ckpt", "experimental", {"_momentums", "_velocities"}),
    "tfk221-new-adadelta-ckpt-convbn": (
        tf_object,
        "ckpt-1.data-00000-of-00001",
        "optimizer",
        {"_accumulated_grads", "_accumulated_delta_vars"},
    ),
    "tf20-adam-amsgrad-savedmodel-mlp": (saved_model, "saved_model", "optimizer_v2", {"m", "v", "vhat"}),
    "tf29-dtensor-adagrad-named-embed": (tf_dtensor_names, "ckpt", "experimental", {"accumulator"}),
}


def _source(case: str) -> str:
    return str(CORPUS / case / "source" / CASES[case][1])


def _names(case: dict[str, Any], stored: Stored) -> list[str]:
    names = [v["name"].removesuffix(":0") for v in case["trainable"]]
    have = [v.name for v in stored.variables]
    # DTensor variables have no names in a checkpoint: the order of the model's list stands for them.
    return names if set(names) <= set(have) else [n for n in have if n.startswith("model.vs.")]


@pytest.mark.parametrize("name", CASES)
def test_real_checkpoints_are_read_bit_for_bit(name: str) -> None:
    reader, _, generation, slots = CASES[name]
    assert reader.sniff(_source(name))
    stored = reader.read(_source(name))
    assert (stored.format, stored.generation) == (reader.NAME, generation)
    assert set(stored.slots) == slots
    case = json.loads((CORPUS / name / "case.json").read_text())
    oracle = np.load(CORPUS / name / "oracle.npz")
    names, variables = _names(case, stored), {v.name: v for v in stored.variables}
    assert len(names) == len(case["trainable"])
    for i, variable in enumerate(names):
        array = variables[variable].array
        assert array is not None
        assert array.load().tobytes() == oracle[f"at_save/var/{i}"].tobytes()
        assert variables[variable].trainable is True
    keys = [key for key in oracle.files if key.startswith("at_save/slot/")]
    assert len(keys) == sum(len(owners) for owners in stored.slots.values())
    for key in keys:
        _, _, slot, i = key.split("/")
        stored_slot = next(s for s in stored.slots if s.lstrip("_") in (slot, slot.removesuffix("s")))
        array = stored.slots[stored_slot][names[int(i)]]
        assert array.shape == oracle[key].shape
        assert array.load().tobytes() == oracle[key].tobytes()
    counter = next(stored.scalars[n] for n in ("iter", "_iterations") if n in stored.scalars)
    assert int(counter.load()) == int(oracle["iterations"])


@pytest.mark.parametrize("name", CASES)
def test_no_tensor_is_dropped(name: str) -> None:
    from optim.bytes.bundle import BundleReader

    reader, _, _, _ = CASES[name]
    stored = reader.read(_source(name))
    prefix = find_prefix(_source(name)) or str(Path(_source(name)) / "variables" / "variables")
    arrays = [v.array for v in stored.variables] + [*stored.scalars.values(), *stored.unmapped.values()]
    arrays += [a for owners in stored.slots.values() for a in owners.values()]
    keys = [a.stored_as for a in arrays if a is not None]
    assert sorted(keys) == sorted(k for k in BundleReader(prefix) if k != "_CHECKPOINTABLE_OBJECT_GRAPH")


def test_what_is_trainable_is_told_as_far_as_the_source_does() -> None:
    stored = tf_object.read(_source("tf24-sgd-momentum-ckpt-convbn"))
    trainable_by_name = {v.name: v.trainable for v in stored.variables}
    assert trainable_by_name["conv2d/kernel"] is True
    assert trainable_by_name["batch_normalization/moving_mean"] is False
    assert trainable_by_name["dense/kernel"] is None  # frozen, which the file does not say


def test_a_saved_model_tells_its_optimizer() -> None:
    stored = saved_model.read(_source("tf20-adam-amsgrad-savedmodel-mlp"))
    assert stored.optimizer_config is not None
    assert stored.optimizer_config["class_name"] == "Adam"
    assert stored.optimizer_config["config"]["amsgrad"] is True
    assert stored.versions == Versions(tensorflow="2.0.4")


def test_readers_do_not_claim_each_others_files() -> None:
    for name, (reader, *_) in CASES.items():
        claims = [r for r in (tf_object, saved_model, tf_dtensor_names) if r.sniff(_source(name))]
        assert claims == [reader], name


def test_evidence_names_the_class_that_the_names_suggest() -> None:
    text = " ".join(tf_object.read(_source("tf29-exp-adam-clipnorm-nested")).evidence)
    assert "Adam/" in text
    assert "_momentums" in text
    assert "matched to variables by name" in text


def test_damage_is_reported_by_reading_not_by_sniffing(tmp_path: Path) -> None:
    source = CORPUS / "tf24-sgd-momentum-ckpt-convbn" / "source"
    shutil.copytree(source, tmp_path / "s")
    index = tmp_path / "s" / "ckpt-1.index"
    data = index.read_bytes()
    for damaged in (data[:-9], data[:100] + b"\xff" + data[101:], b""):
        index.write_bytes(damaged)
        assert tf_object.sniff(str(tmp_path / "s"))
        with pytest.raises(DamagedFileError):
            tf_object.read(str(tmp_path / "s"))
    index.write_bytes(data)
    shard = tmp_path / "s" / "ckpt-1.data-00000-of-00001"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(DamagedFileError, match="truncated"):
        tf_object.read(str(tmp_path / "s"))


def test_slots_by_name_whose_variable_is_lost_are_refused(tmp_path: Path) -> None:
    shutil.copytree(CORPUS / "tf29-dtensor-adagrad-named-embed" / "source", tmp_path / "s")
    with rewritten(tmp_path / "s" / "ckpt") as (numbers, _):
        del numbers["w"]
    with pytest.raises(
        DamagedFileError, match="'Adagrad/accumulator/w' is called as a slot of 'w', which is not there"
    ):
        tf_dtensor_names.read(str(tmp_path / "s" / "ckpt"))


def test_folders_name_their_checkpoint(tmp_path: Path) -> None:
    source = CORPUS / "tf24-sgd-momentum-ckpt-convbn" / "source"
    shutil.copytree(source, tmp_path / "s")
    (tmp_path / "s" / "checkpoint").write_text('model_checkpoint_path: "/somewhere/else/ckpt-1"\n')
    assert find_prefix(str(tmp_path / "s")) == str(tmp_path / "s" / "ckpt-1")
    (tmp_path / "s" / "checkpoint").unlink()
    assert find_prefix(str(tmp_path / "s")) == str(tmp_path / "s" / "ckpt-1")
    shutil.copy(source / "ckpt-1.index", tmp_path / "s" / "ckpt-2.index")
    with pytest.raises(AmbiguousError, match="ckpt-2"):
        find_prefix(str(tmp_path / "s"))
    (tmp_path / "s" / "checkpoint").write_text('model_checkpoint_path: "ckpt-2"\n')
    assert find_prefix(str(tmp_path / "s")) == str(tmp_path / "s" / "ckpt-2")
    with pytest.raises(UnknownFormatError, match="not a TensorFlow checkpoint"):
        tf_object.read(str(tmp_path / "absent"))


ADAM = {"class_name": "Adam", "config": {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}}


def test_a_program_need_not_train_in_the_order_of_the_graph() -> None:
    """A layer's own weight, which Keras trains before those of the layers in it, wherever it stands among them."""
    folder = CORPUS / "extra-tf215-new-adam-own-weight-ckpt"
    oracle = np.load(folder / "oracle.npz")
    state = migrate.read(folder / "source", optimizer_config=ADAM)
    at = "model.layer_with_weights-0"
    assert state.slots["m"][f"{at}.first.w"].load().tobytes() == oracle["at_save/slot/momentums/0"].tobytes()
    first = next(v.array for v in state.variables if v.name == f"{at}.w")
    assert first is not None
    assert first.load().tobytes() == oracle["at_save/var/0"].tobytes()
    assert "--set slot_order=source" in " ".join(state.reasons)


def test_slots_without_their_model_are_refused(tmp_path: Path) -> None:
    import tensorflow as tf

    slots = [tf.Variable(tf.zeros(2), name="Adam/m/dense/kernel")]
    with pytest.raises(MismatchError, match="belongs to no variable"):
        tf_object.read(of_module(tmp_path, [tf.Variable(tf.zeros(2), name="other")], {"_momentums": slots}))


TRAIN = {
    "extra-tf24-train-rmsprop-objects": {"rms": "velocity", "mg": "average_gradient", "momentum": "momentum"},
    "extra-tf24-train-adam-in-keras": {"m": "m", "v": "v"},
}
"""Case -> slots as tf.train itself calls them, and as optim does."""


@pytest.mark.parametrize("name", TRAIN)
def test_optimizers_of_tf_train_beside_objects(name: str) -> None:
    case = json.loads((CORPUS / name / "case.json").read_text())["optimizer"]
    source = str(next((CORPUS / name / "source").glob("*.index")))
    stored = tf_object.read(source)
    assert (stored.generation, set(stored.slots)) == ("tf1", set(TRAIN[name]))
    hint = {"class_name": case["class"], "config": case["args"]}
    state = migrate.read(source, optimizer_config=hint)
    assert set(state.slots) == set(TRAIN[name].values())
    assert all("named" not in reason for reason in state.reasons)
    with pytest.raises(
        ContradictionError, match=r"slots in the source are called .*tf\.train's SGD calls its slots momentum"
    ):
        migrate.read(source, optimizer_config={"class_name": "MomentumOptimizer", "config": {"momentum": 0.9}})


@pytest.mark.parametrize("name", ["extra-tf215-adam-alone", "extra-tf29-exp-sgd-alone"])
def test_an_optimizer_saved_without_its_model_names_its_variables(name: str) -> None:
    case, oracle = json.loads((CORPUS / name / "case.json").read_text()), np.load(CORPUS / name / "oracle.npz")
    stored = tf_object.read(str(CORPUS / name / "source"))
    names = [v["name"].removesuffix(":0") for v in case["trainable"]]
    assert [(v.name, v.array, v.trainable) for v in stored.variables] == [(n, None, True) for n in names]
    assert [v.shape for v in stored.variables] == [oracle[f"at_save/var/{i}"].shape for i in range(len(names))]
    assert all(list(owners) == names for owners in stored.slots.values())
    assert set(stored.matched.values()) == {"name"}


def test_variables_of_one_name_without_their_model_are_asked_for(tmp_path: Path) -> None:
    source = str(CORPUS / "extra-tf215-adam-twins-alone" / "source")
    hint = {"class_name": "Adam", "config": {"learning_rate": 0.01}}
    with pytest.raises(MissingHintError, match="--variables FILE with the names of its 4 variables") as asked:
        migrate.read(source, optimizer_config=hint)
    form = str(asked.value).partition("as JSON: ")[2].replace("...", '"NAME"')
    rows = [{**row, "name": f"{layer}/{row['name']}"} for row, layer in zip(json.loads(form), "aabb", strict=True)]
    with pytest.raises(MismatchError, match="gives the shapes"):
        migrate.read(source, optimizer_config=hint, variables=rows[::-1])
    rows = [{**row, "name": f"variable_{i}"} for i, row in enumerate(rows)]
    state = migrate.read(source, optimizer_config=hint, variables=rows)
    assert [v.name for v in state.variables] == [row["name"] for row in rows]
    assert set(state.matched.values()) == {"position"}
    list_of_all = [array.load() for name in state.slots["m"] for array in (state.slots["m"][name],)]
    assert [a.shape for a in list_of_all] == [tuple(row["shape"]) for row in rows]


def test_what_holds_no_slots_at_all_is_said(tmp_path: Path) -> None:
    import tensorflow as tf

    prefix = tf.train.Checkpoint(optimizer=tf.Module()).save(str(tmp_path / "ckpt"))
    with pytest.raises(UnsupportedError, match="without its model saves no slots"):
        tf_object.read(str(prefix))


def test_two_optimizers_are_ambiguous(tmp_path: Path) -> None:
    import tensorflow as tf

    second = tf.Module()
    second._iterations = tf.Variable(1, dtype=tf.int64)
    prefix = of_module(tmp_path, [tf.Variable(0.0, name="w")], {}, second=second)
    with pytest.raises(AmbiguousError, match="2 optimizers"):
        tf_object.read(prefix)


def test_a_model_without_optimizer_is_read(tmp_path: Path) -> None:
    import tensorflow as tf

    prefix = str(tf.train.Checkpoint(v=tf.Variable([1.0], name="v")).write(str(tmp_path / "ckpt")))
    stored = tf_object.read(prefix)
    assert [v.name for v in stored.variables] == ["v"]
    assert stored.generation is None
    assert stored.slots == {}
    assert "no optimizer" in stored.warnings[0]


def test_an_optimizer_of_sonnet_is_named(tmp_path: Path) -> None:
    """Its slots are lists of a tf.Module; they were taken for variables of the model."""
    import tensorflow as tf

    model, optimizer = tf.Module(), tf.Module()
    model.w = tf.Variable([1.0], name="linear/w")
    optimizer.accumulated_momentum = [tf.Variable([1.0], name="momentum/accumulated_momentum/linear/w")]
    prefix = str(tf.train.Checkpoint(model=model, optimizer=optimizer).write(str(tmp_path / "ckpt")))
    with pytest.raises(
        UnsupportedError, match=r"optimizer keeps a list accumulated_momentum .* as Momentum of Sonnet 2"
    ):
        tf_object.read(prefix)


@pytest.mark.parametrize("with_model", [True, False])
def test_keras_3(tmp_path: Path, with_model: bool) -> None:
    import keras
    import tensorflow as tf

    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(5), keras.layers.BatchNormalization()])
    optimizer = keras.optimizers.Nadam(0.1, use_ema=True)
    optimizer.build(model.trainable_variables)
    rng = np.random.default_rng(0)
    gradients = [rng.normal(size=v.shape).astype(np.float32) for v in model.trainable_variables]
    optimizer.apply_gradients(zip(map(tf.constant, gradients), model.trainable_variables, strict=True))
    parts = {"model": model, "optimizer": optimizer} if with_model else {"optimizer": optimizer}
    stored = tf_object.read(str(tf.train.Checkpoint(**parts).write(str(tmp_path / "ckpt"))))
    assert stored.generation == "keras3"
    assert set(stored.slots) == {"_momentums", "_velocities", "_model_variables_moving_average"}
    for i, variable in enumerate(model.trainable_variables):
        for slot, variables in (("_momentums", optimizer._momentums), ("_velocities", optimizer._velocities)):
            assert np.array_equal(stored.slots[slot][variable.path].load(), variables[i].numpy())
    assert {"_iterations", "_learning_rate", "_u_product"} <= set(stored.scalars)
    moving = model.layers[-1].moving_mean.path
    assert {v.name: v.trainable for v in stored.variables}.get(moving) is (False if with_model else None)


def test_a_counter_of_keras_3_that_only_its_list_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of Keras 3.8 without the edge to its counter: so it was seen in files of 3.4."""
    source = str(CORPUS / "extra-keras38-adamax-convbn-ckpt" / "source")
    whole, initialize = tf_object.read(source), ObjectGraph.__init__

    def without(graph: ObjectGraph, bundle: Any) -> None:
        initialize(graph, bundle)
        for children in graph.children:
            children.pop("_iterations", None)

    monkeypatch.setattr(ObjectGraph, "__init__", without)
    stored = tf_object.read(source)
    assert (stored.generation, stored.optimizers) == ("keras3", whole.optimizers)
    hint = json.loads((CORPUS / "extra-keras38-adamax-convbn-ckpt" / "case.json").read_text())["optimizer"]
    state = migrate.read(source, optimizer_config={"class_name": hint["class"], "config": hint["config"]})
    assert state.iterations == 4
    assert set(state.slots) == {"m", "u"}


def _owner(node: int, name: str, shape: tuple[int, ...] = (2,)) -> Owner:
    return Owner(node, name, name, (name,), shape)


def test_a_slot_belongs_to_the_whole_name_not_to_its_end() -> None:
    owners = [_owner(1, "kernel"), _owner(2, "dense/kernel"), _owner(3, "block/dense/kernel")]
    names = ("Adam/m/dense/kernel", "Adam/m/block/dense/kernel")
    matching = match({"_m": {i: (name, (2,)) for i, name in enumerate(names)}}, owners, {}, "here")
    assert [matching.owners[i].name for i in range(2)] == ["dense/kernel", "block/dense/kernel"]
    assert matching.method == "name"
    with pytest.raises(MismatchError, match="dense_9/kernel"):
        match({"_m": {0: ("Adam/m/dense_9/kernel", (2,))}}, owners, {}, "here")


def test_slots_inside_a_loss_scale_optimizer_lack_its_name() -> None:
    lists = {"_m": {0: ("m/dense/kernel", (2,))}}
    assert match(lists, [_owner(1, "x"), _owner(2, "dense/kernel")], {}, "").owners[0].name == "dense/kernel"
    matching = match(lists, [_owner(1, "kernel", (3,)), _owner(2, "dense/kernel")], {}, "")
    assert matching.owners[0].name == "dense/kernel"
    matching = match(lists, [_owner(1, "kernel"), _owner(2, "dense/kernel")], {}, "")
    assert matching.twins is not None
    assert matching.twins.groups == (("kernel", "dense/kernel"),)


def test_shapes_decide_between_variables_of_one_name() -> None:
    owners = [Owner(i, f"vs.{i}", "w", ("vs", str(i)), shape) for i, shape in enumerate([(2,), (3,), (4,)])]
    matching = match({"_m": {0: ("Adam/m/w", (4,)), 1: ("Adam/m/w", (2,))}}, owners, {}, "here")
    assert [matching.owners[i].name for i in range(2)] == ["vs.2", "vs.0"]
    assert matching.method == "shape"


def test_an_altered_graph_is_damage(tmp_path: Path) -> None:
    from optim.bytes import protos

    graph = protos.ObjectGraph()
    graph.nodes.add().children.add(node_id=7, local_name="x")
    for data in (graph.SerializeToString(), b"", b"\xff\xff"):
        prefix = str(tmp_path / f"ckpt{len(data)}")
        with BundleWriter(prefix) as writer:
            writer.add_string("_CHECKPOINTABLE_OBJECT_GRAPH", data)
        with pytest.raises(DamagedFileError, match="object graph"):
            tf_object.read(prefix)


def test_arrays_are_lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    from optim.bytes.bundle import BundleReader

    loaded: list[str] = []
    original = BundleReader.load
    monkeypatch.setattr(BundleReader, "load", lambda self, key: loaded.append(key) or original(self, key))
    stored = tf_object.read(_source("tf24-sgd-momentum-ckpt-convbn"))
    assert loaded == ["_CHECKPOINTABLE_OBJECT_GRAPH"]
    array: LazyArray = stored.slots["momentum"]["conv2d/kernel"]
    assert array.load().shape == array.shape == (3, 3, 2, 3)
    assert loaded[1:] == [array.stored_as]


def test_names_of_dtensor_slots_tell_the_class() -> None:
    source = _source("tf29-dtensor-adagrad-named-embed")
    config = {"learning_rate": 0.05, "rho": 0.9, "momentum": 0.0, "epsilon": 1e-7, "centered": False}
    hint = {"class_name": "RMSprop", "config": {**config, "clipnorm": None, "use_ema": False}}
    with pytest.raises(ContradictionError, match="its variables are named Adagrad/"):
        migrate.read(source, optimizer_config=hint)
    believed = migrate.read(source, optimizer_config=hint, overrides={"class_name": "RMSprop"})
    assert any("--set class_name=RMSprop overrides that" in warning for warning in believed.warnings)


def test_names_of_two_dtensor_optimizers_are_refused(tmp_path: Path) -> None:
    """Slots were taken of one for some variables, and of the other for the rest."""
    names = ("kernel:0", "Adam/m/kernel:0", "Adam/v/kernel:0", "Other/m/kernel:0", "Other/v/kernel:0")
    source = written(tmp_path / "ckpt", dict.fromkeys(sorted(names), np.ones(3, np.float32)))
    with pytest.raises(AmbiguousError, match="slots of 2 optimizers, Adam, Other"):
        tf_dtensor_names.read(source)


def test_sums_of_gradients_beside_a_model_are_asked_about(tmp_path: Path) -> None:
    """As GradientAccumulateModel of gradient-accumulator keeps them: 1.4e5 times what rounding explains."""
    import tensorflow as tf

    weight, slots = tf.Variable([1.0, 2.0], name="w"), {}
    for name in ("_momentums", "_velocities"):
        slots[name] = [tf.Variable([0.5, 0.25], name=f"Adam/{name}/w")]
    hints = {"optimizer_config": {**ADAM, "config": {**ADAM["config"], "clipnorm": None, "learning_rate": 0.1}}}
    plain = of_module(tmp_path / "plain", [weight], slots, best=tf.Variable([3.0, 4.0]))
    assert "accumulated" not in "".join(migrate.read(plain, **hints).reasons)
    for name, sums in (("gradient_accumulation", [tf.Variable([0.0, 0.0])]), ("accum_step_counter", tf.Variable(0))):
        source = of_module(tmp_path / name, [weight], slots, **{name: sums})
        reasons = migrate.read(source, **hints).reasons
        assert any(f"accumulated in '{name}" in reason and "--set gradients=program" in reason for reason in reasons)
        assert migrate.read(source, **hints, overrides={"gradients": "program"}).fidelity == "exact"


def test_averages_of_a_loop_are_no_name_of_a_class(tmp_path: Path) -> None:
    """`average/w` of an optimizer that a program builds itself, outside of a scope of the optimizer's name."""
    import tensorflow as tf
    import tf_keras

    weight = tf.Variable([1.0, 2.0], name="w")
    optimizer = tf_keras.optimizers.Adam(0.1, use_ema=True)
    optimizer.build([weight])
    optimizer.apply_gradients([(tf.constant([0.5, 1.0]), weight)])
    tf.train.Checkpoint(weight=weight, optimizer=optimizer).write(str(tmp_path / "ckpt"))
    config = {"class_name": "Adam", "config": optimizer.get_config()}
    assert migrate.read(tmp_path / "ckpt", optimizer_config=config).fidelity == "exact"


@pytest.mark.parametrize(
    ("release", "class_name", "lazy_rows"),
    [
        ("tf111", "LazyAdamOptimizer", []),
        ("tf112", "LazyAdamOptimizer", ["^embeddings$"]),
        ("tf112", "AdaMaxOptimizer", ["^embeddings$"]),
    ],
)
def test_tables_of_eager_programs_go_on(release: str, class_name: str, lazy_rows: list[str], tmp_path: Path) -> None:
    """Up to TF 1.11 LazyAdam moves all rows of a resource, and no checkpoint of objects tells the release."""
    folder = OBJECTS / "eager_tables" / f"{release}-{class_name}"
    config = {"learning_rate": 0.05, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-3}
    hints: dict[str, Any] = {"optimizer_config": {"class_name": class_name, "config": config}}
    state = migrate.read(folder / "source" / "ckpt-1", **hints, overrides={"clipnorm": None})
    asked = any("up to TF 1.11 it moved those of resource" in reason for reason in state.reasons)
    assert asked == (class_name == "LazyAdamOptimizer"), state.reasons
    overrides = {"clipnorm": None, "lazy_rows": lazy_rows}
    report = migrate.migrate_checkpoint(folder / "source" / "ckpt-1", tmp_path / "new", **hints, overrides=overrides)
    assert report.fidelity == "exact", report.reasons
    assert next_steps.of_slots(tmp_path / "new", np.load(folder / "oracle.npz"), 4) < next_steps.NEAR
