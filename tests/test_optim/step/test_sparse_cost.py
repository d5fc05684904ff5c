"""Steps on rows of a table: what they mean, by a reference in float64, and that they touch nothing but these rows.

Nothing is timed. A row that no gradient names is infinite here, its slots too, so that any arithmetic would make NaN of
it; and where a gradient is made dense the test fails.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim.errors import MismatchError
from optim.step import gradients as dense_gradients
from tests.helpers.breadth import broad
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.native.kernel_support import ops_of
from tests.test_optim.support import put, variable

ROWS, COLUMNS, RATE = 8, 4, 0.1
CALLS = ([3, 0, 3, 3, 6, 0], [1, 1, 3, 0, 1, 1], [6, 6, 6, 6, 6, 6], [2, 3, 2, 3, 2, 3])
"""Row numbers of each call, most of them repeated; row 5 is never named, row 7 is infinite."""
POISONED = 7
SCALE = 2.0**15
OPTIONS: dict[str, dict[str, Any]] = {
    "bare": {},
    "value": {"clipvalue": 0.5},
    "norm": {"clipnorm": 1.0, "clipvalue": 0.7},
    "norm first": {"global_clipnorm": 1.0, "clipvalue": 0.2, "clip_order": "norm_first"},
    "scaled": {"loss_scale": "dynamic", "loss_scale_growth_steps": 100},
    "gathered": {"gradient_accumulation_steps": 2},
    "gathered, scaled, norm": {"gradient_accumulation_steps": 2, "loss_scale": SCALE, "global_clipnorm": 1.0},
}
NATIVE = pytest.mark.parametrize("mode", ["native"])
MODES = pytest.mark.parametrize("how", ["eager", "function"])


def layout_for(place: str, mesh: Any) -> dtensor.Layout | None:
    specs = {
        "whole": ["unsharded", "unsharded"],
        "rows": ["batch", "unsharded"],
        "columns": ["unsharded", "model"],
        "both": ["model", "batch"],
    }
    return dtensor.Layout(specs[place], mesh) if place in specs else None


class LazyAdam:
    """Adam of the rows whose gradient is not zero, in float64, with clipping, and the mean of some calls."""

    def __init__(self, start: np.ndarray, options: dict[str, Any]):
        self.p = start.copy()
        self.m, self.v = np.zeros_like(start), np.zeros_like(start)
        self.t, self.options, self.calls = 0, options, []

    def apply(self, gradient: np.ndarray) -> None:
        self.calls.append(gradient)
        if len(self.calls) < self.options.get("gradient_accumulation_steps", 1):
            return
        g, self.calls = self._clipped(np.mean(self.calls, 0)), []
        self.t += 1
        at = np.any(g != 0, axis=1)
        self.m[at] = 0.9 * self.m[at] + 0.1 * g[at]
        self.v[at] = 0.999 * self.v[at] + 0.001 * g[at] ** 2
        rate = RATE * np.sqrt(1 - 0.999**self.t) / (1 - 0.9**self.t)
        self.p[at] -= rate * self.m[at] / (np.sqrt(self.v[at]) + 1e-7)

    def _clipped(self, g: np.ndarray) -> np.ndarray:
        limit = self.options.get("clipvalue", np.inf)
        bound = self.options.get("clipnorm", self.options.get("global_clipnorm", np.inf))
        if self.options.get("clip_order") == "norm_first":
            return np.clip(g * min(1.0, bound / np.linalg.norm(g)), -limit, limit)
        g = np.clip(g, -limit, limit)
        return g * min(1.0, bound / np.linalg.norm(g))


def slices(call: int, layout: dtensor.Layout | None, scale: float = 1.0) -> tf.IndexedSlices:
    """The gradient of a call; one column of a row is zero now and then."""
    values = np.random.default_rng(call).normal(size=(6, COLUMNS)) * scale
    values[:, call % COLUMNS] = 0.0
    if call == 1:
        values[:, :2] = 0.0  # all of what a device has that holds these columns
    ids = np.array(CALLS[call], np.int64 if call % 2 else np.int32)
    if layout is None:
        return tf.IndexedSlices(tf.constant(values), tf.constant(ids), tf.constant([ROWS, COLUMNS]))
    whole = dtensor.Layout.replicated(layout.mesh, 2)
    return tf.IndexedSlices(put(values, whole), dtensor.copy_to_mesh(tf.constant(ids), whole.delete([1])))


def dense(call: int) -> np.ndarray:
    whole, given = np.zeros((ROWS, COLUMNS)), slices(call, None)
    np.add.at(whole, given.indices.numpy(), given.values.numpy())
    return whole


def poisoned(layout: dtensor.Layout | None) -> tuple[np.ndarray, tf.Variable]:
    start = np.linspace(-1, 1, ROWS * COLUMNS).reshape(ROWS, COLUMNS)
    start[POISONED] = np.inf
    return start, variable(start, layout, "table")


def poison_slots(optimizer: Any, table: tf.Variable, *but: str) -> None:
    for name in set(optimizer.slot_names) - {"gathered", *but}:
        slot = optimizer.get_slot(table, name)
        value = np.zeros((ROWS, COLUMNS))
        value[POISONED] = np.inf
        slot.assign(put(value, getattr(slot, "layout", None)))


@pytest.fixture
def never_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a gradient of some rows was made dense")

    monkeypatch.setattr(dense_gradients, "densify", refuse)


PLACES = ["plain", "both", broad("whole"), broad("rows"), broad("columns")]


@NATIVE
@MODES
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.quick(1)
def test_a_step_is_one_of_its_rows(
    name: str, place: str, how: str, mode: str, mesh_2x2: Any, never_dense: None
) -> None:
    options, layout = OPTIONS[name], layout_for(place, mesh_2x2)
    start, table = poisoned(layout)
    optimizer = optim.Adam(RATE, lazy_rows=["table"], **options)
    optimizer.build([table])
    poison_slots(optimizer, table)
    scale = SCALE if "loss_scale" in options else 1.0
    reference = LazyAdam(start, options)

    def step(values: Any, ids: Any) -> None:
        optimizer.apply_gradients([(tf.IndexedSlices(values, ids), table)])

    run = tf.function(step, autograph=False) if how == "function" else step
    for call in range(len(CALLS)):
        given = slices(call, layout, scale)
        run(given.values, given.indices)
        reference.apply(dense(call))
    assert int(optimizer.iterations) == reference.t
    np.testing.assert_allclose(value_of(table), reference.p, rtol=1e-12, atol=1e-14)
    for slot in set(optimizer.slot_names) - {"gathered"}:
        found = value_of(optimizer.get_slot(table, slot))
        assert np.all(np.isinf(found[POISONED])), slot
        expected = getattr(reference, slot, np.zeros((ROWS, COLUMNS)))
        np.testing.assert_allclose(found[:POISONED], expected[:POISONED], rtol=1e-12, atol=1e-14)


@NATIVE
@MODES
@pytest.mark.parametrize("options", [{}, {"clipnorm": 1.0, "gradient_accumulation_steps": 2}], ids=["bare", "gathered"])
@pytest.mark.parametrize("place", ["whole", broad("rows"), broad("columns")])
@pytest.mark.quick(2)
def test_slots_that_are_sharded_further(
    place: str, options: dict[str, Any], how: str, mode: str, mesh_2x2: Any, never_dense: None
) -> None:
    layout = layout_for(place, mesh_2x2)
    start, table = poisoned(layout)
    optimizer = optim.Adam(RATE, lazy_rows=["table"], slot_placement="zero1", **options)
    optimizer.build([table])
    assert optimizer.get_slot(table, "m").layout != layout
    poison_slots(optimizer, table)
    reference = LazyAdam(start, options)

    def step(values: Any, ids: Any) -> None:
        optimizer.apply_gradients([(tf.IndexedSlices(values, ids), table)])

    run = tf.function(step, autograph=False) if how == "function" else step
    for call in range(len(CALLS)):
        given = slices(call, layout)
        run(given.values, given.indices)
        reference.apply(dense(call))
    np.testing.assert_allclose(value_of(table), reference.p, rtol=1e-12, atol=1e-14)


@NATIVE
@pytest.mark.parametrize("how", ["eager", "function"])
def test_a_dense_gradient_of_divided_rows_leaves_the_same_rows(how: str, mode: str, mesh_2x2: Any) -> None:
    """A row of which a device has zeros only moves with the rest of it."""
    layout = layout_for("columns", mesh_2x2)
    start, table = poisoned(layout)
    optimizer = optim.Adam(RATE, lazy_rows=["table"])
    optimizer.build([table])
    poison_slots(optimizer, table)
    reference = LazyAdam(start, {})
    run = tf.function(lambda g: optimizer.apply_gradients([(g, table)])) if how == "function" else None
    for call in range(len(CALLS)):
        given = put(dense(call), layout)
        optimizer.apply_gradients([(given, table)]) if run is None else run(given)
        reference.apply(dense(call))
    np.testing.assert_allclose(value_of(table), reference.p, rtol=1e-12, atol=1e-14)


def _by(dim: str, table: Any) -> dtensor.Layout | None:
    return layout_for(dim, table.layout.mesh)


DENSE: dict[str, tuple[dict[str, Any], str]] = {
    "bare": ({}, ""),
    "window": ({"gradient_accumulation_steps": 2, "clipvalue": 1.0}, ""),
    "norm": ({"gradient_accumulation_steps": 2, "clipnorm": 1.0}, ""),
    "scaled": ({"gradient_accumulation_steps": 2, "loss_scale": 2.0}, ""),
    "zero1": ({"slot_placement": "zero1"}, ""),
    "apart": (
        {"slot_placement": lambda v, slot: _by("rows" if slot == "m" else "columns", v)},
        "do not all have the same placement",
    ),
    "portable": ({"executor": "portable"}, "was asked for"),
}


@NATIVE
@pytest.mark.parametrize("name", DENSE)
@pytest.mark.quick(3)
def test_the_report_says_where_functions_make_rows_dense(
    name: str, mode: str, mesh_2x2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the function of a step finds it."""
    options, why = DENSE[name]
    made: list[Any] = []
    original = dense_gradients.densify
    monkeypatch.setattr(dense_gradients, "densify", lambda *given: made.append(given) or original(*given))
    layout = layout_for("whole", mesh_2x2)
    table, optimizer = variable(np.ones((ROWS, COLUMNS)), layout, "table"), optim.Adam(RATE, **options)
    optimizer.build([table])
    given = slices(0, layout)
    step = tf.function(lambda v, i: optimizer.apply_gradients([(tf.IndexedSlices(v, i), table)]), autograph=False)
    step(given.values, given.indices)
    found = optimizer.executor_report().why_dense_rows
    assert why in found
    assert bool(found) == bool(why) == bool(made)


