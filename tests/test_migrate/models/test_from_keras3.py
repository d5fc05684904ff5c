"""A model of Keras 3 in the terms of tf_keras: what it cannot say is refused, and what it can is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from migrate.conversion import targets
from migrate.models import from_keras3, to_keras3, to_tf_keras
from migrate.models.compiled import compile_arguments, without_loss
from migrate.models.normalized_config import canonical
from optim.errors import UnsupportedError
from tests.helpers import next_steps
from tests.places import KERAS

POLICIES = {"class_name": "DTypePolicyMap", "config": {"policy_map": {}}}
LEAKY = {"class_name": "LeakyReLU", "config": {"name": "l", "trainable": True, "negative_slope": 0.2}}


def tensor(name: str) -> dict[str, Any]:
    return {"class_name": "__keras_tensor__", "config": {"shape": [None, 4], "keras_history": [name, 0, 0]}}


def layer_of(class_name: str, **config: Any) -> dict[str, Any]:
    """The second layer of a graph of two, as tf_keras has it."""
    layers = [
        {"class_name": "InputLayer", "name": "x", "config": {"name": "x"}, "inbound_nodes": []},
        {
            "class_name": class_name,
            "name": "y",
            "config": {"name": "y", **config},
            "inbound_nodes": [{"args": [tensor("x")], "kwargs": {}}],
        },
    ]
    ends = {"input_layers": ["x", 0, 0], "output_layers": ["y", 0, 0]}
    model = {"class_name": "Functional", "config": {"name": "m", "layers": layers, **ends}}
    layer: dict[str, Any] = from_keras3.older(model)["config"]["layers"][1]
    return layer


@pytest.mark.parametrize(
    ("class_name", "config"),
    [
        ("Elu", {"alpha": 0.5}),
        ("Mean", {"axis": 1, "keepdims": False, "of_a_later_release": 3}),
        ("Dense", {"trainable": True, "dtype": POLICIES}),
        ("AlphaDropout", {"trainable": True, "noise_shape": [None, 1]}),
    ],
)
def test_what_tf_keras_cannot_say_is_refused(class_name: str, config: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="tf_keras"):
        layer_of(class_name, **config)


def test_operations_and_layers_are_told_apart() -> None:
    assert layer_of("Elu", alpha=1.0)["config"]["function"] == "nn.elu"
    assert layer_of("SpatialDropout1D", rate=0.5)["class_name"] == "SpatialDropout1D"


def test_a_layer_for_an_activation_is_said_as_a_layer() -> None:
    assert layer_of("Dense", trainable=True, activation=LEAKY)["config"]["activation"]["config"]["alpha"] == 0.2


@pytest.mark.parametrize(
    ("loss", "keras3", "tf_keras"),
    [
        ({"class_name": "function", "config": "mean_squared_error"}, "mean_squared_error", "mean_squared_error"),
        ("dice", "dice", None),
        ("Tversky", "tversky", None),
        ({"class_name": "Circle", "config": {"gamma": 10.0}}, "Circle", None),
        ({"class_name": "MeanSquaredError", "config": {"reduction": "mean"}}, "MeanSquaredError", None),
    ],
)
def test_losses_are_carried_where_the_target_has_them(loss: Any, keras3: str, tf_keras: str | None) -> None:
    for for_keras3, wanted in ((True, keras3), (False, tf_keras)):
        compiled = compile_arguments({"loss": loss}, [], for_keras3)
        target_loss = compiled["loss"]
        assert (target_loss["class_name"] if isinstance(target_loss, dict) else target_loss) == wanted
        assert bool(without_loss({"loss": loss}, compiled)) == (wanted is None)


def _wrapped(name: str, fn: str) -> dict[str, Any]:
    return {"class_name": "MeanMetricWrapper", "config": {"name": name, "dtype": "float32", "fn": fn}}


@pytest.mark.parametrize(
    ("metrics", "kept", "lost"),
    [
        (
            [[_wrapped("accuracy", "categorical_accuracy")]],
            [["accuracy"]],
            "",
        ),  # tf.keras 2.4 and later, of ["accuracy"]
        ([[_wrapped("acc", "binary_accuracy")]], [["acc"]], ""),
        (["accuracy", "soft_acc", "mae"], ["accuracy", "mae"], "soft_acc"),
        (["soft_acc"], None, "soft_acc"),
        ({"a": ["mae"], "b": "own"}, {"a": ["mae"], "b": None}, "own"),
        ([[_wrapped("mine", "sparse_categorical_accuracy")]], [["sparse_categorical_accuracy"]], ""),
        ([{"class_name": "Own>F1", "config": {"name": "f1"}}], None, "f1"),
    ],
)
def test_metrics_with_a_name_are_kept_and_the_others_named(metrics: Any, kept: Any, lost: str) -> None:
    notes: list[str] = []
    compiled = compile_arguments({"loss": "mse", "metrics": metrics}, notes, for_keras3=True)
    assert compiled["metrics"] == kept
    assert [note.partition(", which")[0] for note in notes] == ([f"metrics without {lost}"] if lost else [])


@pytest.mark.parametrize("to", ["keras", "tf-keras"])
def test_a_model_whose_loss_is_left_out_is_not_exact(to: str, tmp_path: Path) -> None:
    """Training goes on only with the same loss."""
    import tf_keras

    def custom_loss(y: Any, p: Any) -> Any:
        return (y - p) ** 2

    model = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(2,))])
    model.compile(tf_keras.optimizers.Adam(0.01), custom_loss)
    model.train_on_batch(np.ones((4, 2)), np.ones((4, 1)))
    model.save(tmp_path / "model.h5")
    assert migrate.read(tmp_path / "model.h5").fidelity == "exact"
    report = migrate.migrate_checkpoint(tmp_path / "model.h5", tmp_path / f"new{targets.ENDINGS[to]}", dry_run=True)
    assert report.fidelity == "approximate"
    assert "the loss custom_loss is not in the target's Keras" in " ".join(report.reasons)


@pytest.mark.parametrize("name", ["categorical_crossentropy", "own"])
def test_a_loss_function_of_keras_is_found_by_its_name(name: str, tmp_path: Path) -> None:
    """As `compile(loss=keras.losses.categorical_crossentropy)` is saved: with the module `builtins`."""
    import keras

    def own(target: Any, output: Any) -> Any:
        return keras.ops.mean((target - output) ** 2)

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, "softmax")])
    model.compile("adam", own if name == "own" else getattr(keras.losses, name))
    model.train_on_batch(np.arange(8.0).reshape(4, 2), np.eye(4, 2))
    model.save(tmp_path / "model.keras")
    report = migrate.migrate_checkpoint(tmp_path / "model.keras", tmp_path / "new.keras")
    if name == "own":
        assert report.fidelity == "approximate"
        assert "own: not Keras's own" in " ".join(report.reasons)
        return
    assert report.fidelity == "exact"
    assert keras.models.load_model(tmp_path / "new.keras").loss.__name__ == name


def test_both_keras_find_the_functions_that_are_known_by_name() -> None:
    import keras
    import tf_keras

    for name in to_tf_keras.FUNCTIONS:
        saved = {"module": "builtins", "class_name": "function", "config": name, "registered_name": "function"}
        for module in (keras, tf_keras):
            assert module.saving.deserialize_keras_object(saved).__name__ == name


@pytest.mark.parametrize("suffix", ["keras", pytest.param("h5", marks=pytest.mark.breadth)])
def test_a_softmax_of_tensorflow_is_that_of_keras(suffix: str, tmp_path: Path) -> None:
    """Keras 3 saves `activation=tf.nn.softmax` as `softmax_v2`, and cannot load it."""
    import keras
    import tensorflow as tf

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, tf.nn.softmax)])
    model.compile("adam", "categorical_crossentropy")
    model.train_on_batch(np.arange(8.0).reshape(4, 2), np.eye(4, 2))
    model.save(tmp_path / f"model.{suffix}")
    with pytest.raises(TypeError, match="softmax_v2"):
        keras.models.load_model(tmp_path / f"model.{suffix}")
    report = migrate.migrate_checkpoint(tmp_path / f"model.{suffix}", tmp_path / "new.keras")
    assert report.fidelity == "exact"
    again = keras.models.load_model(tmp_path / "new.keras")
    inputs = np.arange(8.0).reshape(4, 2)
    np.testing.assert_array_equal(again.predict_on_batch(inputs), model.predict_on_batch(inputs))
    assert again.optimizer.iterations == 1


@pytest.mark.parametrize("key", ["activation", "kernel_initializer", "kernel_regularizer", "kernel_constraint"])
def test_a_function_of_ones_own_keeps_its_name(key: str) -> None:
    """As `Dense(4, activation=own)` is saved by Keras 3; its name was lost, and the model called exact."""
    function = {"module": "builtins", "class_name": "function", "config": "own", "registered_name": "function"}
    layer = layer_of("Dense", trainable=True, units=4, **{key: function})
    assert layer["config"][key] == "own"
    assert "own: not Keras's own" in " ".join(to_tf_keras.own_classes(layer))


@pytest.mark.parametrize("activation", from_keras3.ONLY_3)
def test_activations_that_only_keras_3_has_are_no_functions_of_ones_own_there(activation: str) -> None:
    layer = {"module": "keras.layers", "class_name": "Activation", "config": {"name": "a", "activation": activation}}
    assert to_tf_keras.own_classes(layer, from_keras3.ONLY_3) == []
    is_in_every_keras = activation in to_keras3.ACTIVATIONS
    assert is_in_every_keras or activation in " ".join(to_tf_keras.own_classes(layer))


@pytest.mark.parametrize("name", ["AdamW", "Lion"])
def test_a_scaled_loss_around_what_only_the_newer_classes_have_is_refused_with_the_reason(
    name: str, tmp_path: Path
) -> None:
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.LossScaleOptimizer(getattr(keras.optimizers, name)(0.01)), "mse")
    model.train_on_batch(np.ones((4, 2)), np.ones((4, 1)))
    model.save(tmp_path / "model.keras")
    with pytest.raises(UnsupportedError, match=f"only around one of .*legacy, which has no {name}; migrate to keras"):
        migrate.migrate_checkpoint(tmp_path / "model.keras", tmp_path / "x.h5", to="tf-keras")
    migrate.migrate_checkpoint(tmp_path / "model.keras", tmp_path / "x.keras", to="keras")


def test_nadam_within_a_loss_scale_optimizer_is_read_without_its_product(tmp_path: Path) -> None:
    """Keras 3 leaves it out of such files; it follows from the steps, unless the run was reloaded."""
    import keras

    def built() -> Any:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Nadam(0.01)), "mse")
        return model

    model, batch = built(), (np.ones((4, 2)), np.ones((4, 1)))
    for _ in range(3):
        model.train_on_batch(*batch)
    source = tmp_path / "model.keras"
    model.save(source)
    product = float(model.optimizer.inner_optimizer._u_product)
    state = migrate.read(source)
    assert state.fidelity == "approximate"
    assert state.scalars["u_product"] == pytest.approx(product, rel=1e-6)
    confirmed = {"u_product": product}
    assert migrate.read(source, overrides=confirmed).fidelity == "exact"
    with pytest.raises(UnsupportedError, match="does not keep the product of Nadam's momenta"):
        migrate.migrate_checkpoint(source, tmp_path / "x.keras", to="keras", overrides=confirmed)
    live = built()
    live.optimizer.build(live.trainable_variables)
    report = migrate.restore(source, live.optimizer, live.weights, restore_variables=True, overrides=confirmed)
    assert report.fidelity == "exact", report.reasons
    model.train_on_batch(*batch)
    live.train_on_batch(*batch)
    for one, other in zip(model.get_weights(), live.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


SCALED = KERAS / "scaled"
FACTOR = 8.0


def test_keras_divides_gradients_inside_of_a_loss_scale_optimizer(tmp_path: Path) -> None:
    """By the `loss_scale_factor` of the optimizer there, by which no loss is multiplied."""
    source, target = SCALED / "model.keras", tmp_path / "slots"
    reasons = " ".join(migrate.read(source).reasons)
    assert f"divides them by loss_scale_factor = {FACTOR}" in reasons
    assert "--set gradients=program" in reasons
    assert migrate.migrate_checkpoint(source, target, overrides={"gradients": "program"}).fidelity == "exact"
    oracle = {key: value / FACTOR if "grad/" in key else value for key, value in np.load(SCALED / "oracle.npz").items()}
    assert next_steps.of_slots(target, oracle, 6) < next_steps.NEAR


def test_gradients_are_divided_too_where_the_wrapper_shows_in_the_file_alone(tmp_path: Path) -> None:
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.train_on_batch(np.ones((4, 2)), np.ones((4, 1)))
    model.save_weights(tmp_path / "x.weights.h5")
    inner = {"class_name": "SGD", "config": {**model.optimizer.inner_optimizer.get_config(), "loss_scale_factor": 8.0}}
    assert "loss_scale_factor" in " ".join(migrate.read(tmp_path / "x.weights.h5", optimizer_config=inner).reasons)


def test_nadams_product_within_a_loss_scale_optimizer_begins_anew_at_each_step_on_jax(tmp_path: Path) -> None:
    """Run with Keras 3.2, 3.9, 3.12 and 3.15 on JAX: it is 1 after any number of steps."""
    import h5py
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Nadam(0.01)), "mse")
    model.train_on_batch(np.ones((4, 2)), np.ones((4, 1)))
    model.save(tmp_path / "x.h5")
    product = {"u_product": float(model.optimizer.inner_optimizer._u_product)}
    assert migrate.read(tmp_path / "x.h5", overrides=product).fidelity == "exact"
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        file.attrs["backend"] = "jax"
    assert "at each step" in " ".join(migrate.read(tmp_path / "x.h5", overrides=product).reasons)


@pytest.mark.parametrize("policy", ["DTypePolicy", "FloatDTypePolicy"])
def test_a_dtype_policy_of_keras3_is_its_name(policy: str) -> None:
    """Keras 3.0 to 3.4 call it FloatDTypePolicy; such a model was refused for tf-keras."""
    dtype = {"module": "keras", "class_name": policy, "config": {"name": "float32"}, "registered_name": None}
    config = {"name": "d", "trainable": True, "units": 2, "dtype": dtype}
    dense = {"module": "keras.layers", "class_name": "Dense", "config": config, "registered_name": None}
    model = {"class_name": "Sequential", "config": {"name": "m", "layers": [dense]}}
    (layer,) = canonical(model, "keras3")["config"]["layers"]
    assert layer["config"]["dtype"] == "float32"
