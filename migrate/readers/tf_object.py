"""TF2 object-based checkpoints: `tf.train.Checkpoint`, `model.save_weights("w")`, DTensorCheckpoint.

Keys are never parsed: the object graph says what each tensor is. Generations differ in where slots hang:

- `optimizer_v2`: the optimizer's `slot_variables` table (variable, slot, slot variable).
- `experimental` (2.9, 2.10 and DTensor), `optimizer` (2.11+), `keras3`: lists of the optimizer, one per slot
  (`_momentums`, `_accumulated_grads`, ...), the i-th for the i-th variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from migrate.bytes.arrays import LazyArray
from migrate.bytes.bundle import GRAPH_KEY, STRING, BundleReader, is_numeric
from migrate.bytes.checkpoint_paths import find_prefix, looks_like_bundle, require_prefix
from migrate.bytes.object_graph import ObjectGraph, unescape
from migrate.errors import ContradictionError, DamagedFileError, UnknownFormatError
from migrate.matching import slot_owners
from migrate.matching.slot_owners import Owner
from migrate.readers import graph_optimizers
from migrate.readers.graph_optimizers import GraphOptimizer
from migrate.state import Stored, StoredVariable, Twins
from optim.errors import CheckpointError, UnsupportedError
from optim.slot_layout import METADATA_KEY

NAME = "tf_object"
# Lists of an optimizer that hold no slots of their own.
_NO_SLOTS = frozenset({"_variables", "_trainable_variables", "_trainable_variables_indices"})
GLOBAL_STEP = "global_step"
_SLOT, _ATTRIBUTES = "/.OPTIMIZER_SLOT/", "/.ATTRIBUTES/"
_NEVER_TRAINED = frozenset({"moving_mean", "moving_variance"})


def sniff(path: str) -> bool:
    """Whether `path` is a TF2 object-based checkpoint, also a damaged one; not one of dtopt's own."""
    prefix = find_prefix(path)
    if prefix is None or not looks_like_bundle(prefix):
        return False
    try:
        bundle = BundleReader(prefix)
    except CheckpointError:
        return True  # so that reading it says what is damaged
    return GRAPH_KEY in bundle and METADATA_KEY not in bundle


def read(path: str, optimizer_path: str | None = None) -> Stored:
    """What a checkpoint holds. Tensors stay in the file until they are asked for.

    Args:
      path: prefix, `.index` file, or folder with a file `checkpoint`.
      optimizer_path: which optimizer, by the names that lead to it from the root of the object graph, joined by dots.

    Raises:
      UnknownFormatError: no object-based checkpoint.
      AmbiguousError: more than one optimizer and no path, or slots that fit more than one variable.
      HyperparameterError: no optimizer at that path.
      DamagedFileError, ContradictionError: truncated or altered.
    """
    prefix = require_prefix(path)
    return read_bundle(BundleReader(prefix), NAME, optimizer_path)


