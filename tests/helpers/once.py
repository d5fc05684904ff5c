"""What is made once in a test run, whichever of its processes needs it first."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

_folders: list[Path] = []


def share(folder: Path) -> None:
    """Use a folder that all processes of this test run have in common."""
    _folders.append(folder)


def shared_folder() -> Path:
    return _folders[0]


def made_once(name: str, make: Callable[[], Any]) -> Any:
    """What `make` returns, which JSON can hold: one process calls it, the others wait for its result."""
    path = shared_folder() / f"{name}.json"
    with open(path, "a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        if not text:
            text = json.dumps(make())
            file.write(text)
    return json.loads(text)
