"""Steps on several GPUs, emulated: each replica of a strategy has launches of its own, and so has each device."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim.executors import portable
from optim.native.gpu import Gpus
from tests.helpers import emulated_gpu
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.native.kernel_support import ops_of
from tests.test_optim.support import put, put_gradients, start_values, stepper, variable

START = np.array([[1.0, -2.0], [3.0, 0.5], [0.25, 4.0]], np.float32)
STEPS = 4


def _in_replicas(traced: bool, bad: tuple[int, ...] = (), **arguments: Any) -> tuple[list[np.ndarray], Any]:
    """What a run leaves in the copies of both replicas, and its optimizer."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
    with strategy.scope():
        variable, optimizer = tf.Variable(START, name="w"), optim.Adam(0.05, **arguments)

    def step(number: Any) -> None:
        replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
        optimizer.apply_gradients([((replica + 1.0) * tf.cos(number + tf.constant(START)), variable)])

    def everywhere(number: Any) -> None:
        strategy.run(step, args=(number,))

    once = tf.function(everywhere, autograph=False) if traced else everywhere
    for number in range(STEPS):
        once(tf.constant(math.nan if number in bad else float(number)))
    values = [v for v in (variable, *optimizer.variables) if isinstance(v, tf.distribute.DistributedValues)]
    return [copy.numpy() for value in values for copy in value.values], optimizer


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped": {"global_clipnorm": 0.5, "use_ema": True, "weight_decay": 0.1},
    "accumulated": {"gradient_accumulation_steps": 2, "clipnorm": 0.5},
    "scaled": {"loss_scale": "dynamic", "clipnorm": 0.5},
}


