"""Numbers as codes of 8 bits with a scale for each block of 2,048.

Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (ICLR 2022), sections 1.3, 2.1 and 2.2: a block is
divided by its largest absolute value, and each number becomes the code of the nearest number in the code book of
dynamic tree quantization. For slots without negative numbers the book has one more bit for the fraction instead of a
sign.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from optim import lazy

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = lazy.modules("tensorflow")

BLOCK = 2048
"""Numbers that share a scale, in the order of the flattened variable."""
SMALLEST = 4096
"""Variables with fewer elements keep their slots as they are, as in bitsandbytes (`min_8bit_size`)."""
DECADES = 7
SIGNED, UNSIGNED = "int8", "uint8"
"""Dtypes of codes: of any numbers, less 128; and of numbers that are never negative."""


@cache
def code_book(is_signed: bool) -> np.ndarray:
    """The 256 numbers that codes represent, in ascending order, float32.

    The decade below 10⁻ᵏ, from 1 to 10⁻⁶, is cut into equal parts, of which there are half as many as in the one above;
    codes represent their middles. Two codes are left for 0 and 1.
    """
    numbers = [0.0, 1.0]
    for decade in range(DECADES):
        parts = 2 ** (DECADES - 1 - decade) * (1 if is_signed else 2)
        edges = np.linspace(0.1, 1.0, parts + 1)
        middles = (edges[:-1] + edges[1:]) / 2 * 10.0**-decade
        numbers += [*middles, *(-middles if is_signed else ())]
    return np.sort(np.array(numbers)).astype(np.float32)


@cache
def borders(is_signed: bool) -> np.ndarray:
    """The 255 numbers half way between codes; one that is on a border has the lower code."""
    book = code_book(is_signed)
    return (book[:-1] + book[1:]) / np.float32(2)


FIRST_STEP, STEPS = 0x3400, 0x3F80 - 0x3400 + 1
"""The upper half of the bits of 2⁻²³, below which all have the code of zero, and how many halves there are up to 1."""


@cache
def steps(is_signed: bool) -> np.ndarray:
    """Return what turns a share in [−1, 1] into its code without a search, int32.

    At most one border is among the numbers whose upper halves of bits are equal. Each such half has an entry: the code
    of the first number in the upper half of the entry, and in the lower half what the lower half of the border's bits
    lacks to 2¹⁶. So the code is `(entry + lower half) >> 16`. The second half of the table is for the magnitudes of
    negative numbers, and gives 255 less the code.
    """
    limits = borders(is_signed)
    firsts = (np.arange(FIRST_STEP, FIRST_STEP + STEPS, dtype=np.uint32) << 16).view(np.float32)
    tables = []
    for is_negative in (False, True):
        codes = 255 - np.searchsorted(limits, -firsts) if is_negative else np.searchsorted(limits, firsts)
        table = codes.astype(np.int32) << 16
        magnitudes = np.abs(limits[limits < 0 if is_negative else limits > 0]).view(np.uint32).astype(np.int32)
        last_below = (magnitudes & 0xFFFF) - is_negative  # a number on a border has the lower code
        table[(magnitudes >> 16) - FIRST_STEP] += np.where(last_below < 0, 0, 0xFFFF - last_below).astype(np.int32)
        tables.append(table)
    return np.concatenate(tables)


def code_of(is_largest: bool, dtype: str) -> int:
    """Return the code of the largest number of a block, or of zero, as it is stored in `dtype`."""
    book = code_book(dtype == SIGNED)
    return int(np.searchsorted(book, 1.0 if is_largest else 0.0)) - (128 if dtype == SIGNED else 0)


def blocks_of(size: int) -> int:
    """How many scales there are for so many numbers."""
    return -(-size // BLOCK)


def encode(value: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """`encoded` of a numpy array."""
    blocks = _padded(value.astype(np.float32).reshape(-1))
    scales = np.abs(blocks).max(axis=1, initial=0.0)
    is_usable = (scales > 0) & np.isfinite(scales)
    with np.errstate(invalid="ignore"):
        shares = np.where(is_usable[:, None], blocks / np.where(is_usable, scales, np.float32(1))[:, None], 0.0)
    is_signed = dtype == SIGNED
    codes = np.searchsorted(borders(is_signed), shares.reshape(-1)) - (128 if is_signed else 0)
    return codes[: value.size].astype(dtype).reshape(value.shape), scales


def decode(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """`decoded` of numpy arrays."""
    is_signed = codes.dtype == SIGNED
    shares = code_book(is_signed)[codes.reshape(-1).astype(np.int32) + (128 if is_signed else 0)]
    numbers: np.ndarray = (_padded(shares) * scales[:, None]).reshape(-1)[: codes.size].reshape(codes.shape)
    return numbers


def _padded(flat: np.ndarray) -> np.ndarray:
    return np.pad(flat, (0, -flat.size % BLOCK)).reshape(-1, BLOCK)


def encoded(value: Any, dtype: tf.DType) -> tuple[Any, Any]:
    """The codes of a float32 tensor, in its shape, and the scales. A block that is not finite has scale only."""
    blocks = _blocks(tf.reshape(value, [-1]))
    scales = tf.reduce_max(tf.abs(blocks), axis=1)
    is_usable = tf.logical_and(scales > 0, tf.math.is_finite(scales))
    safe = tf.where(is_usable, scales, tf.ones_like(scales))[:, tf.newaxis]
    shares = tf.where(is_usable[:, tf.newaxis], blocks / safe, tf.zeros_like(blocks))
    is_signed = dtype == SIGNED
    bits = tf.bitcast(tf.maximum(tf.abs(shares), 2.0**-23), tf.int32)
    is_negative = shares < 0
    places = tf.bitwise.right_shift(bits, tf.constant(16)) - FIRST_STEP + STEPS * tf.cast(is_negative, tf.int32)
    sums = tf.gather(tf.constant(steps(is_signed)), places) + tf.bitwise.bitwise_and(bits, tf.constant(0xFFFF))
    numbers = tf.bitwise.right_shift(sums, tf.constant(16))
    codes = tf.where(is_negative, 255 - numbers, numbers) - (128 if is_signed else 0)
    return tf.reshape(tf.cast(tf.reshape(codes, [-1])[: tf.size(value)], dtype), tf.shape(value)), scales


def decoded(codes: Any, scales: Any) -> Any:
    """The float32 tensor that `encoded` gave the codes of, rounded to the code book."""
    is_signed = codes.dtype == SIGNED
    places = tf.cast(tf.reshape(codes, [-1]), tf.int32) + (128 if is_signed else 0)
    shares = _blocks(tf.gather(tf.constant(code_book(is_signed)), places))
    return tf.reshape(tf.reshape(shares * scales[:, tf.newaxis], [-1])[: tf.size(codes)], tf.shape(codes))


def _blocks(flat: Any) -> Any:
    return tf.reshape(tf.pad(flat, [[0, -tf.size(flat) % BLOCK]]), [-1, BLOCK])
