"""Check that the functions that judge a peer are unchanged since before its module was imported."""

from __future__ import annotations

import builtins
import math
import statistics
import sys
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

from bench.measuring import clock
from bench.step import agreement, giving, reference

LIBRARIES = (builtins, math, np, statistics, time)
"""The modules that the clock and the comparison use."""

OWN = "bench"


class Judges:
    """The functions of this program and of `LIBRARIES` at the time of construction."""

    def __init__(self) -> None:
        loaded = [module for name, module in sys.modules.items() if name.partition(".")[0] in (OWN, "__main__")]
        self._modules = (*LIBRARIES, clock, agreement, giving, reference, *loaded)
        self._originals = dict(_functions(self._modules))

    def changed(self) -> str | None:
        """Return the name of a function that changed."""
        now = dict(_functions(self._modules))
        return next((name for name, function in self._originals.items() if now.get(name) != function), None)


def _functions(modules: tuple[ModuleType, ...]) -> Iterator[tuple[str, Any]]:
    """Return the functions of each module, of the modules it names, and the methods of its classes."""
    for module in modules:
        for name, thing in vars(module).items():
            if callable(thing) or isinstance(thing, ModuleType):
                yield f"{module.__name__}.{name}", _code(thing)
            if isinstance(thing, type) and thing.__module__ == module.__name__:
                methods = ((key, method) for key, method in vars(thing).items() if callable(method))
                yield from ((f"{module.__name__}.{name}.{key}", _code(method)) for key, method in methods)


def _code(function: Any) -> Any:
    return getattr(function, "__code__", function), getattr(function, "__defaults__", None)
