"""A state of variables of Keras on JAX or PyTorch, written shard by shard without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from optim import slot_layout
from optim.bytes import object_tree
from optim.bytes.bundle import GRAPH_KEY, numpy_dtype
from optim.bytes.bundle_writer import BundleWriter
from optim.checkpoints import folders
from optim.checkpoints.handles import Handle
from optim.checkpoints.live import LiveState
from optim.checkpoints.variables import handle, identity
from optim.slot_layout import Metadata


def write(folder: str, metadata: Metadata, state: LiveState, named: Mapping[str, Any]) -> str:
    """Write variables and state. Returns: the prefix."""

    def bundle(prefix: str) -> None:
        rates = {slot_layout.scalar_key(name): rate for name, rate in slot_layout.rates_of(metadata.config).items()}
        keys = [slot_layout.SAVE_COUNTER_KEY, slot_layout.METADATA_KEY]
        with BundleWriter(prefix) as writer:
            for key, variable, dtype in _tensors(state, named):
                keys.append(key)
                if key in rates:  # float32 on JAX, and exact in the config
                    writer.add(key, np.array(rates[key], dtype))
                else:
                    _add(writer, key, variable, dtype)
            writer.add(slot_layout.SAVE_COUNTER_KEY, np.array(1, np.int64))
            writer.add_string(slot_layout.METADATA_KEY, metadata.to_json().encode())
            writer.add_string(GRAPH_KEY, object_tree.serialize(keys))

    return folders.replace_state(folder, bundle)


def _tensors(state: LiveState, named: Mapping[str, Any]) -> list[tuple[str, Handle, str]]:
    """Key, variable, and dtype in the file."""
    names = {identity(variable): name for name, variable in named.items()}
    owners = [names[id(tracked.variable)] for tracked in state.tracked]
    tensors = [(slot_layout.scalar_key(n), handle(v), slot_layout.scalar_dtype(n)) for n, v in state.scalars.items()]
    for slot, of in state.slots.items():
        slots = {owners[i]: handle(variable) for i, variable in of.items()}
        mark = slot_layout.GATHERED_DTYPE if slot == slot_layout.GATHERED else None
        tensors += [(slot_layout.slot_key(slot, name), slots[name], mark or slots[name].dtype) for name in slots]
    variables = {name: handle(variable) for name, variable in named.items()}
    return tensors + [(slot_layout.variable_key(name), v, v.dtype) for name, v in variables.items()]


def _add(writer: BundleWriter, key: str, variable: Handle, dtype: str) -> None:
    pieces = variable.pieces() if dtype in slot_layout.SLICED else None
    if pieces is None:
        writer.add(key, _bits(variable.to_host(), dtype), dtype)
    else:
        writer.add_slices(key, dtype, variable.shape, ((place, _bits(array, dtype)) for place, array in pieces))


def _bits(array: np.ndarray, dtype: str) -> np.ndarray:
    """An array as the bundle stores this dtype."""
    if array.dtype.name != dtype:
        return array.astype(dtype)
    return array.view(numpy_dtype(dtype))
