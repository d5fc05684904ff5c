"""Read what a graph does with gradients of rows: optimizers that update only these rows, and clipping."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from migrate.algorithms.clipping import LIMITS
from migrate.algorithms.repeated_rows import CLIP, REPEATED
from migrate.graphs.nodes import SCATTERS, SETS, Nodes
from migrate.state import SPARSE_CLIPPING

ROWS_APART = "rows of sparse gradients that repeat are clipped separately in some tables, but added up first in others"


def rows_apart(
    config: Mapping[str, Any], sparse: Collection[str], added: Collection[str], outside: dict[str, str]
) -> dict[str, Any]:
    """How a batch's repeated rows are handled. TensorFlow's functions clip the values of sparse gradients, and few
    programs add rows up first (`added`)."""
    tables = set(sparse).difference(added)
    if not tables or not any(config.get(key) for key in LIMITS):
        return {}
    if len(tables) < len(sparse):
        outside[SPARSE_CLIPPING] = ROWS_APART
        return {}
    return {REPEATED: [CLIP]}


def lazy(
    nodes: Nodes,
    class_name: str,
    sparse: Collection[str],
    ops: Collection[str],
    strange: Collection[str],
    outside: dict[str, str],
) -> str:
    """Return the class: LazyAdam if sparse gradients update only their rows, since Adam itself updates all rows.

    Args:
      strange: the tables updated neither by a kernel nor by the class's rule for tables.
    """
    scattered = {nodes.inputs[n][0] for n in ops if nodes.op(n).removeprefix("Resource") in SCATTERS} & set(sparse)
    whole = next((n for n in ops if scattered and nodes.op(n) in SETS and owner_of(n) in scattered), None)
    if whole is not None:
        outside["optimizer"] = (
            f"updates of {owner_of(whole)} change only the rows that have a gradient, but all rows of slots"
        )
    is_adam = class_name in ("AdamOptimizer", "AdamWOptimizer")
    strange_tables = sorted(set(strange) - scattered if is_adam else strange)
    if strange_tables:
        outside["optimizer"] = f"updates of {strange_tables[0]} change rows by a rule that is not {class_name}"
    if scattered and class_name == "AdaMaxOptimizer":
        outside["optimizer"] = f"AdaMaxOptimizer changes only the rows of {min(scattered)} that have a gradient"
    if not scattered or not is_adam:
        return class_name
    if class_name != "AdamOptimizer" or scattered != set(sparse):
        outside["optimizer"] = (
            f"updates of {min(scattered)} change only the rows that have a gradient, and others do not"
        )
    return "LazyAdamOptimizer"


def of_own_rule(nodes: Nodes, tables: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Report a table that a program updates by a custom rule: neither does its update change all rows, as Adam does,
    nor only the table's and slots' rows that have a gradient, as LazyAdam and AdaMax do.

    Args:
      tables: those without a known kernel or rule, with the ops of their updates.
    """
    for table, ops in sorted(tables.items()):
        rows = {nodes.inputs[n][0] for n in ops if nodes.op(n).removeprefix("Resource") in SCATTERS}
        if table not in rows or len(rows) == 1:
            return {"optimizer": f"updates of {table} change rows by a rule that tf.train does not have"}
    return {}


def owner_of(name: str) -> str:
    """`SCOPE/update_a/kernel/ResourceApplyAdam` -> `a/kernel`."""
    return name.partition("/update_")[2].rpartition("/")[0]


def is_sparse(nodes: Nodes, names: Collection[str]) -> bool:
    ops = {nodes.op(name).removeprefix("Resource") for name in names}
    return any(op.startswith("SparseApply") for op in ops) or bool(ops & set(SCATTERS))
