"""Programs whose checkpoints look like others' and go on otherwise; each is made or continued by the real Keras."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import migrate
from migrate import algorithms
from migrate.errors import ContradictionError, DamagedFileError
from migrate.releases.versions import Versions
from optim.bytes import bundle, protos
from optim.errors import HyperparameterError, UnsupportedError
from tests import adversary
from tests.alterations.arrays import unzipped, zipped
from tests.alterations.hdf5 import training_config
from tests.helpers.breadth import broad, covering
from tests.places import CORPUS, STORIES, WILD

ROWS = np.array([[0, 1, 1], [2, 2, 2]])
"""Of a table: some are named twice."""


def _trained(model: Any, steps: int = 2) -> Any:
    random = np.random.default_rng(0)
    for _ in range(steps):
        x, y = random.normal(size=(5, 4)), random.normal(size=(5, 4))
        model.train_on_batch(x, y)
    return model


def _goes_on_alike(model: Any, other: Any) -> None:
    for network in (model, other):
        _trained(network, 3)
    for mine, theirs in zip(model.weights, other.weights, strict=True):
        np.testing.assert_allclose(np.asarray(theirs), np.asarray(mine), rtol=0, atol=1e-6)


def _of_keras3(order: tuple[int, ...] | None = None) -> Any:
    """Layers of one shape, whose names are not in alphabetical order. `order`: that of a loop's own gradients."""
    import keras

    layers = [keras.layers.Dense(4, "tanh", name=name) for name in ("z", "a", "m")]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile(keras.optimizers.Adagrad(0.1), "mse")
    if order is None:
        return _trained(model)
    random = np.random.default_rng(0)
    variables = [model.trainable_variables[i] for i in order]
    for _ in range(2):
        model.optimizer.apply(
            [keras.ops.convert_to_tensor(random.normal(size=v.shape), "float32") for v in variables], variables
        )
    return model


def test_an_h5_of_keras_3_becomes_a_model_that_keras_3_loads(tmp_path: Path) -> None:
    import keras

    model = _of_keras3()
    model.save(tmp_path / "model.h5")
    assert migrate.migrate_checkpoint(tmp_path / "model.h5", tmp_path / "new.keras", to="keras").fidelity == "exact"
    _goes_on_alike(model, keras.models.load_model(tmp_path / "new.keras"))


def test_slots_in_the_order_of_a_loop_come_into_that_of_the_model(tmp_path: Path) -> None:
    import keras

    order = (4, 5, 0, 1, 2, 3)
    model = _of_keras3(order)
    model.save(tmp_path / "model.keras")
    variables = [{"name": model.weights[i].path, "shape": list(model.weights[i].shape)} for i in order]
    hints = {"variables": variables, "overrides": {"slot_order": "variables"}}
    report = migrate.migrate_checkpoint(tmp_path / "model.keras", tmp_path / "new.keras", to="keras", **hints)
    assert report.fidelity == "exact", report.reasons
    loaded = keras.models.load_model(tmp_path / "new.keras")
    slots = dict(zip(order, model.optimizer._accumulators, strict=True))
    for i, slot in enumerate(loaded.optimizer._accumulators):
        np.testing.assert_array_equal(np.asarray(slot), np.asarray(slots[i]))


def test_variables_under_names_of_another_program_are_refused(tmp_path: Path) -> None:
    model = _of_keras3()
    model.save(tmp_path / "model.keras")
    variables = [{"name": f"dense_{v.path}", "shape": list(v.shape)} for v in model.weights]
    with pytest.raises(ContradictionError, match=r"/z/kernel.*which the source does not have; its own, .* are "):
        migrate.read(tmp_path / "model.keras", variables=variables)


def _table(optimizer: Any, library: Any, folder: Path) -> tuple[Any, str]:
    """A trained Embedding in a model of Keras, and where it is saved."""
    layers = [library.layers.Embedding(4, 2, name="words"), library.layers.Dense(1)]
    model = library.Sequential([library.Input((3,)), *layers])
    model.compile(optimizer, "mse")
    model.train_on_batch(ROWS, np.ones((2, 3, 1)))
    path = folder / ("model.keras" if library.__name__ == "keras" else "model.h5")
    model.save(path)
    return model, str(path)


