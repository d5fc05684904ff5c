"""Compare a node of a graph with an expression of constants, variables and the global step, op for op."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from migrate.graphs.nodes import VARIABLES, Nodes
from migrate.state import GLOBAL_STEP

ADD, DIVIDE = "Add AddV2", "RealDiv Div"
STEP = "<step>"
Pattern = Any
"""(ops, inputs...); a name for a constant; a required number; STEP; a `Variable`; a `Cast`; `Anything`; or several of
these as `Either`."""


@dataclass(frozen=True)
class Variable:
    name: str


@dataclass(frozen=True)
class Anything:
    """Any node. If it has a name, that name matches the same node everywhere."""

    name: str = ""


@dataclass(frozen=True, init=False)
class Either:
    """The first of several patterns that fits."""

    patterns: tuple[Pattern, ...]

    def __init__(self, *patterns: Pattern) -> None:
        object.__setattr__(self, "patterns", patterns)


@dataclass(frozen=True)
class Cast:
    """A pattern in another dtype, such as a counter as a float."""

    of: Pattern


@dataclass
class Captures:
    """The constants and nodes that names of a pattern matched."""

    constants: dict[str, float] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)


def match(nodes: Nodes, name: str, pattern: Pattern, captures: Captures) -> bool:
    """Whether a node fits a pattern. Constants of one name must be equal."""
    source = nodes.source(name)
    if pattern == STEP:
        scope, _, last = source.rpartition("/")
        is_keras = last == "iter" and f"{scope}/decay" in nodes.variables  # OptimizerV2's own counter
        is_counter = source == nodes.counter or (last == GLOBAL_STEP and not nodes.counter)
        return nodes.op(source) in VARIABLES and (is_counter or is_keras)
    if isinstance(pattern, Variable):
        return source == pattern.name and not nodes.is_cast(name)
    if isinstance(pattern, Cast):
        return nodes.is_cast(name) and match(nodes, source, pattern.of, captures)
    if isinstance(pattern, Anything):
        return not pattern.name or captures.nodes.setdefault(pattern.name, source) == source
    if isinstance(pattern, Either):
        return any(_matches_alone(nodes, name, alternative, captures) for alternative in pattern.patterns)
    if isinstance(pattern, (float, str)):
        number = nodes.constant(name)
        if number is None or (nodes.is_cast(name) and number != int(number)):
            return False
        return number == (pattern if isinstance(pattern, float) else captures.constants.setdefault(pattern, number))
    inputs = operands(nodes, name, pattern[0])
    return len(inputs) == len(pattern) - 1 and all(
        match(nodes, input_name, operand, captures) for input_name, operand in zip(inputs, pattern[1:], strict=True)
    )


def _matches_alone(nodes: Nodes, name: str, pattern: Pattern, captures: Captures) -> bool:
    """As `match`, but leave `captures` unchanged if the pattern does not fit."""
    trial = Captures(dict(captures.constants), dict(captures.nodes))
    if not match(nodes, name, pattern, trial):
        return False
    captures.constants, captures.nodes = trial.constants, trial.nodes
    return True


def operands(nodes: Nodes, name: str, ops: str) -> list[str]:
    """The inputs of a node if it has one of these ops, else empty. A `Cast` is only allowed after a comparison."""
    source = nodes.source(name)
    if nodes.op(source) not in ops.split() or (nodes.is_cast(name) and nodes.op(source) != "Less"):
        return []
    return nodes.inputs[source]
