"""Norms and loss scales of steps on a GPU, emulated: the GPU finds them out, and the host waits for none of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import optim
from tests.helpers import emulated_gpu

STEPS = 4
SHAPES = {"kernel": (30, 40), "bias": (7,), "large": (3, 5000), "scalar": ()}


def _gradients(step: int, size: float = 1.0) -> list[np.ndarray]:
    rng = np.random.default_rng(step)
    return [size * rng.standard_normal(shape).astype(np.float32) for shape in SHAPES.values()]


def _trained(
    in_function: bool, bad: tuple[int, ...] = (), dtype: str = "float32", **arguments: Any
) -> tuple[list[np.ndarray], Any]:
    """All that a run leaves, and its optimizer. `bad`: the steps with a gradient that is not finite."""
    rng = np.random.default_rng(11)
    variables = [tf.Variable(tf.cast(rng.standard_normal(s), dtype), name=n) for n, s in SHAPES.items()]
    optimizer = optim.Adam(0.05, **arguments)
    optimizer.build(variables)

    def step(*gradients: Any) -> None:
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

    run = tf.function(step) if in_function else step
    for k in range(STEPS):
        given = _gradients(k)
        if k in bad:
            given[1][3] = math.inf if k % 2 else math.nan
        run(*(tf.cast(gradient, dtype) for gradient in given))
    return [np.asarray(tf.cast(v, tf.float64)) for v in (*variables, *optimizer.variables)], optimizer


CLIPPED: list[dict[str, Any]] = [
    {"clipnorm": 0.7},
    {"global_clipnorm": 0.9},
    {"global_clipnorm": 1e4},
    {"clipnorm": 0.7, "clipvalue": 0.01, "clip_order": "norm_first"},
    {"global_clipnorm": 0.9, "use_ema": True, "weight_decay": 0.1},
    {"loss_scale": 8.0},
    {"loss_scale": "dynamic", "loss_scale_growth_steps": 2},
    {"loss_scale": "dynamic", "global_clipnorm": 1e-3},
    {"loss_scale": 8.0, "clipnorm": 0.2, "gradient_accumulation_steps": 2},
]


def _name(arguments: dict[str, Any]) -> str:
    return "-".join(arguments)


@pytest.mark.parametrize("arguments", CLIPPED, ids=_name)
@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.quick(7)
def test_a_step_is_that_of_the_cpu(launching: Callable[[], None], arguments: dict[str, Any], in_function: bool) -> None:
    """Bit for bit, also around steps that are left out."""
    bad = (1, 2) if "loss_scale" in arguments else ()
    expected, _ = _trained(in_function, bad, **arguments)
    launching()
    launched, _ = _trained(in_function, bad, **arguments)
    calls = emulated_gpu.driver_calls()
    assert calls.count("launch") >= 4 * (STEPS // arguments.get("gradient_accumulation_steps", 1))
    for ours, theirs in zip(launched, expected, strict=True):
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize("arguments", [{"clipnorm": 0.7}, {"loss_scale": 8.0, "global_clipnorm": 0.9}], ids=_name)
def test_in_other_dtypes(launching: Callable[[], None], dtype: str, arguments: dict[str, Any]) -> None:
    more = {"master_copies": dtype == "bfloat16", **arguments}
    expected, _ = _trained(False, (), dtype, **more)
    launching()
    for ours, theirs in zip(_trained(False, (), dtype, **more)[0], expected, strict=True):
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("arguments", [{"clipnorm": 0.7}, {"global_clipnorm": 0.9}], ids=_name)
def test_norms_are_waited_for_by_nobody(launching: Callable[[], None], arguments: dict[str, Any]) -> None:
    launching()
    _trained(False, **arguments)
    assert "wait" not in emulated_gpu.driver_calls()


def test_a_step_waits_for_the_gradients_of_the_one_before_alone(launching: Callable[[], None]) -> None:
    """A step under a loss scale returns once it is launched; the next one, or who asks, hears whether it was taken."""
    launching()
    variable = tf.Variable([1.0, 2.0])
    optimizer = optim.SGD(0.5, loss_scale=2.0)
    waits, taken = [], []
    for gradient in (1.0, math.nan, 1.0):
        optimizer.apply_gradients([(tf.constant([gradient, 0.0]), variable)])
        waits.append(emulated_gpu.driver_calls().count("wait"))
    assert waits == [0, 1, 2]
    for gradient in (math.inf, 1.0):
        optimizer.apply_gradients([(tf.constant([gradient, 0.0]), variable)])
        taken.append(int(optimizer.iterations))
    assert taken == [2, 3]
    assert variable.numpy().tolist() == [0.25, 2.0]


@pytest.mark.parametrize("asked", ["iterations", "variables", "weights", "scale", "checkpoint"])
def test_whoever_asks_hears_of_a_step_that_was_left_out(
    launching: Callable[[], None], asked: str, tmp_path: Path
) -> None:
    launching()
    variable = tf.Variable([1.0])
    optimizer = optim.Adam(loss_scale="dynamic")
    for _ in range(2):
        optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    optimizer.apply_gradients([(tf.constant([math.nan]), variable)])
    found: Any = {
        "iterations": lambda: int(optimizer.iterations),
        "variables": lambda: int(optimizer.variables[0]),
        "weights": lambda: int(optimizer.get_weights()[0]),
        "scale": lambda: {16384.0: 2}[optimizer.current_loss_scale],
        "checkpoint": lambda: _saved_iterations(optimizer, str(tmp_path / "state")),
    }[asked]()
    assert found == 2


def _saved_iterations(optimizer: Any, path: str) -> int:
    tf.train.Checkpoint(optimizer=optimizer).write(path)
    return int(tf.train.load_checkpoint(path).get_tensor("optimizer/iterations/.ATTRIBUTES/VARIABLE_VALUE"))


def test_counters_that_were_given_other_values_keep_them(launching: Callable[[], None]) -> None:
    launching()
    variable = tf.Variable([1.0])
    optimizer = optim.Adam(loss_scale=2.0)
    counter = optimizer.iterations
    optimizer.apply_gradients([(tf.constant([math.nan]), variable)])
    counter.assign(7)
    assert int(optimizer.iterations) == 7


def test_a_constraint_waits(launching: Callable[[], None]) -> None:
    """It changes a variable outside of the launch, and only after a step that was taken."""
    import keras

    launching()
    variable = keras.Variable([3.0, 4.0])
    variable.constraint = keras.constraints.MaxNorm(1.0)
    optimizer = optim.SGD(0.0, loss_scale=2.0)
    optimizer.apply_gradients([(tf.constant([math.nan, 1.0]), variable)])
    np.testing.assert_array_equal(variable.numpy(), [3.0, 4.0])
    optimizer.apply_gradients([(tf.constant([1.0, 1.0]), variable)])
    np.testing.assert_allclose(variable.numpy(), [0.6, 0.8], rtol=1e-5)


def test_a_lost_gpu_is_an_error_of_who_waits(launching: Callable[[], None]) -> None:
    launching()
    variable = tf.Variable([1.0])
    optimizer = optim.Adam(loss_scale=2.0)
    optimizer.apply_gradients([(tf.constant([1.0]), variable)])
    emulated_gpu.library("fake_cuda").fake_errors(700, 719)
    with pytest.raises(RuntimeError, match=r"waiting for the GPU failed: .* restart it from its last checkpoint"):
        optimizer.apply_gradients([(tf.constant([1.0]), variable)])


def _on_second_device(**arguments: Any) -> tuple[Any, Any]:
    """A variable on another device than the host's, and its optimizer."""
    with tf.device("CPU:1"):
        variable, optimizer = tf.Variable([1.0, 2.0]), optim.Adam(0.5, **arguments)
        optimizer.build([variable])
    return variable, optimizer


