"""Read the tree of `vars` groups that Keras's saving library writes into `model.weights.h5` and `.weights.h5`.

Upstream: `saving/saving_lib.py::H5IOStore` of tf_keras 2.12 - 2.21 and Keras 3.0 - 3.15. Every object that owns
variables is a group with a member `vars`, whose datasets are called `0`, `1`, ... in the order of its variables;
objects that it owns are next to `vars`, under the attribute's name or, in lists such as `layers`, under their class.
tf.keras joined these names with the system's separator: on Windows a group is called `layers\\dense`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import h5py

from migrate.bytes import hdf5
from migrate.bytes.arrays import LazyArray
from migrate.errors import DamagedFileError

VARS = "vars"
WINDOWS_SEPARATOR = "\\"
MAX_DEPTH = 64
MAX_GROUPS = 1_000_000


@dataclass
class Node:
    """One group. `name` is the object's own name if the file has it (Keras 3.5 and later)."""

    path: str
    name: str | None = None
    arrays: dict[str, LazyArray] = field(default_factory=dict)
    """By dataset name, `0`, `1`, ... in that order; other names after them."""
    children: dict[str, Node] = field(default_factory=dict)

    def walk(self) -> Iterator[Node]:
        yield self
        for child in self.children.values():
            yield from child.walk()


def read_tree(file: h5py.File, where: hdf5.Source) -> Node:
    """Read a whole file. Tensors stay in it.

    Raises:
      DamagedFileError: links, cycles, an object that is no tensor, or gaps in a numbering.
    """
    root = Node("")
    seen: set[object] = set()
    _fill(root, file, where, seen, 0)
    return root


def _fill(node: Node, group: h5py.Group, where: hdf5.Source, seen: set[object], depth: int) -> None:
    address = h5py.h5o.get_info(group.id).addr
    if address in seen or depth > MAX_DEPTH or len(seen) > MAX_GROUPS:
        raise DamagedFileError(f"{where}: its groups are nested without end at {node.path!r}; such files are refused")
    seen.add(address)
    for key in group:
        child = hdf5.member(group, key, str(where))
        if not isinstance(child, h5py.Group):
            raise DamagedFileError(
                f"{where}: {_child(node, key).path!r} is no group; this is not a file of Keras's saving library"
            )
        if key == VARS:
            node.name = hdf5.text_attribute(child, "name")
            names = _sorted_as_numbers(list(child))
            node.arrays = dict(zip(names, hdf5.lazy_datasets(child, names, where), strict=True))
        else:
            _fill(_below(node, key, str(where)), child, where, seen, depth + 1)


def _below(node: Node, key: str, where: str) -> Node:
    """Return the new node of a group. Names from Windows get nodes between for their parts."""
    *between, last = key.split(WINDOWS_SEPARATOR)
    for part in between:
        node = node.children.setdefault(part, _child(node, part))
    if node.children.get(last, Node("")).arrays:
        raise DamagedFileError(f"{where}: two groups are called {node.children[last].path!r}; such files are refused")
    return node.children.setdefault(last, _child(node, last))


def _child(node: Node, key: str) -> Node:
    return Node(f"{node.path}/{key}" if node.path else key)


def _sorted_as_numbers(names: list[str]) -> list[str]:
    return sorted(names, key=lambda name: (0, int(name), "") if name.isdecimal() else (1, 0, name))


def merge(into: Node, other: Node, where: str) -> None:
    """Merge the tree of one shard into that of the others."""
    into.name = into.name or other.name
    twice = into.arrays.keys() & other.arrays.keys()
    if twice:
        raise DamagedFileError(f"{where}: two shards hold {into.path}/{VARS}/{min(twice)}; copy all shards again")
    both = {**into.arrays, **other.arrays}
    into.arrays = {name: both[name] for name in _sorted_as_numbers(list(both))}
    for key, child in other.children.items():
        merge(into.children.setdefault(key, Node(child.path)), child, where)


def check_numbering(node: Node, where: str) -> None:
    """Check that every list of variables is numbered from 0 without a gap. Raises DamagedFileError."""
    for group in node.walk():
        numbers = [int(name) for name in group.arrays if name.isdecimal()]
        if numbers != list(range(len(numbers))):
            missing = next(i for i in range(len(numbers)) if numbers[i] != i)
            raise DamagedFileError(f"{where}: {group.path}/{VARS}/{missing} is missing; the file is incomplete")


def by_class(children: Mapping[str, Node]) -> dict[str, list[tuple[int, Node]]]:
    """Members of a list such as `layers` by class, `dense`, `dense_1`, `dense_2` -> dense: 0, 1, 2.

    A class may itself end in a number (`block_1`): then it is its own class, unless `block` is there too.
    """
    classes: dict[str, list[tuple[int, Node]]] = {}
    for key, child in children.items():
        head, _, tail = key.rpartition("_")
        numbered = tail.isdecimal() and str(int(tail)) == tail and tail != "0" and head in children
        classes.setdefault(head if numbered else key, []).append((int(tail) if numbered else 0, child))
    return {name: sorted(members, key=lambda m: m[0]) for name, members in classes.items()}
