"""The arrays of any format, opened to be changed: what is altered in numbers is altered alike everywhere."""

from __future__ import annotations

import contextlib
import io
import pickle
import zipfile
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tests.helpers.bundles import rewritten

INNER = "model.weights.h5"


@contextlib.contextmanager
def arrays(folder: Path, source: str) -> Iterator[MutableMapping[str, Any]]:
    """Every array of a source by the name that `stored_as` has for it; what is changed is written back."""
    path = folder / source
    prefix = prefix_of(folder, source)
    if prefix is not None:
        with rewritten(prefix) as (numbers, _):
            yield numbers
    else:
        with FILES[path.suffix](path) as found:
            yield found


def prefix_of(folder: Path, source: str) -> Path | None:
    for prefix in (folder / source, folder / source / "variables" / "variables"):
        if Path(f"{prefix}.index").is_file():
            return prefix
    return None


class _Datasets(dict[str, Any]):
    """Datasets of an HDF5 file."""

    def __init__(self, file: h5py.File) -> None:
        super().__init__()
        self.file = file
        self.read: dict[str, np.ndarray] = {}
        file.visititems(lambda _, node: self.read.update({node.name: node[()]} if _is_array(node) else {}))
        self.update({name: np.array(value) for name, value in self.read.items()})

    def write(self) -> None:
        for name, value in self.items():
            if name in self.read and _same(value, self.read[name]):
                continue
            attributes = dict(self.file[name].attrs) if name in self.read else {}
            if name in self.read:
                del self.file[name]
            self.file[name] = value
            self.file[name].attrs.update(attributes)
        for name in self.read.keys() - self.keys():
            del self.file[name]


def _is_array(node: Any) -> bool:
    return isinstance(node, h5py.Dataset) and node.dtype.kind in "biufV"


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    one, other = np.asarray(one), np.asarray(other)
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@contextlib.contextmanager
def _in_h5(path: Path) -> Iterator[MutableMapping[str, Any]]:
    with h5py.File(path, "r+") as file:
        found = _Datasets(file)
        yield found
        found.write()


@contextlib.contextmanager
def _in_keras(path: Path) -> Iterator[MutableMapping[str, Any]]:
    members = unzipped(path)
    with h5py.File(io.BytesIO(members[INNER]), "r+") as file:
        found = _Datasets(file)
        yield found
        found.write()
        file.flush()
        members[INNER] = file.id.get_file_image()
    zipped(path, members)


@contextlib.contextmanager
def _in_list(path: Path) -> Iterator[MutableMapping[str, Any]]:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=True) as file:
            values = [file[name] for name in file.files]
    elif path.suffix == ".npy":
        values = list(np.load(path, allow_pickle=True))
    else:
        values = list(pickle.loads(path.read_bytes(), encoding="latin1"))
    found = {f"weights[{i}]": np.asarray(value) for i, value in enumerate(values)}
    yield found
    kept = [found[name] for name in sorted(found, key=lambda name: float(name[8:-1]))]
    if path.suffix == ".npz":
        np.savez(path, *kept)
    elif path.suffix == ".npy":
        whole = np.empty(len(kept), object)
        whole[:] = kept
        np.save(path, whole)
    else:
        path.write_bytes(pickle.dumps(kept, protocol=2))


FILES: dict[str, Callable[[Path], Any]] = {
    ".h5": _in_h5,
    ".keras": _in_keras,
    ".npz": _in_list,
    ".npy": _in_list,
    ".pkl": _in_list,
}


def unzipped(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
