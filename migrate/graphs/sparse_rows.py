"""What a graph does with gradients of rows, as those of tables are: optimizers that move only these, and clipping."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from migrate.algorithms.clipping import LIMITS
from migrate.algorithms.repeated_rows import CLIP, REPEATED
from migrate.graphs.nodes import SCATTERS, SETS, Nodes
from migrate.graphs.patterns import ADD, DIVIDE, Anything, Found, match
from migrate.state import SPARSE_CLIPPING

ROWS_APART = "rows of sparse gradients that occur twice are clipped apart in some tables, and added up before in others"


def rows_apart(
    config: Mapping[str, Any], sparse: Collection[str], added: Collection[str], outside: dict[str, str]
) -> dict[str, Any]:
    """What is done to each gradient of a row that a batch has several times: TensorFlow's functions clip the values of
    sparse gradients, which programs hardly ever add up before (`added`)."""
    apart = set(sparse).difference(added)
    if not apart or not any(config.get(key) for key in LIMITS):
        return {}
    if len(apart) < len(sparse):
        outside[SPARSE_CLIPPING] = ROWS_APART
        return {}
    return {REPEATED: [CLIP]}


def lazy(
    nodes: Nodes, class_name: str, sparse: Collection[str], found: Collection[str], outside: dict[str, str]
) -> str:
    """The class, which is another where sparse gradients move their rows alone: those of Adam itself move all rows."""
    scattered = {nodes.inputs[n][0] for n in found if nodes.op(n).removeprefix("Resource") in SCATTERS} & set(sparse)
    whole = next((n for n in found if scattered and nodes.op(n) in SETS and owner_of(n) in scattered), None)
    if whole is not None:
        outside["optimizer"] = f"updates of {owner_of(whole)} move only the rows that have a gradient, and slots of all"
    if class_name in ("AdamOptimizer", "AdamWOptimizer"):
        strange = next((v for v in sorted(set(sparse) - scattered) if not _moves_as_adam(nodes, v, found)), None)
        if strange is not None:
            outside["optimizer"] = f"updates of {strange} move rows by another rule than that of AdamOptimizer"
    if scattered and class_name == "AdaMaxOptimizer":
        outside["optimizer"] = f"AdaMaxOptimizer moves only the rows of {min(scattered)} that have a gradient"
    if not scattered or class_name not in ("AdamOptimizer", "AdamWOptimizer"):
        return class_name
    if class_name != "AdamOptimizer" or scattered != set(sparse):
        outside["optimizer"] = f"updates of {min(scattered)} move only the rows that have a gradient, and others do not"
    return "LazyAdamOptimizer"


_MOVED = (DIVIDE, ("Mul", Anything(), Anything("m")), (ADD, ("Sqrt", Anything("v")), "epsilon"))
"""What AdamOptimizer takes off a table (`_apply_sparse_shared` in training/adam.py 1.0 - 2.15)."""


def _moves_as_adam(nodes: Nodes, table: str, found: Collection[str]) -> bool:
    """Whether sparse gradients move a table by its slots alone, once they have been added to these."""
    own = (write for write in nodes.writes_of(n for n in found if owner_of(n) == table) if write.target == table)
    for write in own:
        told = Found()
        if nodes.op(write.op).startswith("AssignSub") and match(nodes, write.value, _MOVED, told):
            return all(_is_slot(nodes, told.nodes[each]) for each in "mv")
    return False


def _is_slot(nodes: Nodes, name: str) -> bool:
    return name in nodes.variables or nodes.op(name) in SCATTERS


def owner_of(name: str) -> str:
    """`SCOPE/update_a/kernel/ResourceApplyAdam` -> `a/kernel`."""
    return name.partition("/update_")[2].rpartition("/")[0]


def is_sparse(nodes: Nodes, names: Collection[str]) -> bool:
    ops = {nodes.op(name).removeprefix("Resource") for name in names}
    return any(op.startswith("SparseApply") for op in ops) or bool(ops & set(SCATTERS))
