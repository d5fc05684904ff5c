"""Loss scaling: steps that are not finite change nothing, the scale moves as Keras 3's, float16 learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim.errors import HyperparameterError, UnsupportedError
from tests.helpers.breadth import broad, covering
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.support import Place, executor_for, put, put_gradients, snapshot, start_values, stepper, variable

MODES = ("local", "portable", "function", "native")


def _values(scale: float, poison: float | None = None) -> dict[str, Any]:
    values = {name: np.ones_like(value) * scale for name, value in start_values().items()}
    if poison is not None:
        values["kernel"][5, 3] = poison
    return values


NORM, BOTH = {"global_clipnorm": 1.0}, {"clipvalue": 0.1, "clipnorm": 0.2}


@pytest.mark.parametrize(
    ("mode", "clip", "poison"),
    [
        *((mode, {}, np.nan) for mode in MODES),
        ("local", NORM, -np.inf),
        ("local", BOTH, np.inf),
        *(
            broad("local", clip, poison)
            for clip, poison in ((NORM, np.nan), (NORM, np.inf), (BOTH, np.nan), (BOTH, -np.inf))
        ),
        ("native", NORM, np.inf),
        ("native", BOTH, -np.inf),
        ("portable", BOTH, np.inf),
        ("function", NORM, -np.inf),
    ],
    ids=str,
)
@pytest.mark.quick(2)
def test_a_step_that_is_not_finite_changes_nothing(mode: str, clip: Any, poison: float, request: Any) -> None:
    place = Place.named("mixed", request)
    variables = place.variables(start_values(), tf.float32)
    options = {"use_ema": True, "ema_overwrite_frequency": 1, "weight_decay": 0.1, **clip}
    optimizer = optim.Nadam(0.1, loss_scale="dynamic", executor=executor_for(mode), **options)
    step = stepper(optimizer, mode)
    step(put_gradients(_values(2.0**15), variables))
    # The scale and its counter are all that may change.
    scalars = ("loss_scale", "finite_steps")
    state = [v for v in optimizer.variables if v.name.split(":")[0].split("/")[-1] not in scalars]
    assert len(state) == len(optimizer.variables) - 2
    before = snapshot([*variables.values(), *state])
    step(put_gradients(_values(2.0**15, poison), variables))
    assert snapshot([*variables.values(), *state]) == before
    assert optimizer.current_loss_scale == 2.0**14
    step(put_gradients(_values(2.0**14), variables))
    assert snapshot([*variables.values(), *state]) != before
    assert int(optimizer.iterations.numpy()) == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_window_that_is_not_finite_restarts(mode: str, mesh_2: Any) -> None:
    layout = dtensor.Layout(["x"], mesh_2)
    var = variable(np.ones(4), layout, "w")
    optimizer = optim.SGD(1.0, loss_scale=4.0, gradient_accumulation_steps=2, executor=executor_for(mode))
    step = stepper(optimizer, mode)
    for value, expected in ((4.0, 1.0), (np.inf, 1.0), (8.0, 1.0), (16.0, -2.0)):
        step([(put(np.full(4, value), layout), var)])
        np.testing.assert_array_equal(value_of(var), expected)
    assert int(optimizer.iterations.numpy()) == 1


@pytest.mark.parametrize("mode", ["local", "function"])
def test_the_scale_moves_as_that_of_keras_3(mode: str, devices: list[str], monkeypatch: Any) -> None:
    """The same gradients to Keras's own LossScaleOptimizer: same scales, same variables."""
    import keras

    if keras.backend.backend() != "tensorflow":
        pytest.skip("Keras runs on another backend here")
    theirs = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5, momentum=0.9), dynamic_growth_steps=3)
    kept = keras.Variable([1.0, -2.0])
    theirs.build([kept])
    var = tf.Variable([1.0, -2.0])
    ours = optim.SGD(0.5, momentum=0.9, loss_scale="dynamic", loss_scale_growth_steps=3, executor=executor_for(mode))
    step = stepper(ours, mode)
    scales = []
    for call in range(20):
        bad = call in (0, 4, 5, 12)
        scale = float(theirs.dynamic_scale.numpy())
        gradient = tf.constant([0.25, np.inf if bad else -0.5]) * scale
        theirs.apply([gradient])
        step([(gradient, var)])
        scales.append(ours.current_loss_scale)
        assert scales[-1] == float(theirs.dynamic_scale.numpy())
        np.testing.assert_allclose(var.numpy(), kept.numpy(), rtol=1e-6)
    assert len(set(scales)) > 3
    assert int(ours.iterations.numpy()) == 16


