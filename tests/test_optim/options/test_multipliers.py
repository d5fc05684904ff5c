"""`learning_rate_multipliers`: the learning rate of a variable is its own wherever it enters, and mistakes are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim.errors import HyperparameterError
from optim.native import direct
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.cases import FIRST, Case, is_one_of_few, marked
from tests.test_optim.support import Place, executor_for, gradient_values, put, put_gradients, start_values, variable


@pytest.mark.parametrize(
    ("case", "mode", "layout"),
    marked(
        [
            (c, m, layout)
            for c in FIRST.values()
            for m in ("local", "portable", "native")
            if m in c.modes
            for layout in ("plain", "mixed")
        ],
        lambda case, mode, layout: (
            layout == "mixed" and (mode != "portable" or case.optimizer == "Adam")
            if is_one_of_few(case)
            else (layout, mode) == ("plain", case.modes[0])
        ),
    ),
)
@pytest.mark.quick(4)
def test_a_factor_is_another_learning_rate(case: Case, mode: str, layout: str, request: Any) -> None:
    """Bit for bit what an optimizer with the rate times the factor does, decay of weights included."""
    place = Place.named(layout, request)
    ends = []
    for rate, factors in ((0.25, {"^(kernel|bias)$": 0.5}), (0.125, None)):
        variables = place.variables(start_values())
        optimizer = case.make(
            learning_rate=rate, learning_rate_multipliers=factors, weight_decay=0.1, executor=executor_for(mode)
        )
        for call in range(3):
            optimizer.apply_gradients(put_gradients(gradient_values(call), variables))
        ends.append({name: value_of(var) for name, var in variables.items()})
    for name in ("kernel", "bias"):
        np.testing.assert_array_equal(ends[0][name], ends[1][name])
    for name in ("table", "odd"):
        assert not np.array_equal(ends[0][name], ends[1][name])


@pytest.mark.parametrize("mode", ["native"])
def test_variables_of_one_factor_share_one_call_of_the_kernel(mode: str, devices: list[str], monkeypatch: Any) -> None:
    calls = []
    original = direct.update
    monkeypatch.setattr(direct, "update", lambda group, *rest: calls.append(group) or original(group, *rest))
    variables = [tf.Variable(tf.ones(4), name=f"w{i}") for i in range(6)]
    optimizer = optim.Adam(0.1, learning_rate_multipliers={"w[01]": 0.5, "w2": 0.5, "w3": 2.0})
    optimizer.apply_gradients([(tf.ones(4), v) for v in variables])
    assert len(calls) == len(set(calls)) == 3
    moved = [1.0 - v.numpy()[0] for v in variables]
    np.testing.assert_allclose(moved, np.array([0.5, 0.5, 0.5, 2, 1, 1]) * 0.1, rtol=1e-5)


@pytest.mark.parametrize("mode", ["local", "portable"])
def test_zero_moves_the_slots_and_not_the_variable(mode: str, mesh_2: Any) -> None:
    layout = dtensor.Layout(["x"], mesh_2)
    var = variable(np.ones(4), layout, "frozen")
    optimizer = optim.Adam(0.1, learning_rate_multipliers={"frozen": 0.0}, weight_decay=0.5, executor=mode)
    optimizer.apply_gradients([(put(np.ones(4), layout), var)])
    np.testing.assert_array_equal(value_of(var), np.ones(4))
    np.testing.assert_allclose(value_of(optimizer.get_slot(var, "m")), 0.1, rtol=1e-12)


def test_patterns_that_contradict_each_other(devices: list[str]) -> None:
    one, two = tf.Variable([1.0], name="block/kernel"), tf.Variable([1.0], name="block/bias")
    optimizer = optim.SGD(0.1, learning_rate_multipliers={"^block": 0.5, "kernel$": 0.1})
    for _ in range(2):  # and it stays so
        with pytest.raises(ValueError, match=r"ambiguous for variable 'block/kernel'.*\^block.*kernel\$"):
            optimizer.apply_gradients([(tf.ones(1), one), (tf.ones(1), two)])
    assert one.numpy() == two.numpy() == [1.0]
    agreeing = optim.SGD(0.1, learning_rate_multipliers={"^block": 0.5, "kernel$": 0.5})
    agreeing.apply_gradients([(tf.ones(1), one)])
    np.testing.assert_allclose(one.numpy(), 0.95)


@pytest.mark.parametrize(
    "wrong", [{"(": 1.0}, {"w": -1.0}, {"w": float("nan")}, {"w": "1"}, {"w": None}, ["w"], 0.5, {3: 1.0}], ids=str
)
def test_wrong_multipliers(wrong: Any) -> None:
    with pytest.raises(HyperparameterError, match="learning_rate_multipliers"):
        optim.SGD(0.1, learning_rate_multipliers=wrong)


def test_ftrl_refuses_zero_and_an_own_update_step_refuses_all() -> None:
    with pytest.raises(HyperparameterError, match="Ftrl divides by the learning rate"):
        optim.Ftrl(0.1, learning_rate_multipliers={"w": 0.0})

    class Own(optim.Adam):
        def update_step(self, gradient: Any, variable: Any) -> None:
            raise AssertionError

    with pytest.raises(HyperparameterError, match="own update_step"):
        Own(0.1, learning_rate_multipliers={"w": 0.5})


def test_what_was_passed_stays_as_it_was() -> None:
    given = {"w": 0.5}
    optimizer = optim.SGD(0.1, learning_rate_multipliers=given)
    given["w"] = 7.0
    assert optimizer.get_config()["learning_rate_multipliers"] == {"w": 0.5}
    assert optim.SGD(0.1).get_config()["learning_rate_multipliers"] is None
