"""The sorted string table of checkpoint indexes, as in tensorflow/tsl/lib/io/{format,block,table_builder}.cc.

A file is data blocks, a metaindex block, an index block and a footer. A block is entries with shared key
prefixes, an array of restart offsets, a compression byte and a masked CRC-32C.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator

import google_crc32c

from optim.bytes import files, snappy
from optim.errors import CheckpointError, DamagedFileError

MAGIC = 0xDB4775248B80FB57
FOOTER_SIZE = 48
PLAIN, SNAPPY = 0, 1
"""Types of a block: uncompressed, or compressed."""
_TRAILER_SIZE = 5
_BLOCK_SIZE = 256 * 1024
_RESTART_INTERVAL = 16


def mask_crc(crc: int) -> int:
    """The stored form of a CRC, so that a CRC over CRCs stays meaningful (tsl/lib/hash/crc32c.h)."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def read_varint(data: bytes, position: int, where: str) -> tuple[int, int]:
    """(value, next position) of a varint of at most 64 bits. Raises DamagedFileError."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise DamagedFileError(f"{where} is damaged: a length in it does not end; copy the file again")


def write_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def has_magic(path: str) -> bool:
    """Whether a file ends like a table; False if it cannot be read."""
    try:
        with files.opened(path) as file:
            if file.seek(0, os.SEEK_END) < FOOTER_SIZE:
                return False
            file.seek(-8, os.SEEK_END)
            return file.read(8) == struct.pack("<Q", MAGIC)
    except OSError:
        return False


def read_table(path: str) -> dict[bytes, bytes]:
    """Return all keys and values of a table, with every block's checksum verified.

    Memory is limited to a small multiple of the file's size, whatever the file contains.

    Raises:
      DamagedFileError: truncated, flipped or contradictory bytes.
      CheckpointError: blocks that are compressed, but not with Snappy.
    """
    with files.opened(path) as file:
        data = file.read()
    if len(data) < FOOTER_SIZE or data[-8:] != struct.pack("<Q", MAGIC):
        raise DamagedFileError(
            f"{path} is damaged: it does not end as a TensorFlow checkpoint index does (truncated?); copy it again"
        )
    footer = len(data) - FOOTER_SIZE
    (offset, size), position = _handle(data, footer, path)
    _block(data, offset, size, path)  # the metaindex, which is empty
    (offset, size), position = _handle(data, position, path)
    if data[position:-8].strip(b"\0"):
        raise DamagedFileError(f"{path} is damaged: its footer has unexpected bytes; copy it again")
    table: dict[bytes, bytes] = {}
    last, budget = None, (1 << 20) + 64 * len(data)
    for _, handle in _entries(_block(data, offset, size, path), path):
        (offset, size), _ = _handle(handle, 0, path)
        for key, value in _entries(_block(data, offset, size, path), path):
            budget -= len(key)
            if (last is not None and key <= last) or budget < 0:
                raise DamagedFileError(f"{path} is damaged: its keys are out of order; copy it again")
            table[key] = value
            last = key
    return table


def _handle(data: bytes, position: int, path: str) -> tuple[tuple[int, int], int]:
    offset, position = read_varint(data, position, path)
    size, position = read_varint(data, position, path)
    return (offset, size), position


def _block(data: bytes, offset: int, size: int, path: str) -> bytes:
    end = offset + size
    if end + _TRAILER_SIZE > len(data) - FOOTER_SIZE:
        raise DamagedFileError(f"{path} is damaged: a block at byte {offset} leaves the file; copy it again")
    (stored,) = struct.unpack_from("<I", data, end + 1)
    if mask_crc(google_crc32c.value(data[offset : end + 1])) != stored:
        raise DamagedFileError(f"{path} is damaged: wrong checksum of the block at byte {offset}; copy it again")
    if data[end] == SNAPPY:
        return snappy.decompress(data[offset:end], path)
    if data[end] != PLAIN:
        raise CheckpointError(
            f"{path} has a block with an unknown compression (type {data[end]}); load the checkpoint in"
            " TensorFlow and save it again"
        )
    return data[offset:end]


def _entries(block: bytes, path: str) -> Iterator[tuple[bytes, bytes]]:
    damaged = DamagedFileError(f"{path} is damaged: an index block contradicts itself; copy it again")
    if len(block) < 4:
        raise damaged
    end = len(block) - 4 - 4 * struct.unpack_from("<I", block, len(block) - 4)[0]
    if end < 0:
        raise damaged
    position, key = 0, b""
    while position < end:
        shared, position = read_varint(block, position, path)
        fresh, position = read_varint(block, position, path)
        length, position = read_varint(block, position, path)
        if shared > len(key) or position + fresh + length > end:
            raise damaged
        key = key[:shared] + block[position : position + fresh]
        position += fresh
        yield key, block[position : position + length]
        position += length


def _common_prefix_length(a: bytes, b: bytes) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class _BlockBuilder:
    def __init__(self) -> None:
        self.data = bytearray()
        self.restarts = [0]
        self.count = 0
        self.last_key = b""

    def add(self, key: bytes, value: bytes) -> None:
        shared = 0
        if self.count == _RESTART_INTERVAL:
            self.restarts.append(len(self.data))
            self.count = 0
        elif self.count:
            shared = _common_prefix_length(self.last_key, key)
        self.data += write_varint(shared) + write_varint(len(key) - shared) + write_varint(len(value))
        self.data += key[shared:] + value
        self.count += 1
        self.last_key = key

    def finish(self) -> bytes:
        restarts = struct.pack(f"<{len(self.restarts) + 1}I", *self.restarts, len(self.restarts))
        body = bytes(self.data) + restarts + b"\0"
        return body + struct.pack("<I", mask_crc(google_crc32c.value(body)))


def build_table(items: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Build a table. `items` are in strictly ascending order of their keys."""
    out, index, block = bytearray(), _BlockBuilder(), _BlockBuilder()

    def place(builder: _BlockBuilder) -> bytes:
        finished = builder.finish()
        handle = write_varint(len(out)) + write_varint(len(finished) - _TRAILER_SIZE)
        out.extend(finished)
        return handle

    for key, value in items:
        block.add(key, value)
        if len(block.data) >= _BLOCK_SIZE:
            index.add(key, place(block))
            block = _BlockBuilder()
    if block.data:
        index.add(block.last_key, place(block))
    handles = place(_BlockBuilder())
    handles += place(index)
    return bytes(out) + handles.ljust(FOOTER_SIZE - 8, b"\0") + struct.pack("<Q", MAGIC)
