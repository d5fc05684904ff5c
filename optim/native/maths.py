"""The kernel's updates on plain buffers, loaded without TensorFlow. PyTorch's steps on a CPU use them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from optim.bits import codes
from optim.native import build, generate
from optim.native.compiling import BuildError, Recipe
from optim.native.mode import mode
from optim.native.providing import Provider
from optim.rule import Rule

ITEMSIZES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}
"""Bytes of an element, for the dtypes that a kernel has."""
RUN = 1 << 15
"""The fewest elements that justify a thread."""
AS_COMPUTED, CODES, BFLOAT16, RANDOM_BFLOAT16, FLOAT16 = range(5)
"""How an array is stored, numbered as `DtoptStorage` in `cpp/abi.h`."""

MOST_SLOTS = 16
"""Slots of a variable, as `ItemStep` in `cpp/basics.cc` has room for."""

_provider = Provider("PyTorch")
_loaded: dict[str, Any] = {}
"""Libraries by the key of their recipe."""


class _Book(ctypes.Structure):
    _fields_ = (
        ("values", ctypes.c_float * 256),
        ("steps", ctypes.c_uint32 * (2 * codes.STEPS)),
        ("flip", ctypes.c_uint8),
    )


class _Stored(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("storage", "element")),
        *((name, ctypes.c_void_p) for name in ("book", "scales")),
        ("key", ctypes.c_int64),
    )


class _Item(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("update", "variable", "gradient", "slots", "scalars", "stored")),
        ("decay", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("size", "slot_count", "element", "wide")),
    )


@cache
def _book(is_signed: bool) -> _Book:
    """Return a code book in the form of `DtoptBook` in `cpp/abi.h`."""
    flip = 0x80 if is_signed else 0
    values = codes.code_book(is_signed)[np.arange(256) ^ flip]
    return _Book(
        (ctypes.c_float * 256)(*values.tolist()), (ctypes.c_uint32 * (2 * codes.STEPS))(*codes.steps(is_signed)), flip
    )


@dataclass(frozen=True)
class Stored:
    """How an array of a step in float32 is stored.

    Attributes:
      storage: one of the numbers above.
      element: bytes of an element.
      scales: the address of the scales of codes.
      is_signed: whether codes have a sign.
      key: of the noise of `RANDOM_BFLOAT16`.
    """

    storage: int
    element: int
    scales: int = 0
    is_signed: bool = False
    key: int = 0

    def structure(self) -> _Stored:
        book = ctypes.addressof(_book(self.is_signed)) if self.storage == CODES else 0
        return _Stored(self.storage, self.element, book, self.scales, self.key)


class Update:
    """The update of one rule for variables of one dtype; see `DtoptUpdate` in `cpp/abi.h`."""

    def __init__(self, program: generate.Program, function: Any, dtype: str):
        self.slots, self.scalars = program.slots, program.scalars
        self.address = ctypes.cast(function, ctypes.c_void_p).value
        self.element = ITEMSIZES[dtype]
        self.wide = max(self.element, ITEMSIZES["float32"])


class Steps:
    """The updates of a step, which `run` makes by one call for each thread."""

    def __init__(self) -> None:
        self._items: list[_Item] = []
        self._kept: list[Any] = []
        self._scalars: dict[tuple[int, int], tuple[Any, Mapping[str, float]]] = {}
        self._size = 0

    def add(
        self,
        update: Update,
        variable: int,
        gradient: int,
        slots: Sequence[int],
        coefficients: Mapping[str, float],
        decay: float,
        size: int,
        stored: Sequence[Stored] = (),
    ) -> None:
        """Add the update of `size` elements, in place.

        Args:
          variable, gradient, slots: addresses. The gradient is in float32, or in float64 for variables in float64; the
            slots have the dtype of the variable, in the order of `update.slots`.
          coefficients: the rule's `c`.
          decay: the factor of the variable before the update.
          stored: how each slot, and at last the variable, is stored, if `update` is for float32 and they differ.
        """
        scalars = self._scalars_of(update, coefficients)
        arrays = (ctypes.c_void_p * len(slots))(*slots)
        how = (_Stored * len(stored))(*(storage.structure() for storage in stored)) if stored else None
        self._kept += [arrays, how]
        addresses = [0 if array is None else ctypes.addressof(array) for array in (arrays, scalars, how)]
        numbers = (size, len(slots), update.element, update.wide)
        self._items.append(_Item(update.address, variable, gradient, *addresses, decay, *numbers))
        self._size += size

    def _scalars_of(self, update: Update, coefficients: Mapping[str, float]) -> Any:
        """Return the rule's coefficients in its order; those of a group of variables are one mapping."""
        key = (id(update), id(coefficients))
        if key not in self._scalars:
            values = [float(coefficients[name]) for name in update.scalars]
            self._scalars[key] = (ctypes.c_double * len(values))(*values), coefficients
        return self._scalars[key][0]

    def run(self, threads: int) -> None:
        """Make all updates."""
        if not self._items:
            return
        items, taken = (_Item * len(self._items))(*self._items), ctypes.c_int64(0)
        arguments: Any = (items, len(self._items), ctypes.byref(taken))
        count = max(1, min(threads, self._size // RUN))
        function = _steps()
        others = [_pool(threads).submit(function, *arguments) for _ in range(count - 1)]
        function(*arguments)
        for other in others:
            other.result()


def update_for(rule: Rule, dtype: str) -> Update | None:
    """Return the kernel's update of an elementwise rule; None if it cannot or does not yet exist."""
    if mode() == "off" or not rule.elementwise or dtype not in ITEMSIZES:
        return None
    update = _updates.get((rule, dtype))
    if update is None:
        program = generate.program_for(rule)
        if program is None or program.has_sums or len(program.slots) > MOST_SLOTS:
            return None
        library = _library(program)
        if library is None or _steps() is None:
            return None
        update = _updates[rule, dtype] = Update(
            program, library[f"dtopt_{program.name}_{dtype}_{build.level()}"], dtype
        )
    return update


_updates: dict[tuple[Rule, str], Update] = {}


def _steps() -> Any:
    """Return the function that makes the updates of a step; None if it cannot be used, or not yet."""
    library = _loaded_from(_built_in_recipe())
    if library is None:
        return None
    function = library[f"dtopt_steps_all_{build.level()}"]
    function.restype, function.argtypes = None, [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    return function


def _library(program: generate.Program) -> Any:
    """Return the loaded library that has a program; None if it cannot be used, or not yet."""
    return _loaded_from(_built_in_recipe() if program.name in _built_in() else build.rule(program))


def _built_in_recipe() -> Recipe:
    everywhere = build.maths(everywhere=True)
    return everywhere if everywhere.key in _loaded or build.find(everywhere) else build.maths()


def _loaded_from(recipe: Recipe) -> Any:
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
