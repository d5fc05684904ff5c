"""Models as people have them: the real Keras loads what was written and sees the losses that the source saw next."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tensorflow as tf

import migrate
import optim
from migrate.models import to_keras3, training_flag
from optim.errors import UnsupportedError
from tests.helpers import next_steps
from tests.helpers.keras_releases import loss_of_batch
from tests.places import CORPUS, WILD

SUFFIX = {"keras": ".keras", "tf-keras": ".h5"}


def _losses(case: str, path: str, to: str) -> tuple[list[float], list[float]]:
    """Of the next training steps, there and in the source's own process."""
    if to == "keras":
        import keras as library
    else:
        import tf_keras as library
    oracle = np.load(WILD / case / "oracle.npz")
    model = library.models.load_model(path)
    steps = json.loads((WILD / case / "case.json").read_text())["n"]
    losses = []
    for step in range(steps):
        x, y = ([oracle[f"{kind}/{step}/{i}"] for i in range(_count(oracle, f"{kind}/{step}/"))] for kind in "xy")
        losses.append(loss_of_batch(model, x[0] if len(x) == 1 else x, y[0] if len(y) == 1 else y))
    return losses, [float(oracle[f"loss/{step}"]) for step in range(steps)]


def _count(oracle: Any, prefix: str) -> int:
    return sum(key.startswith(prefix) for key in oracle.files)


@pytest.mark.parametrize(
    ("case", "to"),
    [
        ("tf29-a-sequential-of-functional-h5", "keras"),  # a model in a Sequential
        ("tf29-a-augmentation-layers-h5", "keras"),  # Random* and Normalization
        ("tf29-e-preprocessing-layers-h5", "keras"),
        ("tf29-e-tfops-functional-h5", "keras"),  # operators between layers
        ("tf29-e-tfops-functional-h5", "tf-keras"),
        pytest.param("tf29-a-augmentation-layers-h5", "tf-keras", marks=pytest.mark.breadth),
        pytest.param("tf29-b-rnn-cells-convlstm-h5", "tf-keras", marks=pytest.mark.breadth),
        pytest.param("tf29-e-preprocessing-layers-h5", "tf-keras", marks=pytest.mark.breadth),
    ],
)
@pytest.mark.quick(2)
def test_keras_sees_the_sources_own_next_losses(case: str, to: str, tmp_path: Path) -> None:
    target = str(tmp_path / f"model{SUFFIX[to]}")
    report = migrate.migrate_checkpoint(WILD / case / "source" / "model.h5", target, to=to)
    assert report.fidelity == "exact"
    losses, wanted = _losses(case, target, to)
    np.testing.assert_allclose(losses, wanted, rtol=1e-3 if "augmentation" in case else 1e-5)


@pytest.mark.breadth
def test_a_call_with_training_off_is_not_exact_where_keras_3_passes_over_it(tmp_path: Path) -> None:
    case = "tf29-a-finetune-training-false-small-h5"
    source = WILD / case / "source" / "model.h5"
    report = migrate.migrate_checkpoint(source, tmp_path / "model.keras", to="keras")
    assert report.fidelity == "approximate"
    assert "Keras 3 ignores training=False in a call" in report.reasons[0]
    losses, wanted = _losses(case, str(tmp_path / "model.keras"), "keras")
    assert abs(losses[0] - wanted[0]) > 1e-3  # Keras 3 does so; were it not so, the reason would be false
    assert migrate.migrate_checkpoint(source, tmp_path / "model.h5", to="tf-keras").fidelity == "exact"
    losses, wanted = _losses(case, str(tmp_path / "model.h5"), "tf-keras")
    np.testing.assert_allclose(losses, wanted, rtol=1e-6)


def _layer(name: str, **config: Any) -> dict[str, Any]:
    return {"class_name": name, "config": {"name": name.lower(), **config}}


