"""The nodes of a TensorFlow graph as data: their inputs, and the constants among them. Nothing is run."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

PASSING = ("Identity", "Cast", "ReadVariableOp", "Enter", "Snapshot")
SETS = ("Assign", "AssignVariableOp")
WRITES = ("Assign", "AssignSub", "AssignAdd", "AssignVariableOp", "AssignSubVariableOp", "AssignAddVariableOp")
SCATTERS = ("ScatterSub", "ScatterAdd", "ScatterUpdate")
"""Ops, with or without a `Resource` prefix, that change the rows of a sparse gradient."""
NOT_STEPS = ("save", "swapping_saver", "report_uninitialized_variables")
"""Scopes of ops that change variables outside of training steps."""
GIVEN = ("Placeholder", "RestoreV2")
"""Ops for values that no training step computes: fed by the program, or read from a checkpoint."""
READS = ("Identity", "ReadVariableOp", "IsVariableInitialized", "VarIsInitializedOp", "SaveV2", "Save")
"""Ops that read a variable and do not change it."""
_HANDED_IN = ("Switch", "RefSwitch", "RefEnter", "RefIdentity")
VARIABLES = ("Variable", "VariableV2", "VarHandleOp")
ROWS_ADDED = "UnsortedSegmentSum"
"""Ops that add up repeated rows of a sparse gradient, or make it dense."""


FIRST = re.compile(r"(?:^|/)gradients(?:_\d+)?/(?:Fill|grad_ys_\d+)$")
"""The node that `tf.gradients` begins at: the gradient of a loss with respect to itself (ops/gradients_util.py
1.15)."""
_SUM = re.compile(r"(?:^|/)gradients(?:_\d+)?/AddN(?:_\d+)?$")
"""Names of sums that `tf.gradients` adds if a value is used more than once (ops/gradients_util.py 1.15)."""


_CALLED = {
    "realdiv": "truediv",
    "pack": "stack",
    "unpack": "unstack",
    "matrixdiagpart": "diagpart",
    "exit": "bacc",
    "merge": "condgrad",
}
"""Names that Python gives ops in addition to the name of their type, as `_plain` returns them."""


def _plain(name: str) -> str:
    """Unify spellings: `StridedSlice` and `strided_slice`, `ConcatV2` and `concat`."""
    return re.sub(r"v\d$", "", name.replace("_", "").lower())


def node_of(input_name: Any) -> str:
    """The node of an input, written as `NODE:1` or `^NODE`."""
    return str(input_name).removeprefix("^").partition(":")[0]


@dataclass(frozen=True)
class Write:
    op: str
    target: str
    value: str


class Content(NamedTuple):
    """The values of a constant, flat."""

    dtype: int
    shape: tuple[int, ...]
    numbers: tuple[Any, ...]


class Nodes:
    """The nodes of a graph by name; `inputs` leaves out control edges and output numbers."""

    def __init__(self, nodes: Any, functions: Mapping[str, Any] | None = None) -> None:
        self.by_name = {str(node.name): node for node in nodes}
        self.inputs = {str(n.name): [self._handed(i) for i in n.input if not i.startswith("^")] for n in nodes}
        self.variables = frozenset(str(n.name) for n in nodes if n.op in VARIABLES)
        self.values: Mapping[str, float] = {}
        """Stored values of scalar variables that the graph does not change: they act as constants."""
        self.changing: Mapping[str, tuple[float, str]] = {}
        """Stored values of scalar variables that the graph changes, each with an op that changes it."""
        self._gradients: dict[str, bool] = {}
        """Which of the examined nodes are gradients."""
        self.functions = {} if functions is None else functions
        """The functions of the graph's library, by name."""
        self.counter = ""
        """The variable that counts the steps, if it is known."""
        self.parts: Mapping[str, str] = {}
        """The name of the whole variable of each part, as in `SaverGraph.parts`."""

        self.branches: Mapping[str, frozenset[str]] = {}
        """The conditions of nodes that not every step runs, as in `conditions.Taken`."""
        self._waits: dict[str, set[str]] = {}
        self._variables_of: dict[str, frozenset[str]] = {}

    def _handed(self, output: str) -> str:
        """The node of an output, `NODE:1`; for an op that passes on many values, the source of this one."""
        name, _, place = str(output).partition(":")
        for _ in range(len(self.by_name)):
            place = place.rpartition(":")[2] or "0"  # in a function `NODE:output:1`
            inputs = [str(i) for i in self.by_name[name].input] if self.op(name) == "IdentityN" else []
            if int(place) >= len(inputs):
                break
            name, _, place = inputs[int(place)].removeprefix("^").partition(":")
        return name

    def op(self, name: str) -> str:
        return str(self.by_name[name].op) if name in self.by_name else ""

    def source(self, name: str) -> str:
        """The node that computes a value, before ops that only pass it on."""
        for _ in range(len(self.by_name)):
            if self.op(name) not in PASSING or not self.inputs[name]:
                break
            name = self.inputs[name][0]
        return name

    def target(self, name: str) -> str:
        """The variable that an op changes, before ops that pass it into a `tf.cond` or a loop."""
        for _ in range(len(self.by_name)):
            name = self.source(name)
            if self.op(name) not in _HANDED_IN or not self.inputs[name]:
                break
            name = self.inputs[name][0]
        return name

    def called(self, name: str) -> set[str]:
        values = [attribute.value for attribute in self.by_name[name].attr] if self.functions else []
        named = [str(f.name) for v in values for f in (v.func, *v.list.func)]
        return {self.op(name), *named} & self.functions.keys()

    def is_cast(self, name: str) -> bool:
        """Whether a value is cast between its source and this node."""
        while self.op(name) in PASSING and self.inputs[name] and self.op(name) != "Cast":
            name = self.inputs[name][0]
        return self.op(name) == "Cast"

    def rounds(self, name: str) -> bool:
        """Whether an op casts floats to a narrower dtype; casts of the backward pass do not count."""
        dtypes = [self.attribute(name, key) for key in ("SrcT", "DstT")] if self.op(name) == "Cast" else []
        digits = [_DIGITS.get(dtype.type, 0) for dtype in dtypes if dtype is not None]
        return len(digits) == 2 and 0 < digits[1] < digits[0] and not self.is_backward(name)

    def parents(self, name: str) -> list[str]:
        return [self.source(parent) for parent in self.inputs.get(name, ())]

    def before_rows_added(self, gradient: str) -> str:
        """Return a gradient before its repeated rows are added up, if they are."""
        source = self.source(gradient)
        return self.inputs[source][0] if self.op(source) == ROWS_ADDED else gradient

    def constant(self, name: str) -> float | None:
        """The number of a scalar constant, or of a variable that acts as one; None for others."""
        name = self.source(name)
        if self.op(name) != "Const":
            return self.values.get(name)
        content = self.content(name)
        return (
            float(content.numbers[0])
            if content is not None and content.dtype != BOOL and len(content.numbers) == 1
            else None
        )

    def integers(self, name: str) -> tuple[int, ...] | None:
        """The integers of a constant with one dim, None for other nodes."""
        content = self.content(name)
        return content.numbers if content is not None and content.dtype == INT32 and len(content.shape) == 1 else None

    def content(self, name: str) -> Content | None:
        """The values of a constant; None for other nodes, other dtypes, and very many values."""
        value = self.attribute(name, "value") if self.op(name) == "Const" else None
        if value is None or value.tensor.dtype not in _FORMATS or value.tensor.tensor_shape.unknown_rank:
            return None
        shape = tuple(int(d.size) for d in value.tensor.tensor_shape.dim)
        size = math.prod(shape) if min(shape, default=0) >= 0 else _LARGEST + 1
        numbers = _numbers(value.tensor, size) if size <= _LARGEST else None
        return None if numbers is None else Content(int(value.tensor.dtype), shape, numbers)

    def attribute(self, name: str, key: str) -> Any:
        """The value of an op's attribute, None if it is absent."""
        return next((a.value for a in self.by_name[name].attr if a.key == key), None)

    def first_value(self, variable: str) -> float | None:
        """The constant that initializes a scalar variable, or None."""
        inputs = self.inputs.get(f"{variable}/Assign", ())
        return self.constant(inputs[1]) if len(inputs) > 1 and inputs[0] == variable else None

    def shape(self, variable: str) -> tuple[int, ...] | None:
        """The shape of a variable; None unless the graph defines all of it."""
        value = self.attribute(variable, "shape")
        shape = None if value is None else value.shape
        dims = () if shape is None else tuple(int(dim.size) for dim in shape.dim)
        return None if shape is None or shape.unknown_rank or min(dims, default=0) < 0 else dims

    def writes(self) -> Iterator[Write]:
        """Yield all assignments except those that initialize or restore."""
        return self.writes_of(self.inputs)

    def writes_of(self, names: Iterable[str]) -> Iterator[Write]:
        """Yield the assignments among these ops, except those that initialize or restore."""
        for name in names:
            inputs = self.inputs[name]
            if self.op(name) in WRITES and len(inputs) > 1 and not self.is_no_step(name):
                yield Write(name, self.target(inputs[0]), inputs[1])

    def changers(self, variables: Collection[str]) -> dict[str, str]:
        """Map the variables that a step may change to an op that does: it writes a computed value, or its inside is
        unknown, as in a loop or a function call."""
        changers: dict[str, str] = {}
        for name, inputs in self.inputs.items():
            candidates = [variable for variable in inputs if variable in variables]
            if not candidates or self.op(name) in READS or self.is_no_step(name):
                continue
            writes = self.op(name) in WRITES and len(inputs) > 1 and inputs[0] in candidates
            if not writes or not (self.is_given(inputs[1]) or self.sets_alone(name)):
                changers |= dict.fromkeys(candidates, name)
        return changers

    def sets_constant(self, name: str) -> bool:
        values = self.inputs[name][1:2] if self.op(name) in SETS else []
        return [self.op(self.source(value)) for value in values] == ["Const"]

    def sets_alone(self, name: str) -> bool:
        """Whether an op sets a variable to a constant and no op waits for it: the program decides when to run it, like
        char-rnn's `run(tf.assign(rate, 0.1))`."""
        waiting = [name] if self.sets_constant(name) else []
        for op in waiting:
            readers = self.readers.get(op, ())
            if any(self.op(reader) not in ("Identity", "ReadVariableOp") for reader in readers):
                return False
            waiting += [reader for reader in readers if reader not in waiting]
        return bool(waiting)

    def is_given(self, name: str) -> bool:
        return self.op(self.source(name)) in GIVEN

    def is_no_step(self, name: str) -> bool:
        """Whether an assignment initializes, restores, or broadcasts the first worker's value to all workers (Horovod's
        `broadcast_global_variables`)."""
        target, first = (self.inputs[name] or [""])[0], name.partition("/")[0].rstrip("_0123456789")
        if first in NOT_STEPS or name in (f"{target}/Assign", f"{target}/IsInitialized/VarIsInitializedOp"):
            return True
        source = self.source(self.inputs[name][1]) if self.op(name) in SETS and len(self.inputs[name]) > 1 else ""
        return self.op(source) == "HorovodBroadcast" and self.parents(source) == [target]

    def flag(self, name: str, attribute: str) -> bool:
        return any(a.key == attribute and a.value.b for a in self.by_name[name].attr)

    def is_gradient(self, name: str) -> bool:
        """Whether `tf.gradients` made a value, or it is a placeholder with that value as default."""
        if name not in self._gradients:
            value = name
            while not self.is_backward(value) and self.op(value) in ("PlaceholderWithDefault", *PASSING):
                value = next(iter(self.inputs[value]), "")
            self._gradients[name] = self.is_backward(value)
        return self._gradients[name]

    def is_backward(self, name: str) -> bool:
        """Whether `tf.gradients` made an op, judged by its name: `SCOPE/OP_grad/...` for an `OP` of the graph.

        A program's own scopes `clip_grad` or `w_grad` (after a variable) match no op.
        """
        if _SUM.search(name):
            return all(map(self.is_gradient, self.inputs.get(name, ("",))))
        return next(self._forward(name), None) is not None and self._is_called_as_usual(name)

    def _is_called_as_usual(self, name: str) -> bool:
        """Whether the name after `OP_grad` is one that TensorFlow gives. A program may name an op
        `gradients/OP_grad/MatMul_1_noisy`, after the gradient that it changes."""
        scopes, _, called = re.split(r"_grad/(?!.*_grad/)", name)[-1].rpartition("/")
        kind, called = _plain(self.op(name)), re.sub(r"_\d+$", "", called)
        if scopes in ("", "tuple") and _plain(called) in (kind, _CALLED.get(kind)):
            return True
        return f"{scopes}/{called}".lstrip("/") in {f"{op}_grad" for op in self._forward(name)}  # as tf.while_loop does

    def _forward(self, name: str) -> Iterator[str]:
        """Yield the ops whose gradient a node may be, judged by its name."""
        parts = name.split("/")
        for end in (i for i, part in enumerate(parts[:-1]) if part.endswith("_grad") and i):
            op = [*parts[:end], parts[end].removesuffix("_grad")]
            # an imported graph has a prefix before SCOPE
            names = ("/".join(op[:i] + op[j:]) for i in range(end) for j in range(i + 1, end + 1))
            yield from (op_name for op_name in names if op_name in self.by_name and op_name not in self.variables)

    def losses(self) -> frozenset[str]:
        """The losses that `tf.gradients` differentiates."""
        first = set(filter(FIRST.search, self.inputs))
        readers = [name for name in self.inputs if first and not first.isdisjoint(self.parents(name))]
        return frozenset(op for name in readers for op in self._forward(name))

    def differentiated(self, name: str) -> frozenset[str]:
        """The variables that a gradient may belong to: those that its op reads; may be empty.

        Of the ops with a matching name the longest is the likeliest: `a/Exp` before `Exp`.
        """
        variables = [self.variables.intersection(self.parents(op)) for op in sorted(self._forward(name), key=len)]
        return frozenset().union(*variables) if variables and variables[-1] else frozenset()

    def ancestors(
        self, name: str, stop: Collection[str] = (), *, to_gradients: bool = False, with_choices: bool = False
    ) -> Iterator[str]:
        """Yield the node and everything that its value depends on, up to variables and `stop`. Optionally stop at
        gradients, and include what chooses the side of a `tf.cond`."""
        seen, todo = set(stop), [name]
        while todo:
            node = todo.pop()
            if node in seen:
                continue
            seen.add(node)
            yield node
            if node not in self.variables and not (to_gradients and self.is_gradient(node)):
                todo.extend(self.inputs.get(node, ()))
            if with_choices:
                todo.extend(self.sides(node))

    def has_gradients(self, name: str) -> bool:
        """Whether a value depends on gradients."""
        return any(map(self.is_gradient, self.ancestors(name, to_gradients=True)))

    def sides(self, name: str) -> list[str]:
        """The switch outputs that a constant on one side of a `tf.cond` waits for."""
        waits = [str(i)[1:] for i in self.by_name[name].input if i.startswith("^")] if name in self.by_name else []
        return [w for w in waits if self.op(w) == "Identity" and "Switch" in map(self.op, self.inputs[w][:1])]

    @cached_property
    def readers(self) -> dict[str, list[str]]:
        """The nodes that read each node, or wait for it."""
        readers: dict[str, list[str]] = {}
        for name, node in self.by_name.items():
            for input_name in node.input:
                readers.setdefault(node_of(input_name), []).append(name)
        return readers

    def waits_for(self, name: str) -> set[str]:
        """All nodes that finish before this one, by its inputs and control edges."""
        if name in self._waits:
            return self._waits[name]
        seen, todo = self._waits.setdefault(name, set()), [name]
        while todo:
            node = self.by_name.get(todo.pop())
            for input_name in node.input if node is not None else ():
                before = node_of(input_name)
                if before not in seen:
                    seen.add(before)
                    todo.append(before)
        return seen

    def variables_of(self, name: str) -> frozenset[str]:
        """The variables that a value depends on, without those that only gradients depend on. They are computed once
        for each node, because all updates may depend on the norm of all gradients."""
        cache, todo, opened = self._variables_of, [name], set[str]()
        while todo:
            node = todo[-1]
            ends = node in cache or node in self.variables or self.is_gradient(node)
            inputs = () if ends else self.inputs.get(node, ())
            missing = [i for i in inputs if i not in cache]
            if missing and node not in opened:
                opened.add(node)
                todo += missing
                continue
            if missing:  # as in a loop, which depends on itself
                cache[node] = self.variables.intersection(self.ancestors(node, to_gradients=True))
            elif node not in cache:
                variables = {node} & self.variables
                cache[node] = frozenset(variables).union(*(cache[i] for i in inputs))
            todo.pop()
        return cache[name]


