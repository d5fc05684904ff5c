"""Tensors that are copied from file to file as they lie: only where their bytes are just those of the array."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import migrate
from bench.migration.inputs import make_keras
from migrate.bytes import hdf5
from migrate.bytes.arrays import LazyArray
from migrate.errors import DamagedFileError
from migrate.evidence import value_checks
from migrate.lists import orders
from migrate.proof.compare import Comparer
from migrate.readers import keras_zip
from optim.bytes import checks
from optim.bytes.bundle import BundleReader
from optim.bytes.checks import Check
from optim.bytes.ranges import Extent
from tests.helpers.bundles import written

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


def _short_integers(file: h5py.File) -> None:
    """Of 16 bits each, in four bytes."""
    kind = h5py.h5t.STD_I32LE.copy()
    kind.set_precision(16)
    dataset = h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple(VALUES.shape))
    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, VALUES)


@pytest.mark.parametrize("block", [0, 512])
def test_a_plain_dataset_is_found_where_it_lies(block: int, tmp_path: Path) -> None:
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w", userblock_size=block) as file:
        file["x"] = VALUES
    with h5py.File(path) as file:
        array = hdf5.lazy_datasets(file, ["x"], path)[0]
    assert array.extent is not None
    assert array.extent.read().tobytes() == array.load().tobytes() == VALUES.tobytes()


@pytest.mark.parametrize(
    "make",
    [
        lambda file: file.create_dataset("x", data=VALUES, chunks=(2, 2)),
        lambda file: file.create_dataset("x", data=VALUES, compression="gzip"),
        lambda file: file.create_dataset("x", data=VALUES.astype(">f4")),
        lambda file: file.create_dataset("x", data=VALUES > 3),
        _short_integers,
    ],
    ids=["chunked", "compressed", "big-endian", "booleans", "short integers"],
)
def test_what_has_to_be_decoded_is_not_copied(make: object, tmp_path: Path) -> None:
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        make(file)  # type: ignore[operator]
        want = file["x"][()]
    with h5py.File(path) as file:
        array = hdf5.lazy_datasets(file, ["x"], path)[0]
    assert array.extent is None
    assert np.array_equal(array.load(), want)


def test_a_tensor_larger_than_the_buffer_comes_in_parts(tmp_path: Path) -> None:
    prefix = written(tmp_path / "b", {"first": np.arange(5, dtype=np.uint8), "x": VALUES})
    extent = BundleReader(prefix).extent("x")
    assert extent is not None
    parts = [part.tobytes() for part in extent.chunks(np.empty(20, np.uint8))]
    assert [len(part) for part in parts] == [20, 20, 8]
    assert b"".join(parts) == VALUES.tobytes()


def test_a_wrong_checksum_and_a_file_that_became_shorter_are_refused(tmp_path: Path) -> None:
    extent = BundleReader(written(tmp_path / "b", {"x": VALUES})).extent("x")
    assert extent is not None
    data = tmp_path / "b.data-00000-of-00001"
    data.write_bytes(b"\1" + data.read_bytes()[1:])
    with pytest.raises(DamagedFileError, match="checksum of tensor 'x'"):
        list(extent.chunks(np.empty(20, np.uint8)))
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(DamagedFileError, match="shorter"):
        extent.read()
    data.unlink()
    with pytest.raises(DamagedFileError, match="cannot be read"):
        extent.read()


def test_a_check_runs_once_and_says_what_it_found_each_time() -> None:
    runs = []

    def run() -> None:
        runs.append(1)
        raise DamagedFileError("found")

    check = Check(run)
    check.start()
    for _ in range(2):
        with pytest.raises(DamagedFileError, match="found"):
            check.finish()
    assert runs == [1]


@pytest.mark.parametrize("sizes", [(0, 0), (1, 0), (0, 1), (5, 3), (1000, 1 << 20), (7, 12345678)])
def test_a_checksum_is_joined_from_those_of_parts(sizes: tuple[int, int]) -> None:
    a, b = (np.random.default_rng(size).bytes(size) for size in sizes)
    assert checks.joined(zlib.crc32(a), zlib.crc32(b), len(b)) == zlib.crc32(a + b)


def test_what_was_read_is_not_read_again_for_the_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts may lie in one another, as tensors of a damaged file do."""
    monkeypatch.setattr(checks, "WORTH_JOINING", 10)
    path, data, read = tmp_path / "x", np.random.default_rng(0).bytes(200), []
    path.write_bytes(data)

    def part(offset: int, size: int) -> Iterator[np.ndarray]:
        read.append((offset, size))
        return Extent(str(path), offset, size, "x").chunks(np.empty(16, np.uint8))

    checksums: list[int] = []
    check = checks.Crc32(20, 170, part, checksums.append)
    for offset, size in ((100, 15), (100, 30), (20, 40), (50, 20), (120, 9), (160, 9), (180, 10)):
        Extent(str(path), offset, size, "x", check=check).read()
    check.finish()
    assert checksums == [zlib.crc32(data[20:190])]
    assert [part for part in read if part[1]] == [(60, 40), (130, 50)]


