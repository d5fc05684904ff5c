"""Gradients of tables, `IndexedSlices`, as dtopt's own kernel takes them: row by row, meaning what dense ones mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import optim
from optim.errors import MismatchError
from tests.helpers.breadth import covering
from tests.test_optim.cases import VARIANTS, WHOLE, Case

ROWS, COLUMNS, STEPS = 500, 7, 3
CASES = [case for case in VARIANTS if case.optimizer not in WHOLE]
# Whose powers TensorFlow rounds otherwise than C++, and then subtracts: the dense step of the kernel serves.
OTHER_POWERS = ("ftrl-all", "ftrl-2.4")
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "lazy": {"lazy_rows": ["table"]},
    "norm": {"global_clipnorm": 0.1},
    "lazy norm": {"clipnorm": 0.1, "clipvalue": 0.05, "lazy_rows": ["table"]},
    "averages": {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 2},
    "lazy averages": {"use_ema": True, "ema_momentum": 0.9, "lazy_rows": ["table"]},
    "decay": {"weight_decay": 0.1},
    "lazy decay": {"weight_decay": 0.1, "lazy_rows": ["table"]},
    "accumulated": {"gradient_accumulation_steps": 2},
    "scaled": {"loss_scale": "dynamic"},
}
PLACES = pytest.mark.parametrize("place", ["eager", "function"])
NATIVE = pytest.mark.parametrize("mode", ["native"])


def slices(seed: int, dtype: Any = np.float32, columns: tuple[int, ...] = (COLUMNS,)) -> tf.IndexedSlices:
    """Rows in any order, some named again and again."""
    random = np.random.default_rng(seed)
    indices = np.concatenate([random.integers(0, ROWS, 40), random.integers(0, 5, 20)])
    values = random.normal(size=(60, *columns)).astype(dtype)
    kind = np.int32 if seed % 2 else np.int64
    return tf.IndexedSlices(tf.constant(values), tf.constant(indices.astype(kind)), tf.constant([ROWS, *columns]))


def dense(given: tf.IndexedSlices) -> np.ndarray:
    """Summed up in float64."""
    whole = np.zeros((ROWS, *given.values.shape[1:]))
    np.add.at(whole, given.indices.numpy(), given.values.numpy().astype(np.float64))
    return whole


def table(dtype: Any = np.float32) -> tf.Variable:
    return tf.Variable(np.random.default_rng(9).normal(size=(ROWS, COLUMNS)).astype(dtype), name="table")


def train(optimizer: Any, variables: list[tf.Variable], place: str, given: Any) -> None:
    def step(gradients: Any) -> None:
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    optimizer.build(variables)
    run = tf.function(step) if place == "function" else step
    for k in range(STEPS):
        run(given(k))


def assert_equal_state(one: Any, two: Any, rtol: float = 3e-6) -> None:
    for mine, theirs in zip(one, two, strict=True):
        a, b = (tf.cast(x, tf.float64).numpy() for x in (mine, theirs))
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-7)


@NATIVE
@covering(1, case=CASES, lazy=[False, True], place=["eager", "function"])
@pytest.mark.quick(8)
def test_rows_mean_what_the_dense_gradient_means(case: Case, lazy: bool, place: str, mode: str) -> None:
    more = {"lazy_rows": ["table"]} if lazy else {}
    one = case.make(**more)
    two = case.make(executor="auto" if case.name in OTHER_POWERS else "portable", **more)
    mine, theirs = table(), table()
    train(one, [mine], place, lambda k: [slices(k)])
    train(two, [theirs], "eager", lambda k: [tf.constant(dense(slices(k)), tf.float32)])
    assert_equal_state([*one.variables, mine], [*two.variables, theirs], 1e-5)


@NATIVE
@covering(1, name=OPTIONS, dtype=["float32", "float64", "bfloat16"], place=["eager", "function"])
def test_every_option(name: str, place: str, dtype: str, mode: str) -> None:
    kind = tf.as_dtype(dtype).as_numpy_dtype
    more = {"master_copies": True} if dtype == "bfloat16" else {}
    one = optim.Adam(0.01, **OPTIONS[name], **more)
    two = optim.Adam(0.01, **{**OPTIONS[name], "executor": "portable"})
    wide = np.float64 if dtype == "float64" else np.float32
    mine, bias = [table(kind), tf.Variable(np.ones(3, kind), name="bias")], np.ones(3)
    theirs = [tf.Variable(tf.cast(table(kind), wide), name="table"), tf.Variable(np.ones(3, wide), name="bias")]
    scale = 2.0**15 if name == "scaled" else 1.0

    def by_row(k: int) -> Any:
        given = slices(k, kind)
        return [
            tf.IndexedSlices(given.values * scale, given.indices, given.dense_shape),
            tf.constant(bias * scale, kind),
        ]

    def whole(k: int) -> Any:
        return [tf.constant(dense(by_row(k)[0]), wide), tf.constant(bias * scale, wide)]

    train(one, mine, place, by_row)
    train(two, theirs, "eager", whole)
    for i in range(2):
        for slot in set(two.slot_names) - {"accumulated_gradient", "gathered"}:
            assert_equal_state([one.get_slot(mine[i], slot)], [two.get_slot(theirs[i], slot)], 1e-5)
    assert_equal_state(mine, theirs, 1e-5 if not more else 0.01)


@NATIVE
@PLACES
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rows_are_summed_in_float32(place: str, dtype: str, mode: str) -> None:
    kind = tf.as_dtype(dtype)
    optimizer, weights = optim.SGD(2.0**-8), tf.Variable(tf.zeros((3, 2), kind), name="table")
    given = tf.IndexedSlices(tf.ones((5000, 2), kind), tf.ones(5000, tf.int32), tf.constant([3, 2]))
    optimizer.build([weights])
    run = (lambda f: tf.function(f) if place == "function" else f)(
        lambda: optimizer.apply_gradients([(given, weights)])
    )
    run()
    expected = float(tf.cast(tf.cast(-5000.0 / 256, kind), tf.float32))
    np.testing.assert_array_equal(tf.cast(weights, tf.float32).numpy(), [[0.0] * 2, [expected] * 2, [0.0] * 2])


@NATIVE
@PLACES
@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("rows", [1, 2047, 2048, 2049, 100_000])
def test_many_rows_in_any_order_are_summed_in_the_order_given(rows: int, kind: Any, place: str, mode: str) -> None:
    """Enough of them for what sorts many; bit for bit, as float32 is not associative."""
    random = np.random.default_rng(rows)
    indices = random.integers(0, rows, 3000).astype(kind)
    values = (random.normal(size=(3000, 2)) * 10.0 ** random.integers(-4, 5, (3000, 1))).astype(np.float32)
    variable, sums = tf.Variable(tf.zeros((rows, 2)), name="table"), np.zeros((rows, 2), np.float32)
    for index, value in zip(indices, values, strict=True):
        sums[index] += value
    gradient = tf.IndexedSlices(tf.constant(values), tf.constant(indices), tf.constant([rows, 2]))
    optimizer = optim.SGD(1.0)
    optimizer.build([variable])

    def step() -> None:
        optimizer.apply_gradients([(gradient, variable)])

    (tf.function(step) if place == "function" else step)()
    np.testing.assert_array_equal(variable.numpy(), -sums)


@NATIVE
@PLACES
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("shape", [(ROWS, COLUMNS), (ROWS,), (ROWS, 0), (ROWS, 2, 3)])
@pytest.mark.quick(5)
def test_no_rows_single_rows_and_views(shape: tuple[int, ...], lazy: bool, place: str, mode: str) -> None:
    """Rows that are a part of another tensor, and none at all."""
    random, rest = np.random.default_rng(1), shape[1:]
    values = random.normal(size=(9, *rest)).astype(np.float32)
    first = tf.constant(random.normal(size=shape).astype(np.float32))
    one, two = (optim.SGD(0.5, momentum=0.5, lazy_rows=["table"] if lazy else []) for _ in range(2))
    mine, theirs = tf.Variable(first, name="table"), tf.Variable(first, name="table")
    named = np.zeros(shape, np.float32)
    named[[7, 3]] = values[1:3]
    whole = [tf.zeros(shape), tf.constant(named)]
    given = [(values[:0], np.zeros(0, np.int64)), (values, np.array([7, 3]))]

    def by_row(k: int) -> Any:
        part = tf.constant(given[k][0])[k : k + len(given[k][1])]
        return [tf.IndexedSlices(part, tf.constant(given[k][1]), tf.constant(shape))]

    for k in (1, 0, 1):
        train(one, [mine], place, lambda _, k=k: by_row(k))
        train(two, [theirs], "eager", lambda _, k=k: [whole[k]])
    np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
    np.testing.assert_array_equal(one.get_slot(mine, "m").numpy(), two.get_slot(theirs, "m").numpy())


@NATIVE
@pytest.mark.parametrize("bad", [-1, ROWS])
def test_a_row_that_is_not_there_is_an_error(bad: int, mode: str) -> None:
    weights, optimizer = table(), optim.Adagrad(0.1)
    before = weights.numpy()
    given = tf.IndexedSlices(tf.ones((2, COLUMNS)), tf.constant([3, bad]), tf.constant([ROWS, COLUMNS]))
    optimizer.build([weights])
    with pytest.raises(MismatchError, match=f"for row {bad}"):
        optimizer.apply_gradients([(given, weights)])
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"for row {bad}"):
        tf.function(lambda: optimizer.apply_gradients([(given, weights)]))()
    np.testing.assert_array_equal(weights.numpy(), before)
    assert optimizer.iterations.numpy() == 0


@NATIVE
def test_rows_of_another_width_are_an_error(mode: str) -> None:
    weights, optimizer = table(), optim.Adagrad(0.1)
    given = tf.IndexedSlices(tf.ones((2, COLUMNS + 1)), tf.constant([3, 4]), tf.constant([ROWS, COLUMNS + 1]))
    with pytest.raises(MismatchError, match="rows of shape"):
        optimizer.apply_gradients([(given, weights)])


@NATIVE
@PLACES
def test_who_has_read_the_table_keeps_the_value(place: str, mode: str) -> None:
    weights, optimizer = table(), optim.Adagrad(0.1)
    read = weights.read_value()
    before = read.numpy().copy()
    train(optimizer, [weights], place, lambda k: [slices(k)])
    np.testing.assert_array_equal(read.numpy(), before)
    assert not np.array_equal(weights.numpy(), before)


@NATIVE
@PLACES
def test_no_rows_and_a_vector(place: str, mode: str) -> None:
    weights, optimizer = tf.Variable(tf.ones(ROWS), name="table"), optim.SGD(0.5, momentum=0.9, lazy_rows=["table"])
    none = tf.IndexedSlices(tf.zeros((0,)), tf.zeros((0,), tf.int32), tf.constant([ROWS]))
    some = tf.IndexedSlices(tf.ones((3,)), tf.constant([5, 2, 5]), tf.constant([ROWS]))
    train(optimizer, [weights], place, lambda k: [none if k else some])
    expected = np.ones(ROWS)
    expected[[2, 5]] = [0.5, 0.0]
    np.testing.assert_array_equal(weights.numpy(), expected)


@NATIVE
def test_an_embedding_in_a_tape(mode: str) -> None:
    weights, optimizer = table(), optim.Adam(0.1, lazy_rows=["table"])
    optimizer.build([weights])

    @tf.function
    def step(ids: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(weights, ids) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])

    before = weights.numpy()
    step(tf.constant([1, 3, 1]))
    moved = np.any(weights.numpy() != before, axis=1)
    np.testing.assert_array_equal(np.flatnonzero(moved), [1, 3])


@NATIVE
def test_only_named_rows_are_visited_where_zero_changes_nothing(mode: str) -> None:
    """A row that was not finite would be NaN after any arithmetic; here it keeps its bits."""
    for optimizer in (optim.Adagrad(0.1), optim.SGD(0.1)):
        weights = table()
        values = weights.numpy()
        values[ROWS - 1] = np.inf
        weights.assign(values)
        optimizer.build([weights])
        for slot in optimizer.slot_names:
            optimizer.get_slot(weights, slot).assign(np.full((ROWS, COLUMNS), np.inf, np.float32))
        given = tf.IndexedSlices(tf.ones((1, COLUMNS)), tf.constant([0]), tf.constant([ROWS, COLUMNS]))
        optimizer.apply_gradients([(given, weights)])
        np.testing.assert_array_equal(weights.numpy()[1:], values[1:])
