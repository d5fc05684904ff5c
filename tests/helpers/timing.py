"""Comparisons of times that other load on the machine cannot make fail.

Processor time of this process is compared where it measures what is meant: others' work does not count. Whatever else
disturbs a comparison, such as caches that others fill, is met by several attempts: one that holds is enough, and what
is really too slow is so in every one.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

ATTEMPTS = 5
HANGS = 300.0
"""Seconds after which something that takes a second, or ten on a busy machine, is taken to hang."""


@contextmanager
def _no_collection() -> Iterator[None]:
    """Garbage of earlier tests is collected before, and not at a moment that is measured."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def calls(call: Callable[[], Any]) -> int:
    """How many functions of Python and of C it calls: that which grows faster than its input is seen on a small one."""
    counted = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(before)
    return counted


def cpu_seconds(call: Callable[[], Any]) -> float:
    """Processor seconds of all threads of this process while it is called."""
    start = time.process_time()
    call()
    return time.process_time() - start


def least(call: Callable[[], Any], repeats: int) -> float:
    """Processor seconds of the cheapest of several calls."""
    return min(cpu_seconds(call) for _ in range(repeats))


def assert_cheaper(large: Callable[[], float], small: Callable[[], float], factor: float = 1.0) -> None:
    """`large()` is less than `factor` times `small()`, measured in turn, in one of several attempts."""
    found = []
    with _no_collection():
        for _ in range(ATTEMPTS):
            found.append((large(), small()))
            if found[-1][0] < factor * found[-1][1]:
                return
    raise AssertionError(f"never less than {factor:g} times as much: {found}")


def once(happens: Callable[[], bool]) -> bool:
    """Whether it happens in one of several attempts: what depends on which thread comes first."""
    return any(happens() for _ in range(ATTEMPTS))


def until(condition: Callable[[], Any], seconds: float = HANGS, pause: float = 0.05) -> bool:
    """Waits for the condition, and says whether it came."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True
