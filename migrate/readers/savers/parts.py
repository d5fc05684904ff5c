"""The parts that each kind of Saver checkpoint is read into, before the optimizer's settings are read from the
graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from migrate.bytes.arrays import LazyArray
from migrate.graphs.saver import SaverGraph
from migrate.readers.keras.model import never_trained
from migrate.state import Layers, StoredVariable


@dataclass(frozen=True)
class Parts:
    generation: str | None
    why: str
    variables: tuple[StoredVariable, ...]
    slots: Mapping[str, Mapping[str, LazyArray]]
    scalars: Mapping[str, LazyArray]
    weights: tuple[tuple[str, LazyArray], ...] | None = None
    warnings: tuple[str, ...] = ()
    layers: Layers | None = None
    unmapped: Mapping[str, LazyArray] = field(default_factory=dict)
    scope: str = ""
    """Of the variables of an OptimizerV2."""


def give_values(arrays: Mapping[str, LazyArray], graph: SaverGraph) -> None:
    """Give the graph the stored numbers of a program's variables, such as a learning rate that it feeds. Trained
    variables are excluded; a rate in TRAINABLE_VARIABLES without an update is not trained."""
    nodes = graph.nodes
    if nodes is None:
        return
    trained = {name for updates in graph.updates.values() for name in updates} or set(graph.trainable or ())
    numbers = {
        key: array.number()
        for key, array in arrays.items()
        if key in nodes.variables and key not in trained and array.shape == () and array.dtype in NUMBERS
    }
    changes = nodes.changers(numbers)
    nodes.values = {name: number for name, number in numbers.items() if name not in changes}
    nodes.changing = {name: (number, changes[name]) for name, number in numbers.items() if name in changes}


NUMBERS = ("float32", "float64", "int32", "int64")


def stored_variable(name: str, array: LazyArray, trainable: bool | None) -> StoredVariable:
    numeric = array.dtype.startswith(("float", "bfloat", "complex"))
    if never_trained(name) or not numeric:
        trainable = False
    return StoredVariable(name, array, array.shape, array.dtype, trainable)


def variables_of(
    arrays: Mapping[str, LazyArray], names: Sequence[str], graph: SaverGraph | None
) -> tuple[StoredVariable, ...]:
    """Variables of a checkpoint; the graph, if known, shows which are trained."""
    if graph is None or graph.trainable is None:
        return tuple(stored_variable(name, arrays[name], None) for name in names)
    # The graph knows a partitioned variable by its parts.
    trained = {*graph.trainable, *(part.rpartition("/part_")[0] for part in graph.trainable)}
    return tuple(stored_variable(name, arrays[name], name in trained) for name in names)


def in_order(names: Sequence[str], graph: SaverGraph | None) -> list[str]:
    """Sort names in order of creation, as far as it is known."""
    created = {name: i for i, name in enumerate((graph.trainable or ()) if graph is not None else ())}
    return sorted(names, key=lambda name: created.get(name, len(created)))
