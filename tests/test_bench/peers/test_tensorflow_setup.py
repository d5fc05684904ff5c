"""Shards of a tensor and the tensor from its shards, against DTensor itself."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from bench.cases.case import Case
from bench.cases.layouts import RULES, parse_mesh
from bench.cases.values import gradient, parameter
from bench.peers.tensorflow import assemble, barrier, mesh_session, shards
from tests.helpers.timing import once


def case(layout: str) -> Case:
    return Case("gpt2:layer", "sgd", parse_mesh("2x2"), layout)


@pytest.mark.parametrize("layout", RULES)
@pytest.mark.quick(2)
def test_tensors_on_the_mesh_are_what_dtensor_makes_of_the_layout(layout: str, mesh_2x2: Any) -> None:
    from tensorflow.experimental import dtensor

    shown = case(layout)
    session = mesh_session(shown, mesh_2x2, lambda variables: lambda gradients: None)
    for index in (0, 3, 5, 8):  # a norm, a column bias, a row bias, a column kernel
        array = gradient(shown, index, 0)
        placed = session.place(index, array)
        whole = dtensor.relayout(placed, dtensor.Layout.replicated(mesh_2x2, rank=array.ndim))
        np.testing.assert_array_equal(dtensor.unpack(whole)[0].numpy(), array)
        expected = [axis or dtensor.UNSHARDED for axis in shown.shardings[index].axes]
        assert dtensor.fetch_layout(placed).sharding_specs == expected
        np.testing.assert_array_equal(session.read(index), parameter(shown, index))
        assert session.glance is not None
        first = session.glance(index)[0].ravel()[0]  # type: ignore[index]
        assert first == parameter(shown, index).ravel()[0]


def test_replicas_that_differ_become_nan() -> None:
    shown = case("megatron")
    index = 5  # a row bias: whole on all four devices
    array = parameter(shown, index)
    parts = [array.copy() for _ in range(4)]
    np.testing.assert_array_equal(assemble(shown, index, parts), array)
    parts[2][7] += 1.0
    found = assemble(shown, index, parts)
    assert np.isnan(found[7])
    assert np.isnan(found).sum() == 1


def test_shards_cover_the_tensor_once_per_replica() -> None:
    shown = case("megatron")
    for index, tensor in enumerate(shown.tensors):
        count = np.zeros(tensor.shape, dtype=int)
        for shard in shards(shown, index):
            count[shard] += 1
        assert (count == (2 if shown.shardings[index].axes.count("model") else 4)).all()


def test_the_barrier_waits_for_a_slow_function(mesh_2x2: Any) -> None:
    """A DTensor function returns at once; after the barrier its result is there."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    square = dtensor.call_with_layout(
        tf.ones, dtensor.Layout.replicated(mesh_2x2, rank=2), shape=(256, 256), dtype=tf.float32
    )

    @tf.function
    def slow(x: Any) -> Any:
        for _ in tf.range(200):
            x = tf.matmul(x, x) / 256.0
        return x

    wait = barrier(mesh_2x2)
    dtensor.unpack(slow(square))[0].numpy()  # traced
    wait()

    def waits() -> bool:
        start = time.perf_counter()
        result = slow(square)
        returned = time.perf_counter() - start
        wait()
        waited = time.perf_counter() - start
        start = time.perf_counter()
        for part in dtensor.unpack(result):
            part.numpy()
        left = time.perf_counter() - start
        return returned < waited / 2 and left < waited / 4

    assert once(waits)
