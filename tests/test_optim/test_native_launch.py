"""Steps on a GPU: what is launched, on a driver that checks what it is called with and runs kernels on the CPU."""

from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest

from optim.native import cuda
from tests.emulated_gpu import (
    PROGRAMS,
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
        factor = self.options.factor
        control = np.array([1.0 if factor is None else factor, float(self.options.skipped)])
        numbers = _Numbers(
            self.scalars.ctypes.data,
            *(self.limit, *self.weights),
            cuda.ROUNDING_TYPES[self.options.rounding],
            self.options.overwrites,
            control.ctypes.data if factor is not None or self.options.skipped else 0,
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
            pointer(self.scales),
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
        ("", 0, r"launching the kernel failed: an illegal memory access was encountered \(CUDA error 700\)"),
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
def test_squares_are_added_up_as_on_the_cpu(dtype: str) -> None:
    """More tensors than one launch takes, runs of all lengths, and none."""
    rng = np.random.default_rng(5)
    sizes = [0, 1, 31, 32, 33, 4096, 4097, 50_000, *([3] * 1700)]
    tensors = [stored(rng.standard_normal(size), dtype) for size in sizes]
    sums = np.zeros(len(sizes))
    _reset()
    problem = library("gpu_steps").squares(
        str(compiled("fake_cuda")).encode(),
        cuda.squares_name(dtype).encode(),
        str(emulated_path()).encode(),
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
    for tensor, found in zip(tensors, sums, strict=True):
        runs = [tensor[k : k + 4096] for k in range(0, tensor.size, 4096)]
        expected = 0.0
        for run in runs:
            expected += squares(pointer(np.ascontiguousarray(run)), ctypes.c_int64(run.size))
        assert found == expected
        assert found == pytest.approx(float(np.sum(wide(tensor, dtype).astype(np.float64) ** 2)), rel=1e-12)