def _goes_on_in_optim(source: str, model: Any, folder: Path, done: list[str]) -> None:
    """Steps of the migrated optimizer on batches with rows that come twice are those of the model."""
    import tensorflow as tf

    import optim

    report = migrate.migrate_checkpoint(source, folder / "slots")
    assert report.fidelity == "exact", report.reasons
    variables = {v.name: tf.Variable(tf.zeros(v.shape)) for v in optim.describe_checkpoint(folder / "slots").variables}
    optimizer = optim.load_checkpoint(folder / "slots", variables)
    assert optimizer.repeated_rows == done
    by_role = {name.split("/")[-1].split(":")[0]: variable for name, variable in variables.items()}
    for _ in range(3):
        with tf.GradientTape() as tape:
            outputs = tf.gather(by_role["embeddings"], ROWS) @ by_role["kernel"] + by_role["bias"]
            loss = tf.reduce_mean(tf.square(outputs - 1.0))
        optimizer.apply_gradients(zip(tape.gradient(loss, list(variables.values())), variables.values(), strict=True))
        model.train_on_batch(ROWS, np.ones((2, 3, 1)))
    for mine, theirs in zip((by_role[r] for r in ("embeddings", "kernel", "bias")), model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=2e-6)


@covering(1, name=["SGD", "Adam"], clipping=[{"clipvalue": 0.05}, {"clipnorm": 0.1}, {"global_clipnorm": 0.1}])
@pytest.mark.quick(1)
def test_gradients_of_repeated_rows_are_clipped_apart(name: str, clipping: dict[str, float], tmp_path: Path) -> None:
    """`OptimizerV2` clips the values of IndexedSlices, and so does what goes on, or the report says otherwise."""
    import tf_keras

    model, source = _table(getattr(tf_keras.optimizers.legacy, name)(0.1, **clipping), tf_keras, tmp_path)
    assert migrate.migrate_checkpoint(source, tmp_path / "new.h5", to="tf-keras").fidelity == "exact"
    _goes_on_in_optim(source, model, tmp_path, ["clip"])


SQUARING, ALSO = ["Adam", "Adagrad", "Ftrl", "Adafactor", "Lamb"], ["Adadelta", "Adamax", "Nadam", "RMSprop"]
"""Classes that square gradients; the others have those squares where Adam or Adagrad have theirs."""


@pytest.mark.parametrize(
    ("name", "options", "done"),
    [
        *((name, {}, ["square"]) for name in SQUARING),
        *(broad(name, {}, ["square"]) for name in ALSO),
        ("Lion", {}, []),
        ("SGD", {"clipvalue": 0.05}, ["clip"]),
        ("Adam", {"clipnorm": 0.1}, ["clip", "square"]),
        ("Adagrad", {"global_clipnorm": 0.1}, ["clip"]),
        ("Adagrad", {"gradient_accumulation_steps": 2}, []),
    ],
)
@pytest.mark.quick(2)
def test_keras_3_squares_gradients_of_repeated_rows_apart(
    name: str, options: dict[str, Any], done: list[str], tmp_path: Path
) -> None:
    import keras

    model, source = _table(getattr(keras.optimizers, name)(0.1, **options), keras, tmp_path)
    to_keras = migrate.migrate_checkpoint(source, tmp_path / "new.keras", to="keras")
    assert to_keras.fidelity == "exact", to_keras.reasons
    if name == "Adagrad" and not options:
        other = migrate.migrate_checkpoint(source, tmp_path / "new.h5", to="tf-keras")
        assert any("squares each of its gradients, and " in reason for reason in other.reasons)
        absent = {"repeated_rows": "absent"}
        other = migrate.migrate_checkpoint(source, tmp_path / "two.h5", to="tf-keras", overrides=absent)
        assert other.fidelity == "exact", other.reasons
    _goes_on_in_optim(source, model, tmp_path, done)


def test_repeated_rows_that_no_option_squares_as_the_release_are_doubted(tmp_path: Path) -> None:
    import keras

    _, source = _table(keras.optimizers.RMSprop(0.1, centered=True), keras, tmp_path)
    reasons = [
        reason
        for reason in migrate.read(source).reasons
        if "dtopt assumes that no batch contains a row several times" in reason
    ]
    assert len(reasons) == 1
    assert reasons[0].endswith("--set repeated_rows=absent")
    assert migrate.read(source, overrides={"repeated_rows": "absent"}).fidelity == "exact"
    assert migrate.read(source, overrides={"repeated_rows": ["square"]}).hyperparameters["repeated_rows"] == ["square"]
    with pytest.raises(HyperparameterError, match="repeated_rows must be absent or a list"):
        migrate.read(source, overrides={"repeated_rows": "summed"})


