"""Check the links and global heaps of an HDF5 file before the HDF5 library follows them.

Strings of attributes are in global heaps. An object there whose size was damaged to zero sends the library (H5HGcache.c
up to 1.14.6) into an endless loop that this process cannot stop. Layout: HDF5 File Format Specification 3.0, III.E.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

import h5py

from migrate.bytes.hdf5_attributes import check_attributes
from migrate.errors import DamagedFileError

SIGNATURE = b"GCOL"
HEADER = 16
CHUNK = 4 << 20
ALIGNMENT = 8


def check_heaps(file: h5py.File, raw: BinaryIO, size: int, where: str) -> None:
    """Raise DamagedFileError if an attribute or a global heap would mislead the library.

    Heaps are searched everywhere except in contiguous tensors.

    Args:
      file: the file as h5py sees it; its attributes are not read. raw: the same file as bytes. size: their number.
    """
    if file.id.get_create_plist().get_sizes() != (8, 8):
        raise DamagedFileError(f"{where} has offsets or lengths that are not 8 bytes long, which Keras never writes")
    start = 0
    for first, last in [*_tensors(file, raw, size, where), (size, size)]:
        for offset in _signatures(raw, start, min(first, size)):
            _check_heap(raw, offset, size, where)
        start = max(start, last)


def _tensors(file: h5py.File, raw: BinaryIO, size: int, where: str) -> list[tuple[int, int]]:
    """Check the attributes of all objects; return (first byte, end) of all contiguous datasets in order."""
    extents: list[tuple[int, int]] = []
    base = file.userblock_size

    def look(name: bytes, info: h5py.h5o.ObjInfo) -> None:
        check_attributes(raw, info.addr, base, size, where)
        if info.type == h5py.h5o.TYPE_DATASET:
            dataset = h5py.h5d.open(file.id, name)
            offset = dataset.get_offset()
            if offset is not None:
                extents.append((offset, offset + dataset.get_storage_size()))

    _check_links(file, where)
    look(b".", h5py.h5o.get_info(file.id))  # `visit` leaves it out
    h5py.h5o.visit(file.id, look, info=True)
    return sorted(extents)


def _check_links(file: h5py.File, where: str) -> None:
    """Refuse two names of one object: a damaged link shows another's array, and its own is lost."""
    names: dict[int, bytes] = {}

    def look(name: bytes, info: h5py.h5l.LinkInfo) -> tuple[bytes, bytes] | None:
        again = info.type == h5py.h5l.TYPE_HARD and names.setdefault(info.u, name) != name
        return (names[info.u], name) if again else None  # h5py would lose an error raised here

    twice = file.id.links.visit(look, info=True)
    if twice is not None:
        one, other = (repr(name.decode(errors="replace")) for name in twice)
        raise DamagedFileError(
            f"{where} is a damaged HDF5 file ({one} and {other} are one object, which no Keras writes); copy it again"
            " from where it was written"
        )


def _signatures(raw: BinaryIO, start: int, end: int) -> Iterator[int]:
    position = start
    while position < end:
        raw.seek(position)
        data = raw.read(min(CHUNK, end - position))
        if not data:
            return
        at = data.find(SIGNATURE)
        while at >= 0:
            yield position + at
            at = data.find(SIGNATURE, at + 1)
        position += max(len(data) - len(SIGNATURE) + 1, 1)


def _check_heap(raw: BinaryIO, offset: int, size: int, where: str) -> None:
    raw.seek(offset)
    _, version, length = struct.unpack("<4sB3xQ", raw.read(HEADER).ljust(HEADER, b"\0"))
    if version != 1 or not HEADER <= length <= size - offset:
        return  # these four letters are in other data; the library refuses such a heap at once
    data = raw.read(length - HEADER)
    position = 0
    while position + HEADER <= len(data):
        index, stored = struct.unpack_from("<HxxxxxxQ", data, position)
        taken = stored if index == 0 else HEADER + -(-stored // ALIGNMENT) * ALIGNMENT
        if not HEADER <= taken <= len(data) - position:
            raise DamagedFileError(
                f"{where} is a damaged HDF5 file (its heap at byte {offset} contradicts itself); copy it again from"
                " where it was written"
            )
        position += taken
