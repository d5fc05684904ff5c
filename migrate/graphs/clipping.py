"""Recognise TensorFlow's gradient clipping, op for op (python/ops/clip_ops.py of 1.0, 1.5, 1.15 and 2.15)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from migrate.graphs.nodes import Nodes
from migrate.graphs.patterns import ADD, DIVIDE, Anything, Captures, Either, Pattern, match, operands


@dataclass(frozen=True)
class Clip:
    """A clipped gradient: the equivalent option of Keras, its limit, and the node that is clipped."""

    option: str
    limit: float
    gradient: str
    """The node before clipping."""
    norm: str = ""
    """The node of the norm over all gradients."""
    axes: str = ""
    """The node of the dims that the norm of one gradient is taken over."""

    def is_of_one(self, nodes: Nodes, owner: str) -> bool:
        """Whether the norm is that of one variable's whole gradient."""
        shape = nodes.shape(owner) if self.option == "clipnorm" and owner in nodes.variables else None
        return shape is not None and is_whole(nodes, self.axes, len(shape))


def clipped(nodes: Nodes, name: str) -> Clip | None:
    """Return how a node clips; None if it does not clip, or if no option of Keras clips so."""
    for option, pattern in _CLIPPINGS:
        captures = Captures()
        if not match(nodes, name, pattern, captures):
            continue
        limit = captures.constants["limit"]
        return Clip(option, limit, **captures.nodes) if captures.constants.get("low", -limit) == -limit else None
    return None


def may_limit(nodes: Nodes, name: str) -> bool:
    """Whether a node may be a limit although it is not from these functions."""
    compares = any(_COMPARING.fullmatch(nodes.op(node)) for node in nodes.ancestors(name, to_gradients=True))
    patterns = (*(pattern for _, pattern in _CLIPPINGS), _BY_AVERAGE)
    return compares and not any(match(nodes, name, pattern, Captures()) for pattern in patterns)


def normed(nodes: Nodes, name: str) -> list[str]:
    """The gradients of `tf.global_norm`, Sqrt(2 * Sum(Pack(L2Loss(gradient), ...))); empty for any other node."""
    captures = Captures()
    if not match(nodes, name, ("Sqrt", ("Mul", ("Sum", Anything("all"), Anything()), 2.0)), captures):
        return []
    losses = [operands(nodes, loss, "L2Loss") for loss in operands(nodes, captures.nodes["all"], "Pack")]
    return [nodes.source(loss[0]) for loss in losses] if all(losses) else []


def is_whole(nodes: Nodes, axes: str, ndim: int) -> bool:
    """Whether these axes are all axes of a tensor with `ndim` dims."""
    if nodes.op(axes) == "Range":
        first, end, step = nodes.parents(axes)
        return nodes.op(end) == "Rank" and (nodes.constant(first), nodes.constant(step)) == (0, 1)
    return nodes.integers(axes) == tuple(range(ndim))


_GRADIENT, _NORM = Anything("gradient"), Anything("norm")
_SQUARES = ("Sum", ("Mul", _GRADIENT, _GRADIENT), Anything("axes"))
_CHOOSE, _IS_LONG = "Select SelectV2", ("Greater", _SQUARES, 0.0)
_LENGTHS: tuple[Pattern, ...] = (
    ("Sqrt", _SQUARES),
    (_CHOOSE, _IS_LONG, ("Sqrt", (_CHOOSE, _IS_LONG, _SQUARES, Anything())), _SQUARES),
)
"""By one gradient's norm; from 1.13 on its derivative is finite where the length is 0."""
_SCALE = ("Mul", "limit", ("Minimum", (DIVIDE, 1.0, _NORM), (DIVIDE, 1.0, "limit")))
_SCALES: tuple[Pattern, ...] = (
    _SCALE,
    (_CHOOSE, ("IsFinite", _NORM), _SCALE, Anything()),
    (ADD, _SCALE, ("Sub", _NORM, _NORM)),
)
"""By all gradients' norm; from 1.13 on a norm that is not finite makes the gradients NaN."""
_PARTS = tuple((DIVIDE, "limit", divisor) for divisor in (("Maximum", _NORM, "limit"), ("Maximum", "limit", _NORM)))
_PARTS_BELOW_1 = tuple(
    ("Minimum", *arguments) for arguments in ((1.0, (DIVIDE, "limit", _NORM)), ((DIVIDE, "limit", _NORM), 1.0))
)
_OWN: Pattern = Either(*_PARTS, *_PARTS_BELOW_1)
"""Written by hand: min(1, limit / norm) and limit / max(norm, limit)."""
_BY_AVERAGE: Pattern = (
    "Mul",
    ("Mul", _GRADIENT, "limit"),
    ("Minimum", ("Mul", ("Rsqrt", _SQUARES), Anything()), (DIVIDE, 1.0, "limit")),
)
"""`tf.clip_by_average_norm`, whose limit depends on the size."""
_COMPARING = re.compile(r"Minimum|Maximum|ClipByValue|Select(V2)?|Greater|Less|Where|Merge")
_CLIPPINGS: tuple[tuple[str, Pattern], ...] = (
    ("clipvalue", ("ClipByValue", _GRADIENT, "low", "limit")),
    ("clipvalue", ("Maximum", ("Minimum", _GRADIENT, "limit"), "low")),
    ("clipnorm", ("Mul", ("Mul", _GRADIENT, "limit"), ("Minimum", ("Rsqrt", _SQUARES), (DIVIDE, 1.0, "limit")))),
    *(("clipnorm", (DIVIDE, ("Mul", _GRADIENT, "limit"), ("Maximum", length, "limit"))) for length in _LENGTHS),
    *(("global_clipnorm", ("Mul", _GRADIENT, scale)) for scale in (*_SCALES, _OWN)),
    ("global_clipnorm", ("Mul", _OWN, _GRADIENT)),
)