@pytest.mark.parametrize("done", [[], ["square"]])
@pytest.mark.quick(1)
def test_a_live_optimizer_that_takes_repeated_rows_otherwise_is_told(done: list[str], tmp_path: Path) -> None:
    """PyTorch and optax have sums alone."""
    import keras
    import tensorflow as tf

    import optim
    from migrate.live import mapped

    _, source = _table(keras.optimizers.Adagrad(0.1), keras, tmp_path)
    state = migrate.read(source)
    variables = [tf.Variable(tf.zeros(v.shape), name=v.name) for v in state.variables]
    report = migrate.restore(source, optim.Adagrad(0.1, epsilon_inside=True, repeated_rows=done), variables)
    differs = any("a row several times" in reason for reason in report.reasons)
    assert differs is not bool(done), report.reasons
    assert any("the live optimizer takes their sum" in reason for reason in mapped.variable_reasons(state, []))


def test_clipping_of_a_loop_before_tf_24_is_asked_for() -> None:
    """apply_gradients clips from 2.4 on, as what objects of a checkpoint say of themselves shows; in graphs, as that of
    the first, `fit` did."""
    questions = {}
    for name in (
        "tf115-sgd-nesterov-checkpoint-embed",
        "tf24-sgd-momentum-ckpt-convbn",
        "tf215-legacy-nadam-ckpt-embed",
    ):
        optimizer = json.loads((CORPUS / name / "case.json").read_text())["optimizer"]
        config = {"class_name": optimizer["class"].split(".")[-1], "config": {**optimizer["config"], "clipvalue": 0.5}}
        state = migrate.read(str(CORPUS / name / "source" / "ckpt-1"), optimizer_config=config)
        questions[name] = [o.confirm for o in state.origins if o.subject == "clipvalue" and not o.certain]
    asked = ["--set clipvalue=0.5 or --set clipvalue=none"]
    assert list(questions.values()) == [[], asked, []]


@pytest.mark.parametrize(("names", "asked"), [("Adam/", True), ("training/Adam/", False)])
def test_clipping_by_fit_of_tf_20_is_asked_for(names: str, asked: bool, tmp_path: Path) -> None:
    """TF 1.14 to 2.1 call their Keras 2.2.4-tf; fit clipped in graphs alone, where names begin with `training`."""
    source = next(iter(sorted(CORPUS.glob("tf20-*/source/model.h5"))))
    shutil.copy(source, tmp_path / "model.h5")
    with training_config(tmp_path / "model.h5") as training:
        training["optimizer_config"]["config"]["clipnorm"] = 0.5
    if names.startswith("training"):
        with h5py.File(tmp_path / "model.h5", "r+") as file:
            group = file["optimizer_weights"]
            names_in_file = [name.decode() for name in group.attrs["weight_names"]]
            for name in names_in_file:
                group.move(name, f"training/{name}")
            group.attrs["weight_names"] = [f"training/{name}".encode() for name in names_in_file]
    state = migrate.read(tmp_path / "model.h5")
    doubted = [o for o in state.origins if o.subject.endswith("clipnorm") and not o.certain]
    assert bool(doubted) is asked


def test_a_sequential_without_the_shape_of_its_input_is_no_target(tmp_path: Path) -> None:
    """Before 2.3 Keras left an InputLayer out of the config, and no Keras can load weights into what is left."""
    shutil.copy(CORPUS / "extra-tf22-sgd-clipboth-order-trap-h5" / "source" / "model.h5", tmp_path / "model.h5")
    with h5py.File(tmp_path / "model.h5", "r+") as file:
        model = json.loads(file.attrs["model_config"])
        assert model["class_name"] == "Sequential"
        model["config"].pop("build_input_shape", None)
        model["config"]["layers"][0]["config"].pop("batch_input_shape")
        file.attrs["model_config"] = json.dumps(model)
    for name in ("new.keras", "new.h5"):
        with pytest.raises(UnsupportedError, match="does not contain the shape of its input"):
            migrate.migrate_checkpoint(tmp_path / "model.h5", tmp_path / name, dry_run=True)


