"""Which code updates variables: dtopt's own kernel in the modes `native` and `native_function`, and nowhere else; and
GPUs, emulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from optim.native import library
from optim.native.gpu import Gpus
from tests.test_optim.native.kernel_support import require_kernel


@pytest.fixture(autouse=True)
def _kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """DTOPT_KERNELS by the parameter `mode` of a test, whatever is in the cache."""
    callspec = getattr(request.node, "callspec", None)
    wanted = callspec is not None and callspec.params.get("mode") in ("native", "native_function")
    monkeypatch.setenv(library.VARIABLE, "build" if wanted else "off")
    if wanted:
        require_kernel()


@pytest.fixture(scope="session")
def gpus() -> Gpus:
    """The ops, with all kernels for GPUs, compiled for the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(library.VARIABLE, "build")
        require_kernel()
        from tests.helpers import emulated_gpu  # which traces all rules

        return emulated_gpu.all_kernels()


@pytest.fixture
def launching(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """What makes CPU devices GPUs, for Python and for the kernel, until the end of the test."""
    from tests.helpers import emulated_gpu

    monkeypatch.setenv(library.VARIABLE, "build")
    emulated_gpu.library("fake_cuda").fake_reset(12010, -1)
    yield lambda: emulated_gpu.pretend(gpus, monkeypatch)
    gpus.close()