FLOAT, DOUBLE, INT32, INT64, BOOL = 1, 2, 3, 9, 10
"""DataType."""
_DIGITS = {DOUBLE: 53, FLOAT: 24, 19: 11, 14: 8}
"""Binary operators of float, float16 and bfloat16."""
_FORMATS = {
    FLOAT: ("f", "float_val"),
    DOUBLE: ("d", "double_val"),
    INT32: ("i", "int_val"),
    INT64: ("q", "int64_val"),
    BOOL: ("?", "bool_val"),
}
"""How one number is packed, and the field that stores it unpacked."""
_TYPES = {"f": float, "d": float, "i": int, "q": int, "?": bool}
_LARGEST = 1 << 20
"""Most elements of a constant: one stored number may represent all of them."""


def _numbers(tensor: Any, size: int) -> tuple[Any, ...] | None:
    form, name = _FORMATS[tensor.dtype]
    if tensor.tensor_content:
        whole = len(tensor.tensor_content) == size * struct.calcsize(f"<{form}")
        return struct.unpack(f"<{size}{form}", tensor.tensor_content) if whole else None
    listed = tuple(getattr(tensor, name)) or (_TYPES[form](),)  # an empty list means zeros (framework/tensor.cc 1.15)
    if len(listed) > max(size, 1):
        return None
    return (listed + listed[-1:] * (size - len(listed)))[:size]  # the last number repeats
