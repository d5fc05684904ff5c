"""GPU kernels on the CPU: what g++ makes of their text with an emulated launch, next to the CPU's own kernel."""

from __future__ import annotations

import ctypes
import itertools
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from optim.executors import native
from optim.native import build, compiling, cuda, generate, gpu
from optim.native import library as native_library
from optim.native.compiling import Recipe
from optim.native.generate import Program, program_for
from optim.native.gpu import Gpus

SOURCES = Path(__file__).parent / "native"
KERNELS = {program.name: program for program in generate.builtin_programs()}
SQUARED = {name: program for name, program in KERNELS.items() if program.powers}
"""Programs that take rows, and the sums of powers of these."""
PROGRAMS = {n: p for n, p in KERNELS.items() if cuda.is_elementwise(p) and n not in SQUARED}
SUMS = {n: p for n, p in KERNELS.items() if n not in PROGRAMS and n not in SQUARED}
"""Programs that add up, or have slots of fewer dims."""
SIZES = (1, 7, 3, 512, 16_384, 40_001)
MISALIGNED = 3
"""The variable whose gradient begins in the middle of 16 bytes, as a slice may."""
STORED = {"float32": np.float32, "float64": np.float64, "bfloat16": np.uint16, "float16": np.float16}
"""How numpy holds a dtype."""


def needs_nvrtc(test: Any) -> Any:
    """Skip a test where NVRTC 12.1 cannot be installed."""
    import pytest  # tools/gpu_check.py runs without it

    is_published = (sys.platform, platform.machine()) == ("linux", "x86_64")
    return pytest.mark.skipif(not is_published, reason="NVRTC 12.1 is published for x86-64 Linux alone")(test)


@cache
def emulated_path(*programs: Program, has_lanes: bool = False) -> Path:
    """The library of kernels with an emulated launch, of these programs or all built-in elementwise ones, compiled once
    for all processes. `has_lanes`: lanes of a warp exchange numbers, as they do on a GPU."""
    chosen = programs or (*PROGRAMS.values(), *SQUARED.values())
    kernels = itertools.chain(*(cuda.kernels(program, dtype) for program in chosen for dtype in cuda.TYPES))
    text = "\n".join((cuda.SQUARES, cuda.HEADER, *(cuda.functions(program) for program in chosen), *kernels, ""))
    return _compiled_text(text, has_lanes)


@cache
def packed_path(*programs: Program) -> Path:
    """The library of the kernels for state in few bits, of these programs or all built-in ones. The threads of a block
    wait for each other, as they do on a GPU."""
    chosen = programs or tuple(filter(cuda.takes_packed, KERNELS.values()))
    code = (program.code for program in chosen)
    return _compiled_text("\n".join((cuda.PACKED_HEADER, *code, *map(cuda.packed_kernel, chosen), "")), has_lanes=True)


def _compiled_text(text: str, has_lanes: bool) -> Path:
    flags = ("-std=c++17", "-fPIC", "-w", "-O0", "-ffp-contract=off", f"-I{build.SOURCES}")
    if has_lanes:
        flags = ("-DDTOPT_HAS_LANES", f"-I{SOURCES}", *flags)
    lanes = (SOURCES / "lanes.h").read_text() if has_lanes else ""
    key = build.digest(text, lanes, *map(build.text, build.GPU_SOURCES), *flags[-5:-1])
    recipe = Recipe("emulated", key, ((text, ()),), flags)
    return compiling.compile_into(recipe, build.cached(recipe))


def modules(rule: Any) -> dict[Program, str]:
    """The programs of a rule, whatever the rank of a variable, each with its library."""
    programs = {program_for(rule, rank, is_sum=is_sum) for rank in range(5) for is_sum in (False, True)}
    return {program: _module(program) for program in programs if program is not None}


def add(gpus: Gpus, rule: Any) -> None:
    """Hand the ops all kernels of a rule. A rule with custom options is compiled, as a user's rule is."""
    for program, module in modules(rule).items():
        for dtype in cuda.TYPES:
            gpus.add(program, dtype, module)
        if cuda.takes_packed(program):
            gpus.add_packed(program, str(packed_path() if program.name in KERNELS else packed_path(program)))


def _module(program: Program) -> str:
    if program.name in PROGRAMS or program.name in SQUARED:
        return str(emulated_path())
    return str(emulated_path(*(SUMS.values() if program.name in SUMS else (program,))))


def all_kernels() -> Gpus:
    """The ops, with every kernel handed to them; a module's text is the path of the library that g++ made."""
    path = native_library.status().path
    assert path is not None
    gpus = Gpus(path)
    for program in (*PROGRAMS.values(), *SQUARED.values()):
        for dtype in cuda.TYPES:
            gpus.add(program, dtype, str(emulated_path()))
    gpus.add_squares(str(emulated_path()))
    return gpus


def pretend(gpus: Gpus, monkeypatch: Any) -> None:
    """Make CPU devices GPUs, for Python and for the ops, of which all kernels are there."""
    monkeypatch.setattr(native, "on_gpu", lambda tracked: True)
    monkeypatch.setattr(gpu, "is_on", lambda: True)
    monkeypatch.setattr(gpu, "_why_no_module", lambda source, add: "")
    gpus.open(str(compiled("fake_cuda")), is_test=True)


