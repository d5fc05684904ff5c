"""Blocks in Snappy's raw format: the length of the whole, then literals and copies of earlier bytes.

Sources: format_description.txt of google/snappy; tensorflow/tsl/lib/io/format.cc. TensorFlow itself writes checkpoints
without such blocks, but some files have them: a SavedModel in the test data of TensorFlow Serving.
"""

from __future__ import annotations

from optim.errors import DamagedFileError

MAX_RATIO = 64
"""No element of two or more bytes expands to more than 64."""


def decompress(data: bytes, where: str) -> bytes:
    """Return the bytes of a block.

    Raises:
      DamagedFileError: truncated, contradictory, or longer than such a block can be.
    """
    damaged = DamagedFileError(f"{where} is damaged: a compressed block contradicts itself; copy the file again")
    length, position = 0, 0
    for shift in range(0, 35, 7):
        if position >= len(data):
            raise damaged
        byte = data[position]
        position += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    if length > MAX_RATIO * len(data):
        raise damaged
    out = bytearray()
    while position < len(data):
        tag = data[position]
        position += 1
        kind, size = tag & 3, (tag >> 2) + 1
        if kind == 0:
            extra = max(size - 60, 0)  # up to 60: the size itself; above: the number of bytes of the size
            if extra:
                size = int.from_bytes(data[position : position + extra], "little") + 1
            position += extra
            literal = data[position : position + size]
            if len(literal) != size:
                raise damaged
            out += literal
            position += size
            continue
        width = (1, 2, 4)[kind - 1]
        offset = int.from_bytes(data[position : position + width], "little")
        if kind == 1:
            offset, size = offset | (tag >> 5) << 8, (tag >> 2 & 7) + 4
        position += width
        if position > len(data) or not 0 < offset <= len(out):
            raise damaged
        for _ in range(size):  # a copy may overlap its own output
            out.append(out[-offset])
        if len(out) > length:
            raise damaged
    if len(out) != length:
        raise damaged
    return bytes(out)
