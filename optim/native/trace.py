"""A rule's maths as an expression graph: `Rule.update` run once on symbols instead of arrays.

What the rule branches on in Python (its structural choices) is decided while it runs, so that each variant has a graph
of its own; scalars of `coefficients` stay symbols, which a step gives their values.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from numbers import Real
from typing import Any

from optim.arrays import ELEMENTWISE, SUM, allowed
from optim.rule import SCALAR, VARIABLE, Rule

COMPARISONS = {"less", "less_equal", "greater", "greater_equal", "equal", "not_equal"}
LOGIC = {"logical_and", "logical_or", "logical_not"}
GIVEN = ("scalar", "single", "sum")
"""What the kernel is given once for a variable, in this order."""
MOST_SUMS = 4
"""As `kSums` in abi.h."""


class UntraceableError(Exception):
    """Why a rule has no graph: it looks at more than one element, or branches on a value. Stays in `optim.native`."""

    def __init__(self, reason: str, function: str | None = None):
        super().__init__(reason)
        self.function = function
        """What it calls that is not in the table, if that is why."""


class Value:
    """A number (or truth value) of one element; `uniform` if it is the same for all elements."""

    __array_ufunc__ = None  # NumPy scalars leave arithmetic to this class
    __hash__ = object.__hash__

    def __init__(self, graph: Graph, op: str, args: tuple[Any, ...], number: int):
        self.graph = graph
        self.op = op
        self.args = args
        self.number = number
        self.is_bool = op in COMPARISONS or op in LOGIC
        self.uniform: bool = op in ("constant", *GIVEN) or (
            bool(self.operands) and all(operand.uniform for operand in self.operands)
        )
        self.needs_sum: bool = op == "sum" or any(operand.needs_sum for operand in self.operands)

    @property
    def operands(self) -> tuple[Value, ...]:
        return tuple(arg for arg in self.args if isinstance(arg, Value))

    @property
    def dtype(self) -> Any:
        return _REAL

    def __bool__(self) -> bool:
        raise UntraceableError("it branches on the value of an element or of a scalar")

    def __add__(self, other: Any) -> Value:
        return self.graph.of("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return self.graph.of("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return self.graph.of("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return self.graph.of("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return self.graph.of("mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return self.graph.of("mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return self.graph.of("div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return self.graph.of("div", other, self)

    def __pow__(self, other: Any) -> Value:
        return self.graph.of("pow", self, other)

    def __rpow__(self, other: Any) -> Value:
        return self.graph.of("pow", other, self)

    def __neg__(self) -> Value:
        return self.graph.of("neg", self)

    def __abs__(self) -> Value:
        return self.graph.of("abs", self)

    def __lt__(self, other: Any) -> Value:
        return self.graph.of("less", self, other)

    def __le__(self, other: Any) -> Value:
        return self.graph.of("less_equal", self, other)

    def __gt__(self, other: Any) -> Value:
        return self.graph.of("greater", self, other)

    def __ge__(self, other: Any) -> Value:
        return self.graph.of("greater_equal", self, other)

    def __eq__(self, other: Any) -> Value:  # type: ignore[override]
        return self.graph.of("equal", self, other)

    def __ne__(self, other: Any) -> Value:  # type: ignore[override]
        return self.graph.of("not_equal", self, other)

    def __and__(self, other: Any) -> Value:
        return self.graph.of("logical_and", self, other)

    def __or__(self, other: Any) -> Value:
        return self.graph.of("logical_or", self, other)

    def __invert__(self) -> Value:
        return self.graph.of("logical_not", self)


class _Real:
    """The dtype of every value: what rules ask it about themselves."""

    is_complex = False
    is_floating = True


_REAL = _Real()


class Graph:
    """Values, equal ones once, in an order in which each follows its operands."""

    def __init__(self, *, folds_zero: bool = False):
        self.values: list[Value] = []
        self._known: dict[Any, Value] = {}
        self._folds_zero = folds_zero

    def of(self, op: str, *args: Any) -> Value:
        operands = tuple(arg if isinstance(arg, Value) else self.constant(arg) for arg in args)
        if self._folds_zero:
            folded = self._folded(op, operands)
            if folded is not None:
                return folded
        return self._keep(op, operands)

    def constant(self, number: Any) -> Value:
        if isinstance(number, bool) or not isinstance(number, Real):
            raise UntraceableError(f"it computes with {type(number).__name__}, which is no number")
        return self._keep("constant", (repr(float(number)),))

    def sum(self, value: Any) -> Value:
        """Of all elements of a variable."""
        if not isinstance(value, Value) or value.uniform:
            raise UntraceableError("it adds up what is the same for all elements")
        if value.needs_sum:
            raise UntraceableError("it adds up what depends on another sum")
        return self._keep("sum", (value,))

    def symbol(self, kind: str, name: str) -> Value:
        """Kinds: `scalar`, `slot`, `single` (a slot that is one number), `variable`, `gradient`."""
        return self._keep(kind, (name,))

    def _keep(self, op: str, args: tuple[Any, ...]) -> Value:
        key = (op, *(arg.number if isinstance(arg, Value) else arg for arg in args))
        if key not in self._known:
            self._known[key] = Value(self, op, args, len(self.values))
            self.values.append(self._known[key])
        return self._known[key]

    def _folded(self, op: str, args: tuple[Value, ...]) -> Value | None:
        """What an operation with a zero comes to, for finite numbers and where nothing is divided by zero."""
        zero = [is_zero(arg) for arg in args]
        if op == "add" and any(zero):
            return args[1] if zero[0] else args[0]
        if op == "sub" and zero[1]:
            return args[0]
        if (op == "mul" and any(zero)) or (op == "div" and zero[0]):
            return self.constant(0.0)
        if op in ("sqrt", "square", "abs", "sign", "neg", "tanh") and zero[0]:
            return self.constant(0.0)
        return None


def is_zero(value: Value) -> bool:
    return value.op == "constant" and float(value.args[0]) == 0.0


class _Namespace:
    """The array namespace `xp` on symbols."""

    def __init__(self, graph: Graph, has_sums: bool):
        self._graph = graph
        self._has_sums = has_sums

    def __getattr__(self, name: str) -> Any:
        graph, op = self._graph, ELEMENTWISE.get(name)
        if name == SUM and self._has_sums:
            return graph.sum
        if op is None:
            raise UntraceableError(f"it calls xp.{name}; these have a kernel: {allowed()}", name)
        if op in ("ones_like", "zeros_like"):
            return lambda x: graph.constant(1.0 if op == "ones_like" else 0.0)
        return lambda *args: graph.of(op, *args)


class _Scalars(Mapping[str, Any]):
    """The coefficients of a step, symbols whatever they are called."""

    def __init__(self, graph: Graph):
        self._graph = graph

    def __getitem__(self, name: str) -> Value:
        return self._graph.symbol("scalar", name)

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
    slot_names: tuple[str, ...]
    """The slots that are shaped like the variable, in the rule's order."""
    singles: tuple[str, ...]
    """The slots that are one number."""
    change: Value
    slots: Mapping[str, Value]
    is_identity_at_zero: bool
    """Whether a gradient of zero moves neither variable nor slots; False where that is not asked."""

    @property
    def scalars(self) -> tuple[str, ...]:
        """The names of the scalars in the order in which the kernel is given them."""
        return tuple(value.args[0] for value in self.graph.values if value.op == "scalar")

    @property
    def sums(self) -> tuple[Value, ...]:
        """What is added up over the whole variable, in the order in which the kernel is given the sums."""
        return tuple(value for value in self.graph.values if value.op == "sum")

    @property
    def given(self) -> tuple[Value, ...]:
        """What the kernel is given once for a variable, in order."""
        scalars = [self.graph.symbol("scalar", name) for name in self.scalars]
        return (*scalars, *(self.graph.symbol("single", name) for name in self.singles), *self.sums)


