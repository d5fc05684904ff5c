"""Steps on a GPU: what is launched, on a driver that checks what it is called with and runs kernels on the CPU."""

from __future__ import annotations

import ctypes
import math
import re

import numpy as np
import pytest
import tensorflow as tf

from optim.native import cuda
from tests.helpers.breadth import broad
from tests.helpers.emulated_gpu import (
    PROGRAMS,
    SUMS,
    Case,
    Options,
    Step,
    assert_same,
    compiled,
    cpu_function,
    driver_calls,
    emulated_path,
    library,
    pointer,
    stored,
    wide,
)

ADAM = next(program for name, program in PROGRAMS.items() if name.startswith("AdamRule"))
STREAM = 0x1000


class _Numbers(ctypes.Structure):
    _fields_ = (
        ("scalars", ctypes.c_void_p),
        *((name, ctypes.c_double) for name in ("limit", "average_weight", "value_weight")),
        ("rounding_type", ctypes.c_int64),
        ("overwrites", ctypes.c_int64),
        ("control", ctypes.c_void_p),
        ("are_places", ctypes.c_int64),
    )


class Launched(Case):
    """A case whose step goes through the planner and the driver. `problem`: what the step returned."""

    tensors = 0
    """Variables of one launch, 0 for as many as fit."""
    driver = ""
    module = ""
    problem = ""

    def launched(self) -> Step:
        step = self.placed()
        addresses: list[int] = []
        for i in range(len(step.variables)):
            lists = (step.gradients, step.variables, step.averages, step.roundings, *step.slots)
            addresses += [arrays[i].ctypes.data if arrays else 0 for arrays in lists]
        count = len(step.variables)
        control, scales = self.control()
        numbers = _Numbers(
            self.scalars.ctypes.data,
            *(self.limit, *self.weights),
            cuda.ROUNDING_TYPES[self.options.rounding],
            self.options.overwrites,
            control.ctypes.data if control.size else 0,
            scales is not self.scales,
        )
        program, how = self.program, cuda.shape(self.program, self.dtype)
        counts = (len(program.slots), len(program.scalars), self.tensors or cuda.most_tensors(program), how.threads)
        problem = library("gpu_steps").step(
            (self.driver or str(compiled("fake_cuda"))).encode(),
            cuda.name(program, self.dtype, self.of_gradient).encode(),
            (self.module or str(emulated_path())).encode(),
            (ctypes.c_int64 * 4)(*counts),
            ctypes.c_void_p(STREAM),
            ctypes.c_int64(count),
            (ctypes.c_void_p * len(addresses))(*addresses),
            (ctypes.c_int64 * count)(*(variable.size for variable in step.variables)),
            pointer(scales),
            pointer(self.decays),
            ctypes.byref(numbers),
        )
        self.problem = problem.decode()
        return step


def _reset(version: int = 12010, fails_at: int = -1) -> None:
    """Begin as a new process does."""
    library("gpu_steps").forget()
    library("fake_cuda").fake_reset(version, fails_at)


@pytest.mark.parametrize("dtype", cuda.TYPES)
def test_all_variables_are_updated_by_one_launch(dtype: str) -> None:
    _reset()
    case = Launched(ADAM, dtype, dtype, Options())
    assert_same(case)
    assert case.problem == ""
    calls = driver_calls()
    assert calls[-2:] == ["launch", "pop"]
    assert calls.count("launch") == 1


@pytest.mark.parametrize(
    "options",
    [
        Options(average=True, overwrites=True),
        Options(rounding="bfloat16"),
        Options(factor=0.5),
        Options(factor=1.0, skipped=True),
    ],
    ids=["average", "rounding", "factor", "skipped"],
)
def test_options_reach_the_kernel(options: Options) -> None:
    _reset()
    case = Launched(ADAM, "float32", options.rounding or "float32", options)
    assert_same(case)
    driver_calls()


def test_a_kernel_is_loaded_once() -> None:
    _reset()
    for _ in range(3):
        assert_same(Launched(ADAM, "float32", "float32", Options()))
    assert driver_calls().count("load") == 1
    assert driver_calls().count("launch") == 3


def test_variables_without_elements_are_left_out() -> None:
    _reset()
    case = Launched(ADAM, "float32", "float32", Options(), sizes=(0, 5, 0))
    assert_same(case)
    assert driver_calls().count("launch") == 1
    _reset()
    Launched(ADAM, "float32", "float32", Options(), sizes=(0, 0)).launched()
    assert "launch" not in driver_calls()


def test_more_variables_than_one_launch_takes_are_several() -> None:
    most = cuda.most_tensors(ADAM)
    _reset()
    assert_same(Launched(ADAM, "float32", "float32", Options(), sizes=[3] * (2 * most + 1)))
    assert driver_calls().count("launch") == 3


def test_a_driver_that_is_not_there_or_too_old_is_named() -> None:
    case = Launched(ADAM, "float32", "float32", Options())
    case.driver = "libcuda-that-is-not-there.so.1"
    case.launched()
    assert case.problem == "there is no CUDA driver (libcuda-that-is-not-there.so.1)"
    _reset(version=12000)
    case.driver = ""
    case.launched()
    assert case.problem == (
        "the CUDA driver is of CUDA 12.0, and one launch for all variables needs 12.1 (R530) or later"
    )


