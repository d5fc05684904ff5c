"""Whole optimizers through the GPU's launches, emulated: each step is that of the CPU's kernel, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from optim.native.gpu import Gpus
from tests.helpers import emulated_gpu
from tests.test_optim.cases import ROWS, WHOLE, Case, is_one_of_few, marked
from tests.test_optim.support import dense_gradients, start_values, trained

CASES = [case for case in ROWS if case.optimizer not in WHOLE or case.has_sums or case.optimizer == "Muon"]
STEPS = 3


def _trained(case: Case, dtype: str, in_function: bool, **more: Any) -> list[np.ndarray]:
    calls = [dense_gradients(call) for call in range(STEPS)]
    return trained(case.make(**more), start_values(), calls, dtype, in_function).arrays()


def _assert_same(
    gpus: Gpus, launching: Callable[[], None], case: Case, dtype: str, in_function: bool, **more: Any
) -> None:
    expected = _trained(case, dtype, in_function, **more)
    assert "launch" not in emulated_gpu.driver_calls()
    emulated_gpu.add(gpus, case.make()._algorithm.updating_rule)
    launching()
    launched = _trained(case, dtype, in_function, **more)
    calls = case.arguments.get("gradient_accumulation_steps", 1)
    assert emulated_gpu.driver_calls().count("launch") >= STEPS // calls
    for ours, theirs in zip(launched, expected, strict=True):
        assert ours.tobytes() == theirs.tobytes()


EVERY = [(case, dtype) for case in CASES for dtype in ("float32", "float64")]


@pytest.mark.parametrize(
    ("case", "dtype"), marked(EVERY, lambda case, dtype: is_one_of_few(case) or dtype == "float32")
)
@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.quick(5)
def test_launches_train_as_the_cpu_does(
    gpus: Gpus, launching: Callable[[], None], case: Case, dtype: str, in_function: bool
) -> None:
    _assert_same(gpus, launching, case, dtype, in_function)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("master_copies", [False, True], ids=["own", "master"])
@pytest.mark.parametrize("case", [case for case in CASES if is_one_of_few(case)], ids=str)
def test_in_16_bits(gpus: Gpus, launching: Callable[[], None], case: Case, dtype: str, master_copies: bool) -> None:
    _assert_same(gpus, launching, case, dtype, False, master_copies=master_copies)


def test_a_value_that_was_read_before_a_step_stays(launching: Callable[[], None]) -> None:
    launching()
    variable = tf.Variable([1.0, 2.0])
    (case,) = [case for case in CASES if case.name == "sgd"] or CASES[:1]
    optimizer = case.make()
    before = variable.read_value()
    optimizer.apply_gradients([(tf.constant([1.0, 1.0]), variable)])
    assert before.numpy().tolist() == [1.0, 2.0]
    assert variable.numpy().tolist() != [1.0, 2.0]
    assert "copy" in emulated_gpu.driver_calls()


def test_a_failed_launch_is_an_error_and_changes_nothing(launching: Callable[[], None]) -> None:
    emulated_gpu.library("fake_cuda").fake_reset(12010, 0)
    launching()
    variable = tf.Variable([1.0, 2.0])
    optimizer = CASES[0].make()
    with pytest.raises(Exception, match="launching the kernel failed: an illegal memory access was encountered"):
        optimizer.apply_gradients([(tf.constant([1.0, 1.0]), variable)])
    assert variable.numpy().tolist() == [1.0, 2.0]