@pytest.mark.breadth
@NATIVE
@pytest.mark.parametrize("place", PLACES)
def test_windows_that_differ(place: str, mode: str, mesh_2x2: Any) -> None:
    """Rows and dense gradients, calls without one, two traces, functions and eager calls share a sum."""
    layout = layout_for(place, mesh_2x2)
    start, table = poisoned(layout)
    start[POISONED] = 1.0
    table.assign(put(start, layout))
    flat = None if layout is None else dtensor.Layout.replicated(mesh_2x2, 1)
    other = variable(np.zeros(2), flat, "other")
    optimizer = optim.Adam(RATE, lazy_rows=["table"], gradient_accumulation_steps=4)
    optimizer.build([table, other])
    reference = LazyAdam(start, {"gradient_accumulation_steps": 4})

    @tf.function
    def by_row(values: Any, ids: Any) -> None:
        optimizer.apply_gradients([(tf.IndexedSlices(values, ids), table)])

    @tf.function
    def twice(values: Any, ids: Any, more: Any, others: Any) -> None:
        optimizer.apply_gradients([(tf.IndexedSlices(values, ids), table)])
        optimizer.apply_gradients([(tf.IndexedSlices(more, others), table)])

    @tf.function
    def without(gradient: Any) -> None:
        optimizer.apply_gradients([(gradient, other)])

    def rows(call: int) -> None:
        given = slices(call, layout)
        by_row(given.values, given.indices)
        reference.apply(dense(call))

    def both(call: int) -> None:
        one, two = slices(call, layout), slices((call + 1) % len(CALLS), layout)
        twice(one.values, one.indices, two.values, two.indices)
        reference.apply(dense(call))
        reference.apply(dense((call + 1) % len(CALLS)))

    def whole(call: int) -> None:
        optimizer.apply_gradients([(put(dense(call), layout), table)])
        reference.apply(dense(call))

    def nothing(_: int) -> None:
        without(put(np.ones(2), flat))
        reference.apply(np.zeros((ROWS, COLUMNS)))

    def eagerly(call: int) -> None:
        optimizer.apply_gradients([(slices(call, layout), table)])
        reference.apply(dense(call))

    for window in ([rows, rows, eagerly, rows], [rows, whole, rows, eagerly], [whole, rows, eagerly, nothing],
                   [eagerly, nothing, rows, nothing], [nothing, eagerly, eagerly, eagerly], [rows, both, rows],
                   [eagerly, both, rows], [rows, rows, rows, nothing], [both, both]):  # fmt: skip
        for call, task in enumerate(window):
            task(call)
        np.testing.assert_allclose(value_of(table), reference.p, rtol=1e-12, atol=1e-14)


