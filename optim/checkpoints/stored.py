"""A checkpoint in the slot-variable layout as it is stored, read without TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from optim import slot_layout
from optim.bytes.bundle import BundleReader
from optim.checkpoints.assigning import Value
from optim.checkpoints.variables import dtype_called
from optim.errors import CheckpointError
from optim.slot_layout import Metadata, VariableEntry


@dataclass(frozen=True)
class CheckpointInfo:
    """What a slot-variable checkpoint holds.

    Attributes:
      algorithm: name of the optimizer's class.
      config: what its `get_config()` gave.
      iterations: steps taken.
      variables: (name, shape, dtype, trainable) of every model variable.
      slots: shape by slot name and variable name.
      provenance: who wrote it, from what.
    """

    algorithm: str
    config: Mapping[str, Any]
    iterations: int
    variables: tuple[VariableEntry, ...]
    slots: Mapping[str, Mapping[str, tuple[int, ...]]]
    provenance: Mapping[str, Any]


def describe_checkpoint(path: str | os.PathLike[str]) -> CheckpointInfo:
    """What a slot-variable checkpoint holds; arrays are not read.

    Args:
      path: the folder.

    Returns:
      `.algorithm .config .iterations .variables .slots .provenance`; sizes are those of whole tensors.

    Raises:
      CheckpointError: a missing or damaged checkpoint.
    """
    stored = Stored(os.fspath(path))
    metadata = stored.metadata
    slots = {
        slot: {name: stored.reader[slot_layout.slot_key(slot, name)].shape for name in owners}
        for slot, owners in metadata.slots.items()
    }
    iterations = int(stored.reader.load(slot_layout.scalar_key(slot_layout.ITERATIONS)))
    return CheckpointInfo(
        metadata.class_name, metadata.config, iterations, metadata.variables, slots, metadata.provenance
    )


class Stored:
    """An open checkpoint, whose tensors are read when they are asked for.

    Raises:
      CheckpointError: a missing or damaged checkpoint, or one without metadata.
    """

    def __init__(self, folder: str):
        self.folder = folder
        self.reader = BundleReader(slot_layout.current_prefix(folder))
        if slot_layout.METADATA_KEY not in self.reader:
            raise CheckpointError(
                f"{folder} is a TensorFlow checkpoint without dtopt's metadata; write one with optim.save_checkpoint,"
                " or convert it with `dtopt migrate checkpoint`"
            )
        self.reader.check_sizes()
        text = self.reader.load_bytes(slot_layout.METADATA_KEY).decode("utf-8", "replace")
        self.metadata = Metadata.from_json(text, folder)
        self.metadata.compare_keys({key: entry.shape for key, entry in self.reader.items()}, folder)

    def value(self, key: str, what: str) -> Value:
        """A tensor. `what` names it in messages."""
        entry = self.reader[key]
        return Value(f"{self.folder}: {what}", entry.shape, entry.dtype, partial(self._load, key))

    def _load(self, key: str) -> np.ndarray:
        stored_dtype = dtype_called(self.reader[key].dtype)
        array = self.reader.load(key)
        return array if array.dtype == stored_dtype else array.view(stored_dtype)
