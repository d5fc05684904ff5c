"""Lookahead, averages, cautious steps and weight decay next to the rest: sparse rows, late starts, refusals."""

from __future__ import annotations

import copy
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import optim
from optim.errors import HyperparameterError, UnsupportedError
from optim.native.generate import why_none

AROUND = {
    "lookahead": {"lookahead": {"sync_period": 2, "slow_step_size": 0.4}},
    "coupled": {"weight_decay": 0.1, "decoupled_weight_decay": False},
    "cautious": {"cautious": True},
    "adaptive-clip": {"adaptive_grad_clip": 0.125},
}
START = np.arange(12.0).reshape(6, 2) - 5.0


def _rows(values: Any) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.constant(values, tf.float64), tf.constant([4, 1, 4]), tf.constant([6, 2]))


def _dense(values: Any) -> Any:
    full = np.zeros((6, 2))
    np.add.at(full, [4, 1, 4], np.asarray(values))
    return tf.constant(full)


def _after(gradients: list[Any], **options: Any) -> Any:
    table = tf.Variable(START, name="table")
    optimizer = optim.Adam(0.1, **options)
    for gradient in gradients:
        optimizer.apply_gradients([(gradient, table)])
    return table.numpy()


@pytest.mark.parametrize("executor", ["auto", "portable"])
@pytest.mark.parametrize("option", AROUND)
def test_rows_are_as_their_dense_gradient(option: str, executor: str) -> None:
    """Rows without a gradient decay, and are looked ahead from, too."""
    values = [np.random.default_rng(i).normal(size=(3, 2)) for i in range(5)]
    options = {**AROUND[option], "executor": executor}
    sparse, dense = (_after([of(v) for v in values], **options) for of in (_rows, _dense))
    np.testing.assert_allclose(sparse, dense, rtol=1e-12)
    assert (option == "coupled") == (not np.array_equal(sparse[0], START[0]))


@pytest.mark.parametrize("executor", ["auto", "portable"])
def test_lazy_rows_do_not_decay(executor: str) -> None:
    values = [np.random.default_rng(i).normal(size=(3, 2)) for i in range(3)]
    options = {**AROUND["coupled"], "executor": executor, "lazy_rows": ["^table$"]}
    sparse, dense = (_after([of(v) for v in values], **options) for of in (_rows, _dense))
    np.testing.assert_allclose(sparse, dense, rtol=1e-12)
    np.testing.assert_array_equal(sparse[[0, 2, 3, 5]], START[[0, 2, 3, 5]])
    assert not np.allclose(sparse[[1, 4]], START[[1, 4]])


@pytest.mark.parametrize("executor", ["auto", "portable"])
def test_cautious_steps_of_repeated_rows_have_their_squares(executor: str) -> None:
    """1 of 4 rows has a gradient, so that its step is 4 times as long: 4 · (3 + 4) / √(3² + 4²)."""
    table = tf.Variable(tf.zeros([4, 1], tf.float64))
    repeated = {"initial_accumulator_value": 0.0, "epsilon": 1e-20, "repeated_rows": ["square"]}
    optimizer = optim.Adagrad(1.0, **repeated, cautious=True, executor=executor)
    rows = tf.IndexedSlices(tf.constant([[3.0], [4.0]], tf.float64), tf.constant([2, 2]), tf.constant([4, 1]))
    optimizer.apply_gradients([(rows, table)])
    np.testing.assert_allclose(table.numpy(), [[0.0], [0.0], [-5.6], [0.0]], rtol=1e-12)


def test_adaptive_clipping_of_what_is_not_finite_stops_its_unit_alone() -> None:
    kernel = tf.Variable(np.ones((2, 3)), name="kernel")
    optimizer = optim.SGD(1.0, adaptive_grad_clip=0.5)
    gradient = [[np.inf, 1.0, 0.1], [0.0, 1.0, 0.1]]
    optimizer.apply_gradients([(tf.constant(gradient, tf.float64), kernel)])
    np.testing.assert_allclose(kernel.numpy(), [[np.nan, 0.5, 0.9]] * 2)


