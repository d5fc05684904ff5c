"""Find the checkpoints of a batch, and name their targets: distinctly, by the sources alone."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from migrate import readers
from migrate.bytes import hdf5
from migrate.bytes.checkpoint_paths import looks_like_bundle, without_index
from migrate.bytes.messages import some
from migrate.errors import AmbiguousError, TargetExistsError, UnknownFormatError
from migrate.readers import unknown
from optim.bytes import files
from optim.errors import DtoptError

SUFFIXES = (".weights.h5", ".h5", ".hdf5", ".keras", ".npz", ".npy", ".pkl", ".pickle", ".index")
MODELS = (".h5", ".hdf5", ".keras")
"""Suffixes of Keras's files; other programs store data in files with the first two."""
POINTED = ("tf_object", "tf1_saver", "tf_dtensor_names")
"""Formats for which a folder is one checkpoint, the newest, regardless of other content."""


@dataclass(frozen=True)
class Job:
    """One source and its target, or `problem`: why it cannot be migrated."""

    source: str
    dest: str
    problem: DtoptError | None = None


def jobs(sources: Sequence[str | os.PathLike[str]], into: str, suffix: str = "", *, every: bool = False) -> list[Job]:
    """Return what to migrate, in the given order; folders are replaced by their checkpoints; duplicates are removed.

    Args:
      into: folder of the targets; inside a source folder it is skipped.
      suffix: end of every target's name.
      every: use all checkpoints of a folder and its subfolders.
    """
    paths: dict[str, tuple[str, DtoptError | None]] = {}
    for source in (os.fspath(s) for s in sources):
        try:
            checkpoints = expand(source, every=every, targets=into)
        except DtoptError as error:
            paths.setdefault(files.canonical(source), (source, error))
            continue
        except OSError as error:
            paths.setdefault(files.canonical(source), (source, UnknownFormatError(f"{source}: {error}")))
            continue
        for path in checkpoints:
            paths.setdefault(files.canonical(path), (path, None))
    names = distinct_names([path for path, _ in paths.values()])
    todo = []
    for (path, problem), name in zip(paths.values(), names, strict=True):
        dest = os.path.join(into, name + suffix)
        if problem is None and files.canonical(dest) in paths:
            problem = TargetExistsError(
                f"its target {dest} is itself one of the sources; give another folder in --into"
            )
        todo.append(Job(path, dest, problem))
    return todo


def expand(source: str, *, every: bool = False, targets: str = "") -> list[str]:
    """The source itself, or the checkpoints in a folder that is not one itself; subfolders are only searched with
    `every`, and never `targets`.

    Raises:
      AmbiguousError: the folder has a newest TensorFlow checkpoint and others too, and not `every`.
      UnknownFormatError: the folder neither is nor contains a checkpoint.
    """
    if not files.is_folder(source):
        return [source]
    if every:
        return _tree(source, targets)
    try:
        kind = readers.detect(source).name
    except AmbiguousError:  # several states and no file that names the newest: each of them is one
        return _checkpoints_in(source)
    except UnknownFormatError:
        direct = _checkpoints_in(source)
        if not direct:
            raise UnknownFormatError(
                unknown.of_orbax(source)
                or f"{source} is not a checkpoint, and contains no checkpoint (--all also searches its folders)"
            ) from None
        if len(direct) == 1 and (others := _outside_of_folder(direct[0], _tree(source, targets))):
            raise AmbiguousError(
                f"{source} holds {direct[0]}, and others in folders in it ({some(others, 3)}): --all takes all of them,"
                " or name one"
            ) from None
        return [path for entry in direct for path in (expand(entry) if files.is_folder(entry) else [entry])]
    checkpoints = (
        [*_prefixes(source), *_incomplete(source), *_single_file_checkpoints(source)] if kind in POINTED else []
    )
    if len(checkpoints) > 1:
        raise AmbiguousError(
            f"{source} holds {len(checkpoints)} checkpoints ({some(checkpoints)}): --all takes all of them, or name one"
        )
    return [source]


def _outside_of_folder(folder: str, paths: Sequence[str]) -> list[str]:
    return [path for path in paths if not f"{path}{os.sep}".startswith(f"{folder}{os.sep}")]


