"""Gradients of embedding tables: `IndexedSlices` with repeated indices, on any layout, eagerly and in a function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.experimental import dtensor

import optim
from tests.helpers.breadth import covering
from tests.helpers.dtensor_asserts import assert_dtensor_equal, layout_of, value_of
from tests.test_optim.cases import VARIANTS, Case
from tests.test_optim.support import put, variable

IDS = [3, 0, 3, 3, 7, 0]


def _layout(sharding: str, mesh: Any) -> dtensor.Layout | None:
    return {
        "plain": None,
        "replicated": dtensor.Layout.replicated(mesh, 2),
        "rows": dtensor.Layout(["batch", "unsharded"], mesh),
        "both": dtensor.Layout(["model", "batch"], mesh),
    }[sharding]


@covering(
    2,
    case=[VARIANTS[1], VARIANTS[3], VARIANTS[5]],
    sharding=["plain", "replicated", "rows", "both"],
    mode=["eager", "function"],
    options=[{}, {"clipnorm": 1.0, "weight_decay": 0.1}],
)
@pytest.mark.quick(4)
def test_a_lookup_trains_like_its_dense_gradient(
    case: Case, sharding: str, mode: str, options: Any, mesh_2x2: Any
) -> None:
    layout = _layout(sharding, mesh_2x2)
    start = np.linspace(-1, 1, 32).reshape(8, 4)
    weights = np.linspace(0.5, 2, 24).reshape(6, 4)
    table = variable(start, layout, "table")
    ids, scale = tf.constant(IDS), put(weights, None)
    if layout is not None:
        ids = dtensor.copy_to_mesh(ids, dtensor.Layout.replicated(mesh_2x2, 1))
        scale = put(weights, dtensor.Layout.replicated(mesh_2x2, 2))
    optimizer = case.make(**options)
    kinds = []

    def train(ids: Any, scale: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, ids) * scale)
        gradient = tape.gradient(loss, table)
        kinds.append(type(gradient).__name__)
        optimizer.apply_gradients([(gradient, table)])

    def given(ids: Any, scale: Any) -> None:
        optimizer.apply_gradients([(tf.IndexedSlices(scale, ids), table)])

    # Eagerly on a mesh, TensorFlow cannot differentiate the reduction; the slices themselves are given then.
    step = tf.function(train, autograph=False) if mode == "function" else (train if layout is None else given)
    from tests.reference.common import Options, Training

    reference = Training(case.algorithm, case.rate, {"table": start}, Options(**options))
    dense = np.zeros((8, 4))
    np.add.at(dense, IDS, weights)
    for _ in range(4):
        step(ids, scale)
        reference.apply({"table": dense})
    assert set(kinds) <= {"IndexedSlices"}
    assert_dtensor_equal(table, reference.values["table"], layout_of(table), rtol=1e-12, atol=1e-14)
    for slot, expected in reference.slots["table"].items():
        assert_dtensor_equal(optimizer.get_slot(table, slot), expected, layout_of(table), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("index", [-1, 8])
def test_an_index_out_of_range_changes_nothing(index: int, devices: list[str]) -> None:
    table = tf.Variable(tf.ones([8, 2]), name="table")
    optimizer = optim.SGD(0.5)
    slices = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([1, index]))
    with pytest.raises((optim.errors.DtoptError, tf.errors.InvalidArgumentError), match=f"{index}"):
        optimizer.apply_gradients([(slices, table)])
    np.testing.assert_array_equal(table.numpy(), np.ones((8, 2)))
    assert int(optimizer.iterations.numpy()) == 0


def test_accumulated_slices(mesh_2x2: Any) -> None:
    table = variable(np.zeros((8, 4)), _layout("rows", mesh_2x2), "table")
    whole = dtensor.Layout.replicated(mesh_2x2, 2)
    optimizer = optim.SGD(1.0, gradient_accumulation_steps=2)
    expected = np.zeros((8, 4))
    for ids in ([1, 1], [5, 1]):
        indices = dtensor.copy_to_mesh(tf.constant(ids), dtensor.Layout.replicated(mesh_2x2, 1))
        optimizer.apply_gradients([(tf.IndexedSlices(put(np.ones((2, 4)), whole), indices), table)])
        np.add.at(expected, ids, -0.5)
    assert_dtensor_equal(table, expected, table.layout, rtol=1e-15)


LAZY = {
    "SGD": {"learning_rate": 0.1, "momentum": 0.9},
    "Adadelta": {"learning_rate": 1.0},
    "Nadam": {"learning_rate": 0.1},
}
AS_OPTIMIZER_V2 = {"SGD": {}, "Adadelta": {}, "Nadam": {"schedule_decay": 0.004, "lazy_rows_keep_slots": False}}


@pytest.mark.parametrize("name", LAZY)
def test_lazy_rows_are_the_sparse_steps_of_optimizer_v2(name: str, mesh_2x2: Any) -> None:
    """Rows come and go, and the third step has none of those of the second; ours is given dense gradients."""
    start = np.linspace(-1, 1, 32).reshape(8, 4).astype(np.float32)
    theirs, ours = tf.Variable(start), variable(start, _layout("rows", mesh_2x2), "table")
    peer = getattr(tf_keras.optimizers.legacy, name)(**LAZY[name])
    optimizer = getattr(optim, name)(**LAZY[name], **AS_OPTIMIZER_V2[name], lazy_rows=["table"])
    rng = np.random.default_rng(5)
    for ids in ([0, 3, 7], [1, 3, 6], [0, 2, 7], [3], [0, 1, 2]):
        rows = rng.normal(size=(len(ids), 4)).astype(np.float32)
        peer.apply_gradients([(tf.IndexedSlices(tf.constant(rows), tf.constant(ids), tf.constant([8, 4])), theirs)])
        dense = np.zeros((8, 4), np.float32)
        dense[ids] = rows
        optimizer.apply_gradients([(put(dense, _layout("rows", mesh_2x2)), ours)])
        np.testing.assert_allclose(value_of(ours), theirs.numpy(), rtol=2e-6, atol=2e-6)
    for slot in peer.get_slot_names():
        here = {"momentum": "m", "accum_grad": "accumulated_grad", "accum_var": "accumulated_delta_var"}.get(slot, slot)
        expected = peer.get_slot(theirs, slot).numpy()
        np.testing.assert_allclose(value_of(optimizer.get_slot(ours, here)), expected, rtol=1e-5, atol=1e-7)


@covering(
    2,
    name=[*LAZY],
    sharding=["plain", "replicated", "rows", "both"],
    how=["eager", "function", "compiled"],
    mode=["native", "none"],
    options=[
        {},
        {"executor": "portable"},
        {"clipnorm": 1e6},
        {"use_ema": True},
        {"slot_placement": "zero1"},
        {"repeated_rows": ["clip", "square"], "clipvalue": 1e6},
    ],
)
@pytest.mark.quick(5)
def test_rows_named_with_zeros_move_as_in_optimizer_v2(
    name: str, sharding: str, how: str, mode: str, options: dict[str, Any], mesh_2x2: Any
) -> None:
    """Their momentum and their slots move them, where a loss gave every example of theirs a gradient of zero."""
    layout, start = _layout(sharding, mesh_2x2), np.linspace(-1, 1, 32).reshape(8, 4).astype(np.float32)
    theirs, ours = tf.Variable(start), variable(start, layout, "table", tf.float32)
    peer = getattr(tf_keras.optimizers.legacy, name)(**LAZY[name])
    optimizer = getattr(optim, name)(**LAZY[name], **AS_OPTIMIZER_V2[name], lazy_rows=["table"], **options)
    optimizer.build([ours])

    def step(values: Any, ids: Any) -> None:
        optimizer.apply_gradients([(tf.IndexedSlices(values, ids, tf.constant([8, 4])), ours)])

    compiled = how == "compiled" and layout is None  # DTensor has no steps that XLA compiles
    run = step if how == "eager" else tf.function(step, autograph=False, jit_compile=compiled)
    rng = np.random.default_rng(5)
    for ids, zeros in (([0, 3, 7], []), ([3, 1, 7], [0, 2]), ([1, 0, 6], [0]), ([0, 2, 2], [0, 1, 2])):
        rows = rng.normal(size=(3, 4)).astype(np.float32)
        rows[zeros] = 0
        peer.apply_gradients([(tf.IndexedSlices(tf.constant(rows), tf.constant(ids), tf.constant([8, 4])), theirs)])
        whole = [None if layout is None else dtensor.Layout.replicated(mesh_2x2, rank) for rank in (2, 1)]
        run(put(rows, whole[0], tf.float32), put(np.array(ids), whole[1], tf.int64))
        np.testing.assert_allclose(value_of(ours), theirs.numpy(), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("indices", [(0, 4, 0), [0, 4, 0], np.array([0, 4, 0])], ids=["tuple", "list", "array"])
@pytest.mark.parametrize("kind", [optim.Adam, optim.legacy.v2.Adam, optim.legacy.v2.Adadelta], ids=str)
def test_indices_need_not_be_tensors(kind: Any, indices: Any) -> None:
    """`IndexedSlices` takes them as they are, and so do the optimizers of Keras."""
    found = []
    for given in (indices, tf.constant([0, 4, 0])):
        table = tf.Variable(tf.ones([5, 2]))
        kind(0.5).apply_gradients([(tf.IndexedSlices(tf.reshape(tf.range(1.0, 7.0), [3, 2]), given, (5, 2)), table)])
        found.append(table.numpy())
    assert np.any(found[0] != 1.0)
    np.testing.assert_array_equal(*found)