def test_slots_of_a_layer_that_was_thawed_are_those_of_the_same_optimizer() -> None:
    """In graph mode they lie in the scope of the second compile; without them the layer began anew, as if untrained."""
    import tensorflow as tf

    source = str(STORIES / "resumed" / "thawed" / "model")
    config = {"class_name": "Adam", "config": {"learning_rate": 0.01, "beta_1": 0.8, "amsgrad": False}}
    state = migrate.read(source, optimizer_config=config)
    reader = tf.train.load_checkpoint(source)
    for slot in ("m", "v"):
        assert set(state.slots[slot]) == {"late/kernel", "late/bias", "early/kernel", "early/bias"}
        stored = reader.get_tensor(f"training_2/Adam/late/kernel/{slot}")
        np.testing.assert_array_equal(state.slots[slot]["late/kernel"].load(), stored)
    assert state.iterations == 4


@pytest.mark.parametrize("name", ["m.h5", "m.keras", "ckpt-1"])
def test_sgd_of_tf_keras_keeps_slots_that_no_step_reads(name: str, tmp_path: Path) -> None:
    """Its `build` makes them without momentum, too, and `update_step` puts the last step into them."""
    import tensorflow as tf
    import tf_keras

    model = tf_keras.Sequential([tf_keras.layers.Input((2,)), tf_keras.layers.Dense(1)])
    model.compile(tf_keras.optimizers.SGD(0.1), "mse")
    model.train_on_batch(np.ones((2, 2)), np.ones((2, 1)))
    assert np.any(model.optimizer.variables[1].numpy())
    source = str(tmp_path / name)
    if "." in name:
        model.save(source)
        state = migrate.read(source)
    else:
        tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(source)
        hint = {"class_name": "SGD", "config": model.optimizer.get_config()}
        state = migrate.read(source, optimizer_config=hint)
        assert "momentum is 0 in the hint" in state.reasons[0]
        state = migrate.read(source, optimizer_config=hint, overrides={"momentum": 0.0})
    assert (state.fidelity, state.hyperparameters["momentum"]) == ("exact", 0.0), state.reasons


@pytest.mark.parametrize("right", [True, False])
def test_numbers_of_a_hint_that_are_text_are_numbers(right: bool, tmp_path: Path) -> None:
    """`json.dump(optimizer.get_config(), default=str)` is how numpy's numbers get into a file."""
    import tensorflow as tf
    import tf_keras

    model = tf_keras.Sequential([tf_keras.layers.Input((2,)), tf_keras.layers.Dense(1)])
    model.compile(tf_keras.optimizers.legacy.Adam(0.01), "mse")
    model.train_on_batch(np.ones((2, 2)), np.ones((2, 1)))
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).write(str(tmp_path / "ck"))
    config = model.optimizer.get_config() | {
        "learning_rate": np.float32(0.01 if right else 0.02),
        "beta_1": np.float64(0.9),
    }
    hint = {"class_name": "Adam", "config": json.loads(json.dumps(config, default=str))}
    assert isinstance(hint["config"]["learning_rate"], str)
    if right:
        assert migrate.read(tmp_path / "ck", optimizer_config=hint).fidelity == "exact"
    else:
        with pytest.raises(ContradictionError, match=r"learning_rate is 0.00999999978 in the checkpoint and 0.02"):
            migrate.read(tmp_path / "ck", optimizer_config=hint)


def test_a_decay_that_was_set_later_does_not_act_from_tf_2_5_on(tmp_path: Path) -> None:
    """The optimizer's variable says it and its config does not; to leave it out of the hint was the advice."""
    import tensorflow as tf
    import tf_keras

    weight = tf.Variable([1.0, 2.0], name="w")
    optimizer = tf_keras.optimizers.legacy.SGD(0.5, decay=0.25)
    step = [(tf.constant([1.0, 1.0]), weight)]
    optimizer.apply_gradients(step)
    tf_keras.backend.set_value(optimizer.decay, 4.0)
    tf.train.Checkpoint(w=weight, optimizer=optimizer).write(str(tmp_path / "ck"))
    hint = {"class_name": "SGD", "config": optimizer.get_config() | {"clipnorm": None}}
    with pytest.raises(ContradictionError, match=r"the value of get_config\(\), so override with --set decay=0.25"):
        migrate.read(tmp_path / "ck", optimizer_config=hint)
    before = weight.numpy()
    optimizer.apply_gradients(step)
    assert before - weight.numpy() == pytest.approx(0.5 / 1.25)  # and not 0.5 / 5
    state = migrate.read(tmp_path / "ck", optimizer_config=hint, overrides={"decay": 0.25})
    assert (state.hyperparameters["decay"], state.fidelity) == (0.25, "exact")


