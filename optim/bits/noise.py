"""Stochastic rounding to bfloat16, with the noise of a counter: no state, and the same bits wherever it is computed.

The noise of an element is a hash of the seed, the number of the step, the variable, the slot, and the element's index
in the whole variable. `mix` is the hash `lowbias32` of Chris Wellons ("Prospecting for Hash Functions", 2018), after
the addition of an odd constant, so that 0 is not mapped to 0. `cpp/arithmetic.h` has the same for the kernel.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from optim import lazy

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = lazy.modules("tensorflow")

WORD = 2**32
ADDED, FIRST, SECOND = 0x9E3779B9, 0x7FEB352D, 0x846CA68B


def mix(x: Any) -> Any:
    """A hash of 32 bits, of a Python int or of a uint32 tensor."""
    if isinstance(x, int):
        x = (x + ADDED) % WORD
        x = (x ^ x >> 16) * FIRST % WORD
        x = (x ^ x >> 15) * SECOND % WORD
        return x ^ x >> 16
    x = x + _word(ADDED)
    x = xor(x, _shifted(x, 16)) * _word(FIRST)
    x = xor(x, _shifted(x, 15)) * _word(SECOND)
    return xor(x, _shifted(x, 16))


def xor(x: Any, y: Any) -> Any:
    """x ^ y of ints or uint32 tensors."""
    if isinstance(x, int) and isinstance(y, int):
        return x ^ y
    return tf.bitwise.bitwise_xor(*(_word(n) if isinstance(n, int) else n for n in (x, y)))


def _word(number: int) -> Any:
    return tf.constant(number, tf.uint32)


def _shifted(x: Any, bits: int) -> Any:
    return tf.bitwise.right_shift(x, _word(bits))


def step_key(seed: int, iterations: Any) -> Any:
    """The key of the step after `iterations` steps: a Python int, or of an int64 tensor a uint32 tensor."""
    if isinstance(iterations, int):
        return mix(mix(mix(seed) ^ iterations % WORD) ^ iterations // WORD)
    low = tf.cast(tf.bitwise.bitwise_and(iterations, WORD - 1), tf.uint32)
    high = tf.cast(tf.bitwise.right_shift(iterations, tf.constant(32, iterations.dtype)), tf.uint32)
    return mix(xor(mix(xor(mix(seed), low)), high))


def stream(slot: str) -> int:
    """The number of a slot among those of a variable; the variable itself has the empty name."""
    return zlib.crc32(slot.encode())


def array_key(key: Any, number: int, slot: str = "") -> Any:
    """The key of one array in a step: a slot of variable number `number` of the optimizer, or that variable."""
    return mix(xor(mix(xor(key, number)), stream(slot)))


def rounded(value: Any, key: Any, index: Any) -> Any:
    """A float32 tensor in bfloat16, each number rounded up or down so that the mean of all outcomes is the number.

    Args:
      key: of the array, a uint32 scalar. index: uint32, in the shape of `value`: each element's index.
    """
    noise = _shifted(mix(xor(mix(index), key)), 16)
    bits = tf.bitcast(value, tf.uint32) + noise
    chosen = tf.bitcast(tf.bitwise.bitwise_and(bits, _word(0xFFFF0000)), tf.float32)
    return tf.cast(tf.where(tf.math.is_finite(value), chosen, value), tf.bfloat16)
