"""Access untrusted HDF5 files carefully: nothing outside the file is followed, and sizes are checked.

Imports h5py and numpy only. Upstream layout: `keras/engine/saving.py` (Keras 2.2.4) and
`keras/utils/io_utils.py::H5Dict`, which splits attributes over 64 kB into `name0`, `name1`, ...
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import h5py
import numpy as np

from migrate.bytes.arrays import LazyArray, native
from migrate.bytes.hdf5_heaps import check_heaps
from migrate.errors import DamagedFileError
from optim.bytes import files, urls
from optim.bytes.checks import Check
from optim.bytes.ranges import Extent

SIGNATURE = b"\x89HDF\r\n\x1a\n"
MAX_RANK = 32


@dataclass(frozen=True)
class Embedded:
    """An HDF5 file inside another file. `str()` of it names it in messages.

    Its `size` bytes are in the file `path` from `start` on; `path` is None if they are compressed there. `open` returns
    a seekable file of them, which the caller closes. `check` compares all of them with their checksum, and must finish
    before a tensor is trusted or a target is placed.
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
    """Whether the file begins like HDF5, at offset 0 or, after a user block, at 512, 1024, ... bytes."""
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
    """Open the file for reading; errors of h5py for a broken one become DamagedFileError.

    `attributes`: whether attributes will be read; their damage is checked first.
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
    """A list attribute, joined from `name0`, `name1`, ... if Keras had to split it; None if absent."""
    if name in node.attrs:
        return [text(x) for x in np.ravel(node.attrs[name])]
    chunks: list[str] = []
    index = 0
    while f"{name}{index}" in node.attrs:
        chunks.extend(text(x) for x in np.ravel(node.attrs[f"{name}{index}"]))
        index += 1
    return chunks if index else None


def member(
    group: h5py.Group, name: str, where: str, known: dict[bytes, h5py.h5g.GroupID] | None = None
) -> h5py.Group | h5py.Dataset | h5py.Datatype:
    """Return a member by path. Every step must be a hard link inside the same file.

    A path that begins with a slash begins at the root, as in HDF5; Keras 2.0 on Theano wrote `/iterations`.

    Args:
      known: groups on the way to other members, which are not looked up again; those on this way are added.
    """
    known = {} if known is None else known
    is_absolute = name.startswith("/")
    node, way = (group.file if is_absolute else group).id, b"/" if is_absolute else b""
    for part in [p.encode("utf-8", "surrogateescape") for p in name.split("/") if p]:
        way += part + b"/"
        node = known.get(way) or _step(node, part, name, where)
        if isinstance(node, h5py.h5g.GroupID):
            known[way] = node
    if isinstance(node, h5py.h5d.DatasetID):
        return h5py.Dataset(node, readonly=True)
    return h5py.Group(node) if isinstance(node, h5py.h5g.GroupID) else h5py.Datatype(node)


def _step(node: Any, part: bytes, name: str, where: str) -> Any:
    """Follow a hard link of a group.

    Raises:
      DamagedFileError: the link is missing or of another kind.
    """
    if not isinstance(node, h5py.h5g.GroupID) or not node.links.exists(part):
        raise DamagedFileError(f"{where}: it lists {name!r}, which is not in it; the file is incomplete")
    if node.links.get_info(part).type != h5py.h5l.TYPE_HARD:
        raise DamagedFileError(f"{where}: {name!r} is a link that leaves the file; such files are refused")
    return h5py.h5o.open(node, part)


def dataset_names(group: h5py.Group) -> list[str]:
    """Paths of all datasets below."""
    paths: list[str] = []

    def look(name: bytes, info: h5py.h5o.ObjInfo) -> None:
        if info.type == h5py.h5o.TYPE_DATASET:
            paths.append(name.decode("utf-8", "surrogateescape"))

    h5py.h5o.visit(group.id, look, info=True)
    return paths


def lazy_datasets(group: h5py.Group, names: Iterable[str], path: Source) -> list[LazyArray]:
    """Return numeric datasets; each `load()` reads the file again.

    Raises:
      DamagedFileError: one is missing, a link, not numeric, stored outside the file, or larger than the file.
    """
    known: dict[bytes, h5py.h5g.GroupID] = {}
    size = _size(path)
    return [_lazy(_checked(member(group, name, str(path), known), path, size), path, size) for name in names]


@dataclass(frozen=True)
class _Checked:
    """A dataset, with values that h5py would ask the library for each time. `stored`: bytes in the file."""

    id: h5py.h5d.DatasetID
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    stored: int


def _lazy(dataset: _Checked, path: Source, size: int) -> LazyArray:
    full, shape, dtype = dataset.name, dataset.shape, dataset.dtype
    is_marked = h5py.h5a.exists(dataset.id, b"dtype") and h5py.Dataset(dataset.id).attrs["dtype"] == "bfloat16"
    bfloat16 = is_marked or dtype.kind == "V"
    extent = _extent(dataset, path, size)
    stored = np.dtype(np.uint16) if bfloat16 and dtype.itemsize == 2 else dtype

    def load() -> np.ndarray:
        if isinstance(path, Embedded) and shape:  # a scalar is only shown, or written with the rest
            path.check.finish()
        if extent is not None:
            return extent.read().view(stored).reshape(shape)
        with opened(path) as file:
            value = native(np.asarray(member(file, full, str(path))[()]))
        return value.view(np.uint16) if bfloat16 and value.dtype.itemsize == 2 else value

    return LazyArray(shape, "bfloat16" if bfloat16 else dtype.newbyteorder("=").name, load, full, extent)


def _extent(dataset: _Checked, path: Source, size: int) -> Extent | None:
    """The place of a dataset's bytes, None unless they are contiguous and equal to those of a little-endian array."""
    offset, dtype = dataset.id.get_offset(), dataset.dtype
    plain = dtype.kind in "iufc" and dtype.newbyteorder("<") == dtype
    if offset is None or not plain or not dataset.id.get_type().equal(h5py.h5t.py_create(dtype)):
        return None
    length = math.prod(dataset.shape) * dtype.itemsize
    if length != dataset.stored or offset + length > size:
        return None  # the HDF5 library reports the error
    if isinstance(path, str):
        return Extent(path, offset, length, dataset.name)
    return None if path.path is None else Extent(path.path, path.start + offset, length, dataset.name, check=path.check)


