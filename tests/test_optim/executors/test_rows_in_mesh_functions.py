"""Several steps on rows in one function over a mesh: as eager steps on the mesh, and as on none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim.native import library
from optim.step import gradients as dense_gradients
from tests.helpers.breadth import broad
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.native.kernel_support import ops_of
from tests.test_optim.support import put, variable

ROWS, COLUMNS = 8, 4
SPECS = {"whole": [None, None], "rows": ["batch", None], "columns": [None, "model"], "both": ["model", "batch"]}
ZERO1: dict[str, Any] = {"slot_placement": "zero1"}
OPTIONS: dict[str, dict[str, Any]] = {
    "norm": {"gradient_accumulation_steps": 2, "global_clipnorm": 0.5, "clipvalue": 0.4},
    "norm of each": {"gradient_accumulation_steps": 3, "clipnorm": 0.5, "clipvalue": 0.4, "clip_order": "norm_first"},
    "scaled": {"gradient_accumulation_steps": 2, "loss_scale": "dynamic"},
    "zero1": ZERO1,
    "zero1, average": {
        **ZERO1,
        "use_ema": True,
        "ema_momentum": 0.9,
        "ema_overwrite_frequency": 2,
        "weight_decay": 0.1,
    },
    "zero1, all": {**ZERO1, "gradient_accumulation_steps": 2, "global_clipnorm": 0.5, "loss_scale": 4.0},
}
NATIVE = pytest.mark.parametrize("mode", ["native"])


class Model:
    """A table and a vector on one mesh, or on none, and steps whose gradients depend on both."""

    def __init__(self, place: str, mesh: Any, kind: Any = optim.Adam, **options: Any):
        specs = [spec or dtensor.UNSHARDED for spec in SPECS[place]]
        layout = None if mesh is None else dtensor.Layout(specs, mesh)
        self.mesh = mesh
        start = np.linspace(-1, 1, ROWS * COLUMNS).reshape(ROWS, COLUMNS)
        self.table = variable(start, layout, "table", tf.float32)
        self.vector = variable(np.ones(4), self._whole(1), "vector", tf.float32)
        self.optimizer = kind(0.1, **options)
        self.optimizer.build([self.table, self.vector])

    def _whole(self, rank: int) -> dtensor.Layout | None:
        return None if self.mesh is None else dtensor.Layout.replicated(self.mesh, rank)

    def put(self, array: np.ndarray) -> Any:
        return put(array, self._whole(array.ndim), tf.as_dtype(array.dtype))

    def batches(self, count: int, factor: float = 1.0) -> tuple[Any, Any]:
        drawn = np.random.default_rng(7)
        ids = drawn.integers(0, ROWS - 2, size=(count, 6))  # some several times, and the last rows never
        return self.put(ids), self.put((drawn.normal(size=(count, 6, COLUMNS)) * factor).astype(np.float32))

    def step(self, ids: Any, values: Any) -> None:
        read = self.table.read_value()
        here = read if self.mesh is None else dtensor.relayout(read, self._whole(2))
        rows = tf.gather(here, ids) * 0.1 * tf.reduce_mean(self.vector.read_value()) + values
        slices = tf.IndexedSlices(rows, ids, tf.constant([ROWS, COLUMNS], tf.int64) if self.mesh is None else None)
        self.optimizer.apply_gradients([(slices, self.table), (self.vector.read_value() * 0.5, self.vector)])

    def eagerly(self, ids: Any, values: Any) -> None:
        for k in range(ids.shape[0]):
            self.step(self.put(value_of(ids)[k]), self.put(value_of(values)[k]))

    def state(self) -> dict[str, np.ndarray]:
        slots = {name: value_of(self.optimizer.get_slot(self.table, name)) for name in self.optimizer.slot_names}
        slots.pop("gathered", None)  # what the kernel knows rows by
        named = {"table": value_of(self.table), "vector": value_of(self.vector)}
        return {**slots, **named, "iterations": np.array(int(self.optimizer.iterations))}


def unrolled(model: Model) -> Any:
    @tf.function(autograph=False)
    def run(ids: Any, values: Any) -> Any:
        for k in range(ids.shape[0]):
            model.step(ids[k], values[k])
        return tf.reduce_sum(model.table.read_value())

    return run


def assert_alike(one: Model, two: Model, rtol: float) -> None:
    mine, others = one.state(), two.state()
    assert mine.keys() == others.keys()
    for name, value in mine.items():
        np.testing.assert_allclose(value, others[name], rtol=rtol, atol=rtol, err_msg=name)


@pytest.fixture
def never_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a gradient of some rows was made dense")

    monkeypatch.setattr(dense_gradients, "densify", refuse)


@pytest.mark.breadth
@NATIVE
@pytest.mark.parametrize("place", ["whole", broad("rows"), broad("columns"), broad("both")])
@pytest.mark.parametrize("name", [name if name in ("norm", "zero1, all") else broad(name) for name in OPTIONS])
def test_steps_in_one_function_are_eager_steps(
    name: str, place: str, mode: str, mesh_2x2: Any, never_dense: None
) -> None:
    found = Model(place, mesh_2x2, **OPTIONS[name])
    run = unrolled(found)
    assert found.optimizer.executor_report().why_dense_rows == ""
    for _ in range(2):
        total = run(*found.batches(3))
    for mesh in (mesh_2x2, None):
        expected = Model(place, mesh, **OPTIONS[name])
        for _ in range(2):
            expected.eagerly(*expected.batches(3))
        assert_alike(found, expected, 3e-6)
    np.testing.assert_allclose(float(value_of(total)), value_of(found.table).sum(dtype=np.float64), rtol=1e-5)


@NATIVE
def test_devices_whose_slots_are_parts_step_together(mode: str, mesh_2x2: Any, never_dense: None) -> None:
    """Bit for bit what an eager step gives, in a loop, too; and no op of TensorFlow's gathers what others computed."""
    looped, expected = (Model("whole", mesh_2x2, **ZERO1) for _ in range(2))
    ids, values = looped.batches(4)

    @tf.function
    def run(ids: Any, values: Any) -> None:
        for _ in tf.range(3):
            looped.step(ids, values)

    first = looped.put(value_of(ids)[0]), looped.put(value_of(values)[0])
    assert "DtoptStepTogether" in ops_of(run.get_concrete_function(*first))
    run(*first)
    for _ in range(3):
        expected.step(*first)
    assert_alike(looped, expected, 0.0)


