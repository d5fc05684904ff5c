"""State in fewer bits on another backend than TensorFlow: the same codes and the same noise as `optim/bits`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from optim import slot_layout
from optim.bits import codes, noise
from optim.bits.storage import BFLOAT16, Storage
from optim.keras.backends import Backend
from optim.keras.step_values import VARIABLE, Arrays, Tracked, dtype_of
from optim.native import maths

CODES = (codes.SIGNED, codes.UNSIGNED)
KINDS = {"float32": maths.AS_COMPUTED, BFLOAT16: maths.BFLOAT16, "float16": maths.FLOAT16}


def has_codes(dtype: str) -> bool:
    """Whether a slot of this dtype holds codes."""
    return dtype in CODES


class FewBits:
    """How the slots of a step, and variables, are stored.

    Args:
      iterations: the number of steps before, a Python int or, in a compiled function, an array.
    """

    def __init__(self, xp: Backend, storage: Storage, iterations: Any):
        self._xp, self._storage = xp, storage
        self._key: Any = None
        if storage.is_random:
            self._key = (
                noise.step_key(storage.seed, iterations) if isinstance(iterations, int) else self._hash(iterations)
            )

    def applies_to(self, stored: Mapping[str, Any], target: str, value: Any) -> bool:
        """Whether a slot is codes, or a slot or the variable is rounded stochastically.

        Args:
          stored: slots as they are stored. target, value: the key of what the rule updates, and its array.
        """
        if not self._storage.is_used:
            return False
        rounds = self._storage.rounds
        dtypes = [dtype_of(array) for array in stored.values()]
        is_rounded = any(has_codes(dtype) or rounds(dtype, is_slot=True) for dtype in dtypes)
        return is_rounded or self.rounds_variable(target, value)

    def rounds_variable(self, target: str, value: Any) -> bool:
        is_variable = target.startswith(f"{VARIABLE}.")
        return is_variable and self._storage.rounds(dtype_of(value), is_slot=False)

    def read(self, now: Arrays, name: str, tracked: Tracked) -> Any:
        """Return a slot as a step computes with it."""
        stored = now[f"{name}.{tracked.index}"]
        if not has_codes(dtype_of(stored)):
            return self._xp.cast(stored, tracked.wide)
        return self._decoded(stored, now[f"{slot_layout.scale_of(name)}.{tracked.index}"])

    def write(self, name: str, tracked: Tracked, value: Any, like: Any) -> Arrays:
        """Return what is stored of the new value of a slot, which is stored like the array `like`, by key."""
        key, dtype = f"{name}.{tracked.index}", dtype_of(like)
        if not has_codes(dtype):
            return {key: self.rounded(value, dtype, tracked, name)}
        array, scales = self._encoded(value, dtype)
        return {key: array, f"{slot_layout.scale_of(name)}.{tracked.index}": scales}

    def rounded(self, value: Any, dtype: str, tracked: Tracked, name: str = "") -> Any:
        """Return the new value of a slot, or without a name of the variable, in the dtype in which it is stored."""
        xp = self._xp
        if not self._storage.rounds(dtype, is_slot=bool(name)):
            return xp.cast(value, dtype)
        bits = xp.bits(value) + _shifted(_mixed(_mixed(self._index(value)) ^ self._array_key(tracked, name)), 16)
        chosen = xp.where(xp.isfinite(value), xp.floats(bits & -0x10000), value)
        return xp.cast(chosen, BFLOAT16)

    def stored(self, now: Arrays, names: Sequence[str], tracked: Tracked, value: Any) -> list[maths.Stored]:
        """Return how slots, and at last the variable, are stored, for dtopt's kernel."""
        storages = []
        for name, array in [*((name, now[f"{name}.{tracked.index}"]) for name in names), ("", value)]:
            dtype, element = dtype_of(array), array.element_size()
            if has_codes(dtype):
                scales = now[f"{slot_layout.scale_of(name)}.{tracked.index}"]
                storages.append(maths.Stored(maths.CODES, element, scales.data_ptr(), dtype == codes.SIGNED))
            elif self._storage.rounds(dtype, is_slot=bool(name)):
                key = noise.array_key(self._key, tracked.index, name)
                storages.append(maths.Stored(maths.RANDOM_BFLOAT16, element, key=key))
            else:
                storages.append(maths.Stored(KINDS[dtype], element))
        return storages

    # Noise.

    def _hash(self, iterations: Any) -> Any:
        """Return the key of a step whose number is an array."""
        high = iterations >> 32 if dtype_of(iterations) == "int64" else 0
        low = self._xp.cast(iterations, "int32")
        high = self._xp.cast(high, "int32")
        return _mixed(_mixed(_signed(noise.mix(self._storage.seed)) ^ low) ^ high)

    def _array_key(self, tracked: Tracked, name: str) -> Any:
        if isinstance(self._key, int):
            return _signed(noise.array_key(self._key, tracked.index, name))
        return _mixed(_mixed(self._key ^ tracked.index) ^ _signed(noise.stream(name)))

    def _index(self, value: Any) -> Any:
        """Return the index of each element in the whole array, modulo 2³²."""
        xp, shape = self._xp, tuple(value.shape)
        total: Any = xp.zeros_like(xp.bits(value))
        for dim, size in enumerate(shape):
            count = xp.counting(size, value)
            place = xp.reshape(count, [size if d == dim else 1 for d in range(len(shape))])
            total = total + place * _signed(math.prod(shape[dim + 1 :]) % noise.WORD)
        return total

    # Codes.

    def _blocks(self, flat: Any) -> Any:
        xp, missing = self._xp, -flat.shape[0] % codes.BLOCK
        return xp.reshape(xp.pad(flat, ((0, missing),)) if missing else flat, (-1, codes.BLOCK))

    def _whole(self, blocks: Any, shape: Sequence[int]) -> Any:
        return self._xp.reshape(self._xp.reshape(blocks, (-1,))[: math.prod(shape)], tuple(shape))

    def _encoded(self, value: Any, dtype: str) -> tuple[Any, Any]:
        xp, is_signed = self._xp, dtype == codes.SIGNED
        blocks = self._blocks(xp.reshape(value, (-1,)))
        scales = xp.amax(xp.abs(blocks), 1)
        is_usable = xp.logical_and(scales > 0, xp.isfinite(scales))
        safe = xp.where(is_usable, scales, xp.ones_like(scales))
        shares = xp.where(is_usable[:, None], blocks / safe[:, None], xp.zeros_like(blocks))
        bits, is_negative = xp.bits(xp.maximum(xp.abs(shares), 2.0**-23)), shares < 0
        places = (bits >> 16) - codes.FIRST_STEP + xp.where(is_negative, codes.STEPS, 0)
        numbers = (xp.like(codes.steps(is_signed), value)[places] + (bits & 0xFFFF)) >> 16
        numbers = xp.where(is_negative, 255 - numbers, numbers) - (128 if is_signed else 0)
        return xp.cast(self._whole(numbers, value.shape), dtype), scales

    def _decoded(self, stored: Any, scales: Any) -> Any:
        xp, is_signed = self._xp, dtype_of(stored) == codes.SIGNED
        places = xp.cast(xp.reshape(stored, (-1,)), "int32") + (128 if is_signed else 0)
        shares = self._blocks(xp.like(codes.code_book(is_signed), stored)[places])
        return self._whole(shares * scales[:, None], stored.shape)


def _signed(word: int) -> int:
    """Return the int32 with the bits of a uint32."""
    return word - noise.WORD if word >= noise.WORD // 2 else word


def _shifted(x: Any, bits: int) -> Any:
    """Return an int32 array shifted to the right, as if it had no sign."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)


def _mixed(x: Any) -> Any:
    """Return `noise.mix` of an int32 array, whose sums and products wrap around."""
    x = x + _signed(noise.ADDED)
    x = (x ^ _shifted(x, 16)) * _signed(noise.FIRST)
    x = (x ^ _shifted(x, 15)) * _signed(noise.SECOND)
    return x ^ _shifted(x, 16)


def coded_slot(slot: Any, dtype: str, shape: Sequence[int]) -> tuple[int, int, float]:
    """Return the code of each element of a new slot, the number of its scales, and the scale of each block."""
    fill = float(slot.initial)
    return codes.code_of(bool(fill), dtype), codes.blocks_of(int(np.prod(shape, dtype=np.int64))), fill
