"""Where the machine code of GPU kernels comes from, and which form of it a driver gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from optim.native import cuda, generate, gpu, library, modules, nvrtc
from optim.native.compiling import BuildError
from optim.native.driver import PTX_IS_TOO_NEW, Driver
from tests.helpers import emulated_gpu
from tests.helpers.emulated_gpu import KERNELS, PROGRAMS, needs_nvrtc
from tests.test_optim.native.kernel_support import require_kernel

ADAM = next(program for name, program in PROGRAMS.items() if name.startswith("AdamRule"))
SOURCE = cuda.source(ADAM, "float32")
FIND = nvrtc.find.__wrapped__
"""Without what it remembers."""


class FakeNvrtc:
    """Compiles every module to what the tests' driver loads."""

    def __init__(self, version: tuple[int, int] = (12, 1)):
        self.version = version
        self.calls: list[str] = []

    def ptx(self, source: str, headers: Any, options: Any) -> str:
        self.calls.append("ptx")
        return str(emulated_gpu.emulated_path())

    def machine_code(self, source: str, headers: Any, options: Any, capability: int) -> bytes:
        self.calls.append(f"sm_{capability}")
        return b"machine code of " + str(emulated_gpu.emulated_path()).encode() + b"\0\x7f"


@pytest.fixture(autouse=True)
def _nothing_at_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An empty cache, and a package without PTX."""
    path = emulated_gpu.emulated_path()  # compiled in the cache of all tests
    monkeypatch.setattr(emulated_gpu, "emulated_path", lambda *programs: path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(modules, "PACKED", tmp_path / "package" / "gpu.ptx.xz")
    modules.packed.cache_clear()
    yield
    modules.packed.cache_clear()


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> FakeNvrtc:
    fake = FakeNvrtc()
    monkeypatch.setattr(nvrtc, "find", lambda: fake)
    return fake


@pytest.fixture
def driver() -> Iterator[Callable[..., Driver]]:
    """Gives the tests' driver, with so many GPUs of some compute capability."""
    path = emulated_gpu.compiled("fake_cuda")
    fake = emulated_gpu.library("fake_cuda")

    def make(gpus: int = 1, capability: int = 90, result_of_ptx: int = 0) -> Driver:
        fake.fake_reset(12010, -1)
        fake.fake_gpus(gpus, capability, result_of_ptx)
        return Driver(str(path))

    yield make
    assert fake.fake_wrong() == b""
    fake.fake_reset(12010, -1)


def test_the_package_is_asked_before_the_cache_and_the_cache_before_nvrtc(compiler: FakeNvrtc) -> None:
    first = modules.image(SOURCE)
    assert modules.image(SOURCE) == first
    assert compiler.calls == ["ptx"]  # the second is the cache's
    modules.cached(SOURCE).write_bytes(first[:-1])  # a torn one is not loaded
    assert modules.image(SOURCE) == first
    assert compiler.calls == ["ptx", "ptx"]
    compiler.ptx = lambda *arguments: "of the package"  # type: ignore[method-assign]
    assert modules.pack([SOURCE]) == 1
    assert modules.image(SOURCE) == b"of the package"


@pytest.mark.usefixtures("compiler")
def test_a_damaged_file_of_the_package_is_not_used() -> None:
    modules.pack([SOURCE])
    data = modules.PACKED.read_bytes()
    modules.PACKED.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    modules.packed.cache_clear()
    assert modules.packed() == {}
    modules.PACKED.unlink()
    modules.packed.cache_clear()
    assert modules.packed() == {}


def test_modules_of_other_sources_are_not_used(compiler: FakeNvrtc, monkeypatch: pytest.MonkeyPatch) -> None:
    modules.pack([SOURCE])
    other = cuda.source(ADAM, "float64")
    assert modules.at_hand(SOURCE) is not None
    assert modules.at_hand(other) is None
    assert modules.pack([SOURCE]) == 1
    assert compiler.calls == ["ptx"]  # what is there is not compiled again
    assert modules.pack([SOURCE, other]) == 2
    assert modules.at_hand(other) is not None


def test_the_package_has_nothing_that_older_drivers_refuse(compiler: FakeNvrtc) -> None:
    compiler.version = (12, 9)
    with pytest.raises(BuildError, match=r"NVRTC 12\.9 .* pip install nvidia-cuda-nvrtc-cu12==12\.1\.105"):
        modules.pack([SOURCE])
    assert not modules.PACKED.exists()