@NATIVE
@pytest.mark.parametrize("forgotten", [False, True])
@pytest.mark.parametrize("place", ["plain", "both"])
@pytest.mark.quick(1)
def test_a_window_goes_on_after_a_restart(place: str, forgotten: bool, mode: str, tmp_path: Any, mesh_2x2: Any) -> None:
    """Also where the kernel does not know the rows any more, as in another process."""

    layout = layout_for(place, mesh_2x2)

    def make() -> tuple[Any, tf.Variable]:
        table = variable(np.ones((ROWS, COLUMNS)), layout, "table")
        optimizer = optim.Adam(RATE, lazy_rows=["table"], gradient_accumulation_steps=3)
        optimizer.build([table])
        return optimizer, table

    def apply(optimizer: Any, call: int) -> None:
        def step(values: Any, ids: Any) -> None:
            optimizer.apply_gradients([(tf.IndexedSlices(values, ids), table)])

        given = slices(call, layout)
        (step if layout is None else tf.function(step))(given.values, given.indices)

    first, table = make()
    reference = LazyAdam(np.ones((ROWS, COLUMNS)), {"gradient_accumulation_steps": 3})
    for call in range(2):
        apply(first, call)
        reference.apply(dense(call))
    prefix = tf.train.Checkpoint(optimizer=first, table=table).save(str(tmp_path / "state"))
    if forgotten:
        apply(first, 2)
    second, table = make()
    tf.train.Checkpoint(optimizer=second, table=table).restore(prefix).assert_consumed()
    apply(second, 2)
    reference.apply(dense(2))
    np.testing.assert_allclose(value_of(table), reference.p, rtol=1e-12, atol=1e-14)


