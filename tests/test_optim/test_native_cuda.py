"""The CUDA text of each rule: run by g++ with an emulated launch it does what the CPU's kernel does, bit for bit."""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

from optim.native import build, compiling, cuda, generate, nvrtc
from optim.native.compiling import Recipe
from optim.native.generate import Program

PROGRAMS = {program.name: program for program in generate.builtin_programs() if cuda.is_elementwise(program)}
SIZES = (1, 7, 3, 512, 16_384, 40_001)
MISALIGNED = 3
"""The variable whose gradient begins in the middle of 16 bytes, as a slice may."""
STORED = {"float32": np.float32, "float64": np.float64, "bfloat16": np.uint16, "float16": np.float16}
"""How numpy holds a dtype."""


@cache
def emulated() -> Any:
    """All kernels with an emulated launch, compiled once for all processes."""
    kernels = "\n".join(itertools.chain(*(cuda.kernels(p, dtype) for p in PROGRAMS.values() for dtype in cuda.TYPES)))
    text = "\n".join(('#include "gpu.h"', *(program.code for program in PROGRAMS.values()), kernels, ""))
    flags = ("-std=c++17", "-fPIC", "-w", "-O0", "-ffp-contract=off", f"-I{build.SOURCES}")
    key = build.digest(text, *map(build.text, build.GPU_SOURCES), *flags[:-1])
    recipe = Recipe("emulated", key, ((text, ()),), flags)
    return ctypes.CDLL(str(compiling.compile_into(recipe, build.cached(recipe))))


@cache
def on_cpu() -> Any:
    """The CPU's kernel."""
    path = build.find(build.maths(everywhere=True)) or compiling.compile_into(
        build.maths(), build.cached(build.maths())
    )
    return ctypes.CDLL(str(path))


def cpu_function(name: str, dtype: str) -> Any:
    return on_cpu()[f"dtopt_{name}_{dtype}_{build.level()}"]


def wide(values: np.ndarray, dtype: str) -> np.ndarray:
    """In the dtype of the arithmetic."""
    if dtype == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float64 if dtype == "float64" else np.float32)


