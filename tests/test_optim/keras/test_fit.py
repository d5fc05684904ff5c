"""`optim.for_keras`: `compile` and `fit` of Keras 3 and tf_keras, against what their own optimizers do."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.experimental import dtensor

import optim
from optim.errors import CheckpointError, HyperparameterError, MismatchError, UnsupportedError
from tests.helpers.breadth import broad, covering
from tests.helpers.dtensor_asserts import layout_of

X = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(16, 2)).astype(np.float32)
MODULES = (keras, tf_keras)
BOTH = pytest.mark.parametrize("module", MODULES, ids=["keras3", "tf_keras"])
# Keras 3 starts averages from the first updated value, not the initial one, and forms 1 − β in float32.
ROUNDING = {"rtol": 2e-5, "atol": 2e-6}


@pytest.fixture(autouse=True)
def _devices(devices: list[str]) -> None:
    """Logical devices come before the first model."""


def model(module: Any, **options: Any) -> Any:
    module.utils.set_random_seed(3)
    layers = module.layers
    first = layers.Dense(8, "relu", name="first", **options)
    return module.Sequential([layers.Input((4,)), first, layers.Dense(2, name="second", **options)])


def fit(model: Any, module: Any, epochs: int = 2, callbacks: Any = (), shuffle: bool = False) -> dict[str, list[float]]:
    history = model.fit(X, Y, 4, epochs, verbose=0, shuffle=shuffle, callbacks=list(callbacks))
    return {name: [float(v) for v in values] for name, values in history.history.items()}


def trained(module: Any, optimizer: Any, callbacks: Any = (), epochs: int = 2, **compiling: Any) -> tuple[Any, Any]:
    made = model(module)
    made.compile(optimizer, module.losses.MeanSquaredError(), **(compiling or {"jit_compile": False}))
    return made, fit(made, module, epochs, callbacks)


def assert_alike(module: Any, theirs: Any, ours: Any, callbacks: Callable[[], Any] = tuple, **compiling: Any) -> Any:
    """A fit with Keras's optimizer, eagerly, and one with ours: the same history and weights, to float32 rounding."""
    expected, histories = trained(module, theirs, callbacks(), run_eagerly=True)
    found, history = trained(module, optim.for_keras(ours, module), callbacks(), **compiling)
    assert set(history) == set(histories)
    for name, values in histories.items():
        np.testing.assert_allclose(history[name], values, err_msg=name, **ROUNDING)
    for one, two in zip(found.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(one, two, **ROUNDING)
    return found


HOW = [{"jit_compile": True}, {"jit_compile": False, "steps_per_execution": 3}, {"run_eagerly": True}]


@covering(1, module=MODULES, compiling=HOW)
@pytest.mark.quick(2)
def test_a_fit_is_that_of_keras(module: Any, compiling: Any) -> None:
    options = {"global_clipnorm": 0.5, "weight_decay": 0.1}
    theirs, ours = module.optimizers.Adam(0.01, **options), optim.Adam(0.01, **options)
    found = assert_alike(module, theirs, ours, **compiling)
    assert int(found.optimizer.iterations.numpy()) == int(ours.iterations.numpy()) == 8
    assert isinstance(found.optimizer, module.optimizers.Optimizer)
    assert found.optimizer.inner is ours


NAMES = ["SGD", "RMSprop", "Adagrad", "Adadelta", "Adam", "AdamW", "Adamax", "Nadam", "Ftrl", "Lion", "Adafactor"]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (keras, "Adafactor"),
        (tf_keras, "RMSprop"),
        *(broad(module, name) for module in MODULES for name in sorted({*NAMES, "Muon"} - {"Adafactor", "RMSprop"})),
        broad(keras, "RMSprop"),
        broad(tf_keras, "Adafactor"),
    ],
)
@pytest.mark.quick(1)
def test_every_optimizer_fits(module: Any, name: str) -> None:
    if module is tf_keras and name == "Muon":
        pytest.skip("tf_keras has no Muon")
    rate = float(getattr(optim, name)().learning_rate.numpy())  # tf_keras has another for Lion
    ours, theirs = (getattr(classes, name)(learning_rate=rate) for classes in (optim, module.optimizers))
    assert_alike(module, theirs, ours, run_eagerly=True)  # tf_keras's Nadam is wrong inside a tf.function