@NATIVE
@MODES
def test_many_tables_are_one_op(how: str, mode: str, never_dense: None) -> None:
    tables = [tf.Variable(np.ones((3 + i, 2)), name=f"table_{i}") for i in range(26)]
    dense_one = tf.Variable(np.ones(5), name="bias")
    optimizer = optim.Adagrad(RATE, global_clipnorm=1.0)
    optimizer.build([*tables, dense_one])
    ids = [tf.constant([i % 3, 1, 1], tf.int32 if i % 2 else tf.int64) for i in range(26)]

    def step() -> None:
        rows = [tf.IndexedSlices(tf.ones((3, 2), tf.float64), each) for each in ids]
        optimizer.apply_gradients(zip([*rows, tf.ones(5, tf.float64)], [*tables, dense_one], strict=True))

    run = tf.function(step) if how == "function" else step
    run()
    if how == "function":
        graph = run.get_concrete_function().graph
        assert [op.type for op in graph.get_operations()].count("DtoptStep") == 1
        assert "UnsortedSegmentSum" not in ops_of(run.get_concrete_function())
    squares = 5.0
    for i in range(26):
        whole = np.zeros((3 + i, 2))
        np.add.at(whole, [i % 3, 1, 1], 1.0)
        squares += np.sum(whole**2)
    for i, table in enumerate(tables):
        whole = np.zeros((3 + i, 2))
        np.add.at(whole, [i % 3, 1, 1], 1.0)
        g = whole / np.sqrt(squares)
        expected = 1.0 - RATE * g / np.sqrt(0.1 + g**2 + 1e-7)
        np.testing.assert_allclose(table.numpy(), expected, rtol=1e-9)


