"""Options that are set on a live optimizer act, or raise; so do functions that were traced before."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import optim
from optim.errors import HyperparameterError, UnsupportedError

GRADIENT = [3.0, -4.0]


def _pair(made: Callable[[], Any]) -> tuple[Any, tf.Variable]:
    return made(), tf.Variable([1.0, 2.0], name="w")


def _stepper(optimizer: Any, var: tf.Variable, traced: bool) -> Callable[[], None]:
    def step() -> None:
        optimizer.apply_gradients([(tf.constant(GRADIENT), var)])

    return tf.function(step) if traced else step


CHANGES = {
    "clipnorm": (optim.SGD, {}, 0.5),
    "clipvalue": (optim.SGD, {}, 0.1),
    "global_clipnorm": (optim.SGD, {}, 0.5),
    "clip_order": (optim.SGD, {"clipnorm": 1.0, "clipvalue": 0.7}, "norm_first"),
    "weight_decay": (optim.SGD, {}, 0.3),
    "learning_rate_in_weight_decay": (optim.SGD, {"weight_decay": 0.3}, False),
    "weight_decay_exclude": (optim.SGD, {"weight_decay": 0.3}, ["w"]),
    "learning_rate_multipliers": (optim.SGD, {}, {"w": 0.25}),
    "decay": (optim.SGD, {}, 0.5),
    "loss_scale": (optim.SGD, {"loss_scale": 2.0}, 8.0),
    "ema_momentum": (optim.SGD, {"use_ema": True, "ema_overwrite_frequency": 1}, 0.2),
    "ema_overwrite_frequency": (optim.SGD, {"use_ema": True, "ema_momentum": 0.5}, 1),
    "beta_1": (optim.Adam, {}, 0.1),
    "momentum": (optim.SGD, {"momentum": 0.9}, 0.1),
}


@pytest.mark.filterwarnings("ignore:decay is the old")
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("option", CHANGES)
@pytest.mark.quick(6)
def test_a_changed_option_acts_on_the_next_step(option: str, traced: bool) -> None:
    cls, before, value = CHANGES[option]
    optimizer, var = _pair(lambda: cls(0.1, **before))
    step = _stepper(optimizer, var, traced)
    step()
    twin = cls.from_config({**optimizer.get_config(), option: value})
    copy = tf.Variable(var.read_value(), name="w")
    twin.build([copy])
    twin.set_weights(optimizer.get_weights())
    unchanged = cls.from_config(optimizer.get_config())
    other = tf.Variable(var.read_value(), name="w")
    unchanged.build([other])
    unchanged.set_weights(optimizer.get_weights())

    setattr(optimizer, option, value)
    assert optimizer.get_config() == twin.get_config()
    for _ in range(2):
        step()
        twin.apply_gradients([(tf.constant(GRADIENT), copy)])
        unchanged.apply_gradients([(tf.constant(GRADIENT), other)])
    np.testing.assert_allclose(var.numpy(), copy.numpy(), rtol=1e-5)
    assert not np.allclose(var.numpy(), other.numpy(), rtol=1e-4)


@pytest.mark.parametrize(
    ("cls", "option", "value"),
    [
        (optim.SGD, "use_ema", True),
        (optim.SGD, "ema_start", "first_step"),
        (optim.SGD, "gradient_accumulation_steps", 4),
        (optim.SGD, "master_copies", True),
        (optim.SGD, "loss_scale", "dynamic"),
        (optim.SGD, "slot_placement", "zero1"),
        (optim.SGD, "decoupled_weight_decay", False),
        (optim.SGD, "lookahead", {"sync_period": 2}),
        (optim.SGD, "cautious", True),
        (optim.SGD, "adaptive_grad_clip", 0.1),
        (optim.SGD, "stochastic_average", {}),
        (optim.SGD, "nesterov", True),
        (optim.Adam, "amsgrad", True),
        (optim.RMSprop, "centered", True),
    ],
)
def test_what_decides_the_state_cannot_be_set(cls: Any, option: str, value: Any) -> None:
    optimizer, var = _pair(cls)
    optimizer.apply_gradients([(tf.constant(GRADIENT), var)])
    before = optimizer.get_config()
    with pytest.raises(UnsupportedError, match=option):
        setattr(optimizer, option, value)
    assert optimizer.get_config() == before


@pytest.mark.parametrize("cls", [optim.SGD, optim.RMSprop])
def test_momentum_of_what_has_no_slot_for_it(cls: Any) -> None:
    optimizer, var = _pair(cls)
    optimizer.apply_gradients([(tf.constant(GRADIENT), var)])
    with pytest.raises(UnsupportedError, match="momentum"):
        optimizer.momentum = 0.9
    optimizer.momentum = 0.0


@pytest.mark.parametrize("value", [-1.0, "x", float("nan")])
def test_a_bad_value_changes_nothing(value: Any) -> None:
    optimizer = optim.SGD(clipnorm=1.0)
    with pytest.raises(HyperparameterError):
        optimizer.clipnorm = value
    assert optimizer.clipnorm == 1.0


@pytest.mark.parametrize(
    "rate", [lambda: 0.5, optim.schedules.PiecewiseConstantDecay([1], [9.0, 0.5])], ids=["callable", "schedule"]
)
def test_a_rate_of_another_kind_acts_in_a_traced_function(rate: Any) -> None:
    optimizer, var = _pair(lambda: optim.SGD(0.1))
    step = _stepper(optimizer, var, traced=True)
    step()
    step()
    optimizer.learning_rate = rate
    held = var.numpy()
    step()
    np.testing.assert_allclose(held - var.numpy(), 0.5 * np.array(GRADIENT), rtol=1e-6)


def test_a_concrete_function_cannot_notice_and_raises() -> None:
    optimizer, var = _pair(lambda: optim.SGD(0.1))
    function = _stepper(optimizer, var, traced=True)
    step = function.get_concrete_function()  # type: ignore[attr-defined]
    step()
    optimizer.learning_rate = lambda: 0.0
    held = var.numpy()
    with pytest.raises(UnsupportedError, match=r"call the tf\.function"):
        step()
    function()
    np.testing.assert_array_equal(var.numpy(), held)


def test_assigning_a_rate_traces_nothing_anew() -> None:
    optimizer, var = _pair(lambda: optim.SGD(0.1, clipnorm=1.0))
    traces = 0

    @tf.function
    def step() -> None:
        nonlocal traces
        traces += 1
        optimizer.apply_gradients([(tf.constant(GRADIENT), var)])

    optimizer.build([var])
    for rate in (0.1, 0.2, 0.3):
        optimizer.learning_rate = rate
        step()
    assert traces == 1
    np.testing.assert_allclose(var.numpy(), np.array([1.0, 2.0]) - 0.6 * np.array([0.6, -0.8]), rtol=1e-6)


def test_an_outer_function_notices_too() -> None:
    optimizer, var = _pair(lambda: optim.SGD(1.0))
    inner = _stepper(optimizer, var, traced=True)

    @tf.function(reduce_retracing=True)
    def outer(times: tf.Tensor) -> None:
        for _ in tf.range(times):
            inner()

    outer(tf.constant(1))
    optimizer.clipvalue = 0.5
    held = var.numpy()
    outer(tf.constant(2))
    np.testing.assert_allclose(held - var.numpy(), [1.0, -1.0])


def test_a_callable_rate_is_live_where_it_returns_a_tensor_and_warns_where_a_function_keeps_a_number() -> None:
    number, variable = [0.5], tf.Variable(0.5)
    for source in (lambda: number[0], lambda: variable, lambda: 1.0 * variable):
        number[0] = 0.5
        variable.assign(0.5)
        optimizer, var = optim.SGD(source), tf.Variable([1.0, 2.0], name="w")
        step = _stepper(optimizer, var, traced=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step()
        keeps = [str(w.message) for w in caught if "keeps from now on" in str(w.message)]
        number[0] = 0.0
        variable.assign(0.0)
        before = var.numpy()
        step()
        assert bool(keeps) == (not np.array_equal(var.numpy(), before))