def test_only_what_acts_in_training_makes_a_difference() -> None:
    assert training_flag.acting_in_training(_layer("BatchNormalization")) == ["batchnormalization"]
    assert training_flag.acting_in_training(_layer("BatchNormalization", trainable=False)) == []
    assert training_flag.acting_in_training(_layer("Dropout", rate=0.0)) == []
    assert training_flag.acting_in_training(_layer("LSTM", dropout=0.0, recurrent_dropout=0.1)) == ["lstm"]
    inner = _layer("Sequential", trainable=False, layers=[_layer("BatchNormalization"), _layer("Dropout", rate=0.5)])
    assert training_flag.acting_in_training(inner) == ["dropout"]


@pytest.mark.parametrize(
    ("ends", "wanted"),
    [
        ([["a", 0, 0]], ["a", 0, 0]),
        (["a", 0, 0], ["a", 0, 0]),
        ([["a", 0, 0], ["b", 0, 1]], [["a", 0, 0], ["b", 0, 1]]),
        ({"x": ["a", 0, 0]}, {"x": ["a", 0, 0]}),
    ],
)
def test_ends_keep_their_structure(ends: Any, wanted: Any) -> None:
    assert to_keras3._ends(ends, {}, to_keras3.Translation()) == wanted


def _changed(tmp_path: Path, change: Any) -> str:
    path = tmp_path / "changed.h5"
    path.write_bytes((WILD / "tf29-e-tfops-functional-h5" / "source" / "model.h5").read_bytes())
    with h5py.File(path, "r+") as file:
        config = json.loads(file.attrs["model_config"])
        change(config["config"]["layers"])
        file.attrs["model_config"] = json.dumps(config)
    return str(path)


def test_a_person_can_say_what_a_layer_of_their_own_does_not_train(tmp_path: Path) -> None:
    """As the masks and thresholds of pruning wrappers: no .h5 says whether weights of an unknown layer are trained."""
    import tf_keras

    class Pruned(tf_keras.layers.Dense):
        def build(self, shape: Any) -> None:
            super().build(shape)
            self.mask = self.add_weight(name="mask", shape=(2,), initializer="ones", trainable=False)

        def call(self, entry: Any) -> Any:
            return super().call(entry) * self.mask

    source, target = tmp_path / "source.h5", tmp_path / "target.h5"
    model = tf_keras.Sequential([Pruned(2, input_shape=(3,), name="pruned")])
    model.compile(tf_keras.optimizers.Adam(0.01), "mse")
    batch = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), np.ones((4, 2), np.float32)
    model.train_on_batch(*batch)
    model.save(source)
    with pytest.raises(UnsupportedError, match=r"add --set 'untrained=\[\"pruned/mask\"\]'"):
        migrate.migrate_checkpoint(source, target, to="tf-keras")
    migrate.migrate_checkpoint(source, target, to="tf-keras", overrides={"untrained": ["pruned/mask"]})
    resumed = tf_keras.models.load_model(target, custom_objects={"Pruned": Pruned})
    for _ in range(2):
        assert np.allclose(resumed.train_on_batch(*batch), model.train_on_batch(*batch))