@pytest.mark.parametrize("mode", ["local", "function"])
def test_the_scale_stays_within_one_and_float32(mode: str, devices: list[str]) -> None:
    """As TensorFlow's LossScaleOptimizer, and unlike Keras 3's, which falls to 0 and grows to infinity."""
    var = tf.Variable([0.0])
    optimizer = optim.SGD(0.0, loss_scale="dynamic", loss_scale_growth_steps=1, executor=executor_for(mode))
    step = stepper(optimizer, mode)
    for _ in range(17):
        step([(tf.constant([np.nan]), var)])
    assert optimizer.current_loss_scale == 1.0
    for _ in range(130):
        step([(tf.constant([1.0]), var)])
    assert optimizer.current_loss_scale == 2.0**127


@pytest.mark.parametrize("mode", MODES)
def test_float16_learns_from_gradients_that_float16_cannot_hold(mode: str, mesh_2: Any) -> None:
    """3e-8·2^15 is a float16 number, 3e-8 is none: the quotient must not be rounded to float16 on the way."""
    layout = dtensor.Layout(["x"], mesh_2)
    for options in ({}, {"gradient_accumulation_steps": 2}, {"global_clipnorm": 1.0}, {"clipvalue": 1.0}):
        var = variable(np.zeros(4), layout, "w", tf.float16)
        optimizer = optim.SGD(2.0**20, loss_scale=2.0**15, executor=executor_for(mode), **options)
        step = stepper(optimizer, mode)
        for _ in range(2):
            step([(put(np.full(4, 3e-8 * 2.0**15), layout, tf.float16), var)])
        expected = -3e-8 * 2.0**20 * (1 if "gradient_accumulation_steps" in options else 2)
        np.testing.assert_allclose(value_of(var).astype(np.float64), expected, rtol=2e-3)


@pytest.mark.parametrize("executor", ["local", "portable"])
def test_a_norm_too_large_before_it_is_unscaled(executor: str, devices: list[str]) -> None:
    """1e16·2^15 squared is beyond float32, 1e16 squared is not: the step is a finite one."""
    var = tf.Variable(tf.zeros(2))
    optimizer = optim.SGD(1.0, loss_scale=2.0**15, global_clipnorm=5.0, executor=executor)
    optimizer.apply_gradients([(tf.constant([3e16, 4e16]) * 2.0**15, var)])
    np.testing.assert_allclose(var.numpy(), [-3.0, -4.0], rtol=1e-6)


@covering(1, place=["plain", "mesh"], scale=[8.0, "dynamic"], traced=[False, True])
def test_minimize_is_compute_and_apply(place: str, scale: Any, traced: bool, mesh_2: Any) -> None:
    layout = None if place == "plain" else dtensor.Layout(["x"], mesh_2)
    factor = 2.0**15 if scale == "dynamic" else scale

    def one(optimizer: Any, var: Any) -> None:
        optimizer.minimize(lambda: tf.reduce_sum(var**2), [var])

    def two(optimizer: Any, var: Any) -> None:
        optimizer.apply_gradients(optimizer.compute_gradients(lambda: tf.reduce_sum(var**2), [var]))

    def taped(optimizer: Any, var: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(var**2)
        optimizer.minimize(loss, [var], tape)

    def own(optimizer: Any, var: Any) -> None:
        optimizer.build([var])
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(var**2))
        seed = tf.ones_like(loss) if layout is not None and not traced else None
        optimizer.apply_gradients([(tape.gradient(loss, var, output_gradients=seed), var)])

    for way in (one, two, taped, own):
        var = variable([1.0, 2.0], layout, "w")
        optimizer = optim.SGD(0.25, loss_scale=scale)
        step = tf.function(way, autograph=False) if traced else way
        step(optimizer, var)
        np.testing.assert_array_equal(value_of(var), [0.5, 1.0])
        if not traced:
            ((gradient, _),) = optimizer.compute_gradients(lambda v=var: tf.reduce_sum(v**2), [var])
            np.testing.assert_array_equal(value_of(gradient), np.array([1.0, 2.0]) * factor)


def test_a_float16_loss(devices: list[str]) -> None:
    var = tf.Variable([1.0], dtype=tf.float16)
    with pytest.raises(HyperparameterError, match="float16"):
        optim.SGD(0.1, loss_scale=1e6).scale_loss(tf.reduce_sum(var))
    optimizer = optim.SGD(0.5, loss_scale="dynamic")
    # The loss times its scale is beyond float16, but compute_gradients scales what is propagated back instead.
    optimizer.minimize(lambda: 3.0 + tf.reduce_sum(var) * 0.5, [var])
    assert var.numpy() == [0.75]
    scaled = optimizer.scale_loss(tf.constant(0.5, tf.float16))
    assert scaled.dtype == tf.float16
    assert scaled.numpy() == 2.0**14


