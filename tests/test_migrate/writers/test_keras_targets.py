"""`--to keras` and `--to tf-keras`: the real Keras loads what was written and takes the source's own next steps."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import migrate
from migrate.errors import StrictError, TargetExistsError
from migrate.releases import modules
from migrate.rules import keras_targets
from optim.errors import HyperparameterError, MismatchError, UnsupportedError
from tests.helpers import next_steps
from tests.helpers.breadth import broad
from tests.helpers.keras_releases import needs_keras
from tests.places import CORPUS
from tests.test_migrate.confirm import confirmed

pytestmark = pytest.mark.usefixtures("loaded_here")
SUFFIX = {"keras": ".keras", "tf-keras": ".h5"}
EXACT = {
    "keras": (
        "extra-k122-adam-same-shapes-h5",  # Keras 1's layers and order, decay
        "extra-k122-sgd-nodecay-frozen-h5",
        "keras224-adam-eps-none-nested",
        "extra-k224-adam-recompile-shared-h5",  # a layer called twice
        "extra-k231-adam-confusing-h5",  # names with slashes
        "tf115-sgd-decay-clipvalue-embed",
        "tf20-adam-amsgrad-savedmodel-mlp",
        "tf20-sgd-nesterov-decay-nested",  # weights that TensorFlow renamed
        "extra-tf24-adam-unfrozen-later-h5",
        "extra-tf24-adam-untrained-h5",
        "extra-tf215-new-adam-lss-mixed-h5",
        "extra-tf211-new-adam-wd-ema-h5",
        "keras38-nadam-mlp",  # the product is third in the list, and last today
        "extra-keras315-adam-accumulation-keras",
        "extra-keras39-sgd-accumulation-ema-keras",
        "extra-keras315-adam-accumulation-schedule-keras",
    ),
    "tf-keras": (
        "extra-k122-adam-same-shapes-h5",
        "keras224-nadam-mlp",
        "keras231-adam-amsgrad-mlp",
        "tf115-rmsprop-mlp",
        "tf20-rmsprop-centered-momentum-embed",
        "tf20-sgd-nesterov-decay-nested",
        "extra-tf24-adam-confusing-h5",
        "extra-tf215-new-adam-lss-mixed-h5",
        "tf215-new-lion-embed",
        "keras38-nadam-mlp",  # only the legacy class continues it
        "extra-keras315-adam-twins-keras",
    ),
}
APPROXIMATE = {
    "keras": {
        "keras224-nadam-mlp": "schedule_decay",
        "tf115-rmsprop-mlp": "epsilon",
        "tf20-rmsprop-centered-momentum-embed": "rows without a gradient",
        "extra-tf22-sgd-clipboth-order-trap-h5": "accepts only one",
    },
    "tf-keras": {"extra-tf22-sgd-clipboth-order-trap-h5": "clip_order"},
}


def _source(case: Any) -> str:
    folder = CORPUS / case.name / "source"
    if case.document["format"] == "saved_model":
        return str(folder / "saved_model")
    if case.document["format"] == "tf_saver":
        return str(folder / next(f for f in case.document["source"] if f.endswith(".index")))
    return str(folder / next(f for f in case.document["source"] if f.endswith((".h5", ".keras"))))


def _keras(to: str) -> Any:
    return pytest.importorskip("keras" if to == "keras" else "tf_keras")


def _error(case: Any, optimizer: Any, variables: list[Any]) -> float:
    starts = dict(enumerate(next_steps.starts_of(case.oracle)))
    owners = next_steps.owners(starts, [np.asarray(v) for v in variables])
    apply = next_steps.applying(optimizer, variables)
    return next_steps.error(apply, variables, case.oracle, case.document["n"], owners)


def _loaded(case: Any, to: str, folder: Path) -> tuple[migrate.Report, str, Any]:
    dest = str(folder / f"model{SUFFIX[to]}")
    report = migrate.migrate_checkpoint(_source(case), dest, to=to, overrides=confirmed(_source(case)))
    return report, dest, _keras(to).models.load_model(dest)


UNKNOWN_SCALE = "the source does not store its current loss scale"


@pytest.mark.parametrize(
    ("to", "name"),
    [
        pytest.param(to, name, marks=needs_keras("3.13") if to == "keras" and "keras315" in name else ())
        for to in EXACT
        for name in EXACT[to]
    ],
)
@pytest.mark.quick(6)
def test_keras_takes_the_sources_own_next_steps(to: str, name: str, tmp_path: Path, load_case: Any) -> None:
    case = load_case(name)
    report, dest, model = _loaded(case, to, tmp_path)
    assert [reason for reason in report.reasons if not reason.startswith(UNKNOWN_SCALE)] == []
    assert (report.fidelity == "exact") != ("lss-mixed-h5" in name and "tf215" in name)
    assert len(model.trainable_variables) == len(case.names)
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    assert int(np.asarray(optimizer.iterations)) == report.iterations
    assert _error(case, optimizer, list(model.trainable_variables)) <= 1
    verification = migrate.verify(_source(case), dest, overrides=confirmed(_source(case)))
    assert verification.ok, verification.differences


@pytest.mark.parametrize(("to", "name"), [(to, name) for to in APPROXIMATE for name in APPROXIMATE[to]])
def test_another_rule_is_said_and_strict_refuses_it(to: str, name: str, tmp_path: Path, load_case: Any) -> None:
    case = load_case(name)
    report, dest, model = _loaded(case, to, tmp_path)
    assert report.fidelity == "approximate"
    assert APPROXIMATE[to][name] in " ".join(report.reasons)
    assert int(np.asarray(model.optimizer.iterations)) == report.iterations
    with pytest.raises(StrictError, match="approximate"):
        migrate.migrate_checkpoint(_source(case), dest + SUFFIX[to], to=to, strict=True)
    assert not os.path.exists(dest + SUFFIX[to])


def test_a_rule_that_differs_is_not_called_exact(tmp_path: Path, load_case: Any) -> None:
    case = load_case("keras224-nadam-mlp")
    _, _, model = _loaded(case, "keras", tmp_path)
    assert _error(case, model.optimizer, list(model.trainable_variables)) > 1


def test_momentum_without_the_learning_rate_is_converted(load_case: Any) -> None:
    keras = _keras("keras")
    case = load_case("tf115-train-momentum-nesterov-mlp")
    optimizer = case.document["optimizer"]
    config = {"class_name": optimizer["class"].split(".")[-1], "config": optimizer["args"]}
    state = migrate.read(_source(case), optimizer_config=config)
    live = keras_targets.live_class(state, modules.KERAS_3)
    assert live.reasons == ()
    assert "multiplied by" in " ".join(live.notes)
    names = [v.name for v in state.variables if v.trainable]
    variables = [keras.Variable(case.oracle[f"at_save/var/{case.names.index(name)}"]) for name in names]
    live_optimizer = keras.optimizers.SGD.from_config(dict(live.config))
    live_optimizer.build(variables)
    for slot, name in zip(live_optimizer.momentums, names, strict=True):
        slot.assign(live.state.slots["m"][name].load())
    assert _error(case, live_optimizer, variables) <= 1


def test_a_schedule_of_adagrad_goes_to_the_new_class_as_the_legacy_one_reads_none_from_a_file(load_case: Any) -> None:
    case = load_case("tf24-adagrad-decay-iav-nested")
    schedule = {"class_name": "CosineDecay", "config": {"initial_learning_rate": 0.1, "decay_steps": 9}}
    settings = {"learning_rate": schedule, "epsilon": 1e-7, "initial_accumulator_value": 0.1}
    state = migrate.read(
        CORPUS / case.name / "source" / "weights.npy",
        optimizer_config={"class_name": "Adagrad", "config": settings},
        variables=case.document["trainable"],
        generation="optimizer_v2",
    )
    families = (modules.TF_KERAS_LEGACY, modules.TF_KERAS)
    assert keras_targets.best(state, families).family == modules.TF_KERAS
    legacy = _keras("tf-keras").optimizers.legacy
    optimizer = legacy.Adagrad.from_config({"learning_rate": schedule})
    with pytest.raises(ValueError, match="CosineDecay"):
        optimizer._create_all_weights([])


def test_repeated_rows_of_an_embedding_are_squared_one_by_one_in_keras_3(load_case: Any, tmp_path: Path) -> None:
    keras = _keras("keras")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Embedding(3, 1), keras.layers.Flatten()])
    model.compile(keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.0), "mse")
    model.set_weights([np.zeros((3, 1), np.float32)])
    model.train_on_batch(np.array([[1, 1]]), np.array([[1.0, 1.0]]))
    assert float(model.optimizer.variables[2].numpy()[1, 0]) == pytest.approx(2.0)  # 1 + 1, and not (1 + 1) squared
    report = migrate.migrate_checkpoint(_source(load_case("tf215-new-lion-embed")), tmp_path / "a.keras", to="keras")
    assert not any("a row several times" in reason for reason in report.reasons)  # Lion squares nothing
    state = migrate.read(_source(load_case("tf20-rmsprop-centered-momentum-embed")))
    assert "a row several times" in " ".join(keras_targets.live_class(state, modules.KERAS_3).reasons)


@pytest.mark.breadth
def test_layers_mean_the_same_in_both(tmp_path: Path) -> None:
    tf_keras, keras = _keras("tf-keras"), _keras("keras")
    layers = tf_keras.layers
    image, text = tf_keras.Input((6, 6, 2), name="image"), tf_keras.Input((5,), name="text")
    x = layers.Conv2D(3, 2, padding="same", kernel_regularizer=tf_keras.regularizers.L2(0.01))(image)
    x = layers.BatchNormalization(scale=False)(layers.DepthwiseConv2D(2)(x))
    x = layers.Conv2DTranspose(2, 2)(layers.SeparableConv2D(3, 2, activation="relu")(x))
    x = layers.Flatten()(layers.SpatialDropout2D(0.1)(layers.LeakyReLU(0.2)(layers.MaxPooling2D()(x))))
    words = layers.Embedding(7, 3, input_length=5)(text)
    y = layers.Bidirectional(layers.LSTM(2, return_sequences=True))(words)
    y = layers.MultiHeadAttention(2, 2)(y, value=words, key=words)
    cells = [layers.LSTMCell(2), layers.GRUCell(3), layers.LSTMCell(4), layers.SimpleRNNCell(3)]
    y = layers.RNN(cells, return_sequences=True)(y)
    y = layers.GRU(3)(layers.TimeDistributed(layers.Dense(4))(layers.LayerNormalization()(y)))
    inner = tf_keras.Sequential([layers.InputLayer((3,)), layers.Dense(3, activation="gelu"), layers.PReLU()])
    z = layers.Concatenate()([x, layers.Add()([inner(y), layers.Dropout(0.2)(y)])])
    model = tf_keras.Model([image, text], layers.Dense(2, kernel_constraint=tf_keras.constraints.MaxNorm(3.0))(z))
    model.compile(tf_keras.optimizers.legacy.Adam(0.01, decay=0.1), "mse", run_eagerly=True)
    random = np.random.default_rng(0)
    inputs = [random.uniform(size=(4, 6, 6, 2)).astype(np.float32), random.integers(0, 7, (4, 5)).astype(np.float32)]
    model.train_on_batch(inputs, random.uniform(size=(4, 2)))
    model.save(tmp_path / "source.h5")
    for to, other in (("keras", keras), ("tf-keras", tf_keras)):
        dest = tmp_path / f"model{SUFFIX[to]}"
        migrate.migrate_checkpoint(tmp_path / "source.h5", dest, to=to)
        loaded = other.models.load_model(dest)
        np.testing.assert_allclose(np.asarray(loaded(inputs)), model(inputs).numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(*(sum(map(float, network.losses)) for network in (loaded, model)), rtol=1e-5)
        assert migrate.verify(tmp_path / "source.h5", dest).ok


@pytest.mark.parametrize("library", ["keras", broad("tf-keras")])
def test_zeros_for_masked_steps_are_so_in_both(library: str, tmp_path: Path) -> None:
    keras = _keras(library)
    layers = keras.layers
    masked = [layers.Masking(), layers.SimpleRNN(2, return_sequences=True, zero_output_for_mask=True)]
    rest = [layers.RNN(layers.GRUCell(2), return_sequences=True, zero_output_for_mask=True)]
    model = keras.Sequential([keras.Input((4, 3)), *masked, *rest])
    model.compile("sgd", "mse")
    inputs = np.random.default_rng(0).uniform(size=(2, 4, 3)).astype(np.float32)
    inputs[0, 2:] = 0
    model.train_on_batch(inputs, np.ones((2, 4, 2)))
    model.save(tmp_path / "source.h5")
    assert not np.any(np.asarray(model(inputs))[0, 2:])
    for to in ("keras", "tf-keras"):
        dest = tmp_path / f"model{SUFFIX[to]}"
        migrate.migrate_checkpoint(tmp_path / "source.h5", dest, to=to)
        loaded = _keras(to).models.load_model(dest)
        np.testing.assert_allclose(np.asarray(loaded(inputs)), np.asarray(model(inputs)), rtol=1e-5, atol=1e-6)


def _edited(case: Any, folder: Path, change: Any) -> str:
    """A copy of an .h5 source with another model_config."""
    path = folder / "edited.h5"
    path.write_bytes(Path(_source(case)).read_bytes())
    with h5py.File(path, "r+") as file:
        config = json.loads(file.attrs["model_config"])
        change(config["config"]["layers"])
        file.attrs["model_config"] = json.dumps(config)
    return str(path)


def test_a_custom_layer_is_refused_with_what_to_do(tmp_path: Path, load_case: Any) -> None:
    def custom(layers: list[Any]) -> None:
        layers[-1]["class_name"] = "Custom>MyDense"

    source = _edited(load_case("tf24-adam-convbn"), tmp_path, custom)
    with pytest.raises(UnsupportedError, match=r"MyDense.*migrate to slots"):
        migrate.migrate_checkpoint(source, tmp_path / "x.keras", to="keras")
    assert migrate.migrate_checkpoint(source, tmp_path / "slots").fidelity == "exact"


def test_the_hard_sigmoid_of_keras_2_is_written_as_layers(tmp_path: Path, load_case: Any) -> None:
    """Of the dtype of the layer that it is of; its steps are in `test_training`. Keras 3's own keeps its name."""

    def hard(layers: list[Any]) -> None:
        layers[-1]["config"].update(activation="hard_sigmoid", dtype="mixed_bfloat16")

    source, targets = _edited(load_case("tf24-adam-convbn"), tmp_path, hard), []
    for at in (source, tmp_path / "0.keras"):
        targets.append(tmp_path / f"{len(targets)}.keras")
        assert migrate.migrate_checkpoint(at, targets[-1], to="keras").fidelity == "exact"
        with zipfile.ZipFile(targets[-1]) as file:
            layers = json.loads(file.read("config.json"))["config"]["layers"]
        steps = layers[-1]["config"]["activation"]["config"]["layers"]
        assert [(layer["class_name"], layer["config"]["dtype"]) for layer in steps] == [
            ("Rescaling", "mixed_bfloat16"),
            ("ReLU", "mixed_bfloat16"),
        ]
    assert migrate.migrate_checkpoint(source, tmp_path / "x.h5", to="tf-keras", dry_run=True).fidelity == "exact"


