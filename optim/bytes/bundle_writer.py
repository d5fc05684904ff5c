"""Write TensorFlow's TensorBundle, see `bundle`, without TensorFlow."""

from __future__ import annotations

import math
import os
import struct
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple

import google_crc32c
import numpy as np

from optim.bytes import protos, sstable, system
from optim.bytes.bundle import DTYPES, VERSION, WHOLE_DIM, fixed_lengths, numpy_dtype, shard_name, slice_key
from optim.bytes.ranges import CHUNK
from optim.bytes.syncing import syncing
from optim.errors import CheckpointError


@dataclass
class Room:
    """The space for a tensor's bytes, little-endian in C order. They come in pieces, all from one thread.

    `turn` is locked during a write: the system writes one piece at a time, and threads that wait there spin.
    """

    turn: threading.Lock
    descriptor: int
    offset: int
    size: int
    dtype: int
    shape: tuple[int, ...]
    done: int = 0
    crc: int = 0

    def take(self, start: int, piece: np.ndarray) -> int:
        """Write a piece (uint8) that begins at `start`, unless it is already there; return the number of its bytes.

        The piece is not kept, so one buffer can be used for all; a small one stays in the processor's cache.
        """
        if start != self.done:
            return 0
        self.crc = google_crc32c.extend(self.crc, piece)
        self.write(piece.data)
        return piece.size

    def write(self, view: memoryview) -> None:
        """Write the next bytes without adding them to the checksum."""
        with self.turn:
            while view:
                count = system.write_at(self.descriptor, view, self.offset + self.done)
                view, self.done = view[count:], self.done + count

    def entry(self) -> bytes:
        """The tensor's entry in the index."""
        record = protos.BundleEntry(
            dtype=self.dtype, offset=self.offset, size=self.size, crc32c=sstable.mask_crc(self.crc)
        )
        for n in self.shape:
            record.shape.dim.add(size=n)
        record.shape.SetInParent()
        return bytes(record.SerializeToString())


class Divided(NamedTuple):
    """A tensor that is stored in slices, each a tensor itself."""

    dtype: int
    shape: tuple[int, ...]
    slices: list[tuple[tuple[int, int], ...]]

    def entry(self) -> bytes:
        """For the index."""
        record = protos.BundleEntry(dtype=self.dtype)
        for n in self.shape:
            record.shape.dim.add(size=n)
        for extents in self.slices:
            piece = record.slices.add()
            for start, length in extents:
                extent = piece.extent.add()
                if length != WHOLE_DIM:
                    extent.start, extent.length = start, length
        return bytes(record.SerializeToString())


class BundleWriter:
    """Write a bundle of one shard; it is readable only after `close`.

    Use it as a context manager: leaving it without an error closes it. Files are synced to disk, their folder
    is not.

    Args:
      prefix: path without `.index`; its folder exists, its files do not.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._rooms: dict[bytes, Room] = {}
        self._divided: dict[bytes, Divided] = {}
        self._offset, self._turn = 0, threading.Lock()
        self._file = open(shard_name(prefix, 0, 1), "xb", buffering=0)  # noqa: SIM115 - kept open

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, traceback: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()

    def syncing(self) -> AbstractContextManager[None]:
        """Sync the tensors' file while it grows, as `syncing.syncing` does."""
        return syncing(self._file.fileno())

    def add(self, key: str, array: np.ndarray, dtype: str | None = None) -> None:
        """Append a tensor. `dtype` is TensorFlow's name if numpy's differs (bfloat16 in uint16)."""
        name = dtype or array.dtype.name
        _check_dtype(key, array, name)
        self._fill(self.reserve(key, name, array.shape), array)

    def add_slices(
        self, key: str, dtype: str, shape: tuple[int, ...], pieces: Iterable[tuple[tuple[slice, ...], np.ndarray]]
    ) -> None:
        """Append a tensor in slices, which tile it. Each comes with its place, and is written before the next one."""
        divided = self._divided[self._new(_encoded(key))] = Divided(DTYPES[dtype][0], shape, [])
        for place, array in pieces:
            _check_dtype(key, array, dtype)
            extents = tuple(_extent(*part.indices(n)[:2], n) for part, n in zip(place, shape, strict=True))
            divided.slices.append(extents)
            self._fill(self._reserve(slice_key(key, extents), divided.dtype, array.shape, array.nbytes), array)

    @staticmethod
    def _fill(room: Room, array: np.ndarray) -> None:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for start in range(0, flat.size, CHUNK):
            room.take(start, flat[start : start + CHUNK])

    def reserve(self, key: str, dtype: str, shape: tuple[int, ...]) -> Room:
        """Reserve space for the next tensor, which must be full when the bundle is closed."""
        return self._reserve(_encoded(key), DTYPES[dtype][0], shape, math.prod(shape) * numpy_dtype(dtype).itemsize)

    def add_string(self, key: str, value: bytes) -> None:
        """Append a scalar string."""
        crc = google_crc32c.value(fixed_lengths([len(value)]))
        checksum = struct.pack("<I", sstable.mask_crc(crc))
        crc = google_crc32c.extend(google_crc32c.extend(crc, checksum), value)
        data = sstable.write_varint(len(value)) + checksum + value
        room = self._reserve(_encoded(key), 7, (), len(data))
        room.crc = crc
        room.write(memoryview(data))

    def close(self) -> None:
        """Finish: sync the data, then write and sync the index."""
        with self._file:
            for key, room in self._rooms.items():
                if room.done != room.size:
                    raise CheckpointError(
                        f"{key!r}: {room.done} bytes were written, and shape {list(room.shape)} has {room.size}"
                    )
            os.fsync(self._file.fileno())
        header = protos.BundleHeader(num_shards=1)
        header.version.producer = VERSION
        entries: dict[bytes, Room | Divided] = {**self._rooms, **self._divided}
        items = [(b"", header.SerializeToString()), *((key, entries[key].entry()) for key in sorted(entries))]
        with open(self.prefix + ".index", "xb") as file:
            file.write(sstable.build_table(items))
            file.flush()
            os.fsync(file.fileno())

    def _reserve(self, key: bytes, dtype: int, shape: tuple[int, ...], size: int) -> Room:
        room = self._rooms[self._new(key)] = Room(self._turn, self._file.fileno(), self._offset, size, dtype, shape)
        self._offset += size
        return room

    def _new(self, key: bytes) -> bytes:
        if key in self._rooms or key in self._divided or not key:
            name = key.decode("utf-8", "surrogateescape")
            raise CheckpointError(f"tensor name {name!r} is empty or used twice in {self.prefix}")
        return key


def _encoded(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def _check_dtype(key: str, array: np.ndarray, dtype: str) -> None:
    if array.dtype != numpy_dtype(dtype):
        raise CheckpointError(f"{key}: an array of {array.dtype} cannot be stored as {dtype}")


def _extent(start: int, stop: int, size: int) -> tuple[int, int]:
    """(start, length) of a part of a dim, as TensorFlow writes it."""
    return (0, WHOLE_DIM) if (start, stop) == (0, size) else (start, stop - start)
