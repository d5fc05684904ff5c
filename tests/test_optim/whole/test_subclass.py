"""An optimizer of the user's own, with `build` and `update_step` alone, gets everything around an algorithm."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import optim
from optim.errors import UnsupportedError
from tests.helpers.breadth import covering
from tests.helpers.dtensor_asserts import assert_dtensor_equal, layout_of, value_of
from tests.reference.common import Options, Training
from tests.reference.sgd import SGD
from tests.test_optim.support import Place, executor_for, gradient_values, put_gradients, start_values, stepper

OPTIONS = {
    "clipvalue": 0.5,
    "global_clipnorm": 2.0,
    "weight_decay": 0.1,
    "use_ema": True,
    "ema_momentum": 0.7,
    "ema_overwrite_frequency": 2,
    "gradient_accumulation_steps": 2,
}


class Heavy(optim.Optimizer):
    """Momentum as a user of Keras 2.9 would write it: lists of slots found by `_index_dict`."""

    def __init__(self, learning_rate: Any = 0.05, momentum: float = 0.9, name: str = "Heavy", **options: Any):
        super().__init__(name, **options)
        self._learning_rate = self._build_learning_rate(learning_rate)
        self.momentum = momentum

    def build(self, var_list: Any) -> None:
        super().build(var_list)
        if hasattr(self, "_built") and self._built:
            return
        self.velocities = [self.add_variable_from_reference(v, "velocity") for v in var_list]
        self._built = True

    def update_step(self, gradient: Any, variable: Any) -> None:
        velocity = self.velocities[self._index_dict[self._var_key(variable)]]
        rate = tf.cast(self.learning_rate, variable.dtype)
        velocity.assign(self.momentum * velocity - rate * gradient)
        variable.assign_add(velocity)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "momentum": self.momentum}


@covering(1, layout=["mixed", "plain"], options=[OPTIONS, {}], mode=["portable", "function"])
@pytest.mark.quick(1)
def test_it_gets_everything_around_the_algorithm(layout: str, options: Any, mode: str, request: Any) -> None:
    place = Place.named(layout, request)
    variables = place.variables(start_values())
    reference = Training(SGD(momentum=0.9), lambda _: 0.05, start_values(), Options(**options))
    optimizer = Heavy(executor=executor_for(mode), **options)
    step = stepper(optimizer, mode)
    for call in range(4 * reference.options.gradient_accumulation_steps):
        step(put_gradients(gradient_values(call), variables))
        reference.apply(gradient_values(call))
    for name, var in variables.items():
        assert_dtensor_equal(var, reference.values[name], layout_of(var), rtol=1e-12, atol=1e-14, what=name)
        velocity = optimizer.get_slot(var, "velocity")
        assert_dtensor_equal(velocity, reference.slots[name]["m"], layout_of(var), rtol=1e-12, atol=1e-14, what=name)


def test_its_report_says_why_it_is_portable(devices: list[str]) -> None:
    optimizer = Heavy()
    optimizer.build([tf.Variable([1.0], name="w")])
    report = optimizer.executor_report()
    assert (report.executor, report.kernels) == ("portable", {"w": "update_step"})
    assert "Heavy" in report.reason
    for options in ({"executor": "local"}, {"jit_compile": True}):
        insisting = Heavy(**options)
        var = tf.Variable([1.0], name="w")
        with pytest.raises(UnsupportedError, match="Heavy"):
            insisting.apply_gradients([(tf.ones(1), var)])
        assert var.numpy() == [1.0]


def test_its_slots_are_placed(mesh_2x2: Any) -> None:
    place = Place(mesh_2x2, {})
    variables = place.variables({"kernel": np.ones((6, 4))})
    optimizer = Heavy(slot_placement="zero1")
    optimizer.build(list(variables.values()))
    assert sorted(optimizer.get_slot(variables["kernel"], "velocity").layout.sharding_specs) == ["batch", "model"]
    gradients = put_gradients({"kernel": np.ones((6, 4))}, variables)
    optimizer.apply_gradients(gradients)
    assert_dtensor_equal(variables["kernel"], np.full((6, 4), 0.95), layout_of(variables["kernel"]), rtol=1e-12)


def test_its_config_and_checkpoints(request: Any, tmp_path: Any) -> None:
    place = Place.named("mixed", request)
    variables = place.variables(start_values())
    reference = Training(SGD(momentum=0.8), lambda _: 0.05, start_values(), Options(clipnorm=1.0))
    optimizer = Heavy(momentum=0.8, clipnorm=1.0)
    for call in range(2):
        optimizer.apply_gradients(put_gradients(gradient_values(call), variables))
        reference.apply(gradient_values(call))
    again = Heavy.from_config(json.loads(json.dumps(optimizer.get_config())))
    assert again.get_config() == optimizer.get_config()

    optim.save_checkpoint(tmp_path / "c", optimizer, variables)
    with pytest.raises(ValueError, match=r"Heavy.*custom_objects"):
        optim.load_checkpoint(tmp_path / "c", variables)
    others = Place.named("rows", request).variables(start_values(5))
    resumed = optim.load_checkpoint(tmp_path / "c", others, custom_objects={"Heavy": Heavy})
    resumed.apply_gradients(put_gradients(gradient_values(7), others))
    reference.apply(gradient_values(7))
    for name, var in others.items():
        assert_dtensor_equal(var, reference.values[name], layout_of(var), rtol=1e-12, atol=1e-14, what=name)


class Counting(Heavy):
    """Variables of its own made in `__init__`, when no mesh is known yet, as Keras 2.9 made them."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.updates = self.add_variable((), tf.int64, name="updates")
        self.history = self.add_variable((3,), tf.float64, name="history")

    def update_step(self, gradient: Any, variable: Any) -> None:
        super().update_step(gradient, variable)
        self.updates.assign_add(1)
        self.history.assign(self.history * 0.5 + 1.0)


