"""Which code updates variables: dtopt's own kernel in the mode `native`, and nowhere else."""

from __future__ import annotations

import pytest

from optim.native import library


@pytest.fixture(autouse=True)
def _kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """DTOPT_KERNELS by the parameter `mode` of a test, whatever is in the cache."""
    callspec = getattr(request.node, "callspec", None)
    wanted = callspec is not None and callspec.params.get("mode") == "native"
    monkeypatch.setenv(library.VARIABLE, "build" if wanted else "off")
    if wanted and not library.status().available:
        pytest.skip(library.status().reason)
