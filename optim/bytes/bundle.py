"""Read TensorFlow's TensorBundle (checkpoint V2) without TensorFlow; `bundle_writer` writes it.

A bundle is `PREFIX.index`, a sorted string table from tensor name to BundleEntryProto (the header under the
empty name), and `PREFIX.data-?????-of-?????`, the raw little-endian bytes. Source: TensorFlow 2.21,
tensorflow/core/util/tensor_bundle/tensor_bundle.cc, which reads and writes the same bytes as 1.0.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import google_crc32c
import numpy as np
from google.protobuf.message import DecodeError

from optim.bytes import files, names, protos, sstable
from optim.bytes.ranges import Extent
from optim.errors import CheckpointError, DamagedFileError

GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
STRING = "string"
DTYPES: dict[str, tuple[int, str]] = {
    "float32": (1, "<f4"),
    "float64": (2, "<f8"),
    "int32": (3, "<i4"),
    "uint8": (4, "u1"),
    "int16": (5, "<i2"),
    "int8": (6, "i1"),
    "complex64": (8, "<c8"),
    "int64": (9, "<i8"),
    "bool": (10, "?"),
    "bfloat16": (14, "<u2"),
    "uint16": (17, "<u2"),
    "complex128": (18, "<c16"),
    "float16": (19, "<f2"),
    "uint32": (22, "<u4"),
    "uint64": (23, "<u8"),
    "float8_e5m2": (24, "u1"),
    "float8_e4m3fn": (25, "u1"),
}
"""TensorFlow's DataType numbers, numpy's types; bfloat16 and float8 are held as unsigned integers of the same bits."""
_OTHER = {11: "qint8", 12: "quint8", 13: "qint32", 15: "qint16", 16: "quint16", 21: "variant"}
_NUMBER_TO_NAME = {number: name for name, (number, _) in DTYPES.items()} | {7: STRING} | _OTHER
_UNSAVED = {0, 20}
"""DT_INVALID, and resources, whose content TensorFlow saves; numbers from 101 on are references."""
VERSION = 1
"""Version of the format."""
_MAX_RANK = 32
WHOLE_DIM = -1


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return numpy's type with a TensorFlow dtype's bits. Raises CheckpointError if numpy lacks such a type."""
    if name not in DTYPES:
        raise CheckpointError(f"tensors of dtype {name} are not supported; known: {', '.join(DTYPES)}")
    return np.dtype(DTYPES[name][1])


def is_numeric(name: str) -> bool:
    """Whether a tensor of this dtype has numbers, not text or the state of an iterator or table."""
    return name in DTYPES


def shard_name(prefix: str, shard: int, shards: int) -> str:
    return f"{prefix}.data-{shard:05d}-of-{shards:05d}"


@dataclass(frozen=True)
class Entry:
    """Where a tensor is.

    `slices` has one (start, length) per dim for each piece of a partitioned variable; length -1 means the whole dim.
    """

    dtype: str
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc32c: int
    slices: tuple[tuple[tuple[int, int], ...], ...] = ()