def stored(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":  # cut off, as any bits will do
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(STORED[dtype])


@dataclass
class Options:
    """What a launch does besides the rule."""

    average: bool = False
    overwrites: bool = False
    rounding: str = ""
    factor: float | None = None
    skipped: bool = False


@dataclass
class Step:
    """The arrays of one launch: by variable, slots by slot and variable."""

    gradients: list[np.ndarray]
    variables: list[np.ndarray]
    slots: list[list[np.ndarray]]
    averages: list[np.ndarray]
    roundings: list[np.ndarray]

    def arrays(self) -> Iterator[np.ndarray]:
        yield from (*self.variables, *itertools.chain(*self.slots), *self.averages, *self.roundings)

    def copy(self) -> Step:
        copies = ([array.copy() for array in arrays] for arrays in (self.gradients, self.variables))
        rest = ([array.copy() for array in arrays] for arrays in (self.averages, self.roundings))
        return Step(*copies, [[array.copy() for array in row] for row in self.slots], *rest)  # type: ignore[misc]


class Case:
    """One rule, dtype and set of options, with values of a seed."""

    def __init__(
        self, program: Program, dtype: str, of_gradient: str, options: Options, specials: Sequence[float] = ()
    ):
        self.program, self.dtype, self.of_gradient, self.options = program, dtype, of_gradient, options
        self._rng = np.random.default_rng(3)
        self.scalars = self._rng.uniform(0.01, 0.9, max(len(program.scalars), 1))
        self.scales, self.decays = self._rng.uniform(0.5, 1.5, len(SIZES)), self._rng.uniform(0.9, 1.0, len(SIZES))
        self.limit, self.weights = 0.8, (0.875, 0.125)
        gradients = [self._values(n, of_gradient, specials=specials) for n in SIZES]
        variables = [self._values(n, dtype) for n in SIZES]
        slots = [[self._values(n, dtype, positive=True) for n in SIZES] for _ in program.slots]
        averages = [self._values(n, dtype) for n in SIZES] if options.average else []
        roundings = [np.zeros(n, STORED[options.rounding]) for n in SIZES] if options.rounding else []
        self.step = Step(gradients, variables, slots, averages, roundings)

    def _values(self, size: int, dtype: str, positive: bool = False, specials: Sequence[float] = ()) -> np.ndarray:
        values = self._rng.standard_normal(size)
        values[: len(specials)] = specials[:size]
        return stored(np.abs(values) if positive else values, dtype)

    def expected(self) -> Step:
        """What the CPU's kernel makes of it."""
        step, options = self.step.copy(), self.options
        if options.skipped:
            return step
        update, average = cpu_function(self.program.name, self.dtype), cpu_function("average", self.dtype)
        for i, variable in enumerate(step.variables):
            gradient = np.ascontiguousarray(wide(step.gradients[i], self.of_gradient))
            pointers = (ctypes.c_void_p * max(len(step.slots), 1))(*(row[i].ctypes.data for row in step.slots))
            scale = self.scales[i] * (1.0 if options.factor is None else options.factor)
            numbers = (ctypes.c_double(scale), ctypes.c_double(self.limit), ctypes.c_double(self.decays[i]))
            size = ctypes.c_int64(variable.size)
            update(_pointer(variable), _pointer(gradient), pointers, _pointer(self.scalars), *numbers, size)
            if options.average:
                average(_pointer(step.averages[i]), _pointer(variable), *map(ctypes.c_double, self.weights), size)
            if options.overwrites:
                variable[:] = step.averages[i]
            if options.rounding:
                master = np.ascontiguousarray(wide(variable, self.dtype))
                cpu_function("narrow", options.rounding)(_pointer(master), _pointer(step.roundings[i]), size)
        return step

    def launched(self) -> Step:
        """What the emulated launch makes of it."""
        step = Step(
            [_placed(g, g.itemsize if i == MISALIGNED else 0) for i, g in enumerate(self.step.gradients)],
            [*map(_placed, self.step.variables)],
            [[*map(_placed, row)] for row in self.step.slots],
            [*map(_placed, self.step.averages)],
            [*map(_placed, self.step.roundings)],
        )
        blocks = [-(-size // cuda.BLOCK) for size in SIZES]
        control = np.array([1.0 if self.options.factor is None else self.options.factor, float(self.options.skipped)])
        all_ = np.zeros(1, cuda.argument(self.program))
        count = len(SIZES)
        for field, value in {
            "count": count,
            "rounding_type": cuda.ROUNDING_TYPES[self.options.rounding],
            "overwrites": self.options.overwrites,
            "control": 0 if self.options.factor is None and not self.options.skipped else control.ctypes.data,
            "limit": self.limit,
            "average_weight": self.weights[0],
            "value_weight": self.weights[1],
            "scalars": self.scalars,
        }.items():
            all_[field][0] = value
        all_["first"][0, : count + 1] = np.cumsum([0, *blocks])
        for field, values in {"size": SIZES, "scale": self.scales, "decay": self.decays}.items():
            all_[field][0, :count] = values
        for field, arrays in {
            "gradient": step.gradients,
            "variable": step.variables,
            "average": step.averages,
            "rounding": step.roundings,
        }.items():
            all_[field][0, : len(arrays)] = [array.ctypes.data for array in arrays]
        for k, row in enumerate(step.slots):
            all_["slots"][0, k, :count] = [array.ctypes.data for array in row]
        kernel = emulated()[f"{cuda.name(self.program, self.dtype, self.of_gradient)}_emulated"]
        kernel(_pointer(all_), ctypes.c_uint(sum(blocks)))
        return step


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _placed(values: np.ndarray, offset: int = 0) -> np.ndarray:
    """A copy that begins so many bytes after a multiple of 16."""
    raw = np.empty(values.nbytes + 48, np.uint8)
    start = -raw.ctypes.data % 16 + offset
    placed = raw[start : start + values.nbytes].view(values.dtype)
    placed[:] = values
    return placed


def assert_same(case: Case) -> None:
    """Bit for bit; of a NaN only that it is one."""
    before, expected, launched = (list(step.arrays()) for step in (case.step, case.expected(), case.launched()))
    for ours, theirs in zip(launched, expected, strict=True):
        kind = case.dtype if ours.dtype == STORED[case.dtype] else case.options.rounding
        is_nan = np.isnan(wide(theirs, kind))
        assert np.array_equal(np.isnan(wide(ours, kind)), is_nan)
        assert ours[~is_nan].tobytes() == theirs[~is_nan].tobytes()
    moved = any(a.tobytes() != b.tobytes() for a, b in zip(before, launched, strict=True))
    assert moved != case.options.skipped


@pytest.mark.parametrize("dtype", cuda.TYPES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_launch_does_what_the_cpu_does(name: str, dtype: str) -> None:
    assert_same(Case(PROGRAMS[name], dtype, dtype, Options()))


SOME = [next(name for name in PROGRAMS if name.startswith(start)) for start in ("AdamRule", "SGDRule", "LionRule")]


@pytest.mark.parametrize("dtype", cuda.TYPES)
@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize(
    "options",
    [
        Options(average=True),
        Options(average=True, overwrites=True),
        Options(factor=0.25),
        Options(factor=1.0, skipped=True),
    ],
    ids=["average", "overwritten", "factor", "skipped"],
)
def test_options_do_what_the_cpu_does(name: str, dtype: str, options: Options) -> None:
    assert_same(Case(PROGRAMS[name], dtype, dtype, options))


@pytest.mark.parametrize("rounding", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", SOME)
def test_master_copies_are_rounded_as_on_the_cpu(name: str, rounding: str) -> None:
    assert_same(Case(PROGRAMS[name], "float32", rounding, Options(rounding=rounding, average=True)))


@pytest.mark.parametrize("dtype", cuda.TYPES)
@pytest.mark.parametrize("name", SOME)
def test_nan_and_infinity_spread_as_on_the_cpu(name: str, dtype: str) -> None:
    assert_same(Case(PROGRAMS[name], dtype, dtype, Options(), specials=(np.nan, np.inf, -np.inf)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_argument_of_a_launch_fits(name: str) -> None:
    program = PROGRAMS[name]
    size, most = cuda.argument(program).itemsize, cuda.most_tensors(program)
    assert size <= cuda.MOST_BYTES < cuda.argument(program, most + 2).itemsize
    assert cuda.argument(program).isalignedstruct


def compiled(program: Program, dtype: str) -> str:
    headers = {name: build.text(name) for name in build.GPU_SOURCES}
    return nvrtc.find().ptx(cuda.source(program, dtype), headers, cuda.OPTIONS)


QUICK = [(SOME[0], "float32"), (SOME[1], "float64"), (SOME[2], "bfloat16"), (SOME[0], "float16")]
EVERY = [
    case if case in QUICK else pytest.param(*case, marks=pytest.mark.breadth)
    for case in itertools.product(PROGRAMS, cuda.TYPES)
]


@pytest.mark.parametrize(("name", "dtype"), EVERY)
def test_nvrtc_compiles_it_to_operations_that_round_as_ieee_says(name: str, dtype: str) -> None:
    program = PROGRAMS[name]
    ptx = compiled(program, dtype)
    entries = ptx.split(".entry ")[1:]
    assert [entry.partition("(")[0] for entry in entries] == [
        cuda.name(program, dtype, of_gradient) for of_gradient in cuda.given(dtype)
    ]
    assert ".target sm_70" in ptx
    assert ".local" not in ptx  # all arrays of a thread are registers
    for entry in entries:
        (size,) = re.findall(r"\.param \.align 8 \.b8 \w+\[(\d+)\]", entry)
        assert int(size) == cuda.argument(program).itemsize
    if any(f"{function}(" in program.code for function in ("Power", "std::exp", "std::log", "std::tanh")):
        return
    assert not re.search(r"\bfma\.|\.approx", ptx)
    operations = re.findall(r"\b((?:add|sub|mul|div|sqrt)(?:\.\w+)*\.f(?:32|64))\b", ptx)
    assert operations
    assert not [operation for operation in operations if ".rn" not in operation]


def test_the_headers_of_a_wheel_are_of_a_release_that_drivers_know() -> None:
    """PTX of NVRTC 12.1 is version 8.1, which drivers from R530 on compile."""
    version = nvrtc.find().version
    ptx = compiled(PROGRAMS[SOME[0]], "float32")
    assert version >= (12, 1)
    assert (".version 8.1" in ptx) == (version == (12, 1))


def test_an_error_of_nvrtc_says_what_is_wrong() -> None:
    with pytest.raises(compiling.BuildError, match=r"NVRTC failed: rule\.cu\(1\): error: "):
        nvrtc.find().ptx("int f() { return unknown; }", {}, cuda.OPTIONS)
