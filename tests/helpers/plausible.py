"""Changes after which a file looks as sound as before: right checksums, the same shapes, words that it might have held.

`altered` changes one thing in a file that a step may depend on: a number, switch, word or key of JSON, the values of an
array, the order of a list of names, a constant or word of a protocol buffer.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from optim.bytes.bundle import GRAPH_KEY
from tests.alterations.alteration import CLASSES, RELEASES
from tests.alterations.arrays import arrays, unzipped, zipped
from tests.helpers import bundles
from tests.helpers.structures import encoded, fields

FACTORS = (2.0, 0.5, 10.0, 0.9, 1.01, -1.0, 0.0)


def altered(path: Path, rng: random.Random) -> str:
    """Change a file in place; what was done, empty where nothing in it can be changed so."""
    kind = path.suffix
    if ".data-" in path.name or kind == ".index":
        prefix = path.with_suffix("") if kind == ".index" else path.with_name(path.name.partition(".data-")[0])
        return _bundle(prefix, rng)
    if kind in (".meta", ".pb"):
        path.write_bytes(_proto(path.read_bytes(), rng))
        return "word or constant"
    if kind == ".h5" and rng.random() < 0.6:
        return _attribute(path, rng)
    if kind == ".keras" and rng.random() < 0.6:
        members = unzipped(path)
        name = rng.choice(["config.json", "config.json", "config.json", "metadata.json"])
        members[name] = json.dumps(altered_json(json.loads(members[name]), rng)).encode()
        zipped(path, members)
        return name
    if kind in (".h5", ".keras", ".npz", ".npy", ".pkl"):
        with arrays(path.parent, path.name) as found:
            return _numbers(found, rng)
    return ""


def altered_json(document: Any, rng: random.Random) -> Any:
    """A copy with one number, switch, word or key changed, oftener in the optimizer's config than elsewhere."""
    document = json.loads(json.dumps(document))
    places = list(_places(document))
    words = sorted({owner[key] for owner, key, _ in places if isinstance(owner[key], str)})
    optimizer = [p for p in places if "optimizer" in p[2] or "optimizer_config" in p[2]]
    owner, key, way = rng.choice(optimizer if optimizer and rng.random() < 0.7 else places)
    value = owner[key]
    if isinstance(owner, dict) and rng.random() < 0.15:
        del owner[key]
    elif isinstance(value, bool):
        owner[key] = not value
    elif isinstance(value, int | float):
        owner[key] = rng.choice((value + 1, value - 1, value * 2, value * 10, value / 2, value * 1.01, None))
    elif value is None:
        owner[key] = rng.choice((0.5, 0.0, 1, True))
    elif isinstance(value, str):
        others = CLASSES if key == "class_name" and "optimizer" in str(way) else words
        owner[key] = rng.choice((*RELEASES, *others) if key == "keras_version" else others)
    elif isinstance(value, list):
        rng.shuffle(value)
    else:
        del owner[key]
    return document


def _places(node: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, Any, tuple[Any, ...]]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    found = []
    for key, value in items:
        found += [(node, key, (*way, key)), *_places(value, (*way, key))]
    return found


def _attribute(path: Path, rng: random.Random) -> str:
    """JSON or a list of names in an HDF5 file."""
    with h5py.File(path, "r+") as file:
        owners: list[Any] = [file]
        file.visititems(lambda _, node: owners.append(node))
        held = [(node, name) for node in owners for name in node.attrs]
        configs = [(node, name) for node, name in held if name in ("training_config", "model_config")]
        if not held:
            return ""
        node, name = rng.choice(configs if configs and rng.random() < 0.7 else held)
        value = node.attrs[name]
        if isinstance(value, np.ndarray) and value.size:
            items = list(value.reshape(-1))
            i, j = rng.randrange(len(items)), rng.randrange(len(items))
            items[i], items[j] = items[j], items[i]
            node.attrs[name] = np.array(items, value.dtype) if value.dtype.kind != "O" else items
            return "names"
        text = value.decode() if isinstance(value, bytes) else value
        if not isinstance(text, str):
            return ""
        if text[:1] in "{[":
            node.attrs[name] = json.dumps(altered_json(json.loads(text), rng)).encode()
        else:
            node.attrs[name] = rng.choice((*RELEASES, "tensorflow", "theano", "jax")).encode()
        return str(name)