def _on_masked_branches(library: Any, first: int) -> Any:
    """A model with a masked branch and another, of which Concatenate gets number `first` first."""
    a, b = library.Input((5,)), library.Input((5, 3))
    masked = library.layers.Dense(4, name="p")(library.layers.Embedding(9, 4, mask_zero=True)(a))
    both = [masked, library.layers.Dense(4, name="q")(b)]
    joined = library.layers.Concatenate()([both[first], both[1 - first]])
    return library.Model([a, b], library.layers.Dense(2, name="out")(library.layers.LSTM(3)(joined)))


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.quick(1)
def test_a_model_that_masks_put_into_another_order_is_refused_for_keras(first: int, tmp_path: Path) -> None:
    """Keras 3 counts operations that compute masks as depth, so it would load the kernel of `q` into `p`.

    Keras 3.15 does so if the masked branch is second, 3.8 if it is first.
    """
    import keras
    import tf_keras

    model = _on_masked_branches(tf_keras, first)
    if first == 1:
        newer = _on_masked_branches(keras, first)
        orders = [[layer.name for layer in network.layers if layer.name in "pq"] for network in (model, newer)]
        assert orders == [["q", "p"], ["p", "q"]]
    model.compile(tf_keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    model.save(tmp_path / "model.h5")
    with pytest.raises(UnsupportedError, match=r"Keras 3 sorts layers by depth.*migrate to tf-keras"):
        migrate.migrate_checkpoint(tmp_path / "model.h5", tmp_path / "new.keras", to="keras")
    assert migrate.migrate_checkpoint(tmp_path / "model.h5", tmp_path / "new.h5", to="tf-keras").fidelity == "exact"


def _check_scale_alone(report: migrate.Report) -> None:
    """Check that nothing is uncertain except the current loss scale, which no `.h5` of Keras 2 stores."""
    (reason,) = report.reasons
    assert reason.startswith("the source does not store its current loss scale")


@pytest.mark.breadth
def test_the_current_loss_scale_is_migrated_if_the_source_stores_it(tmp_path: Path) -> None:
    """A SavedModel does, with the steps since its last change; tf_keras reads only the scale from an `.h5`."""
    import keras
    import tf_keras

    model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(3,), dtype="mixed_float16")])
    optimizer = tf_keras.optimizers.legacy.Adam(0.01)
    model.compile(tf_keras.mixed_precision.LossScaleOptimizer(optimizer), "mse")
    batch = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), np.ones((4, 1), np.float32)
    for target in (1.0, 1e6, 1.0, 1.0):  # the second overflows
        model.train_on_batch(batch[0], target * batch[1])
    scale, since = float(model.optimizer.loss_scale), int(model.optimizer.dynamic_counter)
    assert (scale < 2.0**15, since) == (True, 2)
    model.save(tmp_path / "source", save_format="tf")
    assert migrate.migrate_checkpoint(tmp_path / "source", tmp_path / "slots").fidelity == "exact"
    report = migrate.migrate_checkpoint(tmp_path / "source", tmp_path / "new.keras", to="keras")
    assert report.fidelity == "exact", report.reasons
    newer = keras.models.load_model(tmp_path / "new.keras").optimizer
    assert (float(newer.dynamic_scale), int(newer.step_counter)) == (scale, since)
    assert migrate.verify(tmp_path / "source", tmp_path / "new.keras").ok
    report = migrate.migrate_checkpoint(tmp_path / "source", tmp_path / "new.h5", to="tf-keras")
    assert [text.partition(",")[0] for text in report.reasons] == ["the loss scale grows 2 steps later"]
    assert float(tf_keras.models.load_model(tmp_path / "new.h5").optimizer.loss_scale) == scale


def test_a_scaled_loss_beside_layers_that_tf_keras_alone_has_can_be_loaded(tmp_path: Path) -> None:
    """tf_keras cannot load its newer LossScaleOptimizer from an .h5, so that the legacy one is written here, too."""
    import tf_keras

    layers = [
        tf_keras.layers.Dense(4, input_shape=(3,)),
        tf_keras.layers.ThresholdedReLU(0.1),
        tf_keras.layers.Dense(1),
    ]
    model = tf_keras.Sequential(layers)
    optimizer = tf_keras.optimizers.RMSprop(0.01, momentum=0.5)
    model.compile(tf_keras.mixed_precision.LossScaleOptimizer(optimizer), "mse")
    batch = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), np.ones((4, 1), np.float32)
    for _ in range(3):
        model.train_on_batch(*batch)
    model.save(tmp_path / "model.h5")
    report = migrate.migrate_checkpoint(tmp_path / "model.h5", tmp_path / "new.h5", to="tf-keras")
    _check_scale_alone(report)
    loaded = tf_keras.models.load_model(tmp_path / "new.h5")
    wanted = [loss_of_batch(model, *batch) for _ in range(3)]
    np.testing.assert_allclose([loss_of_batch(loaded, *batch) for _ in range(3)], wanted, rtol=1e-5)


