"""Whether what judges a peer is still what it was before the peer's module was imported."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

from bench.measuring import clock
from bench.peers import peer
from bench.step import agreement, reference

JUDGES = (time, clock, agreement, reference, peer.Session)
"""The clock, the comparison, and what makes the steps."""


class Judges:
    """The functions of `JUDGES` as they were when this was made."""

    def __init__(self) -> None:
        self._kept = _functions()

    def changed(self) -> str | None:
        """The name of one that is another now."""
        now = _functions()
        return next((name for name, function in self._kept.items() if now.get(name) != function), None)


def _functions() -> dict[str, Any]:
    return {
        f"{_name(judge)}.{name}": (getattr(function, "__code__", function), getattr(function, "__defaults__", None))
        for judge in JUDGES
        for name, function in vars(judge).items()
        if callable(function)
    }


def _name(judge: Any) -> str:
    return judge.__name__ if isinstance(judge, ModuleType) else f"{judge.__module__}.{judge.__name__}"