@covering(1, layout=["mixed", "plain"], mode=["function", "portable"])
def test_variables_made_before_the_mesh_is_known(layout: str, mode: str, request: Any, tmp_path: Any) -> None:
    place = Place.named(layout, request)
    variables = place.variables(start_values())
    optimizer = Counting()
    updates, history = optimizer.updates, optimizer.history
    rate, iterations = optimizer.learning_rate, optimizer.iterations
    step = stepper(optimizer, mode)
    for call in range(2):
        step(put_gradients(gradient_values(call), variables))
    count = 2 * len(variables)
    assert optimizer.updates is updates
    assert any(v is updates for v in optimizer.variables)
    assert int(updates.numpy()) == count
    for held in (updates, history, rate, iterations):
        on = layout_of(held)
        assert (on is None) == (place.mesh is None)
        assert on is None or on.mesh == place.mesh
    expected = np.full(3, 2.0 - 2.0 * 0.5**count)
    assert_dtensor_equal(history, expected, layout_of(history), rtol=1e-12)
    rate.assign(0.125)
    assert float(optimizer.learning_rate.numpy()) == 0.125

    optim.save_checkpoint(tmp_path / "c", optimizer, variables)
    resumed = optim.load_checkpoint(tmp_path / "c", variables, custom_objects={"Counting": Counting})
    assert int(resumed.updates.numpy()) == count
    assert_dtensor_equal(resumed.history, expected, layout_of(resumed.history), rtol=1e-12)


def test_it_scales_losses(request: Any) -> None:
    place = Place.named("mixed", request)
    ends = []
    for scale in (None, 8.0):
        variables = place.variables(start_values())
        optimizer = Heavy(loss_scale=scale)
        for call in range(2):
            values = {name: g * (scale or 1.0) for name, g in gradient_values(call).items()}
            optimizer.apply_gradients(put_gradients(values, variables))
        ends.append([value_of(v) for v in variables.values()])
    for one, two in zip(*ends, strict=True):
        np.testing.assert_array_equal(one, two)
