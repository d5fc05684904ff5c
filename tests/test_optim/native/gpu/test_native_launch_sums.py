"""Steps of rules that add up, on a driver that checks what it is called with: what is launched, and what with."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from optim.native import cuda
from optim.native.generate import Program
from tests.helpers.emulated_gpu import SUMS, compiled, driver_calls, emulated_path, library, pointer
from tests.test_optim.native.gpu.test_native_launch import _Numbers, _reset

LAMB = next(program for name, program in SUMS.items() if name.startswith("LambRule"))
NOVOGRAD = next(program for name, program in SUMS.items() if name.startswith("NovoGradRule"))
BATCHED = max(SUMS.values(), key=lambda program: (len(program.passes), program.passes))
SHAPES = [(1, 1, 5), (1, 3, 7), (1, 130, 257), (1, 2, 5000), (3, 5, 7), (4, 90, 300), (0, 3, 4), (2, 0, 3), (200, 1, 2)]
"""Matrices, rows and columns."""
ROW = 4096
"""Elements of a row of a variable whose rows do not matter."""


@dataclass
class Step:
    """A step of a rule on variables with values of a seed, and what it makes of them."""

    program: Program
    shapes: Sequence[tuple[int, int, int]] = field(default_factory=lambda: SHAPES)
    scale: float = 1.0
    on_device: bool = False
    """Whether scales are in device memory, next to whether the step is left out."""
    is_left_out: bool = False
    dtype: str = "float32"
    has_lanes: bool = False
    problem: str = ""

    def arrays(self) -> list[list[np.ndarray]]:
        """Of each variable its gradient, itself and its slots, before the step."""
        rng, program = np.random.default_rng(6), self.program
        arrays: list[list[np.ndarray]] = []
        for matrices, rows, columns in self.shapes:
            sizes = {0: matrices * rows * columns, 1: matrices * rows, 2: matrices * columns, 3: 1}
            slots = [shape for shape, count in enumerate(program.shapes) for _ in range(count)]
            made = [rng.standard_normal(sizes[shape]).astype(self.dtype) for shape in (0, 0, *slots)]
            arrays.append([*made[:2], *map(np.abs, made[2:])])
        return arrays

    def launched(self) -> list[np.ndarray]:
        """Variables and slots after the step."""
        program, arrays = self.program, self.arrays()
        addresses = [
            [of[0].ctypes.data, of[1].ctypes.data, 0, 0, *(slot.ctypes.data for slot in of[2:])] for of in arrays
        ]
        flat = [*itertools.chain(*addresses)]
        launches, passes = [*cuda.launches(program, self.dtype, self.dtype)], cuda.passes(program)
        counts = (
            program.shapes[0],
            len(program.scalars),
            cuda.most_tensors(program),
            cuda.shape(program, self.dtype).threads,
        )
        scalars, count = np.linspace(0.1, 0.9, len(program.scalars)), len(self.shapes)
        grids = self.shapes if cuda.is_by_rows(program) else [(1, -(-of[1].size // ROW), ROW) for of in arrays]
        scales = np.full(count, self.scale)
        control, places = np.array([float(self.is_left_out), *scales]), np.arange(1.0, 1 + count)
        address = control.ctypes.data if self.on_device or self.is_left_out else 0
        numbers = _Numbers(scalars.ctypes.data, 2.0, 0.0, 0.0, 0, 0, address, self.on_device)
        self.problem = (
            library("gpu_steps")
            .whole_step(
                str(compiled("fake_cuda")).encode(),
                cuda.name(program, self.dtype, self.dtype).encode(),
                str(emulated_path(*SUMS.values(), has_lanes=self.has_lanes)).encode(),
                _int64s((*counts, sum(program.shapes[1:]), len(passes), len(launches))),
                _int64s([*itertools.chain(*passes)]),
                (ctypes.c_char_p * len(launches))(*(launch.name.encode() for launch in launches)),
                _int64s([number for launch in launches for number in (launch.visit, launch.number)]),
                ctypes.c_int64(count),
                (ctypes.c_void_p * len(flat))(*flat),
                _int64s([of[1].size for of in arrays]),
                _int64s([*itertools.chain(*grids)]),
                pointer(places if self.on_device else scales),
                ctypes.byref(numbers),
            )
            .decode()
        )
        return [array for of in arrays for array in of[1:]]


def _int64s(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * max(len(values), 1))(*values)


def _bytes(step: Step) -> list[bytes]:
    return [array.tobytes() for array in step.launched()]


def _unchanged(program: Program) -> list[bytes]:
    return [array.tobytes() for of in Step(program).arrays() for array in of[1:]]


@pytest.mark.parametrize("name", SUMS)
def test_a_step_stays_in_the_memory_that_it_asks_for(name: str) -> None:
    _reset()
    step = Step(SUMS[name])
    assert _bytes(step) != _unchanged(SUMS[name])
    assert step.problem == ""
    driver_calls()


@pytest.mark.parametrize("program", [LAMB, NOVOGRAD, BATCHED], ids=lambda program: program.name)
def test_scales_in_the_gpus_memory_are_used(program: Program) -> None:
    _reset()
    assert _bytes(Step(program, scale=0.3, on_device=True)) == _bytes(Step(program, scale=0.3))
    assert _bytes(Step(program, scale=0.3, on_device=True)) != _bytes(Step(program))


@pytest.mark.parametrize("program", [LAMB, NOVOGRAD, BATCHED], ids=lambda program: program.name)
def test_a_step_that_is_left_out_changes_nothing(program: Program) -> None:
    _reset()
    assert _bytes(Step(program, is_left_out=True)) == _unchanged(program)
    driver_calls()


@pytest.mark.parametrize("program", [LAMB, NOVOGRAD, BATCHED], ids=lambda program: program.name)
def test_a_failure_before_the_update_changes_nothing(program: Program) -> None:
    _reset()
    launches = [launch.visit for launch in cuda.launches(program, "float32", "float32")]
    for fails_at in range(launches.index(cuda.UPDATE) + 1):
        _reset(fails_at=fails_at)
        step = Step(program)
        assert _bytes(step) == _unchanged(program)
        assert step.problem.startswith("launching the kernel failed: an illegal memory access")
        assert driver_calls()[-1] == "pop"


@pytest.mark.parametrize("name", SUMS)
def test_the_order_of_threads_does_not_matter(name: str) -> None:
    _reset()
    found = _bytes(Step(SUMS[name]))
    goes_backwards = ctypes.c_bool.in_dll(ctypes.CDLL(str(emulated_path(*SUMS.values()))), "dtopt_goes_backwards")
    goes_backwards.value = True
    try:
        assert _bytes(Step(SUMS[name])) == found
    finally:
        goes_backwards.value = False


@pytest.mark.breadth
@pytest.mark.parametrize("program", [LAMB, NOVOGRAD, BATCHED], ids=lambda program: program.name)
def test_lanes_of_a_warp_exchange_numbers_as_they_should(program: Program) -> None:
    """Elsewhere one thread does what the lanes of its warp do."""
    _reset()
    expected = _bytes(Step(program, dtype="float64"))
    _reset()
    assert _bytes(Step(program, dtype="float64", has_lanes=True)) == expected


def test_more_variables_than_one_launch_takes() -> None:
    """What each becomes does not depend on the others."""
    most, launches = cuda.most_tensors(LAMB), len([*cuda.launches(LAMB, "float32", "float32")])
    _reset()
    shapes = [(1, 1, 5)] * (most + 1)
    found = Step(LAMB, shapes).launched()
    assert driver_calls().count("launch") == 2 * launches
    first = Step(LAMB, shapes[:3]).launched()
    assert [a.tobytes() for a in found[: len(first)]] == [a.tobytes() for a in first]
