"""Read `optimizer.get_weights()` as people save it: `.npz`, `.npy` (an object array) or `.pkl`. A list has no names,
only an order.

Upstream: `keras/optimizers.py::Optimizer.get_weights` and `numpy.lib.format`.
"""

from __future__ import annotations

import io
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from migrate.bytes import safe_pickle
from migrate.bytes.arrays import LazyArray, native
from migrate.errors import DamagedFileError
from migrate.readers import pickled
from migrate.state import Stored
from optim.bytes import files
from optim.errors import UnsupportedError

NAME = "list"
NPY_MAGIC = b"\x93NUMPY"
TORCH_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The pickled number with which `torch.save` began its files before PyTorch 1.6."""
_NPY_ERRORS = (ValueError, EOFError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError)
"""Errors of numpy for a damaged header, which is a Python literal."""
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, OSError, *_NPY_ERRORS)
MAX_RATIO = 100
"""Highest compression ratio of pickled weights; more, in over MAX_UNPACKED bytes, is refused as a bomb."""
MAX_UNPACKED = 256 << 20
PICKLE_STARTS = (b"\x80", b"]", b"}", b"(", b"c")


def sniff(path: str) -> bool:
    """Whether it begins like .npy, like a zip of .npy files, or, with a pickle's usual suffix, like a pickle."""
    if not files.is_file(path):
        return False
    with files.opened(path) as file:
        start = file.read(16)
    if start.startswith(TORCH_START):
        return False
    if start.startswith(NPY_MAGIC):
        return True
    if start.startswith(b"PK\x03\x04"):
        names = _zip_names(path)
        return bool(names) and all(name.endswith(".npy") for name in names)
    return start.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"(lp")) or (
        path.endswith((".pkl", ".pickle", ".p")) and start.startswith(PICKLE_STARTS)
    )


def read(path: str, generation: str | None = None) -> Stored:
    """Return the list in order. Everything except the arrays must come from hints.

    Raises:
      DamagedFileError, UnsupportedError: it cannot be read, or holds other things than numbers.
    """
    with files.opened(path) as file:
        start = file.read(8)
    if start.startswith(b"PK\x03\x04"):
        content, kind = _from_npz(path), "numpy.savez"
    elif start.startswith(NPY_MAGIC):
        content, kind = _from_npy(path), "numpy.save"
    else:
        with files.opened(path) as file:
            content, kind = _Content.of(pickled.contents(safe_pickle.loads(file.read(), path), path)), "pickle"
    evidence = [f"a list of {len(content.weights)} arrays as {kind} writes it"]
    evidence += ["the optimizer's config is next to it"] if content.config is not None else []
    return Stored(
        NAME,
        generation,
        tuple(evidence),
        content.config,
        (),
        weights=tuple((array.stored_as, array) for array in content.weights),
        unmapped={array.stored_as: array for array in content.others},
    )


@dataclass(frozen=True)
class _Content:
    """The arrays of the optimizer, and further content: see `pickled.Contents`."""

    weights: list[LazyArray]
    others: Sequence[LazyArray] = ()
    config: dict[str, Any] | None = None

    @classmethod
    def of(cls, contents: pickled.Contents) -> _Content:
        """Wrap arrays that are in memory already."""
        weights, others = (
            [_lazy(name, a.shape, a.dtype, lambda a=a: a) for name, a in arrays]
            for arrays in (contents.weights, contents.others)
        )
        config = contents.config
        if config is not None:  # get_config() does not name the class
            config = dict(config) if "class_name" in config else {"class_name": "", "config": dict(config)}
        return cls(weights, others, config)


def _zip_names(path: str) -> list[str]:
    try:
        with files.zipped(path) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, OSError, struct.error) as error:
        raise DamagedFileError(f"{path} is a damaged zip archive ({error}); copy it again") from error


