"""The graph of a rule: `Rule.update` run once on symbols instead of arrays.

Branches of the rule in Python (on its structural choices, on the rank of a variable) are resolved while it runs, so
each variant has its own graph. Scalars of `coefficients` stay symbols, which get their values in a step.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from optim.arrays import ELEMENTWISE, WHOLE, allowed
from optim.native.graph import FULL, Graph, UntraceableError, Value, broadcast, is_zero, kind_of
from optim.rule import UNFACTORED, VARIABLE, Rule, Slot, slot_dims
from optim.summed_gradients import NamespaceOfSums, SummedGradient, summed


class _Namespace:
    """The array namespace `xp` on symbols."""

    def __init__(self, graph: Graph, is_whole: bool):
        self._graph = graph
        self._whole = dict(zip(WHOLE, (graph.sum, graph.mean, graph.expand), strict=True)) if is_whole else {}

    def __getattr__(self, name: str) -> Any:
        graph, op = self._graph, ELEMENTWISE.get(name)
        if name in self._whole:
            return self._whole[name]
        if op is None:
            raise UntraceableError(f"it calls xp.{name}; these have a kernel: {allowed()}", name)
        if op in ("ones_like", "zeros_like"):
            return lambda x: graph.constant(1.0 if op == "ones_like" else 0.0, x.dims if isinstance(x, Value) else ())
        return lambda *args: graph.of(op, *args)


class _Scalars(Mapping[str, Any]):
    """The coefficients of a step: a symbol for every name."""

    def __init__(self, graph: Graph):
        self._graph = graph

    def __getitem__(self, name: str) -> Value:
        return self._graph.symbol("scalar", name, ())

    def __iter__(self) -> Iterator[str]:
        raise UntraceableError("it asks which coefficients there are")

    def __len__(self) -> int:
        raise UntraceableError("it asks how many coefficients there are")


@dataclass(frozen=True, eq=False)
class Trace:
    """One variant of a rule: `change` of the variable and the new `slots`, by name, as values of `graph`."""

    rule: str
    """The class of the rule."""
    graph: Graph
    old_slots: Mapping[str, Value]
    """The old slots, in the rule's order."""
    change: Value
    slots: Mapping[str, Value]
    is_identity_at_zero: bool
    """Whether a gradient of zero moves neither variable nor slots; False if that was not checked."""

    @property
    def scalars(self) -> tuple[str, ...]:
        """The names of the scalars in the order of the kernel's arguments."""
        return tuple(value.args[0] for value in self.graph.values if value.op == "scalar")

    @property
    def powers(self) -> tuple[str, ...]:
        """The powers whose sums it needs, if a gradient is the sum of several."""
        return tuple(value.args[0] for value in self.graph.values if value.op == "power")

    @property
    def sums(self) -> tuple[Value, ...]:
        """The sums, in the order in which they become known."""
        return tuple(sorted((v for v in self.graph.values if v.op == "sum"), key=lambda v: (v.level, v.number)))

    def slots_along(self, dims: frozenset[str]) -> tuple[str, ...]:
        """Return the slots that have these dims of the variable."""
        return tuple(name for name, value in self.old_slots.items() if kind_of(value) == dims)


def unknown_function(rule: Rule) -> str | None:
    """Return the first function that an elementwise rule calls and that has no kernel."""
    try:
        trace(rule)
    except UntraceableError as error:
        return error.function if rule.elementwise else None
    return None


def trace(rule: Rule | None, rank: int = 2, slots: Sequence[str] | None = None, is_sum: bool = False) -> Trace:
    """Return the graph of a rule for variables of that rank with these slots, perhaps among others, or with all its
    own.

    `is_sum`: whether a gradient is the sum of several that are squared one by one.

    Raises:
      UntraceableError: there is no graph.
    """
    if rule is not None and slots is None:
        slots = [slot.name for slot in rule.slots if rule.slot_dims(slot, (2,) * rank, ()) is not None]
    key = (rule, None if rule is None or rule.elementwise else rank, tuple(slots or ()), is_sum)
    traced = _cached(*key) if isinstance(rule, Hashable) else _trace(*key)
    return traced if traced.powers or not is_sum else trace(rule, rank, slots)