@NATIVE
@MODES
@pytest.mark.parametrize(
    "specs", [["batch"], ["batch", "model", "unsharded"], ["unsharded", "unsharded", "model"]], ids=str
)
def test_tables_of_other_ranks(specs: list[str], how: str, mode: str, mesh_2x2: Any) -> None:
    shape = (6, 4, 2)[: len(specs)]
    layout = dtensor.Layout(specs, mesh_2x2)
    table = variable(np.ones(shape), layout, "table")
    optimizer = optim.SGD(0.5, momentum=0.9, clipnorm=2.0, lazy_rows=["table"])
    optimizer.build([table])
    values, ids = np.random.default_rng(1).normal(size=(5, *shape[1:])), [4, 1, 4, 4, 0]

    def step(values: Any, ids: Any) -> None:
        optimizer.apply_gradients([(tf.IndexedSlices(values, ids), table)])

    run = tf.function(step) if how == "function" else step
    whole = dtensor.Layout.replicated(mesh_2x2, len(shape))
    for _ in range(2):
        run(put(values, whole), dtensor.copy_to_mesh(tf.constant(ids), dtensor.Layout.replicated(mesh_2x2, 1)))
    g = np.zeros(shape)
    np.add.at(g, ids, values)
    g *= min(1.0, 2.0 / np.linalg.norm(g))
    np.testing.assert_allclose(value_of(table), 1.0 - 0.5 * g - 0.5 * 1.9 * g, rtol=1e-12)


@NATIVE
@pytest.mark.parametrize("place", ["both", broad("whole")])
def test_a_row_that_is_not_there_changes_nothing_on_a_mesh(place: str, mode: str, mesh_2x2: Any) -> None:
    layout = layout_for(place, mesh_2x2)
    for steps in (1, 2):
        table = variable(np.ones((ROWS, COLUMNS)), layout, "table")
        optimizer = optim.Adam(RATE, gradient_accumulation_steps=steps)
        optimizer.build([table])
        ids = dtensor.copy_to_mesh(tf.constant([1, ROWS]), dtensor.Layout.replicated(mesh_2x2, 1))
        values = put(np.ones((2, COLUMNS)), dtensor.Layout.replicated(mesh_2x2, 2))
        with pytest.raises(MismatchError, match=f"for row {ROWS}, the variable has {ROWS} rows"):
            optimizer.apply_gradients([(tf.IndexedSlices(values, ids), table)])
        np.testing.assert_array_equal(value_of(table), 1.0)
        assert all(not np.any(value_of(optimizer.get_slot(table, name))) for name in optimizer.slot_names)


@NATIVE
@MODES
def test_no_rows_at_all_and_more_than_there_are(how: str, mode: str, mesh_2x2: Any) -> None:
    layout = layout_for("both", mesh_2x2)
    table = variable(np.ones((ROWS, COLUMNS)), layout, "table")
    optimizer = optim.SGD(1.0, global_clipnorm=1e9)
    optimizer.build([table])

    def step(values: Any, ids: Any) -> None:
        optimizer.apply_gradients([(tf.IndexedSlices(values, ids), table)])

    run = tf.function(step) if how == "function" else step
    for count in (0, 100):
        ids = dtensor.copy_to_mesh(tf.fill([count], 6), dtensor.Layout.replicated(mesh_2x2, 1))
        run(put(np.ones((count, COLUMNS)), dtensor.Layout.replicated(mesh_2x2, 2)), ids)
    expected = np.ones((ROWS, COLUMNS))
    expected[6] -= 100
    np.testing.assert_allclose(value_of(table), expected, rtol=1e-14)
