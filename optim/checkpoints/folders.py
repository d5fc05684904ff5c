"""The folder of a checkpoint: a new state is written next to the current one, and then takes its place."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable

from optim import slot_layout
from optim.errors import CheckpointError


def replace_state(folder: str, write: Callable[[str], None]) -> str:
    """Let `write` make the files of a new state, given their prefix, and make it the current one.

    Returns: the prefix. Raises CheckpointError: the folder is something else.
    """
    _check_folder(folder)
    os.makedirs(folder, exist_ok=True)
    state = f"{slot_layout.STATE_PREFIX}{secrets.token_hex(4)}"
    prefix = os.path.join(folder, state)
    write(prefix)
    _publish(folder, state)
    return prefix


def _check_folder(folder: str) -> None:
    if os.path.isfile(folder):
        raise CheckpointError(f"{folder} is a file; a checkpoint is a folder, give another path")
    if os.path.isdir(folder):
        foreign = [f for f in sorted(os.listdir(folder)) if not _is_ours(f)]
        if foreign:
            raise CheckpointError(f"{folder} holds other files ({', '.join(foreign[:3])}); pass another folder")


def _is_ours(file: str) -> bool:
    return file == slot_layout.POINTER_NAME or file.startswith((slot_layout.STATE_PREFIX, ".checkpoint-"))


def _publish(folder: str, state: str) -> None:
    """Make `state` the current one, then remove what an earlier or interrupted save left."""
    for name in os.listdir(folder):
        if name.startswith(state):
            _sync(os.path.join(folder, name))
    pointer = os.path.join(folder, f".checkpoint-{state}")
    with open(pointer, "w", encoding="utf-8") as file:
        file.write(slot_layout.pointer_text(state))
        file.flush()
        os.fsync(file.fileno())
    os.replace(pointer, os.path.join(folder, slot_layout.POINTER_NAME))
    _sync(folder)
    for name in os.listdir(folder):
        if _is_ours(name) and name != slot_layout.POINTER_NAME and not name.startswith(f"{state}."):
            _remove(os.path.join(folder, name))


def _remove(path: str) -> None:
    if os.path.isdir(path):  # a save that was killed leaves TensorFlow's state-..._temp
        shutil.rmtree(path)
    else:
        os.remove(path)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
