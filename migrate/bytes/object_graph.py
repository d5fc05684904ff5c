"""The object graph of TF2 checkpoints (TrackableObjectGraph), as readers walk it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import DecodeError

from migrate.errors import ContradictionError, DamagedFileError
from optim.bytes import names, protos
from optim.bytes.bundle import GRAPH_KEY, BundleReader
from optim.bytes.object_tree import ATTRIBUTES
from optim.slot_layout import unescape

VALUE = "VARIABLE_VALUE"
_SLOT = "/.OPTIMIZER_SLOT/"


def _name(value: Any) -> str:
    """A variable's name. Variables that ParameterServerStrategy splits are named like their key, and so lack a name."""
    return "" if value.full_name == value.checkpoint_key else value.full_name.removesuffix(":0")


class ObjectGraph:
    """A checkpoint's objects by number; the root is 0. All references are checked at parsing."""

    def __init__(self, bundle: BundleReader) -> None:
        where = f"{bundle.prefix}: its object graph"
        graph = protos.ObjectGraph()
        try:
            graph.ParseFromString(bundle.load_bytes(GRAPH_KEY))
        except DecodeError as error:
            raise DamagedFileError(f"{where} cannot be parsed; copy or save the checkpoint again") from error
        count = len(graph.nodes)
        self.tells_values = any(node.HasField("has_checkpoint_values") for node in graph.nodes)
        """Whether objects show that they have values, as in 2.9 but not in 2.4."""
        self.children: list[dict[str, int]] = []
        self.keys: list[str | None] = []
        """Key of each object's value, None for an object that is no variable."""
        self.full_names: list[str] = []
        """The variable's name without `:0`, empty if the object lacks a name."""
        self.slot_variables: list[list[tuple[int, str, int]]] = []
        """(variable, slot name, slot variable) of each object: OptimizerV2's table."""
        for node in graph.nodes:
            children = {c.local_name: int(c.node_id) for c in node.children}
            slots = [
                (int(s.original_variable_node_id), str(s.slot_name), int(s.slot_variable_node_id))
                for s in node.slot_variables
            ]
            references = [*children.values(), *(i for s in slots for i in (s[0], s[2]))]
            value = next((a for a in node.attributes if a.name == VALUE), None)
            if any(not 0 <= i < count for i in references) or (value and value.checkpoint_key not in bundle):
                raise DamagedFileError(f"{where} refers to something that is not there; copy or save it again")
            self.children.append(children)
            self.keys.append(value.checkpoint_key if value else None)
            self.full_names.append(_name(value) if value else "")
            self.slot_variables.append(slots)
        slot_names = (name for table in self.slot_variables for _, name, _ in table)
        names.check((*self.full_names, *(name for table in self.children for name in table), *slot_names), where)
        if not count:
            raise DamagedFileError(f"{where} is empty; save the checkpoint again")
        self._check_keys(bundle)

    def _check_keys(self, bundle: BundleReader) -> None:
        """Compare the key of each value with its place in the graph, from which TensorFlow made the key.

        A key is the path from the root, that of a slot `VARIABLE/.OPTIMIZER_SLOT/OPTIMIZER/SLOT` (`checkpoint_key` and
        `serialize_slot_variables` in tensorflow/python/checkpoint).
        """
        slots = {node: (owner, i, slot) for i, table in enumerate(self.slot_variables) for owner, slot, node in table}
        for node, key in enumerate(self.keys):
            if key is not None and self._named(key) != slots.get(node, node):
                owner, _, slot = slots.get(node, (node, 0, ""))
                raise ContradictionError(
                    f"{bundle.prefix}: {key} is, in the object graph, {f'the slot {slot!r} of ' if slot else ''}"
                    f"{self._path(owner)}; one of them is altered; copy or save the checkpoint again"
                )
        named = {*self.keys}
        lost = next((key for key in bundle if key.endswith(ATTRIBUTES + VALUE) and key not in named), None)
        if lost is not None:
            raise DamagedFileError(f"{bundle.prefix}: its object graph does not list {lost}; copy or save it again")

    def _path(self, node: int) -> str:
        """The place of an object, in words."""
        return next(("/".join(path) or "the root" for n, path in self.walk() if n == node), "out of reach")

    def _named(self, key: str) -> int | tuple[int | None, int | None, str] | None:
        """The object of a key: an object, or the slot of a variable and an optimizer, as in the table."""
        owner, is_slot, path = key.removesuffix(ATTRIBUTES + VALUE).partition(_SLOT)
        optimizer, _, slot = path.rpartition("/")
        return (self._at(owner), self._at(optimizer), unescape(slot)) if is_slot else self._at(owner)

    def _at(self, path: str) -> int | None:
        """The object at the end of a path of escaped names from the root, None if the path leads nowhere."""
        node: int | None = 0
        for part in path.split("/") if path else ():
            node = None if node is None else self.children[node].get(unescape(part))
        return node

    def __len__(self) -> int:
        return len(self.keys)

    def walk(self, start: int = 0, without: frozenset[int] = frozenset()) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Yield every object reachable from `start` with its path, once, depth first in the stored order."""
        seen = set(without)
        stack: list[tuple[int, tuple[str, ...]]] = [(start, ())]
        while stack:
            node, path = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            yield node, path
            stack.extend((child, (*path, name)) for name, child in reversed(self.children[node].items()))

    def list_of(self, node: int) -> dict[int, int]:
        """Objects by position if `node` is a list of variables, else empty. Positions may be missing."""
        children = self.children[node]
        if not children or not all(name.isdecimal() and self.keys[i] is not None for name, i in children.items()):
            return {}
        return {int(name): i for name, i in sorted(children.items(), key=lambda item: int(item[0]))}