def test_adaptive_clipping_is_in_the_kernel_but_for_stacks_of_matrices() -> None:
    rule = optim.SGD(0.1, adaptive_grad_clip=0.5)._settings.algorithm().rule
    reasons = [why_none(rule, rank, []) for rank in range(5)]
    assert [bool(reason) for reason in reasons] == [False, False, False, True, True]
    assert "its variables have 4 dims" in reasons[4]


def test_fast_weights_start_again_from_the_slow_ones() -> None:
    variable = tf.Variable([1.0, -2.0], dtype=tf.float64)
    optimizer = optim.SGD(0.1, momentum=0.9, lookahead=optim.Lookahead(sync_period=3))
    for step in range(1, 7):
        optimizer.apply_gradients([(tf.constant([1.0, 3.0], tf.float64), variable)])
        slow = optimizer.get_slot(variable, "slow").numpy()
        assert np.allclose(slow, variable.numpy(), rtol=1e-15) == (step % 3 == 0)


def test_there_is_no_mean_before_it_starts() -> None:
    variable = tf.Variable([1.0])
    optimizer = optim.SGD(0.1, stochastic_average=optim.StochasticAverage(start_averaging=2, average_period=2))
    for _ in range(2):
        optimizer.apply_gradients([(tf.ones(1), variable)])
        with pytest.raises(UnsupportedError, match="3 steps"):
            optimizer.swap_averages()
    optimizer.apply_gradients([(tf.ones(1), variable)])
    held = variable.numpy()
    with optimizer.averages_swapped():
        np.testing.assert_array_equal(variable.numpy(), held)


def test_fit_ends_before_the_mean_starts() -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optim.for_keras(optim.SGD(0.01, stochastic_average={"start_averaging": 100}), keras), "mse")
    model.fit(np.ones((4, 2)), np.ones((4, 1)), epochs=1, verbose=0)
    assert int(model.optimizer.iterations) == 1


def test_copies_go_on_alike() -> None:
    variable = tf.Variable([1.0, 2.0], dtype=tf.float64)
    optimizer = optim.Adam(0.1, lookahead={"sync_period": 2}, stochastic_average={"average_period": 2})
    for _ in range(3):
        optimizer.apply_gradients([(tf.constant([1.0, -1.0], tf.float64), variable)])
    other = copy.deepcopy(optimizer)
    (twin,) = [t.user_variable for t in other._state.tracked]
    for one, its in ((optimizer, variable), (other, twin)):
        for _ in range(3):
            one.apply_gradients([(tf.constant([0.5, -1.0], tf.float64), its)])
    np.testing.assert_array_equal(twin.numpy(), variable.numpy())
    np.testing.assert_array_equal(other.get_slot(twin, "average"), optimizer.get_slot(variable, "average"))


class Own(optim.Optimizer):
    """A step of its own."""

    def update_step(self, gradient: Any, variable: Any) -> None:
        variable.assign_sub(gradient)


