"""Careful access to HDF5 files that somebody else wrote: nothing outside the file is followed, sizes are
checked.

Imports h5py and numpy only. Upstream layout: `keras/engine/saving.py` (Keras 2.2.4) and
`keras/utils/io_utils.py::H5Dict`, which splits attributes over 64 kB into `name0`, `name1`, ...
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import h5py
import numpy as np

from migrate.bytes import files, urls
from migrate.bytes.arrays import LazyArray
from migrate.bytes.hdf5_heaps import check_heaps
from migrate.bytes.ranges import Check, Extent
from migrate.errors import DamagedFileError

SIGNATURE = b"\x89HDF\r\n\x1a\n"
MAX_RANK = 32


@dataclass(frozen=True)
class Embedded:
    """An HDF5 file that is part of another file. `str()` of it names it in messages.

    It has `size` bytes, which lie in the file `path` from `start` on; `path` is None where they are compressed there.
    `open` gives a seekable file of them, which the caller closes. `check` compares all of them with their checksum and
    has finished before a tensor is believed, or what is written of it placed.
    """

    name: str
    size: int
    path: str | None
    start: int
    open: Callable[[], BinaryIO]
    check: Check

    def __str__(self) -> str:
        return self.name


Source = str | Embedded
"""A path, or a file in a file."""


def is_hdf5(path: str) -> bool:
    """Whether the file starts as HDF5 does, at offset 0 or, behind a user block, at 512, 1024, ... bytes."""
    if not files.is_file(path):
        return False
    with files.opened(path) as file:
        offset, size = 0, files.size(path)
        while offset < min(size, 1 << 16):
            file.seek(offset)
            if file.read(8) == SIGNATURE:
                return True
            offset = 512 if offset == 0 else offset * 2
    return False


@contextmanager
def _file(path: Source) -> Iterator[h5py.File]:
    if isinstance(path, str) and not urls.is_url(path):
        with h5py.File(path, "r", locking=False) as file:
            yield file
        return
    with _raw(path) as raw, h5py.File(raw, "r") as file:
        yield file


@contextmanager
def opened(path: Source, *, attributes: bool = False) -> Iterator[h5py.File]:
    """The file, opened for reading; whatever h5py says about a broken one becomes DamagedFileError.

    `attributes`: whether attributes are to be read, whose damage must be looked for before.
    """
    try:
        with _file(path) as file:
            if attributes:
                with _raw(path) as raw:
                    check_heaps(file, raw, _size(path), str(path))
            yield file
    except (OSError, KeyError, RuntimeError, UnicodeError) as error:
        if isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError)):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DamagedFileError(
            f"{path} is a damaged HDF5 file ({reason}); copy it again from where it was written"
        ) from error


def text(value: Any) -> str:
    """An attribute as str: h5py 2 wrote numpy bytes, h5py 3 writes str."""
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def text_attribute(node: h5py.Group, name: str) -> str | None:
    value = node.attrs.get(name)
    return None if value is None else text(value)


def name_list(node: h5py.Group, name: str) -> list[str] | None:
    """A list attribute, joined from `name0`, `name1`, ... where Keras had to split it; None if absent."""
    if name in node.attrs:
        return [text(x) for x in np.ravel(node.attrs[name])]
    chunks: list[str] = []
    index = 0
    while f"{name}{index}" in node.attrs:
        chunks.extend(text(x) for x in np.ravel(node.attrs[f"{name}{index}"]))
        index += 1
    return chunks if index else None


def member(group: h5py.Group, name: str, where: str) -> h5py.Group | h5py.Dataset | h5py.Datatype:
    """A member by path, every step of which must be a hard link inside the same file.

    A path that begins with a slash begins at the root, as in HDF5: Keras 2.0 on Theano wrote `/iterations` so.
    """
    node = (group.file if name.startswith("/") else group).id
    for part in [p.encode("utf-8", "surrogateescape") for p in name.split("/") if p]:
        kind = _link(node, part)
        if kind is None:
            raise DamagedFileError(f"{where}: it lists {name!r}, which is not in it; the file is incomplete")
        if kind != h5py.h5l.TYPE_HARD:
            raise DamagedFileError(f"{where}: {name!r} is a link out of the file's own tree; such files are refused")
        node = h5py.h5o.open(node, part)
    if isinstance(node, h5py.h5d.DatasetID):
        return h5py.Dataset(node, readonly=True)
    return h5py.Group(node) if isinstance(node, h5py.h5g.GroupID) else h5py.Datatype(node)


def _link(node: Any, part: bytes) -> int | None:
    """Which kind of link a member is; None where there is no such member."""
    if not isinstance(node, h5py.h5g.GroupID) or not node.links.exists(part):
        return None
    return int(node.links.get_info(part).type)


def dataset_names(group: h5py.Group) -> list[str]:
    """Paths of all datasets below."""
    found: list[str] = []

    def look(name: bytes, info: h5py.h5o.ObjInfo) -> None:
        if info.type == h5py.h5o.TYPE_DATASET:
            found.append(name.decode("utf-8", "surrogateescape"))

    h5py.h5o.visit(group.id, look, info=True)
    return found


def lazy_dataset(group: h5py.Group, name: str, path: Source) -> LazyArray:
    """A numeric dataset, read again from the file by each `load()`.

    Raises:
      DamagedFileError: it is missing, a link, not numeric, stored outside the file, or larger than the file.
    """
    dataset = member(group, name, str(path))
    full = dataset.name
    _check_dataset(dataset, path)
    bfloat16 = dataset.attrs.get("dtype") == "bfloat16" or dataset.dtype.kind == "V"
    shape = tuple(int(n) for n in dataset.shape)
    extent = _extent(dataset, path)
    stored = np.dtype(np.uint16) if bfloat16 and dataset.dtype.itemsize == 2 else dataset.dtype

    def load() -> np.ndarray:
        if isinstance(path, Embedded) and shape:  # a number alone is but shown, or written with the rest
            path.check.finish()
        if extent is not None:
            return extent.read().view(stored).reshape(shape)
        with opened(path) as file:
            value = np.asarray(member(file, full, str(path))[()])
        return value.view(np.uint16) if bfloat16 and value.dtype.itemsize == 2 else value

    dtype = "bfloat16" if bfloat16 else dataset.dtype.newbyteorder("=").name
    return LazyArray(shape, dtype, load, full, extent)


def _extent(dataset: h5py.Dataset, path: Source) -> Extent | None:
    """Where the bytes of a dataset lie, None unless they are in one piece and just those of a little-endian array."""
    offset, dtype = dataset.id.get_offset(), dataset.dtype
    plain = dtype.kind in "iufc" and dtype.newbyteorder("<") == dtype
    if offset is None or not plain or not dataset.id.get_type().equal(h5py.h5t.py_create(dtype)):
        return None
    size = math.prod(dataset.shape) * dtype.itemsize
    if size != dataset.id.get_storage_size() or offset + size > _size(path):
        return None  # the HDF5 library says what is wrong with it
    if isinstance(path, str):
        return Extent(path, offset, size, dataset.name)
    return None if path.path is None else Extent(path.path, path.start + offset, size, dataset.name, check=path.check)


def _check_dataset(dataset: Any, path: Source) -> None:
    """Only shape and storage are looked at: refusing must not read what is refused."""
    where = f"{path}: {getattr(dataset, 'name', '?')!r}"
    if not isinstance(dataset, h5py.Dataset) or dataset.shape is None:
        raise DamagedFileError(f"{where} is not a tensor; the file is damaged or of another kind")
    if dataset.external or dataset.is_virtual:
        raise DamagedFileError(f"{where} keeps its data in another file; such files are refused")
    try:
        kind = dataset.dtype.kind
    except (TypeError, ValueError) as error:
        raise DamagedFileError(
            f"{where} has a dtype that numpy does not know ({error}); the file is damaged"
        ) from error
    if kind not in "biufcV" or dataset.dtype.names or dataset.dtype.hasobject:
        raise DamagedFileError(f"{where} has dtype {dataset.dtype}, which no optimizer state has")
    if kind == "V" and dataset.dtype.itemsize != 2:
        raise DamagedFileError(f"{where} has an opaque dtype of {dataset.dtype.itemsize} bytes")
    declared = math.prod(dataset.shape) * dataset.dtype.itemsize
    stored = dataset.id.get_storage_size()
    if len(dataset.shape) > MAX_RANK or stored > _size(path):
        raise DamagedFileError(f"{where} declares more bytes than the file has; the file is damaged")
    if stored < declared and dataset.compression is None and not dataset.chunks and declared:
        raise DamagedFileError(
            f"{where} declares {declared} bytes and {stored} are stored; the file is incomplete or damaged"
        )
    if declared > max(stored, 1) * 1100:  # deflate cannot do better than about 1030 to 1
        raise DamagedFileError(f"{where} declares {declared} bytes and {stored} are stored; refused")
    if dataset.chunks and declared:
        wanted = int(np.prod([-(-n // c) for n, c in zip(dataset.shape, dataset.chunks, strict=True)], dtype=object))
        written = dataset.id.get_num_chunks()
        if written < wanted:
            raise DamagedFileError(
                f"{where} has {wanted} chunks, of which {written} were written: the others would be read as"
                f" {np.asarray(dataset.fillvalue).item()!r}; the file is incomplete"
            )


def _raw(path: Source) -> BinaryIO:
    return files.opened(path) if isinstance(path, str) else path.open()


def _size(path: Source) -> int:
    return files.size(path) if isinstance(path, str) else path.size
