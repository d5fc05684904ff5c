"""What gradients go through between the backward pass and an optimizer of tf.train.

Clipping is an option of today's optimizers and is carried. The mean over towers or workers, the end of a loop that
gathers gradients, a loss scale that is taken off again and a guard against NaN give the gradient of the loss, as a
program in another framework will. Whatever else a program does to it (multipliers for some layers, noise, decay by
hand) is said, for the steps that come next need it, too.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from migrate.graphs.nodes import GIVEN, Nodes
from migrate.graphs.patterns import ADD, DIVIDE, Anything, Found, match, operands

_BACKWARD = re.compile(r"(?:^|/)[^/]+_grad/")
"""In names of what the backward pass makes, whatever a program calls its scope (ops/gradients_util.py 1.15)."""
_SUMS = ("AddN", "AccumulateNV2", *ADD.split())
_JOINS = ("ConcatV2", "Concat", "Pack", "ExpandDims", "Reshape", "Squeeze", "Mean", "Sum", "UnsortedSegmentSum")
"""How towers' gradients come to one. Inputs behind the first that are constants say which axis."""
_HANDED_ON = ("CheckNumerics", "StopGradient", "PreventGradient", "Print")
_WORKERS = re.compile(r"Horovod\w+|Nccl\w+|Collective\w+")
_CHOICES = ("Select", "SelectV2")
_FINITE = ("IsNan", "IsInf", "IsFinite")


class _Path:
    """The way of one gradient, from the optimizer backwards."""

    def __init__(self, nodes: Nodes, owners: Collection[str]) -> None:
        self.nodes = nodes
        self.owners = owners
        self.seen: set[str] = set()
        self.many = False
        """Whether it is a sum: of towers, of workers, or of what a loop has gathered."""

    def strange(self, name: str) -> str | None:
        """A node on the way that does not give the gradient of a loss, None if all do."""
        nodes, name = self.nodes, self.nodes.source(name)
        op, inputs = nodes.op(name), nodes.inputs.get(name, [])
        if name in self.seen or _is_backward(nodes, name) or op in GIVEN or not op:
            return None
        self.seen.add(name)
        if name in nodes.variables:
            return name if name in self.owners else self._gathered(name)
        if _whole_scope(name) or op == "ClipByValue":
            return self._first(_behind_clipping(nodes, name))
        if op in _SUMS or op in _JOINS or _WORKERS.fullmatch(op):
            self.many |= op not in ("Reshape", "Squeeze", "ExpandDims")
            return self._first(inputs if op in _SUMS else inputs[:1] + [i for i in inputs[1:] if not _told(nodes, i)])
        if op in _HANDED_ON or op == "IdentityN":
            return self._first(inputs if op == "IdentityN" else inputs[:1])
        if op == "PlaceholderWithDefault":
            return None if _is_zero(nodes, inputs[0]) else self.strange(inputs[0])
        if op in _CHOICES and len(inputs) == 3 and nodes.op(nodes.source(inputs[0])) in _FINITE:
            return self._first([i for i in inputs[1:] if not _is_zero(nodes, i)])
        if op in ("Mul", *DIVIDE.split()) and len(inputs) == 2:
            return self._scaled(name, op, inputs)
        return name

    def _first(self, names: Collection[str]) -> str | None:
        found = [each for each in map(self.strange, names) if each is not None]
        return found[0] if found else None

    def _gathered(self, variable: str) -> str | None:
        """A variable that a loop adds gradients to."""
        self.many = True
        values = [write.value for write in self.nodes.writes() if write.target == variable]
        return self._first([v for v in values if not _is_zero(self.nodes, v)])

    def _scaled(self, name: str, op: str, inputs: list[str]) -> str | None:
        """A gradient times a number: of a sum, that makes the mean of it; else the number must end a loss scale."""
        nodes = self.nodes
        told = [i for i in inputs if _told(nodes, i)]
        if len(told) != 1 or (op != "Mul" and told[0] != inputs[1]):
            return name
        rest = inputs[1 - inputs.index(told[0])]
        strange = self.strange(rest)
        number = nodes.constant(told[0])
        if strange is not None or self.many:
            return strange
        scale = None if not number else (1 / number if op == "Mul" else number)
        return None if scale is not None and _is_scaled(nodes, rest, scale) else name


def _is_backward(nodes: Nodes, name: str) -> bool:
    return nodes.is_gradient(name) or (_BACKWARD.search(name) is not None and not _whole_scope(name))


def _is_zero(nodes: Nodes, name: str) -> bool:
    made = nodes.source(name)
    if nodes.op(made) == "Fill":
        return nodes.constant(nodes.inputs[made][-1]) == 0.0
    if nodes.op(made) != "Const":
        return nodes.op(made) == "ZerosLike"
    tensors = [a.value.tensor for a in nodes.by_name[made].attr if a.key == "value"]
    return all(not any(t.tensor_content) and not any(t.float_val) for t in tensors)


def _told(nodes: Nodes, name: str) -> bool:
    """Whether a program tells a number, at once or by feeding it."""
    made = nodes.source(name)
    return nodes.op(made) in ("Const", "Range", "Placeholder") or nodes.constant(name) is not None


def _is_scaled(nodes: Nodes, gradient: str, scale: float) -> bool:
    """Whether the backward pass of a gradient multiplies by the scale that is taken off behind it."""
    for each in nodes.behind(gradient):
        if nodes.op(each) == "Mul" and any(nodes.constant(i) == scale for i in nodes.inputs[each]):
            return True
    return False


