"""What a target says in words: a `.keras` or `.h5` of model, loss and optimizer, against what its source makes of it
now, and a slot-variable checkpoint of its newest state.

Slots and a step tell nothing of what acts in training alone: a loss, a regularizer, the momentum of a
BatchNormalization.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

import h5py

from migrate.bytes import files
from optim.slot_layout import POINTER_NAME, pointer_text

CONFIG = "config.json"
ATTRIBUTES = ("model_config", "training_config")


def differences(dest: str, wanted: Mapping[str, Any]) -> Iterator[str]:
    """Every place where a target says something else; what one side leaves out may be null in the other.

    Args:
      wanted: the whole of config.json, or attribute of the `.h5` -> its JSON.
    """
    yield from _unlike(_said(dest), json.loads(json.dumps(wanted)), "")


def are_same(dest: str, wanted: Mapping[str, Any]) -> bool:
    """Whether a target says that and nothing else, as one does that this release wrote."""
    return bool(_said(dest) == json.loads(json.dumps(wanted)))


def names_state(folder: str, prefix: str) -> bool:
    """Whether the file `checkpoint` in a folder names that state, and says nothing else.

    Raises:
      OSError: it cannot be read.
    """
    with files.opened(os.path.join(folder, POINTER_NAME)) as file:
        return bool(file.read() == pointer_text(os.path.basename(prefix)).encode())


def _said(dest: str) -> Any:
    if zipfile.is_zipfile(dest):
        with zipfile.ZipFile(dest) as archive:
            return json.loads(archive.read(CONFIG))
    with h5py.File(dest, "r") as file:
        return {name: json.loads(file.attrs[name]) for name in ATTRIBUTES if name in file.attrs}


def _unlike(said: Any, wanted: Any, place: str) -> Iterator[str]:
    if isinstance(said, dict) and isinstance(wanted, dict):
        for key in dict.fromkeys((*wanted, *said)):
            yield from _unlike(said.get(key), wanted.get(key), f"{place}/{key}")
    elif isinstance(said, list) and isinstance(wanted, list) and len(said) == len(wanted):
        for i, (one, other) in enumerate(zip(said, wanted, strict=True)):
            yield from _unlike(one, other, f"{place}/{i}")
    elif said != wanted:
        yield f"{place.lstrip('/')} is {said!r}, and the source makes {wanted!r} of it"
