"""Damage that knows a format: what comes out is a file of that format, with right checksums, that no release wrote.

`restructured` changes one thing in a file: an attribute or node of an HDF5 file, a value of JSON, a field of a protocol
buffer, an opcode of a pickle, a member of a zip, the header of an array, an entry of a checkpoint's index.
"""

from __future__ import annotations

import io
import json
import pickletools
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from optim.bytes.bundle import GRAPH_KEY
from optim.bytes.sstable import build_table, read_table, read_varint, write_varint
from tests.helpers import bundles
from tests.helpers.damages import BYTES, STRANGE, strange_json

WORDS = (b"", b"\x00", b"\x1b[31m", b"\xff\xfe", b"x" * 3000, b"/", b"..", b"a\nb", b"Adam", b"0", b"%s{}")
NUMBERS = (0, 1, 2, 3, 7, 127, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def restructured(path: Path, rng: random.Random) -> str:
    """Change a file in place; what was done, empty where its format is not known here."""
    kind = "".join(path.suffixes[-1:])
    if kind == ".index":
        return _index(path, rng)
    if kind in (".meta", ".pb"):
        path.write_bytes(_proto(path.read_bytes(), rng))
        return "protobuf"
    if ".data-" in path.name:
        return _bundle(path.with_name(path.name.partition(".data-")[0]), rng)
    if kind not in IN_BYTES:
        return ""
    data, done = IN_BYTES[kind](path.read_bytes(), rng)
    path.write_bytes(data)
    return done


# Protocol buffers, on the wire


def _proto(data: bytes, rng: random.Random) -> bytes:
    """A message with one field changed, at any depth."""
    parts = fields(data)
    if not parts:
        return rng.choice((*WORDS, rng.choice(BYTES)(data, rng) if len(data) > 1 else b"\x01"))
    i = rng.randrange(len(parts))
    number, wire, value = parts[i]
    choice = rng.random()
    if wire == 2 and choice < 0.75:
        parts[i] = (number, wire, _proto(value, rng))
    elif choice < 0.82:
        del parts[i]
    elif choice < 0.87:
        parts.insert(rng.randrange(len(parts) + 1), parts[i])
    elif choice < 0.9:
        parts[i] = (rng.randrange(1, 16), wire, value)
    elif choice < 0.92:
        j = rng.randrange(len(parts))
        parts[i], parts[j] = parts[j], parts[i]
    elif wire == 0:
        parts[i] = (number, 0, rng.choice((*NUMBERS, value + 1, max(value - 1, 0), value ^ 1 << rng.randrange(20))))
    else:
        parts[i] = (number, 0, rng.choice(NUMBERS)) if rng.random() < 0.3 else (number, 2, rng.choice(WORDS))
    return b"".join(encoded(*field) for field in parts)


def fields(data: bytes) -> list[tuple[int, int, Any]] | None:
    """(number, wire type, value) of each field, None if it is no message."""
    found: list[tuple[int, int, Any]] = []
    at = 0
    try:
        while at < len(data):
            tag, at = read_varint(data, at, "")
            number, wire = tag >> 3, tag & 7
            if wire == 0:
                value: Any
                value, at = read_varint(data, at, "")
            elif wire in (1, 2, 5):
                size = {1: 8, 5: 4}.get(wire, 0)
                if wire == 2:
                    size, at = read_varint(data, at, "")
                value, at = data[at : at + size], at + size
            if number == 0 or wire not in (0, 1, 2, 5) or at > len(data):
                return None
            found.append((number, wire, value))
    except ValueError:
        return None
    return found


def encoded(number: int, wire: int, value: Any) -> bytes:
    head = write_varint(number << 3 | wire)
    if wire == 0:
        return head + write_varint(value & 2**64 - 1)
    return head + (write_varint(len(value)) if wire == 2 else b"") + value


# TensorFlow's checkpoints


def _index(path: Path, rng: random.Random) -> str:
    table = read_table(str(path))
    key = rng.choice(sorted(table)) if rng.random() < 0.9 else b""
    choice = rng.random()
    if choice < 0.6:
        table[key] = _proto(table.get(key, b""), rng)
    elif choice < 0.75:
        table.pop(key, None)
    elif choice < 0.9:
        other = rng.choice((*WORDS, *(BYTES[1](key, rng) for _ in key[:1]), key + b"_1", key[: len(key) // 2]))
        table[other] = table.pop(key, b"")
    else:
        other = rng.choice(sorted(table))
        table[key], table[other] = table[other], table.get(key, b"")
    path.write_bytes(build_table(sorted(table.items())))
    return "index entry"


def _bundle(prefix: Path, rng: random.Random) -> str:
    """The object graph or another text, or the dtype, shape or presence of a tensor."""
    with bundles.rewritten(prefix) as (found, texts):
        if texts and rng.random() < 0.7:
            key = GRAPH_KEY if GRAPH_KEY in texts and rng.random() < 0.8 else rng.choice(sorted(texts))
            texts[key] = _proto(texts[key], rng) if key == GRAPH_KEY else _text(texts[key], rng)
            return "object graph" if key == GRAPH_KEY else "text tensor"
        if not found:
            return ""
        key = rng.choice(sorted(found))
        array = _array(found.pop(key), rng)
        if array is not None:
            found[key] = array
        return "tensor"


def _text(data: bytes, rng: random.Random) -> bytes:
    """JSON with something strange in it, or other words."""
    try:
        document = json.loads(data)
        if isinstance(document, dict) and document:
            return json.dumps(strange_json(document, rng)).encode()
    except ValueError:
        pass
    return rng.choice(WORDS)


def _array(array: np.ndarray, rng: random.Random) -> np.ndarray | None:
    """The array with another shape, dtype or values; None: without it."""
    flat = array.reshape(-1)
    made: tuple[Callable[[], np.ndarray | None], ...] = (
        lambda: None,
        lambda: flat,
        lambda: array[None],
        lambda: array.T.copy(),
        lambda: flat[:-1],
        lambda: np.concatenate([flat, flat[:1]]),
        lambda: flat[:0],
        lambda: np.zeros_like(array),
        lambda: np.full_like(array, np.nan if array.dtype.kind == "f" else 0),
        lambda: -array if array.dtype.kind in "fi" else array,
        lambda: array.astype(np.float64),
        lambda: array.astype(np.float16),
        lambda: array.astype(np.int64),
        lambda: array.astype(np.complex64),
        lambda: array.astype(np.bool_),
        lambda: np.array(rng.choice((0, -1, 2**62)), np.int64),
    )
    with np.errstate(all="ignore"):
        return rng.choice(made)()


# HDF5


def _h5(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    buffer = io.BytesIO(data)
    with h5py.File(buffer, "r+") as file:
        nodes: list[Any] = [file]
        file.visititems(lambda _, node: nodes.append(node))
        owners = [node for node in nodes if len(node.attrs)]
        if owners and rng.random() < 0.6:
            owner = file if len(file.attrs) and rng.random() < 0.3 else rng.choice(owners)
            name = rng.choice(sorted(owner.attrs))
            _attribute(owner, name, rng)
            done = "HDF5 attribute"
        else:
            inner = [node for node in nodes if node.name != "/"]
            if inner:
                _node(file, rng.choice(inner), rng)
            done = "HDF5 node"
    return buffer.getvalue(), done


def _attribute(owner: Any, name: str, rng: random.Random) -> None:
    value = owner.attrs[name]
    del owner.attrs[name]
    choice = rng.random()
    if choice < 0.1:
        return
    if choice < 0.15:
        owner.attrs[rng.choice(("other", name + "0", name.upper(), "weight_names"))] = value
        return
    if isinstance(value, np.ndarray) and value.size and choice < 0.7:
        items = list(value.reshape(-1))
        i, j = rng.randrange(len(items)), rng.randrange(len(items))
        change = rng.randrange(6)
        if change == 0:
            del items[i]
        elif change == 1:
            items.insert(j, items[i])
        elif change == 2:
            items[i], items[j] = items[j], items[i]
        elif change == 3:
            items[i] = type(items[i])(rng.choice(WORDS)) if isinstance(items[i], bytes) else items[i] * 2
        elif change == 4:
            rng.shuffle(items)
        else:
            items = []
        owner.attrs[name] = np.array(items, value.dtype) if value.dtype.kind != "O" else items
        return
    text = value.encode() if isinstance(value, str) else value
    if isinstance(text, bytes) and text[:1] in (b"{", b"[") and choice < 0.9:
        owner.attrs[name] = _text(text, rng)
        return
    others: tuple[Any, ...] = (
        0,
        1.5,
        -1,
        b"",
        np.bytes_(b"x\xff"),
        "text",
        h5py.Empty("f"),
        np.zeros((2, 2)),
        [b"a", b"b"],
        np.void(b"ab"),
        np.bytes_(rng.choice(WORDS).replace(b"\0", b"")),
        np.complex64(1),
        True,
    )
    owner.attrs[name] = rng.choice(others)


def _node(file: h5py.File, node: Any, rng: random.Random) -> None:
    name, parent = node.name, node.parent
    short = name.rpartition("/")[2]
    choice = rng.randrange(10)
    if choice == 0:
        other = rng.choice((short + "_1", "0", "vars", "kernel:0", "x\x1b", "optimizer_weights"))
        if other not in parent:
            parent.move(short, other)
        return
    if choice == 1 and isinstance(node, h5py.Dataset):
        others: list[str] = []
        file.visititems(lambda n, each: others.append(n) if isinstance(each, h5py.Dataset) else None)
        other = rng.choice(others)
        del parent[short]
        parent[short] = file[other] if other in file else h5py.SoftLink("/" + other)
        return
    attributes = dict(node.attrs)
    array = node[()] if isinstance(node, h5py.Dataset) else None
    del parent[short]
    if choice == 2:
        return
    if choice == 3:
        parent[short] = rng.choice((h5py.SoftLink(name), h5py.SoftLink("/"), h5py.SoftLink("/nothing")))
    elif choice == 4:
        parent[short] = h5py.ExternalLink(rng.choice(("/dev/zero", "/etc/passwd", "nothing.h5", ".")), "/x")
    elif choice == 5:
        parent[short] = parent  # a circle
    elif array is None or not isinstance(array, np.ndarray | np.generic):
        parent.create_group(short) if rng.random() < 0.5 else parent.create_dataset(short, data=1.0)
    elif choice == 6:
        parent.create_dataset(short, shape=(2**20, 2**20), dtype="f4", chunks=(64, 64))  # zeros that no disk holds
    elif choice == 7 and array.ndim:
        parent.create_dataset(short, data=array, chunks=True, compression="gzip", fletcher32=True)
    elif choice == 8:
        parent.create_dataset(short, data=rng.choice(("text", h5py.Empty("f4"), [b"a"], np.void(b"abc"))))
    else:
        changed = _array(np.asarray(array), rng)
        if changed is None:
            return
        parent.create_dataset(short, data=changed)
    if short in parent and not isinstance(parent.get(short, getlink=True), h5py.SoftLink | h5py.ExternalLink):
        parent[short].attrs.update(attributes)


# Zips, arrays, pickles


def _zip(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    i = rng.randrange(len(members))
    name, content = members[i]
    suffix = Path(name).suffix
    choice, done = rng.random(), "zip member"
    if choice < 0.7 and suffix in IN_BYTES:
        content, done = IN_BYTES[suffix](content, rng)
        members[i] = name, content
    elif choice < 0.7 and suffix == ".json":
        members[i], done = (name, _text(content, rng)), "JSON"
    elif choice < 0.76:
        del members[i]
    elif choice < 0.82:
        members.append((name, rng.choice(members)[1]))
    elif choice < 0.88:
        members[i] = rng.choice(("/x", "../x", name + "x", name.upper(), "arr_0.npy", "arr_99.npy")), content
    elif choice < 0.94:
        members[i] = name, rng.choice(BYTES)(content, rng) if content else b"x"
    else:
        rng.shuffle(members)
    buffer = io.BytesIO()
    how = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    with zipfile.ZipFile(buffer, "w", how) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue(), done


HEADERS = (
    ("'<f4'", "'>f4'"),
    ("'<f4'", "'<f8'"),
    ("'<f4'", "'<i4'"),
    ("'<f4'", "'|O'"),
    ("'<f4'", "'|V4'"),
    ("'<f4'", "[('a', '<f4')]"),
    ("'<f4'", "'<c8'"),
    ("'<f4'", "('<f4', (2,))"),
    ("False", "True"),
    ("(", "(1, "),
    ("(", "(0, "),
    ("(", "(-1, "),
    ("(", "(9999999999, "),
    (", ", ", 2, "),
    ("'shape'", "'shapes'"),
    ("{", "{'x': 1, "),
    ("}", "}" * 50),
    ("{", "{" * 50),
)


def _npy(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Another header in front of the same numbers."""
    if data[:6] != b"\x93NUMPY":
        return data, ""
    size = int.from_bytes(data[8:10], "little")
    header = data[10 : 10 + size].decode("latin1").rstrip()
    header = header.replace(*rng.choice(HEADERS)).ljust(size - 1) + "\n"
    version = bytes((rng.choice((1, 1, 1, 1, 2, 3, 9)), 0))
    count = len(header).to_bytes(4 if version[0] > 1 else 2, "little")
    if data[10 + size : 10 + size + 1] == b"\x80" and rng.random() < 0.6:  # an array of objects is a pickle
        body, _ = _pickle(data[10 + size :], rng)
        return data[: 10 + size] + body, "pickle in an array"
    return data[:6] + version + count + header.encode("latin1") + data[10 + size :], "array header"


def _pickle(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """A pickle with an opcode dropped, said twice, in another place, or with another argument."""
    try:
        starts = [at for _, _, at in pickletools.genops(data) if at is not None]
    except ValueError:
        return rng.choice(BYTES)(data, rng), "pickle bytes"
    codes = [data[a:b] for a, b in zip(starts, [*starts[1:], len(data)], strict=True)]
    i, j = rng.randrange(len(codes)), rng.randrange(len(codes))
    choice = rng.randrange(6)
    if choice == 0:
        del codes[i]
    elif choice == 1:
        codes.insert(j, codes[i])
    elif choice == 2:
        codes[i], codes[j] = codes[j], codes[i]
    elif choice == 3:
        codes[i] = codes[i][:1] + bytes(b ^ 1 << rng.randrange(8) for b in codes[i][1:9]) + codes[i][9:]
    elif choice == 4:
        codes.insert(
            i, rng.choice((b"0", b"2", b"R", b"b", b"(", b"t", b"}", b"]", b"cos\nsystem\n", b"\x93", b"Q", b"1"))
        )
    else:
        codes[i] = rng.choice((b"N", b"\x88", b"K\x07", b"J\xff\xff\xff\x7f", b"U\x03abc", b"G" + b"\x7f" * 8, b"."))
    return b"".join(codes), "pickle opcode"


IN_BYTES: dict[str, Callable[[bytes, random.Random], tuple[bytes, str]]] = {
    ".h5": _h5,
    ".keras": _zip,
    ".npz": _zip,
    ".npy": _npy,
    ".pkl": _pickle,
}


def strange_hint(config: Any, rng: random.Random) -> Any:
    """A hint with something strange in it."""
    return strange_json(config, rng) if isinstance(config, dict) and config else rng.choice(STRANGE)(rng)
