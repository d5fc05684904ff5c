"""Read an optimizer in an object graph: slots with their variables, its scalars, and what cannot be assigned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from migrate.bytes.arrays import LazyArray
from migrate.bytes.object_graph import ObjectGraph
from migrate.errors import DamagedFileError
from migrate.generations import traits
from migrate.matching import slot_owners
from migrate.matching.slot_owners import Owner
from migrate.readers.bundle_arrays import lazy
from migrate.readers.objects.optimizers import GraphOptimizer, slot_lists, slot_name, tracked
from migrate.state import GLOBAL_STEP, StoredVariable, Twins
from optim.bytes.bundle import GRAPH_KEY, BundleReader, is_numeric


def find(
    graph: ObjectGraph, bundle: BundleReader, optimizer: GraphOptimizer, generation: str, owners: Sequence[Owner]
) -> OptimizerContents:
    """Read everything of the optimizer; `owners` are the model's variables."""
    contents, names = OptimizerContents(graph, bundle), {owner.node: owner.name for owner in owners}
    if traits(generation).has_slot_table:
        for node in optimizer.nodes:
            contents.add_table(node, names)
    elif traits(generation).has_keras3_layers and contents.has_unlisted(optimizer.node):
        contents.add_in_order(optimizer.node, names)
    elif owners:
        contents.add_lists(optimizer.node, owners)
    else:
        contents.add_alone(optimizer)
    contents.add_scalars(optimizer)
    return contents


