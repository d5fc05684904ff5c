"""Rules, options and dtypes: some steps on the device against a float64 reference and the CPU's kernel."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from optim.native.generate import program_for
from tests.test_optim.cases import FIRST, OPTIONS, RATE, VARIANTS, Case
from tests.test_optim.support import Trained, dense_gradients, scaled_values, start_values, trained
from tools.gpu.device import Device, first_line

CALLS = 5
INEXACT = ("Power(", "std::exp(", "std::log(", "std::tanh(")
"""Functions that no two devices round in the same way, as generated code calls them."""
NORMS = ("clipnorm", "global_clipnorm")
"""Options whose sums TensorFlow adds up in another order on another device."""
CLOSE = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 1e-2, "float16": 1e-3}
"""How far such results may be from the CPU's, in parts of the largest movement."""
ROUNDING = {"float32": float(np.finfo(np.float32).eps), "float64": 1e-12}
"""Of one operation, by the dtype of slots: ten of a variable, and twenty of a slot, may add up."""
OF_OPS = 10
"""Times as much for TensorFlow's ops on a GPU, some of which approximate roots and quotients."""


def programs_of(case: Case) -> set[Any]:
    """What updates the variables of a case, by their ranks; None for what nothing of dtopt's updates."""
    return {program_for(case.make()._algorithm.updating_rule, np.ndim(value)) for value in start_values().values()}


def has_kernel(case: Case) -> bool:
    """Whether there is a kernel of a case's rule."""
    return all(program is not None for program in programs_of(case))


def is_exact(case: Case) -> bool:
    """Whether a case gives the same bits on every device."""
    code = "".join(program.code for program in programs_of(case) if program is not None)
    is_ieee = not any(function in code for function in INEXACT)
    return is_ieee and has_kernel(case) and not any(case.arguments.get(option) for option in NORMS)


def rounded(values: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """Values as a dtype holds them, in float64."""
    return {name: np.asarray(tf.cast(tf.cast(tf.constant(v), dtype), tf.float64)) for name, v in values.items()}


def calls_of(case: Case, dtype: str) -> tuple[list[dict[str, np.ndarray]], Any]:
    """The gradients of some calls, under a loss scale with some that are not finite, and the float64 reference."""
    reference = case.reference(rounded(start_values(), dtype))
    calls = []
    accumulated = case.loop.gradient_accumulation_steps
    for call in range(CALLS * accumulated):
        values = dense_gradients(call)
        if reference.scale is not None:
            values = scaled_values(values, reference.scale, call, accumulated)
        calls.append(rounded(values, dtype))
        reference.apply(calls[-1])
    return calls, reference


def away_from_the_reference(result: Trained, reference: Any, epsilon: float) -> str:
    """What is wrong with variables and slots by the float64 reference; empty if nothing is."""
    start = start_values()
    for name, variable in result.variables.items():
        expected, value = reference.values[name], np.asarray(tf.cast(variable, tf.float64))
        moved = np.max(np.abs(expected - start[name]), initial=0)
        if not np.all(np.abs(value - expected) <= 10 * epsilon * (np.max(np.abs(expected), initial=0) + moved)):
            return f"{name} is {np.max(np.abs(value - expected)):.3g} away from the reference"
        for slot, reference_slot in reference.slots[name].items():
            value = np.asarray(tf.cast(result.optimizer.get_slot(variable, slot), tf.float64))
            scale = np.max(np.abs(reference_slot), initial=0)
            if slot == "linear":  # a sum of differences of √n / lr, times the variable
                roots = np.max(reference.slots[name]["accumulator"], initial=0) ** 0.5
                scale = max(scale, roots / RATE * np.max(np.abs(start[name]), initial=0))
            if not np.all(np.abs(value - reference_slot) <= 20 * epsilon * (np.abs(reference_slot) + scale)):
                return f"{slot} of {name} is {np.max(np.abs(value - reference_slot)):.3g} away from the reference"
    steps = int(result.optimizer.iterations.numpy())
    return "" if steps == reference.iterations else f"{steps} steps were counted, not {reference.iterations}"


def away_from_the_cpu(case: Case, result: Trained, expected: Trained, dtype: str) -> str:
    """What is wrong with the bits of the CPU's kernel; empty if nothing is."""
    ours, theirs = result.arrays(), expected.arrays()
    if all(a.tobytes() == b.tobytes() for a, b in zip(ours, theirs, strict=True)):
        return ""
    start = list(start_values().values())
    moved = max(float(np.max(np.abs(b - a))) for a, b in zip(start, theirs[: len(start)], strict=True))
    worst = max(float(np.max(np.abs(a - b), initial=0)) for a, b in zip(ours, theirs, strict=True))
    if not is_exact(case) and worst <= CLOSE[dtype] * max(moved, 1.0):
        return ""
    return f"differs from the CPU by {worst:.3g}, where variables moved by {moved:.3g}"


def problem_of(device: Device, case: Case, dtype: str, in_function: bool, **more: Any) -> str:
    """What is wrong with a case on the device; empty if nothing is."""
    calls, reference = calls_of(case, dtype)
    start = rounded(start_values(), dtype)
    expected = trained(case.make(**more), start, calls, dtype, in_function, "CPU:0")
    with device.launching(case):
        result = trained(case.make(**more), start, calls, dtype, in_function, device.name)
        reason = device.why_not_used(result.optimizer)
    if reason and has_kernel(case):
        return f"not updated by the kernel: {reason}"
    if dtype in ROUNDING:
        epsilon = ROUNDING[dtype] * (1 if has_kernel(case) else OF_OPS)
        if problem := away_from_the_reference(result, reference, epsilon):
            return problem
    return away_from_the_cpu(case, result, expected, dtype)


Run = tuple[Case, str, bool, dict[str, Any]]


def check_runs(device: Device, runs: Sequence[Run]) -> tuple[bool, str]:
    """Compare runs with the reference and with the CPU's kernel. An error of one leaves the others alone."""
    wrong = []
    for case, dtype, in_function, more in runs:
        try:
            problem = problem_of(device, case, dtype, in_function, **more)
        except Exception as error:  # whatever TensorFlow raises is the result of this run
            problem = first_line(error)
        if problem:
            how = "in a function" if in_function else "eagerly"
            wrong.append(f"{case.name} in {dtype}, {how}{', master copies' if more else ''}: {problem}")
            print("  ", wrong[-1], file=sys.stderr, flush=True)
    without = sorted({case.optimizer for case, *_ in runs if not has_kernel(case)})
    text = f"{len(runs) - len(wrong)} of {len(runs)} runs agree with float64 and with the CPU"
    text += f" (no GPU kernel: {', '.join(without)})" if without else ""
    return not wrong, f"{text}; {wrong[0]}" if wrong else text


def check_rules_eagerly(device: Device) -> tuple[bool, str]:
    return check_runs(device, [(case, "float32", False, {}) for case in VARIANTS])


def check_rules_in_functions(device: Device) -> tuple[bool, str]:
    return check_runs(device, [(case, "float32", True, {}) for case in VARIANTS])


def check_options(device: Device) -> tuple[bool, str]:
    return check_runs(device, [(case, "float32", how, {}) for case in OPTIONS for how in (False, True)])


def check_dtypes(device: Device) -> tuple[bool, str]:
    few = [case for case in FIRST.values() if has_kernel(case)]
    runs: list[Run] = [(case, dtype, False, {}) for case in few for dtype in ("float64", "bfloat16", "float16")]
    runs += [(case, dtype, False, {"master_copies": True}) for case in few for dtype in ("bfloat16", "float16")]
    return check_runs(device, runs)
