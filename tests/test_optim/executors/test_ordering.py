"""Local steps keep their place among DTensor's asynchronous calls, before and after them.

DTensor functions return before they ran, and a local handle does not wait for them. Each test also shows that the
function it uses really is pending, so that it could catch a step that does not wait: in one of several attempts, as
other load on the machine may hold up the thread that would see it.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from tests.helpers.breadth import covering
from tests.helpers.dtensor_asserts import assert_dtensor_equal, value_of
from tests.helpers.timing import ATTEMPTS, once
from tests.test_optim.support import put, variable


class Slow:
    """DTensor functions that spend a good part of a second before they touch `var`."""

    def __init__(self, var: Any, layout: dtensor.Layout):
        square = dtensor.Layout.replicated(layout.mesh, 2)
        self._matrix = put(np.eye(256) * 0.999, square)

        def busy(matrix: Any) -> Any:
            product = matrix
            for _ in range(80):
                product = tf.matmul(product, matrix)
            return tf.reduce_sum(product) * 1e-300

        @tf.function(autograph=False)
        def assign(matrix: Any, value: Any) -> None:
            var.assign(value + tf.cast(busy(matrix), var.dtype))

        @tf.function(autograph=False)
        def read(matrix: Any) -> Any:
            delay = busy(matrix)
            with tf.control_dependencies([delay]):
                return var.read_value() + tf.cast(delay, var.dtype)

        self._assign, self._read = assign, read

    def assign(self, value: Any) -> None:
        self._assign(self._matrix, value)

    def read(self) -> Any:
        return self._read(self._matrix)


LAYOUTS = {"replicated": ["unsharded"], "sharded": ["x"]}


def _pending_time(call: Any) -> tuple[float, Any]:
    """How long a call returns before it ended, in seconds, and its result."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


@covering(1, spec=LAYOUTS.values(), options=[{}, {"clipnorm": 100.0, "use_ema": True}, {"jit_compile": True}])
@pytest.mark.quick(1)
def test_a_local_step_sees_a_pending_assignment(spec: list[str], options: Any, mesh_2: Any) -> None:
    layout = dtensor.Layout(spec, mesh_2)
    var = variable(np.ones(4), layout, "w")
    slow = Slow(var, layout)
    optimizer = optim.SGD(1.0, executor="local", **options)
    one, seven = put(np.ones(4), layout), put(np.full(4, 7.0), layout)
    handles = dtensor.unpack(var.handle)
    slow.assign(seven)
    optimizer.apply_gradients([(one, var)])  # builds, and compiles
    assert_dtensor_equal(var, np.full(4, 6.0), layout, atol=1e-12)

    def is_pending() -> bool:
        """A local read right after the function gives the old value."""
        var.assign(put(np.zeros(4), layout))
        slow.assign(seven)
        early = tf.raw_ops.ReadVariableOp(resource=handles[0], dtype=tf.float64).numpy()
        assert_dtensor_equal(var, np.full(4, 7.0), layout, atol=1e-12)
        return bool(np.all(early < 6.5))

    assert once(is_pending), "the slow function is not slow enough to test anything"

    for round_ in range(3):
        slow.assign(put(np.full(4, 20.0 + round_), layout))
        optimizer.apply_gradients([(one, var)])
        assert_dtensor_equal(var, np.full(4, 19.0 + round_), layout, atol=1e-12)


@covering(1, spec=LAYOUTS.values(), executor=["local", "portable"])
@pytest.mark.quick(1)
def test_a_step_does_not_overtake_a_pending_reader(spec: list[str], executor: str, mesh_2: Any) -> None:
    layout = dtensor.Layout(spec, mesh_2)
    var = variable(np.ones(4), layout, "w")
    slow = Slow(var, layout)
    optimizer = optim.SGD(1.0, executor=executor)
    one = put(np.ones(4), layout)
    optimizer.apply_gradients([(one, var)])
    value_of(slow.read())
    whole = _pending_time(lambda: value_of(slow.read()))[0]

    times = []
    for round_ in range(ATTEMPTS):
        returned, pending = _pending_time(slow.read)
        times.append(returned)
        optimizer.apply_gradients([(one, var)])
        np.testing.assert_allclose(value_of(pending), -float(round_), atol=1e-12)
    assert min(times) < whole / 2, "the reader is not pending"
    assert_dtensor_equal(var, np.full(4, -float(ATTEMPTS)), layout, atol=1e-12)


def test_a_pending_gradient_is_waited_for(mesh_2: Any) -> None:
    layout = dtensor.Layout(["x"], mesh_2)
    var = variable(np.ones(4), layout, "w")
    slow = Slow(var, layout)
    optimizer = optim.SGD(0.5, executor="local", global_clipnorm=100.0)
    for expected in (0.5, 0.25):
        optimizer.apply_gradients([(dtensor.relayout(slow.read(), layout), var)])
        assert_dtensor_equal(var, np.full(4, expected), layout, atol=1e-12)


def test_what_comes_after_a_local_step_sees_it(mesh_2: Any) -> None:
    layout = dtensor.Layout(["x"], mesh_2)
    var = variable(np.zeros(4), layout, "w")
    double = tf.function(lambda: var.read_value() * 2)
    optimizer = optim.SGD(1.0, executor="local")
    one = put(np.ones(4), layout)
    for step in range(1, 20):
        optimizer.apply_gradients([(one, var)])
        np.testing.assert_array_equal(value_of(double()), -2.0 * step)
        assert int(optimizer.iterations.numpy()) == step


def test_two_meshes_are_both_waited_for(mesh_2: Any, mesh_2x2: Any) -> None:
    layouts = [dtensor.Layout(["x"], mesh_2), dtensor.Layout(["batch"], mesh_2x2)]
    variables = [variable(np.ones(4), layout, f"w{i}") for i, layout in enumerate(layouts)]
    slow = [Slow(v, layout) for v, layout in zip(variables, layouts, strict=True)]
    optimizer = optim.SGD(1.0, executor="local")
    ones = [put(np.ones(4), layout) for layout in layouts]
    for value in (7.0, 9.0):
        for function, layout in zip(slow, layouts, strict=True):
            function.assign(put(np.full(4, value), layout))
        optimizer.apply_gradients(list(zip(ones, variables, strict=True)))
        for var, layout in zip(variables, layouts, strict=True):
            assert_dtensor_equal(var, np.full(4, value - 1), layout, atol=1e-12)