def _checked(dataset: Any, path: Source, size: int) -> _Checked:
    """Check shape and storage only, so that refused data is never read."""
    name = getattr(dataset, "name", "?")
    where = f"{path}: {name!r}"
    shape = dataset.shape if isinstance(dataset, h5py.Dataset) else None
    if shape is None:
        raise DamagedFileError(f"{where} is not a tensor; the file is damaged or of another kind")
    properties = dataset.id.get_create_plist()
    layout = properties.get_layout()
    if properties.get_external_count() or layout == h5py.h5d.VIRTUAL:
        raise DamagedFileError(f"{where} keeps its data in another file; such files are refused")
    try:
        dtype = dataset.dtype
    except (TypeError, ValueError) as error:
        raise DamagedFileError(
            f"{where} has a dtype that numpy does not know ({error}); the file is damaged"
        ) from error
    if dtype.kind not in "biufcV" or dtype.names or dtype.hasobject:
        raise DamagedFileError(f"{where} has dtype {dtype}, which no optimizer state has")
    if dtype.kind == "V" and dtype.itemsize != 2:
        raise DamagedFileError(f"{where} has an opaque dtype of {dtype.itemsize} bytes")
    tensor = _Checked(dataset.id, name, tuple(map(int, shape)), dtype, dataset.id.get_storage_size())
    declared = math.prod(tensor.shape) * dtype.itemsize
    if len(tensor.shape) > MAX_RANK or tensor.stored > size:
        raise DamagedFileError(f"{where} declares more bytes than the file has; the file is damaged")
    is_chunked = layout == h5py.h5d.CHUNKED
    if tensor.stored < declared and not is_chunked:
        raise DamagedFileError(
            f"{where} declares {declared} bytes and {tensor.stored} are stored; the file is incomplete or damaged"
        )
    if declared > max(tensor.stored, 1) * 1100:  # deflate compresses at most about 1030 to 1
        raise DamagedFileError(f"{where} declares {declared} bytes and {tensor.stored} are stored; refused")
    if is_chunked and declared:
        _check_chunks(dataset, where)
    return tensor


def _check_chunks(dataset: h5py.Dataset, where: str) -> None:
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
