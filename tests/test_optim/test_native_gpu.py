"""Which kernels steps on a GPU would use, and why not, on a machine without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from optim.errors import HyperparameterError
from optim.native import cuda, gpu, library
from optim.native.generate import builtin_programs
from tests.emulated_gpu import PROGRAMS, needs_nvrtc
from tests.test_optim.kernel_support import require_kernel

ADAM = next(program for name, program in PROGRAMS.items() if name.startswith("AdamRule"))
SQUARED = next(program for program in builtin_programs() if program.powers)


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


def test_without_a_driver_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "DRIVER", "libcuda-that-is-not-there.so.1")
    assert gpu.why_not(ADAM, "float32") == "there is no CUDA driver (libcuda-that-is-not-there.so.1)"


def test_rules_that_need_the_squares_of_repeated_rows_have_none_yet() -> None:
    assert "there is no kernel on GPUs yet" in gpu.why_not(SQUARED, "float32")


@needs_nvrtc
def test_a_module_is_compiled_once_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = cuda.source(ADAM, "float32")
    text = gpu.module(source)
    assert ".entry dtopt_AdamRule" in text
    path = gpu.find(source)
    assert path is not None
    monkeypatch.setattr(gpu.nvrtc, "find", lambda: pytest.fail("it is compiled again"))
    assert gpu.module(source) == text
    path.write_text(text[:-1])  # a torn one is not loaded
    assert gpu.find(source) is None


def test_without_nvrtc_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from optim.native import nvrtc

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(nvrtc, "_places", lambda: iter(()))
    nvrtc.find.cache_clear()
    try:
        with pytest.raises(gpu.BuildError, match="pip install nvidia-cuda-nvrtc-cu12"):
            gpu.module(cuda.source(ADAM, "float32"))
    finally:
        nvrtc.find.cache_clear()
