"""The tensors of a user's model: from a JSON list, or from names and shapes that another reader found."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cases.workloads import Tensor, Workload
from bench.errors import OptionError


@dataclass(frozen=True)
class Shapes:
    """Attributes: name, for tables; source, as the command line takes it; tensors."""

    name: str
    source: str
    tensors: tuple[Tensor, ...]

    @property
    def workload(self) -> Workload:
        """Return the shapes as a workload."""
        return Workload(self.name, f"shapes of {self.source}", self.tensors)


def read(path: Path) -> Shapes:
    """Read a JSON list of shapes: `[256, 64]`, or `{"name": ..., "shape": [...], "model_dim": ..., "table": ...}`.

    `model_dim` is the dim that megatron splits over the axis `model`; None, or omitted, for no dim. `table` means that
    a batch looks up single rows; its default is True for matrices with "embedding" in their name. The list for
    `dtopt migrate --variables` has this format.

    Raises: OptionError, which names the entry.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(f"cannot read {path} as JSON: {error}") from None
    if not isinstance(document, list):
        raise OptionError(f"{path} must hold a JSON list of shapes with at least one in it")
    return _named(path.name, str(path), (_tensor(entry, i, str(path)) for i, entry in enumerate(document)))


def of_variables(name: str, source: str, variables: Iterable[tuple[str, Sequence[int]]]) -> Shapes:
    """Return the shapes of (name, shape) pairs. Raises: OptionError, which names the entry."""
    entries = ({"name": known, "shape": list(shape)} for known, shape in variables)
    return _named(name, source, (_tensor(entry, i, source) for i, entry in enumerate(entries)))


def _named(name: str, source: str, entries: Iterable[Tensor]) -> Shapes:
    tensors = tuple(entries)
    if not tensors:
        raise OptionError(f"{source} must hold a JSON list of shapes with at least one in it")
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise OptionError(f"{source} names {tensor.name!r} twice")
        seen.add(tensor.name)
    return Shapes(name, source, tensors)


def _tensor(entry: Any, index: int, where: str) -> Tensor:
    entry = {"shape": entry} if isinstance(entry, list) else entry
    shape = entry.get("shape") if isinstance(entry, dict) else None
    where = f"{where}, entry {index}"
    if not isinstance(shape, list) or not all(_is_size(n) for n in shape):
        raise OptionError(f'{where}: write [256, 64] or {{"name": ..., "shape": [256, 64]}} with sizes of 1 or more')
    dim = entry.get("model_dim")
    if dim is not None and not (isinstance(dim, int) and not isinstance(dim, bool) and 0 <= dim < len(shape)):
        raise OptionError(f"{where}: model_dim {dim!r} is no dim of {shape}")
    name = str(entry.get("name", f"tensor{index}"))
    table = entry.get("table", len(shape) == 2 and "embedding" in name.lower())
    if not isinstance(table, bool) or (table and len(shape) != 2):
        raise OptionError(f"{where}: table is true or false, and true of matrices only")
    return Tensor(name, tuple(shape), dim, table)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
