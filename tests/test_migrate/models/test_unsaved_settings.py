"""What a file of a model does not show of how it trains: told by weights and shapes, or named in the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from migrate.bytes.arrays import LazyArray
from migrate.models import frozen, missing_settings, training
from migrate.readers.keras.left_out import complete, with_paddings
from migrate.releases.versions import Versions
from migrate.state import OptimizerState, Stored, StoredModel
from optim.errors import UnsupportedError

SUFFIX = {"keras": ".keras", "tf-keras": ".h5"}


def _behind(activation: str, kind: str = "Dense", name: str = "out") -> dict[str, Any]:
    return {"class_name": kind, "config": {"name": name, "activation": activation}}


@pytest.mark.parametrize(
    ("release", "kind", "activation", "loss", "has_reason"),
    [
        ("2.3.0", "Dense", "softmax", "binary_crossentropy", True),
        ("2.4.0", "Dense", "softmax", "binary_crossentropy", True),
        ("2.4.0", "Dense", "softmax", "categorical_crossentropy", False),
        ("2.4.0", "Softmax", "", {"class_name": "BinaryCrossentropy", "config": {}}, True),
        ("2.3.0", "Dense", "sigmoid", "binary_crossentropy", False),
        ("2.3.0", "Dense", "sigmoid", "sparse_categorical_crossentropy", True),
        ("2.3.0", "Dense", "linear", "binary_crossentropy", False),
        ("2.3.0", "LSTM", "softmax", "binary_crossentropy", False),
        ("2.3.0", "Dense", "softmax", {"class_name": "CategoricalCrossentropy", "config": {"from_logits": 1}}, True),
    ],
)
def test_a_loss_for_another_activation_is_told_where_releases_take_it_of_other_values(
    release: str, kind: str, activation: str, loss: Any, has_reason: bool
) -> None:
    """tf.keras keeps logits from 2.4 on, but not of the layer Softmax nor of tf.nn.softmax, saved under the name of its
    own; Keras 3 keeps these, too."""
    inner = {"class_name": "Sequential", "config": {"name": "inner", "layers": [_behind(activation, kind)]}}
    fitting = _behind("sigmoid", name="other")
    ends = [["inner", 0, 0], ["other", 0, 0]]
    model = {"class_name": "Functional", "config": {"layers": [inner, fitting], "output_layers": ends}}
    for losses in ([loss, "binary_crossentropy"], {"inner": loss, "other": "binary_crossentropy"}):
        stored = StoredModel(model, {"loss": losses}, None)
        source = Stored("h5", "optimizer_v2", (), None, (), versions=Versions(release), model=stored)
        reasons = [text for text in training.differences(None, source, "keras") if "does not suit the loss" in text]
        assert len(reasons) == has_reason


@pytest.mark.parametrize("generation", ["optimizer_v2", "keras3", "keras2"])
def test_hard_sigmoid_within_a_layer_and_calls_without_training_are_told(generation: str) -> None:
    """Keras 3 has another hard_sigmoid, and ignores training=False, which is not in a document made of its own."""
    lstm = {"class_name": "LSTM", "config": {"name": "lstm", "recurrent_activation": "hard_sigmoid"}}
    arguments = {} if generation == "keras3" else {"training": False}
    layers = [
        {"class_name": "InputLayer", "config": {"name": "x"}, "inbound_nodes": []},
        {
            "class_name": "Bidirectional",
            "config": {"name": "both", "layer": lstm},
            "inbound_nodes": [[["x", 0, 0, {}]]],
        },
        {
            "class_name": "Dropout",
            "config": {"name": "drop", "rate": 0.5},
            "inbound_nodes": [[["both", 0, 0, arguments]]],
        },
    ]
    config = {"layers": layers, "input_layers": [["x", 0, 0]], "output_layers": [["drop", 0, 0]]}
    document = {"class_name": "Functional", "config": config}
    source = Stored("h5", generation, (), None, (), model=StoredModel(document, None, None))
    reasons = {to: training.differences(document, source, to) for to in SUFFIX}
    hard, *others = reasons["tf-keras" if generation == "keras3" else "keras"]
    assert not reasons["keras" if generation == "keras3" else "tf-keras"]
    assert hard.startswith("both: the source's ")
    assert "max(x/5" in hard
    assert "max(x/6" in hard
    assert [reason.partition(": ")[0] for reason in others] == (["drop"] if arguments else [])
    assert all("training=False" in reason for reason in others)


def test_what_no_file_holds_is_told() -> None:
    """Of adapted kernels, states, and the losses and paddings that Keras 3 does not save."""
    layers = [
        {"class_name": "InputLayer", "config": {"name": "x"}},
        {"class_name": "Dense", "config": {"name": "adapted", "lora_rank": 2}},
        {"class_name": "LSTM", "config": {"name": "kept", "stateful": True}},
        {"class_name": "Conv1DTranspose", "config": {"name": "last", **TWICE}},
    ]
    model = {"class_name": "Sequential", "config": {"name": "m", "layers": layers}}
    reasons = missing_settings.of_model(StoredModel(with_paddings(model), None, None), by_keras3=True)
    assert [text.split()[0] for text in reasons] == ["last:", "adapted:", "kept:"]
    assert [text.split()[0] for text in missing_settings.of_model(StoredModel(model, None, None), by_keras3=False)] == [
        "kept:"
    ]


TWICE = {"kernel_size": [3], "strides": [2], "dilation_rate": [1], "padding": "same", "data_format": "channels_last"}


@pytest.mark.parametrize(("behind", "padding"), [(10, None), (9, [0]), (12, "not known"), (None, "not known")])
def test_a_padding_that_is_not_saved_is_what_the_shapes_tell(behind: int | None, padding: Any) -> None:
    """Of five steps a stride of 2 makes 10, and 9 with a padding of 0; 12 would be none that Keras takes."""
    layers = [
        {
            "class_name": "Conv1DTranspose",
            "config": {"name": "wider", **TWICE},
            "build_config": {"input_shape": [None, 5, 2]},
        },
        {"class_name": "ReLU", "config": {"name": "relu"}},
        {"class_name": "Dense", "config": {"name": "dense"}, "build_config": {"input_shape": [None, behind, 3]}},
    ]
    document = with_paddings({"class_name": "Sequential", "config": {"name": "m", "layers": layers}})
    assert document["config"]["layers"][0]["config"].get("output_padding", "not known") == padding


@pytest.mark.parametrize("trained", ["head", "base/attention"])
def test_frozen_attention_with_slots_elsewhere_is_refused_for_keras_3(trained: str) -> None:
    """Keras 3 trains it again when it loads it, and drops an optimizer's state that does not have its slots."""
    layer = {"class_name": "MultiHeadAttention", "config": {"name": "attention", "trainable": False}}
    base = {"class_name": "Functional", "config": {"name": "base", "layers": [layer]}}
    config = {"class_name": "Functional", "config": {"name": "m", "layers": [base]}}
    slot = LazyArray((2,), "float32", lambda: np.zeros(2, "float32"), "m")
    state = OptimizerState("Adam", {}, 1, "", {"m": {f"{trained}/kernel": slot}}, ())
    if trained == "head":
        with pytest.raises(UnsupportedError, match="attention: frozen"):
            frozen.check(config, state)
    else:
        frozen.check(config, state)