@lru_cache(maxsize=1024)
def _cached(rule: Any, rank: int | None, slots: tuple[str, ...], is_sum: bool) -> Trace:
    return _trace(rule, rank, slots, is_sum)


def _trace(rule: Rule | None, rank: int | None, slots: tuple[str, ...], is_sum: bool) -> Trace:
    name = type(rule).__name__
    if rule is None or (is_sum and not rule.elementwise):
        raise UntraceableError(f"{name} looks at whole tensors")
    graph = Graph(rank=rank)
    gradient: Any = graph.symbol("gradient", "g", graph.dims)
    if is_sum:
        gradient = SummedGradient(gradient, lambda power: graph.symbol("power", power, graph.dims))
    old_slots, change, new = _run(rule, graph, slots, gradient)
    traced = Trace(name, graph, old_slots, change, new, is_identity_at_zero=False)
    if not rule.elementwise:
        return traced
    if any(kind_of(slot) != FULL for slot in old_slots.values()):
        raise UntraceableError(f"{name} looks at whole tensors")  # a step of some elements has no numbers of the whole
    folding = Graph(folds_zero=True)
    old_slots, change_at_zero, new_at_zero = _run(rule, folding, slots, folding.constant(0.0))
    identity = is_zero(change_at_zero) and all(value is old_slots[slot] for slot, value in new_at_zero.items())
    return replace(traced, is_identity_at_zero=identity)


def _run(
    rule: Rule, graph: Graph, names: Sequence[str], gradient: Value | SummedGradient
) -> tuple[dict[str, Value], Value, dict[str, Value]]:
    """Return the old slots, the change, and the new slots."""
    variable = graph.symbol("variable", "w", graph.dims)
    slots = {
        slot.name: graph.symbol("slot", slot.name, _dims(slot, graph)) for slot in rule.slots if slot.name in names
    }
    xp: Any = _Namespace(graph, not rule.elementwise)
    try:
        change, new = rule.update(
            NamespaceOfSums(xp) if isinstance(gradient, SummedGradient) else xp,
            variable,
            gradient,
            dict(slots),
            _Scalars(graph),
        )
        values = {name: _number(graph, value) for name, value in new.items()}
        if not set(values) <= set(slots):
            raise UntraceableError(f"it returns slots that it did not declare: {sorted(set(values) - set(slots))}")
        for name, value in values.items():
            if value.along and not slots[name].along:
                raise UntraceableError(f"slot {name} is one number, and it returns one of each element")
            _check_dims(value, slots[name].dims, f"slot {name}")
        change = _number(graph, change)
        _check_dims(change, graph.dims, "the variable")
        for value in graph.values:
            kind_of(value)
        return slots, change, {name: values[name] for name in slots if name in values}
    except UntraceableError as error:
        raise UntraceableError(f"{type(rule).__name__} has no kernel: {error}", error.function) from None
    except Exception as error:  # a user's rule may do anything with its arguments, which it assumes to be arrays
        raise UntraceableError(f"{type(rule).__name__} has no kernel: {type(error).__name__}: {error}") from error


def _check_dims(value: Value, dims: tuple[Any, ...], what: str) -> None:
    if broadcast(value.dims, dims) != dims:
        raise UntraceableError(f"it returns {value.dims} for {what}, which is {dims}")


def _dims(slot: Slot, graph: Graph) -> tuple[Any, ...]:
    """Return the dims of a slot of a variable."""
    dims = slot_dims(slot.like, len(graph.dims))
    if graph.rank is None and slot.like not in (VARIABLE, UNFACTORED):
        dims = ()
    return tuple(graph.dims[dim] for dim in dims or ())


def _number(graph: Graph, value: Any) -> Value:
    value = summed(value)
    value = value if isinstance(value, Value) else graph.constant(value)
    if value.is_bool:
        raise UntraceableError("it returns a truth value where a number is due")
    return value
