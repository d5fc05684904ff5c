"""Check the attributes of an HDF5 object before the HDF5 library reads them.

A string in an attribute is a reference: its length, and its place in a global heap. The library (1.14) allocates the
length before it looks there, and damage can make that gigabytes. For values of variable length that are neither strings
nor sequences, it calls a missing function. Layout: HDF5 File Format Specification 3.0, IV.A.1
(object headers), IV.A.2.d (datatypes), IV.A.2.m (attributes).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from migrate.errors import DamagedFileError

ATTRIBUTE, CONTINUATION, ATTRIBUTE_INFO = 0x0C, 0x10, 0x15
VARIABLE_LENGTH, TEXT = 9, 1
REFERENCE = 16
"""Bytes of a reference: length (4), address of the heap (8), number of the object in it (4)."""
UNDEFINED = 0xFFFFFFFFFFFFFFFF
MAX_BLOCKS = 10_000
LONGEST = 64 << 20
"""Most bytes of a string: far more than any config, far less than any memory."""
Block = tuple[int, int]


def check_attributes(raw: BinaryIO, address: int, base: int, size: int, where: str) -> None:
    """Raise DamagedFileError if an attribute has a string longer than the file or than any string of Keras, or a value
    of variable length that is no string.

    Args:
      raw: the file as bytes, `size` of them. address: of the object's header. base: the origin of addresses.
    """
    for kind, data in _messages(raw, address, base, size):
        lengths = _lengths(data) if kind == ATTRIBUTE else []
        if (kind == ATTRIBUTE_INFO and _is_dense(data)) or lengths is None:
            raise DamagedFileError(f"{where} stores attributes in a way that Keras never uses; such files are refused")
        if any(length > min(size, LONGEST) for length in lengths):
            raise DamagedFileError(
                f"{where} is a damaged HDF5 file (a text in it is longer than the file); copy it again from where it"
                " was written"
            )


def _messages(raw: BinaryIO, address: int, base: int, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield (type, data) of each header message. The library refuses what cannot be parsed here."""
    address += base
    start = _read(raw, address, 16)
    if start[:4] == b"OHDR" and len(start) == 16:
        flags = start[5]
        skip = 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
        width = 1 << (flags & 3)
        length = int.from_bytes(_read(raw, address + skip, width), "little")
        blocks = [(address + skip + width, length)]
        shape, padding = ("<BHB" + ("2x" if flags & 4 else ""), (4, 8))
    elif start[:1] == b"\1" and len(start) == 16:
        blocks, shape, padding = [(address + 16, struct.unpack_from("<I", start, 8)[0])], "<HHB3x", (0, 0)
    else:
        return
    done = 0
    while done < len(blocks) <= MAX_BLOCKS:
        offset, length = blocks[done]
        done += 1
        for kind, data in _block(_read(raw, offset, min(length, size)), shape):
            if kind == CONTINUATION and len(data) >= 16:
                at, more = struct.unpack_from("<QQ", data)
                blocks.append((base + at + padding[0], max(more - padding[1], 0)))  # OCHK before, a checksum after
            yield kind, data


def _block(data: bytes, shape: str) -> Iterator[tuple[int, bytes]]:
    position, width = 0, struct.calcsize(shape)
    while position + width <= len(data):
        kind, length, _ = struct.unpack_from(shape, data, position)
        position += width
        yield kind, data[position : position + length]
        position += length


def _read(raw: BinaryIO, offset: int, count: int) -> bytes:
    raw.seek(min(offset, 1 << 62))
    return raw.read(count)


def _is_dense(data: bytes) -> bool:
    """Whether an attribute info message names a heap of attributes."""
    if len(data) < 2:
        return False
    at = 4 if data[1] & 1 else 2
    return len(data) >= at + 8 and struct.unpack_from("<Q", data, at)[0] != UNDEFINED


def _lengths(data: bytes) -> list[int] | None:
    """The lengths of all strings of an attribute message; None if a value of variable length is no string."""
    if len(data) < 8 or data[0] not in (1, 2, 3):
        return []
    name, datatype, dataspace = struct.unpack_from("<HHH", data, 2)
    unit = 8 if data[0] == 1 else 1
    begin = 9 if data[0] == 3 else 8
    kind = begin + -(-name // unit) * unit
    values = kind + -(-datatype // unit) * unit + -(-dataspace // unit) * unit
    if len(data) < kind + 2 or data[kind] & 0x0F != VARIABLE_LENGTH:
        return []
    if data[kind + 1] & 0x0F != TEXT:
        return None
    return [struct.unpack_from("<I", data, at)[0] for at in range(values, len(data) - REFERENCE + 1, REFERENCE)]
