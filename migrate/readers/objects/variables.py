"""Find the variables of an object graph: their tensors, their names, and who trains them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from migrate.bytes.object_graph import ObjectGraph
from migrate.errors import ContradictionError
from migrate.matching.slot_owners import Owner
from migrate.readers.bundle_arrays import lazy
from migrate.readers.keras.model import MOVING, RENORM, ROLES
from migrate.readers.objects.optimizers import GraphOptimizer, slot_lists, tracked
from migrate.state import CHANGED, StoredVariable
from optim.bytes import names
from optim.bytes.bundle import BundleReader
from optim.bytes.object_tree import ATTRIBUTES
from optim.slot_layout import unescape

_OTHERS = frozenset({"metrics", "keras_api", ".OPTIMIZER_SLOT"})
"""Parts of keys that are no variables of the model."""
_LISTS = ("variables", "trainable_variables", "non_trainable_variables", "keras_api")
_GATHERING = re.compile(r"(?:^|[./_])(?:accum|gradient)", re.IGNORECASE)


def owners(graph: ObjectGraph, bundle: BundleReader, optimizers: Sequence[GraphOptimizer]) -> list[Owner]:
    """Variables outside the optimizers, in the graph's order, then those that only these track (Keras 3)."""
    roots = {root: optimizer.path for optimizer in optimizers for root in optimizer.nodes}
    inside = {s for table in graph.slot_variables for _, _, s in table} | _listed_by_model(graph, roots)
    nodes = list(graph.walk(without=frozenset({*inside, *roots})))
    for root, at in roots.items():
        seen = {node for node, _ in nodes}
        nodes += [(n, (*at, "_trainable_variables", str(i))) for i, n in tracked(graph, root).items() if n not in seen]
    nodes = [(n, _attribute_path(graph.keys[n], path)) for n, path in nodes]
    if any(_is_in_list(path) for _, path in nodes):
        by_layers = _paths_by_layers(graph, frozenset({*inside, *roots}))
        nodes = [(n, by_layers.get(n, path) if _is_in_list(path) else path) for n, path in nodes]
    nodes = [(n, path) for n, path in nodes if graph.keys[n] is not None and _is_model_variable(graph, bundle, n, path)]
    full_names = [graph.full_names[n] for n, _ in nodes]
    times = Counter(full_names)
    result = []
    for (node, path), full_name in zip(nodes, full_names, strict=True):
        unique = bool(full_name) and times[full_name] == 1
        shape = bundle[graph.keys[node] or ""].shape
        result.append(Owner(node, full_name if unique else ".".join(path), full_name, path, shape))
    return result


def _listed_by_model(graph: ObjectGraph, optimizers: Iterable[int]) -> set[int]:
    """Variables of optimizers that a SavedModel lists in the model's `variables`, as for `experimental` in TF 2.9."""
    lists = (members for root in optimizers for members in slot_lists(graph, root).values())
    owned = {n for root in optimizers for n in graph.children[root].values()} | {n for m in lists for n in m.values()}
    return {node for node in owned if (graph.keys[node] or "").startswith("variables/")}


def _paths_by_layers(graph: ObjectGraph, without: frozenset[int]) -> dict[int, tuple[str, ...]]:
    """Paths that lead through no list that a model or layer makes of all its variables."""
    lists = {children[name] for children in graph.children for name in _LISTS if name in children}
    return dict(graph.walk(without=without | lists))


def _attribute_path(key: str | None, path: tuple[str, ...]) -> tuple[str, ...]:
    """The path of attributes from the key, if the walk found a layer's list of variables first."""
    if key is None or not _is_in_list(path):
        return path
    return tuple(map(unescape, key.partition("/.ATTRIBUTES")[0].split("/")))


def _is_in_list(path: tuple[str, ...]) -> bool:
    """Whether a path leads through the list of all variables of a model or layer."""
    return "variables" in path and "metrics" not in path


def _is_model_variable(graph: ObjectGraph, bundle: BundleReader, node: int, path: tuple[str, ...]) -> bool:
    """Exclude counters of the checkpoint itself (`save_counter`, a step) and totals of metrics."""
    entry = bundle[graph.keys[node] or ""]
    counter = len(path) == 1 and entry.shape == () and not entry.dtype.startswith(("float", "bfloat"))
    counter = counter or path == ("save_counter",)
    return not counter and "metrics" not in path and "keras_api" not in path