@pytest.mark.parametrize("to", ["keras", "tf-keras"])
def test_weights_that_are_numbered_otherwise_than_layers_are_refused(to: Any, tmp_path: Path, load_case: Any) -> None:
    """As in TF 1.2's Keras. They went to the layers of their names, which was exact with the order confirmed."""
    source = Path(shutil.copy(CORPUS / "keras224-adam-eps-none-nested" / "source" / "model.h5", tmp_path))
    with h5py.File(source, "r+") as file:
        group = file["model_weights/sequential_1"]
        for old, new in (("dense_2", "dense_9"), ("dense_3", "dense_2")):
            group.move(old, new)
        names = [name.decode().replace("dense_2", "dense_9") for name in group.attrs["weight_names"]]
        group.attrs["weight_names"] = [name.replace("dense_3", "dense_2").encode() for name in names]
    with pytest.raises(MismatchError, match="weights and layers are numbered differently"):
        migrate.migrate_checkpoint(source, tmp_path / f"out{SUFFIX[to]}", to=to, overrides={"slot_order": "source"})
    report = migrate.migrate_checkpoint(source, tmp_path / "slots", overrides={"slot_order": "source"})
    assert report.fidelity == "exact"


def test_a_source_without_its_model_is_refused(tmp_path: Path, load_case: Any) -> None:
    case = load_case("extra-k224-adadelta-decay-mlp-npz")
    optimizer = case.document["optimizer"]
    hints = {**case.hints, "optimizer_config": {"class_name": optimizer["class"], "config": optimizer["config"]}}
    source = str(CORPUS / case.name / "source" / "weights.npz")
    for known in (hints, {}):  # nobody is asked for hints that lead nowhere
        with pytest.raises(UnsupportedError, match=r"does not describe its model.* migrate\.restore\("):
            migrate.migrate_checkpoint(source, tmp_path / "x.keras", to="keras", **known)