def read_bundle(bundle: BundleReader, format_name: str, optimizer_path: str | None = None) -> Stored:
    """As `read`, of an open bundle; also the part of a SavedModel that holds variables."""
    if GRAPH_KEY not in bundle:
        raise UnknownFormatError(
            f"{bundle.prefix} has no object graph: it was written by tf.train.Saver or by name, not by"
            " tf.train.Checkpoint"
        )
    bundle.check_sizes()
    graph = ObjectGraph(bundle)
    every = graph_optimizers.find(graph)
    optimizer = graph_optimizers.choose(every, optimizer_path, bundle.prefix)
    found = _Found(graph, bundle)
    owners = _model_variables(graph, bundle, every)
    names = {owner.node: owner.name for owner in owners}
    paths = [each.name for each in every]
    foreign = _trained_by(graph, owners, [each for each in every if each is not optimizer])
    evidence = [f"{bundle.prefix}.index holds an object graph ({len(graph)} objects)"]
    warnings: list[str] = []
    generation = None
    order: list[str] = []
    if optimizer is None and not owners:
        raise UnsupportedError(
            f"{bundle.prefix} holds neither variables nor the state of an optimizer: a"
            " tf.train.Checkpoint(optimizer=...) without its model saves no slots of tf.train's optimizers; migrate one"
            " that has the model"
        )
    if optimizer is None:
        warnings.append("the checkpoint holds no optimizer, only variables")
    else:
        generation, why = _generation(graph, optimizer.node)
        evidence += [
            f"optimizer at {optimizer.name}: {why}",
            *([f"it holds {len(every)} optimizers: {graph_optimizers.listed(paths)}"] if len(every) > 1 else []),
            *_naming(graph, optimizer.node),
        ]
        if generation in ("optimizer_v2", "tf1"):
            found.check_all_listed()
            for node in optimizer.nodes:
                found.add_table(node, names)
        elif generation == "keras3" and found.has_unlisted(optimizer.node):
            evidence.append("its own list of variables is read in order, as its lists of slots were not saved")
            order = found.add_in_order(optimizer.node, names)
        elif owners:
            evidence += found.add_lists(optimizer.node, owners)
        else:
            evidence.append(found.add_alone(optimizer))
        if not found.slots and found.weights is None:
            warnings.append(_no_slots(generation))
        found.add_scalars(optimizer)
    warnings += found.add_rest(names)
    return Stored(
        format=format_name,
        generation=generation,
        evidence=tuple(evidence),
        optimizer_config=None,
        variables=found.alone
        or _variables(graph, bundle, owners, found.slots, generation in ("optimizer_v2", "tf1"), foreign, order),
        nameless=found.nameless,
        twins=found.twins,
        slots=found.slots,
        scalars=found.scalars,
        weights=found.weights,
        versions=_release(graph, optimizer, generation),
        warnings=tuple(warnings),
        matched=found.matched,
        unmapped=found.unmapped,
        optimizers=tuple(paths),
        optimizer_name=None if optimizer is None else _name_of(graph, optimizer.node),
    )


def _trained_by(graph: ObjectGraph, owners: Sequence[Owner], optimizers: Sequence[GraphOptimizer]) -> frozenset[str]:
    """Names of the variables that these optimizers have slots of, or else list, as far as the graph says it."""
    names = {owner.node: owner.name for owner in owners}
    found: set[str] = set()
    for optimizer in optimizers:
        children = graph.children[optimizer.node]
        found |= {names[variable] for variable, _, _ in graph.slot_variables[optimizer.node] if variable in names}
        tracked = graph.list_of(children.get("_trainable_variables", 0))
        found |= {names[node] for node in tracked.values() if node in names}
        lists = {name: graph.list_of(i) for name, i in children.items() if name not in _NO_SLOTS}
        ends = {graph.full_names[node] for members in lists.values() for node in members.values()}
        found |= {o.name for o in owners if o.full_name and any(end.endswith(f"/{o.full_name}") for end in ends)}
    return frozenset(found)


def _release(graph: ObjectGraph, optimizer: GraphOptimizer | None, generation: str | None) -> dict[str, str]:
    """What the graph of an `experimental` optimizer tells of who wrote it: 2.10 keeps a list of its variables, 2.9 not;
    and only DTensor's variables have no names."""
    if optimizer is None or generation != "experimental":
        return {}
    names = [graph.full_names[node] for node, _ in graph.walk(optimizer.node) if graph.keys[node] is not None]
    release = {"tensorflow": "2.10"} if "_variables" in graph.children[optimizer.node] else {"tensorflow": "2.9"}
    return release | ({} if any(names) else {"dtensor": "yes"})


def _generation(graph: ObjectGraph, optimizer: int) -> tuple[str, str]:
    children = graph.children[optimizer]
    counts = bool({"iter", "learning_rate", "decay", "_iterations"} & children.keys())
    if (graph.slot_variables[optimizer] or set(graph_optimizers.POWERS) <= children.keys()) and not counts:
        return "tf1", "it has a table of slot variables or powers of beta and no `iter`, as tf.train optimizers"
    if "iter" in children or graph.slot_variables[optimizer]:
        return "optimizer_v2", "it has `iter` and a table of slot variables, as OptimizerV2 (legacy) does"
    if "_trainable_variables" in children or "_trainable_variables_indices" in children:
        return "keras3", "it tracks `_trainable_variables`, as Keras 3 does"
    tracked = graph.children[children["_variables"]].values() if "_variables" in children else ()
    if children.get("_iterations") in tracked:
        return "optimizer", "`_iterations` is among its `_variables`, as in tf.keras 2.11 and later"
    return (
        "experimental",
        "slots hang on it without `_iterations` in `_variables`, as in tf.keras 2.9 and 2.10",
    )


