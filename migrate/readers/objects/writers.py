"""Derive who wrote the optimizer of an object graph: the generation, the release and the class."""

from __future__ import annotations

from migrate.algorithms import ALGORITHMS
from migrate.algorithms.spec import SHARED_SLOTS
from migrate.bytes.object_graph import ObjectGraph
from migrate.generations import traits
from migrate.readers.objects import optimizers as object_optimizers
from migrate.readers.objects.optimizers import slot_lists, slot_name
from migrate.releases import recognition
from migrate.releases.versions import PERHAPS, TENSORFLOW, UNKNOWN, YES, Versions

_SLOTS = frozenset(slot.name for slots in (SHARED_SLOTS, *(a.slots for a in ALGORITHMS)) for slot in slots)


def generation(graph: ObjectGraph, optimizer: int) -> tuple[str, str]:
    """Return the generation, by how the optimizer's state is attached to the graph, and the evidence."""
    children = graph.children[optimizer]
    tracked = graph.children[children["_variables"]].values() if "_variables" in children else ()
    return recognition.from_objects(
        children.keys(),
        has_table=bool(graph.slot_variables[optimizer]),
        has_powers=set(object_optimizers.POWERS) <= children.keys(),
        lists_counter=children.get("_iterations") in tracked,
    )


def release(graph: ObjectGraph, optimizer: int, generation: str, shards: int) -> Versions:
    """Derive the releases that can have written an `experimental` optimizer.

    2.10 saves a list of its variables. 2.9 does not, and under DTensor and mirroring strategies they have no names.
    Each device of a mesh writes a shard, a strategy writes one; DTensor's optimizers have no averages. Keras 3 can
    write this on TensorFlow alone.
    """
    of = traits(generation)
    if of.has_slot_table and of.has_configs:
        in_graph = _full_name_of_counter(graph, optimizer).startswith("training")
        return Versions(tensorflow_after="2.4" if graph.tells_values else "", graph_mode=in_graph)
    if not of.shows_release_in_list:
        return Versions(backend=TENSORFLOW) if of.has_keras3_layers else UNKNOWN
    names = [graph.full_names[node] for node, _ in graph.walk(optimizer) if graph.keys[node] is not None]
    tensorflow = "2.10" if "_variables" in graph.children[optimizer] else "2.9"
    if any(names) or "_model_variables_moving_average" in graph.children[optimizer]:
        return Versions(tensorflow=tensorflow)
    return Versions(tensorflow=tensorflow, dtensor=YES if shards > 1 else PERHAPS)


def name(graph: ObjectGraph, optimizer: int) -> str | None:
    """The optimizer's name by the names of its variables, None if they disagree or don't show it."""
    scope = _scope_of_counter(graph, optimizer)
    if scope:
        return scope
    heads = _heads_of_slots(graph, optimizer) - {""}
    return heads.pop() if len(heads) == 1 else None


def called(graph: ObjectGraph, optimizer: int) -> list[str]:
    """The names of its counter and its slots."""
    listed = (node for members in slot_lists(graph, optimizer).values() for node in members.values())
    slots = (node for _, _, node in graph.slot_variables[optimizer])
    return [_full_name_of_counter(graph, optimizer), *(graph.full_names[node] for node in (*slots, *listed))]


def naming(graph: ObjectGraph, optimizer: int) -> list[str]:
    """Hints at the optimizer's class, which such a checkpoint does not store."""
    stored = sorted(n for n, i in graph.children[optimizer].items() if graph.keys[i] is not None)
    slots = sorted({s for _, s, _ in graph.slot_variables[optimizer]}) + sorted(slot_lists(graph, optimizer))
    evidence = [f"it holds {', '.join(stored) or 'no numbers'}; its slots are {', '.join(slots) or 'none'}"]
    prefixes = (_heads_of_slots(graph, optimizer) | {_scope_of_counter(graph, optimizer)}) - {""}
    if prefixes:
        evidence.append(f"its variables are named {' and '.join(sorted(prefixes))}/..., usually the class's own name")
    return evidence


def _scope_of_counter(graph: ObjectGraph, optimizer: int) -> str:
    """`Adam` of a counter named `training/Adam/iter`, empty without one."""
    return _full_name_of_counter(graph, optimizer).rpartition("/")[0].split("/")[-1]


def _full_name_of_counter(graph: ObjectGraph, optimizer: int) -> str:
    children = graph.children[optimizer]
    counter = next((children[name] for name in object_optimizers.COUNTERS if name in children), None)
    return "" if counter is None else graph.full_names[counter]


def _heads_of_slots(graph: ObjectGraph, optimizer: int) -> set[str]:
    """The prefixes of slot names in its lists. In a LossScaleOptimizer and after `load_model` a name is
    `m/dense/kernel`, which has no prefix."""
    lists = slot_lists(graph, optimizer).values()
    return {slot_name(graph, i).partition("/")[0] for members in lists for i in members.values()} - _SLOTS
