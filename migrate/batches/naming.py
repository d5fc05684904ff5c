"""Which checkpoints a batch has, and where each goes: names that are distinct and depend on nothing but the sources."""

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
"""Suffixes of what Keras saves; other programs keep data in files with the first two."""
POINTED = ("tf_object", "tf1_saver", "tf_dtensor_names")
"""Formats of which a folder is one checkpoint, the newest, whatever else is in it."""


@dataclass(frozen=True)
class Job:
    """One source and its target, or `problem`: why there is nothing to migrate."""

    source: str
    dest: str
    problem: DtoptError | None = None


def jobs(sources: Sequence[str | os.PathLike[str]], into: str, suffix: str = "", *, every: bool = False) -> list[Job]:
    """What to migrate, in the order given; folders of checkpoints stand for what they hold; nothing comes twice.

    Args:
      into: folder of the targets, which are no sources of a folder that it is in.
      suffix: end of every target's name.
      every: take all checkpoints of a folder and of the folders in it.
    """
    found: dict[str, tuple[str, DtoptError | None]] = {}
    for source in (os.fspath(s) for s in sources):
        try:
            held = expand(source, every=every, targets=into)
        except DtoptError as error:
            found.setdefault(files.canonical(source), (source, error))
            continue
        except OSError as error:
            found.setdefault(files.canonical(source), (source, UnknownFormatError(f"{source}: {error}")))
            continue
        for path in held:
            found.setdefault(files.canonical(path), (path, None))
    names = distinct_names([path for path, _ in found.values()])
    todo = []
    for (path, problem), name in zip(found.values(), names, strict=True):
        dest = os.path.join(into, name + suffix)
        if problem is None and files.canonical(dest) in found:
            problem = TargetExistsError(
                f"its target {dest} is itself one of the sources; give another folder in --into"
            )
        todo.append(Job(path, dest, problem))
    return todo


def expand(source: str, *, every: bool = False, targets: str = "") -> list[str]:
    """The source itself, or the checkpoints in a folder that is none; folders in it are searched with `every` alone,
    and one of `targets` never.

    Raises:
      AmbiguousError: the folder has a newest TensorFlow checkpoint and holds others, too, and not `every`.
      UnknownFormatError: the folder is no checkpoint and holds none.
    """
    if not files.is_folder(source):
        return [source]
    if every:
        return _tree(source, targets)
    try:
        kind = readers.detect(source).name
    except AmbiguousError:  # several states and no file that names the newest: each of them is one
        return _held(source)
    except UnknownFormatError:
        held = _held(source)
        if not held:
            raise UnknownFormatError(
                unknown.of_orbax(source)
                or f"{source} is not a checkpoint, and contains no checkpoint (--all also searches its folders)"
            ) from None
        if len(held) == 1 and (others := _outside(held[0], _tree(source, targets))):
            raise AmbiguousError(
                f"{source} holds {held[0]}, and others in folders in it ({some(others, 3)}): --all takes all of them,"
                " or name one"
            ) from None
        return [path for each in held for path in (expand(each) if files.is_folder(each) else [each])]
    found = [*_prefixes(source), *_without_index(source), *_files(source)] if kind in POINTED else []
    if len(found) > 1:
        raise AmbiguousError(
            f"{source} holds {len(found)} checkpoints ({some(found)}): --all takes all of them, or name one"
        )
    return [source]


def _outside(folder: str, paths: Sequence[str]) -> list[str]:
    """Those of some paths that do not are in a folder, and are not it."""
    return [path for path in paths if not f"{path}{os.sep}".startswith(f"{folder}{os.sep}")]


def _tree(folder: str, targets: str) -> list[str]:
    """Every checkpoint in a folder and the folders in it, links to folders and what an earlier batch wrote left alone.
    Raises UnknownFormatError."""
    found: list[str] = []
    written = files.canonical(targets) if targets else ""
    within = written.startswith(os.path.join(files.canonical(folder), ""))
    for here in files.walk(folder, stop=_is_one):
        if within and not _outside(written, [files.canonical(here)]):
            continue
        found += [here] if _is_one(here) else sorted([*_prefixes(here), *_without_index(here), *_files(here)])
    if not found:
        raise UnknownFormatError(
            unknown.of_orbax(folder)
            or (f"{folder} is not a checkpoint, and contains no checkpoint, also not in its folders")
        )
    return found


def _is_one(folder: str) -> bool:
    """Whether a folder as a whole is one checkpoint, as a SavedModel is."""
    try:
        return readers.detect(folder).name not in POINTED
    except DtoptError:
        return False


def _prefixes(folder: str) -> list[str]:
    """TensorFlow checkpoints in a folder."""
    names = sorted(name for name in files.names(folder) if name.endswith(".index"))
    return [os.path.join(folder, name).removesuffix(".index") for name in names]


def _held(folder: str) -> list[str]:
    entries = [os.path.join(folder, name) for name in sorted(files.names(folder))]
    folders = [path for path in entries if files.is_folder(path) and _is_checkpoint(path)]
    return sorted([*_prefixes(folder), *_without_index(folder), *folders, *_files(folder)])


def _without_index(folder: str) -> list[str]:
    """Checkpoints of which only a part is there: each is one that the report names."""
    return [os.path.join(folder, name) for name in without_index(files.names(folder))]


def _files(folder: str) -> list[str]:
    """Checkpoints of one file, by their content."""
    paths = [os.path.join(folder, name) for name in sorted(files.names(folder)) if name != "checkpoint"]
    return [p for p in paths if not files.is_folder(p) and not _of_bundle(p) and _is_checkpoint(p)]


def _of_bundle(path: str) -> bool:
    return path.endswith((".index", ".meta")) or ".data-" in os.path.basename(path) or looks_like_bundle(path)


def _is_checkpoint(path: str) -> bool:
    try:
        readers.detect(path)
    except UnknownFormatError:
        return _is_spoiled(path)
    except (DtoptError, OSError):  # a damaged or ambiguous one, or one that changes: that is for the migration to say
        return True
    return True


def _is_spoiled(path: str) -> bool:
    """Whether a file has the suffix of a model, and is none nor data: empty, overwritten, a link that leads nowhere."""
    return path.endswith(MODELS) and not files.is_folder(path) and not hdf5.is_hdf5(path)


def distinct_names(paths: Sequence[str]) -> list[str]:
    """A name for each of some different paths: its last part, with as many folders before it as distinguish it.

    Names that differ in upper and lower case only count as the same, as on some file systems they are.
    """
    absolute = [files.absolute(path) for path in paths]
    plain = Counter((os.path.dirname(p), _stem(p)) for p in absolute)
    last = [_stem(p) if plain[os.path.dirname(p), _stem(p)] == 1 else os.path.basename(p) for p in absolute]
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
    suffix = next((s for s in SUFFIXES if name.endswith(s) and name != s), "")
    return name.removesuffix(suffix) or "checkpoint"
