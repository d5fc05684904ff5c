"""Follow gradients between the backward pass and an optimizer of tf.train.

Clipping is an option of today's optimizers and is migrated. These steps keep the gradient of the loss: a sum or mean
over towers or workers, the end of a loop that accumulates gradients, a removed loss scale, and a guard against NaN.
Anything else is reported, because later steps need it too: multipliers for some layers, noise, decay by hand, an
average over steps.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from migrate.graphs.clipping import Clip, clipped, may_limit, normed
from migrate.graphs.nodes import FIRST, GIVEN, ROWS_ADDED, SCATTERS, SETS, Nodes
from migrate.graphs.patterns import ADD, DIVIDE, Anything, Captures, match
from migrate.state import CHANGED

_SUMS = ("AddN", "AccumulateNV2", *ADD.split())
_JOINS = ("ConcatV2", "Concat", "Pack", "ExpandDims", "Reshape", "Squeeze", "Mean", "Sum")
"""Ops that join gradients of towers. Inputs after the first that are constants give the axis."""
_HANDED_ON = ("CheckNumerics", "StopGradient", "PreventGradient", "Print")
_WORKERS = re.compile(r"Horovod\w+|Nccl\w+|Collective\w+")
_HOROVOD = {"reduce_op": (0, 1), "prescale_factor": (1.0,), "postscale_factor": (1.0,)}
"""Horovod's attributes for a mean or a sum: op 2 is Adasum (horovod/common/common.h 0.22)."""
_TAKEN = re.compile(r"(?:Resource)?AccumulatorTakeGradient")
_ROWS = {**dict.fromkeys(SCATTERS, 1), "Unique": 0}
"""The input of an op that has the rows of a sparse gradient."""
_CHOICES = ("Select", "SelectV2")
_CHANGING = (*_CHOICES, *_SUMS, *DIVIDE.split(), "Mul", "Sub", "Minimum", "Maximum", "ClipByValue")
"""Placeholders that a program may fetch and feed instead of the gradient."""
_GUARDS = {"IsNan": 1, "IsInf": 1, "IsFinite": 2}
"""The input of a choice that must be zeros."""


@dataclass(frozen=True)
class _Sum:
    """`share` times the sum of these gradients.

    Attributes:
      share: NaN if the program feeds it. many: whether steps of a loop or workers add as many gradients again.
      scale: the node that the gradients were divided by.
    """

    share: float
    gradients: tuple[str, ...]
    many: bool = False
    scale: str = ""


class _StrangeError(Exception):
    """A node on the path that does not give the gradient of a loss; holds its name."""