@pytest.mark.parametrize(("behind", "padding"), [(10, None), (9, [0])])
def test_a_padding_that_is_not_saved_is_what_tensors_of_a_graph_tell(behind: int, padding: Any) -> None:
    """An `.h5` has the shapes of tensors alone."""

    def called(name: str, shape: list[int | None]) -> list[Any]:
        config = {"shape": shape, "dtype": "float32", "keras_history": [name, 0, 0]}
        return [{"args": [{"class_name": "__keras_tensor__", "config": config}], "kwargs": {}}]

    layers = [
        {"class_name": "InputLayer", "name": "x", "config": {"name": "x"}, "inbound_nodes": []},
        {"class_name": "Conv1DTranspose", "name": "wider", "config": TWICE, "inbound_nodes": called("x", [None, 5, 2])},
        {"class_name": "Dense", "name": "y", "config": {}, "inbound_nodes": called("wider", [None, behind, 3])},
    ]
    config = {"name": "m", "layers": layers, "input_layers": ["x", 0, 0], "output_layers": ["y", 0, 0]}
    document = with_paddings({"class_name": "Functional", "config": config})
    assert document["config"]["layers"][1]["config"]["output_padding"] == padding


@pytest.mark.parametrize(
    ("scale", "weights", "settings", "doubted"),
    [
        (True, ["gamma"], {"rms_scaling": True}, 0),
        (True, ["gamma", "beta"], {}, 0),
        (False, ["gamma"], {}, 1),
    ],
)
def test_a_scaling_that_is_not_saved_is_what_the_weights_tell(
    scale: bool, weights: list[str], settings: dict[str, Any], doubted: int
) -> None:
    config = {"name": "norm", "center": True, "scale": scale}
    model = {"class_name": "Sequential", "config": {"layers": [{"class_name": "LayerNormalization", "config": config}]}}
    document = complete(model, [f"m/norm/{name}" for name in weights])
    assert document["config"]["layers"][0]["config"] == {**config, **settings}
    assert len(missing_settings.of_model(StoredModel(document, None, None), by_keras3=True)) == doubted


