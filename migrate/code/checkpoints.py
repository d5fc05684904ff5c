"""Match the optimizers of programs with checkpoints, and show the commands that migrate them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from migrate.code import files, hints, nesting, releases
from migrate.code.hints import CodeHint
from migrate.conversion import convert
from migrate.errors import DamagedFileError, MissingHintError
from migrate.rules.comparison import same
from optim.errors import DtoptError, UnsupportedError

SUFFIXES = (".h5", ".hdf5", ".keras", ".npz", ".npy", ".pkl", ".pickle", ".index")
NOT_COMPARED = {"name", "learning_rate", "lr"}
"""Config keys that are not compared: training changes the learning rate, and names have no meaning."""


@dataclass(frozen=True)
class Owner:
    """One checkpoint: its description, and the command that migrates it; may be empty."""

    path: Path
    description: str
    command: str = ""

    def lines(self) -> list[str]:
        return [f"{self.path}: {self.description}", *([f"    {self.command}"] if self.command else [])]


def survey(paths: Sequence[str | os.PathLike[str]], folder: str, source: str | None = None) -> list[str]:
    """Return lines for the user: every checkpoint under a folder, its optimizer in the programs, and its command."""
    release_hint = releases.parse_hint(source) if source else None
    code_hints: list[CodeHint] = []
    for path in files.find(paths):
        try:
            file_hints = nesting.on_large_stack(partial(hints.hints_in, path, release_hint))
        except DamagedFileError:
            continue
        code_hints += [hint for hint in file_hints if isinstance(hint, CodeHint)]
    owners = [_owner(path, code_hints) for path in _checkpoints(Path(folder))]
    if not owners:
        return [f"{folder}: no checkpoint under it"]
    return [line for owner in owners for line in owner.lines()]


def writers(folder: str) -> list[str]:
    """Return the releases or generations that wrote the checkpoints under a folder, as `--from` takes them."""
    sources: dict[str, None] = {}
    for path in _checkpoints(Path(folder)):
        try:
            contents = convert.contents(str(path))
        except DtoptError:
            continue
        if contents is not None and (name := _writer(contents.versions, contents.generation)):
            sources[name] = None
    return list(sources)


def _writer(versions: Mapping[str, str], generation: str | None) -> str:
    for package in ("tensorflow", "keras"):
        number = versions.get(package, "")
        if number and not number.endswith("-tf"):  # several releases of TensorFlow have a Keras of that number
            return f"{package}=={number}"
    return generation or ""


def _checkpoints(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise files.NoFilesError(f"{folder}: the folder does not exist")
    paths = []
    for path in sorted(folder.rglob("*")):
        if path.name == "variables.index" and path.parent.name == "variables":
            paths.append(path.parent.parent)
        elif path.suffix in SUFFIXES:
            paths.append(path.with_suffix("") if path.suffix == ".index" else path)
        elif path.name == "saved_model.pb" and not (path.parent / "variables" / "variables.index").exists():
            continue
    return paths


def _owner(path: Path, code_hints: Sequence[CodeHint]) -> Owner:
    dest = f"{path.with_suffix('') if path.suffix else path}.slots"
    command = ["dtopt", "migrate", "checkpoint", str(path), dest]
    try:
        stored = convert.inspect(str(path)).stored_config
    except MissingHintError as error:
        return _hinted(path, command, code_hints, error)
    except DtoptError as error:
        return Owner(path, f"cannot be read: {error}")
    if not stored:
        return Owner(path, "contains no optimizer config", shlex.join(command))
    same_class = [hint for hint in code_hints if hint.optimizer_config["class_name"] == _class(stored)]
    if not same_class:
        return Owner(path, f"written by {_class(stored)}, which the programs do not make", shlex.join(command))
    nearest = min(same_class, key=lambda hint: len(_differences(stored["config"], hint.optimizer_config["config"])))
    different = _differences(stored["config"], nearest.optimizer_config["config"])
    agrees = "class and hyperparameters agree" if not different else f"but {'; '.join(different)}"
    return Owner(path, f"written by the {_class(stored)} of {nearest.where}, {agrees}", shlex.join(command))


def _hinted(path: Path, command: list[str], code_hints: Sequence[CodeHint], error: MissingHintError) -> Owner:
    """Describe a checkpoint without config by the programs' only optimizer, if there is just one."""
    different = {str(h.optimizer_config) + h.generation: h for h in code_hints}
    if len(different) != 1:
        return Owner(path, f"does not name its optimizer, and the programs make {len(different)}: {error}")
    hint = next(iter(different.values()))
    try:
        hint.certain(bool(hint.name))
    except UnsupportedError as doubt:
        return Owner(path, f"does not name its optimizer; {doubt}")
    more = ["--variables", "FILE"] if "--variables" in str(error) else []
    return Owner(
        path,
        f"does not name its optimizer; the programs make one, at {hint.where}",
        shlex.join([*command, "--optimizer-from", hint.where, *more]),
    )


def _class(stored: Mapping[str, Any]) -> str:
    return str(stored.get("class_name", "")).rsplit(">", 1)[-1]


def _differences(stored: Mapping[str, Any], code: Mapping[str, Any]) -> list[str]:
    keys = [key for key in code if key in stored and key not in NOT_COMPARED]
    return [
        f"{key} is {stored[key]!r} there and {code[key]!r} in the code"
        for key in keys
        if not same(stored[key], code[key]) and not (stored[key] is None or code[key] is None)
    ]