def _bundle(prefix: Path, rng: random.Random) -> str:
    with bundles.rewritten(prefix) as (numbers, texts):
        if texts and (not numbers or rng.random() < 0.4):
            key = GRAPH_KEY if GRAPH_KEY in texts and rng.random() < 0.6 else rng.choice(sorted(texts))
            if texts[key][:1] in (b"{", b"["):
                texts[key] = json.dumps(altered_json(json.loads(texts[key]), rng)).encode()
                return "JSON tensor"
            texts[key] = _proto(texts[key], rng)
            return "object graph" if key == GRAPH_KEY else "text tensor"
        return _numbers(numbers, rng)


def _numbers(found: MutableMapping[str, Any], rng: random.Random) -> str:
    """One array with other values, or with those of another one of its shape."""
    key = rng.choice(sorted(found))
    array = np.array(found[key])
    if array.dtype.kind not in "fiu":
        return ""
    twins = [k for k in found if k != key and _alike(found[k], array)]
    if twins and rng.random() < 0.4:
        other = rng.choice(sorted(twins))
        found[key], found[other] = np.array(found[other]), array
        return "two arrays exchanged"
    if array.size == 1:
        plus = rng.choice((1, -1, 2, 1000))
        with np.errstate(all="ignore"):
            new = array + plus if array.dtype.kind != "f" else array * array.dtype.type(rng.choice(FACTORS))
        found[key] = np.asarray(new).astype(array.dtype)
        return "a scalar"
    if rng.random() < 0.5:
        with np.errstate(all="ignore"):
            array.flat[rng.randrange(array.size)] *= array.dtype.type(rng.choice(FACTORS))
        found[key] = array
        return "an element"
    with np.errstate(all="ignore"):
        found[key] = (array * array.dtype.type(rng.choice(FACTORS))).astype(array.dtype)
    return "an array"


def _alike(one: Any, other: np.ndarray) -> bool:
    return np.shape(one) == other.shape and np.asarray(one).dtype == other.dtype


def _proto(data: bytes, rng: random.Random) -> bytes:
    """A message with one leaf changed: a number, a constant, or a word into another word of the message."""
    leaves: list[tuple[tuple[int, ...], int, Any]] = []
    _leaves(data, (), leaves)
    if not leaves:
        return data
    words = sorted({value for _, wire, value in leaves if wire == 2 and value})
    constants = [leaf for leaf in leaves if leaf[1] in (1, 5) or (leaf[1] == 2 and len(leaf[2]) in (4, 8))]
    way, wire, value = rng.choice(constants if constants and rng.random() < 0.4 else leaves)
    return _with_leaf(data, way, _leaf(wire, value, words, rng))


def _leaf(wire: int, value: Any, words: list[bytes], rng: random.Random) -> Any:
    if wire == 0:
        return rng.choice((value + 1, max(value - 1, 0), 1 - min(value, 1)))
    form = "<f" if len(value) == 4 else "<d" if len(value) == 8 else ""
    if form and (wire != 2 or not value.isascii() or not value.decode().isprintable()):
        number = struct.unpack(form, value)[0] * rng.choice(FACTORS)
        return struct.pack(form, number) if abs(number) < 1e30 else value
    if value[:1] == b"{":
        try:
            return json.dumps(altered_json(json.loads(value), rng)).encode()
        except ValueError:
            return value
    return rng.choice(words)


def _leaves(data: bytes, way: tuple[int, ...], found: list[tuple[tuple[int, ...], int, Any]]) -> None:
    for i, (_, wire, value) in enumerate(fields(data) or ()):
        text = wire == 2 and (not value or (value.isascii() and value.decode().isprintable()))
        if wire == 2 and not text and len(value) not in (4, 8) and fields(value):
            _leaves(value, (*way, i), found)
        else:
            found.append(((*way, i), wire, value))


def _with_leaf(data: bytes, way: tuple[int, ...], new: Any) -> bytes:
    parts = fields(data) or []
    number, wire, value = parts[way[0]]
    parts[way[0]] = (number, wire, new if len(way) == 1 else _with_leaf(value, way[1:], new))
    return b"".join(encoded(*part) for part in parts)
