"""A rule's maths as an expression graph: numbers of one element of a variable, and values computed from them."""

from __future__ import annotations

import functools
from collections.abc import Sequence, Set
from numbers import Real
from typing import Any

from optim.summed_gradients import SummedGradient

COMPARISONS = {"less", "less_equal", "greater", "greater_equal", "equal", "not_equal"}
LOGIC = {"logical_and", "logical_or", "logical_not"}
MATRIX, ROW, COLUMN = "matrix", "row", "column"
"""The dims of a matrix, by which a value varies, and all dims before: a variable of more dims is a batch of matrices,
one of fewer is one row.
"""
FULL, MATRICES, ROWS, COLUMNS, ONE = map(frozenset, ((ROW, COLUMN), (MATRIX,), (ROW,), (COLUMN,), ()))
COUNTS = ("size", "matrices", "rows", "columns")
"""The number of elements, and of matrices, of a variable, and of rows and columns of each matrix."""


class UntraceableError(Exception):
    """Why a rule has no graph: it uses more than one element, or branches on a value. Not used outside
    `optim.native`."""

    def __init__(self, reason: str, function: str | None = None):
        super().__init__(reason)
        self.function = function
        """The function that it calls that is not in the table, if that is the reason."""


class Value:
    """A number (or truth value) of one element; of all that differ along `dims`, 1 for dims in which it does not
    vary."""

    __array_ufunc__ = None  # NumPy scalars leave arithmetic to this class
    __hash__ = object.__hash__

    def __init__(self, graph: Graph, op: str, args: tuple[Any, ...], dims: tuple[Any, ...], number: int):
        self.graph = graph
        self.op = op
        self.args = args
        self.dims = dims
        self.number = number
        self.is_bool = op in COMPARISONS or op in LOGIC
        self.along = frozenset(dim for dim in dims if dim != 1)
        self.level: int = max((operand.level for operand in self.operands), default=0) + (op == "sum")
        """How many sums must be known one after the other before this value."""

    @property
    def shape(self) -> tuple[None, ...]:
        """As many dims as there are; their sizes are unknown."""
        if self.graph.rank is None:
            raise UntraceableError("it asks for a shape, which elements do not have")
        return () if self.graph.rank == 0 else (None,) * len(self.dims)

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
    """The dtype of every value, for rules that ask for its properties."""

    is_complex = False
    is_floating = True


_REAL = _Real()


