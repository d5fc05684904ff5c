"""What a program sees of an optimizer of `for_keras`, next to Keras's own: schedules in files, attributes, lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import optim
from optim.errors import HyperparameterError
from optim.keras import configured, listing
from tests.helpers.breadth import covering
from tests.test_optim.schedules.test_schedules import ARGUMENTS

MODULES = (keras, tf_keras)
BOTH = pytest.mark.parametrize("module", MODULES, ids=["keras3", "tf_keras"])
X = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(16, 2)).astype(np.float32)


@pytest.fixture(autouse=True)
def _devices(devices: list[str]) -> None:
    """Logical devices come before the first model."""


def compiled(module: Any, optimizer: Any) -> Any:
    kernel = module.initializers.GlorotUniform(seed=1)
    layers = [module.layers.Dense(3, kernel_initializer=kernel, name="d"), module.layers.Dense(2, name="e")]
    model = module.Sequential([module.layers.Input((4,)), *layers])
    model.compile(optimizer, "mse", jit_compile=False)
    return model


def fit(model: Any, epochs: int = 2) -> Any:
    model.fit(X, Y, 4, epochs, shuffle=False, verbose=0)
    return model


class Warm:
    """A schedule as people write them."""

    def __init__(self, steps: int = 10):
        self.steps = steps

    def __call__(self, step: Any) -> Any:
        return 0.05 * tf.minimum(1.0, (tf.cast(step, "float32") + 1) / self.steps)

    def get_config(self) -> dict[str, Any]:
        return {"steps": self.steps}


WARM = {
    module: module.saving.register_keras_serializable("faces")(
        type("Warm", (Warm, module.optimizers.schedules.LearningRateSchedule), {"__module__": "__main__"})
    )
    for module in MODULES
}


@pytest.mark.parametrize(("module", "ending"), [(keras, ".keras"), (tf_keras, ".keras"), (tf_keras, ".h5")])
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
@pytest.mark.quick(1)
def test_a_registered_schedule_is_loaded(module: Any, ending: str, tmp_path: Path) -> None:
    """From .h5, where tf_keras asks nobody but `custom_objects`, its own optimizers neither."""
    model = fit(compiled(module, optim.for_keras(optim.Adam(WARM[module](7)), module)))
    model.save(tmp_path / f"m{ending}")
    objects = optim.keras_objects(module) | ({"Warm": WARM[module]} if ending == ".h5" else {})
    again = module.models.load_model(tmp_path / f"m{ending}", custom_objects=objects)
    rate = again.optimizer.inner._learning_rate
    assert (type(rate), rate.steps) == (WARM[module], 7)
    for one, two in zip(fit(model).get_weights(), fit(again).get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)


@BOTH
def test_a_schedule_that_is_not_registered_is_named(module: Any, tmp_path: Path) -> None:
    cls = type("Unknown", (Warm, module.optimizers.schedules.LearningRateSchedule), {})
    model = fit(compiled(module, optim.for_keras(optim.Adam(cls()), module)), 1)
    model.save(tmp_path / "m.keras")
    del cls
    objects = optim.keras_objects(module)
    with pytest.raises((TypeError, ValueError), match="Unknown"):
        module.models.load_model(tmp_path / "m.keras", custom_objects=objects)


@covering(1, name=ARGUMENTS, module=MODULES)
@pytest.mark.quick(2)
def test_load_model_resumes_a_schedule_of_keras_bit_for_bit(name: str, module: Any, tmp_path: Path) -> None:
    schedule = getattr(module.optimizers.schedules, name)(**ARGUMENTS[name][-1])
    model = fit(compiled(module, optim.for_keras(optim.AdamW(schedule), module)), 1)
    model.save(tmp_path / "m.keras")
    again = module.models.load_model(tmp_path / "m.keras", custom_objects=optim.keras_objects(module))
    assert type(again.optimizer.inner._learning_rate) is type(schedule)
    for one, two in zip(fit(model).get_weights(), fit(again).get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)


class Plain(optim.Optimizer):
    """A step as people write it."""

    def update_step(self, gradient: Any, variable: Any) -> None:
        variable.assign_sub(tf.cast(self.learning_rate, variable.dtype) * gradient)


FACES = {
    "optim": lambda rate: optim.SGD(rate),
    "own": lambda rate: Plain(learning_rate=rate),
    "keras3": lambda rate: optim.for_keras(optim.SGD(rate), keras),
    "tf_keras": lambda rate: optim.for_keras(optim.SGD(rate), tf_keras),
    "legacy": lambda rate: optim.legacy.v2.SGD(rate),
}
RATES = {
    "constant": lambda: 0.1,
    "schedule": lambda: optim.schedules.PiecewiseConstantDecay([9], [0.1, 0.2]),
    "variable": lambda: tf.Variable(0.1),
}


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("face", FACES)
def test_a_rate_is_float32_to_programs_and_float64_to_steps(face: str, rate: str) -> None:
    """A step of a float64 variable is 0.1 to the last bit, but where the caller's own variable is float32."""
    optimizer, variable = FACES[face](RATES[rate]()), tf.Variable([1.0], dtype=tf.float64)
    if (face, rate) != ("legacy", "schedule"):  # which gives the schedule
        twice = optimizer.learning_rate * tf.constant(2.0)
        assert (twice.dtype, float(twice)) == (tf.float32, np.float32(0.2))
    optimizer.apply_gradients([(tf.ones(1, tf.float64), variable)])
    assert variable.numpy()[0] == 1 - (float(np.float32(0.1)) if rate == "variable" else 0.1)


