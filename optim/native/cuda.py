"""CUDA from traces: the kernel of a rule. One launch updates all variables of a device with one dtype.

Its statements are those of `generate`; `cpp/gpu.h` gives them another meaning. A kernel's argument is the struct
`Launch` of that file; `argument` repeats its layout. For state in few bits an elementwise rule has one more kernel
(`cpp/packed_gpu.h`). A rule that adds up, or that has slots of fewer dims than its
variable, has several kernels (`cpp/sums_gpu.h`): `launches` lists them in the order in which a step launches them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from optim.native.generate import SHAPES, STORES, Program
from optim.native.generate import SUMS as SUMS_OF
from optim.native.graph import FULL

TYPES = {"float32": "float", "float64": "double", "bfloat16": "BFloat16", "float16": "Half"}
"""The types of `cpp/arithmetic.h`, by dtype."""
GRADIENT_DTYPES = {
    "float32": ("float32", "bfloat16", "float16"),
    "bfloat16": ("bfloat16", "float32"),
    "float16": ("float16", "float32"),
}
"""Dtypes of gradients, by the dtype of their variables, if they may differ: those of a master copy, and means."""
MOST_BYTES = 32_764
"""Bytes of a kernel's argument, from CUDA 12.1 and compute capability 7.0 on."""
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
"""Options of NVRTC, for any GPU: a result matches the CPU's kernel, bit for bit, except for exp, log, tanh and pow."""
ROUNDING_TYPES = {"": 0, "bfloat16": 1, "float16": 2}
"""`RoundingType` of gpu.h, by the dtype of variables that have a master copy."""


@dataclass(frozen=True)
class Shape:
    """How to launch a kernel: threads of a block, and blocks that one multiprocessor runs at the same time."""

    threads: int
    at_once: int


WIDE = Shape(512, 2)
"""At most 64 registers a thread."""
OF_FLOAT64 = Shape(256, 3)
OF_MANY = Shape(256, 1)
"""For rules whose threads need more registers."""
MANY_SLOTS = 4
"""Slots of a variable from which a thread needs more than 64 registers."""


def shape(program: Program, dtype: str) -> Shape:
    """Return how to launch the kernel of a rule for variables of a dtype."""
    if len(program.slots) >= MANY_SLOTS:
        return OF_MANY
    return OF_FLOAT64 if dtype == "float64" else WIDE


def takes_dense(program: Program) -> bool:
    """Whether a kernel takes gradients that are not rows; these have no sums of powers."""
    return not program.powers


def is_elementwise(program: Program) -> bool:
    """Whether a rule's step is one launch: it adds nothing up, and each slot is shaped like its variable."""
    return not program.has_sums and not program.stored and not any(program.shapes[1:])


def gradient_dtypes(dtype: str) -> tuple[str, ...]:
    """Return the dtypes that the gradients of variables of a dtype may have."""
    return GRADIENT_DTYPES.get(dtype, (dtype,))


def name(program: Program, dtype: str, of_gradient: str) -> str:
    """Return the name of a kernel in its module."""
    return f"dtopt_{program.name}_{dtype}_{of_gradient}"


def row_name(program: Program, dtype: str) -> str:
    """Return the kernel of that module that updates some rows of a variable."""
    return f"dtopt_{program.name}_{dtype}_rows"


def summed(dtype: str) -> str:
    """Return the dtype in which gradients of rows of a dtype are added up."""
    return "float64" if dtype == "float64" else "float32"


def names(program: Program, dtype: str) -> set[str]:
    """Return the kernels of the module of a rule for variables of a dtype."""
    every = {one.name for of_gradient in gradient_dtypes(dtype) for one in launches(program, dtype, of_gradient)}
    dense = gradient_dtypes(dtype) if takes_dense(program) else ()
    return every or {*(name(program, dtype, of_gradient) for of_gradient in dense), row_name(program, dtype)}


def packed_name(program: Program) -> str:
    """Return the kernel of a rule for slots or variables in few bits, of any dtype that is computed in float32."""
    return f"dtopt_{program.name}_packed"


def takes_packed(program: Program) -> bool:
    """Whether a rule has that kernel."""
    return is_elementwise(program) and takes_dense(program)


def most_tensors(program: Program, is_packed: bool = False) -> int:
    """Return how many variables one launch takes, by the size of its argument. `is_packed`: that of `packed_name`."""
    layout = packed_argument if is_packed else argument
    one, two = layout(program, 0), layout(program, 2)  # two, because every other begins at a multiple of 8
    return 2 * (MOST_BYTES - one.itemsize) // (two.itemsize - one.itemsize)