@pytest.mark.parametrize("wrapper", [{}, {"class_name": "Bidirectional"}])
def test_a_frozen_conv_lstm_is_one_that_keras_3_trains_when_it_loads_it(wrapper: dict[str, Any]) -> None:
    layer: dict[str, Any] = {"class_name": "ConvLSTM1D", "config": {"name": "moving", "trainable": bool(wrapper)}}
    if wrapper:
        layer = {**wrapper, "config": {"name": "both", "trainable": False, "layer": layer}}
    assert [*frozen.thawed_by_loading({"class_name": "Functional", "config": {"layers": [layer]}})] == ["moving"]


@pytest.mark.parametrize(("dtype", "fidelity"), [("float32", "exact"), ("bfloat16", "approximate")])
def test_a_step_in_sixteen_bits_is_not_exact_in_float32(dtype: str, fidelity: str, tmp_path: Path) -> None:
    """In bfloat16 Adam's beta_2 is 1, so that Keras's variables do not move at all."""
    import keras
    import tensorflow as tf

    import optim

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, dtype=dtype)])
    model.compile(keras.optimizers.Adam(0.1), "mse")
    batch = np.ones((4, 2), np.float32), np.full((4, 1), 9, np.float32)
    model.train_on_batch(*batch)
    model.save(tmp_path / "model.keras")
    before = np.asarray(model.weights[0], np.float32)
    model.train_on_batch(*batch)
    assert np.array_equal(np.asarray(model.weights[0], np.float32), before) == (dtype == "bfloat16")
    assert migrate.migrate_checkpoint(tmp_path / "model.keras", tmp_path / "slots").fidelity == fidelity
    names = [v.name for v in migrate.read(tmp_path / "model.keras").variables]
    onto = dict(zip(names, model.weights, strict=True))
    for live, live_fidelity in ((keras.optimizers.Adam(0.1), "exact"), (optim.Adam(0.1, epsilon=1e-7), fidelity)):
        variables = onto if live_fidelity == "exact" else {name: tf.Variable(v.value) for name, v in onto.items()}
        assert migrate.restore(tmp_path / "model.keras", live, variables).fidelity == live_fidelity


def _given_state(masked: bool) -> Any:
    """An LSTM whose state is another layer's output."""
    import tf_keras as keras

    words, other = keras.Input((4,)), keras.Input((3,))
    looked_up = keras.layers.Embedding(5, 3, mask_zero=masked)(words)
    cell = keras.layers.LSTM(3)
    return keras.Model([words, other], keras.layers.Dense(2)(cell(looked_up, initial_state=[other, other])))


@pytest.mark.breadth
@pytest.mark.parametrize("masked", [True, False])
def test_masks_next_to_a_given_state_are_named(masked: bool, tmp_path: Path) -> None:
    """Keras 3 hands a mask on to a layer of one tensor alone; the same model of tf_keras answered otherwise there."""
    model = _given_state(masked)
    model.compile("adam", "mse")
    model.train_on_batch([np.array([[1, 2, 0, 0]]), np.ones((1, 3))], np.ones((1, 2)))
    model.save(source := tmp_path / "source.h5")
    reports = {to: migrate.migrate_checkpoint(source, tmp_path / f"m{SUFFIX[to]}", to=to) for to in SUFFIX}
    reasons = [reason for reason in reports["keras"].reasons if "if it gets an initial state" in reason]
    assert bool(reasons) is masked
    assert reports["tf-keras"].fidelity == "exact"