class _Path:
    def __init__(self, nodes: Nodes, owner: str) -> None:
        self.nodes = nodes
        self.owner = owner
        self.gathered: dict[str, list[str]] = {}
        """Variables that store sums of gradients, and the ops that change them."""
        self.fed: list[str] = []
        """Placeholders through which a program feeds gradients."""
        self._open: set[str] = set()

    def strange(self, name: str) -> str | None:
        """Return a node on the path that does not give the gradient of a loss, None if all do."""
        name = self.nodes.source(name)
        try:
            total = self._sum(name)
        except _StrangeError as error:
            return str(error)
        return None if total is None or self._is_of_loss(total) else name

    def _is_of_loss(self, total: _Sum) -> bool:
        """Whether this is the sum or mean of gradients, each counted once, with or without a loss scale."""
        count = len(total.gradients)
        if len(set(total.gradients)) < count:
            return False
        if not total.scale and self._is_part(total.share, count, total.many):
            return True
        scales = {_loss_scale(self.nodes, gradient) for gradient in total.gradients}
        numbers = {self.nodes.constant(scale) for scale in scales}
        number = next(iter(numbers)) if len(numbers) == 1 else None
        if total.scale:
            return scales == {total.scale} and self._is_part(total.share, count, total.many)
        return (number or 0) > 1 and self._is_part(total.share * (number or 0), count, total.many)

    @staticmethod
    def _is_part(share: float, count: int, many: bool) -> bool:
        """Whether the share is 1, or 1 / count. For a loop the count is unknown, and a program may feed the share."""
        parts = 1 / share if share else 0.0
        if many:
            return math.isnan(parts) or (parts > 0.5 and math.isclose(parts, round(parts), rel_tol=1e-6))
        return any(math.isclose(parts, number, rel_tol=1e-6) for number in (1, count))

    def _sum(self, name: str) -> _Sum | None:
        """Express a node as a sum of gradients; None for zeros."""
        nodes, name = self.nodes, self.nodes.source(name)
        op, inputs = nodes.op(name), nodes.inputs.get(name, [])
        if op in GIVEN or not op:
            self.fed += [name] if op == "Placeholder" else []
            return _Sum(1.0, (name,))
        if nodes.is_gradient(name):
            variables = nodes.differentiated(name)
            if variables and self.owner not in variables:
                raise _StrangeError(name)
            return _Sum(1.0, (name,))
        if name in self._open:
            raise _StrangeError(name)
        self._open.add(name)
        try:
            return self._sum_of_op(name, op, inputs)
        finally:
            self._open.discard(name)

    def _sum_of_op(self, name: str, op: str, inputs: Sequence[str]) -> _Sum | None:
        nodes = self.nodes
        if _is_zero(nodes, name):
            return None
        if name in nodes.variables:
            return self._gathered(name)
        if _TAKEN.fullmatch(op) and inputs:
            return self._taken(name, inputs[0])
        if op in _SUMS:
            return self._together(name, inputs)
        if _WORKERS.fullmatch(op) and not self._is_sum_of_workers(name):
            raise _StrangeError(name)
        if op == ROWS_ADDED and len(inputs) > 1 and self._are_rows(inputs[1]):
            return self._together(name, inputs[:1])
        if op in _JOINS or _WORKERS.fullmatch(op):
            total = self._together(name, [*inputs[:1], *(i for i in inputs[1:] if not _is_set_or_fed(nodes, i))])
            if op == "Mean" and total is not None:
                total = replace(total, share=total.share / len(total.gradients))
            return replace(total, many=True) if total is not None and _WORKERS.fullmatch(op) else total
        if op in _HANDED_ON:
            return self._together(name, inputs[:1])
        if op == "PlaceholderWithDefault":
            return self._sum(inputs[0])
        if op in _CHOICES and len(inputs) == 3:
            zeros = _GUARDS.get(nodes.op(nodes.source(inputs[0])))
            if zeros and _is_zero(nodes, inputs[zeros]):
                return self._sum(inputs[3 - zeros])
        if op in ("Mul", *DIVIDE.split()) and len(inputs) == 2:
            return self._scaled(name, op, inputs)
        raise _StrangeError(name)

    def _are_rows(self, name: str) -> bool:
        """Whether these are the row numbers of a sparse gradient, concatenated over towers."""
        nodes, source = self.nodes, self.nodes.source(name)
        if nodes.is_gradient(source) or _is_set_or_fed(nodes, source):
            return True
        parts = nodes.inputs.get(source, [])[: None if nodes.op(source) == "ConcatV2" else 1]
        return nodes.op(source) in ("Unique", "Reshape", "ConcatV2") and bool(parts) and all(map(self._are_rows, parts))

    def _is_sum_of_workers(self, name: str) -> bool:
        attributes = {key: self.nodes.attribute(name, key) for key in _HOROVOD}
        numbers = {
            key: attribute.i if key == "reduce_op" else attribute.f
            for key, attribute in attributes.items()
            if attribute is not None
        }
        return all(number in _HOROVOD[key] for key, number in numbers.items())

    def _together(self, name: str, names: Sequence[str]) -> _Sum | None:
        """Add nodes that each have the same share of their gradients."""
        totals = [total for total in map(self._sum, names) if total is not None]
        if not totals:
            return None
        first = totals[0]
        same = all(math.isclose(total.share, first.share, rel_tol=1e-6) for total in totals)
        if not same or any((total.many, total.scale) != (first.many, first.scale) for total in totals):
            raise _StrangeError(name)
        return replace(first, gradients=tuple(g for total in totals for g in total.gradients))

    def _gathered(self, variable: str) -> _Sum:
        """A variable to which a loop adds gradients. It may be reset to zeros or to the first gradient."""
        nodes = self.nodes
        sums, writes = [], [write for write in nodes.writes() if write.target == variable]
        for write in writes:
            op, source = nodes.op(write.op), nodes.source(write.value)
            if op.startswith("AssignSub"):
                raise _StrangeError(write.op)
            added = nodes.inputs[source] if op in SETS and nodes.op(source) in _SUMS else []
            rest = [addend for addend in added if nodes.source(addend) != variable]
            total = self._together(source, rest if len(rest) == len(added) - 1 else [write.value])
            sums += [total] if total is not None else []
        if not sums or all(nodes.op(write.op) not in SETS for write in writes):
            raise _StrangeError(variable)
        if any((total.share, total.scale) != (sums[0].share, sums[0].scale) for total in sums):
            raise _StrangeError(variable)
        self.gathered[variable] = [write.op for write in writes]
        gradients = dict.fromkeys(g for total in sums for g in total.gradients)
        return replace(sums[0], gradients=tuple(gradients), many=True)

    def _taken(self, name: str, accumulator: str) -> _Sum | None:
        """The mean of the gradients in an accumulator; SyncReplicasOptimizer has one accumulator for each variable."""
        nodes, source = self.nodes, self.nodes.source(accumulator)
        gradients = [
            inputs[2]
            for op, inputs in nodes.inputs.items()
            if nodes.op(op).endswith("AccumulatorApplyGradient")
            and len(inputs) > 2
            and nodes.source(inputs[0]) == source
        ]
        sums = [self._sum(gradient) for gradient in gradients]
        if len(sums) != 1:  # with several, it averages only the requested number
            raise _StrangeError(name)
        return sums[0]

    def _scaled(self, name: str, op: str, inputs: Sequence[str]) -> _Sum | None:
        """A gradient times a number: the mean of a sum, or the end of a loss scale."""
        a, b = inputs
        for gradient, by in ((a, b), (b, a)) if op == "Mul" else ((a, b),):
            scale = self._divisor(op, by)
            number = self.nodes.constant(scale or by)
            if scale is None and not _is_set_or_fed(self.nodes, by):
                continue
            total = self._sum(gradient)
            if total is None:
                return None
            if scale is not None and number is None and not total.scale:
                return replace(total, scale=scale)
            number = math.nan if number is None else number
            share = number if scale is None else 1 / number if number else 0.0
            return replace(total, share=total.share * share)
        raise _StrangeError(name)

    def _divisor(self, op: str, by: str) -> str | None:
        """The number or variable that an op divides by, directly or through its reciprocal; None if it does not
        divide."""
        nodes = self.nodes
        if op != "Mul":
            source = nodes.source(by)
            return source if source in nodes.variables or _is_set_or_fed(nodes, source) else None
        captures = Captures()
        inverse = ((DIVIDE, 1.0, Anything("scale")), ("Reciprocal Inv", Anything("scale")))
        return captures.nodes["scale"] if any(match(nodes, by, pattern, captures) for pattern in inverse) else None