@dataclass
class OptimizerContents:
    graph: ObjectGraph
    bundle: BundleReader
    evidence: list[str] = field(default_factory=list)
    slots: dict[str, dict[str, LazyArray]] = field(default_factory=dict)
    scalars: dict[str, LazyArray] = field(default_factory=dict)
    matched: dict[str, str] = field(default_factory=dict)
    unmapped: dict[str, LazyArray] = field(default_factory=dict)
    weights: tuple[tuple[str, LazyArray], ...] | None = None
    order: list[str] = field(default_factory=list)
    """Names of the variables with slots in `weights`, which is only ordered."""
    alone: tuple[StoredVariable, ...] = ()
    """The trained variables, if the checkpoint has slots but no variables."""
    nameless: bool = False
    twins: Twins | None = None

    def _array(self, node: int) -> LazyArray:
        return lazy(self.bundle, self.graph.keys[node] or "")

    def add_table(self, optimizer: int, names: Mapping[int, str]) -> None:
        """Add OptimizerV2's slot variables."""
        for variable, slot, node in self.graph.slot_variables[optimizer]:
            if variable not in names or self.graph.keys[node] is None:
                raise DamagedFileError(
                    f"{self.bundle.prefix}: slot {slot!r} belongs to object {variable}, which is no variable of the"
                    " checkpoint; save it again"
                )
            self.slots.setdefault(slot, {})[names[variable]] = self._array(node)
            self.matched[f"{slot}/{names[variable]}"] = "object graph"

    def add_lists(self, optimizer: int, owners: Sequence[Owner]) -> None:
        """Add lists of slots, matched to variables."""
        lists = self._lists(optimizer, {owner.node for owner in owners})
        if not lists:
            return
        in_list = {i: owner for i, n in tracked(self.graph, optimizer).items() for owner in owners if owner.node == n}
        how = slot_owners.match(self._shapes(lists), owners, in_list, self.bundle.prefix)
        self.evidence.append(f"slots were matched to variables by {how.method}")
        self.twins = how.twins
        for name, members in lists.items():
            self.slots[name] = {how.owners[i].name: self._array(n) for i, n in members.items()}
            self.matched |= {f"{name}/{how.owners[i].name}": how.method for i in members}

    def _lists(self, optimizer: int, others: Set[int] = frozenset()) -> dict[str, dict[int, int]]:
        lists, seen = slot_lists(self.graph, optimizer), set(others)
        for name, members in lists.items():
            for i, node in members.items():
                if node in seen:
                    raise DamagedFileError(
                        f"{self.bundle.prefix}: its object graph has {self.graph.keys[node]} as {name}[{i}] and"
                        " elsewhere; copy or save the checkpoint again"
                    )
                seen.add(node)
        return lists

    def _shapes(self, lists: dict[str, dict[int, int]]) -> dict[str, dict[int, tuple[str, tuple[int, ...]]]]:
        return {
            name: {i: (slot_name(self.graph, n), self._array(n).shape) for i, n in members.items()}
            for name, members in lists.items()
        }

    def add_alone(self, optimizer: GraphOptimizer) -> None:
        """Add lists of slots without their variables, as tf.train.Checkpoint(optimizer=...) saves them."""
        slots, lists = self.slots, self._lists(optimizer.node)
        named = self._shapes(lists)
        names = slot_owners.named_alone(named, 1 if optimizer.wrappers else 2)
        self.nameless = names is None
        names = names or {i: f"variable {i}" for m in named.values() for i in m}
        for slot in named:
            slots[slot] = {names[i]: self._array(node) for i, node in lists[slot].items()}
            self.matched |= {f"{slot}/{names[i]}": "position" if self.nameless else "name" for i in lists[slot]}
        shapes = {i: slot_owners.shape_at(named, i) for i in names}
        dtypes = {name: array.dtype for owners in slots.values() for name, array in owners.items()}
        self.alone = tuple(
            StoredVariable(name, None, shapes[i] or (), dtypes[name], True) for i, name in sorted(names.items())
        )
        how = "by position alone, because their names do not differ" if self.nameless else "by the names of the slots"
        self.evidence.append(f"the optimizer was saved without its variables, which are known {how}")

    def has_unlisted(self, optimizer: int) -> bool:
        """Whether some of the optimizer's variables are in no list of slots. Some classes of Keras 3 assign to members
        of their lists; TensorFlow does not notice and does not save these."""
        listed = set(self.graph.children[optimizer].values())
        listed |= {node for members in slot_lists(self.graph, optimizer).values() for node in members.values()}
        return any(node not in listed for node in self._own_list(optimizer).values())

    def add_in_order(self, optimizer: int, names: Mapping[int, str]) -> None:
        """Add all of the optimizer's variables as a list in its order."""
        self.evidence.append("its own list of variables is read in order, as its lists of slots were not saved")
        nodes = self._own_list(optimizer)
        members = [node for _, node in sorted(nodes.items())]
        self.weights = tuple((self.graph.full_names[n] or self.graph.keys[n] or "", self._array(n)) for n in members)
        self.order = [names[node] for _, node in sorted(tracked(self.graph, optimizer).items()) if node in names]

    def _own_list(self, optimizer: int) -> dict[int, int]:
        members = self.graph.list_of(self.graph.children[optimizer].get("_variables", 0))
        return {i: node for i, node in members.items() if self.graph.keys[node] is not None}

    def add_scalars(self, optimizer: GraphOptimizer) -> None:
        """Add the optimizer's own values that are no slots; a loss scale is unmapped."""
        slotted = {a.stored_as for owners in self.slots.values() for a in owners.values()}
        slotted |= {array.stored_as for _, array in self.weights or ()}
        for name, node in self.graph.children[optimizer.node].items():
            if self.graph.keys[node] is not None and self.graph.keys[node] not in slotted:
                self.scalars[name] = self._array(node)
            if name == "loss_scale":
                self._add_below(node, name)
        for wrapper in optimizer.wrappers:
            step = self.graph.children[wrapper].get("iter")
            if step is not None and self.graph.keys[step] is not None:
                self.scalars.setdefault("iter", self._array(step))  # the inner optimizer's counter too
            self._add_below(wrapper, "loss_scale")
        step = self.graph.children[self._above(optimizer)].get(GLOBAL_STEP)
        if (
            step is not None and self.graph.keys[step] is not None
        ):  # of Keras's TFOptimizer, which wraps one of tf.train
            self.scalars[GLOBAL_STEP] = self._array(step)

    def _above(self, optimizer: GraphOptimizer) -> int:
        node = 0
        for name in optimizer.path[:-1]:
            node = self.graph.children[node][name]
        return node

    def _add_below(self, node: int, prefix: str) -> None:
        for name, child in self.graph.children[node].items():
            if self.graph.keys[child] is not None:
                self.unmapped.setdefault(f"{prefix}/{name}", self._array(child))

    def trained(self, owners: Sequence[Owner], generation: str) -> list[str]:
        """Names of the variables with slots, in the optimizer's order."""
        slotted = self.order or list(dict.fromkeys(name for per in self.slots.values() for name in per))
        if traits(generation).has_slot_table:  # breadth first, `trainable_variables` of models depth first
            known = set(slotted)
            return [owner.name for owner in owners if owner.name in known]
        return slotted

    def unplaced(self, owners: Sequence[Owner]) -> dict[str, LazyArray]:
        """All other tensors under their own keys, and those unmapped before."""
        used = {a.stored_as for owners in self.slots.values() for a in owners.values()}
        used |= {a.stored_as for a in (*self.scalars.values(), *self.unmapped.values())}
        used |= {self.graph.keys[owner.node] or "" for owner in owners}
        used |= {array.stored_as for _, array in self.weights or ()}
        left = [k for k, e in self.bundle.items() if k not in used and k != GRAPH_KEY and is_numeric(e.dtype)]
        return self.unmapped | {k.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"): lazy(self.bundle, k) for k in left}