@pytest.mark.parametrize("function", [migrate.read, migrate.inspect, migrate.migrate_checkpoint])
def test_a_hint_that_is_none_is_an_error_of_the_program(function: Any, tmp_path: Path) -> None:
    """It was called a damaged file."""
    source = CORPUS / "tf24-adam-convbn" / "source"
    paths = (source, tmp_path / "new") if function is migrate.migrate_checkpoint else (source,)
    with pytest.raises(TypeError, match="optimiser_path"):
        function(*paths, optimiser_path="g")


def test_what_adafactor_does_not_read_leaves_no_doubt(tmp_path: Path) -> None:
    """Of a matrix tf_keras keeps the product of the two means as well, and writes it anew in each step."""
    import tf_keras

    model = tf_keras.Sequential([tf_keras.layers.Input((3,)), tf_keras.layers.Dense(2, name="dense")])
    model.compile(tf_keras.optimizers.Adafactor(), "mse")
    model.train_on_batch(np.ones((4, 3)), np.ones((4, 2)))
    model.save(tmp_path / "model.h5")
    state = migrate.read(tmp_path / "model.h5")
    assert (state.fidelity, list(state.unmapped)) == ("exact", ["Adafactor/v/dense/kernel"]), state.reasons
    report = migrate.migrate_checkpoint(tmp_path / "model.h5", tmp_path / "new.h5", to="tf-keras")
    assert report.fidelity == "exact"
    new = tf_keras.models.load_model(tmp_path / "new.h5")
    for network in (model, new):
        network.train_on_batch(np.ones((4, 3)), np.zeros((4, 2)))
    np.testing.assert_allclose(new.weights[0], model.weights[0], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["variant", "string"])