@pytest.mark.parametrize(
    ("make", "options", "word"),
    [
        (optim.SGD, {"lookahead": {"sync_period": 0}}, "sync_period"),
        (optim.SGD, {"lookahead": {"slow_step_size": 1.5}}, "slow_step_size"),
        (optim.SGD, {"lookahead": {"k": 5}}, "k; it knows sync_period"),
        (optim.SGD, {"lookahead": 5}, "optim.Lookahead"),
        (optim.SGD, {"lookahead": {}, "lazy_rows": ["w"]}, "lazy_rows and lookahead"),
        (optim.SGD, {"adaptive_grad_clip": 0.0}, "clipping must be a positive"),
        (optim.SGD, {"adaptive_grad_clip": {"eps": 0}}, "eps must be a positive"),
        (optim.SGD, {"adaptive_grad_clip": True}, "optim.AdaptiveGradClip"),
        (optim.SGD, {"adaptive_grad_clip": {"exclude": "head"}}, "exclude must be a list"),
        (optim.SGD, {"adaptive_grad_clip": 0.01, "lazy_rows": ["w"]}, "lazy_rows and adaptive_grad_clip"),
        (optim.SGD, {"cautious": 1}, "cautious must be True or False"),
        (optim.SGD, {"cautious": True, "lazy_rows": ["w"]}, "lazy_rows and cautious"),
        (optim.SGD, {"stochastic_average": {"average_period": 0}}, "average_period"),
        (optim.SGD, {"stochastic_average": {"start_averaging": -1}}, "start_averaging"),
        (optim.SGD, {"stochastic_average": {"start_averaging": "late"}}, "start_averaging"),
        (optim.SGD, {"stochastic_average": {}, "use_ema": True}, "exclude each other"),
        (optim.SGD, {"decoupled_weight_decay": "no"}, "decoupled_weight_decay"),
        (optim.SGD, {"decoupled_weight_decay": False, "learning_rate_in_weight_decay": False}, "no effect"),
        (optim.LARS, {"decoupled_weight_decay": False}, "LARS has its own place"),
        (optim.NovoGrad, {"learning_rate_in_weight_decay": False}, "NovoGrad has its own place"),
        (Own, {"lookahead": {}}, "lookahead would have no effect"),
        (Own, {"adaptive_grad_clip": 0.01}, "adaptive_grad_clip would have no effect"),
        (Own, {"cautious": True}, "cautious would have no effect"),
        (Own, {"decoupled_weight_decay": False}, "decoupled_weight_decay=False has no effect"),
    ],
)
def test_what_cannot_be(make: Any, options: Any, word: str) -> None:
    with pytest.raises(HyperparameterError, match=word):
        make(**options)


def test_what_excludes_an_option_excludes_it_later_too() -> None:
    optimizer = optim.SGD(0.1, lookahead={})
    with pytest.raises(HyperparameterError, match="lazy_rows and lookahead"):
        optimizer.lazy_rows = ["w"]
    assert optimizer.lazy_rows == []
    with pytest.raises(HyperparameterError, match="no effect"):
        Own("own").learning_rate_multipliers = {"w": 2.0}


@pytest.mark.parametrize(
    "options",
    [
        {"use_ema": True, "ema_overwrite_frequency": 5000},
        {"loss_scale": "dynamic", "loss_scale_growth_steps": 2000},
        {"gradient_accumulation_steps": 2000},
        {"lookahead": {"sync_period": 2000}},
    ],
    ids=str,
)
def test_counts_of_steps_have_no_bound_of_a_rule(options: dict[str, Any]) -> None:
    """Counts above 1000, as Keras's own default of a growing loss scale, were refused."""
    assert optim.Adam(**options).get_config().items() >= {k: v for k, v in options.items() if k != "lookahead"}.items()


def test_a_member_of_groups_is_cautious_and_clips_units_as_it_does_alone() -> None:
    random, options = np.random.default_rng(0), {"cautious": True, "adaptive_grad_clip": 0.05}
    start, gradients = random.normal(size=(4, 3)), random.normal(size=(4, 4, 3))
    kernels = [tf.Variable(start, name="kernel") for _ in range(2)]
    bias = tf.Variable(np.ones(3), name="bias")
    alone, member = optim.Adam(0.1, **options), optim.Adam(0.1, **options)
    groups = optim.Groups([("kernel", member), (None, optim.SGD(0.1))])
    for gradient in gradients:
        alone.apply_gradients([(tf.constant(gradient), kernels[0])])
        groups.apply_gradients([(tf.constant(gradient), kernels[1]), (tf.constant(gradient[0]), bias)])
    np.testing.assert_allclose(kernels[1].numpy(), kernels[0].numpy(), rtol=1e-12)
    np.testing.assert_allclose(bias.numpy(), 1.0 - 0.1 * gradients[:, 0].sum(axis=0), rtol=1e-12)