def test_the_driver_is_given_ptx(compiler: FakeNvrtc, driver: Callable[..., Driver]) -> None:
    assert modules.accepted(SOURCE, driver(gpus=2)).decode() == str(emulated_gpu.emulated_path())
    assert compiler.calls == ["ptx"]
    calls = emulated_gpu.driver_calls()
    assert calls.count("load") == calls.count("unload") > 0


def test_ptx_that_is_too_new_for_the_driver_becomes_machine_code(
    compiler: FakeNvrtc, driver: Callable[..., Driver]
) -> None:
    asked = driver(capability=86, result_of_ptx=PTX_IS_TOO_NEW)
    found = modules.accepted(SOURCE, asked)
    assert found.startswith(b"machine code of ")
    assert found.endswith(b"\0\x7f")  # it is no text
    assert modules.accepted(SOURCE, asked) == found
    assert compiler.calls == ["ptx", "sm_86"]  # both are kept


@pytest.mark.usefixtures("compiler")
def test_gpus_that_differ_have_no_machine_code_in_common(driver: Callable[..., Driver]) -> None:
    with pytest.raises(BuildError, match=r"sm_80 and sm_90\): pip install nvidia-cuda-nvrtc-cu12==12\.1\.105"):
        modules.accepted(SOURCE, driver(gpus=2, capability=80, result_of_ptx=PTX_IS_TOO_NEW))


@pytest.mark.usefixtures("compiler")
def test_a_gpu_that_does_not_load_it_is_named(driver: Callable[..., Driver]) -> None:
    with pytest.raises(BuildError, match=r"does not load the kernel for sm_60: .* \(CUDA error 209\)"):
        modules.accepted(SOURCE, driver(capability=60, result_of_ptx=209))


def test_without_a_driver_the_reason_is_given() -> None:
    with pytest.raises(BuildError, match="libcuda-that-is-not-there"):
        Driver("libcuda-that-is-not-there.so.1")


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("result_of_ptx", [0, PTX_IS_TOO_NEW, 209])
def test_the_ops_get_what_the_driver_takes(
    driver: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch, result_of_ptx: int
) -> None:
    monkeypatch.setattr(gpu, "_modules", gpu._Modules())
    monkeypatch.setattr(gpu, "DRIVER", str(emulated_gpu.compiled("fake_cuda")))
    monkeypatch.setenv(library.VARIABLE, "build")
    monkeypatch.setenv(gpu.VARIABLE, "on")
    require_kernel()
    driver(result_of_ptx=result_of_ptx)
    assert ("CUDA error 209" in gpu.why_not(ADAM, "float32")) == (result_of_ptx == 209)
    assert (gpu.why_not(ADAM, "float32") == "") == (result_of_ptx != 209)
    assert gpu._modules.gpus is not None
    gpu._modules.gpus.close()


def test_without_nvrtc_a_rule_of_the_package_works_and_your_own_says_what_to_install(
    compiler: FakeNvrtc, driver: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    modules.pack([SOURCE])
    monkeypatch.setattr(nvrtc, "_places", lambda: iter(()))
    monkeypatch.setattr(nvrtc, "find", FIND)
    assert modules.accepted(SOURCE, driver()).decode() == str(emulated_gpu.emulated_path())
    with pytest.raises(BuildError, match="is not installed: pip install nvidia-cuda-nvrtc-cu12"):
        modules.accepted(cuda.source(ADAM, "float64"), driver())


@needs_nvrtc
def test_nvrtc_makes_machine_code_for_one_gpu() -> None:
    code = nvrtc.find().machine_code(SOURCE, modules.headers(), cuda.OPTIONS, 90)
    assert code.startswith(b"\x7fELF")
    assert len(code) > 2000


def test_ptx_is_for_the_oldest_gpu_that_nvrtc_and_the_kernels_know() -> None:
    assert nvrtc.least_architecture([50, 60, 70, 75, 90]) == 70
    assert nvrtc.least_architecture([75, 80, 90, 100, 120]) == 75


@needs_nvrtc
@pytest.mark.breadth
def test_all_built_in_rules_fit_into_less_than_a_megabyte() -> None:
    sources = list(cuda.sources(generate.builtin_programs()))
    packed = [program for program in KERNELS.values() if cuda.takes_packed(program)]
    assert len(sources) == len(cuda.TYPES) * len(KERNELS) + len(packed) + 1
    assert modules.pack(sources) == len(sources)
    assert modules.PACKED.stat().st_size < 1_000_000
    assert all(".version 8.1" in text for text in modules.packed().values())