def unknown_function(rule: Rule) -> str | None:
    """The first function that an elementwise rule calls and that has no kernel."""
    try:
        trace(rule)
    except UntraceableError as error:
        return error.function if rule.elementwise else None
    return None


def trace(rule: Rule | None) -> Trace:
    """The graph of a rule. Raises UntraceableError."""
    return _cached(rule) if isinstance(rule, Hashable) else _trace(rule)


@lru_cache(maxsize=1024)
def _cached(rule: Any) -> Trace:
    return _trace(rule)


def _trace(rule: Rule | None) -> Trace:
    name = type(rule).__name__
    if rule is None or any(slot.like not in _shapes(rule) for slot in rule.slots):
        raise UntraceableError(f"{name} looks at whole tensors")
    names, singles = (tuple(slot.name for slot in rule.slots if slot.like == like) for like in (VARIABLE, SCALAR))
    graph = Graph()
    change, new = _run(rule, graph, graph.symbol("gradient", "g"))
    traced = Trace(name, graph, names, singles, change, new, is_identity_at_zero=False)
    if not rule.elementwise:
        if len(traced.sums) > MOST_SUMS:
            raise UntraceableError(f"{name} has no kernel: it has more than {MOST_SUMS} sums")
        return traced
    folding = Graph(folds_zero=True)
    change_at_zero, new_at_zero = _run(rule, folding, folding.constant(0.0))
    identity = is_zero(change_at_zero) and all(
        value is folding.symbol("slot", slot) for slot, value in new_at_zero.items()
    )
    return replace(traced, is_identity_at_zero=identity)


def _shapes(rule: Rule) -> tuple[str, ...]:
    """Of slots that the kernel has: a step of some elements has no place for a number of all."""
    return (VARIABLE,) if rule.elementwise else (VARIABLE, SCALAR)


def _run(rule: Rule, graph: Graph, gradient: Value) -> tuple[Value, dict[str, Value]]:
    variable = graph.symbol("variable", "w")
    singles = [slot.name for slot in rule.slots if slot.like == SCALAR]
    slots = {slot.name: graph.symbol("single" if slot.name in singles else "slot", slot.name) for slot in rule.slots}
    try:
        change, new = rule.update(
            _Namespace(graph, not rule.elementwise), variable, gradient, dict(slots), _Scalars(graph)
        )
        values = {name: _number(graph, value) for name, value in new.items()}
        if not set(values) <= set(slots):
            raise UntraceableError(f"it returns slots that it did not declare: {sorted(set(values) - set(slots))}")
        if varying := [name for name in singles if name in values and not values[name].uniform]:
            raise UntraceableError(f"slot {varying[0]} is one number, and it returns one of each element")
        return _number(graph, change), {name: values[name] for name in slots if name in values}
    except UntraceableError as error:
        raise UntraceableError(f"{type(rule).__name__} has no kernel: {error}", error.function) from None
    except Exception as error:  # a user's rule may do anything with what it takes for arrays
        raise UntraceableError(f"{type(rule).__name__} has no kernel: {type(error).__name__}: {error}") from error


def _number(graph: Graph, value: Any) -> Value:
    value = value if isinstance(value, Value) else graph.constant(value)
    if value.is_bool:
        raise UntraceableError("it returns a truth value where a number is due")
    return value