def test_a_constant_loss_scale_stays_constant(tmp_path: Path) -> None:
    """Keras 3 has none, and is given one that never grows, which is said."""
    import keras
    import tf_keras

    model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(3,))])
    legacy = tf_keras.optimizers.legacy.SGD(0.01, momentum=0.9)
    model.compile(tf_keras.mixed_precision.LossScaleOptimizer(legacy, dynamic=False, initial_scale=64.0), "mse")
    batch = np.ones((4, 3), np.float32), np.ones((4, 1), np.float32)
    model.train_on_batch(*batch)
    model.save(tmp_path / "model.h5")
    for to, target in (("tf-keras", "new.h5"), ("keras", "new.keras")):
        report = migrate.migrate_checkpoint(tmp_path / "model.h5", tmp_path / target, to=to)
        assert report.fidelity == "exact", report.reasons
        assert any("loss scale is constant" in warning for warning in report.warnings) is (to == "keras")
    loaded = tf_keras.models.load_model(tmp_path / "new.h5")
    newer = keras.models.load_model(tmp_path / "new.keras")
    assert (loaded.optimizer.dynamic, float(loaded.optimizer.loss_scale)) == (False, 64.0)
    assert (newer.optimizer.initial_scale, newer.optimizer.dynamic_growth_steps) == (64.0, 2**31 - 1)
    wanted = [loss_of_batch(model, *batch) for _ in range(3)]
    for network in (loaded, newer):
        np.testing.assert_allclose([loss_of_batch(network, *batch) for _ in range(3)], wanted, rtol=1e-5)


def test_nadam_within_a_loss_scale_optimizer_has_no_place_in_keras_3(tmp_path: Path) -> None:
    """Its product of momenta is no variable of the wrapper there, and a list of another length is not loaded."""
    import tf_keras

    model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(3,))])
    model.compile(tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.Nadam(0.01)), "mse")
    model.train_on_batch(np.ones((4, 3)), np.ones((4, 1)))
    model.save(tmp_path / "model.h5")
    product = {"u_product": 0.9 * (1 - 0.5 * 0.96)}
    with pytest.raises(UnsupportedError, match="does not keep the product of Nadam's momenta within a LossScaleOpt"):
        migrate.migrate_checkpoint(tmp_path / "model.h5", tmp_path / "x.keras", to="keras", overrides=product)
    report = migrate.migrate_checkpoint(tmp_path / "model.h5", tmp_path / "slots", overrides=product)
    assert report.fidelity == "exact", report.reasons


def test_a_layer_of_ones_own_is_passed_to_tf_keras_and_said(tmp_path: Path) -> None:
    def rename_class(layers: list[Any]) -> None:
        next(layer for layer in layers if layer["class_name"] == "Dense")["class_name"] = "Mine>Dense"

    source = _changed(tmp_path, rename_class)
    report = migrate.migrate_checkpoint(source, tmp_path / "model.h5", to="tf-keras", dry_run=True)
    assert report.fidelity == "approximate"  # nothing here can load it back
    assert "custom_objects" in report.reasons[-1]
    with pytest.raises(UnsupportedError, match="migrate to slots"):
        migrate.migrate_checkpoint(source, tmp_path / "model.keras", to="keras")


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("activation", "mine"),
        ("activation", {"class_name": "function", "config": "mine"}),
        ("kernel_regularizer", {"class_name": "mine", "config": {}}),
        ("kernel_initializer", {"class_name": "Custom>mine", "config": {}}),
        ("bias_constraint", {"module": "my.code", "class_name": "mine", "config": {}, "registered_name": "mine"}),
    ],
)
def test_an_argument_of_ones_own_is_passed_to_tf_keras_and_said(argument: str, value: Any, tmp_path: Path) -> None:
    def exchange_argument(layers: list[Any]) -> None:
        next(layer for layer in layers if layer["class_name"] == "Dense")["config"][argument] = value

    report = migrate.migrate_checkpoint(
        _changed(tmp_path, exchange_argument), tmp_path / "model.h5", to="tf-keras", dry_run=True
    )
    assert report.fidelity == "approximate"
    assert report.reasons[-1].startswith("mine: not Keras's own")


