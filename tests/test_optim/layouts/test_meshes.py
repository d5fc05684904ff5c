"""Variables on several meshes, and plain ones beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim.errors import HyperparameterError, UnsupportedError
from optim.layouts import meshes
from tests.helpers.breadth import covering
from tests.helpers.dtensor_asserts import assert_dtensor_equal, layout_of
from tests.test_optim.cases import OPTIONS, VARIANTS, Case
from tests.test_optim.support import SHAPES, dense_gradients, gradient_values, put_gradients, start_values, variable


@pytest.fixture
def scattered(mesh_2: Any, mesh_2x2: Any, mesh_2x2x2: Any) -> dict[str, Any]:
    """The usual variables over three meshes and none."""
    layouts = {
        "kernel": dtensor.Layout(["batch", "model"], mesh_2x2),
        "table": dtensor.Layout(["data", "unsharded"], mesh_2x2x2),
        "bias": dtensor.Layout(["x"], mesh_2),
        "odd": dtensor.Layout.replicated(mesh_2x2, 2),
    }
    values = start_values()
    return {name: variable(values[name], layouts.get(name), name) for name in SHAPES}


@covering(1, case=[VARIANTS[3], *OPTIONS[2:5], *OPTIONS[-3:]], executor=["local", "portable"])
@pytest.mark.quick(3)
def test_one_optimizer_over_several_meshes(case: Case, executor: str, scattered: Any) -> None:
    reference = case.reference(start_values())
    optimizer = case.make(executor=executor)
    for call in range(4 * case.loop.gradient_accumulation_steps):
        optimizer.apply_gradients(put_gradients(gradient_values(call), scattered))
        reference.apply(gradient_values(call))
    for name, var in scattered.items():
        assert_dtensor_equal(var, reference.values[name], layout_of(var), rtol=1e-12, atol=1e-14, what=name)
        for slot, value in reference.slots[name].items():
            found = optimizer.get_slot(var, slot)
            assert_dtensor_equal(found, value, layout_of(var), rtol=1e-12, atol=1e-14, what=f"{slot} of {name}")
    assert layout_of(optimizer.iterations) is None
    assert int(optimizer.iterations.numpy()) == reference.iterations


@pytest.mark.parametrize("mode", ["native"])
def test_a_rule_that_adds_up_clips_norms_over_meshes_and_none(mode: str, scattered: Any) -> None:
    """The kernel updates the variables on no mesh alone."""
    plain = {name: variable(value, None, name) for name, value in start_values().items()}
    for model in (plain, scattered):
        optimizer = optim.Lamb(0.1, clipnorm=0.5)
        for call in range(2):
            optimizer.apply_gradients(put_gradients(dense_gradients(call), model))
    for name, var in scattered.items():
        assert_dtensor_equal(var, plain[name].numpy(), layout_of(var), rtol=1e-12, atol=1e-14, what=name)


def test_a_function_over_several_meshes_is_refused(scattered: Any) -> None:
    optimizer = optim.SGD(0.1)
    optimizer.build(list(scattered.values()))
    step = tf.function(optimizer.apply_gradients, autograph=False)
    pairs = put_gradients(gradient_values(0), scattered)
    for some in ([p for p in pairs if p[1].name.startswith(("bias", "scale"))], pairs):
        with pytest.raises((UnsupportedError, ValueError), match="mesh"):
            step(some)
    for name, value in start_values().items():
        assert_dtensor_equal(scattered[name], value, layout_of(scattered[name]))


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_counters_follow_the_variables_to_their_mesh(mode: str, mesh_2x2: Any) -> None:
    """Without `mesh=`, the counters of an optimizer go where its variables are, with their values."""
    layout = dtensor.Layout(["batch"], mesh_2x2)
    var = variable(np.zeros(4), layout, "w")
    optimizer = optim.SGD(0.5, gradient_accumulation_steps=2)
    optimizer.iterations = 5
    optimizer.learning_rate = 0.25
    step = optimizer.apply_gradients
    step = tf.function(step, autograph=False) if mode == "function" else step
    for _ in range(4):
        step(put_gradients({"w": np.ones(4)}, {"w": var}))
    assert (
        layout_of(optimizer.iterations) == layout_of(optimizer.learning_rate) == dtensor.Layout.replicated(mesh_2x2, 0)
    )
    assert int(optimizer.iterations.numpy()) == 7
    assert_dtensor_equal(var, np.full(4, -0.5), layout)


def test_a_built_optimizer_can_be_configured_for_another_mesh(mesh_2: Any, mesh_2x2: Any) -> None:
    """`mesh=None` stays None in the config, also after the variables turned out to be on a mesh."""
    optimizer = optim.SGD(0.5)
    optimizer.build([variable(np.ones(2), dtensor.Layout(["x"], mesh_2), "w")])
    again = optim.SGD.from_config(optimizer.get_config())
    again.build([variable(np.ones(2), dtensor.Layout(["batch"], mesh_2x2), "w")])
    assert again.mesh == mesh_2x2


def test_meshes_in_config(mesh_2x2x2: Any) -> None:
    document = meshes.to_config(mesh_2x2x2)
    assert document["axes"] == [["data", 2], ["batch", 2], ["model", 2]]
    assert document["device_type"] == mesh_2x2x2.device_type()
    assert meshes.from_config(document) == mesh_2x2x2
    assert meshes.from_config(None) is None
    for bad in (
        {"axes": [["x", 64]], "device_type": "CPU", "devices": [f"CPU:{i}" for i in range(64)]},
        {"axes": [["x", 2]], "device_type": "CPU", "devices": ["CPU:0"]},
        {"axes": "x"},
        {},
    ):
        with pytest.raises(HyperparameterError, match="mesh in the config"):
            meshes.from_config(bad)