def _name_of(graph: ObjectGraph, optimizer: int) -> str | None:
    """What the names of its variables call an optimizer, None where they do not agree or say nothing."""
    children = graph.children[optimizer]
    counter = next((children[name] for name in graph_optimizers.COUNTERS if name in children), None)
    scope = graph.full_names[counter].rpartition("/")[0].split("/")[-1] if counter is not None else ""
    if scope:
        return scope
    lists = [graph.list_of(child) for name, child in children.items() if name not in _NO_SLOTS]
    heads = {graph.full_names[i].partition("/")[0] for members in lists for i in members.values()} - {""}
    return heads.pop() if len(heads) == 1 else None


def _naming(graph: ObjectGraph, optimizer: int) -> list[str]:
    """What hints at the optimizer's class, which such a checkpoint does not store."""
    children = graph.children[optimizer]
    counter = next((children[name] for name in graph_optimizers.COUNTERS if name in children), None)
    prefixes = {graph.full_names[counter].rpartition("/")[0].split("/")[-1]} if counter is not None else set()
    for name, child in children.items():
        if name not in _NO_SLOTS:
            prefixes |= {graph.full_names[i].partition("/")[0] for i in graph.list_of(child).values()}
    prefixes.discard("")
    stored = sorted(n for n, i in children.items() if graph.keys[i] is not None)
    slots = sorted({s for _, s, _ in graph.slot_variables[optimizer]})
    slots += sorted(n for n, i in children.items() if n not in _NO_SLOTS and graph.list_of(i))
    evidence = [f"it holds {', '.join(stored)}; its slots are {', '.join(slots) or 'none'}"]
    if prefixes:
        evidence.append(f"its variables are named {' and '.join(sorted(prefixes))}/..., usually the class's own name")
    return evidence


def _no_slots(generation: str) -> str:
    if generation in ("optimizer_v2", "tf1"):
        return (
            "the optimizer has no slots here: OptimizerV2 and tf.train save them only beside their variables, so a"
            " tf.train.Checkpoint(optimizer=...) without the model lost them; or it has none, as plain SGD"
        )
    return "the optimizer has no slots here: it has none, as plain SGD, or no step was taken yet"


def _model_variables(graph: ObjectGraph, bundle: BundleReader, optimizers: Sequence[GraphOptimizer]) -> list[Owner]:
    """Variables outside the optimizers, in the graph's order, then those that only these track (Keras 3)."""
    inside = {s for table in graph.slot_variables for _, _, s in table}
    roots = {root: optimizer.path for optimizer in optimizers for root in optimizer.nodes}
    nodes = list(graph.walk(without=frozenset({*inside, *roots})))
    for root, at in roots.items():
        tracked = graph.children[root].get("_trainable_variables")
        seen = {node for node, _ in nodes}
        if tracked is not None:
            path = (*at, "_trainable_variables")
            nodes += [(n, (*path, str(i))) for i, n in graph.list_of(tracked).items() if n not in seen]
    nodes = [(n, _attribute_path(graph.keys[n], path)) for n, path in nodes]
    found = [(n, path) for n, path in nodes if graph.keys[n] is not None and _is_model_variable(graph, bundle, n, path)]
    full_names = [graph.full_names[n] for n, _ in found]
    owners = []
    for (node, path), full_name in zip(found, full_names, strict=True):
        unique = bool(full_name) and full_names.count(full_name) == 1
        shape = bundle[graph.keys[node] or ""].shape
        owners.append(Owner(node, full_name if unique else ".".join(path), full_name, path, shape))
    return owners


