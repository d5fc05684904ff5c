"""Rows of which each gradient is squared before they are summed, by dtopt's own kernel: as the rule's ops, for every
rule and place, and a step of its rows. What it means is in test_repeated_rows.py, by Keras 3 and by references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim.errors import MismatchError
from optim.native.generate import builtin_programs, program_for
from optim.step import gradients as dense_gradients
from optim.summed_gradients import POWERS, NamespaceOfSums, SummedGradient
from tests.helpers.breadth import broad, covering
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.native.kernel_support import ops_of
from tests.test_optim.native.test_native import RULES
from tests.test_optim.support import put, variable

ROWS, COLUMNS, STEPS = 8, 4, 3
IDS = [3, 0, 3, 3, 6, 0]
"""Row 5 is never named, row 7 is infinite."""
EACH = {"repeated_rows": ["clip", "square"]}
SPECS = {"whole": [None, None], "rows": ["batch", None], "columns": [None, "model"], "both": ["model", "batch"]}
PLACES = ["plain", *SPECS]
OPTIONS: dict[str, dict[str, Any]] = {
    "bare": {},
    "value": {"clipvalue": 0.5},
    "norm": {"clipnorm": 1.0},
    "scaled": {"loss_scale": "dynamic"},
    "average": {"use_ema": True, "ema_momentum": 0.5, "weight_decay": 0.1},
    "lazy": {"lazy_rows": ["table"]},
    "zero1": {"slot_placement": "zero1"},
}
NATIVE = pytest.mark.parametrize("mode", ["native"])
HOW = pytest.mark.parametrize("how", ["eager", "function"])


@pytest.fixture
def never_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a gradient of some rows was made dense")

    monkeypatch.setattr(dense_gradients, "densify", refuse)


def place_for(place: str, mesh: Any) -> dtensor.Layout | None:
    return dtensor.Layout([s or dtensor.UNSHARDED for s in SPECS[place]], mesh) if place in SPECS else None


class Model:
    """A table, a vector, and steps of both."""

    def __init__(self, layout: dtensor.Layout | None, dtype: Any = tf.float64, *, make: Any, **options: Any):
        self.layout = layout
        start = np.linspace(0.1, 2, ROWS * COLUMNS).reshape(ROWS, COLUMNS)
        self.table = variable(start, layout, "table", dtype)
        self.vector = variable(np.ones(3), self._whole(1), "vector", dtype)
        self.optimizer = make(**options, **EACH)
        self.optimizer.build([self.table, self.vector])

    def _whole(self, rank: int) -> dtensor.Layout | None:
        return None if self.layout is None else dtensor.Layout.replicated(self.layout.mesh, rank)

    def put(self, array: np.ndarray) -> Any:
        return put(array, self._whole(array.ndim), tf.as_dtype(array.dtype))

    def batches(self, count: int, dtype: Any = np.float64) -> Any:
        scale = self.optimizer.current_loss_scale if self.optimizer.loss_scale else 1.0
        drawn = np.random.default_rng(5).normal(size=(count, len(IDS), COLUMNS))
        return self.put((drawn * float(scale)).astype(dtype))

    def step(self, values: Any, ids: Any) -> None:
        pairs = [(tf.IndexedSlices(values, ids), self.table), (self.vector.read_value() * 0.5, self.vector)]
        self.optimizer.apply_gradients(pairs)

    def run(self, how: str, count: int = STEPS) -> None:
        ids, all_values = self.put(np.array(IDS)), self.batches(count)
        if how == "unrolled":
            unrolled = tf.function(lambda v, i: [self.step(v[k], i) for k in range(count)] and None, autograph=False)
            unrolled(all_values, ids)
            return
        step = tf.function(self.step, autograph=False) if how == "function" else self.step
        for k in range(count):
            step(self.put(value_of(all_values)[k]), ids)

    def state(self) -> list[np.ndarray]:
        slots = (self.optimizer.get_slot(v, n) for v in (self.table, self.vector) for n in self.optimizer.slot_names)
        return [value_of(each) for each in (self.table, self.vector, *filter(lambda s: s is not None, slots))]


def assert_alike(one: Model, two: Model, rtol: float) -> None:
    for mine, others in zip(one.state(), two.state(), strict=True):
        np.testing.assert_allclose(mine, others, rtol=rtol, atol=rtol)


def test_every_program_that_squares_each_is_tested() -> None:
    programs = {program.name for program in builtin_programs() if program.powers}
    of_rules = [program_for(rule, is_sum=True) for rule in RULES]
    assert programs == {program.name for program in of_rules if program is not None and program.powers}


@NATIVE
@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.quick(17)
def test_as_the_rules_ops(rule: Any, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Model(None, make=optim.Optimizer, rule=rule, learning_rate=0.05, executor="portable")
    expected.run("eager")
    monkeypatch.setattr(dense_gradients, "densify", None)
    for how in ("eager", "function"):
        found = Model(None, make=optim.Optimizer, rule=rule, learning_rate=0.05)
        found.run(how)
        assert_alike(found, expected, 1e-12)


@NATIVE
@covering(1, name=OPTIONS, place=PLACES, how=["eager", "function", "unrolled"], kind=["Adam", "Adamax", "SGD"])
@pytest.mark.quick(2)
def test_wherever_the_table_is(
    name: str, place: str, how: str, kind: str, mode: str, mesh_2x2: Any, never_dense: None
) -> None:
    """Bit for bit as eager steps on no mesh; but for norms, and the mean of replicas' products."""
    options = {**OPTIONS[name], "learning_rate": 0.1}
    if place == "plain":
        options.pop("slot_placement", None)
    found = Model(place_for(place, mesh_2x2), make=getattr(optim, kind), **options)
    assert found.optimizer.executor_report().why_whole_tables == ""
    found.run(how)
    options.pop("slot_placement", None)
    expected = Model(None, make=getattr(optim, kind), **options)
    expected.run("eager")
    assert_alike(found, expected, 1e-12 if name in ("norm", "scaled") else 0.0)