def _loss_scale(nodes: Nodes, gradient: str) -> str:
    """The factor that the loss is multiplied by before this gradient is computed; may be empty. The backward
    pass begins with that product, `gradients/SCALED_grad/Mul(Fill, scale)`."""
    ancestors = list(nodes.ancestors(gradient))
    first = set(filter(FIRST.search, ancestors))
    readers = [node for node in ancestors if not first.isdisjoint(nodes.parents(node)) and node not in first]
    scales = set()
    for reader in readers:
        others = [p for p in nodes.parents(reader) if p not in first]
        scales.add(others[0] if nodes.op(reader) == "Mul" and len(others) == 1 else "")
    return scales.pop() if len(scales) == 1 else ""


def _is_zero(nodes: Nodes, name: str) -> bool:
    source = nodes.source(name)
    if nodes.op(source) == "Fill":
        return nodes.constant(nodes.inputs[source][-1]) == 0.0
    content = nodes.content(source)
    return nodes.op(source) == "ZerosLike" or (content is not None and not any(content.numbers))


def _is_set_or_fed(nodes: Nodes, name: str) -> bool:
    source = nodes.source(name)
    return nodes.op(source) in ("Const", "Range", "Placeholder") or nodes.constant(name) is not None


def taken(nodes: Nodes, ops: Collection[str]) -> list[str]:
    """The gradients that enter the ops of an update: values computed outside of it, without row numbers, or values that
    the program feeds, if there are no others."""
    rows = {nodes.inputs[n][_ROWS[op]] for n in ops if (op := nodes.op(n).removeprefix("Resource")) in _ROWS}
    input_names = {input_name for name in ops for input_name in nodes.inputs[name]}.difference(ops, rows)
    values = [n for n in input_names if nodes.has_gradients(n)]
    return values or [n for n in input_names if nodes.op(nodes.source(n)) == "Placeholder"]