def test_a_slot_whose_dtype_was_altered_is_not_left_out_silently(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the dtype of an iterator it was, with a warning alone, and the rest was exact."""
    checkpoint = adversary.case(CORPUS / "extra-k224-sgd-flags-swapped-saver")
    source = checkpoint.folder / checkpoint.source
    assert migrate.read(source, **checkpoint.hints).fidelity == "exact"
    entry = bundle.BundleReader._entry

    def altered(self: Any, key: bytes, value: bytes, index: str) -> Any:
        read = entry(self, key, value, index)
        return replace(read, dtype=dtype) if key == b"training/SGD/Variable" else read

    with monkeypatch.context() as patch:
        patch.setattr(bundle.BundleReader, "_entry", altered)
        assert f"training/SGD/Variable ({dtype})" in " ".join(migrate.read(source, **checkpoint.hints).reasons)
    proto = protos.BundleEntry()
    proto.dtype = -1
    with pytest.raises(DamagedFileError, match="contradicts itself"):
        bundle.BundleReader(str(source))._entry(b"x", proto.SerializeToString(), "index")


@pytest.mark.parametrize("fields", [{}, {"is_legacy_optimizer": True}])
def test_a_class_that_a_program_registered_is_none_of_optimizer_v2(fields: dict[str, Any], tmp_path: Path) -> None:
    """`register_keras_serializable` calls it Custom>RMSprop, which h5 of TF 2.11 says of Keras's own; run with a
    subclass in TF 2.8.4."""
    source = tmp_path / "model.h5"
    shutil.copy(CORPUS / "tf20-rmsprop-centered-momentum-embed" / "source" / "model.h5", source)
    migrate.read(source)
    with training_config(source) as training:
        training["optimizer_config"]["class_name"] = "Custom>RMSprop"
        training["optimizer_config"]["config"].update(fields)
    with pytest.raises(UnsupportedError, match="'Custom>RMSprop', which is not a class of Keras"):
        migrate.read(source)
    saved = tmp_path / "saved_model"
    shutil.copytree(WILD / "tf29-h-mirrored-sm" / "source" / "saved_model", saved)
    metadata = protos.KerasMetadata.FromString((saved / "keras_metadata.pb").read_bytes())
    for node in metadata.nodes:
        node.metadata = re.sub(r'("optimizer_config": {"class_name": ")', r"\1Custom>", node.metadata)
    (saved / "keras_metadata.pb").write_bytes(metadata.SerializeToString())
    with pytest.raises(UnsupportedError, match="which is not a class of Keras"):
        migrate.read(saved)


def test_a_class_of_ones_own_that_is_called_as_one_of_keras_is_not_that(tmp_path: Path) -> None:
    """From TF 2.11 on h5 and SavedModels say Custom>Adam of Keras's own, and Adam of what a program calls so; run with
    a subclass that takes the sign of gradients, in TF 2.11 to 2.14 and tf_keras 2.18. Keras 3 has it the other way."""
    source = tmp_path / "model.h5"
    shutil.copy(CORPUS / "extra-tf211-new-adam-wd-ema-h5" / "source" / "model.h5", source)
    migrate.read(source)
    with training_config(source) as training:
        assert training["optimizer_config"]["class_name"] == "Custom>Adam"
        training["optimizer_config"]["class_name"] = "Adam"
    with pytest.raises(UnsupportedError, match="'Adam', which is not a class of Keras"):
        migrate.read(source)
    shutil.copy(CORPUS / "extra-keras31-rmsprop-same-shapes-h5" / "source" / "model.h5", source)
    migrate.read(source)
    with training_config(source) as training:
        training["optimizer_config"]["class_name"] = f"Custom>{training['optimizer_config']['class_name']}"
    with pytest.raises(UnsupportedError, match=r"'Custom>.*, which is not a class of Keras"):
        migrate.read(source)
    for release, is_custom in (("2.12.0", True), ("2.13.1", False)):  # as lion-tf has it
        assert bool(algorithms.find("Lion").check({}, "optimizer", Versions(release))) == is_custom


def test_complex_variables_are_refused_if_they_were_trained(tmp_path: Path) -> None:
    """SGD has no slots, whose dtype would say it."""
    import tensorflow as tf

    wave, plain = tf.Variable([1 + 2j], name="wave", dtype=tf.complex64), tf.Variable([1.0], name="plain")
    path = tf.train.Checkpoint(wave=wave, plain=plain, optimizer=_sgd_of([wave, plain])).save(tmp_path / "ckpt")
    hint = {"class_name": "SGD", "config": {"learning_rate": 0.1, "momentum": 0.0, "nesterov": False}}
    with pytest.raises(UnsupportedError, match=r"wave is complex64.*--set 'untrained=\[\"wave\"\]'"):
        migrate.migrate_checkpoint(path, tmp_path / "new", optimizer_config=hint)
    overrides = {"untrained": ["wave"]}
    assert (
        migrate.migrate_checkpoint(path, tmp_path / "new", optimizer_config=hint, overrides=overrides).fidelity
        == "exact"
    )


def _sgd_of(variables: list[Any]) -> Any:
    import tensorflow as tf
    import tf_keras

    optimizer = tf_keras.optimizers.legacy.SGD(0.1)
    optimizer.apply_gradients([(tf.ones_like(v), v) for v in variables])
    return optimizer


@pytest.mark.parametrize("identity", [{"class_name": "Mine>LossScaleOptimizer"}, {"module": "mine"}])
def test_a_loss_scale_of_ones_own_is_not_that_of_keras(identity: dict[str, str], tmp_path: Path) -> None:
    """What it does to gradients nobody knows here; it was exact."""
    source = tmp_path / "model.keras"
    members = unzipped(CORPUS / "extra-keras315-adam-lss-mixed-keras" / "source" / "model.keras")
    model = json.loads(members["config.json"])
    model["compile_config"]["optimizer"].update(identity)
    zipped(source, {**members, "config.json": json.dumps(model).encode()})
    with pytest.raises(UnsupportedError, match="which is not a class of Keras"):
        migrate.read(source)


@pytest.mark.parametrize("boundaries", [[8, 3], [9]])
def test_a_schedule_that_cannot_go_on_is_refused(boundaries: list[int], tmp_path: Path) -> None:
    """Between boundaries in the wrong order Keras 3 adds up values; it was exact."""
    source = tmp_path / "model.h5"
    shutil.copy(CORPUS / "tf24-adam-convbn" / "source" / "model.h5", source)
    rate = {"class_name": "PiecewiseConstantDecay", "config": {"boundaries": boundaries, "values": [0.1, 0.2, 0.3]}}
    with training_config(source) as training:
        training["optimizer_config"]["config"]["learning_rate"] = rate
    with pytest.raises(HyperparameterError, match="a PiecewiseConstantDecay that dtopt cannot continue"):
        migrate.read(source)
    assert migrate.read(source, overrides={"learning_rate": 0.1}).fidelity == "exact"
