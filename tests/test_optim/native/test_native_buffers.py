"""Whose memory dtopt's own kernel reads and writes: gradients that share it with variables, slots or each other, or are
parts of other tensors, and what other threads do meanwhile."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.support import variable

NATIVE = pytest.mark.parametrize("mode", ["native"])
SIZE = 1000


def numbers(seed: int, size: int = SIZE) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


@NATIVE
def test_a_gradient_that_is_the_value_of_its_variable(mode: str, mesh_2: Any) -> None:
    for layout in (None, dtensor.Layout(["x"], mesh_2), dtensor.Layout.replicated(mesh_2, 1)):
        start, other = numbers(0), numbers(1)
        mine, theirs = (variable(a, layout, f"v{i}", tf.float32) for i, a in enumerate((start, other)))
        gradient = mine.read_value()
        optim.SGD(0.5).apply_gradients([(gradient, mine), (gradient, theirs)])
        np.testing.assert_array_equal(value_of(mine), start - 0.5 * start)
        np.testing.assert_array_equal(value_of(theirs), other - 0.5 * start)
        np.testing.assert_array_equal(value_of(gradient), start)


@NATIVE
def test_a_gradient_that_is_the_value_of_a_slot(mode: str) -> None:
    weights, optimizer = tf.Variable(numbers(0)), optim.SGD(0.5, momentum=0.5)
    optimizer.build([weights])
    optimizer.apply_gradients([(tf.ones(SIZE), weights)])
    slot = optimizer.get_slot(weights, "m").read_value()
    optimizer.apply_gradients([(slot, weights)])
    np.testing.assert_array_equal(slot.numpy(), np.full(SIZE, -0.5, np.float32))
    np.testing.assert_array_equal(optimizer.get_slot(weights, "m").numpy(), np.zeros(SIZE))


_BYTES = b"1234" + numbers(2).tobytes()
VIEWS: dict[str, Callable[[], Any]] = {
    "a part": lambda: tf.constant(numbers(2, SIZE + 3))[1:-2],
    "every third": lambda: tf.constant(numbers(2, 3 * SIZE))[1::3],
    "transposed": lambda: tf.reshape(tf.transpose(tf.constant(numbers(2).reshape(10, 100))), [SIZE]),
    "not aligned": lambda: tf.constant(np.frombuffer(_BYTES, np.float32, SIZE, offset=4)),
    "numpy with gaps": lambda: numbers(2, 2 * SIZE)[::2],
}


@NATIVE
@pytest.mark.parametrize("name", VIEWS)
def test_gradients_that_are_parts_of_other_memory(name: str, mode: str) -> None:
    gradient, weights = VIEWS[name](), tf.Variable(numbers(3))
    want = np.asarray(gradient)
    optim.SGD(0.5).apply_gradients([(gradient, weights)])
    np.testing.assert_array_equal(weights.numpy(), numbers(3) - np.float32(0.5) * want)


def in_threads(task: Callable[[int], None], count: int = 3) -> None:
    """Run `task(k)` in threads, and raise the first error of theirs."""
    errors: list[BaseException] = []

    def run(k: int) -> None:
        try:
            task(k)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@NATIVE
def test_threads_step_one_table_with_rows_that_are_freed_at_once(mode: str) -> None:
    rows, times = 2000, 60
    table, optimizer, named = tf.Variable(tf.zeros([rows, 16])), optim.SGD(1.0), [np.zeros(rows) for _ in range(3)]
    optimizer.build([table])

    def task(k: int) -> None:
        random = np.random.default_rng(k)
        for _ in range(times):
            indices = random.integers(0, rows, 600)
            np.add.at(named[k], indices, 1.0)
            given = tf.IndexedSlices(tf.ones([600, 16]), tf.constant(indices), tf.constant([rows, 16]))
            optimizer.apply_gradients([(given, table)])
            del given
            gc.collect(0)

    in_threads(task)
    np.testing.assert_array_equal(table.numpy(), np.repeat(-sum(named)[:, None], 16, axis=1))
    assert optimizer.iterations.numpy() == 3 * times


@NATIVE
def test_a_variable_that_other_threads_assign_meanwhile(mode: str) -> None:
    """Each step sees one value or another, never a part of both."""
    weights, optimizer, zeros = tf.Variable(tf.zeros(200_000)), optim.SGD(1.0), tf.zeros(200_000)
    optimizer.build([weights])

    def task(k: int) -> None:
        for i in range(60):
            if k == 0:
                optimizer.apply_gradients([(zeros, weights)])
            else:
                weights.assign(tf.fill([200_000], float(i)))
                seen = weights.read_value().numpy()
                assert np.all(seen == seen[0])

    in_threads(task)


@NATIVE
def test_what_a_refused_step_held_is_let_go(mode: str) -> None:
    """Of 600 refused steps with 2 MB of gradients each nothing may stay."""
    table, optimizer = tf.Variable(tf.zeros([256, 1024])), optim.SGD(1.0)
    optimizer.build([table])

    def resident() -> float:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096 / 1e6

    def refused(times: int) -> None:
        for _ in range(times):
            for gradient in (
                tf.IndexedSlices(tf.ones([256, 1024]), tf.fill([256], 999), tf.constant([256, 1024])),
                tf.ones([256, 1023]),
            ):
                with pytest.raises(ValueError, match="gradient of"):
                    optimizer.apply_gradients([(gradient, table)])

    refused(100)
    before = resident()
    refused(600)
    assert resident() - before < 100
    assert not table.numpy().any()