@pytest.mark.parametrize(
    ("module", "fails_at", "problem"),
    [
        ("no module", -1, r"loading the kernel failed: another error \(CUDA error 218\)"),
        (str(compiled("fake_cuda")), -1, r"finding the kernel failed: another error \(CUDA error 500\)"),
        (
            "",
            0,
            r"launching the kernel failed: an illegal memory access was encountered \(CUDA error 700\)\. The GPU is .*",
        ),
    ],
    ids=["module", "function", "launch"],
)
def test_a_failure_is_named_and_changes_nothing(module: str, fails_at: int, problem: str) -> None:
    _reset(fails_at=fails_at)
    case = Launched(ADAM, "float32", "float32", Options())
    case.module = module
    after = case.launched()
    assert re.fullmatch(problem, case.problem)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(after.arrays(), case.step.arrays(), strict=True))
    assert driver_calls()[-1] == "pop"


@pytest.mark.parametrize("dtype", cuda.TYPES)
@pytest.mark.parametrize("has_lanes", [False, broad(True)])
@pytest.mark.quick(1)
def test_squares_are_added_up_as_on_the_cpu(has_lanes: bool, dtype: str) -> None:
    """More tensors than one launch takes, runs of all lengths, and none."""
    rng = np.random.default_rng(5)
    sizes = [0, 1, 31, 32, 33, 4096, 4097, 50_000, *([3] * 1700)]
    tensors = [stored(rng.standard_normal(size), dtype) for size in sizes]
    sums = np.zeros(len(sizes))
    _reset()
    problem = library("gpu_steps").squares(
        str(compiled("fake_cuda")).encode(),
        cuda.squares_name(dtype).encode(),
        str(emulated_path(*SUMS.values(), has_lanes=True) if has_lanes else emulated_path()).encode(),
        ctypes.c_void_p(STREAM),
        ctypes.c_int64(len(sizes)),
        (ctypes.c_void_p * len(sizes))(*(tensor.ctypes.data for tensor in tensors)),
        (ctypes.c_int64 * len(sizes))(*sizes),
        pointer(sums),
    )
    assert problem == b""
    assert driver_calls().count("launch") == 4
    squares = cpu_function("squares", dtype)
    squares.restype = ctypes.c_double
    for tensor, found in zip(reversed(tensors), sums, strict=True):
        runs = [tensor[k : k + 4096] for k in range(0, tensor.size, 4096)]
        by_run = [squares(pointer(np.ascontiguousarray(run)), ctypes.c_int64(run.size)) for run in runs]
        assert found == _in_lanes(by_run)
        assert found == pytest.approx(float(np.sum(wide(tensor, dtype).astype(np.float64) ** 2)), rel=1e-12)


def _in_lanes(numbers: list[float]) -> float:
    """Added up as a warp does: every 32nd number by one lane, then halves of the lanes."""
    lanes = [0.0] * 32
    for i, number in enumerate(numbers):
        lanes[i % 32] += number
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [a + b for a, b in zip(lanes[:half], lanes[half:], strict=True)]
    return lanes[0]


def _scales(
    sums: list[float], scale: float, limit: float | None, *, joint: bool, checks: bool
) -> tuple[np.ndarray, float]:
    """What the kernel of scales leaves in device memory, and the verdict that the host waited for."""
    _reset()
    control, verdict = np.full(1 + len(sums), -1.0), np.full(1, -1.0)
    numbers = np.array([scale, limit or 0.0, joint, checks, limit is not None])
    problem = library("gpu_steps").scales(
        str(compiled("fake_cuda")).encode(),
        str(emulated_path()).encode(),
        ctypes.c_void_p(STREAM),
        ctypes.c_int64(len(sums)),
        pointer(np.array(sums)),
        pointer(numbers),
        pointer(control),
        pointer(verdict),
    )
    assert problem == b""
    calls = driver_calls()
    assert calls.count("host memory") <= 1  # the second time the same is used again
    assert calls.count("wait") == 2
    return control, float(verdict[0])


@pytest.mark.parametrize("joint", [False, True], ids=["each", "joint"])
def test_scales_are_those_of_tensorflow(joint: bool) -> None:
    rng = np.random.default_rng(7)
    gradients = [rng.standard_normal(size) * 10.0**power for size, power in ((3, 0), (300, -3), (1, 2), (700, 0))]
    control, verdict = _scales([float(g @ g) for g in gradients], 0.25, 2.0, joint=joint, checks=True)
    smaller = [tf.constant(0.25 * g) for g in gradients]
    clipped = tf.clip_by_global_norm(smaller, 2.0)[0] if joint else [tf.clip_by_norm(g, 2.0) for g in smaller]
    for gradient, factor, expected in zip(gradients, control[1:], clipped, strict=True):
        np.testing.assert_allclose(factor * gradient, expected, rtol=1e-14)
    assert (control[0], verdict) == (0.0, 0.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_sum_that_is_not_finite_leaves_a_step_out(bad: float) -> None:
    control, verdict = _scales([1.0, bad, 1.0], 0.5, None, joint=False, checks=True)
    assert (control[0], verdict) == (1.0, 1.0)
    control, verdict = _scales([1.0, bad, 1.0], 0.5, 1.0, joint=True, checks=False)
    assert (control[0], verdict) == (0.0, 0.0)
    assert np.isnan(control[1:]).all()  # as Keras has it: numbers that look healthy would be worse


@pytest.mark.parametrize("code", [2, 719])
def test_an_error_says_what_to_do(code: int) -> None:
    _reset(fails_at=0)
    library("fake_cuda").fake_errors(code, 0)
    case = Launched(ADAM, "float32", "float32", Options())
    case.launched()
    advice = {2: "use a smaller batch or model", 719: "restart it from its last checkpoint"}
    assert f"(CUDA error {code})" in case.problem
    assert advice[code] in case.problem
