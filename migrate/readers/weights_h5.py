"""`.weights.h5` of tf_keras 2.12+ and Keras 3, whole or in shards (`.weights.json`, Keras 3.10+).

It contains the optimizer's variables if the model was compiled, but no config and no order of layers: the optimizer's
class comes from `--optimizer-config`. Upstream: `saving_lib.py::H5IOStore`, `ShardedH5IOStore`.
"""

from __future__ import annotations

import os
from typing import Any

import h5py

from migrate.bytes import hdf5, json_text
from migrate.errors import DamagedFileError
from migrate.readers.keras import for_keras
from migrate.readers.keras.tree import VARS, Node, check_numbering, merge, read_tree
from migrate.readers.keras.vars import is_keras3, stored
from migrate.releases import recognition
from migrate.state import Stored
from optim.bytes import files

NAME = "weights_h5"
MAX_INDEX = 64 << 20


def sniff(path: str) -> bool:
    """Whether it is HDF5 with `vars` groups, or the index of such files."""
    if hdf5.is_hdf5(path):
        with hdf5.opened(path) as file:
            return _has_vars(file)
    return path.endswith(".json") and files.is_file(path) and _index(path, quiet=True) is not None


def _has_vars(file: h5py.File) -> bool:
    return any(name in file for name in (VARS, "layers", "_layer_checkpoint_dependencies", "optimizer"))


def read(path: str) -> Stored:
    """Return everything in the file, in its own terms.

    Raises:
      DamagedFileError: truncated, or it contradicts itself, or a shard is missing.
    """
    if hdf5.is_hdf5(path):
        with hdf5.opened(path, attributes=True) as file:
            root = read_tree(file, path)
        evidence = "HDF5 with vars groups, as Keras's save_weights writes"
    else:
        root, count = _sharded(path)
        evidence = f"an index of {count} HDF5 files with vars groups, as Keras 3's save_weights writes"
    check_numbering(root, path)
    for_keras.check_weights(root, path)
    keras3, why = is_keras3(root)
    generation = None if keras3 is None else recognition.of_keras_file(keras3)
    return stored(NAME, root, path, config=None, optimizer_config=None, generation=generation, evidence=(evidence, why))


def _sharded(path: str) -> tuple[Node, int]:
    index = _index(path, quiet=False)
    assert index is not None
    root = Node("")
    files = sorted({name for names in index.values() for name in names})
    for name in files:
        shard = os.path.join(os.path.dirname(path), name)
        if name != os.path.basename(name) or not hdf5.is_hdf5(shard):
            raise DamagedFileError(
                f"{path} names the shard {name!r}, and there is no HDF5 file of that name next to it. Copy it too"
            )
        with hdf5.opened(shard, attributes=True) as file:
            for group in (g for g, names in index.items() if name in names):
                hdf5.member(file, group, shard)
            merge(root, read_tree(file, shard), path)
    return root, len(files)


def _index(path: str, *, quiet: bool) -> dict[str, list[str]] | None:
    """Group -> shards with a part of it. For other files: None if `quiet`, else DamagedFileError."""
    try:
        if files.size(path) > MAX_INDEX:
            raise ValueError(f"it has more than {MAX_INDEX} bytes")
        with files.opened(path) as file:
            document: Any = json_text.parsed(file.read())
        shards = {str(k): [v] if isinstance(v, str) else list(v) for k, v in document["weight_map"].items()}
        if not shards or not all(isinstance(name, str) for names in shards.values() for name in names):
            raise ValueError("it names no shards")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        if quiet:
            return None
        raise DamagedFileError(f"{path} is no index of sharded weights ({error}); copy it again") from error
    return shards
