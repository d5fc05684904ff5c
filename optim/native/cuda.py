"""CUDA from traces: the kernel of a rule, one launch of which updates all variables of a device with one dtype.

Its statements are those that `generate` writes; `cpp/gpu.h` gives them another meaning. A kernel's argument is the
struct `Launch` of that file, whose layout `argument` repeats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from optim.native.generate import Program

TYPES = {"float32": "float", "float64": "double", "bfloat16": "BFloat16", "float16": "Half"}
"""The types of `cpp/arithmetic.h`, by dtype."""
GIVEN = {"float32": ("float32", "bfloat16", "float16")}
"""Dtypes of gradients, by that of their variables, if they may have another one: that of a master copy."""
MOST_BYTES = 32_764
"""Of a kernel's argument, from CUDA 12.1 and compute capability 7.0 on."""
BLOCK = 16_384
"""Elements of a variable that one block of threads updates: `kBlock` in gpu.h."""
OPTIONS = (
    "--fmad=false",  # no operation is contracted, as on CPUs
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--std=c++17",
    "-default-device",
)
"""Of NVRTC, for any GPU: a result is that of the CPU's kernel, bit for bit, but for exp, log, tanh and pow."""
ROUNDING_TYPES = {"": 0, "bfloat16": 1, "float16": 2}
"""`RoundingType` of gpu.h, by the dtype of variables that have a master copy."""


@dataclass(frozen=True)
class Shape:
    """How a kernel is launched: threads of a block, and blocks that one multiprocessor holds at once."""

    threads: int
    at_once: int


WIDE = Shape(512, 2)
"""At most 64 registers a thread."""
OF_FLOAT64 = Shape(256, 3)
OF_MANY = Shape(256, 1)
"""For rules of which a thread needs more registers."""
MANY_SLOTS = 4
"""Slots of a variable from which on a thread needs more than 64 registers."""


def shape(program: Program, dtype: str) -> Shape:
    """How the kernel of a rule is launched for variables of a dtype."""
    if len(program.slots) >= MANY_SLOTS:
        return OF_MANY
    return OF_FLOAT64 if dtype == "float64" else WIDE


def is_elementwise(program: Program) -> bool:
    """Whether a rule's kernel is written here: it adds nothing up, and each slot is shaped like its variable."""
    return not program.has_sums and not program.stored and not program.powers and not any(program.shapes[1:])


def has_kernel(program: Program) -> bool:
    """Whether there is a kernel of a rule."""
    return is_elementwise(program)


def given(dtype: str) -> tuple[str, ...]:
    """Dtypes that the gradients of variables of a dtype may have."""
    return GIVEN.get(dtype, (dtype,))


def name(program: Program, dtype: str, of_gradient: str) -> str:
    """The name of a kernel in its module."""
    return f"dtopt_{program.name}_{dtype}_{of_gradient}"


def most_tensors(program: Program) -> int:
    """How many variables one launch takes, by the size of its argument."""
    slots = max(len(program.slots), 1)
    return (MOST_BYTES - argument(program, 0).itemsize) // (4 + 8 * (4 + slots) + 8 + 16)


def argument(program: Program, tensors: int | None = None) -> np.dtype:
    """The layout of `Launch` in gpu.h, for so many variables, or as many as fit."""
    count = most_tensors(program) if tensors is None else tensors
    slots, scalars = max(len(program.slots), 1), max(len(program.scalars), 1)
    fields: list[tuple[str, str, int | tuple[int, ...]]] = [
        *((field, "i4", 1) for field in ("count", "rounding_type", "overwrites", "unused")),
        ("control", "u8", 1),
        *((field, "f8", 1) for field in ("limit", "average_weight", "value_weight")),
        ("scalars", "f8", (scalars,)),
        ("first", "i4", (count + 1,)),
        ("size", "i8", (count,)),
        *((field, "u8", (count,)) for field in ("gradient", "variable", "average", "rounding")),
        ("slots", "u8", (slots, count)),
        *((field, "f8", (count,)) for field in ("scale", "decay")),
    ]
    return np.dtype(fields, align=True)


def source(program: Program, dtype: str) -> str:
    """The text of the module of a rule for variables of a dtype, with a kernel for each dtype of gradients."""
    return "\n".join(('#include "gpu.h"', "", program.code, *kernels(program, dtype))) + "\n"


SQUARES = '#include "squares_gpu.h"\n'
"""The text of the module that adds up squares, of all dtypes."""
SQUARES_THREADS = 256
"""Of a block: `kSquaresThreads` of squares_gpu.h."""


def squares_name(dtype: str) -> str:
    """The kernel of that module for tensors of a dtype."""
    return f"dtopt_squares_{dtype}"


def kernels(program: Program, dtype: str) -> Iterator[str]:
    """The lines that make kernels of a rule's function, which stands before them."""
    how, most = shape(program, dtype), most_tensors(program)
    for of_gradient in given(dtype):
        words = (
            name(program, dtype, of_gradient),
            program.name,
            *(TYPES[dtype], TYPES[of_gradient]),
            *(how.threads, how.at_once, len(program.slots), len(program.scalars), most),
        )
        yield f"DTOPT_KERNEL({', '.join(map(str, words))})"


def sources(programs: Iterable[Program]) -> Iterator[str]:
    """Yield the texts of all modules: of every rule that has a kernel here, in every dtype, and of the squares."""
    for program in programs:
        if has_kernel(program):
            yield from (source(program, dtype) for dtype in TYPES)
    yield SQUARES