class BundleReader(Mapping[str, Entry]):
    """Entries by tensor name. The index is read and checked at once, tensors in `load`.

    Args:
      prefix: path without `.index`.

    Raises:
      DamagedFileError: the index is missing, truncated or altered, or a shard is missing or too short.
      CheckpointError: big-endian, of a later version, or compressed.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        index = prefix + ".index"
        try:
            table = sstable.read_table(index)
        except OSError as error:
            raise DamagedFileError(f"{index} cannot be read ({error.strerror or error}); is the path right?") from error
        self.shards = self._header(table.pop(b"", None), index)
        self._shard_sizes: dict[int, int] = {}
        self._entries: dict[str, Entry] = {}
        self._pieces: dict[bytes, Entry] = {}
        for key, value in table.items():
            entry = self._entry(key, value, index)
            if key.startswith(b"\0"):
                self._pieces[key] = entry
            else:
                self._entries[key.decode("utf-8", "surrogateescape")] = entry
        names.check(self._entries, index)

    def __getitem__(self, key: str) -> Entry:
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @staticmethod
    def _header(data: bytes | None, index: str) -> int:
        header = protos.BundleHeader()
        try:
            header.ParseFromString(data or b"")
        except DecodeError as error:
            raise DamagedFileError(f"{index} is damaged: its header cannot be parsed; copy it again") from error
        if data is None or header.num_shards < 1:
            raise DamagedFileError(f"{index} is damaged: it has no header; copy it again")
        if header.endianness != 0:
            raise CheckpointError(f"{index} was written on a big-endian machine; save it again on a little-endian one")
        if header.version.min_consumer > VERSION or VERSION in header.version.bad_consumers:
            raise CheckpointError(
                f"{index} needs a reader of version {header.version.min_consumer}, this dtopt reads version"
                f" {VERSION}; upgrade dtopt"
            )
        return int(header.num_shards)

    def _entry(self, key: bytes, value: bytes, index: str) -> Entry:
        proto = protos.BundleEntry()
        try:
            proto.ParseFromString(value)
        except DecodeError as error:
            raise DamagedFileError(f"{index} is damaged: the entry of {key!r} cannot be parsed") from error
        shape = tuple(int(d.size) for d in proto.shape.dim)
        slices = tuple(_extents(piece) for piece in proto.slices)
        dtype = _NUMBER_TO_NAME.get(proto.dtype, f"DataType({proto.dtype})")
        entry = Entry(dtype, shape, proto.shard_id, proto.offset, proto.size, proto.crc32c, slices)
        count = math.prod(max(n, 1) for n in shape)
        wrong = proto.shape.unknown_rank or len(shape) > _MAX_RANK or min(shape, default=0) < 0 or count >= 1 << 58
        wrong = wrong or proto.dtype in _UNSAVED or not 0 <= proto.dtype <= 100
        if not wrong and not slices:
            wrong = not 0 <= entry.shard < self.shards or entry.offset < 0 or entry.size < 0
            if dtype in DTYPES:
                wrong = wrong or entry.size != math.prod(shape) * numpy_dtype(dtype).itemsize
        if wrong:
            raise DamagedFileError(f"{index} is damaged: the entry of {key!r} contradicts itself; copy it again")
        return entry

    def join(self, keys: Sequence[str], whole: str) -> None:
        """Make `whole` one tensor of the pieces at these keys.

        Raises:
          DamagedFileError: they are not the pieces of one tensor.
        """
        entries = [self._entries[key] for key in keys]
        if len({(e.dtype, e.shape) for e in entries}) > 1 or not all(e.slices for e in entries):
            raise DamagedFileError(f"{self.prefix}.index is damaged: {', '.join(keys)} are not the pieces of {whole!r}")
        for key, entry in zip(keys, entries, strict=True):
            for extents in entry.slices:
                piece = self._pieces.get(slice_key(key, extents))
                self._pieces |= {slice_key(whole, extents): piece} if piece is not None else {}
        self._entries[whole] = replace(entries[0], slices=tuple(piece for e in entries for piece in e.slices))

    def check_sizes(self) -> None:
        """Check that every tensor is within its shard. Raises DamagedFileError for a missing or truncated shard."""
        for key, entry in [*self._entries.items(), *self._pieces.items()]:
            if not entry.slices:
                self._check_extent(str(key), entry)

    def load(self, key: str) -> np.ndarray:
        """Read the tensor `key` and verify its checksum; strings are an array of `bytes` objects.

        Raises:
          KeyError: the bundle has no tensor `key`.
          DamagedFileError: its bytes are not all there, or are not those that were written.
          CheckpointError: a dtype that is not a plain array (variant, resource).
        """
        entry = self._entries[key]
        if entry.slices:
            return self._assemble(key, entry)
        return self._load_entry(key, entry)

    def load_bytes(self, key: str) -> bytes:
        """Read the scalar string `key`. Raises as `load`, and CheckpointError for other tensors."""
        entry = self._entries[key]
        if entry.dtype != STRING or entry.shape != ():
            raise CheckpointError(f"{self.prefix}: {key} is {entry.dtype}{list(entry.shape)}, not one string")
        return bytes(self.load(key)[()])

    def _load_entry(self, key: str, entry: Entry) -> np.ndarray:
        if entry.dtype == STRING:
            return self._load_strings(key, entry)
        dtype = numpy_dtype(entry.dtype)
        flat = self._place(key, entry, entry.crc32c).read()
        if entry.dtype == "bool" and flat.size and flat.max() > 1:
            raise self._flipped(key, entry)
        return flat.view(dtype).reshape(entry.shape)

    def extent(self, key: str) -> Extent | None:
        """Return where the bytes of `key` are; None for strings, booleans and partitioned variables, which must be
        decoded.

        Raises:
          DamagedFileError: the bytes are incomplete.
        """
        entry = self._entries[key]
        if entry.slices or entry.dtype not in DTYPES or entry.dtype == "bool":
            return None
        return self._place(key, entry, entry.crc32c)

    def _place(self, key: str, entry: Entry, masked_crc: int | None) -> Extent:
        self._check_extent(key, entry)
        return Extent(shard_name(self.prefix, entry.shard, self.shards), entry.offset, entry.size, key, masked_crc)

    def _check_extent(self, key: str, entry: Entry) -> None:
        path = shard_name(self.prefix, entry.shard, self.shards)
        if entry.shard not in self._shard_sizes:
            try:
                self._shard_sizes[entry.shard] = files.size(path)
            except OSError as error:
                raise DamagedFileError(
                    f"{path} is missing ({error.strerror or error}); copy it next to the index"
                ) from error
        present = self._shard_sizes[entry.shard]
        if entry.offset + entry.size > present:
            raise DamagedFileError(
                f"{path} is truncated: tensor {key!r} ends at byte {entry.offset + entry.size}, the file at"
                f" {present}; copy it again"
            )

    def _flipped(self, key: str, entry: Entry) -> DamagedFileError:
        path = shard_name(self.prefix, entry.shard, self.shards)
        return DamagedFileError(f"{path} is damaged: wrong checksum of tensor {key!r}; copy it again")

    def _load_strings(self, key: str, entry: Entry) -> np.ndarray:
        """Read varint lengths, a masked CRC of the lengths as fixed-width integers, then all bytes."""
        count = math.prod(entry.shape)
        if count + 4 > entry.size:
            raise self._flipped(key, entry)
        data, position, lengths = self._place(key, entry, None).read().tobytes(), 0, []
        for _ in range(count):
            length, position = sstable.read_varint(data, position, self.prefix)
            lengths.append(length)
        checksum = data[position : position + 4]
        crc = google_crc32c.value(fixed_lengths(lengths))
        position += 4
        if position + sum(lengths) != len(data) or checksum != struct.pack("<I", sstable.mask_crc(crc)):
            raise self._flipped(key, entry)
        crc = google_crc32c.extend(google_crc32c.extend(crc, checksum), data[position:])
        if sstable.mask_crc(crc) != entry.crc32c:
            raise self._flipped(key, entry)
        out = np.empty(count, object)
        for i, length in enumerate(lengths):
            out[i] = data[position : position + length]
            position += length
        return out.reshape(entry.shape)

    def _assemble(self, key: str, entry: Entry) -> np.ndarray:
        """Join a partitioned variable from its pieces, which must tile it exactly."""
        damaged = DamagedFileError(f"{self.prefix}.index is damaged: the pieces of {key!r} do not make up the whole")
        dtype = numpy_dtype(entry.dtype)
        pieces = []
        for stored in entry.slices:
            piece = self._pieces.get(slice_key(key, stored))
            extents = tuple((s, d if n == WHOLE_DIM else n) for (s, n), d in zip(stored, entry.shape, strict=False))
            inside = all(s >= 0 and s + n <= d for (s, n), d in zip(extents, entry.shape, strict=False))
            if piece is None or len(stored) != len(entry.shape) or not inside or piece.slices:
                raise damaged
            if piece.dtype != entry.dtype or piece.shape != tuple(n for _, n in extents):
                raise damaged
            self._check_extent(key, piece)
            pieces.append((extents, piece))
        overlap = any(_overlap(a, b) for i, (a, _) in enumerate(pieces) for b, _ in pieces[:i])
        total, present = sum(piece.size for _, piece in pieces), sum(self._shard_sizes.values())
        if overlap or total != math.prod(entry.shape) * dtype.itemsize or total > present:
            raise damaged
        whole = np.empty(entry.shape, dtype)
        for extents, piece in pieces:
            where = tuple(slice(start, start + length) for start, length in extents)
            whole[where] = self._load_entry(key, piece)
        return whole


def _extents(proto: Any) -> tuple[tuple[int, int], ...]:
    return tuple((int(e.start), int(e.length)) if e.WhichOneof("has_length") else (0, WHOLE_DIM) for e in proto.extent)


def _overlap(a: tuple[tuple[int, int], ...], b: tuple[tuple[int, int], ...]) -> bool:
    return all(s < t + m and t < s + n for (s, n), (t, m) in zip(a, b, strict=True))


def fixed_lengths(lengths: list[int]) -> bytes:
    """The bytes that the checksum of string lengths covers: 4 for each length, or 8 if it needs more."""
    return b"".join(struct.pack("<I" if n <= 0xFFFFFFFF else "<Q", n) for n in lengths)


def slice_key(name: str, extents: tuple[tuple[int, int], ...]) -> bytes:
    """The key of one piece: EncodeTensorNameSlice of core/util/saved_tensor_slice_util.cc, in ordered code."""
    encoded = name.encode("utf-8", "surrogateescape")
    out = b"\0" + b"".join(_ORDERED_ESCAPES.get(byte, bytes([byte])) for byte in encoded) + b"\0\x01"
    out += bytes([1, len(extents)]) if extents else b"\0"
    return out + b"".join(_ordered_signed(n) for extent in extents for n in extent)


_ORDERED_ESCAPES = {0: b"\0\xff", 255: b"\xff\0"}


def _ordered_signed(value: int) -> bytes:
    """OrderedCode::WriteSignedNumIncreasing (core/lib/strings/ordered_code.cc)."""
    magnitude = value if value >= 0 else ~value
    length = magnitude.bit_length() // 7 + 1
    header = ((1 << length) - 1) << (16 - length)
    padded = value.to_bytes(10, "big", signed=True)[-max(length, 2) :]
    if length == 1:
        return bytes([padded[-1] ^ (header >> 8)])
    return bytes([padded[0] ^ (header >> 8), padded[1] ^ (header & 0xFF)]) + padded[2:]
