"""The part of a graph that computes the new values of one variable and its slots in a step."""

from __future__ import annotations

import math
from typing import Any

from migrate.graphs.evaluate import UnknownError, Writes, last, number_of, trace
from migrate.graphs.nodes import INT32, INT64, ROWS_ADDED, Nodes, node_of

_MOST_SLOTS, _MOST_CUTS = 4, 12
_OF_NUMBERS = (
    "Const Floor Ceil FloorDiv FloorMod Mod Cos Sin Sigmoid Switch RefSwitch Merge Cast Max Min Sum OneHot Pack Range"
    " PlaceholderWithDefault Add AddV2 Sub Mul RealDiv Div Pow Maximum Minimum Exp Log Sqrt Rsqrt Neg Abs Square Select"
    " SelectV2 Less LessEqual Greater GreaterEqual Equal NotEqual LogicalAnd LogicalOr LogicalNot Identity"
    " ReadVariableOp StopGradient Snapshot Reshape Squeeze"
)
"""Ops that compute one number from others."""
_CHOICES = (
    *("Select", "SelectV2", "Minimum", "Maximum", "ClipByValue", "Abs", "Sign"),
    *("Less", "LessEqual", "Greater", "GreaterEqual", "Equal", "NotEqual"),
)


class Update:
    """The new values of one variable and its slots, as the graph computes them."""

    def __init__(self, nodes: Nodes, variable: str, writes: Writes, moved: str = "") -> None:
        self.nodes, self.variable, self.writes = nodes, variable, writes
        self.ends = {variable: moved or self._end(variable)}
        self.traced = self._trace()
        while slots := [output for output in self.traced if output not in self.ends and self._is_slot(output)]:
            if len(self.ends) + len(slots) > _MOST_SLOTS + 1:
                raise UnknownError(variable)
            self.ends |= {slot: self._end(slot) for slot in slots}
            self.traced = self._trace()
        self.slots = tuple(slot for slot in self.ends if slot != variable)
        self.counters = [output for output in self.traced if self._is_counter(output)]
        self.dependents = self._with_dependents(set(self.ends))
        self.leaves = [output for output, inputs in self.traced.items() if not inputs and self._is_array(output)]
        self.others = self._with_dependents(set(self.leaves))
        for output in self.traced.keys() - self.dependents - self.others:
            if self._chooses(output):
                self.traced[output] = []  # its values at a few steps do not determine it at others

    def _end(self, variable: str) -> str:
        assignment = last(self.nodes, [write.op for write in self.writes.get(variable, ())])
        if not assignment:
            raise UnknownError(variable)
        return assignment

    def _trace(self) -> dict[str, list[str]]:
        return trace(self.nodes, list(self.ends.values()), self.is_gradient, self.writes)

    def is_gradient(self, output: str) -> bool:
        return self.nodes.is_gradient(node_of(output))

    def _is_slot(self, name: str) -> bool:
        """Whether a variable of this shape gets a value that depends on another array."""
        nodes = self.nodes
        if name not in nodes.variables or not self.writes.get(name) or nodes.shape(name) != nodes.shape(self.variable):
            return False
        if nodes.shape(name) != ():
            return True
        return nodes.has_gradients(self._end(name))

    def _is_counter(self, name: str) -> bool:
        if name not in self.nodes.variables or self.nodes.shape(name) != () or name in self.ends:
            return False
        dtype = self.nodes.attribute(name, "dtype")
        raised = [w.op for w in self.writes.get(name, ()) if self.nodes.op(w.op).startswith("AssignAdd")]
        return (dtype is not None and dtype.type in (INT32, INT64)) or len(raised) == 1

    def _is_array(self, output: str) -> bool:
        """Whether an output where the evaluation starts is neither a number nor the variable nor a slot."""
        nodes = self.nodes
        if output in self.ends:
            return False
        if output in nodes.variables:
            return nodes.shape(output) != ()
        if nodes.op(output) == "Const":
            return nodes.content(output) is None or len(set(nodes.content(output).numbers)) > 1  # type: ignore[union-attr]
        return not self._depends_on_numbers(output)

    def _depends_on_numbers(self, output: str) -> bool:
        nodes = self.nodes
        for node in nodes.ancestors(node_of(output), to_gradients=True):
            if nodes.is_gradient(node):
                return False
            scalar = nodes.shape(node) == () if node in nodes.variables or nodes.op(node) == "Placeholder" else None
            if scalar is False or (scalar is None and nodes.op(node) not in _OF_NUMBERS.split()):
                return False
        return True

    def _chooses(self, output: str) -> bool:
        """Whether a number is chosen by comparing. Limits of 0 and infinity, as Keras puts below a root, do not
        count."""
        if self.nodes.op(output) not in _CHOICES:
            return False
        limits = [number_of(self.nodes, input_name) for input_name in self.traced[output]]
        return sum(limit is not None and float(limit) in (0.0, math.inf) for limit in limits) < len(limits) - 1

    def _with_dependents(self, on: set[str]) -> set[str]:
        dependents = set(on)
        for output, inputs in self.traced.items():
            if not dependents.isdisjoint(inputs):
                dependents.add(output)
        return dependents & self.traced.keys()

    def form(self) -> tuple[Any, ...]:
        """A key of the computation, without the names of the variable, its slots and its gradient."""
        places = {output: place for place, output in enumerate(self.traced)}
        groups = list(dict.fromkeys(self._equal_arrays().values()))
        parts: list[Any] = []
        for output, inputs in self.traced.items():
            if output in self.leaves:
                parts.append(next(place for place, group in enumerate(groups) if output in group))
            elif output in self.ends:
                parts.append(("own", places[self.ends[output]]))
            elif self.nodes.op(output) == "Const":
                number = number_of(self.nodes, output)
                parts.append(("const", None if number is None else float(number)))
            else:
                parts.append((self.nodes.op(output), *(places[i] for i in inputs)) if inputs else output)
        return (places[self.variable], *parts)

    def _equal_arrays(self) -> dict[str, tuple[str, ...]]:
        alike: dict[Any, list[str]] = {}
        for leaf in self.leaves:
            rows = self.nodes.op(leaf) == ROWS_ADDED  # added up again at each use
            alike.setdefault(tuple(self.nodes.parents(leaf)[:2]) if rows else leaf, []).append(leaf)
        return {leaf: tuple(members) for members in alike.values() for leaf in members}

    def cuts(self) -> list[tuple[str, ...]]:
        """Outputs that could be the gradient: everything except the variable, slots and numbers reaches the new values
        through one of them. Those that leave most of the graph to be evaluated come first."""
        group = self._equal_arrays()
        open_: set[tuple[str, ...]] = {(end,) for end in self.ends.values() if end in self.others}
        cuts: list[tuple[str, ...]] = []
        for output in reversed(self.traced):
            cut = group.get(output, (output,))
            if len(open_) == 1 and self.dependents.isdisjoint(alone := next(iter(open_))) and alone not in cuts:
                cuts.append(alone)
            if cut in open_ and output not in group:
                open_.discard(cut)
                open_ |= {group.get(name, (name,)) for name in self.traced[output] if name in self.others}
        return cuts[:_MOST_CUTS][::-1]
