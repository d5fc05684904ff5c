"""`repeated_rows`: gradients of a row that a batch has several times, clipped and squared before they are summed."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.experimental import dtensor

import optim
from optim.errors import HyperparameterError, UnsupportedError
from tests.helpers.breadth import covering
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.support import put, variable

IDS, ROWS, COLUMNS, STEPS = [3, 0, 3, 3, 7, 0], 8, 4, 4
EACH = {"repeated_rows": ["clip", "square"]}
RATE = {"learning_rate": 0.125}  # which float32 holds
AVERAGES = {"use_ema": True, "ema_momentum": 0.5}
KERAS_3: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "adam": ("Adam", {"epsilon": 1e-3}, {"epsilon": 1e-3}),
    "amsgrad": ("Adam", {"amsgrad": True}, {"amsgrad": True}),
    "adamw": ("AdamW", {"weight_decay": 0.1}, {"weight_decay": 0.1}),
    "adagrad": ("Adagrad", {}, {"epsilon_inside": True}),
    "adadelta": ("Adadelta", {}, {}),
    "adamax": ("Adamax", {}, {}),
    "nadam": ("Nadam", {}, {}),
    "rmsprop": ("RMSprop", {"momentum": 0.9}, {"momentum": 0.9}),
    "centered": ("RMSprop", {"centered": True}, {"centered": True}),
    "ftrl": (
        "Ftrl",
        {"beta": 0.1, "l1_regularization_strength": 0.01},
        {"beta": 0.1, "l1_regularization_strength": 0.01},
    ),
    "lion": ("Lion", {}, {}),
    "sgd": ("SGD", {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "nesterov": True}),
    "adafactor": ("Adafactor", {}, {}),
    "lamb": ("Lamb", {}, {}),
    "averages": ("Adam", AVERAGES, {**AVERAGES, "ema_start": "first_step"}),
    "overwriting": (
        "Adagrad",
        {**AVERAGES, "ema_overwrite_frequency": 2},
        {**AVERAGES, "ema_overwrite_frequency": 2, "ema_start": "first_step", "epsilon_inside": True},
    ),
    "decay": ("RMSprop", {"weight_decay": 0.1}, {"weight_decay": 0.1}),
}
CLIPPING: dict[str, dict[str, float]] = {
    "bare": {},
    "norm": {"clipnorm": 1.0},
    "value": {"clipvalue": 0.3},
    "global": {"global_clipnorm": 1.0},
}
WAYS = ["eager", "function", "portable", "xla"]
MODES = ["ops", "native"]


def slices(step: int, scale: float = 1.0, dtype: Any = np.float64) -> tf.IndexedSlices:
    values = np.random.default_rng(step).normal(size=(len(IDS), COLUMNS)) * scale
    return tf.IndexedSlices(tf.constant(values.astype(dtype)), tf.constant(IDS), tf.constant([ROWS, COLUMNS]))


def start() -> np.ndarray:
    return np.random.default_rng(99).normal(size=(ROWS, COLUMNS))


def train(optimizer: Any, how: str, scale: float = 1.0, dtype: Any = np.float64) -> tuple[tf.Variable, tf.Variable]:
    """A table and a vector after some steps."""
    table, bias = tf.Variable(start().astype(dtype), name="table"), tf.Variable(np.ones(3, dtype), name="bias")
    optimizer.build([table, bias])

    def step(values: Any, dense: Any) -> None:
        given = tf.IndexedSlices(values, tf.constant(IDS), tf.constant([ROWS, COLUMNS]))
        optimizer.apply_gradients([(given, table), (dense, bias)])

    run = tf.function(step, jit_compile=how == "xla") if how in ("function", "xla") else step
    for k in range(STEPS):
        run(slices(k, scale, dtype).values, tf.constant(np.full(3, (k + 1) * scale), dtype))
    return table, bias


@covering(1, case=KERAS_3, clipping=CLIPPING, how=WAYS, mode=MODES)
@pytest.mark.quick(6)
def test_as_keras_3_on_tensorflow(case: str, clipping: str, how: str, mode: str) -> None:
    """It clips by a joint norm by products with a tensor, which sums first; so squares are of sums then.

    To 1e-5: it has β in float32.
    """
    name, theirs, ours = KERAS_3[case]
    table, bias = (keras.Variable(v, dtype="float64", name=n) for v, n in ((start(), "table"), (np.ones(3), "bias")))
    made = getattr(keras.optimizers, name)(**RATE, **theirs, **CLIPPING[clipping])
    for k in range(STEPS):
        made.apply([slices(k), tf.constant(np.full(3, k + 1.0))], [table, bias])
    apart = {"repeated_rows": ["clip"]} if clipping == "global" else EACH
    more = {"executor": "portable"} if how == "portable" else {}
    optimizer = getattr(optim, name)(**RATE, **ours, **CLIPPING[clipping], **apart, **more)
    for mine, other in zip(train(optimizer, how), (table, bias), strict=True):
        np.testing.assert_allclose(mine.numpy(), np.asarray(other), rtol=1e-5, atol=1e-5)
    if optimizer.use_ema:
        held = {v.path.split("/")[-1]: np.asarray(v) for v in made.variables if "average" in v.path}
        average = next(value for value in held.values() if value.shape == (ROWS, COLUMNS))
        np.testing.assert_allclose(
            optimizer.get_slot(optimizer_table(optimizer), "average"), average, rtol=1e-5, atol=1e-5
        )


def optimizer_table(optimizer: Any) -> Any:
    return next(item.variable for item in optimizer._state.tracked if item.name == "table")


@covering(1, name=["Adam", "SGD", "RMSprop"], clipping=["norm", "value", "global"], how=WAYS, mode=MODES)
def test_as_optimizer_v2(name: str, clipping: str, how: str, mode: str) -> None:
    """It clips each, and squares their sum."""
    more = {"epsilon_inside": False} if name == "RMSprop" else {}
    optimizer = getattr(optim, name)(**RATE, **more, **CLIPPING[clipping], repeated_rows=["clip"])
    legacy = getattr(tf_keras.optimizers.legacy, name)(**RATE, **CLIPPING[clipping])
    lazy = [np.unique(IDS)] if name != "Adam" else [np.arange(ROWS)]
    for mine, theirs in zip(train(optimizer, how), train_legacy(legacy), strict=True):
        at = lazy[0] if mine.shape.rank == 2 else slice(None)
        np.testing.assert_allclose(mine.numpy()[at], theirs.numpy()[at], rtol=2e-6, atol=1e-6)


def train_legacy(optimizer: Any) -> tuple[tf.Variable, tf.Variable]:
    table, bias = tf.Variable(start(), name="table"), tf.Variable(np.ones(3), name="bias")
    for k in range(STEPS):
        optimizer.apply_gradients([(slices(k), table), (tf.constant(np.full(3, k + 1.0)), bias)])
    return table, bias


class Adagrad:
    """Of float64, with each gradient of a row squared."""

    def __init__(self, clip: float = np.inf):
        self.p, self.a, self.clip = start(), np.full((ROWS, COLUMNS), 0.1), clip

    def apply(self, values: np.ndarray) -> None:
        values = np.clip(values, -self.clip, self.clip)
        total = np.zeros_like(self.p)
        np.add.at(total, IDS, values)
        np.add.at(self.a, IDS, values**2)
        self.p -= 0.125 * total / np.sqrt(self.a + 1e-7)


BESIDE: dict[str, dict[str, Any]] = {
    "masters": {"master_copies": True},
    "scaled": {"loss_scale": "dynamic", "clipvalue": 0.5},
    "constant": {"loss_scale": 128.0},
    "lazy": {"lazy_rows": ["table"]},
    "local": {"executor": "local"},
}


@covering(1, name=BESIDE, how=WAYS, mode=MODES, dtype=["float64", "float32", "bfloat16", "float16"])
def test_beside_other_options(name: str, how: str, dtype: str, mode: str) -> None:
    options = dict(BESIDE[name])
    if how == "portable" and name != "local":
        options["executor"] = "portable"
    how = "eager" if name == "local" else how
    kind = tf.as_dtype(dtype).as_numpy_dtype
    scale = {"scaled": 2.0**15, "constant": 128.0}.get(name, 1.0) * (2.0**-6 if dtype == "float16" else 1.0)
    unscaled = scale / {"scaled": 2.0**15, "constant": 128.0}.get(name, 1.0)
    optimizer = optim.Adagrad(**RATE, **options, **EACH)
    table, _ = train(optimizer, how, scale, kind)
    expected = Adagrad(options.get("clipvalue", np.inf))
    expected.p = expected.p.astype(kind).astype(np.float64)
    for k in range(STEPS):
        expected.apply(slices(k, scale, kind).values.numpy().astype(np.float64) * unscaled / scale)
    low = dtype in ("bfloat16", "float16")
    tolerance = {"rtol": 0.02, "atol": 0.02} if low else {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(tf.cast(table, tf.float64), expected.p, **tolerance)
    if name == "masters" and low:
        np.testing.assert_allclose(optimizer.get_slot(table, "accumulator"), expected.a, rtol=1e-5)
        master = optimizer.get_slot(table, "master")
        np.testing.assert_array_equal(tf.cast(tf.cast(master, table.dtype), tf.float32), tf.cast(table, tf.float32))


@pytest.mark.parametrize("how", ["eager", "function"])
def test_a_gradient_that_is_not_finite_makes_no_step(how: str) -> None:
    optimizer = optim.Adagrad(0.1, loss_scale="dynamic", clipvalue=0.5, **EACH)
    table = tf.Variable(start(), name="table")
    optimizer.build([table])

    def step(values: Any) -> None:
        optimizer.apply_gradients([(tf.IndexedSlices(values, tf.constant(IDS)), table)])

    given = slices(0).values.numpy()
    given[2, 1] = np.inf
    (tf.function(step) if how == "function" else step)(tf.constant(given))
    np.testing.assert_array_equal(table, start())
    assert int(optimizer.iterations) == 0
    assert float(optimizer.current_loss_scale) == 2.0**14


@covering(
    2,
    name=["Adagrad", "Adam", "Adamax", "Lamb"],
    specs=[("unsharded", "unsharded"), ("batch", "unsharded"), ("model", "batch")],
    how=["eager", "function"],
    mode=MODES,
    options=[{}, {"clipnorm": 1.0}, {"slot_placement": "zero1"}, {"lazy_rows": ["table"]}, {"loss_scale": 4.0}],
)
@pytest.mark.quick(6)
def test_on_a_mesh(
    name: str, specs: tuple[str, ...], how: str, options: dict[str, Any], mode: str, mesh_2x2: Any
) -> None:
    if name == "Lamb" and "lazy_rows" in options:
        options = {}
    if how == "function" and options.get("slot_placement"):
        options = {"weight_decay": 0.1}
    layout, whole = dtensor.Layout(specs, mesh_2x2), dtensor.Layout.replicated(mesh_2x2, 2)
    table = variable(start(), layout, "table")
    optimizer = getattr(optim, name)(0.1, **options, **EACH)
    optimizer.build([table])

    def step(values: Any, ids: Any) -> None:
        optimizer.apply_gradients([(tf.IndexedSlices(values, ids), table)])

    run = tf.function(step) if how == "function" else step
    plain = {k: v for k, v in options.items() if k != "slot_placement"}
    alone, expected = getattr(optim, name)(0.1, **plain, **EACH), tf.Variable(start(), name="table")
    for k in range(STEPS):
        given = slices(k, options.get("loss_scale", 1.0))
        ids = dtensor.copy_to_mesh(tf.constant(IDS), dtensor.Layout.replicated(mesh_2x2, 1))
        run(put(given.values.numpy(), whole), ids)
        alone.apply_gradients([(given, expected)])
    np.testing.assert_allclose(value_of(table), expected.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("how", ["eager", "function"])
@pytest.mark.parametrize("mode", ["native"])
def test_only_rows_that_are_named_are_updated(how: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that no gradient names is infinite, its slot too: arithmetic with zeros would make NaN of it."""
    from optim.step import gradients

    def refuse(*_: Any) -> None:
        raise AssertionError("a gradient of some rows was made dense")

    monkeypatch.setattr(gradients, "densify", refuse)
    optimizer = optim.Adagrad(**RATE, lazy_rows=["table"], **EACH)
    table = tf.Variable(start(), name="table")
    table.scatter_nd_update([[5]], [[np.inf] * COLUMNS])
    optimizer.build([table])
    optimizer.get_slot(table, "accumulator").scatter_nd_update([[5]], [[np.inf] * COLUMNS])

    def step(values: Any) -> None:
        optimizer.apply_gradients([(tf.IndexedSlices(values, tf.constant(IDS)), table)])

    run = tf.function(step) if how == "function" else step
    expected = Adagrad()
    for k in range(STEPS):
        run(slices(k).values)
        expected.apply(slices(k).values.numpy())
    assert np.isinf(table.numpy()[5]).all()
    rest = [row for row in range(ROWS) if row != 5]
    np.testing.assert_allclose(table.numpy()[rest], expected.p[rest], rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"repeated_rows": "clip"}, HyperparameterError, "repeated_rows must be a sequence"),
        ({"repeated_rows": ["cube"]}, HyperparameterError, "repeated_rows must be a sequence"),
        ({"repeated_rows": ["clip"], "gradient_accumulation_steps": 2}, UnsupportedError, "gathers sums"),
        ({"repeated_rows": ["square"], "clipnorm": 1.0}, UnsupportedError, r'use \["clip", "square"\]'),
        (
            {"repeated_rows": ["square"], "weight_decay": 0.1, "decoupled_weight_decay": False},
            UnsupportedError,
            "decoupled_weight_decay=False",
        ),
    ],
)
def test_what_is_refused(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        optim.SGD(0.1, **options)


def test_an_own_update_step_cannot_square_each() -> None:
    class Mine(optim.Optimizer):
        def update_step(self, gradient: Any, variable: Any) -> None:
            variable.assign_sub(gradient)

    with pytest.raises(HyperparameterError, match="has its own update_step"):
        Mine(learning_rate=0.1, repeated_rows=["square"])
    optimizer, table = Mine(learning_rate=0.1, clipvalue=0.5, repeated_rows=["clip"]), tf.Variable(tf.zeros((2, 1)))
    optimizer.apply_gradients([(tf.IndexedSlices(tf.ones((2, 1)), tf.constant([1, 1])), table)])
    np.testing.assert_array_equal(table, [[0.0], [-1.0]])


def test_set_on_a_live_optimizer() -> None:
    optimizer, table = optim.SGD(1.0, clipvalue=0.5), tf.Variable(tf.zeros((2, 1)))
    given = tf.IndexedSlices(tf.ones((2, 1)), tf.constant([1, 1]))
    step = tf.function(lambda: optimizer.apply_gradients([(given, table)]))
    step()
    optimizer.repeated_rows = ["square", "clip"]
    assert optimizer.get_config()["repeated_rows"] == optimizer.repeated_rows == ["clip", "square"]
    assert optim.SGD.from_config(optimizer.get_config()).repeated_rows == ["clip", "square"]
    step()
    np.testing.assert_array_equal(table, [[0.0], [-1.5]])
    with pytest.raises(UnsupportedError, match="a sum, of which no part is left"):
        optimizer.repeated_rows = ["square"]
    assert optimizer.repeated_rows == ["clip", "square"]


@pytest.mark.breadth
def test_in_fit() -> None:
    """An Embedding that reads a row twice, in Keras 3 with its own optimizer and with one of `optim`."""
    found = []
    for made in (
        keras.optimizers.Adagrad(0.1),
        optim.for_keras(optim.Adagrad(0.1, epsilon_inside=True, **EACH), keras),
    ):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Embedding(4, 2), keras.layers.Dense(1)])
        model.compile(made, "mse")
        x = np.array([[1, 1, 2], [1, 0, 0]])
        model.fit(x, np.ones((2, 3, 1)), epochs=3, verbose=0)
        found.append([np.asarray(weight) for weight in model.get_weights()])
    for theirs, mine in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_powers_of_a_rule_of_ones_own() -> None:
    """By operators, by functions, and after a product."""

    class Own(optim.Rule):
        learning_rate = optim.Hyperparameter(1.0, "size")

        @property
        def slots(self) -> tuple[optim.Slot, ...]:
            return tuple(optim.Slot(name, unit="gradient^2") for name in "abcdef")

        def update(self, xp: Any, variable: Any, gradient: Any, slots: Any, c: Any) -> Any:
            half = xp.divide(xp.multiply(-gradient, variable), 2.0 * variable)
            new = [gradient * gradient, gradient**2, xp.square(half), xp.abs(half), abs(gradient), gradient + 0.0]
            return -c["learning_rate"] * gradient, {n: slots[n] + v for n, v in zip("abcdef", new, strict=True)}

    table = tf.Variable(tf.ones((2, 1), tf.float64), name="table")
    optimizer = optim.Optimizer(rule=Own(), learning_rate=1.0, repeated_rows=["square"])
    values = tf.constant([[1.0], [-3.0]], tf.float64)
    optimizer.apply_gradients([(tf.IndexedSlices(values, tf.constant([1, 1])), table)])
    found = [float(optimizer.get_slot(table, name)[1, 0]) for name in "abcdef"]
    assert found == [10.0, 10.0, 2.5, 2.0, 4.0, -2.0]
    np.testing.assert_array_equal(table, [[1.0], [3.0]])


@pytest.mark.parametrize("mode", MODES)
def test_the_report_says_where_whole_tables_are_updated(mesh_2: Any, mode: str) -> None:
    if mesh_2.device_type() != "CPU":
        pytest.skip("only on CPUs dtopt's kernel updates rows")

    def reason(table: Any, cls: Any = optim.Adagrad, **more: Any) -> str:
        optimizer = cls(0.1, **{**EACH, **more})
        optimizer.build([table])
        return optimizer.executor_report().why_whole_tables

    plain, layout = tf.Variable(start(), name="table"), dtensor.Layout(["x", "unsharded"], mesh_2)
    assert reason(plain) == ("" if mode == "native" else "DTOPT_KERNELS=off")
    assert reason(plain, executor="portable") == 'executor="portable" was asked for'
    assert reason(plain, optim.Lamb) == "Lamb is not updated row by row"
    assert reason(variable(start(), layout, "table")) == reason(plain)
    assert reason(variable(start(), layout, "table"), repeated_rows=["clip"]) == ""
