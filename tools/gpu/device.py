"""Where the checks run: a GPU, or a CPU with emulated launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from optim.native import library
from optim.native.compiling import BuildError
from tests.helpers import emulated_gpu
from tests.test_optim.cases import ROWS, Case


class NothingToCheckError(Exception):
    """Why a check was skipped."""


class Replaced:
    """What pytest's monkeypatch does, without pytest."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def setattr(self, owner: Any, name: str, value: Any) -> None:
        self._before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def undo(self) -> None:
        while self._before:
            setattr(*self._before.pop())


class Device:
    """Where the checks run: a GPU, or a CPU with emulated launches."""

    def __init__(self, emulated: bool):
        self.emulated = emulated
        self.name = "CPU:0" if emulated else "GPU:0"
        self.elements = 1 << 12 if emulated else 1 << 20
        """Elements of a variable whose step still runs when Python continues."""
        status = library.status()
        if status.path is None:
            raise BuildError(f"dtopt's kernel of the CPU, which others are compared with, is missing: {status.reason}")
        self._gpus = emulated_gpu.all_kernels() if emulated else None

    @contextmanager
    def launching(self, *cases: Case, rules: Sequence[Any] = ()) -> Iterator[None]:
        """Launch the kernels of some cases and of some rules."""
        if self._gpus is None:
            yield
            return
        for rule in (*rules, *(case.make()._algorithm.updating_rule for case in cases)):
            emulated_gpu.add(self._gpus, rule)
        emulated_gpu.library("fake_cuda").fake_reset(12010, -1)
        replaced = Replaced()
        try:
            emulated_gpu.pretend(self._gpus, replaced)
            yield
        finally:
            replaced.undo()
            self._gpus.close()

    def why_not_used(self, optimizer: Any) -> str:
        """Why variables on the device are not updated by a kernel; empty if they are."""
        reason = str(optimizer.executor_report().why_not_native)
        if self.emulated and not reason and "launch" not in emulated_gpu.driver_calls():
            return "nothing was launched"
        return reason


def named(name: str) -> Case:
    """The case of that name in the conformance table."""
    return next(case for case in ROWS if case.name == name)


def first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