def argument(program: Program, tensors: int | None = None) -> np.dtype:
    """Return the layout of `Launch` in gpu.h, for `tensors` variables, or as many as fit."""
    return np.dtype(_fields(program, most_tensors(program) if tensors is None else tensors), align=True)


def packed_argument(program: Program, tensors: int | None = None) -> np.dtype:
    """Return the layout of `PackedLaunch` in packed_gpu.h, as `argument` does that of `Launch`."""
    count, slots = most_tensors(program, is_packed=True) if tensors is None else tensors, len(program.slots)
    more: list[tuple[str, str, int | tuple[int, ...]]] = [
        *(("storage", "i4", (slots + 1,)), ("given", "i4", (count,)), ("book", "u8", (max(slots, 1),))),
        *(("scales", "u8", (max(slots, 1), count)), ("key", "u4", (slots + 1, count))),
    ]
    return np.dtype([*_fields(program, count), *more], align=True)


def _fields(program: Program, count: int) -> list[tuple[str, str, int | tuple[int, ...]]]:
    scalars, full, small = len(program.scalars), len(program.slots), 0
    if not is_elementwise(program):
        full, small = program.shapes[0], sum(program.shapes[1:])
    fields: list[tuple[str, str, int | tuple[int, ...]]] = [
        *((field, "i4", 1) for field in ("count", "rounding_type", "overwrites", "are_places")),
        ("control", "u8", 1),
        *((field, "f8", 1) for field in ("limit", "average_weight", "value_weight")),
        ("scalars", "f8", (max(scalars, 1),)),
        ("first", "i4", (count + 1,)),
        ("size", "i8", (count,)),
        *((field, "u8", (count,)) for field in ("gradient", "variable", "average", "rounding")),
        ("slots", "u8", (max(full, 1), count)),
        *((field, "f8", (count,)) for field in ("scale", "decay")),
    ]
    if not is_elementwise(program):
        fields += ((field, "i8", (count,)) for field in ("matrices", "rows", "columns"))
        fields += [("work", "u8", (count,)), ("small", "u8", (max(small, 1), count))]
    return fields


def source(program: Program, dtype: str) -> str:
    """Return the text of the module of a rule for variables of a dtype, with a kernel for each dtype of gradients."""
    return "\n".join((HEADER, "", functions(program), *kernels(program, dtype))) + "\n"


def packed_source(program: Program) -> str:
    """Return the text of the module of a rule for slots or variables in few bits."""
    return "\n".join((PACKED_HEADER, "", program.code, packed_kernel(program))) + "\n"


HEADER = '#include "sums_gpu.h"'
PACKED_HEADER = '#include "packed_gpu.h"'
"""Files that the text of a module includes."""
PACKED_THREADS = 256
"""Threads of a block: `kPackedThreads` of packed_gpu.h."""


SQUARES = '#include "squares_gpu.h"\n#include "table_gpu.h"\n'
"""The text of the module that adds up squares, and gradients of rows, of all dtypes."""
SQUARES_THREADS = 256
"""Threads of a block: `kSquaresThreads` of squares_gpu.h."""


def table_name(dtype: str) -> str:
    """Return the kernel of that module that adds up gradients of rows of a dtype."""
    return f"dtopt_table_{dtype}"


def squares_name(dtype: str) -> str:
    """Return the kernel of that module for tensors of a dtype."""
    return f"dtopt_squares_{dtype}"


@dataclass(frozen=True)
class Launch:
    """One launch of a step of a rule that adds up, or has slots of fewer dims.

    Attributes:
      visit: what its threads are, numbered as the enum `Visit` of sums.h.
      function: the C++ function that its kernel calls.
    """

    name: str
    visit: int
    number: int
    """Number of its pass, -1 if it has no pass."""
    shape: Shape
    function: str


SUMS = Shape(256, 1)
"""Threads of a block for all launches but the one that updates: `kSumsThreads` in sums.h."""
UPDATE, RUNS, COLUMN_PARTS, JOIN_RUNS, JOIN_PARTS, STORE = range(6)
"""The enum `Visit`; the last one and those after it store rows, columns and single numbers."""


def passes(program: Program) -> list[tuple[int, ...]]:
    """Return the `numbers` of each function that adds up."""
    size = 1 + len(SUMS_OF)
    return [program.passes[at : at + size] for at in range(0, len(program.passes), size)]


def is_by_rows(program: Program) -> bool:
    """Whether rows and columns of a variable matter."""
    return any(over or any(rest) for over, _, *rest in passes(program)) or any(program.shapes[1:3])