def test_the_call_that_a_refusal_names_works(tmp_path: Path) -> None:
    import keras

    case = "tf29-a-augmentation-layers-h5"
    source = tmp_path / "model.h5"
    source.write_bytes((WILD / case / "source" / "model.h5").read_bytes())
    target = tmp_path / "model.keras"
    migrate.migrate_checkpoint(source, target, to="keras")
    with h5py.File(source, "r+") as file:  # a layer of the user's own, which today's code builds
        config = json.loads(file.attrs["model_config"])
        next(x for x in config["config"]["layers"] if x["class_name"] == "Dense")["class_name"] = "Mine>Dense"
        file.attrs["model_config"] = json.dumps(config)
    with pytest.raises(UnsupportedError) as refused:
        migrate.migrate_checkpoint(source, tmp_path / "x.keras", to="keras")
    call = str(refused.value)[str(refused.value).index("migrate.restore(") :]
    model = keras.models.load_model(target)
    rate = migrate.read(source).hyperparameters["learning_rate"]
    model.compile(keras.optimizers.Adam(rate), "mse")
    for weight in model.weights:
        weight.assign(np.zeros(weight.shape))
    report = eval(call, {"migrate": migrate, "model": model})  # typed as it stands there
    assert report.slots == 2 * len(model.trainable_weights)
    assert int(model.optimizer.iterations) == json.loads((WILD / case / "case.json").read_text())["k"]
    assert any(np.any(np.asarray(weight)) for weight in model.weights)


