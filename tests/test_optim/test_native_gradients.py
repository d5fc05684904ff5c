"""Gradients checked and unpacked by dtopt's own kernel: alike what TensorFlow's Python functions say of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

from optim.executors import native
from optim.native import gradients, library
from optim.native.gradients import Held
from optim.variables import TrackedVariables, conform_all
from tests.test_optim.support import put, variable

MANY = 1000  # enough for several threads


@pytest.fixture(autouse=True)
def _kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.VARIABLE, "build")
    if not library.status().available:
        pytest.skip(library.status().reason)


def _misfits(tensors: list[Any], variables: list[Any]) -> list[int]:
    tracked = TrackedVariables()
    return gradients.misfits(tensors, [tracked.add(v).expected for v in variables])


def test_what_is_not_like_its_variable_is_found(mesh_2x2: Any) -> None:
    values = np.arange(64.0).reshape(8, 8)
    first, second = (dtensor.Layout(specs, mesh_2x2) for specs in (["batch", "unsharded"], ["model", "unsharded"]))
    sharded, plain = variable(values, first, "sharded"), tf.Variable(values)
    offered = {
        "itself": (put(values, first), sharded, True),
        "another axis, the same local shape": (put(values, second), sharded, False),
        "replicated": (put(values, dtensor.Layout.replicated(mesh_2x2, 2)), sharded, False),
        "on no mesh": (tf.constant(values), sharded, False),
        "another shape": (put(values[:4], first), sharded, False),
        "another rank": (put(values[0], dtensor.Layout(["batch"], mesh_2x2)), sharded, False),
        "another dtype": (put(values, first, tf.float32), sharded, False),
        "no tensor": (values, sharded, False),
        "nothing": (None, sharded, False),
        "rows": (tf.IndexedSlices(tf.constant(values), tf.range(8)), plain, False),
        "plain": (tf.constant(values), plain, True),
        "plain, of another shape": (tf.constant(values[:4]), plain, False),
        "plain, but on a mesh": (put(values, first), plain, False),
    }
    for name, (tensor, var, fits) in offered.items():
        assert (_misfits([tensor], [var]) == []) is fits, name
    tensors, variables = [t for t, _, _ in offered.values()], [v for _, v, _ in offered.values()]
    tracked = TrackedVariables()
    wanted = [tracked.add(v).expected for v in variables]
    assert gradients.misfits(tensors, wanted) == [i for i, (_, _, fits) in enumerate(offered.values()) if not fits]


def test_a_shape_that_is_not_known_is_left_to_python() -> None:
    loose = tf.Variable(tf.zeros([3]), shape=tf.TensorShape([None]))
    assert _misfits([tf.zeros([3])], [loose]) == [0]


def test_among_many_each_is_found(mesh_2: Any) -> None:
    layout = dtensor.Layout(["x"], mesh_2)
    good, bad = put(np.zeros(4), layout), put(np.zeros(6), layout)
    var = variable(np.zeros(4), layout, "v")
    odd = {0, 1, 127, 128, 500, 501, MANY - 1}
    assert _misfits([bad if i in odd else good for i in range(MANY)], [var] * MANY) == sorted(odd)


def test_python_and_the_kernel_conform_alike(mesh_2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, whole = dtensor.Layout(["x"], mesh_2), dtensor.Layout.replicated(mesh_2, 1)
    var = variable(np.zeros(4), layout, "v")
    tracked = [TrackedVariables().add(var)] * 2
    given = [put(np.arange(4), layout), put(np.arange(4), whole)]
    fast = conform_all(given, tracked)
    assert fast[0] is given[0]
    monkeypatch.setenv(library.VARIABLE, "off")
    slow = conform_all(given, tracked)
    assert slow[0] is given[0]
    assert dtensor.fetch_layout(fast[1]) == dtensor.fetch_layout(slow[1]) == layout


def _sums(tensors: list[Any], places: list[int]) -> list[float]:
    return native.square_sums(Held(tensors), places, tensors[0].dtype)


def test_parts_are_held_in_the_order_of_variables_and_devices(mesh_2x2: Any) -> None:
    values = np.arange(1.0, 9.0)
    sharded = put(values, dtensor.Layout(["batch"], mesh_2x2))
    found = _sums([tf.constant(values), sharded, tf.constant([3.0], tf.float64)], list(range(6)))
    wanted = [np.square(part.numpy()).sum() for part in dtensor.unpack(sharded)]
    assert found == [np.square(values).sum(), *wanted, 9.0]


def test_many_are_held_in_order(mesh_2: Any) -> None:
    layout = dtensor.Layout(["x"], mesh_2)
    tensors = [put(np.array([i, i + 0.5]), layout) for i in range(MANY)]
    assert _sums(tensors, list(range(2 * MANY))) == [(k / 2) ** 2 for k in range(2 * MANY)]


def test_held_tensors_outlive_what_they_came_from_and_no_longer_than_held(mesh_2: Any) -> None:
    layout = dtensor.Layout(["x"], mesh_2)
    tensors = [put(np.full(2, 3.0), layout)]
    held = Held(tensors)
    number = held.number
    del tensors
    assert native.square_sums(held, [0, 1], tf.float64) == [9.0, 9.0]
    with pytest.raises(Exception, match="no tensor 2 of 2"):
        native.square_sums(held, [2], tf.float64)
    with pytest.raises(Exception, match="tensor 0 is double"):
        native.square_sums(held, [0], tf.float32)
    del held
    gone = Held([tf.zeros([1])])
    gone.number, kept = number, gone.number
    with pytest.raises(Exception, match=f"nothing is held under number {number}"):
        native.square_sums(gone, [0], tf.float32)
    gone.number = kept
