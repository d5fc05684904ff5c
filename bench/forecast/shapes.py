"""The tensors that a plan is for: a workload by name, or a JSON list of shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.errors import OptionError
from bench.workloads import Tensor, Workload


def read(path: Path) -> Workload:
    """Reads a JSON list of shapes: each `[256, 64]`, or `{"name": ..., "shape": [...], "model_dim": ...}`.

    `model_dim` is the dim that megatron splits over the axis `model`; None, or left out, for none. The list that
    `dtopt migrate` takes as `--variables` is one of these.

    Raises: OptionError, which names the entry.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise OptionError(f"cannot read {path} as JSON: {error}") from None
    if not isinstance(document, list) or not document:
        raise OptionError(f"{path} must hold a JSON list of shapes with at least one in it")
    tensors = tuple(_tensor(entry, i, path) for i, entry in enumerate(document))
    names = [tensor.name for tensor in tensors]
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise OptionError(f"{path} names {twice!r} twice")
    return Workload(path.name, "shapes from a file", tensors)


def _tensor(entry: Any, index: int, path: Path) -> Tensor:
    entry = {"shape": entry} if isinstance(entry, list) else entry
    shape = entry.get("shape") if isinstance(entry, dict) else None
    where = f"{path}, entry {index}"
    if not isinstance(shape, list) or not all(_is_size(n) for n in shape):
        raise OptionError(f'{where}: write [256, 64] or {{"name": ..., "shape": [256, 64]}} with sizes of 1 or more')
    dim = entry.get("model_dim")
    if dim is not None and not (isinstance(dim, int) and not isinstance(dim, bool) and 0 <= dim < len(shape)):
        raise OptionError(f"{where}: model_dim {dim!r} is no dim of {shape}")
    return Tensor(str(entry.get("name", f"tensor{index}")), tuple(shape), dim)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
