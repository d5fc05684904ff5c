"""The CUDA text of each rule: run by g++ with an emulated launch it does what the CPU's kernel does, bit for bit."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from optim.native import build, compiling, cuda, nvrtc
from optim.native.generate import Program
from tests.helpers.emulated_gpu import KERNELS, PROGRAMS, SUMS, Case, Options, assert_same, needs_nvrtc


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


@pytest.mark.parametrize("name", KERNELS)
def test_the_argument_of_a_launch_fits(name: str) -> None:
    program = KERNELS[name]
    size, most = cuda.argument(program).itemsize, cuda.most_tensors(program)
    assert size <= cuda.MOST_BYTES < cuda.argument(program, most + 2).itemsize
    assert cuda.argument(program).isalignedstruct


def ptx_of(source: str) -> str:
    headers = {name: build.text(name) for name in build.GPU_SOURCES}
    return nvrtc.find().ptx(source, headers, cuda.OPTIONS)


def compiled(program: Program, dtype: str) -> str:
    return ptx_of(cuda.source(program, dtype))


def is_ieee(ptx: str, program: Program) -> bool:
    """Whether all operations round as IEEE 754 has it. Those of exp, log, tanh and pow are the compiler's own."""
    if any(f"{function}(" in program.code for function in ("Power", "std::exp", "std::log", "std::tanh")):
        return True
    operations = re.findall(r"\b((?:add|sub|mul|div|sqrt)(?:\.\w+)*\.f(?:32|64))\b", ptx)
    assert operations
    return not re.search(r"\bfma\.|\.approx", ptx) and all(".rn" in operation for operation in operations)


QUICK = [(SOME[0], "float32"), (SOME[1], "float64"), (SOME[2], "bfloat16"), (SOME[0], "float16")]
QUICK += [(max(SUMS, key=lambda name: len(SUMS[name].passes)), "float32")]
EVERY = [
    case if case in QUICK else pytest.param(*case, marks=pytest.mark.breadth)
    for case in itertools.product(KERNELS, cuda.TYPES)
]


@needs_nvrtc
@pytest.mark.parametrize(("name", "dtype"), EVERY)
@pytest.mark.quick(2)
def test_nvrtc_compiles_it_to_operations_that_round_as_ieee_says(name: str, dtype: str) -> None:
    program = KERNELS[name]
    ptx = compiled(program, dtype)
    entries = ptx.split(".entry ")[1:]
    assert {entry.partition("(")[0] for entry in entries} == cuda.names(program, dtype)
    assert ".target sm_70" in ptx
    assert ".local" not in ptx  # all arrays of a thread are registers
    for entry in entries:
        (size,) = re.findall(r"\.param \.align 8 \.b8 \w+\[(\d+)\]", entry)
        of_rows = entry.startswith(cuda.row_name(program, dtype))
        rows = cuda.argument(program, 1).itemsize + 24 + 8 * max(len(program.powers), 1)
        assert int(size) == (rows if of_rows else cuda.argument(program).itemsize)
    assert is_ieee(ptx, program)


@needs_nvrtc
def test_nvrtc_compiles_the_sums_of_squares() -> None:
    ptx = ptx_of(cuda.SQUARES)
    assert ".local" not in ptx
    assert not re.search(r"\bfma\.|\.approx", ptx)
    for dtype in cuda.TYPES:
        assert f".entry {cuda.squares_name(dtype)}(" in ptx
        assert f".entry {cuda.table_name(dtype)}(" in ptx
    for name in ("join", "scale"):
        assert f".entry dtopt_squares_{name}(" in ptx


@needs_nvrtc
def test_the_headers_of_a_wheel_are_of_a_release_that_drivers_know() -> None:
    """PTX of NVRTC 12.1 is version 8.1, which drivers from R530 on compile."""
    version = nvrtc.find().version
    ptx = compiled(PROGRAMS[SOME[0]], "float32")
    assert version >= (12, 1)
    assert (".version 8.1" in ptx) == (version == (12, 1))


@needs_nvrtc
def test_an_error_of_nvrtc_says_what_is_wrong() -> None:
    with pytest.raises(compiling.BuildError, match=r"NVRTC failed: rule\.cu\(1\): error: "):
        nvrtc.find().ptx("int f() { return unknown; }", {}, cuda.OPTIONS)
