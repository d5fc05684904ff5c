"""Recognise Keras's constraints: the ops that adjust a variable after its update (`constraints.py` 1.0 - 2.10)."""

from __future__ import annotations

import math

from migrate.graphs.nodes import Nodes
from migrate.graphs.patterns import ADD, DIVIDE, Anything, Captures, Cast, Either, Pattern, match


def patterns(moved: Pattern) -> tuple[Pattern, ...]:
    """Patterns of NonNeg, UnitNorm, MaxNorm and MinMaxNorm applied to an updated variable, with any limits."""
    any_number = Anything()
    square = ("Sum", ("Square", moved), any_number)
    # `K.sqrt` clips first; in TF 1.8 one op does it
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
    """Return the updated value that a constraint is applied to, empty if there is no constraint."""
    captures = Captures()
    return captures.nodes["moved"] if match(nodes, value, Either(*patterns(Anything("moved"))), captures) else ""