def launches(program: Program, dtype: str, of_gradient: str) -> Iterator[Launch]:
    """Return the launches of a step, in order; empty if the rule is elementwise."""
    if is_elementwise(program):
        return
    plan, types, mine = (
        f"{program.name}_plan",
        f"{TYPES[dtype]}, {TYPES[of_gradient]}",
        name(program, dtype, of_gradient),
    )
    shared = f"dtopt_{program.name}_{dtype}"  # kernels that use no gradient
    for k, (over, ones, matrices, rows, columns) in enumerate(passes(program)):
        rule = f"{plan}, {program.name}_sums{k}_rule, {k}"
        is_full = over == SHAPES.index(FULL)
        if not is_full:
            yield Launch(f"{shared}_small{k}", RUNS, k, SUMS, f"AddSmall<{rule}, {TYPES[dtype]}>")
        elif ones or matrices or rows:
            yield Launch(f"{mine}_runs{k}", RUNS, k, SUMS, f"AddRuns<{rule}, {types}>")
        if is_full and columns:
            yield Launch(f"{mine}_columns{k}", COLUMN_PARTS, k, SUMS, f"AddColumns<{rule}, {types}>")
        joined = f"{plan}, {k}, {TYPES[dtype]}"
        if ones or matrices or is_full:
            yield Launch(f"{shared}_join_runs{k}", JOIN_RUNS, k, SUMS, f"JoinRuns<{joined}>")
        if ones or matrices:
            yield Launch(f"{shared}_join_parts{k}", JOIN_PARTS, k, SUMS, f"JoinParts<{joined}>")
    how = shape(program, dtype)
    yield Launch(mine, UPDATE, -1, how, f"UpdateWhole<{plan}, {program.name}_rule, {types}, {how.threads}>")
    for end in program.stored:
        at = SHAPES.index(STORES[end])
        rule = f"{plan}, {program.name}_{end}_rule, {at}, {TYPES[dtype]}"
        yield Launch(f"{shared}_store_{end}", STORE + at - 1, -1, SUMS, f"StoreSmall<{rule}>")


def functions(program: Program) -> str:
    """Return the text of a rule's functions, with the constants for its kernels."""
    if is_elementwise(program):
        return program.code
    all_passes = passes(program)
    numbers = (*program.shapes, len(program.scalars), most_tensors(program), len(all_passes), int(is_by_rows(program)))
    texts = [f"{{{', '.join(map(str, counts))}}}" for counts in all_passes] or ["{}"]
    return f"{program.code}DTOPT_PLAN({', '.join((program.name, *map(str, numbers), *texts))})\n"


def kernels(program: Program, dtype: str) -> Iterator[str]:
    """Return the lines that make kernels of a rule's functions; the functions come before them."""
    return _one_each(program, dtype) if is_elementwise(program) else _several(program, dtype)


def packed_kernel(program: Program) -> str:
    """Return the line that makes the kernel of `packed_name`; the functions come before it."""
    counts = (len(program.slots), len(program.scalars), most_tensors(program, is_packed=True))
    return f"DTOPT_PACKED_KERNEL({', '.join(map(str, (packed_name(program), program.name, *counts)))})"


def _several(program: Program, dtype: str) -> Iterator[str]:
    every = {one.name: one for of_gradient in gradient_dtypes(dtype) for one in launches(program, dtype, of_gradient)}
    for one in every.values():
        words = (one.name, program.name, TYPES[dtype], one.shape.threads, one.shape.at_once, one.function)
        yield f"DTOPT_WHOLE_KERNEL({', '.join(map(str, words))})"


def _one_each(program: Program, dtype: str) -> Iterator[str]:
    how, most = shape(program, dtype), most_tensors(program)
    for of_gradient in gradient_dtypes(dtype) if takes_dense(program) else ():
        words = (
            name(program, dtype, of_gradient),
            program.name,
            *(TYPES[dtype], TYPES[of_gradient]),
            *(how.threads, how.at_once, len(program.slots), len(program.scalars), most),
        )
        yield f"DTOPT_KERNEL({', '.join(map(str, words))})"
    of_rows = (row_name(program, dtype), program.name, TYPES[dtype], how.threads, how.at_once)
    counts = (len(program.slots), len(program.scalars), len(program.powers))
    yield f"DTOPT_ROW_KERNEL({', '.join(map(str, (*of_rows, *counts)))})"


def sources(programs: Iterable[Program]) -> Iterator[str]:
    """Yield the texts of all modules: of every rule, in every dtype and in few bits, and of the squares."""
    for program in programs:
        yield from (source(program, dtype) for dtype in TYPES)
        if takes_packed(program):
            yield packed_source(program)
    yield SQUARES
