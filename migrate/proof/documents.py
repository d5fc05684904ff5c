"""Compare a target's documents: model, loss and optimizer of a `.keras` or `.h5` with those derived from its source
now, and the newest state of a slot-variable checkpoint.

Slots and a step do not show what has an effect in training alone: a loss, a regularizer, a BatchNormalization's
momentum.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import h5py

from migrate.bytes import hdf5
from optim.bytes import files
from optim.slot_layout import POINTER_NAME, pointer_text

CONFIG, METADATA = "config.json", "metadata.json"
ATTRIBUTES = ("model_config", "training_config")
RELEASE = ("keras_version", "backend")


def differences(dest: str, wanted: Mapping[str, Any]) -> Iterator[str]:
    """Yield every place where the target's documents differ; a missing value equals null.

    Args:
      wanted: the whole of config.json, or attribute of the `.h5` -> its JSON; including the release, and for the
        `.h5` the lists of names in its groups under `names`.
    """
    yield from _unlike(_content(dest), json.loads(json.dumps(wanted)), "")


def are_same(dest: str, wanted: Mapping[str, Any]) -> bool:
    """Whether a target has exactly these documents, as if this release wrote it."""
    return bool(_content(dest) == json.loads(json.dumps(wanted)))


def names_state(folder: str, prefix: str) -> bool:
    """Whether the file `checkpoint` in a folder names that state and no other.

    Raises:
      OSError: it cannot be read.
    """
    with files.opened(os.path.join(folder, POINTER_NAME)) as file:
        return bool(file.read() == pointer_text(os.path.basename(prefix)).encode())


def _content(dest: str) -> dict[str, Any]:
    if zipfile.is_zipfile(dest):
        with zipfile.ZipFile(dest) as archive:
            config, metadata = (json.loads(archive.read(name)) for name in (CONFIG, METADATA))
            return {**config, **_of_release(metadata.get)}
    with h5py.File(dest, "r") as file:
        attributes = {name: json.loads(file.attrs[name]) for name in ATTRIBUTES if name in file.attrs}
        return {**attributes, **_of_release(partial(hdf5.text_attribute, file)), "names": dict(_name_lists(file))}


def _of_release(get: Callable[[str], Any]) -> dict[str, Any]:
    return {name: get(name) for name in RELEASE if get(name) is not None}


def _name_lists(file: h5py.File) -> Iterator[tuple[str, list[str] | None]]:
    model = file["model_weights"]
    yield "model_weights", (layers := hdf5.name_list(model, "layer_names"))
    for layer in layers or ():
        yield f"model_weights/{layer}", hdf5.name_list(model[layer], "weight_names")
    yield "optimizer_weights", hdf5.name_list(file["optimizer_weights"], "weight_names")


def _unlike(stored: Any, wanted: Any, place: str) -> Iterator[str]:
    if isinstance(stored, dict) and isinstance(wanted, dict):
        for key in dict.fromkeys((*wanted, *stored)):
            yield from _unlike(stored.get(key), wanted.get(key), f"{place}/{key}")
    elif isinstance(stored, list) and isinstance(wanted, list) and len(stored) == len(wanted):
        for i, (one, other) in enumerate(zip(stored, wanted, strict=True)):
            yield from _unlike(one, other, f"{place}/{i}")
    elif stored != wanted:
        yield f"{place.lstrip('/')} is {stored!r}, but from the source it should be {wanted!r}"