def _tree(folder: str, targets: str) -> list[str]:
    """Every checkpoint in a folder and its subfolders, except linked folders and targets of earlier batches. Raises
    UnknownFormatError."""
    checkpoints: list[str] = []
    written = files.canonical(targets) if targets else ""
    within = written.startswith(os.path.join(files.canonical(folder), ""))
    for here in files.walk(folder, stop=_is_one_checkpoint):
        if within and not _outside_of_folder(written, [files.canonical(here)]):
            continue
        checkpoints += (
            [here]
            if _is_one_checkpoint(here)
            else sorted([*_prefixes(here), *_incomplete(here), *_single_file_checkpoints(here)])
        )
    if not checkpoints:
        raise UnknownFormatError(
            unknown.of_orbax(folder)
            or (f"{folder} is not a checkpoint, and contains no checkpoint, nor do its subfolders")
        )
    return checkpoints


def _is_one_checkpoint(folder: str) -> bool:
    try:
        return readers.detect(folder).name not in POINTED
    except DtoptError:
        return False


def _prefixes(folder: str) -> list[str]:
    names = sorted(name for name in files.names(folder) if name.endswith(".index"))
    return [os.path.join(folder, name).removesuffix(".index") for name in names]


def _checkpoints_in(folder: str) -> list[str]:
    entries = [os.path.join(folder, name) for name in sorted(files.names(folder))]
    folders = [path for path in entries if files.is_folder(path) and _is_checkpoint(path)]
    return sorted([*_prefixes(folder), *_incomplete(folder), *folders, *_single_file_checkpoints(folder)])


def _incomplete(folder: str) -> list[str]:
    return [os.path.join(folder, name) for name in without_index(files.names(folder))]


def _single_file_checkpoints(folder: str) -> list[str]:
    paths = [os.path.join(folder, name) for name in sorted(files.names(folder)) if name != "checkpoint"]
    return [p for p in paths if not files.is_folder(p) and not _of_bundle(p) and _is_checkpoint(p)]


def _of_bundle(path: str) -> bool:
    return path.endswith((".index", ".meta")) or ".data-" in os.path.basename(path) or looks_like_bundle(path)


def _is_checkpoint(path: str) -> bool:
    try:
        readers.detect(path)
    except UnknownFormatError:
        return _is_spoiled(path)
    except (DtoptError, OSError):  # damaged, ambiguous or changing: the migration reports it
        return True
    return True


def _is_spoiled(path: str) -> bool:
    """Whether a file has a model's suffix, but is neither a model nor data: empty, overwritten, a broken link."""
    return path.endswith(MODELS) and not files.is_folder(path) and not hdf5.is_hdf5(path)


def distinct_names(paths: Sequence[str]) -> list[str]:
    """A name for each of several different paths: its last part, with as many parent folders as needed.

    Names that differ only in case count as the same, as on some file systems.
    """
    absolute = [files.absolute(path) for path in paths]
    plain = Counter((os.path.dirname(p), _stem(p)) for p in absolute)
    last = [_stem(p) if plain[os.path.dirname(p), _stem(p)] == 1 else _with_kind(p) for p in absolute]
    folders = [[part for part in os.path.dirname(p).split(os.sep) if part] for p in absolute]
    depth = [0] * len(paths)
    while True:
        names = ["-".join([*f[len(f) - d :], name]) for f, d, name in zip(folders, depth, last, strict=True)]
        count = Counter(name.casefold() for name in names)
        same = [i for i, name in enumerate(names) if count[name.casefold()] > 1]
        longer = [i for i in same if depth[i] < len(folders[i])]
        if not longer:
            break
        for i in longer:
            depth[i] += 1
    for i in same:  # such as a/b-c and a-b/c
        names[i] += "-" + hashlib.sha256(absolute[i].encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return names


def _stem(path: str) -> str:
    name = os.path.basename(path)
    return name.removesuffix(_suffix(name)) or "checkpoint"


def _with_kind(path: str) -> str:
    """`model.h5` -> model-h5, for a source next to model.keras: a target must not end as a source of another format."""
    return _stem(path) + _suffix(os.path.basename(path)).replace(".", "-")


def _suffix(name: str) -> str:
    return next((s for s in SUFFIXES if name.endswith(s) and name != s), "")