class Graph:
    """Values, equal ones once, in an order in which each follows its operands."""

    def __init__(self, *, rank: int | None = None, folds_zero: bool = False):
        self.values: list[Value] = []
        self.rank = rank
        """Rank of the variable; None if it does not matter."""
        self.dims: tuple[Any, ...] = (*((MATRIX, k) for k in range((rank or 0) - 2)), ROW, COLUMN)[-(rank or 1) :]
        self._known: dict[Any, Value] = {}
        self._folds_zero = folds_zero

    def of(self, op: str, *args: Any) -> Value:
        if any(isinstance(arg, SummedGradient) for arg in args):
            return NotImplemented  # of an operator; `SummedGradient` has the other half
        operands = tuple(arg if isinstance(arg, Value) else self.constant(arg) for arg in args)
        if self._folds_zero:
            folded = self._folded(op, operands)
            if folded is not None:
                return folded
        dims: tuple[Any, ...] = ()
        for operand in operands:
            dims = broadcast(dims, operand.dims)
        return self._keep(op, operands, dims)

    def constant(self, number: Any, dims: tuple[Any, ...] = ()) -> Value:
        if isinstance(number, bool) or not isinstance(number, Real):
            raise UntraceableError(f"it computes with {type(number).__name__}, which is no number")
        return self._keep("constant", (repr(float(number)),), dims)

    def sum(self, value: Any, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
        """Return the sum over all elements of a variable, each of its matrices, each row, or each column."""
        if not isinstance(value, Value) or not value.along:
            raise UntraceableError("it adds up what is the same for all elements")
        over = _axes(value, axis)
        kept = tuple(1 if i in over else dim for i, dim in enumerate(value.dims) if keepdims or i not in over)
        if value.along == {dim for dim in kept if dim != 1}:
            return self._keep("same", (value,), kept)
        if kind_of(value) == MATRICES:
            raise UntraceableError("it adds up what is one number of each matrix")
        return self._keep("sum", (value,), kept)

    def mean(self, value: Any, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
        total = self.sum(value, axis, keepdims)
        gone = value.along - total.along
        if not gone:
            return total
        names = {MATRIX: "matrices", ROW: "rows", COLUMN: "columns"}
        count_names = ["size"] if gone == set(self.dims) else [n for dim, n in names.items() if dim in _plain(gone)]
        counts = [self.symbol("count", name, ()) for name in count_names]
        return self.of("div", total, functools.reduce(functools.partial(self.of, "mul"), counts))

    def expand(self, value: Any, axis: int) -> Value:
        """Return the value with one more dim, in which it is constant."""
        if not isinstance(value, Value) or not -len(value.dims) - 1 <= axis <= len(value.dims):
            raise UntraceableError(f"it expands the dims of {type(value).__name__} at {axis}")
        at = axis % (len(value.dims) + 1)
        return self._keep("same", (value,), (*value.dims[:at], 1, *value.dims[at:]))

    def symbol(self, kind: str, name: str, dims: tuple[Any, ...]) -> Value:
        """Return a symbol. Kinds: `scalar`, `slot`, `count`, `variable`, `gradient`, `power` (of a
        `SummedGradient`)."""
        return self._keep(kind, (name,), dims)

    def _keep(self, op: str, args: tuple[Any, ...], dims: tuple[Any, ...]) -> Value:
        key = (op, dims, *(arg.number if isinstance(arg, Value) else arg for arg in args))
        if key not in self._known:
            self._known[key] = Value(self, op, args, dims, len(self.values))
            self.values.append(self._known[key])
        return self._known[key]

    def _folded(self, op: str, args: tuple[Value, ...]) -> Value | None:
        """Return the result of an operation with a zero, for finite numbers and without division by zero."""
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


def broadcast(one: tuple[Any, ...], two: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the dims of an elementwise result of both."""
    longest = max(len(one), len(two))
    pairs = zip((1,) * (longest - len(one)) + one, (1,) * (longest - len(two)) + two, strict=True)
    dims = []
    for a, b in pairs:
        if a != b and 1 not in (a, b):
            raise UntraceableError(f"it meets {a}s with {b}s")
        dims.append(b if a == 1 else a)
    return tuple(dims)


def _axes(value: Value, axis: int | Sequence[int] | None) -> set[int]:
    """Return positions in the dims of a value."""
    rank = len(value.dims)
    axes = range(rank) if axis is None else [axis] if isinstance(axis, int) else axis
    if any(not -rank <= number < rank for number in axes):
        raise UntraceableError(f"it adds up along axis {axis} of {rank}")
    return {number % rank for number in axes}


def is_zero(value: Value) -> bool:
    return value.op == "constant" and float(value.args[0]) == 0.0


def kind_of(value: Value) -> frozenset[str]:
    """Return the unit that has one of the value: FULL, MATRICES, ROWS, COLUMNS or ONE.

    Raises UntraceableError: it is constant along some of the dims before a matrix, or along these, and not along all.
    """
    every, along = frozenset(value.graph.dims), value.along
    if along == every:
        return FULL
    batch = every - FULL
    if along & batch not in ((frozenset(), batch) if along <= batch else (batch,)):
        raise UntraceableError(f"its variables have {len(every)} dims, and it looks along some of them")
    return _plain(along) - MATRICES or _plain(along)


def _plain(dims: Set[Any]) -> frozenset[str]:
    """Return the dims with all dims before a matrix as one."""
    return frozenset(MATRIX if isinstance(dim, tuple) else dim for dim in dims)