@NATIVE
@HOW
@pytest.mark.parametrize("place", ["plain", "both", broad("whole"), broad("rows"), broad("columns")])
def test_a_step_is_one_of_its_rows(place: str, how: str, mode: str, mesh_2x2: Any, never_dense: None) -> None:
    """Arithmetic with zeros would make NaN of a row that is infinite, and whose slot is."""
    found = Model(place_for(place, mesh_2x2), make=optim.Adagrad, learning_rate=0.1)
    start, slot = value_of(found.table).copy(), found.optimizer.get_slot(found.table, "accumulator")
    start[7] = np.inf
    found.table.assign(put(start, found.layout))
    slot.assign(put(np.where(np.isinf(start), np.inf, 0.1), found.layout))
    found.run(how)
    assert np.all(np.isinf(value_of(found.table)[7]))
    np.testing.assert_array_equal(value_of(found.table)[5], start[5])
    named = np.zeros((ROWS, COLUMNS))
    for values in value_of(found.batches(STEPS)):
        np.add.at(named, IDS, values**2)
    np.testing.assert_allclose(value_of(slot)[:7], 0.1 + named[:7], rtol=1e-12)


@NATIVE
def test_what_is_in_a_function(mode: str) -> None:
    """One op for the table, one for what has no rows, and none that looks at the whole table."""
    found = Model(None, make=optim.Adam)
    step = tf.function(found.step).get_concrete_function(found.batches(1)[0], found.put(np.array(IDS)))
    assert [op.type for op in step.graph.get_operations()].count("DtoptStep") == 2
    assert not {"UnsortedSegmentSum", "Unique", "UniqueWithCounts"} & ops_of(step)