@pytest.mark.parametrize("traced", [True, False], ids=["function", "eager"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.quick(1)
def test_replicas_step_as_on_cpus(launching: Callable[[], None], options: str, traced: bool) -> None:
    arguments, bad = OPTIONS[options], (1,) if options == "scaled" else ()
    expected, _ = _in_replicas(traced, bad, **arguments)
    launching()
    launched, optimizer = _in_replicas(traced, bad, **arguments)
    assert optimizer.executor_report().why_not_native == ""
    real = STEPS // arguments.get("gradient_accumulation_steps", 1)
    each = 1 if options == "plain" else 4  # squares, their sums, scales, and the update
    assert emulated_gpu.driver_calls().count("launch") == 2 * each * real
    for ours, theirs in zip(launched, expected, strict=True):
        assert ours.tobytes() == theirs.tobytes()


def _on_two_devices(**arguments: Any) -> list[np.ndarray]:
    variables = []
    for k in range(4):
        with tf.device(f"CPU:{k % 2}"):
            variables.append(tf.Variable(START + k))
    optimizer = optim.Adam(0.05, **arguments)
    for number in range(STEPS):
        gradients = [tf.cos(v) * (math.nan if (number, k) == (1, 3) else 1.0) for k, v in enumerate(variables)]
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
    return [v.numpy() for v in (*variables, *optimizer.variables)]


@pytest.mark.parametrize("arguments", [{"loss_scale": 2.0}, {"loss_scale": "dynamic", "global_clipnorm": 0.5}], ids=str)
def test_one_optimizer_has_variables_on_two_devices(launching: Callable[[], None], arguments: dict[str, Any]) -> None:
    expected = _on_two_devices(**arguments)
    launching()
    launched = _on_two_devices(**arguments)
    assert emulated_gpu.driver_calls().count("launch") >= 2 * (STEPS - 1)
    for ours, theirs in zip(launched, expected, strict=True):
        assert ours.tobytes() == theirs.tobytes()


SIZES = {1: (1, 1), 2: (1, 2), 4: (2, 2)}
"""Of the dims of a mesh, by its number of devices."""


def _mesh(count: int) -> dtensor.Mesh:
    sizes = zip(("batch", "model"), SIZES[count], strict=True)
    return dtensor.create_mesh([*sizes], devices=[f"CPU:{k}" for k in range(count)])


SHARDED = {"kernel": ["batch", "unsharded"], "table": ["model", "unsharded"], "bias": ["unsharded"]}
WHOLE = {name: ["unsharded"] * len(specs) for name, specs in SHARDED.items()}


def _on_mesh(
    mesh: Any, in_function: bool, kind: Any = optim.Adam, sharding: Any = SHARDED, **arguments: Any
) -> tuple[list[np.ndarray], Any]:
    """What a run on a mesh leaves, and its optimizer."""
    values = {name: start_values()[name] for name in sharding}
    model = {n: variable(v, dtensor.Layout(sharding[n], mesh), n, tf.float32) for n, v in values.items()}
    optimizer = kind(0.05, **arguments)
    optimizer.build(list(model.values()))
    run = stepper(optimizer, "function" if in_function else "eager")
    for step in range(3):
        gradients = {name: np.cos(value + step) for name, value in values.items()}
        if (step, arguments.get("loss_scale")) == (1, 2.0):
            gradients["bias"][0] = math.nan
        run(put_gradients(gradients, model))
    return [value_of(v) for v in (*model.values(), *optimizer.variables)], optimizer


MESHES: dict[str, dict[str, Any]] = {
    "plain": {"use_ema": True},
    "zero1": {"slot_placement": "zero1", "use_ema": True, "ema_overwrite_frequency": 2},
    "zero1, scaled": {"slot_placement": "zero1", "loss_scale": 2.0, "global_clipnorm": 0.5},
    "clipped": {"global_clipnorm": 0.5, "weight_decay": 0.1},
    "scaled": {"loss_scale": 2.0, "clipnorm": 0.1},
}


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("options", MESHES)
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.quick(1)
def test_devices_of_a_mesh_launch_steps(
    launching: Callable[[], None], options: str, count: int, in_function: bool
) -> None:
    mesh = _mesh(count)
    expected, _ = _on_mesh(mesh, in_function, **MESHES[options])
    launching()
    launched, optimizer = _on_mesh(mesh, in_function, **MESHES[options])
    assert optimizer.executor_report().why_not_native == ""
    assert emulated_gpu.driver_calls().count("launch") >= 2 * mesh.size
    for ours, theirs in zip(launched, expected, strict=True):
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("kind", [optim.Lamb, optim.LARS, optim.NovoGrad, optim.Adafactor])
@pytest.mark.quick(1)
def test_rules_that_add_up_launch_in_functions(
    launching: Callable[[], None], gpus: Gpus, kind: Any, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of variables that each device has all of, as on CPUs."""
    emulated_gpu.add(gpus, kind(0.05)._algorithm.updating_rule)
    options = {"use_ema": True, "global_clipnorm": 0.5}
    expected, _ = _on_mesh(_mesh(count), True, kind, WHOLE, **options)
    launching()
    monkeypatch.setattr(portable, "rule_value", _refuse)
    launched, optimizer = _on_mesh(_mesh(count), True, kind, WHOLE, **options)
    assert emulated_gpu.driver_calls().count("launch") >= 3 * 4 * count
    assert optimizer.executor_report().why_not_native == "the steps are portable", "eager ones, as on CPUs"
    for ours, theirs in zip(launched, expected, strict=True):
        assert ours.tobytes() == theirs.tobytes()


def _refuse(*_: Any) -> None:
    raise AssertionError("TensorFlow's ops stepped")


def test_a_function_on_a_mesh_leaves_a_step_out_without_a_branch(launching: Callable[[], None]) -> None:
    """A branch would be the host's, which would wait for the gradients."""
    launching()
    layout = dtensor.Layout.replicated(_mesh(2), 2)
    weights, optimizer = variable(START, layout, "w", tf.float32), optim.Adam(0.05, loss_scale="dynamic", clipnorm=1.0)
    optimizer.build([weights])

    @tf.function
    def step(gradient: Any) -> None:
        optimizer.apply_gradients([(gradient, weights)])

    given = put(START, layout, tf.float32)
    assert {"DtoptStep", "If", "StatelessIf"} & ops_of(step.get_concrete_function(given)) == {"DtoptStep"}
    for value in (math.nan, math.inf, 1.0):
        step(value * given)
    assert int(value_of(optimizer.iterations)) == 1
    assert optimizer.current_loss_scale == 2.0**13
