"""`IndexedSlices` on a GPU, emulated: rows are summed up and updated there, as the CPU's kernel does."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import optim
from optim.executors import portable
from tests.helpers import emulated_gpu

ROWS, COLUMNS, STEPS = 50, 12, 4


def _slices(step: int, dtype: str, columns: int = COLUMNS) -> tuple[np.ndarray, np.ndarray]:
    """Rows in any order, some of them several times, and one gradient of zeros."""
    rng = np.random.default_rng(step)
    indices = rng.integers(0, ROWS, 17)
    indices[3] = indices[11] = indices[0]
    values = rng.standard_normal((17, columns)).astype(np.float32)
    values[5] = 0.0
    return values, indices


def _trained(
    make: Callable[[], Any], dtype: str, in_function: bool, index: Any = tf.int64, columns: int = COLUMNS
) -> Any:
    """All that a run leaves, and its optimizer."""
    rng = np.random.default_rng(5)
    table = tf.Variable(tf.cast(rng.standard_normal((ROWS, columns)), dtype), name="table")
    other = tf.Variable(tf.cast(rng.standard_normal(9), dtype), name="other")
    optimizer = make()
    optimizer.build([table, other])

    def step(values: Any, indices: Any, dense: Any) -> None:
        slices = tf.IndexedSlices(values, indices, tf.constant([ROWS, columns]))
        optimizer.apply_gradients([(slices, table), (dense, other)])

    run = tf.function(step) if in_function else step
    for k in range(STEPS):
        values, indices = _slices(k, dtype, columns)
        dense = np.cos(np.arange(9.0) + k)
        run(tf.cast(values, dtype), tf.constant(indices, index), tf.cast(dense, dtype))
    return [np.asarray(tf.cast(v, tf.float64)) for v in (table, other, *optimizer.variables)], optimizer


ALONE: dict[str, Callable[[], Any]] = {
    "adagrad": lambda: optim.Adagrad(0.1),
    "sgd": lambda: optim.SGD(0.1),
    "lazy adam": lambda: optim.Adam(0.1, lazy_rows=["table"]),
    "lazy adam, decayed": lambda: optim.Adam(0.1, lazy_rows=["table"], weight_decay=0.1),
    "clipped": lambda: optim.Adagrad(0.1, clipvalue=0.2),
}
"""Of these only named rows are read and written."""
WHOLE: dict[str, Callable[[], Any]] = {
    "adam": lambda: optim.Adam(0.1),
    "momentum": lambda: optim.SGD(0.1, momentum=0.9),
    "decayed": lambda: optim.SGD(0.1, weight_decay=0.1),
    "averaged": lambda: optim.Adagrad(0.1, use_ema=True),
    "accumulated": lambda: optim.Adagrad(0.1, gradient_accumulation_steps=2),
}
"""These update all rows."""
MOVING = "rows of 'table' without a gradient|all rows of 'table'|average of 'table'|sums over several calls"


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("how", ALONE)
@pytest.mark.quick(12)
def test_named_rows_are_updated_as_on_the_cpu(
    launching: Callable[[], None], how: str, dtype: str, in_function: bool
) -> None:
    expected, _ = _trained(ALONE[how], dtype, in_function)
    launching()
    launched, optimizer = _trained(ALONE[how], dtype, in_function)
    assert "table" not in optimizer.executor_report().why_dense_rows
    assert "fill" not in emulated_gpu.driver_calls()
    for ours, theirs in zip(launched, expected, strict=True):
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("how", WHOLE)
def test_all_rows_are_updated_as_on_the_cpu(launching: Callable[[], None], how: str, in_function: bool) -> None:
    expected, _ = _trained(WHOLE[how], "float32", in_function)
    launching()
    launched, optimizer = _trained(WHOLE[how], "float32", in_function)
    assert re.search(MOVING, optimizer.executor_report().why_dense_rows)
    assert "fill" in emulated_gpu.driver_calls()
    for ours, theirs in zip(launched, expected, strict=True):
        assert ours.tobytes() == theirs.tobytes()


SQUARE = {"repeated_rows": ["clip", "square"]}
SQUARED: dict[str, tuple[Callable[[], Any], str]] = {
    "adagrad": (lambda: optim.Adagrad(0.1, **SQUARE), "float32"),
    "adagrad of float64": (lambda: optim.Adagrad(0.1, clipnorm=0.5, **SQUARE), "float64"),
    "lazy adam": (lambda: optim.Adam(0.1, lazy_rows=["table"], **SQUARE), "float32"),
    "adam": (lambda: optim.Adam(0.1, clipvalue=0.5, **SQUARE), "float32"),
    "adamax": (lambda: optim.Adamax(0.1, use_ema=True, **SQUARE), "float64"),
    "rmsprop": (lambda: optim.RMSprop(0.1, momentum=0.5, weight_decay=0.1, **SQUARE), "float32"),
    "masters": (lambda: optim.Adam(0.1, master_copies=True, loss_scale=4.0, **SQUARE), "bfloat16"),
    "masters of adagrad": (lambda: optim.Adagrad(0.1, master_copies=True, **SQUARE), "float16"),
    "sgd, of which nothing is squared": (lambda: optim.SGD(0.1, momentum=0.9, **SQUARE), "float32"),
}


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("how", SQUARED)
@pytest.mark.quick(5)
def test_each_gradient_of_a_row_is_squared_as_on_the_cpu(
    launching: Callable[[], None], how: str, in_function: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, dtype = SQUARED[how]
    expected, _ = _trained(make, dtype, in_function)
    launching()
    monkeypatch.setattr(portable, "rule_value", None)  # TensorFlow's ops
    launched, optimizer = _trained(make, dtype, in_function)
    report = optimizer.executor_report()
    assert report.why_not_native == ""
    moves_all = how not in ("adagrad", "adagrad of float64", "lazy adam", "masters of adagrad")
    assert bool(re.search(MOVING, report.why_whole_tables)) == moves_all
    assert ("fill" in emulated_gpu.driver_calls()) == moves_all
    for ours, theirs in zip(launched, expected, strict=True):
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize(("index", "columns"), [(tf.int32, 12), (tf.int64, 7), (tf.int64, 1)], ids=str)
def test_indices_and_columns_of_all_kinds(launching: Callable[[], None], index: Any, columns: int) -> None:
    expected, _ = _trained(ALONE["lazy adam"], "float32", False, index, columns)
    launching()
    for ours, theirs in zip(_trained(ALONE["lazy adam"], "float32", False, index, columns)[0], expected, strict=True):
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("arguments", [{"global_clipnorm": 0.5}, {"loss_scale": 4.0, "clipnorm": 0.5}], ids=str)
def test_norms_of_rows(launching: Callable[[], None], arguments: dict[str, Any], in_function: bool) -> None:
    """Sums of squares are of as many numbers, in another order."""
    expected, _ = _trained(lambda: optim.Adagrad(0.1, **arguments), "float32", in_function)
    launching()
    launched, _ = _trained(lambda: optim.Adagrad(0.1, **arguments), "float32", in_function)
    assert "wait" not in emulated_gpu.driver_calls() or "loss_scale" in arguments
    for ours, theirs in zip(launched, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=3e-7)


def test_a_dense_gradient_of_lazy_rows(launching: Callable[[], None]) -> None:
    gradient = np.zeros((6, 4), np.float32)
    gradient[2], gradient[4, 1] = 1.0, -2.0

    def run() -> list[np.ndarray]:
        table = tf.Variable(tf.ones([6, 4]), name="table")
        optimizer = optim.Adam(0.1, lazy_rows=["table"])
        for factor in (1.0, 0.0, 2.0):
            optimizer.apply_gradients([(tf.constant(factor * gradient), table)])
        return [v.numpy() for v in (table, *optimizer.variables)]

    expected = run()
    launching()
    for ours, theirs in zip(run(), expected, strict=True):
        assert ours.tobytes() == theirs.tobytes()
    assert "launch" in emulated_gpu.driver_calls()


@pytest.mark.parametrize("row", [-1, 6, 2**40])
@pytest.mark.parametrize("make", [lambda: optim.Adagrad(0.1), lambda: optim.Adam(0.1)], ids=["rows", "whole"])
def test_a_row_that_a_table_does_not_have(launching: Callable[[], None], row: int, make: Callable[[], Any]) -> None:
    """The GPU leaves it out; the next step, which need not wait for that, raises."""
    launching()
    table = tf.Variable(tf.ones([6, 2]), name="table")
    optimizer = make()

    def step(indices: list[int]) -> None:
        slices = tf.IndexedSlices(tf.ones([2, 2]), tf.constant(indices, tf.int64), tf.constant([6, 2]))
        optimizer.apply_gradients([(slices, table)])

    step([3, row])
    assert (table.numpy()[3] < 1.0).all()
    np.testing.assert_array_equal(np.delete(table.numpy(), 3, axis=0), 1.0)
    with pytest.raises(Exception, match=rf"the gradient of table was for row {row}, which it does not have"):
        step([1, 2])
    step([1, 2])


def test_an_empty_gradient_of_rows(launching: Callable[[], None]) -> None:
    launching()
    table = tf.Variable(tf.ones([6, 2]))
    optimizer = optim.Adagrad(0.1, loss_scale=2.0)
    slices = tf.IndexedSlices(tf.zeros([0, 2]), tf.zeros([0], tf.int64), tf.constant([6, 2]))
    optimizer.apply_gradients([(slices, table)])
    np.testing.assert_array_equal(table.numpy(), 1.0)
    assert int(optimizer.iterations) == 1
    slices = tf.IndexedSlices(tf.constant([[math.nan, 1.0]]), tf.constant([4]), tf.constant([6, 2]))
    optimizer.apply_gradients([(slices, table)])
    assert int(optimizer.iterations) == 1
