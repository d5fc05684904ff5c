"""Keras's constraints, as the ops that set a variable once it has moved (`constraints.py` 1.0 - 2.10)."""

from __future__ import annotations

import math

from migrate.graphs.nodes import Nodes
from migrate.graphs.patterns import ADD, DIVIDE, Anything, Cast, Either, Found, Pattern, match


def patterns(moved: Pattern) -> tuple[Pattern, ...]:
    """What NonNeg, UnitNorm, MaxNorm and MinMaxNorm make of a variable. Their numbers are those of the model."""
    any_number = Anything()
    square = ("Sum", ("Square", moved), any_number)
    # `K.sqrt` clips first, in TF 1.8 with an op of its own
    norm = ("Sqrt", Either(("Maximum", ("Minimum", square, math.inf), 0.0), ("ClipByValue", square, 0.0, math.inf)))
    within = Either(
        ("Maximum", ("Minimum", norm, any_number), any_number), ("ClipByValue", norm, any_number, any_number)
    )
    partly = (ADD, ("Mul", any_number, within), ("Mul", any_number, norm))
    scaled = (DIVIDE, Either(within, partly), (ADD, any_number, norm))
    return (
        ("Mul", moved, Cast(("GreaterEqual", moved, 0.0))),
        (DIVIDE, moved, (ADD, any_number, norm)),
        ("Mul", moved, scaled),
    )


def moved_before(nodes: Nodes, value: str) -> str:
    """The node that a constraint makes a value of, empty if no constraint does."""
    found = Found()
    return found.nodes["moved"] if match(nodes, value, Either(*patterns(Anything("moved"))), found) else ""