def test_the_call_that_is_named_for_an_early_muon_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras 3.15 has another rule under the name, so that only one of `optim` goes on alike."""
    import keras

    source = CORPUS / "extra-keras311-muon-nested-keras" / "source" / "model.keras"
    monkeypatch.delitem(sys.modules, "tf_keras", raising=False)  # of which for_keras would ask
    with pytest.raises(UnsupportedError) as refused:
        migrate.migrate_checkpoint(source, "/nowhere/x.keras", to="keras")
    match = re.search(r"compiled with (.*) in today's code as `model`: (migrate\.restore\(.*\))", str(refused.value))
    assert match is not None
    model = keras.models.load_model(source, compile=False)
    model.compile(eval(match.group(1), {"optim": optim}), "mse")
    assert eval(match.group(2), {"migrate": migrate, "model": model, "source": source}).fidelity == "exact"


def test_the_call_that_is_named_for_a_rectified_adam_goes_on_alike() -> None:
    """It left out `float32_powers`, and was called exact: 50 times off, by what rectification makes of roundings."""
    case = WILD / "tf29-g-radam-h5"
    source, oracle = case / "source" / "model.h5", np.load(case / "oracle.npz")
    with pytest.raises(UnsupportedError) as refused:
        migrate.migrate_checkpoint(source, "/nowhere/x.keras", to="keras")
    match = re.search(r"compiled with optim\.for_keras\((.*?\))\) in today's code", str(refused.value))
    assert match is not None
    for call, is_right in ((match[1], True), (match[1].replace(", float32_powers=True", ""), False)):
        optimizer = eval(call, {"optim": optim})  # typed as it stands there
        stored = {v.name: v for v in migrate.read(source).variables if v.trainable}
        live = {name: tf.Variable(tf.zeros(v.shape)) for name, v in stored.items()}
        report = migrate.restore(source, optimizer, live, restore_variables=True)
        assert (report.fidelity == "exact") is is_right
        assert is_right or report.reasons[0].startswith("float32_powers is True in the source and False")
        owners = next_steps.owners({n: np.asarray(v) for n, v in live.items()}, next_steps.starts_of(oracle))
        variables = [live[name] for name in owners]
        worst = next_steps.error(next_steps.applying(optimizer, variables), variables, oracle, 3)
        assert worst < 1 if is_right else worst > 10


def test_bytecode_is_refused(tmp_path: Path) -> None:
    def code(layers: list[Any]) -> None:
        layers[1]["class_name"] = "Lambda"
        layers[1]["config"] |= {"function_type": "lambda", "function": ["4wEA", None, None]}

    with pytest.raises(UnsupportedError, match="bytecode"):
        migrate.migrate_checkpoint(_changed(tmp_path, code), tmp_path / "model.h5", to="tf-keras")


def test_adafactor_within_a_loss_scale_optimizer_has_a_shorter_list_in_keras_3(tmp_path: Path) -> None:
    """The wrapper does not keep the zeros that Adafactor makes for biases, and Keras skips a list of another length."""
    import keras
    import tf_keras

    model = tf_keras.Sequential([tf_keras.layers.Dense(4, "tanh", input_shape=(3,)), tf_keras.layers.Dense(1)])
    model.compile(tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.Adafactor(0.02)), "mse")
    batch = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), np.ones((4, 1), np.float32)
    for _ in range(3):
        model.train_on_batch(*batch)
    model.save(tmp_path / "model.h5")
    report = migrate.migrate_checkpoint(tmp_path / "model.h5", tmp_path / "new.keras", to="keras")
    _check_scale_alone(report)
    assert not any("left out" in warning for warning in report.warnings), "v is written, too"
    loaded = keras.models.load_model(tmp_path / "new.keras")
    assert int(loaded.optimizer.iterations) == 3
    wanted = [loss_of_batch(model, *batch) for _ in range(3)]
    np.testing.assert_allclose([loss_of_batch(loaded, *batch) for _ in range(3)], wanted, rtol=1e-5)


def looked_up(path: Path, layers: Sequence[Any]) -> Path:
    """An .h5 as TF 2.1 wrote it: without the Input, of which the Embedding does not say the length."""
    import tf_keras

    model = tf_keras.Sequential([tf_keras.Input((5,), dtype="int32"), tf_keras.layers.Embedding(7, 3), *layers])
    model.compile(tf_keras.optimizers.legacy.Adam(0.01), "mse")
    model.train_on_batch(np.arange(5)[None], np.ones(model.output_shape[1:])[None])
    model.save(path)
    with h5py.File(path, "a") as file:
        config = json.loads(file.attrs["model_config"])
        del config["config"]["layers"][0]
        config["config"]["layers"][0]["config"]["batch_input_shape"] = [None, None]
        file.attrs["model_config"] = json.dumps(config)
    return path


@pytest.mark.parametrize("to", ["keras", "tf-keras"])
@pytest.mark.quick(1)
def test_the_length_of_what_is_looked_up_follows_from_the_kernel_behind_flatten(tmp_path: Path, to: str) -> None:
    import keras
    import tf_keras

    kept = [tf_keras.layers.Dropout(0.0), tf_keras.layers.Flatten(), tf_keras.layers.Dense(2)]
    source, target = looked_up(tmp_path / "model.h5", kept), tmp_path / f"new.{'keras' if to == 'keras' else 'h5'}"
    migrate.migrate_checkpoint(source, target, to=to)
    loaded = (keras if to == "keras" else tf_keras).models.load_model(target)
    assert tuple(loaded.layers[-1].kernel.shape) == (15, 2)
    changed = [tf_keras.layers.Conv1D(2, 2), *kept]
    other = looked_up(tmp_path / "other.h5", [type(layer).from_config(layer.get_config()) for layer in changed])
    with pytest.raises(UnsupportedError, match="the length of its input"):
        migrate.migrate_checkpoint(other, tmp_path / f"other-{target.name}", to=to)
    ended = [tf_keras.layers.GlobalAveragePooling1D(), tf_keras.layers.Flatten(), tf_keras.layers.Dense(2)]
    migrate.migrate_checkpoint(looked_up(tmp_path / "free.h5", ended), tmp_path / f"free-{target.name}", to=to)
