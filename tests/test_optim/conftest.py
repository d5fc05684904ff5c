"""What runs a test: dtopt's own kernel in the modes `native` and `native_function`, and nowhere else; and whether
TensorFlow rewrites graphs before."""

from __future__ import annotations

import pytest
import tensorflow as tf

from optim.native import library
from tests.test_optim.cases import Case, is_one_of_few
from tests.test_optim.kernel_support import require_kernel


@pytest.fixture(autouse=True)
def _kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """DTOPT_KERNELS by the parameter `mode` of a test, whatever is in the cache."""
    callspec = getattr(request.node, "callspec", None)
    wanted = callspec is not None and callspec.params.get("mode") in ("native", "native_function")
    monkeypatch.setenv(library.VARIABLE, "build" if wanted else "off")
    if wanted:
        require_kernel()


@pytest.fixture(autouse=True)
def _rewriting(request: pytest.FixtureRequest) -> None:
    """`make test` runs graphs of tests marked `as_traced` without what TensorFlow makes of them first, which takes half
    the time of a first step; but those of a few optimizers, and in `make test-all` of all, as they run elsewhere."""
    callspec, words = getattr(request.node, "callspec", None), request.config.getoption("markexpr")
    case = callspec.params.get("case") if callspec is not None else None
    off = request.node.get_closest_marker("as_traced") is not None and "not breadth" in words
    off = off and not (isinstance(case, Case) and is_one_of_few(case))
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": off})
