"""State in few bits, written again with numpy and Python's integers, from the papers and docs/memory.md."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

BLOCK = 2048
SMALLEST = 4096


def code_book(is_signed: bool) -> np.ndarray:
    """Every byte by the definition of dynamic tree quantization: a sign bit if there are signs, zeros, a one, and then
    the bits of a linear fraction. So many zeros mean so many powers of ten, and there are at most six before the one.
    The patterns that are left stand for 0 and 1."""
    numbers, bits = [0.0, 1.0], 7 if is_signed else 8
    for sign in (1, -1) if is_signed else (1,):
        for zeros in range(7):
            fraction_bits = bits - zeros - 1
            for fraction in range(2**fraction_bits):
                linear = 0.1 + 0.9 * (fraction + 0.5) / 2**fraction_bits
                numbers.append(sign * linear * 10.0**-zeros)
    return np.sort(np.array(numbers, np.float64)).astype(np.float32)


def encode(value: np.ndarray, is_signed: bool) -> tuple[np.ndarray, np.ndarray]:
    """(code, scale) of each number and of each block, by a look at all codes."""
    book, flat = code_book(is_signed), value.reshape(-1)
    codes, scales = np.empty(flat.size, np.int64), []
    for start in range(0, flat.size, BLOCK):
        block = flat[start : start + BLOCK]
        scale = np.abs(block).max()
        share = block / scale if scale > 0 else np.zeros_like(block)
        codes[start : start + BLOCK] = np.abs(share[:, None].astype(np.float64) - book.astype(np.float64)).argmin(1)
        scales.append(scale)
    return codes.reshape(value.shape), np.array(scales, np.float32)


def decode(codes: np.ndarray, scales: np.ndarray, is_signed: bool) -> np.ndarray:
    by_number = np.repeat(scales, BLOCK)[: codes.size].reshape(codes.shape)
    return code_book(is_signed)[codes] * by_number


def mix(x: int) -> int:
    """lowbias32 of what is 0x9e3779b9 more."""
    x = (x + 0x9E3779B9) & 0xFFFFFFFF
    x ^= x >> 16
    x = x * 0x7FEB352D & 0xFFFFFFFF
    x ^= x >> 15
    x = x * 0x846CA68B & 0xFFFFFFFF
    return x ^ (x >> 16)


def round_to_bfloat16(value: np.ndarray, seed: int, iterations: int, number: int, slot: str = "") -> np.ndarray:
    """float32 numbers, each one of the two bfloat16 numbers around it."""
    key = mix(mix(mix(seed) ^ (iterations & 0xFFFFFFFF)) ^ (iterations >> 32))
    key = mix(mix(key ^ number) ^ zlib.crc32(slot.encode()))
    noise = np.array([mix(mix(i) ^ key) >> 16 for i in range(value.size)], np.uint64)
    bits = value.astype(np.float32).reshape(-1).view(np.uint32).astype(np.uint64) + noise
    return (bits & 0xFFFF0000).astype(np.uint32).view(np.float32).reshape(value.shape)


class Stored:
    """A slot as it is stored between steps."""

    def __init__(self, start: np.ndarray, slot: Any, dtype: str | None, seed: int, number: int, small: str | None):
        self._slot, self._seed, self._number = slot, seed, number
        of_size = small if dtype == "int8" and start.size < SMALLEST else dtype
        self._dtype = of_size if slot.few_bits else None
        self._is_signed = not slot.nonnegative
        self.value = start.astype(np.float32)
        if self._dtype == "bfloat16":  # a new slot is rounded to nearest
            bits = self.value.view(np.uint32)
            self.value = ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
        self.codes: np.ndarray | None = None
        self.scales: np.ndarray | None = None

    def put(self, value: np.ndarray, iterations: int) -> None:
        self.value = value
        if self._dtype == "bfloat16":
            self.value = round_to_bfloat16(value, self._seed, iterations, self._number, self._slot.name)
        elif self._dtype == "int8":
            self.codes, self.scales = encode(value, self._is_signed)
            self.value = decode(self.codes, self.scales, self._is_signed)


class Reference:
    """Steps of a rule in float32 with numpy, and slots in few bits between them; `rounds`: variables are bfloat16."""

    def __init__(
        self, rule: Any, hyper: Mapping[str, float], start: Mapping[str, np.ndarray], dtype: str | None, **how: Any
    ):
        self._rule, self._hyper = rule, hyper
        self._rounds, self._seed = how.get("rounds", False), how.get("seed", 0)
        self.values = {name: value.astype(np.float32) for name, value in start.items()}
        small = "bfloat16" if self._rounds else None  # the dtype of the variable
        self.slots = {
            name: {
                slot.name: Stored(np.full(value.shape, slot.initial), slot, dtype, self._seed, number, small)
                for slot in rule.slots
            }
            for number, (name, value) in enumerate(start.items())
        }
        self.iterations = 0

    def step(self, gradients: Mapping[str, np.ndarray]) -> None:
        c = self._rule.coefficients(np, self._hyper, float(self.iterations + 1))
        c = {name: np.float32(value) for name, value in c.items()}
        for number, (name, value) in enumerate(self.values.items()):
            old = {slot: stored.value for slot, stored in self.slots[name].items()}
            change, new = self._rule.update(np, value, gradients[name].astype(np.float32), old, c)
            for slot, stored in self.slots[name].items():
                stored.put(new[slot].astype(np.float32), self.iterations)
            value = value + change
            if self._rounds:
                value = round_to_bfloat16(value, self._seed, self.iterations, number)
            self.values[name] = value
        self.iterations += 1