@pytest.mark.parametrize("face", FACES)
def test_a_constant_rate_is_a_variable(face: str) -> None:
    optimizer, variable = FACES[face](0.01), tf.Variable([1.0])
    rate = optimizer.learning_rate
    assert isinstance(rate, tf.Variable)
    assert (rate.dtype, rate.numpy(), float(rate), f"{rate:.2f}") == (
        tf.float32,
        np.float32(0.01),
        rate.numpy(),
        "0.01",
    )
    exact = lambda: optimizer.get_config()["learning_rate"]  # noqa: E731
    tf_keras.backend.set_value(rate, tf_keras.backend.get_value(rate))  # what it shows
    optimizer.learning_rate = optimizer.learning_rate
    assert exact() == 0.01
    rate.assign(0.02)
    assert exact() == 0.02
    rate.assign_sub(0.01)
    rate.assign(np.float32(0.3))
    assert exact() == float(np.float32(0.3))

    @tf.function
    def step() -> Any:
        optimizer.learning_rate.assign(optimizer.learning_rate * 0.5)
        optimizer.apply_gradients([(tf.ones(1), variable)])
        return optimizer.learning_rate * tf.constant(2.0)

    assert float(step()) == np.float32(0.3)
    np.testing.assert_allclose(variable.numpy(), [0.85], rtol=1e-6)
    shared = optim.SGD(optimizer.learning_rate)
    optimizer.learning_rate = 0.7
    assert shared.get_config()["learning_rate"] == 0.7


def test_a_rate_on_a_mesh_is_a_variable(mesh_2: Any) -> None:
    optimizer = optim.SGD(0.01, mesh=mesh_2)
    optimizer.learning_rate.assign(np.float32(0.01))
    assert optimizer.get_config()["learning_rate"] == 0.01
    optimizer.learning_rate.assign(optimizer.learning_rate * 3.0)
    np.testing.assert_allclose(optimizer.get_config()["learning_rate"], 0.03, rtol=1e-7)
    assert (optimizer.learning_rate * 2.0).dtype == tf.float32


LISTED = {
    "SGD": {"momentum": 0.9},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Adam": {"amsgrad": True, "use_ema": True},
    **{name: {} for name in ("Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl", "Lion", "Lamb", "Muon")},
}
PARTLY = {"Nadam": ["u_product"]}
"""What of ours is in the list, and has no name in Keras's."""


