"""Results under a name: `@NAME` names a file wherever a result is read or written.

Each name is a folder that gets a new file for each result. So it is both a baseline (the newest) and a history (all of
them). The folders are in `.dtopt-bench` of the current folder, or in the folder DTOPT_BENCH_HISTORY.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.errors import ResultsError

MARK = "@"
VARIABLE, FOLDER = "DTOPT_BENCH_HISTORY", ".dtopt-bench"
NAME = re.compile(r"\w[\w.-]*")


def is_name(path: Path) -> bool:
    return str(path).startswith(MARK)


def home() -> Path:
    return Path(os.environ.get(VARIABLE) or FOLDER)


def names() -> list[str]:
    """Return the names that have a result."""
    return sorted(folder.name for folder in home().glob("*") if any(folder.glob("*.json")))


def files(name: Path) -> list[Path]:
    """Return the results of `@NAME`, oldest first. Raises: ResultsError for a name without results."""
    paths = sorted(_folder(name).glob("*.json"))
    if not paths:
        known = ", ".join(MARK + name_ for name_ in names()) or f"no names in {home()}"
        raise ResultsError(f"no result is stored as {name} (stored names: {known}). To store one, use --output {name}")
    return paths


def newest(name: Path) -> Path:
    """Return the file of `@NAME`, the newest, or of `@NAME:COMMIT`, the newest of a commit. Raises: ResultsError."""
    plain, _, commit = str(name).partition(":")
    of_commit = [file for file in files(Path(plain)) if file.stem.rpartition("-")[2].startswith(commit[:10])]
    if not of_commit:
        raise ResultsError(f"{plain} contains no result of commit {commit}; `dtopt bench history {plain}` lists them")
    return of_commit[-1]


def require_writable(name: Path) -> None:
    """Raise ResultsError if no result can be stored as `@NAME`."""
    if not os.access(_create_folder(name), os.W_OK):
        raise ResultsError(f"cannot write {_folder(name)}: you may not write there")


def place(name: Path, context: Mapping[str, Any]) -> Path:
    """Return a new file for a result of `@NAME`, named by its start time and by the commit or version that was
    measured.

    Raises: ResultsError.
    """
    began = re.sub(r"[-:]|\+.*", "", str(context.get("started", "")))
    version = context.get("source", {}).get("commit") or context.get("packages", {}).get("dtopt") or "unknown"
    path = _create_folder(name) / f"{began}-{version}.json"
    number = 1
    while path.exists():
        number += 1
        path = path.with_name(f"{began}.{number}-{version}.json")
    return path


def _create_folder(name: Path) -> Path:
    folder = _folder(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultsError(f"cannot write {folder}: {error.strerror}") from None
    return folder


def _folder(name: Path) -> Path:
    text = str(name).removeprefix(MARK)
    if not NAME.fullmatch(text):
        raise ResultsError(
            f"{name} is no name to keep results under: letters, digits, '.', '_' and '-' after the {MARK}"
        )
    return home() / text