def test_without_loss_scale_nothing_is_scaled(devices: list[str]) -> None:
    optimizer = optim.SGD(0.5)
    assert optimizer.scale_loss(2.0) == 2.0
    assert optimizer.current_loss_scale is None
    assert optim.SGD(0.5, loss_scale=2).current_loss_scale == 2.0


def test_a_scale_in_a_function_needs_to_know_its_mesh(mesh_2: Any) -> None:
    """A trace would keep the scale that has not moved to the mesh yet, forever."""
    layout = dtensor.Layout(["x"], mesh_2)
    var = variable(np.ones(2), layout, "w")
    loss_layout = dtensor.Layout.replicated(mesh_2, 0)
    loss = put(1.0, loss_layout)
    optimizer = optim.SGD(0.5, loss_scale="dynamic")
    scale = tf.function(optimizer.scale_loss, autograph=False)
    with pytest.raises(UnsupportedError, match="build"):
        scale(loss)
    # Eagerly there is nothing to know beforehand; the scale is not on the loss's mesh yet.
    half = put(0.5, loss_layout, tf.float16)
    assert value_of(optimizer.scale_loss(half)) == 2.0**14
    optimizer.build([var])
    assert float(scale(loss)) == 2.0**15
    optimizer.apply_gradients([(put([np.nan, 1.0], layout), var)])
    assert float(scale(loss)) == 2.0**14


@pytest.mark.parametrize(
    "wrong",
    [
        {"loss_scale": 0},
        {"loss_scale": -1.0},
        {"loss_scale": float("inf")},
        {"loss_scale": float("nan")},
        {"loss_scale": 1e39},
        {"loss_scale": True},
        {"loss_scale": "static"},
        {"loss_scale_growth_steps": 5},
        {"loss_scale": 8.0, "loss_scale_growth_steps": 5},
        {"loss_scale": "dynamic", "loss_scale_growth_steps": 0},
        {"loss_scale": "dynamic", "loss_scale_growth_steps": 1.5},
    ],
    ids=str,
)
def test_wrong_scales(wrong: Any) -> None:
    with pytest.raises(HyperparameterError, match="loss_scale"):
        optim.SGD(0.1, **wrong)


def test_a_checkpoint_keeps_the_scale_and_may_get_another(mesh_2: Any, tmp_path: Any) -> None:
    layout = dtensor.Layout(["x"], mesh_2)
    var, other = variable(np.ones(2), layout, "w"), tf.Variable([0.0, 0.0], dtype=tf.float64, name="w")
    optimizer = optim.SGD(0.5, loss_scale="dynamic", loss_scale_growth_steps=3)
    for value in (np.nan, 1.0, 1.0):
        optimizer.apply_gradients([(put([1.0, value], layout), var)])
    optim.save_checkpoint(tmp_path / "c", optimizer, [var])
    resumed = optim.load_checkpoint(tmp_path / "c", [other])
    assert resumed.current_loss_scale == 2.0**14
    resumed.apply_gradients([(tf.constant([1.0, 1.0], tf.float64), other)])
    assert resumed.current_loss_scale == 2.0**15  # the third finite step in a row
    assert optim.load_checkpoint(tmp_path / "c", [other], loss_scale=4).current_loss_scale == 4.0

    optim.save_checkpoint(tmp_path / "plain", optim.SGD(0.5), [other])
    anew = optim.load_checkpoint(tmp_path / "plain", [other], loss_scale="dynamic")
    assert anew.current_loss_scale == 2.0**15
    restored = optim.SGD(0.5, loss_scale="dynamic", loss_scale_growth_steps=3)
    path = tf.train.Checkpoint(optimizer=optimizer).save(str(tmp_path / "tf"))
    tf.train.Checkpoint(optimizer=restored).restore(path)
    assert restored.current_loss_scale == 2.0**14


def test_the_local_step_reads_gradients_once_more_and_writes_none(mesh_2: Any, monkeypatch: Any) -> None:
    """Dividing joins the factor of clipping, and the norm's sum of squares tells that all is finite."""
    from optim.executors.shard_gradients import ShardGradients

    reads = []
    original = ShardGradients._add_up
    monkeypatch.setattr(ShardGradients, "_add_up", lambda self: reads.append(self) or original(self))
    monkeypatch.setattr(ShardGradients, "_apply_pending", lambda self: pytest.fail("gradients were rewritten"))
    layout = dtensor.Layout(["x"], mesh_2)
    var = variable(np.zeros(4), layout, "w")
    optimizer = optim.SGD(1.0, loss_scale=8.0, global_clipnorm=1.0, executor="local")
    optimizer.apply_gradients([(put(np.full(4, 8.0), layout), var)])
    np.testing.assert_allclose(value_of(var), -0.5, rtol=1e-12)
    assert len(reads) == 1