@pytest.mark.parametrize("name", LISTED)
@BOTH
@pytest.mark.quick(7)
def test_variables_are_listed_and_called_as_in_keras(module: Any, name: str) -> None:
    if not hasattr(module.optimizers, name):
        pytest.skip("not in this Keras")
    model = compiled(module, "sgd")
    theirs, ours = getattr(module.optimizers, name)(**LISTED[name]), getattr(optim, name)(**LISTED[name])
    theirs.build(model.trainable_variables)
    ours = optim.for_keras(ours, module)
    ours.build(model.trainable_variables)
    # Paths of Keras 3 begin with the name of the optimizer; those of tf_keras have none, where ours begin with it.
    called = lambda v: v.path.partition("/")[2] if module is keras else v.name.split(":")[0].removeprefix(f"{name}/")  # noqa: E731
    lists = [[called(v) for v in optimizer.variables] for optimizer in (theirs, ours)]
    assert ours.variables() == ours.variables  # as programs for TensorFlow up to 2.10 read them
    assert ours.inner.variables() == ours.inner.variables
    assert len(lists[0]) > 1
    count = len(lists[0]) - (module is keras and name in PARTLY)
    assert lists[1] == lists[0][:count] + PARTLY.get(name, [])
    for attribute in [key for key in vars(theirs) if key in listing.ATTRIBUTES and vars(theirs)[key]]:
        assert [tuple(v.shape) for v in getattr(ours, attribute)] == [
            tuple(v.shape) for v in getattr(theirs, attribute)
        ]
    ours.set_weights([np.full(v.shape, number) for number, v in enumerate(ours.variables)])
    assert [float(np.ravel(v.numpy())[0]) for v in ours.variables] == list(range(len(lists[1])))


def test_an_attribute_that_keras_has_not_is_none_of_ours() -> None:
    optimizer = optim.for_keras(optim.SGD(0.1), keras)
    for attribute in ("_velocities", "_nonsense"):
        with pytest.raises(AttributeError, match=attribute):
            getattr(optimizer, attribute)


@pytest.mark.parametrize("rate", [0.01, "schedule"])
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
@pytest.mark.quick(1)
def test_lists_of_earlier_files_are_read_in_their_order(rate: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """They went slot by slot; where all variables have one shape, no shape tells. Only .h5 of tf_keras has lists."""
    given = rate if rate == 0.01 else tf_keras.optimizers.schedules.CosineDecay(0.1, 9)
    layers = [tf_keras.layers.Dense(4, use_bias=False) for _ in range(3)]
    model = tf_keras.Sequential([tf_keras.layers.Input((4,)), *layers])
    model.compile(optim.for_keras(optim.Adam(given), tf_keras), "mse")
    step = lambda model: model.fit(X, X, 4, 1, shuffle=False, verbose=0)  # noqa: E731
    step(model)
    model.save(tmp_path / "new.h5")
    with monkeypatch.context() as earlier:
        earlier.setattr(listing, "variables", lambda engine, with_rate: engine._state.all_variables())
        earlier.setattr(configured, "BY_VARIABLE", None)
        model.save(tmp_path / "earlier.h5")
    loaded = [tf_keras.models.load_model(tmp_path / f"{name}.h5") for name in ("new", "earlier")]
    for each in (model, *loaded):
        step(each)
    for again in loaded:
        for one, two in zip(again.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(one, two)


def test_a_loss_scale_under_the_name_of_keras() -> None:
    for ours in (optim.SGD(0.1, loss_scale_factor=8.0), optim.SGD(0.1, loss_scale=8.0, loss_scale_factor=8.0)):
        assert (ours.loss_scale, ours.loss_scale_factor, ours.get_config()["loss_scale"]) == (8.0, 8.0, 8.0)
        ours.loss_scale_factor = 4.0
        assert ours.loss_scale == 4.0
        assert optim.for_keras(ours, keras).loss_scale_factor == 4.0
    with pytest.raises(HyperparameterError, match=r"loss_scale_factor=2\.0 contradicts loss_scale=4\.0"):
        optim.SGD(0.1, loss_scale=4.0, loss_scale_factor=2.0)
    ends = []
    for made in (keras.optimizers.SGD(0.1, loss_scale_factor=8.0), optim.SGD(0.1, loss_scale_factor=8.0)):
        variable = keras.Variable([1.0])
        made.apply_gradients([(tf.constant([8.0]), variable)])
        ends.append(float(variable.numpy()[0]))
    assert ends[0] == ends[1] == pytest.approx(0.9)
