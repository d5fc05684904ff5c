"""Which code updates variables: dtopt's own kernel in the modes `native` and `native_function`, and nowhere else."""

from __future__ import annotations

import pytest

from optim.native import library
from tests.test_optim.kernel_support import require_kernel


@pytest.fixture(autouse=True)
def _kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """DTOPT_KERNELS by the parameter `mode` of a test, whatever is in the cache."""
    callspec = getattr(request.node, "callspec", None)
    wanted = callspec is not None and callspec.params.get("mode") in ("native", "native_function")
    monkeypatch.setenv(library.VARIABLE, "build" if wanted else "off")
    if wanted:
        require_kernel()
