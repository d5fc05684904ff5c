"""Rules of OptimizerV2 without a kernel of their own, as the sums of ops that a graph has of them: RMSprop without
momentum, Nadam, and what Adamax does with the rows of a table.

Sources: `optimizer_v2/rmsprop.py`, `nadam.py` and `adamax.py` of tf.keras 1.14 to 2.10.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from migrate.graphs.nodes import SETS, Nodes, Write
from migrate.graphs.patterns import ADD, DIVIDE, STEP, Anything, Cast, Found, Pattern, Variable, match

RATE, EPSILON = "rate", "epsilon"
_GRADIENT, _RATE = Anything("gradient"), Anything(RATE)
_NEXT, _SECOND = Cast((ADD, STEP, 1.0)), Cast((ADD, STEP, 2.0))


class _Names:
    """The variables of an optimizer and the slots of one variable; `rows`: as what is gathered from the slots."""

    def __init__(self, own: str, owner: str, rows: bool = False) -> None:
        self.own, self.owner, self.rows = own, owner, rows

    def hyper(self, name: str) -> Variable:
        return Variable(f"{self.own}/{name}")

    def slot(self, name: str) -> Pattern:
        variable = Variable(f"{self.own}/{self.owner}/{name}")
        return ("GatherV2", variable, Anything("rows"), 0.0) if self.rows else variable

    def left(self, rate: str) -> Pattern:
        return ("Sub", 1.0, self.hyper(rate))

    def mean(self, slot: str, rate: str, value: Pattern) -> Pattern:
        return (ADD, ("Mul", self.hyper(rate), self.slot(slot)), ("Mul", self.left(rate), value))


def of_variable(nodes: Nodes, own: str, owner: str, writes: Sequence[Write]) -> tuple[str, Found] | None:
    """The class whose formula the update of a variable is, to the last op, and what was found in it.

    Args:
      own: the scope of the optimizer's variables. writes: all that the update writes.
    """
    values = {write.target: write.value for write in writes if nodes.op(write.op) in SETS}
    if len(values) != len(writes):
        return None
    for class_name, slots, step in _formulas(_Names(own, owner)):
        wanted = {f"{own}/{owner}/{slot}": value for slot, value in slots.items()} | {owner: step}
        found = Found()
        if values.keys() == wanted.keys() and all(match(nodes, values[k], wanted[k], found) for k in wanted):
            return class_name, found
    return None


def of_rows(nodes: Nodes, own: str, owner: str, value: str) -> Found | None:
    """What is found in the formula by which rows of a variable move; None if it is none of these."""
    for step in _row_steps(_Names(own, owner, rows=True)):
        found = Found()
        if match(nodes, value, step, found):
            return found
    return None


def _formulas(names: _Names) -> Iterator[tuple[str, Mapping[str, Pattern], Pattern]]:
    """(class, what is written to its slots, what is written to the variable)."""
    square = ("Square", _GRADIENT)
    plain = {"rms": names.mean("rms", "rho", square)}
    centered = plain | {"mg": names.mean("mg", "rho", _GRADIENT)}
    moments = {"m": names.mean("m", "beta_1", _GRADIENT), "v": names.mean("v", "beta_2", square)}
    for class_name, slots in (("RMSprop", plain), ("RMSprop", centered), ("Nadam", moments)):
        step = _nadam(names, _RATE) if class_name == "Nadam" else _rmsprop(names, _RATE, "mg" in slots)
        yield class_name, slots, ("Sub", Variable(names.owner), step)


def _row_steps(names: _Names) -> Iterator[Pattern]:
    taken = ("Neg", _RATE)
    yield _rmsprop(names, taken, centered=False)
    yield _rmsprop(names, taken, centered=True)
    yield _nadam(names, taken)
    yield _adamax_rows(names, taken)


def _rmsprop(names: _Names, rate: Pattern, centered: bool) -> Pattern:
    square = names.slot("rms")
    spread = ("Sub", square, ("Square", names.slot("mg"))) if centered else square
    return (DIVIDE, ("Mul", rate, _GRADIENT), (ADD, ("Sqrt", spread), EPSILON))


def _nadam(names: _Names, rate: Pattern) -> Pattern:
    base = float(np.float32(0.96))
    now, later = (
        ("Mul", names.hyper("beta_1"), ("Sub", 1.0, ("Mul", 0.5, ("Pow", base, ("Mul", "decay", step)))))
        for step in (_NEXT, _SECOND)
    )
    product = names.hyper("momentum_cache")
    gradient = (DIVIDE, _GRADIENT, ("Sub", 1.0, product))
    moment = (DIVIDE, names.slot("m"), ("Sub", 1.0, ("Mul", product, later)))
    mixed = (ADD, ("Mul", ("Sub", 1.0, now), gradient), ("Mul", later, moment))
    second = (DIVIDE, names.slot("v"), ("Sub", 1.0, ("Pow", names.hyper("beta_2"), _NEXT)))
    return (DIVIDE, ("Mul", rate, mixed), (ADD, ("Sqrt", second), EPSILON))


def _adamax_rows(names: _Names, rate: Pattern) -> Pattern:
    def gathered(name: str) -> Pattern:
        return ("ResourceGather", Variable(f"{names.own}/{names.owner}/{name}"), Anything("rows"))

    moment = (ADD, ("Mul", gathered("m"), names.hyper("beta_1")), ("Mul", _GRADIENT, names.left("beta_1")))
    largest = ("Maximum", ("Mul", gathered("v"), names.hyper("beta_2")), ("Abs", _GRADIENT))
    corrected = (DIVIDE, rate, ("Sub", 1.0, ("Pow", names.hyper("beta_1"), _NEXT)))
    return ("Mul", corrected, (DIVIDE, moment, (ADD, largest, EPSILON)))
