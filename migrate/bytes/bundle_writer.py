"""Writes TensorFlow's TensorBundle, see `bundle`, without TensorFlow."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import TracebackType

import google_crc32c
import numpy as np

from migrate.bytes import atomic, protos, sstable
from migrate.bytes.bundle import DTYPES, VERSION, fixed_lengths, numpy_dtype, shard_name
from migrate.bytes.ranges import CHUNK
from optim.errors import CheckpointError


class BundleWriter:
    """Writes a bundle of one shard, tensor by tensor; nothing is readable before `close`.

    Use it as a context manager: leaving it without an error closes it. Files are synced to disk, their folder
    is not.

    Args:
      prefix: path without `.index`; its folder exists, its files do not.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._entries: dict[bytes, bytes] = {}
        self._offset = 0
        self._file = open(shard_name(prefix, 0, 1), "xb", buffering=0)  # noqa: SIM115 - kept open

    def __enter__(self) -> BundleWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, traceback: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()

    def syncing(self) -> AbstractContextManager[None]:
        """As `atomic.syncing`, of the tensors."""
        return atomic.syncing(self._file.fileno())

    def add(self, key: str, array: np.ndarray, dtype: str | None = None) -> None:
        """Append a tensor. `dtype` is TensorFlow's name, if numpy's differs (bfloat16 in uint16)."""
        name = dtype or array.dtype.name
        expected = numpy_dtype(name)
        if array.dtype != expected:
            raise CheckpointError(f"{key}: an array of {array.dtype} cannot be stored as {name}")
        flat = np.ascontiguousarray(array, expected).reshape(-1).view(np.uint8)
        chunks = (flat[start : start + CHUNK] for start in range(0, flat.size, CHUNK))
        self.add_chunks(key, name, array.shape, chunks)

    def add_chunks(self, key: str, dtype: str, shape: tuple[int, ...], chunks: Iterable[np.ndarray]) -> None:
        """Append a tensor whose bytes (uint8, little-endian, C order) come one part after the other.

        A part is not kept, so that all may come in one buffer; small ones are still in the processor's cache when they
        are written.
        """
        crc = size = 0
        for chunk in chunks:
            crc = google_crc32c.extend(crc, chunk)
            self._write(chunk.data)
            size += chunk.size
        if size != math.prod(shape) * numpy_dtype(dtype).itemsize:
            raise CheckpointError(f"{key}: {size} bytes are no {dtype}{list(shape)}")
        self._record(key, DTYPES[dtype][0], shape, size, crc)

    def add_string(self, key: str, value: bytes) -> None:
        """Append a scalar string."""
        crc = google_crc32c.value(fixed_lengths([len(value)]))
        checksum = struct.pack("<I", sstable.mask_crc(crc))
        crc = google_crc32c.extend(google_crc32c.extend(crc, checksum), value)
        data = sstable.write_varint(len(value)) + checksum + value
        self._write(memoryview(data))
        self._record(key, 7, (), len(data), crc)

    def close(self) -> None:
        """Finish: sync the data, then write and sync the index."""
        with self._file:
            os.fsync(self._file.fileno())
        header = protos.BundleHeader(num_shards=1)
        header.version.producer = VERSION
        items = [(b"", header.SerializeToString()), *sorted(self._entries.items())]
        with open(self.prefix + ".index", "xb") as file:
            file.write(sstable.build_table(items))
            file.flush()
            os.fsync(file.fileno())

    def _write(self, view: memoryview) -> None:
        while view:
            view = view[self._file.write(view) :]

    def _record(self, key: str, number: int, shape: tuple[int, ...], size: int, crc: int) -> None:
        encoded = key.encode("utf-8", "surrogateescape")
        if encoded in self._entries or not encoded:
            raise CheckpointError(f"tensor name {key!r} is empty or used twice in {self.prefix}")
        entry = protos.BundleEntry(dtype=number, offset=self._offset, size=size, crc32c=sstable.mask_crc(crc))
        for n in shape:
            entry.shape.dim.add(size=n)
        entry.shape.SetInParent()
        self._entries[encoded] = entry.SerializeToString()
        self._offset += size