@BOTH
@pytest.mark.quick(1)
def test_callbacks_that_set_the_learning_rate(module: Any) -> None:
    callbacks = module.callbacks
    halve = lambda: [callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)]  # noqa: E731
    stop = callbacks.EarlyStopping
    plateau = lambda: [  # noqa: E731
        callbacks.ReduceLROnPlateau("loss", 0.1, 0, min_delta=10),
        stop("loss", patience=0, min_delta=10),
    ]
    make = module.optimizers.SGD
    found = assert_alike(module, make(0.1, momentum=0.9), optim.SGD(0.1, momentum=0.9), halve, run_eagerly=True)
    assert float(found.optimizer.learning_rate.numpy()) == pytest.approx(0.025)
    found = assert_alike(module, make(0.1), optim.SGD(0.1), plateau, run_eagerly=True)
    assert float(found.optimizer.learning_rate.numpy()) == pytest.approx(0.01)


@BOTH
@pytest.mark.quick(1)
def test_schedules_of_keras(module: Any) -> None:
    schedule = module.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    found = assert_alike(module, module.optimizers.SGD(schedule), optim.SGD(schedule))
    assert float(found.optimizer.learning_rate) == pytest.approx(0.1 * 0.5 ** (8 / 3))
    with pytest.raises(TypeError, match="LearningRateSchedule"):
        found.optimizer.learning_rate = 0.5


@BOTH
def test_a_schedule_that_is_set_between_fits_acts(module: Any) -> None:
    made, _ = trained(module, optim.for_keras(optim.SGD(0.1), module), epochs=1)
    before = made.get_weights()
    made.optimizer.learning_rate = module.optimizers.schedules.PiecewiseConstantDecay([10**6], [0.0, 1.0])
    fit(made, module, epochs=1)
    for one, two in zip(made.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, two)


