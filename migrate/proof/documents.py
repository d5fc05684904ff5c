"""What a target says in words: a `.keras` or `.h5` of model, loss and optimizer, against what its source makes of it
now, and a slot-variable checkpoint of its newest state.

Slots and a step tell nothing of what acts in training alone: a loss, a regularizer, the momentum of a
BatchNormalization.
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
    """Every place where a target says something else; what one side leaves out may be null in the other.

    Args:
      wanted: the whole of config.json, or attribute of the `.h5` -> its JSON; with what either says of its release, and
        of the `.h5` under `names` the lists of names in its groups.
    """
    yield from _unlike(_said(dest), json.loads(json.dumps(wanted)), "")


def are_same(dest: str, wanted: Mapping[str, Any]) -> bool:
    """Whether a target says that and nothing else, as one does that this release wrote."""
    return bool(_said(dest) == json.loads(json.dumps(wanted)))


def names_state(folder: str, prefix: str) -> bool:
    """Whether the file `checkpoint` in a folder names that state, and shows nothing else.

    Raises:
      OSError: it cannot be read.
    """
    with files.opened(os.path.join(folder, POINTER_NAME)) as file:
        return bool(file.read() == pointer_text(os.path.basename(prefix)).encode())


def _said(dest: str) -> dict[str, Any]:
    if zipfile.is_zipfile(dest):
        with zipfile.ZipFile(dest) as archive:
            config, metadata = (json.loads(archive.read(name)) for name in (CONFIG, METADATA))
            return {**config, **_of_release(metadata.get)}
    with h5py.File(dest, "r") as file:
        found = {name: json.loads(file.attrs[name]) for name in ATTRIBUTES if name in file.attrs}
        return {**found, **_of_release(partial(hdf5.text_attribute, file)), "names": dict(_lists(file))}


def _of_release(get: Callable[[str], Any]) -> dict[str, Any]:
    return {name: get(name) for name in RELEASE if get(name) is not None}


def _lists(file: h5py.File) -> Iterator[tuple[str, list[str] | None]]:
    """Of the groups in which Keras looks for names."""
    model = file["model_weights"]
    yield "model_weights", (layers := hdf5.name_list(model, "layer_names"))
    for layer in layers or ():
        yield f"model_weights/{layer}", hdf5.name_list(model[layer], "weight_names")
    yield "optimizer_weights", hdf5.name_list(file["optimizer_weights"], "weight_names")


def _unlike(said: Any, wanted: Any, place: str) -> Iterator[str]:
    if isinstance(said, dict) and isinstance(wanted, dict):
        for key in dict.fromkeys((*wanted, *said)):
            yield from _unlike(said.get(key), wanted.get(key), f"{place}/{key}")
    elif isinstance(said, list) and isinstance(wanted, list) and len(said) == len(wanted):
        for i, (one, other) in enumerate(zip(said, wanted, strict=True)):
            yield from _unlike(one, other, f"{place}/{i}")
    elif said != wanted:
        yield f"{place.lstrip('/')} is {said!r}, and the source makes {wanted!r} of it"