@NATIVE
@HOW
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_squares_are_summed_in_float32(dtype: str, how: str, mode: str) -> None:
    """300² + 1² is 90001; float16 holds neither, bfloat16 no last digit."""
    table = tf.Variable(tf.zeros([2, 1], dtype), name="table")
    optimizer = optim.Adagrad(1.0, initial_accumulator_value=0.0, master_copies=dtype != "float32", **EACH)
    optimizer.build([table])

    def step() -> None:
        given = tf.IndexedSlices(tf.constant([[300.0], [1.0]], dtype), tf.constant([1, 1]))
        optimizer.apply_gradients([(given, table)])

    (tf.function(step) if how == "function" else step)()
    np.testing.assert_array_equal(optimizer.get_slot(table, "accumulator"), [[0.0], [90001.0]])


@NATIVE
@pytest.mark.parametrize("place", ["plain", "both"])
def test_dense_gradients_and_rows_in_turn(place: str, mode: str, mesh_2x2: Any) -> None:
    """The kernel has another function for each."""
    found, expected = (
        Model(layout, make=optim.Adam, learning_rate=0.1) for layout in (place_for(place, mesh_2x2), None)
    )
    for model in (found, expected):
        for k in range(4):
            if k % 2:
                whole = put(np.full((ROWS, COLUMNS), 0.1 * k), model.layout)
                model.optimizer.apply_gradients([(whole, model.table)])
            else:
                model.run("eager", 1)
    assert_alike(found, expected, 0.0)


@NATIVE
@HOW
@pytest.mark.parametrize("row", [-1, ROWS])
def test_a_row_that_is_not_there_changes_nothing(row: int, how: str, mode: str) -> None:
    found = Model(None, make=optim.Adam)
    before = found.state()
    step = tf.function(found.step) if how == "function" else found.step
    error = MismatchError if how == "eager" else tf.errors.InvalidArgumentError
    with pytest.raises(error, match=f"for row {row}, the variable has {ROWS} rows"):
        step(tf.ones((2, COLUMNS), tf.float64), tf.constant([1, row]))
    for now, then in zip(found.state(), before, strict=True):
        np.testing.assert_array_equal(now, then)
    assert int(found.optimizer.iterations) == 0


@NATIVE
@HOW
def test_no_rows_at_all(how: str, mode: str) -> None:
    found = Model(None, make=optim.Adagrad)
    before = value_of(found.table).copy()
    (tf.function(found.step) if how == "function" else found.step)(
        tf.zeros((0, COLUMNS), tf.float64), tf.zeros(0, tf.int64)
    )
    np.testing.assert_array_equal(value_of(found.table), before)


def test_in_replicas() -> None:
    """Whose gradients are joined, not summed, before."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
    for traced in (False, True):
        with strategy.scope():
            table = tf.Variable(np.ones((ROWS, COLUMNS)), name="table")
            optimizer = optim.Adagrad(1.0, initial_accumulator_value=0.0, **EACH)

        def step(optimizer: Any = optimizer, table: Any = table) -> None:
            given = tf.IndexedSlices(tf.ones((2, COLUMNS), tf.float64), tf.constant([1, 1]))
            optimizer.apply_gradients([(given, table)])

        (tf.function(lambda step=step: strategy.run(step)) if traced else lambda step=step: strategy.run(step))()
        np.testing.assert_array_equal(optimizer.get_slot(table, "accumulator").values[1].numpy()[1], 4.0)


def test_each_in_numpy() -> None:
    """What a rule asks of such a gradient, whichever arrays it is made of."""
    given = np.array([3.0, -4.0])
    each = SummedGradient(given.sum(), lambda name: POWERS[name](given).sum())
    xp = NamespaceOfSums(np)
    halved = each / 2.0
    found = [xp.square(halved), halved * halved, halved**2, xp.abs(-2.0 * each), each + 1.0, 2.0 - each, xp.sign(each)]
    assert [float(f) for f in found] == [6.25, 6.25, 6.25, 14.0, 0.0, 3.0, -1.0]
