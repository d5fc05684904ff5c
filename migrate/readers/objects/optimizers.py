"""Find the optimizers in an object graph, and choose one if there are several, as in a GAN's checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from migrate.bytes.object_graph import ObjectGraph
from migrate.claims import Questions, asking
from migrate.errors import AmbiguousError
from migrate.surfaces import OPTIMIZER
from optim.errors import HyperparameterError

COUNTERS = ("iter", "_iterations")
POWERS = ("beta1_power", "beta2_power")
"""The counter of tf.train.AdamOptimizer."""
# Lists of an optimizer that are not slots.
_NO_SLOTS = frozenset({"_variables", "_trainable_variables", "_trainable_variables_indices"})
_WRAPPED = ("inner_optimizer", "_optimizer", "_inner_optimizer", "awg_optimizer", "lh_base_optimizer")


@dataclass(frozen=True)
class GraphOptimizer:
    """An optimizer by its node; `path` leads to it from the root."""

    node: int
    path: tuple[str, ...]
    wrappers: tuple[int, ...] = ()
    """The optimizers that wrap it, such as a LossScaleOptimizer, innermost first."""

    @property
    def name(self) -> str:
        return ".".join(self.path) or "the root"

    @property
    def nodes(self) -> list[int]:
        return [self.node, *self.wrappers]


def find(graph: ObjectGraph) -> list[GraphOptimizer]:
    """Find every optimizer that does not wrap another."""
    paths = {
        node: path
        for node, path in graph.walk()
        if graph.slot_variables[node]
        or any(_is_scalar(graph, node, name) for name in COUNTERS)
        or all(_is_scalar(graph, node, name) for name in POWERS)
        or _counts_in_its_list(graph, node)
    }
    wrappers: dict[int, int] = {}
    outer: set[int] = set()
    for node in paths:
        inside = {name: inner for name, inner in graph.children[node].items() if inner in paths and inner != node}
        outer |= {node} if inside else set()
        wrappers |= {inner: node for name, inner in inside.items() if _wraps(graph, node, name, inner)}
    return [GraphOptimizer(node, path, _chain(node, wrappers)) for node, path in paths.items() if node not in outer]


def _chain(node: int, wrappers: Mapping[int, int]) -> tuple[int, ...]:
    chain: list[int] = []
    while node in wrappers and wrappers[node] not in chain:
        node = wrappers[node]
        chain.append(node)
    return tuple(chain)


def _wraps(graph: ObjectGraph, node: int, name: str, inner: int) -> bool:
    """Whether one is an optimizer that wraps the other, not a custom object with a counter and an optimizer, such as
    `tf.train.Checkpoint(iter=..., optimizer=...)`."""
    counts = any(_is_scalar(graph, inner, counter) for counter in COUNTERS)
    return name in _WRAPPED or bool(graph.slot_variables[node]) or not counts


def _counts_in_its_list(graph: ObjectGraph, node: int) -> bool:
    """Whether it is one of Keras 3 whose counter is only in its list of variables, as in 3.4."""
    children = graph.children[node]
    first = (
        graph.list_of(children["_variables"]).get(0)
        if {"_variables", "_trainable_variables"} <= children.keys()
        else None
    )
    return first is not None and graph.full_names[first].rpartition("/")[2] in ("iteration", "iterations")


def choose(optimizers: Sequence[GraphOptimizer], path: str | None, where: str) -> GraphOptimizer | None:
    """Return the optimizer of that path, or the only one; None if there is no optimizer.

    Raises:
      AmbiguousError: several and no path. HyperparameterError: no optimizer has that path.
    """
    paths = [optimizer.name for optimizer in optimizers]
    if path is not None:
        wanted = path.replace("/", ".")
        chosen = next((o for o in optimizers if o.name == wanted), None)
        if chosen is None:
            raise HyperparameterError(f"{where} holds no optimizer {path!r}; --optimizer takes: {listed(paths)}")
        return chosen
    if len(optimizers) > 1:
        raise several(where, paths)
    return optimizers[0] if optimizers else None


def slot_lists(graph: ObjectGraph, optimizer: int) -> dict[str, dict[int, int]]:
    """Objects by position for each list of the optimizer that may hold slots: `_momentums`, ..."""
    lists = {n: graph.list_of(i) for n, i in graph.children[optimizer].items() if n not in _NO_SLOTS}
    nonempty = {name: members for name, members in lists.items() if members}
    return nonempty if nonempty or tracked(graph, optimizer) else _by_name(graph, optimizer)


def _by_name(graph: ObjectGraph, optimizer: int) -> dict[str, dict[int, int]]:
    """The same from the names in its list of all variables. An optimizer of TF 2.11 and later that was restored before
    it had slots saves only this list. Empty if the names do not show it."""
    children = graph.children[optimizer]
    nodes = graph.list_of(children.get("_variables", 0)) if "_variables" in children else {}
    slots = [node for _, node in sorted(nodes.items()) if node not in children.values()]
    full_names = set(graph.full_names) - {""}
    splits = [_split(graph, slots, depth) for depth in (1, 0)]
    named = (candidate for candidate in splits if candidate and all(owner in full_names for _, owner, _ in candidate))
    split = next(named, splits[0])
    places = {place: i for i, place in enumerate(dict.fromkeys((owner, k) for _, owner, k in split))}
    lists: dict[str, dict[int, int]] = {}
    for node, (slot, owner, k) in zip(slots if split else [], split, strict=True):
        lists.setdefault(slot, {})[places[owner, k]] = node
    is_whole = all(len(members) == len(places) for members in lists.values())
    return lists if is_whole or not any(k for _, _, k in split) else {}


def _split(graph: ObjectGraph, slots: Sequence[int], depth: int) -> list[tuple[str, str, int]]:
    """(slot, variable, number of earlier slots of that name) for each name `Adam/m/dense/kernel`, split after `depth`
    parts; `m/dense/kernel` in a LossScaleOptimizer of TF 2.14 and later."""
    parsed: list[tuple[str, str, int]] = []
    for node in slots:
        parts = slot_name(graph, node).split("/")
        if len(parts) < depth + 2:
            return []
        slot, owner = parts[depth], "/".join(parts[depth + 1 :])
        parsed.append((slot, owner, sum((slot, owner) == earlier[:2] for earlier in parsed)))
    return parsed


def slot_name(graph: ObjectGraph, node: int) -> str:
    """A slot's name without the scope `cond_1` that a LossScaleOptimizer of TF 2.11 to 2.13 adds."""
    return re.sub(r"^cond(_\d+)?/", "", graph.full_names[node])


