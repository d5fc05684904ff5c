"""Moving averages swapped in for a while: bit for bit, in order, and with nothing else allowed in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim.errors import UnsupportedError
from tests.helpers.dtensor_asserts import layout_of, value_of
from tests.test_optim.cases import marked
from tests.test_optim.executors.test_ordering import Slow
from tests.test_optim.support import (
    LAYOUTS,
    Place,
    gradient_values,
    put,
    put_gradients,
    snapshot,
    start_values,
    variable,
)

DTYPES = (tf.float32, tf.bfloat16, tf.float64, tf.float16)
ZERO1 = {"slot_placement": "zero1"}
EMA = {"use_ema": True, "ema_momentum": 0.7}


def _trained(place: Place, dtype: Any = tf.float64, **options: Any) -> tuple[Any, dict[str, Any]]:
    variables = place.variables(start_values(), dtype)
    optimizer = optim.Adam(0.1, **EMA, **options)
    for call in range(3):
        optimizer.apply_gradients(put_gradients(gradient_values(call), variables))
    return optimizer, variables


@pytest.mark.parametrize(
    ("layout", "dtype", "options"),
    marked(
        [(layout, dtype, options) for layout in LAYOUTS for dtype in DTYPES for options in ({}, ZERO1)],
        lambda layout, dtype, options: dtype == (tf.bfloat16 if options else tf.float32),
    ),
)
@pytest.mark.quick(1)
def test_a_round_trip_is_exact(layout: str, dtype: Any, options: Any, request: Any) -> None:
    optimizer, variables = _trained(Place.named(layout, request), dtype, **options)
    # Numbers that arithmetic would not bring back; NumPy cannot compare a NaN of bfloat16.
    some, odd = variables["kernel"], np.inf if dtype == tf.bfloat16 else np.nan
    some.assign(put(np.array([[odd, -0.0, 1e-7, -np.inf]] * 6), layout_of(some), dtype))
    averages = {name: optimizer.get_slot(var, "average") for name, var in variables.items()}
    before, means = snapshot(variables.values()), snapshot(averages.values())
    state = snapshot(optimizer.variables)
    layouts = [layout_of(v) for v in (*variables.values(), *averages.values())]
    with optimizer.averages_swapped():
        assert snapshot(variables.values()) == means != before
        assert snapshot(averages.values()) == before
    assert snapshot(variables.values()) == before
    assert snapshot(optimizer.variables) == state
    assert [layout_of(v) for v in (*variables.values(), *averages.values())] == layouts
    optimizer.swap_averages()
    assert snapshot(variables.values()) == means
    optimizer.swap_averages()
    assert snapshot(optimizer.variables) == state


@pytest.mark.parametrize("executor", ["local", "portable"])
@pytest.mark.quick(1)
def test_training_goes_on_as_if_nothing_had_been(executor: str, request: Any) -> None:
    ends = []
    for swaps in (False, True):
        optimizer, variables = _trained(Place.named("mixed", request), executor=executor)
        if swaps:
            with optimizer.averages_swapped():
                pass
        optimizer.apply_gradients(put_gradients(gradient_values(5), variables))
        ends.append(snapshot([*variables.values(), *optimizer.variables]))
    assert ends[0] == ends[1]


@pytest.mark.breadth
def test_a_swap_waits_its_turn_and_a_step_after_it(mesh_2: Any) -> None:
    layout = dtensor.Layout(["x"], mesh_2)
    var = variable(np.zeros(4), layout, "w")
    optimizer = optim.SGD(1.0, **EMA, executor="local")
    slow = Slow(var, layout)
    one = put(np.ones(4), layout)
    for _ in range(2):
        slow.assign(put(np.full(4, 5.0), layout))
        optimizer.apply_gradients([(one, var)])
    mean = value_of(optimizer.get_slot(var, "average"))
    for value in (20.0, 30.0):
        slow.assign(put(np.full(4, value), layout))
        with optimizer.averages_swapped():  # while the assignment is pending
            np.testing.assert_array_equal(value_of(var), mean)
        seen = slow.read()  # pending while the swap and the step below overwrite what it reads
        optimizer.swap_averages()
        optimizer.swap_averages()
        optimizer.apply_gradients([(one, var)])
        mean = value_of(optimizer.get_slot(var, "average"))
        np.testing.assert_array_equal(value_of(seen), value)
        np.testing.assert_array_equal(value_of(var), value - 1.0)


def test_what_is_refused_while_averages_are_in(request: Any, tmp_path: Any) -> None:
    optimizer, variables = _trained(Place.named("mixed", request))
    pairs = put_gradients(gradient_values(0), variables)
    named = list(variables.values())

    @tf.function(autograph=False)
    def step(gradients: Any) -> None:
        optimizer.apply_gradients(list(zip(gradients, named, strict=True)))

    @tf.function
    def loop(gradients: Any) -> None:
        for _ in tf.range(2):
            step(gradients)

    gradients = [g for g, _ in pairs]
    step(gradients)
    loop(gradients)
    before = snapshot([*named, *optimizer.variables])
    with optimizer.averages_swapped():
        inside = snapshot([*named, *optimizer.variables])
        for forbidden in (
            lambda: optimizer.apply_gradients(pairs),
            lambda: step(gradients),  # traced before
            lambda: loop(gradients),
            lambda: tf.function(lambda: optimizer.apply_gradients(pairs), autograph=False)(),
            lambda: optim.save_checkpoint(tmp_path / "c", optimizer, variables),
            lambda: optimizer.finalize_variable_values(named),
            lambda: optimizer.build(named),
            lambda: optimizer.averages_swapped().__enter__(),
        ):
            with pytest.raises(UnsupportedError, match="swap_averages"):
                forbidden()
        assert snapshot([*named, *optimizer.variables]) == inside
    assert snapshot([*named, *optimizer.variables]) == before
    step(gradients)
    optim.save_checkpoint(tmp_path / "c", optimizer, variables)


def test_an_error_inside_brings_the_variables_back(devices: list[str]) -> None:
    var = tf.Variable([1.0])
    optimizer = optim.SGD(0.5, **EMA)
    optimizer.apply_gradients([(tf.ones(1), var)])
    seen = []

    def evaluate() -> None:
        with optimizer.averages_swapped():
            seen.append(var.numpy()[0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        evaluate()
    assert seen != [0.5]
    assert var.numpy() == [0.5]
    with optimizer.averages_swapped():
        optimizer.swap_averages()  # out again by hand: the block has nothing left to do
        assert var.numpy() == [0.5]
    assert var.numpy() == [0.5]


def test_there_must_be_averages(devices: list[str]) -> None:
    var = tf.Variable([1.0])
    plain, fresh = optim.SGD(0.5), optim.SGD(0.5, **EMA)
    plain.apply_gradients([(tf.ones(1), var)])
    fresh.build([var])
    for optimizer, said in ((plain, "use_ema=True"), (fresh, "take a step")):
        with pytest.raises(UnsupportedError, match=said):
            optimizer.swap_averages()
        with pytest.raises(UnsupportedError, match=said), optimizer.averages_swapped():
            pass
    fresh.apply_gradients([(tf.ones(1), var)])
    with pytest.raises(UnsupportedError, match="eagerly"):
        tf.function(fresh.swap_averages, autograph=False)()