def test_what_is_there_is_not_replaced(tmp_path: Path, load_case: Any) -> None:
    source = _source(load_case("tf24-adam-convbn"))
    with pytest.raises(HyperparameterError, match=r"\.keras"):
        migrate.write(migrate.read(source), tmp_path / "model.h5", to="keras")
    (tmp_path / "note.keras").write_text("mine")
    with pytest.raises(TargetExistsError, match="not a model of Keras"):
        migrate.migrate_checkpoint(source, tmp_path / "note.keras", to="keras", overwrite=True)
    for to, suffix in SUFFIX.items():
        dest = tmp_path / f"model{suffix}"
        migrate.migrate_checkpoint(source, dest, to=to)
        with pytest.raises(TargetExistsError):
            migrate.migrate_checkpoint(source, dest, to=to)
        migrate.migrate_checkpoint(source, dest, to=to, overwrite=True)
        assert migrate.inspect(dest).iterations == migrate.read(source).iterations
    assert sorted(os.listdir(tmp_path)) == ["model.h5", "model.keras", "note.keras"]


def test_verify_finds_a_number_that_was_changed(tmp_path: Path, load_case: Any) -> None:
    source, dest = _source(load_case("tf24-adam-convbn")), tmp_path / "model.h5"
    migrate.migrate_checkpoint(source, dest, to="tf-keras")
    for name in ("optimizer_weights/Adam/iter:0", "optimizer_weights/Adam/conv2d/kernel/v:0"):
        with h5py.File(dest, "r+") as file:
            before = file[name][()]
            file[name][...] = before + 1
        verification = migrate.verify(source, dest)
        assert not verification.ok
        assert len(verification.differences) == 1
        with h5py.File(dest, "r+") as file:
            file[name][...] = before
    assert migrate.verify(source, dest).ok


def test_batch_writes_models_and_resumes(tmp_path: Path, load_case: Any) -> None:
    sources = [_source(load_case(name)) for name in ("tf24-adam-convbn", "tf20-sgd-nesterov-decay-nested")]
    report = migrate.migrate_batch(sources, tmp_path / "into", to="keras", jobs=1)
    assert [item.status for item in report.items] == ["migrated", "migrated"]
    assert all(item.dest.endswith(".keras") for item in report.items)
    again = migrate.migrate_batch(sources, tmp_path / "into", to="keras", jobs=1, resume=True)
    assert [item.status for item in again.items] == ["skipped", "skipped"]