def trained_by(graph: ObjectGraph, owners: Sequence[Owner], optimizers: Sequence[GraphOptimizer]) -> frozenset[str]:
    """Names of the variables that these optimizers have slots of, or list, as far as the graph shows it."""
    names = {owner.node: owner.name for owner in owners}
    trained: set[str] = set()
    for optimizer in optimizers:
        trained |= {names[variable] for variable, _, _ in graph.slot_variables[optimizer.node] if variable in names}
        trained |= {names[node] for node in tracked(graph, optimizer.node).values() if node in names}
        lists = slot_lists(graph, optimizer.node).values()
        ends = {graph.full_names[node] for members in lists for node in members.values()}
        trained |= {o.name for o in owners if o.full_name and any(end.endswith(f"/{o.full_name}") for end in ends)}
    return frozenset(trained)


def gathering(
    owners: Iterable[Owner],
    variables: Iterable[StoredVariable],
    unmapped: Iterable[str],
    every: Sequence[GraphOptimizer],
) -> dict[str, str]:
    """Warn if variables are neither trained nor an optimizer's, and have names that a custom `train_step` uses for sums
    and counts of accumulated gradients."""
    paths = tuple("/".join(optimizer.path) + "/" for optimizer in every)
    beside = (key for key in unmapped if not key.startswith(paths) and not _OTHERS.intersection(key.split("/")))
    trained = {v.name for v in variables if v.trainable}
    others = (name for o in owners if o.name not in trained for name in (o.name, ".".join(o.path)))
    names = (*others, *beside)
    accumulator = next(filter(_GATHERING.search, names), None)
    text = f"they may be accumulated in {accumulator!r} before they reach the optimizer"
    return {} if accumulator is None else {CHANGED: text}


def stored(
    graph: ObjectGraph,
    bundle: BundleReader,
    owners: Sequence[Owner],
    slotted: Sequence[str] = (),
    foreign: frozenset[str] = frozenset(),
) -> tuple[StoredVariable, ...]:
    """Return variables with slots in the optimizer's order, then the others in the graph's.

    `slotted`: names of those with slots, in that order.
    `foreign`: names of those that other optimizers train; without slots here this optimizer does not train them.
    """
    flags = _trainable_flags(graph)
    by_name = {}
    for owner in owners:
        array = lazy(bundle, graph.keys[owner.node] or "")
        trainable: bool | None = flags.get(owner.node)
        if owner.name in slotted:
            trainable = True
        elif owner.path[-1] in (*MOVING, *RENORM) or owner.name in foreign:
            trainable = False
        by_name[owner.name] = StoredVariable(owner.name, array, array.shape, array.dtype, trainable)
    return tuple(by_name.pop(name) for name in slotted) + tuple(by_name.values())


def _trainable_flags(graph: ObjectGraph) -> dict[int, bool]:
    """The trainable flag of the variables that layers list."""
    flags: dict[int, bool] = {}
    for node, _ in graph.walk():
        children = graph.children[node]
        if "variables" in children and "trainable_variables" in children:
            flags |= dict.fromkeys(graph.list_of(children["variables"]).values(), False) | flags
            flags |= dict.fromkeys(graph.list_of(children["trainable_variables"]).values(), True)
    return flags


def check_names(graph: ObjectGraph, prefix: str) -> None:
    """Compare the names of variables with the layers' attributes for them, and those of slots with their variables'.

    Raises:
      ContradictionError: a name belongs to another one.
    """
    for node, key in enumerate(graph.keys):
        attribute = unescape((key or "").partition(ATTRIBUTES)[0].rpartition("/")[2])
        role = re.sub(r"_\d+$", "", graph.full_names[node].rpartition("/")[2])
        if attribute in ROLES and role in ROLES and role != attribute:
            raise ContradictionError(_contradiction(prefix, str(key), graph.full_names[node], attribute))
    full_names = {name for name in graph.full_names if name}
    for table in graph.slot_variables:
        for variable, slot, node in table:
            name, slot_name = graph.full_names[variable], graph.full_names[node]
            scope = slot_name.rpartition("/")[0]
            if name and f"/{name}/" not in f"/{slot_name}/" and any(names.contained(scope, full_names)):
                raise ContradictionError(_contradiction(prefix, f"the slot {slot!r} of {name}", slot_name, name))


def _contradiction(prefix: str, what: str, called: str, at: str) -> str:
    text = f"{prefix}: {what} is called {called!r} in the object graph, and belongs to {at!r}"
    return f"{text}; copy or save the checkpoint again"