def made_from_gradients(nodes: Nodes, name: str) -> bool:
    """Whether a number depends on gradients of this or an earlier step, like YellowFin's rate and momentum."""
    seen, todo = {name}, [name]
    while todo:
        changed = nodes.changing.get(todo.pop())
        inputs = () if changed is None else nodes.inputs[changed[1]]
        ancestors = {n for start in (inputs or [name]) for n in nodes.ancestors(start, to_gradients=True)}
        if any(map(nodes.is_gradient, ancestors)):
            return True
        todo += [n for n in ancestors - seen if n in nodes.changing]
        seen |= ancestors
    return False


class Gradients:
    """The gradients that one optimizer applies."""

    def __init__(self, nodes: Nodes, owners: Collection[str]) -> None:
        """Args: owners: the variables that the optimizer trains."""
        self._nodes = nodes
        self._owners = owners
        self._normed: dict[str, frozenset[str]] = {}
        """The gradients of each global norm, by the norm's node."""
        self.gathered: set[str] = set()
        """Variables in which the examined gradients are accumulated."""
        self.gathering: dict[str, list[str]] = {}
        """By owner the ops that change the variable that accumulates its gradient."""
        self.added: set[str] = set()
        """Owners whose repeated rows are added up before clipping."""
        self._walked: set[str] = set()
        self._parts = Counter(nodes.parts.values())

    def clipping(self, owner: str, name: str, outside: dict[str, str]) -> tuple[str, float] | None:
        """Return the limit of a gradient as an option of Keras.

        Args:
          owner: the variable of the gradient. outside: receives everything else that the program does to the gradient.
        """
        rounded = self._rounded(name)
        if rounded is not None:
            outside.setdefault(CHANGED, f"{rounded!r} rounds gradients before they reach the optimizer")
            return None
        name = self._nodes.source(name)
        while self._nodes.op(name) in _HANDED_ON and self._nodes.inputs[name]:
            name = self._nodes.parents(name)[0]
        clip = clipped(self._nodes, name)
        self.added |= {owner} if clip is not None and self._nodes.op(clip.gradient) == ROWS_ADDED else set()
        path = _Path(self._nodes, owner)
        strange = path.strange(name if clip is None else clip.gradient)
        change = (self._ops_by_variable.get(owner) or self._ops_by_variable.get("")) if path.fed else None
        if strange is None and change is not None:
            outside.setdefault(
                CHANGED, f"{change!r} changes gradients, and the program feeds {path.fed[0]!r} with some"
            )
            return None
        self.gathered |= path.gathered.keys()
        self.gathering[owner] = [op for ops in path.gathered.values() for op in ops]
        if strange is None and (clip is None or self._is_of_whole_gradients(clip, owner)):
            return None if clip is None else (clip.option, clip.limit)
        what = "clipping" if strange == name and may_limit(self._nodes, name) else CHANGED
        outside.setdefault(what, f"gradients pass through {strange or name!r} before they reach the optimizer")
        return None

    @cached_property
    def _ops_by_variable(self) -> dict[str, str]:
        nodes, ops = self._nodes, dict[str, str]()
        for name, inputs in nodes.inputs.items():
            if nodes.op(name) in _CHANGING and not nodes.is_backward(name):
                for gradient in map(nodes.source, filter(nodes.is_gradient, inputs)):
                    ops |= dict.fromkeys(nodes.differentiated(gradient) or [""], name)
        return ops

    def _rounded(self, name: str) -> str | None:
        """A cast to fewer digits on the path of a gradient, as before it is sent to workers; None if there is no new
        one."""
        nodes, todo = self._nodes, [name]
        while todo:
            node = todo.pop()
            if node in self._walked or node in nodes.variables:
                continue
            self._walked.add(node)
            if nodes.rounds(node) and nodes.has_gradients(node):
                return node
            todo.extend(() if nodes.is_backward(node) else nodes.inputs.get(node, ()))
        return None

    def _is_of_whole_gradients(self, clip: Clip, owner: str) -> bool:
        if clip.option == "clipnorm":
            return self._parts[self._nodes.parts.get(owner, "")] < 2 and clip.is_of_one(self._nodes, owner)
        if clip.option == "global_clipnorm":
            if clip.norm not in self._normed:
                self._normed[clip.norm] = frozenset(normed(self._nodes, clip.norm))
            return clip.gradient in self._normed[clip.norm] and len(self._normed[clip.norm]) == len(self._owners)
        return True