@BOTH
@pytest.mark.parametrize("policy", ["mixed_float16", broad("mixed_bfloat16")])
@pytest.mark.quick(1)
def test_mixed_precision(module: Any, policy: str) -> None:
    """Keras wraps the optimizer of a float16 model in its LossScaleOptimizer."""
    losses = []
    for optimizer in (module.optimizers.SGD(0.1, momentum=0.9), optim.for_keras(optim.SGD(0.1, momentum=0.9), module)):
        made = model(module, dtype=policy)
        made.compile(optimizer, module.losses.MeanSquaredError(), jit_compile=False)
        losses.append(fit(made, module)["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)
    assert losses[1][-1] < losses[1][0]


@BOTH
def test_loss_scaling_skips_steps_that_are_not_finite(module: Any) -> None:
    scaling = (module.optimizers if module is keras else module.mixed_precision).LossScaleOptimizer
    inner = optim.SGD(0.1, momentum=0.9)
    wrapped = scaling(optim.for_keras(inner, module), initial_scale=2.0)
    variable = keras.Variable([1.0, 2.0]) if module is keras else tf.Variable([1.0, 2.0])
    raw = getattr(variable, "value", variable) if module is keras else variable
    scale = 2.0 if module is keras else 1.0  # Keras 3 takes scaled gradients here
    for value in (scale, np.inf):
        wrapped.apply_gradients([(tf.constant([value, 0.0]), variable)])
        np.testing.assert_allclose(raw.numpy(), [0.9, 2.0], rtol=1e-6)
    np.testing.assert_allclose(inner.get_slot(variable, "m").numpy(), [-0.1, 0.0], rtol=1e-6)


def test_averages_are_swapped_in_for_evaluation() -> None:
    """SwapEMAWeights of Keras 3; at the end of `fit` the averages are the weights."""
    ours = optim.SGD(0.1, use_ema=True, ema_momentum=0.5, ema_start="initial")
    made = model(keras)
    made.compile(optim.for_keras(ours, keras), "mse", jit_compile=False)
    start = made.get_weights()
    seen = []

    class Watch(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append(made.get_weights()[0])

    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    made.fit(X, Y, 16, 1, verbose=0, shuffle=False, callbacks=[swap, Watch()])
    plain = model(keras)
    plain.compile(optim.for_keras(optim.SGD(0.1), keras), "mse", jit_compile=False)
    plain.fit(X, Y, 16, 1, verbose=0, shuffle=False)
    average = (start[0] + plain.get_weights()[0]) / 2
    np.testing.assert_allclose(seen[0], average, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(made.get_weights()[0], average, rtol=1e-5, atol=1e-7)


def _save_and_load(module: Any, made: Any, target: str, kind: str) -> Any:
    """Another model with the state of `made`, by way of a file."""
    if kind in (".keras", ".h5"):
        made.save(target)
        return module.models.load_model(target, custom_objects=optim.keras_objects(module))
    again = model(module)
    again.compile(optim.for_keras(optim.Adam(0.5, use_ema=True), module), module.losses.MeanSquaredError())
    if kind == "ckpt":
        tf.train.Checkpoint(model=again).read(tf.train.Checkpoint(model=made).write(target))
        return again
    if kind == "savedmodel":  # in which load_model of tf_keras leaves the state of its own optimizers alone, too
        made.save(target, save_format="tf")
    else:
        made.save_weights(target)
    again.optimizer.build(again.trainable_variables)
    again.load_weights(target)
    return again


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (keras, ".keras"),
        (keras, "ckpt"),
        *((tf_keras, kind) for kind in (".keras", ".weights.h5", ".h5", "savedmodel")),
        broad(keras, ".weights.h5"),
        broad(tf_keras, "ckpt"),
    ],
)
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
@pytest.mark.quick(1)
def test_training_resumes_from_what_keras_saves(module: Any, kind: str, tmp_path: Any) -> None:
    """The next epoch is the same to the last bit, whatever the layers of the other model are called.

    Keras 3 restores no optimizer from .h5, its own neither, and has no format `savedmodel`.
    """
    made, _ = trained(module, optim.for_keras(optim.Adam(0.01, use_ema=True), module))
    again = _save_and_load(module, made, str(tmp_path / f"saved{kind}"), kind)
    for one in (made, again):
        fit(one, module, 1)
    assert int(again.optimizer.iterations.numpy()) == 12
    assert again.optimizer.learning_rate.numpy() == np.float32(0.01)
    assert again.optimizer.get_config()["learning_rate"] == 0.01
    assert again.optimizer.use_ema is True
    for found, expected in zip(again.optimizer.variables, made.optimizer.variables, strict=True):
        np.testing.assert_array_equal(found.numpy(), expected.numpy(), err_msg=found.name)
    for found, expected in zip(again.get_weights(), made.get_weights(), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.breadth
@BOTH
def test_an_interrupted_fit_goes_on(module: Any, tmp_path: Any) -> None:
    class Stop(module.callbacks.Callback):  # type: ignore[misc,name-defined]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                raise KeyboardInterrupt

    make = lambda: optim.for_keras(optim.Adam(0.01), module)  # noqa: E731
    whole = trained(module, make(), epochs=3)[1]["loss"]
    backup = module.callbacks.BackupAndRestore
    with pytest.raises(KeyboardInterrupt):
        trained(module, make(), [backup(str(tmp_path)), Stop()], 3)
    rest = trained(module, make(), [backup(str(tmp_path))], 3)[1]["loss"]
    assert rest == whole[1:]


@BOTH
@pytest.mark.quick(1)
def test_model_checkpoint(module: Any, tmp_path: Any) -> None:
    path = str(tmp_path / "best.keras")
    saving = module.callbacks.ModelCheckpoint(path, monitor="loss", save_best_only=True)
    made, _ = trained(module, optim.for_keras(optim.Adamax(0.01), module), [saving])
    again = module.models.load_model(path)
    assert type(again.optimizer.inner) is optim.Adamax
    assert fit(again, module, 1) == fit(made, module, 1)


@BOTH
@pytest.mark.quick(1)
def test_an_algorithm_of_ones_own_is_saved_by_its_registered_name(module: Any, tmp_path: Any) -> None:
    class SignDescent(optim.Optimizer):
        def __init__(self, learning_rate: Any = 0.01, name: str = "SignDescent", **options: Any):
            super().__init__(name, learning_rate=learning_rate, **options)

        def update_step(self, gradient: Any, variable: Any) -> None:
            variable.assign_sub(tf.cast(self.learning_rate, variable.dtype) * tf.sign(gradient))

    made, _ = trained(module, optim.for_keras(SignDescent(0.02, clipnorm=1.0), module))
    path = str(tmp_path / "m.keras")
    made.save(path)
    with pytest.raises((HyperparameterError, TypeError), match="SignDescent"):
        module.models.load_model(path)
    with module.utils.custom_object_scope({module.saving.get_registered_name(SignDescent): SignDescent}):
        again = module.models.load_model(path)
    assert fit(again, module, 1) == fit(made, module, 1)
    assert again.optimizer.clipnorm == 1.0


def test_keras_3_loads_h5_without_state_and_trains(tmp_path: Any) -> None:
    made, _ = trained(keras, optim.for_keras(optim.Adam(0.01), keras), epochs=1)
    made.save(tmp_path / "m.h5")
    again = keras.models.load_model(tmp_path / "m.h5", custom_objects=optim.keras_objects(keras))
    assert type(again.optimizer.inner) is optim.Adam
    fit(again, keras, 1)
    assert int(again.optimizer.iterations.numpy()) == 4


@BOTH
@pytest.mark.quick(1)
def test_state_that_does_not_fit_is_refused(module: Any) -> None:
    made, _ = trained(module, optim.for_keras(optim.Adam(0.01), module), epochs=1)
    store: dict[str, Any] = {}
    made.optimizer.save_own_variables(store)
    assert store["v.1"].shape == (8,)
    other = optim.for_keras(optim.SGD(0.01, momentum=0.5), module)
    other.build(made.trainable_variables)
    before = [v.numpy() for v in other.variables]
    for broken in (store, {k: v for k, v in store.items() if k != "m.0"}, {**store, "m.1": np.zeros(3)}):
        target = other if broken is store else made.optimizer
        with pytest.raises(CheckpointError):
            target.load_own_variables(broken)
    for now, then in zip(other.variables, before, strict=True):
        np.testing.assert_array_equal(now.numpy(), then)
    with pytest.raises(MismatchError, match=r"optimizer\.variables shows their order and shapes"):
        made.optimizer.set_weights([np.zeros(3)])
    with pytest.raises(MismatchError, match=r"call optimizer\.build\(variables\) first"):
        optim.for_keras(optim.Adam(), module).set_weights([np.zeros(3)])
    made.optimizer.set_weights([np.zeros(v.shape) for v in made.optimizer.variables])
    assert all(np.all(v.numpy() == 0) for v in made.optimizer.variables)


@BOTH
def test_options_are_those_of_the_optimizer_inside(module: Any) -> None:
    optimizer = optim.for_keras(optim.Adam(0.5, clipnorm=2.0), module)
    assert (optimizer.clipnorm, optimizer.use_ema, optimizer.beta_1, optimizer.name) == (2.0, False, 0.9, "Adam")
    optimizer.clipnorm, optimizer.beta_1 = 1.0, 0.5
    assert (optimizer.inner.clipnorm, optimizer.inner.beta_1) == (1.0, 0.5)
    with pytest.raises(UnsupportedError, match="use_ema"):
        optimizer.use_ema = True
    with pytest.raises(AttributeError, match="a method"):
        optimizer.executor_report = None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = optimizer.nonsense
    optimizer.learning_rate = 0.25
    assert float(optimizer.inner.learning_rate.numpy()) == 0.25
    again = module.optimizers.deserialize(module.optimizers.serialize(optimizer))
    assert again.get_config() == optimizer.get_config()


def test_apply_takes_gradients_in_build_order() -> None:
    optimizer = optim.for_keras(optim.SGD(0.5), keras)
    variables = [keras.Variable([1.0]), keras.Variable([2.0])]
    optimizer.build(variables)
    optimizer.apply([tf.constant([1.0]), tf.constant([2.0])])
    assert [float(v.numpy()[0]) for v in variables] == [0.5, 1.0]
    with pytest.raises(MismatchError, match="1 gradients for the 2"):
        optimizer.apply([tf.constant([1.0])])


def test_what_cannot_be_is_refused(monkeypatch: Any) -> None:
    with pytest.raises(HyperparameterError, match="optimizer of optim"):
        optim.for_keras(keras.optimizers.SGD(), keras)
    with pytest.raises(UnsupportedError, match="both keras and tf_keras"):
        optim.for_keras(optim.SGD())
    with pytest.raises(UnsupportedError, match="must be the module"):
        optim.for_keras(optim.SGD(), np)
    elsewhere = types.SimpleNamespace(
        optimizers=keras.optimizers, backend=types.SimpleNamespace(backend=lambda: "numpy"), saving=keras.saving
    )
    with pytest.raises(UnsupportedError, match="KERAS_BACKEND"):
        optim.for_keras(optim.SGD(), elsewhere)
    optimizer = optim.for_keras(optim.SGD(), tf_keras)
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope(), pytest.raises(UnsupportedError, match="Strategy"):
        optimizer.apply_gradients([(tf.constant(1.0), tf.Variable(1.0))])
    with monkeypatch.context() as patch:
        patch.delitem(__import__("sys").modules, "tf_keras")
        assert isinstance(optim.for_keras(optim.SGD()), keras.optimizers.Optimizer)


# On a mesh.


@pytest.fixture
def mesh(devices: list[str]) -> Any:
    return dtensor.create_mesh([("batch", 2), ("model", 4)], devices=devices)


@pytest.fixture
def layout_map(mesh: Any) -> Iterator[Any]:
    """A kernel sharded over the axis model; LayoutMap needs tf_keras's own random generator."""
    tf_keras.backend.experimental.enable_tf_random_generator()
    tf_keras.utils.set_random_seed(3)
    found = tf_keras.dtensor.experimental.LayoutMap(mesh=mesh)
    found["first.kernel"] = dtensor.Layout(["unsharded", "model"], mesh)
    found["first.bias"] = dtensor.Layout(["model"], mesh)
    yield found
    tf_keras.backend.experimental.disable_tf_random_generator()


def _laid_out(layout_map: Any, start: Any) -> Any:
    with layout_map.scope():
        inputs = tf_keras.Input((4,))
        hidden = tf_keras.layers.Dense(8, "relu", name="first")(inputs)
        made = tf_keras.Model(inputs, tf_keras.layers.Dense(2, name="second")(hidden))
    for variable, value in zip(made.trainable_variables, start, strict=True):
        whole = dtensor.Layout.replicated(variable.layout.mesh, value.ndim)
        variable.assign(dtensor.relayout(dtensor.copy_to_mesh(tf.constant(value), whole), variable.layout))
    return made


@pytest.mark.breadth
@pytest.mark.parametrize(
    ("compiling", "placement"),
    [({}, "like_variable"), broad({"run_eagerly": True}, "zero1"), broad({"steps_per_execution": 2}, "zero1")],
    ids=["function", "eager", "steps_per_execution"],
)
def test_a_model_laid_out_by_a_layout_map_fits(compiling: Any, placement: str, layout_map: Any, mesh: Any) -> None:
    """`fit` of a tf_keras model on a mesh, fed by a DTensorDataset, is the fit without a mesh.

    A DTensorDataset is right only on a mesh of all devices whose first axis is the batch's.
    """
    plain = model(tf_keras)
    start = plain.get_weights()
    options = {"global_clipnorm": 0.3, "weight_decay": 0.1}
    plain.compile(optim.for_keras(optim.Adam(0.05, **options), tf_keras), "mse")
    expected = fit(plain, tf_keras)["loss"]

    made = _laid_out(layout_map, start)
    optimizer = optim.Adam(0.05, mesh=mesh, slot_placement=placement, **options)
    made.compile(optim.for_keras(optimizer, tf_keras), "mse", **compiling)
    rows = dtensor.Layout(["batch", "unsharded"], mesh)
    data = dtensor.DTensorDataset(
        tf.data.Dataset.from_tensor_slices((X, Y)).repeat(),
        mesh=mesh,
        layouts=(rows, rows),
        global_batch_size=4,
        batch_dim="batch",
    )
    found = made.fit(data, epochs=2, steps_per_epoch=4, verbose=0).history["loss"]

    np.testing.assert_allclose(found, expected, rtol=1e-5)
    kernel = made.trainable_variables[0]
    assert list(kernel.layout.sharding_specs) == ["unsharded", "model"]
    slot = ["batch", "model"] if placement == "zero1" else ["unsharded", "model"]
    assert list(layout_of(made.optimizer.get_slot(kernel, "m")).sharding_specs) == slot
    assert int(optimizer.iterations.numpy()) == 8