def _lazy(stored_as: str, shape: tuple[int, ...], dtype: np.dtype, load: Any) -> LazyArray:
    if dtype.kind not in "biufc":
        raise UnsupportedError(f"{stored_as} has dtype {dtype}, which no optimizer state has")
    return LazyArray(tuple(int(n) for n in shape), dtype.newbyteorder("=").name, lambda: native(load()), stored_as)


def _from_npz(path: str) -> _Content:
    """Read members arr_0, arr_1, ... by number; other names are kept, in the order in which they were written."""
    names = [name for name in _zip_names(path) if name.endswith(".npy")]
    numbers = [re.fullmatch(r"\D*(\d+)\.npy", name) for name in names]
    is_numbered = all(numbers)
    if is_numbered:
        names = [name for _, name in sorted((int(m.group(1)), n) for m, n in zip(numbers, names, strict=True) if m)]
    arrays: list[LazyArray] = []
    with files.zipped(path) as archive:
        headers = [_member_header(path, archive, name) for name in names]
    for index, (name, (shape, _, dtype)) in enumerate(zip(names, headers, strict=True)):
        if dtype.hasobject and len(names) == 1:
            return _Content.of(_object_array(_unpacked(path, name), f"{path}:{name}"))
        called = f"weights[{index}]" if is_numbered else name.removesuffix(".npy")
        arrays.append(_lazy(called, shape, dtype, lambda name=name: _load_member(path, name)))
    return _Content(arrays)


def _member_header(path: str, archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Header of one member. Its declared size must be that of the member, so that nothing larger is allocated."""
    try:
        with archive.open(name) as file:
            shape, fortran, dtype = _header(file)
            if not dtype.hasobject:
                declared = int(np.prod(shape, dtype=object)) * dtype.itemsize
                if archive.getinfo(name).file_size - file.tell() != declared:
                    raise DamagedFileError(
                        f"{path}: {name} declares {declared} bytes and holds others; the file is damaged"
                    )
            return shape, fortran, dtype
    except DamagedFileError:
        raise
    except (*_ZIP_ERRORS, NotImplementedError, RuntimeError) as error:
        raise DamagedFileError(f"{path}: {name} is damaged ({error}); copy it again") from error


def _unpacked(path: str, name: str) -> bytes:
    try:
        with files.zipped(path) as archive:
            info = archive.getinfo(name)
            if info.file_size > MAX_UNPACKED and info.file_size > MAX_RATIO * info.compress_size:
                raise DamagedFileError(f"{path}: {name} unpacks to {info.file_size} bytes; refused")
            return archive.read(info)
    except DamagedFileError:
        raise
    except _ZIP_ERRORS as error:
        raise DamagedFileError(f"{path}: {name} is damaged ({error}); copy it again") from error


def _load_member(path: str, name: str) -> np.ndarray:
    try:
        with files.zipped(path) as archive, archive.open(name) as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except _ZIP_ERRORS as error:
        raise DamagedFileError(f"{path}: {name} is damaged ({error}); copy it again") from error


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


def _from_npy(path: str) -> _Content:
    with files.opened(path) as file:
        data = file.read()
    try:
        dtype = _header(io.BytesIO(data))[2]
    except _NPY_ERRORS as error:
        raise DamagedFileError(f"{path} is a damaged .npy file ({error}); copy it again") from error
    if not dtype.hasobject:
        raise UnsupportedError(
            f"{path} is one array of numbers; a get_weights() list is an array of objects, one per weight"
        )
    return _Content.of(_object_array(data, path))


def _object_array(data: bytes, where: str) -> pickled.Contents:
    """Read an array of objects, or one object: after the header it is a pickle, which `safe_pickle` reads."""
    file = io.BytesIO(data)
    shape, _, _ = _header(file)
    if len(shape) > 1:
        raise UnsupportedError(f"{where} has shape {shape}; a get_weights() list has one dimension")
    objects = safe_pickle.loads(file.read(), where)
    if not isinstance(objects, list) or len(objects) != (shape[0] if shape else 1):
        raise DamagedFileError(f"{where} declares shape {shape} and holds something else; the file is damaged")
    return pickled.contents(objects if shape else objects[0], where)