def _in_file(path: Path, values: np.ndarray) -> LazyArray:
    path.write_bytes(values.tobytes())
    extent = Extent(str(path), 0, values.nbytes, "x")
    return LazyArray(values.shape, values.dtype.name, lambda: extent.read().view(values.dtype), "x", extent)


def test_arrays_are_compared_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("migrate.proof.compare.CHUNK", 64)
    want = np.linspace(-1, 1, 100, dtype=np.float32)
    seen: list[int] = []
    comparer = Comparer(seen.append)
    one = _in_file(tmp_path / "a", want)
    assert comparer.difference(one, _in_file(tmp_path / "b", want)) == ""
    assert sum(seen) == want.nbytes
    other = want.copy()
    other[[3, 50, 99]] = 7
    assert comparer.difference(one, _in_file(tmp_path / "b", other)) == "differs in 3 of 100 numbers"
    odd = np.arange(33, dtype=np.float16)  # no whole number of words
    difference = comparer.difference(
        _in_file(tmp_path / "a", odd), _in_file(tmp_path / "b", np.append(odd[:32], odd[:1]))
    )
    assert difference == "differs in 1 of 33 numbers"
    one = _in_file(tmp_path / "a", want)
    zero, minus = np.zeros(40, np.float32), np.zeros(40, np.float32)
    minus[30] = -0.0
    difference = comparer.difference(_in_file(tmp_path / "a", zero), _in_file(tmp_path / "b", minus))
    assert difference.startswith("differs in bits")
    assert comparer.difference(one, _in_file(tmp_path / "b", want[:50])) == "is float32[50], not float32[100]"


def test_numbers_of_a_large_file_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To be looked at, compared with the checksum of the file, and written; beginnings also to know their order."""
    monkeypatch.setattr(keras_zip, "CHECKED_AT_ONCE", 0)
    monkeypatch.setattr(checks, "WORTH_JOINING", 1)
    monkeypatch.setattr(orders, "BEGINNING", 1 << 10)
    monkeypatch.setattr(value_checks, "WORTH_THREADS", 0)
    source, read, preadv = tmp_path / "model.keras", [], os.preadv
    make_keras(source, rows=16)
    kernels = [array.extent for array in migrate.read(source).arrays() if array.size > 1 << 15]
    assert len(kernels) == 24

    def counted(descriptor: int, buffers: Any, offset: int) -> int:
        count = preadv(descriptor, buffers, offset)
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(source):
            read.append(range(offset, offset + count))
        return count

    monkeypatch.setattr(os, "preadv", counted)
    migrate.migrate_checkpoint(source, tmp_path / "slots")
    monkeypatch.undo()
    far = [extent.offset + extent.size // 4 * 3 for extent in kernels if extent is not None]
    assert [sum(place in part for part in read) for place in far] == [1] * 24
    assert migrate.verify(source, tmp_path / "slots").ok