def _behind_clipping(nodes: Nodes, name: str) -> list[str]:
    """What comes into the clipping in whose scope a node stands, and its norm: gradients, as constants are left out."""
    found: dict[str, None] = {}
    seen, todo = {name}, [name]
    while todo:
        for each in nodes.parents(todo.pop()):
            if each in seen:
                continue
            seen.add(each)
            if _whole_scope(each) == _whole_scope(name) or _NORM.search(each):
                todo.append(each)
            elif not _told(nodes, each):
                found[each] = None
    return list(found)


_NORM = re.compile(r"(?:^|/)global_norm(?:_\d+)?/")


def clipping(nodes: Nodes, name: str, owners: Collection[str], outside: dict[str, str]) -> tuple[str, float] | None:
    """The limit that a gradient goes through, as an option of Keras.

    Args:
      owners: the variables that the optimizer trains. outside: gets what is done to the gradient beyond that.
    """
    name = nodes.source(name)
    strange = _Path(nodes, owners).strange(name)
    if strange is not None:
        outside.setdefault("clipping", _through(strange))
        return None
    bounds = _bounds(nodes, name)
    if bounds is not None:
        low, high = bounds
        if low == -high and not _met(nodes, name):
            return "clipvalue", high
    elif _scope(name) == "clip_by_global_norm":
        limit = _global_limit(nodes, name, len(owners))
        if limit is not None:
            return "global_clipnorm", limit
    elif _scope(name) == "clip_by_norm":
        limit = _norm_limit(nodes, name)
        if limit is not None:
            return "clipnorm", limit
    elif not _met(nodes, name):
        return None
    outside.setdefault("clipping", _through(name))
    return None


def _through(name: str) -> str:
    return f"gradients go through {name!r} before they reach the optimizer"


def _bounds(nodes: Nodes, name: str) -> tuple[float, float] | None:
    """`clip_by_value`: Maximum(Minimum(x, high), low)."""
    if nodes.op(name) == "ClipByValue":
        _, low, high = nodes.parents(name)
        ends = nodes.constant(low), nodes.constant(high)
    elif nodes.op(name) == "Maximum":
        inner, low = nodes.parents(name)
        if nodes.op(inner) != "Minimum":
            return None
        ends = nodes.constant(low), nodes.constant(nodes.parents(inner)[1])
    else:
        return None
    return None if ends[0] is None or ends[1] is None else (ends[0], ends[1])


_CLIPPING = re.compile(r"((?:.*/)?(clip_by_[a-z_]*?)(?:_\d+)?)(?:/|$)")


def _scope(name: str) -> str:
    """`train/clip_by_norm_1/Mul` -> `clip_by_norm`."""
    found = _CLIPPING.match(name)
    return found.group(2) if found else ""


def _whole_scope(name: str) -> str:
    """`train/clip_by_norm_1/Mul` -> `train/clip_by_norm_1`."""
    found = _CLIPPING.match(name)
    return found.group(1) if found else ""


def _own(nodes: Nodes, name: str) -> list[str]:
    """The nodes of the clipping in whose scope `name` stands, that its value is made from."""
    return [each for each in nodes.behind(name, to_gradients=True) if _whole_scope(each) == _whole_scope(name)]


def _global_limit(nodes: Nodes, name: str, count: int) -> float | None:
    """clip_norm of `clip_by_global_norm`: gradient * clip_norm * Minimum(1 / norm, 1 / clip_norm), where TF 1.13 and
    later keep a norm that is not finite (ops/clip_ops.py)."""
    factors = operands(nodes, name, "Mul")
    for pattern in _SCALES if len(factors) == 2 else ():
        found = Found()
        if match(nodes, factors[1], pattern, found):
            norms = {node for key, node in found.nodes.items() if key.startswith("norm")}
            is_norm = len(norms) == 1 and _is_global_norm(nodes, norms.pop(), count)
            return found.constants["limit"] if is_norm else None
    return None


_SCALE = ("Mul", "limit", ("Minimum", (DIVIDE, 1.0, Anything("norm")), (DIVIDE, 1.0, "limit")))
_SCALES = (
    _SCALE,
    ("Select SelectV2", ("IsFinite", Anything("norm_1")), _SCALE, Anything("nan")),
    (ADD, _SCALE, ("Sub", Anything("norm_1"), Anything("norm_2"))),
)


def _is_global_norm(nodes: Nodes, name: str, count: int) -> bool:
    """Sqrt(2 * Sum(Pack(L2Loss(gradient), ...))) over so many gradients."""
    found = Found()
    if not match(nodes, name, ("Sqrt", ("Mul", ("Sum", Anything("all"), Anything("axis")), 2.0)), found):
        return False
    losses = operands(nodes, found.nodes["all"], "Pack")
    normed = {nodes.source(each) for loss in losses for each in operands(nodes, loss, "L2Loss")}
    return len(losses) == len(normed) == count


def _norm_limit(nodes: Nodes, name: str) -> float | None:
    """clip_norm of `clip_by_norm` over all of a gradient: gradient * clip_norm / Maximum(norm, clip_norm)."""
    limits = {
        nodes.constant(p)
        for each in _own(nodes, name)
        if nodes.op(each) in ("Maximum", "Mul")
        for p in nodes.parents(each)
    } - {None}
    return limits.pop() if len(limits) == 1 else None


def _met(nodes: Nodes, name: str) -> bool:
    """Whether a gradient was clipped on its way already, in another way."""
    own = _whole_scope(name)
    return any(_whole_scope(each) not in ("", own) for each in nodes.behind(name, to_gradients=True))
