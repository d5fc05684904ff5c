"""Damage that needs to know nothing of a format but that it is bytes, or JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any


def truncated(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def flipped(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def overwritten(data: bytes, rng: random.Random) -> bytes:
    """A few bytes become the greatest or smallest number, as lengths and offsets like least."""
    start = rng.randrange(len(data))
    fill = rng.choice((b"\0", b"\xff", b"\x7f", b"\x80")) * rng.choice((1, 2, 4, 8))
    return data[:start] + fill + data[start + len(fill) :]


def inserted(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] + rng.randbytes(rng.choice((1, 3, 8, 64))) + data[start:]


def swapped(data: bytes, rng: random.Random) -> bytes:
    size = min(rng.choice((4, 16, 64, 512)), len(data) // 4)
    a, b = sorted(rng.randrange(len(data) - size) for _ in range(2))
    if b - a < size:
        return flipped(data, rng)
    return data[:a] + data[b : b + size] + data[a + size : b] + data[a : a + size] + data[b + size :]


BYTES = (truncated, flipped, flipped, overwritten, overwritten, inserted, swapped)


def _deep(_: random.Random) -> Any:
    value: Any = 1
    for _i in range(400):
        value = {"config": value, "layers": [1]}
    return value


STRANGE: tuple[Callable[[random.Random], Any], ...] = (
    lambda _: None,
    lambda _: [],
    lambda _: {},
    lambda _: "",
    lambda _: "x" * 300,
    lambda _: True,
    lambda _: -1,
    lambda _: 10**30,
    lambda _: 10**400,
    lambda _: float("nan"),
    lambda _: float("inf"),
    lambda _: [[1]],
    lambda _: {"class_name": "Adam", "config": None},
    lambda rng: rng.random(),
    _deep,
)


def _places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from _places(value, (*path, key))


def strange_json(document: Any, rng: random.Random) -> Any:
    """A copy with one thing in it dropped or replaced by something strange."""
    document = json.loads(json.dumps(document))
    places = list(_places(document))
    optimizer = [p for p in places if "optimizer" in p or "optimizer_config" in p]
    path = rng.choice(rng.choice((places, optimizer or places)))
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    if rng.random() < 0.3:
        del parent[path[-1]]
    else:
        parent[path[-1]] = rng.choice(STRANGE)(rng)
    return document