@cache
def emulated() -> Any:
    return ctypes.CDLL(str(emulated_path()))


@cache
def compiled(name: str) -> Path:
    """The library of a file of `native`: `fake_cuda`, a driver for tests, or `gpu_steps`, which calls it."""
    flags = ("-std=c++17", "-fPIC", "-O1", "-Wall", "-Werror", f"-I{build.SOURCES}")
    texts = [
        (SOURCES / f"{name}.cc").read_text(),
        *map(build.text, ("box.h", "driver.h", "exchange.h", "launch.h", "packed.h", "squares.h", "sums.h", "table.h")),
    ]
    recipe = Recipe(name, build.digest(*texts, *flags[:-1]), ((texts[0], ()),), flags, ("-ldl",))
    return compiling.compile_into(recipe, build.cached(recipe))


@cache
def library(name: str) -> Any:
    found = ctypes.CDLL(str(compiled(name)))
    for function in ("step", "whole_step", "squares", "scales", "fake_calls", "fake_wrong"):
        if hasattr(found, function):
            getattr(found, function).restype = ctypes.c_char_p
    return found


def driver_calls() -> list[str]:
    """What the tests' driver was asked to do. It was asked correctly."""
    assert library("fake_cuda").fake_wrong() == b""
    return str(library("fake_cuda").fake_calls().decode()).split("\n")[:-1]


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
        self,
        program: Program,
        dtype: str,
        of_gradient: str,
        options: Options,
        specials: Sequence[float] = (),
        sizes: Sequence[int] = SIZES,
    ):
        self.program, self.dtype, self.of_gradient, self.options = program, dtype, of_gradient, options
        self._rng = np.random.default_rng(3)
        self.scalars = self._rng.uniform(0.01, 0.9, max(len(program.scalars), 1))
        self.scales, self.decays = self._rng.uniform(0.5, 1.5, len(sizes)), self._rng.uniform(0.9, 1.0, len(sizes))
        self.limit, self.weights = 0.8, (0.875, 0.125)
        gradients = [self._values(n, of_gradient, specials=specials) for n in sizes]
        variables = [self._values(n, dtype) for n in sizes]
        slots = [[self._values(n, dtype, positive=True) for n in sizes] for _ in program.slots]
        averages = [self._values(n, dtype) for n in sizes] if options.average else []
        roundings = [np.zeros(n, STORED[options.rounding]) for n in sizes] if options.rounding else []
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
            update(pointer(variable), pointer(gradient), pointers, pointer(self.scalars), *numbers, size)
            if options.average:
                average(pointer(step.averages[i]), pointer(variable), *map(ctypes.c_double, self.weights), size)
            if options.overwrites:
                variable[:] = step.averages[i]
            if options.rounding:
                master = np.ascontiguousarray(wide(variable, self.dtype))
                cpu_function("narrow", options.rounding)(pointer(master), pointer(step.roundings[i]), size)
        return step

    def placed(self) -> Step:
        """A copy whose arrays begin at multiples of 16 bytes, but for one gradient."""
        return Step(
            [_placed(g, g.itemsize if i == MISALIGNED else 0) for i, g in enumerate(self.step.gradients)],
            [*map(_placed, self.step.variables)],
            [[*map(_placed, row)] for row in self.step.slots],
            [*map(_placed, self.step.averages)],
            [*map(_placed, self.step.roundings)],
        )

    def control(self) -> tuple[np.ndarray, np.ndarray]:
        """What would be in device memory, nothing if nothing is, and the scales, or their places there."""
        factor, skipped = self.options.factor, float(self.options.skipped)
        if factor is None:
            return np.array([skipped] if skipped else []), self.scales
        return np.array([skipped, *(self.scales * factor)]), np.arange(1.0, 1 + len(self.scales))

    def launched(self) -> Step:
        """What the emulated launch makes of it."""
        step = self.placed()
        sizes = [variable.size for variable in step.variables]
        blocks = [-(-size // cuda.BLOCK) for size in sizes]
        control, scales = self.control()
        all_ = np.zeros(1, cuda.argument(self.program))
        count = len(sizes)
        for field, value in {
            "count": count,
            "rounding_type": cuda.ROUNDING_TYPES[self.options.rounding],
            "overwrites": self.options.overwrites,
            "control": control.ctypes.data if control.size else 0,
            "are_places": scales is not self.scales,
            "limit": self.limit,
            "average_weight": self.weights[0],
            "value_weight": self.weights[1],
            "scalars": self.scalars,
        }.items():
            all_[field][0] = value
        all_["first"][0, : count + 1] = np.cumsum([0, *blocks])
        for field, values in {"size": sizes, "scale": scales, "decay": self.decays}.items():
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
        kernel(pointer(all_), ctypes.c_uint(sum(blocks)))
        return step


def pointer(array: np.ndarray) -> ctypes.c_void_p:
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
