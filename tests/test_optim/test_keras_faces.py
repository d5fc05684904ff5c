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
from tests.breadth import covering
from tests.test_optim.test_schedules import ARGUMENTS

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
        type("Warm", (Warm, module.optimizers.schedules.LearningRateSchedule), {})
    )
    for module in MODULES
}


@pytest.mark.parametrize(("module", "ending"), [(keras, ".keras"), (tf_keras, ".keras"), (tf_keras, ".h5")])
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
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
def test_load_model_resumes_a_schedule_of_keras_bit_for_bit(name: str, module: Any, tmp_path: Path) -> None:
    schedule = getattr(module.optimizers.schedules, name)(**ARGUMENTS[name][-1])
    model = fit(compiled(module, optim.for_keras(optim.AdamW(schedule), module)), 1)
    model.save(tmp_path / "m.keras")
    again = module.models.load_model(tmp_path / "m.keras", custom_objects=optim.keras_objects(module))
    assert type(again.optimizer.inner._learning_rate) is type(schedule)
    for one, two in zip(fit(model).get_weights(), fit(again).get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