@pytest.mark.breadth
@NATIVE
@pytest.mark.parametrize("placement", ["like_variable", broad("zero1")])
def test_a_window_that_is_not_finite_is_left_out(placement: str, mode: str, mesh_2x2: Any, never_dense: None) -> None:
    options = {"gradient_accumulation_steps": 2, "loss_scale": "dynamic", "clipnorm": 1.0}
    found = Model("both" if placement == "like_variable" else "whole", mesh_2x2, slot_placement=placement, **options)
    expected = Model("whole", None, **options)
    run = unrolled(found)
    for factor in (1.0, np.inf, 2.0):
        ids, values = found.batches(4, factor)
        run(ids, values)
        expected.eagerly(*expected.batches(4, factor))
        assert_alike(found, expected, 3e-6)
    assert int(found.optimizer.iterations) == 4


@NATIVE
def test_large_float64_gradients_are_finite(mode: str, mesh_2x2: Any) -> None:
    """Though their squares are not."""
    layout = dtensor.Layout.replicated(mesh_2x2, 2)
    table = variable(np.ones((ROWS, COLUMNS)), layout, "table")
    optimizer = optim.SGD(1e-200, gradient_accumulation_steps=2, loss_scale=1.0)
    optimizer.build([table])

    @tf.function
    def step(ids: Any, values: Any) -> None:
        optimizer.apply_gradients([(tf.IndexedSlices(values, ids), table)])

    for value in (1e200, 1e200, np.inf, 1.0):
        step(put(np.array([1]), layout.delete([1]), tf.int64), put(np.full((1, COLUMNS), value), layout))
    assert int(optimizer.iterations) == 1
    np.testing.assert_allclose(value_of(table)[:2, 0], [1.0, 0.0], atol=1e-12)


@NATIVE
def test_rows_of_sums_are_remembered_by_their_bytes(mode: str) -> None:
    """Not by how many sums there are. Of what was forgotten any row may be other than zero."""
    ops = library.ops()

    def mark(count: int) -> Any:
        return ops.dtopt_mark_rows(before=tf.constant(0, tf.int64), rows=tf.range(count, dtype=tf.int64))

    def rows_of(marked: Any) -> int:
        return int(tf.size(ops.dtopt_marked_rows(mark=marked, limit=tf.constant(3, tf.int64))))

    small = [mark(1) for _ in range(5000)]
    assert [rows_of(each) for each in (small[0], small[-1])] == [1, 1]
    large = [mark(1 << 22) for _ in range(4)]  # 32 MiB each
    assert [rows_of(each) for each in (small[1], large[0], large[-1])] == [3, 3, 1 << 22]
    assert [rows_of(each) for each in large[1:3]] == [3, 1 << 22]
