"""What tests of dtopt's own kernel begin with."""

from __future__ import annotations

from typing import Any

import pytest

from optim.native import compiling, library
from optim.native.compiling import BuildError


def require_kernel() -> None:
    """Skip a test only where there is neither a kernel nor a compiler; a kernel that cannot be built is a failure."""
    status = library.status()
    if status.available:
        return
    try:
        compiling.compiler()
    except BuildError as error:
        pytest.skip(str(error))
    pytest.fail(status.reason)


def ops_of(function: Any) -> set[str]:
    """The ops of a concrete function, those of functions that it calls included."""
    graphs = [function.graph, *(f.graph for f in function.graph._functions.values() if hasattr(f, "graph"))]
    library_ops = {node.op for f in function.graph.as_graph_def().library.function for node in f.node_def}
    return library_ops | {op.type for graph in graphs for op in graph.get_operations()}