def _device(variable: Any) -> str:
    return str(variable.device).rpartition("device:")[2]


def test_counters_are_on_the_host(launching: Callable[[], None]) -> None:
    """To read one on a GPU would be to wait for all that the GPU was told to do."""
    launching()
    _, optimizer = _on_second_device(loss_scale="dynamic", gradient_accumulation_steps=2)
    found = {slot: _device(variable) for slot, _, variable in optimizer._state.slots.items()}
    assert found == {"m": "CPU:1", "v": "CPU:1", "accumulated_gradient": "CPU:1", "gathered": "CPU:0"}
    assert {_device(variable) for variable in optimizer._state.scalars.values()} == {"CPU:0"}


def test_a_function_computes_scalars_on_the_host(launching: Callable[[], None]) -> None:
    launching()
    variable, optimizer = _on_second_device(global_clipnorm=1.0)

    @tf.function
    def step(gradient: Any) -> None:
        optimizer.apply_gradients([(gradient, variable)])

    graph = step.get_concrete_function(tf.TensorSpec([2], tf.float32)).graph
    numbers = [op for op in graph.get_operations() if any(x.dtype == tf.float64 for x in op.outputs)]
    devices = {(op.type, _device(op)) for op in numbers if op.type != "Placeholder"}
    assert {("Pow", "CPU:0"), ("Pack", "CPU:0")} <= devices
    assert {op for op, device in devices if device != "CPU:0"} == {"DtoptControl"}


def test_xla_takes_the_counters_to_its_device(launching: Callable[[], None]) -> None:
    launching()
    variable, optimizer = _on_second_device(loss_scale="dynamic")
    iterations = optimizer.iterations

    @tf.function(jit_compile=True)
    def step(loss: Any) -> Any:
        scaled = optimizer.scale_loss(loss)
        optimizer.apply_gradients([(scaled * tf.ones([2]), variable)])
        return scaled

    for k in range(3):
        with tf.device("CPU:1"):
            assert float(step(tf.constant(2.0))) == 2.0**16
        assert int(iterations) == 1 + k
    assert _device(iterations) == "CPU:1"
    optimizer.apply_gradients([(tf.fill([2], 2.0**16), variable)])
    assert int(iterations) == 4
    assert variable.numpy()[0] == pytest.approx(1.0 - 4 * 0.5, abs=1e-4)