def _attribute_path(key: str | None, path: tuple[str, ...]) -> tuple[str, ...]:
    """The path of attributes, as the key has it, where the walk came upon a layer's list of variables first."""
    if key is None or "variables" not in path or "metrics" in path:
        return path
    return tuple(map(unescape, key.partition("/.ATTRIBUTES")[0].split("/")))


def _is_model_variable(graph: ObjectGraph, bundle: BundleReader, node: int, path: tuple[str, ...]) -> bool:
    """Not a counter of the checkpoint itself (`save_counter`, a step), and not a metric's total."""
    entry = bundle[graph.keys[node] or ""]
    counter = len(path) == 1 and entry.shape == () and not entry.dtype.startswith(("float", "bfloat"))
    return not counter and "metrics" not in path and "keras_api" not in path


def _optimizer_of(key: str) -> str:
    """`VARIABLE/.OPTIMIZER_SLOT/OPTIMIZER/SLOT/.ATTRIBUTES/...` -> OPTIMIZER; empty for what is no slot."""
    return key.partition(_ATTRIBUTES)[0].partition(_SLOT)[2].rpartition("/")[0]


@dataclass
class _Found:
    graph: ObjectGraph
    bundle: BundleReader
    slots: dict[str, dict[str, LazyArray]] = field(default_factory=dict)
    scalars: dict[str, LazyArray] = field(default_factory=dict)
    matched: dict[str, str] = field(default_factory=dict)
    unmapped: dict[str, LazyArray] = field(default_factory=dict)
    weights: tuple[tuple[str, LazyArray], ...] | None = None
    alone: tuple[StoredVariable, ...] = ()
    """What the optimizer trains, where the checkpoint has slots and no variables."""
    nameless: bool = False
    twins: Twins | None = None

    def lazy(self, node: int) -> LazyArray:
        return lazy(self.bundle, self.graph.keys[node] or "")

    def add_table(self, optimizer: int, names: Mapping[int, str]) -> None:
        """OptimizerV2's slot variables."""
        for variable, slot, node in self.graph.slot_variables[optimizer]:
            if variable not in names or self.graph.keys[node] is None:
                raise DamagedFileError(
                    f"{self.bundle.prefix}: slot {slot!r} belongs to object {variable}, which is no"
                    " variable of the"
                    " checkpoint; save it again"
                )
            self._check_key(variable, slot, node)
            self.slots.setdefault(slot, {})[names[variable]] = self.lazy(node)
            self.matched[f"{slot}/{names[variable]}"] = "object graph"

    def _check_key(self, variable: int, slot: str, node: int) -> None:
        """Compare whose slot a tensor is by its key, `VARIABLE/.OPTIMIZER_SLOT/OPTIMIZER/SLOT`, and by the graph."""
        key = (self.graph.keys[node] or "").partition(_ATTRIBUTES)[0]
        owner, marked, path = key.partition(_SLOT)
        own = (self.graph.keys[variable] or "").partition(_ATTRIBUTES)[0]
        if marked and (owner != own or unescape(path.rpartition("/")[2]) != slot):
            raise ContradictionError(
                f"{self.bundle.prefix}: {key} is, in the object graph, the slot {slot!r} of {own}; one of them is"
                " altered; copy or save the checkpoint again"
            )

    def check_all_listed(self) -> None:
        """Refuse slots of OptimizerV2 that no table lists: those beside others of one optimizer would be lost."""
        graph = self.graph
        listed = {graph.keys[node] or "" for table in graph.slot_variables for _, _, node in table}
        counters = (
            children[name] for children in graph.children for name in graph_optimizers.COUNTERS if name in children
        )
        known = {(graph.keys[node] or "").partition(_ATTRIBUTES)[0].rpartition("/")[0] for node in counters}
        known |= {_optimizer_of(key) for key in listed}
        lost = next((key for key in self.bundle if key not in listed and _optimizer_of(key) in known - {""}), None)
        if lost is not None:
            raise DamagedFileError(
                f"{self.bundle.prefix}: its object graph does not list the slot {lost}; copy or save it again"
            )

    def add_lists(self, optimizer: int, owners: list[Owner]) -> list[str]:
        """Lists of slots, matched to variables; returns evidence."""
        graph = self.graph
        evidence: list[str] = []
        lists = {n: graph.list_of(i) for n, i in graph.children[optimizer].items() if n not in _NO_SLOTS}
        lists = {name: members for name, members in lists.items() if members}
        tracked = graph.list_of(graph.children[optimizer].get("_trainable_variables", 0))
        if lists:
            how = slot_owners.match(
                {
                    name: {i: (graph.full_names[n], self.lazy(n).shape) for i, n in m.items()}
                    for name, m in lists.items()
                },
                owners,
                {i: owner for i, n in tracked.items() for owner in owners if owner.node == n},
                self.bundle.prefix,
            )
            evidence.append(f"slots were matched to variables by {how.method}")
            self.twins = how.twins
            for name, members in lists.items():
                self.slots[name] = {how.owners[i].name: self.lazy(n) for i, n in members.items()}
                self.matched |= {f"{name}/{how.owners[i].name}": how.method for i in members}
        return evidence

    def add_alone(self, optimizer: GraphOptimizer) -> str:
        """Lists of slots without their variables, as tf.train.Checkpoint(optimizer=...) has them; returns evidence."""
        graph, slots = self.graph, self.slots
        lists = {n: graph.list_of(i) for n, i in graph.children[optimizer.node].items() if n not in _NO_SLOTS}
        named = {n: {i: (graph.full_names[v], self.lazy(v).shape) for i, v in m.items()} for n, m in lists.items() if m}
        names = slot_owners.named_alone(named, 1 if optimizer.wrapper is not None else 2)
        self.nameless = names is None
        names = names or {i: f"variable {i}" for m in named.values() for i in m}
        for slot in named:
            slots[slot] = {names[i]: self.lazy(node) for i, node in lists[slot].items()}
            self.matched |= {f"{slot}/{names[i]}": "position" if self.nameless else "name" for i in lists[slot]}
        shapes = {i: slot_owners.shape_at(named, i) for i in names}
        dtypes = {name: array.dtype for owners in slots.values() for name, array in owners.items()}
        self.alone = tuple(
            StoredVariable(name, None, shapes[i] or (), dtypes[name], True) for i, name in sorted(names.items())
        )
        how = "by position alone, as these have no names that differ" if self.nameless else "by the names of the slots"
        return f"the optimizer was saved without its variables, which are known {how}"

    def has_unlisted(self, optimizer: int) -> bool:
        """Whether some of the optimizer's variables are in no list of slots: Keras 3 fills lists by assignment to their
        members in some classes, and what TensorFlow does not see so it does not save."""
        children = self.graph.children[optimizer]
        listed = set(children.values())
        for name, node in children.items():
            listed |= set(self.graph.list_of(node).values()) if name not in _NO_SLOTS else set()
        return any(node not in listed for node in self._own_list(optimizer).values())

    def add_in_order(self, optimizer: int, names: Mapping[int, str]) -> list[str]:
        """All of the optimizer's variables as a list in its order; returns the names of those that it trains."""
        own = self._own_list(optimizer)
        self.weights = tuple((self.graph.keys[node] or "", self.lazy(node)) for _, node in sorted(own.items()))
        trained = self.graph.list_of(self.graph.children[optimizer].get("_trainable_variables", 0))
        return [names[node] for _, node in sorted(trained.items()) if node in names]

    def _own_list(self, optimizer: int) -> dict[int, int]:
        members = self.graph.list_of(self.graph.children[optimizer].get("_variables", 0))
        return {i: node for i, node in members.items() if self.graph.keys[node] is not None}

    def add_scalars(self, optimizer: GraphOptimizer) -> None:
        """What hangs directly on the optimizer and is no slot; a loss scale goes to the unmapped."""
        slotted = {a.stored_as for owners in self.slots.values() for a in owners.values()}
        slotted |= {array.stored_as for _, array in self.weights or ()}
        for name, node in self.graph.children[optimizer.node].items():
            if self.graph.keys[node] is not None and self.graph.keys[node] not in slotted:
                self.scalars[name] = self.lazy(node)
            if name == "loss_scale":
                self._add_below(node, name)
        if optimizer.wrapper is not None:
            step = self.graph.children[optimizer.wrapper].get("iter")
            if step is not None and self.graph.keys[step] is not None:
                self.scalars.setdefault("iter", self.lazy(step))  # with which the optimizer inside counts, too
            self._add_below(optimizer.wrapper, "loss_scale")
        step = self.graph.children[self._above(optimizer)].get(GLOBAL_STEP)
        if (
            step is not None and self.graph.keys[step] is not None
        ):  # of the TFOptimizer that Keras puts around tf.train's
            self.scalars[GLOBAL_STEP] = self.lazy(step)

    def _above(self, optimizer: GraphOptimizer) -> int:
        node = 0
        for name in optimizer.path[:-1]:
            node = self.graph.children[node][name]
        return node

    def _add_below(self, node: int, prefix: str) -> None:
        for name, child in self.graph.children[node].items():
            if self.graph.keys[child] is not None:
                self.unmapped.setdefault(f"{prefix}/{name}", self.lazy(child))

    def add_rest(self, names: Mapping[int, str]) -> list[str]:
        """Tensors that are nothing of the above, under their own keys; returns a warning of what is no array."""
        used = {a.stored_as for owners in self.slots.values() for a in owners.values()}
        used |= {a.stored_as for a in (*self.scalars.values(), *self.unmapped.values())}
        used |= {self.graph.keys[n] or "" for n in names}
        used |= {array.stored_as for _, array in self.weights or ()}
        for key, entry in self.bundle.items():
            if key not in used and key != GRAPH_KEY and is_numeric(entry.dtype):
                self.unmapped[key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")] = lazy(self.bundle, key)
        return not_numbers(self.bundle)


def not_numbers(bundle: BundleReader) -> list[str]:
    """A warning of the tensors that no state can be made of, as a saved data iterator is one; empty without them."""
    left = [f"{k} ({e.dtype})" for k, e in bundle.items() if not is_numeric(e.dtype) and e.dtype != STRING]
    if not left:
        return []
    shown = ", ".join(left[:3]) + (f" and {len(left) - 3} more" if left[3:] else "")
    return [f"no arrays of numbers, as what tf.data keeps of an iterator, so that they stay in the source: {shown}"]


def lazy(bundle: BundleReader, key: str) -> LazyArray:
    entry = bundle[key]
    return LazyArray(entry.shape, entry.dtype, partial(bundle.load, key), key, bundle.extent(key))


def _variables(
    graph: ObjectGraph,
    bundle: BundleReader,
    owners: Sequence[Owner],
    slots: Mapping[str, Mapping[str, LazyArray]],
    table: bool,
    foreign: frozenset[str],
    order: Sequence[str],
) -> tuple[StoredVariable, ...]:
    """Variables with slots in the optimizer's order, then the others in the graph's.

    `foreign`: names of those that other optimizers train; without slots here they are not this one's.
    `order`: names of those whose slots are in a list that only knows an order.
    `table`: whether slots are from a table of slot variables, which has no order of its own, and not from lists.
    """
    slotted = list(order) or list(dict.fromkeys(name for per in slots.values() for name in per))
    if table:  # OptimizerV2's table is breadth first; the model's order is depth first, as `trainable_variables` has it
        slotted = [owner.name for owner in owners if owner.name in set(slotted)]
    told: dict[int, bool] = {}
    for node, _ in graph.walk():
        children = graph.children[node]
        if "variables" in children and "trainable_variables" in children:
            told |= dict.fromkeys(graph.list_of(children["variables"]).values(), False) | told
            told |= dict.fromkeys(graph.list_of(children["trainable_variables"]).values(), True)
    by_name = {}
    for owner in owners:
        array = lazy(bundle, graph.keys[owner.node] or "")
        trainable: bool | None = told.get(owner.node)
        if owner.name in slotted:
            trainable = True
        elif owner.path[-1] in _NEVER_TRAINED or owner.name in foreign:
            trainable = False
        by_name[owner.name] = StoredVariable(owner.name, array, array.shape, array.dtype, trainable)
    return tuple(by_name.pop(name) for name in slotted) + tuple(by_name.values())
