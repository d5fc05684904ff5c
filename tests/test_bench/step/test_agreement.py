"""The references and the comparison with them."""

from __future__ import annotations

import numpy as np
import pytest

from bench.cases.case import Case
from bench.cases.layouts import parse_mesh
from bench.cases.options import Options
from bench.cases.values import as_bfloat16, gradient, parameter
from bench.peers.peer import Conventions, Session
from bench.step import agreement


def session(case: Case, scale: float = 1.0, one_bad: bool = False) -> Session:
    """Plain descent; `scale` spoils the learning rate, `one_bad` one element of the last tensor."""
    values = [parameter(case, i) for i in range(len(case.tensors))]

    def apply(gradients: list[np.ndarray]) -> None:
        for value, g in zip(values, gradients, strict=True):
            value -= np.float32(scale * case.algorithm.hyperparameters["learning_rate"]) * g
        if one_bad:
            values[-1][0] += 1e-3

    return Session(lambda i, array: array, apply, lambda: None, lambda i: values[i])


def checked(**spoiled: object) -> agreement.Agreement:
    case = Case("many-small", "sgd", parse_mesh("2"), "replicated")
    made = session(case, **spoiled)  # type: ignore[arg-type]
    agreement.give_gradients(case, made, 0)
    made.run(1)
    return agreement.check(case, made, Conventions())


def test_float32_arithmetic_agrees() -> None:
    found = checked()
    assert found.agrees
    assert (found.steps, found.elements) == (3, 64_000)


def test_a_learning_rate_off_by_a_thousandth_does_not() -> None:
    found = checked(scale=1.001)
    assert not found.agrees
    assert found.error == pytest.approx(0.001, rel=0.1)


def test_one_bad_element_is_found_and_its_tensor_named() -> None:
    found = checked(one_bad=True)
    assert not found.agrees
    assert found.worst_tensor == "w999"


def test_gradients_and_parameters_follow_the_seed_and_differ() -> None:
    case, other = (Case("many-small", "sgd", parse_mesh("2"), "replicated", seed=seed) for seed in (0, 1))
    np.testing.assert_array_equal(gradient(case, 3, 0), gradient(case, 3, 0))
    different = [parameter(case, 3), gradient(case, 3, 0), gradient(case, 3, 1), gradient(case, 4, 0)]
    different.append(gradient(other, 3, 0))
    assert len({array.tobytes() for array in different}) == 5
    assert all(np.abs(array).max() <= 0.05 and array.dtype == np.float32 for array in different)


def test_bfloat16_numbers_are_the_nearest() -> None:
    import tensorflow as tf

    values = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    expected = tf.cast(tf.cast(values, tf.bfloat16), tf.float32).numpy()
    np.testing.assert_array_equal(as_bfloat16(values), expected)


def test_a_shape_that_differs_and_a_missing_average_do_not_agree() -> None:
    case = Case("many-small", "sgd", parse_mesh("2"), "replicated")
    made = session(case)
    agreement.give_gradients(case, made, 0)
    made.run(1)
    made.read = lambda index: np.zeros((64, 1), np.float32)
    found = agreement.check(case, made, Conventions())
    assert not found.agrees
    assert (found.error, found.worst_tensor) == (None, "w999"), "beyond all numbers, and JSON knows no infinity"
    averaged = Case("many-small", "sgd", parse_mesh("2"), "replicated", options=Options(ema=0.9))
    made = session(averaged)
    agreement.give_gradients(averaged, made, 0)
    made.run(1)
    assert not agreement.check(averaged, made, Conventions()).agrees
