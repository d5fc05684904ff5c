"""Which kernels steps on a GPU would use, and why not, on a machine without one."""

from __future__ import annotations

import pytest

from optim.errors import HyperparameterError
from optim.native import gpu, library
from optim.native.generate import Program
from tests.helpers.emulated_gpu import PROGRAMS, SUMS
from tests.test_optim.native.kernel_support import require_kernel

ADAM = next(program for name, program in PROGRAMS.items() if name.startswith("AdamRule"))
LAMB = next(program for name, program in SUMS.items() if name.startswith("LambRule"))


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process, with DTOPT_GPU=on."""
    monkeypatch.setattr(gpu, "_modules", gpu._Modules())
    monkeypatch.setenv(library.VARIABLE, "build")
    monkeypatch.setenv(gpu.VARIABLE, "on")
    require_kernel()


def test_they_are_off_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(gpu.VARIABLE)
    assert gpu.why_not(ADAM, "float32").endswith("; DTOPT_GPU=on uses them")
    monkeypatch.setenv(gpu.VARIABLE, "yes")
    with pytest.raises(HyperparameterError, match="DTOPT_GPU must be one of off, on, got 'yes'"):
        gpu.is_on()


@pytest.mark.parametrize("program", [ADAM, LAMB], ids=["elementwise", "sums"])
def test_without_a_driver_the_reason_is_given(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "DRIVER", "libcuda-that-is-not-there.so.1")
    assert gpu.why_not(program, "float32") == "there is no CUDA driver (libcuda-that-is-not-there.so.1)"
