"""What gradients go through between the backward pass and an optimizer of tf.train.

Clipping is an option of today's optimizers and is carried. The mean over towers or workers, the end of a loop that
gathers gradients, a loss scale that is taken off again and a guard against NaN give the gradient of the loss, as a
program in another framework will. Whatever else a program does to it (multipliers for some layers, noise, decay by
hand) is said, for the steps that come next need it, too.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from migrate.graphs.clipping import Clip, clipped, is_whole, normed
from migrate.graphs.nodes import GIVEN, Nodes
from migrate.graphs.patterns import ADD, DIVIDE

_SUMS = ("AddN", "AccumulateNV2", *ADD.split())
_JOINS = ("ConcatV2", "Concat", "Pack", "ExpandDims", "Reshape", "Squeeze", "Mean", "Sum", "UnsortedSegmentSum")
"""How towers' gradients come to one. Inputs behind the first that are constants say which axis."""
_HANDED_ON = ("CheckNumerics", "StopGradient", "PreventGradient", "Print")
_WORKERS = re.compile(r"Horovod\w+|Nccl\w+|Collective\w+")
_CHOICES = ("Select", "SelectV2")
_GUARDS = {"IsNan": 1, "IsInf": 1, "IsFinite": 2}
"""Which input of the choice must be zeros."""


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
        if name in self.seen or nodes.is_gradient(name) or op in GIVEN or not op:
            return None
        self.seen.add(name)
        if name in nodes.variables:
            return name if name in self.owners else self._gathered(name)
        if op in _SUMS or op in _JOINS or _WORKERS.fullmatch(op):
            self.many |= op not in ("Reshape", "Squeeze", "ExpandDims")
            return self._first(inputs if op in _SUMS else inputs[:1] + [i for i in inputs[1:] if not _told(nodes, i)])
        if op in _HANDED_ON or op == "IdentityN":
            return self._first(inputs if op == "IdentityN" else inputs[:1])
        if op == "PlaceholderWithDefault":
            return None if _is_zero(nodes, inputs[0]) else self.strange(inputs[0])
        if op in _CHOICES and len(inputs) == 3:
            zeros = _GUARDS.get(nodes.op(nodes.source(inputs[0])))
            return self.strange(inputs[3 - zeros]) if zeros and _is_zero(nodes, inputs[zeros]) else name
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


class Gradients:
    """The gradients that one optimizer takes."""

    def __init__(self, nodes: Nodes, owners: Collection[str]) -> None:
        """`owners` are the variables that the optimizer trains."""
        self._nodes = nodes
        self._owners = owners
        self._normed: dict[str, frozenset[str]] = {}
        """By node of a global norm, of which gradients it is."""

    def clipping(self, owner: str, name: str, outside: dict[str, str]) -> tuple[str, float] | None:
        """The limit that a gradient goes through, as an option of Keras.

        Args:
          owner: the variable whose gradient it is. outside: gets what is done to the gradient beyond that.
        """
        name = self._nodes.source(name)
        while self._nodes.op(name) in _HANDED_ON and self._nodes.inputs[name]:
            name = self._nodes.parents(name)[0]
        clip = clipped(self._nodes, name)
        strange = _Path(self._nodes, self._owners).strange(name if clip is None else clip.gradient)
        if strange is None and (clip is None or self._is_whole(clip, owner)):
            return None if clip is None else (clip.option, clip.limit)
        outside.setdefault("clipping", f"gradients go through {strange or name!r} before they reach the optimizer")
        return None

    def _is_whole(self, clip: Clip, owner: str) -> bool:
        """Whether a norm is that of one whole gradient, or of all gradients."""
        if clip.option == "clipnorm":
            shape = self._nodes.shape(owner) if owner in self._nodes.variables else None
            return shape is not None and is_whole(self._nodes, clip.axes, len(shape))
        if clip.option == "global_clipnorm":
            if clip.norm not in self._normed:
                self._normed[clip.norm] = frozenset(normed(self._nodes, clip.norm))
            return clip.gradient in self._normed[clip.norm] and len(self._normed[clip.norm]) == len(self._owners)
        return True
