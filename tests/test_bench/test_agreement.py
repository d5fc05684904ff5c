"""The references and the comparison with them."""

from __future__ import annotations

import numpy as np
import pytest

from bench import agreement
from bench.algorithms import ALGORITHMS, algorithm
from bench.case import Case, gradient, parameter
from bench.layouts import parse_mesh
from bench.peer import Session

HYPER = algorithm("adam").hyperparameters


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
    agreement.give_gradients(case, made, agreement.GRADIENTS[0])
    made.step()
    return agreement.check(case, made, paper_epsilon=False)


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


def test_large_tensors_are_sampled_across_rows_and_columns() -> None:
    array = np.arange(4096 * 4096).reshape(4096, 4096)
    taken = agreement._sampled(array).astype(int)
    assert 4000 < len(taken) <= 4096
    assert len(set(taken // 4096)) > 4000
    assert len(set(taken % 4096)) > 4000
    assert len(taken) == agreement._sampled_size(array.size)


def test_the_first_adam_step_is_the_learning_rate_times_the_sign() -> None:
    g = np.array([0.3, -2.0])
    after = algorithm("adam").reference(np.zeros(2), [g], HYPER, True)
    np.testing.assert_allclose(after, -1e-3 * np.sign(g), rtol=1e-6)


def test_the_two_epsilons_of_adam_differ_as_documented() -> None:
    g = np.array([1e-5])
    paper = algorithm("adam").reference(np.zeros(1), [g], HYPER, True)
    keras = algorithm("adam").reference(np.zeros(1), [g], HYPER, False)
    np.testing.assert_allclose(paper, -1e-3 * 1e-5 / (1e-5 + 1e-7), rtol=1e-9)
    np.testing.assert_allclose(keras, -1e-3 * 1e-5 / (1e-5 + 1e-7 / np.sqrt(1 - 0.999)), rtol=1e-9)


def test_momentum_gathers_gradients() -> None:
    h = {"learning_rate": 0.1, "momentum": 0.5}
    after = algorithm("momentum").reference(np.zeros(1), [np.ones(1)] * 3, h, False)
    np.testing.assert_allclose(after, [-0.1 * (1 + 1.5 + 1.75)])


def test_the_first_adadelta_step_by_hand() -> None:
    h = algorithm("adadelta").hyperparameters
    after = algorithm("adadelta").reference(np.zeros(1), [np.array([2.0])], h, False)
    np.testing.assert_allclose(after, [-2.0 * np.sqrt(1e-7 / (0.05 * 4.0 + 1e-7))])


@pytest.mark.parametrize("known", ALGORITHMS, ids=lambda known: known.name)
def test_bytes_are_those_of_one_pass_in_place(known: object) -> None:
    assert known.bytes_per_parameter == 4 * (3 + 2 * known.slots)  # type: ignore[attr-defined]


def test_gradients_and_parameters_follow_the_seed_and_differ() -> None:
    case, other = (Case("many-small", "sgd", parse_mesh("2"), "replicated", seed=seed) for seed in (0, 1))
    np.testing.assert_array_equal(gradient(case, 3, 0), gradient(case, 3, 0))
    different = [parameter(case, 3), gradient(case, 3, 0), gradient(case, 3, 1), gradient(case, 4, 0)]
    different.append(gradient(other, 3, 0))
    assert len({array.tobytes() for array in different}) == 5
    assert all(np.abs(array).max() <= 0.05 and array.dtype == np.float32 for array in different)