def tracked(graph: ObjectGraph, optimizer: int) -> dict[int, int]:
    """Its trained variables by position, if it lists them, as Keras 3 does."""
    return graph.list_of(graph.children[optimizer].get("_trainable_variables", 0))


def several(where: str, paths: Sequence[str]) -> AmbiguousError:
    """The refusal that asks you to choose one of several optimizers."""
    text = f"{where} holds {len(paths)} optimizers; choose one with --optimizer: {listed(paths)}"
    return asking(AmbiguousError(text), Questions({}, tuple({OPTIMIZER: path} for path in paths)))


_OF_SONNET = {"m": "Adam", "accumulated_momentum": "Momentum", "ms": "RMSProp"}
"""Classes of Sonnet 2 by a list of slots that they keep (`sonnet/src/optimizers`)."""


def of_sonnet(graph: ObjectGraph) -> str:
    """Describe an optimizer of Sonnet 2, an object with lists of slots named after the variables, `adam/m/linear/w`;
    empty if the graph lacks one."""
    known = set(graph.full_names) - {""}
    for node, path in graph.walk():
        for name in _OF_SONNET.keys() & graph.children[node].keys():
            members = graph.list_of(graph.children[node][name])
            if members and _have_prefixed_names(graph, members.values(), known):
                return f"{'.'.join(path)} keeps a list {name} of slots, as {_OF_SONNET[name]} of Sonnet 2 does"
    return ""


def _have_prefixed_names(graph: ObjectGraph, members: Iterable[int], known: Set[str]) -> bool:
    names = [graph.full_names[node] for node in members]
    return all(any(name[i + 1 :] in known for i, c in enumerate(name) if c == "/") for name in names)


def listed(paths: Sequence[str]) -> str:
    return ", ".join(paths) or "no path, because there is no optimizer"


def _is_scalar(graph: ObjectGraph, node: int, name: str) -> bool:
    child = graph.children[node].get(name)
    return child is not None and graph.keys[child] is not None
