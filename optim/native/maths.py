"""The kernel's updates on plain buffers, loaded without TensorFlow. PyTorch's steps on a CPU use them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from typing import Any

from optim.native import build, generate
from optim.native.compiling import BuildError
from optim.native.mode import mode
from optim.native.providing import Provider
from optim.rule import Rule

ITEMSIZES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}
"""Bytes of an element, for the dtypes that a kernel has."""
RUN = 1 << 15
"""The fewest elements that justify a thread."""
_ALIGNED = 1 << 8
"""The runs of threads begin at multiples of this many elements, so that no two threads write to one cache line."""

_provider = Provider("PyTorch")
_loaded: dict[str, Any] = {}
"""Libraries by the key of their recipe."""


class Update:
    """The update of one rule for variables of one dtype; see `DtoptUpdate` in `cpp/abi.h`."""

    def __init__(self, program: generate.Program, function: Any, dtype: str):
        self.slots = program.slots
        self._scalars, self._function = program.scalars, function
        self._itemsize = ITEMSIZES[dtype]
        self._wide = max(self._itemsize, ITEMSIZES["float32"])

    def __call__(
        self,
        variable: int,
        gradient: int,
        slots: Sequence[int],
        coefficients: Mapping[str, float],
        decay: float,
        size: int,
        threads: int,
    ) -> None:
        """Update `size` elements in place.

        Args:
          variable, gradient, slots: addresses. The gradient is in float32, or in float64 for variables in float64; the
            slots have the dtype of the variable, in the order of `self.slots`.
          coefficients: the rule's `c`.
          decay: the factor of the variable before the update.
        """
        scalars = (ctypes.c_double * len(self._scalars))(*(float(coefficients[name]) for name in self._scalars))
        count = max(1, min(threads, size // RUN))
        length = -(-size // count // _ALIGNED) * _ALIGNED

        def run(start: int) -> None:
            own = start * self._itemsize
            arrays = (ctypes.c_void_p * len(slots))(*(address + own for address in slots))
            left = min(length, size - start)
            self._function(
                variable + own, gradient + start * self._wide, arrays, scalars, 1.0, float("inf"), decay, left
            )

        if count == 1:
            run(0)
        else:
            list(_pool(threads).map(run, range(0, size, length)))


def update_for(rule: Rule, dtype: str) -> Update | None:
    """Return the kernel's update of an elementwise rule; None if there is none, or none yet."""
    if mode() == "off" or not rule.elementwise or dtype not in ITEMSIZES:
        return None
    made = _updates.get((rule, dtype))
    if made is None:
        program = generate.program_for(rule)
        library = None if program is None or program.has_sums else _library(program)
        if program is None or library is None:
            return None
        function = library[f"dtopt_{program.name}_{dtype}_{build.level()}"]
        function.restype = None
        pointer, real = ctypes.c_void_p, ctypes.c_double
        function.argtypes = [pointer, pointer, pointer, pointer, real, real, real, ctypes.c_int64]
        made = _updates[rule, dtype] = Update(program, function, dtype)
    return made


_updates: dict[tuple[Rule, str], Update] = {}


def _library(program: generate.Program) -> Any:
    """Return the loaded library that has a program; None if it cannot be used, or not yet."""
    everywhere = build.maths(everywhere=True)
    is_built_in = program.name in _built_in()
    recipe = build.rule(program) if not is_built_in else everywhere if build.find(everywhere) else build.maths()
    if recipe.key not in _loaded:
        try:
            (path,) = _provider.paths([recipe])
            _loaded[recipe.key] = ctypes.CDLL(str(path))
        except BuildError:
            return None
        except OSError as error:
            _provider.refuse([recipe], f"the kernel cannot be used: {error}")
            return None
    return _loaded[recipe.key]


@cache
def _built_in() -> frozenset[str]:
    return frozenset(program.name for program in generate.builtin_programs())


@lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="optim-step")
