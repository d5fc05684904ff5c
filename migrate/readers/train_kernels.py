"""What a graph says of a tf.train optimizer: class, constants, schedule, clipping and sparse gradients.

`Optimizer.apply_gradients` puts one kernel per variable into the graph, `SCOPE/update_VARIABLE/ApplyX`, and the
constructor's arguments are constants that the kernels read (tensorflow/python/training 1.15, input numbers from
tensorflow/core/ops/training_ops.cc). The graph is data: nothing of it is run, and what is not recognised is said.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

PASSING = ("Identity", "Cast", "ReadVariableOp", "Enter", "Snapshot")
WRITES = ("Assign", "AssignSub", "AssignAdd", "AssignVariableOp", "AssignSubVariableOp", "AssignAddVariableOp")
SCATTERS = ("ScatterSub", "ScatterAdd", "ScatterUpdate")
"""Alone or behind `Resource`: they change the rows that a sparse gradient has."""
NOT_STEPS = ("save", "swapping_saver", "report_uninitialized_variables")
"""Scopes of ops that change variables and are no training steps."""
VARIABLES = ("Variable", "VariableV2", "VarHandleOp")


class Kernel(NamedTuple):
    """A class of tf.train, and which input of its kernel is what; `rows` of the sparse one, which has indices."""

    class_name: str
    gradient: int
    inputs: Mapping[str, int]
    rows: Mapping[str, int] | None = None
    fixed: Mapping[str, Any] = {}


_RATE = "learning_rate"
_DELTA = {_RATE: 3, "rho": 4, "epsilon": 5}
_MEANS = {_RATE: 3, "rho": 4, "momentum": 5, "epsilon": 6}
_CENTERED = {_RATE: 4, "rho": 5, "momentum": 6, "epsilon": 7}
_L1, _L2, _POWER = "l1_regularization_strength", "l2_regularization_strength", "learning_rate_power"
_SHRINKAGE = "l2_shrinkage_regularization_strength"
KERNELS = {
    "GradientDescent": Kernel("GradientDescentOptimizer", 2, {_RATE: 1}),
    "Momentum": Kernel("MomentumOptimizer", 3, {_RATE: 2, "momentum": 4}, {_RATE: 2, "momentum": 5}),
    "Adagrad": Kernel("AdagradOptimizer", 3, {_RATE: 2}, {_RATE: 2}),
    "Adadelta": Kernel("AdadeltaOptimizer", 6, _DELTA, _DELTA),
    "RMSProp": Kernel("RMSPropOptimizer", 7, _MEANS, _MEANS, {"centered": False}),
    "CenteredRMSProp": Kernel("RMSPropOptimizer", 8, _CENTERED, _CENTERED, {"centered": True}),
    "Adam": Kernel("AdamOptimizer", 9, {_RATE: 5, "beta_1": 6, "beta_2": 7, "epsilon": 8}),
    "Ftrl": Kernel(
        "FtrlOptimizer",
        3,
        {_RATE: 4, _L1: 5, _L2: 6, _POWER: 7},
        {_RATE: 5, _L1: 6, _L2: 7, _POWER: 8},
        {_SHRINKAGE: 0.0},
    ),
    "FtrlV2": Kernel(
        "FtrlOptimizer",
        3,
        {_RATE: 4, _L1: 5, _L2: 6, _SHRINKAGE: 7, _POWER: 8},
        {_RATE: 5, _L1: 6, _L2: 7, _SHRINKAGE: 8, _POWER: 9},
    ),
}
NESTEROV = ("Momentum", "Adam")
"""Kernels with an attribute use_nesterov."""


@dataclass(frozen=True)
class Trained:
    """What kernels say. `config` has the arguments under Keras's names; `seen`: whether each gradient and the learning
    rate were followed to their ends; `outside`: what was met there and is not understood."""

    class_name: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    sparse: frozenset[str] | None = None
    outside: Mapping[str, str] = field(default_factory=dict)
    seen: bool = False


class Nodes:
    """The nodes of a graph by name, with their inputs without control edges and output numbers."""

    def __init__(self, nodes: Any) -> None:
        self.by_name = {str(node.name): node for node in nodes}
        self.inputs = {str(n.name): [str(i).partition(":")[0] for i in n.input if not i.startswith("^")] for n in nodes}

    def op(self, name: str) -> str:
        return str(self.by_name[name].op) if name in self.by_name else ""

    def source(self, name: str) -> str:
        """The node where a value is made, behind those that hand it on."""
        for _ in range(len(self.by_name)):
            if self.op(name) not in PASSING or not self.inputs[name]:
                break
            name = self.inputs[name][0]
        return name

    def parents(self, name: str) -> list[str]:
        return [self.source(each) for each in self.inputs.get(name, ())]

    def constant(self, name: str) -> float | None:
        """The number of a scalar constant, None where it is none."""
        name = self.source(name)
        if self.op(name) != "Const":
            return None
        value = next((a.value.tensor for a in self.by_name[name].attr if a.key == "value"), None)
        return None if value is None else _number(value)

    def flag(self, name: str, attribute: str) -> bool:
        return any(a.key == attribute and a.value.b for a in self.by_name[name].attr)

    def behind(self, name: str, stop: Collection[str] = ()) -> Iterator[str]:
        """The node and all that its value is made from, up to variables and `stop`."""
        seen, todo = set(stop), [name]
        while todo:
            each = todo.pop()
            if each in seen:
                continue
            seen.add(each)
            yield each
            if self.op(each) not in VARIABLES:
                todo.extend(self.inputs.get(each, ()))


_FORMATS = {1: ("<f", "float_val"), 2: ("<d", "double_val"), 3: ("<i", "int_val"), 9: ("<q", "int64_val")}
"""DataType -> how a scalar is packed, and the field that has it otherwise."""


def _number(tensor: Any) -> float | None:
    if tensor.dtype not in _FORMATS or any(d.size != 1 for d in tensor.tensor_shape.dim):
        return None
    form, name = _FORMATS[tensor.dtype]
    if len(tensor.tensor_content) == struct.calcsize(form):
        return float(struct.unpack(form, tensor.tensor_content)[0])
    listed = getattr(tensor, name)
    return float(listed[0]) if len(listed) == 1 else None


def describe(nodes: Nodes, updates: Mapping[str, Mapping[str, Any]], scope: str | None) -> Trained:
    """What the kernels of an optimizer say.

    Args:
      updates: as `SaverGraph.updates`. scope: the chosen one of them, None for all.
    """
    scopes = [scope] if scope is not None and scope in updates else list(updates)
    owners = {variable for each in scopes for variable in updates[each]}
    found = [node for each in scopes for node in nodes.by_name if node.startswith(f"{each}/update_")]
    kernels = {name: _kernel(nodes.op(name)) for name in found}
    applied = {name: told for name, told in kernels.items() if told is not None}
    sparse = {v for v in owners if _is_sparse(nodes, [n for n in found if _owner(n) == v])}
    if not applied:
        return Trained(sparse=frozenset(sparse) if owners else None)
    changed = next((name for name, (kernel, _) in applied.items() if _changes_gradient(nodes, name, kernel)), None)
    if changed is not None:
        text = f"{changed!r} takes a gradient that the optimizer's own step has changed, as LARSOptimizer's does"
        return Trained(sparse=frozenset(sparse), outside={"trust_coefficient": text})
    classes = {kernel.class_name for kernel, _ in applied.values()}
    if len(classes) > 1:
        return Trained(outside={"optimizer": f"variables are updated by {', '.join(sorted(classes))}"})
    values: dict[str, set[Any]] = {}
    outside: dict[str, str] = {}
    limits: set[tuple[str, float] | None] = set()
    for name, (kernel, rows) in applied.items():
        for key, value in _arguments(nodes, name, kernel, rows, outside):
            values.setdefault(key, set()).add(value)
        limits.add(_clipping(nodes, nodes.inputs[name][kernel.gradient], len(owners), outside))
    strange = _other_writers(nodes, owners, set(found))
    if strange:
        outside["updates"] = f"{strange} changes the variables beside the optimizer"
    config = {key: next(iter(each)) for key, each in values.items() if len(each) == 1}
    outside |= {k: f"variables have different values of {k}" for k, each in values.items() if len(each) > 1}
    if isinstance(config.get(_RATE), tuple):
        config[_RATE] = _schedule(config[_RATE])
    if len(limits) > 1:
        outside["clipping"] = "not all gradients are clipped alike"
    limit = next(iter(limits)) if len(limits) == 1 else None
    config |= {limit[0]: limit[1]} if limit is not None else {}
    whole = {_owner(name) for name in applied} | sparse >= owners
    return Trained(classes.pop(), config, frozenset(sparse), outside, whole and not outside)


def _changes_gradient(nodes: Nodes, name: str, kernel: Kernel) -> bool:
    """Whether what a kernel takes for the gradient is made in the scope of its own update."""
    return nodes.source(nodes.inputs[name][kernel.gradient]).startswith(f"{name.rpartition('/')[0]}/")


def _kernel(op: str) -> tuple[Kernel, bool] | None:
    """The kernel of an op and whether it is the sparse one."""
    told = re.fullmatch(r"(?:Resource)?(Sparse)?Apply(\w+)", op)
    kernel = KERNELS.get(told.group(2)) if told else None
    return (kernel, bool(told and told.group(1))) if kernel is not None else None


def _owner(name: str) -> str:
    """`SCOPE/update_a/kernel/ResourceApplyAdam` -> `a/kernel`."""
    return name.partition("/update_")[2].rpartition("/")[0]


def _is_sparse(nodes: Nodes, names: Collection[str]) -> bool:
    ops = {nodes.op(name).removeprefix("Resource") for name in names}
    return any(op.startswith("SparseApply") for op in ops) or bool(ops & set(SCATTERS))


def _arguments(
    nodes: Nodes, name: str, kernel: Kernel, rows: bool, outside: dict[str, str]
) -> Iterator[tuple[str, Any]]:
    inputs = nodes.inputs[name]
    yield from kernel.fixed.items()
    if any(nodes.op(name).endswith(each) for each in NESTEROV):
        yield "nesterov", nodes.flag(name, "use_nesterov")
    for key, place in (kernel.rows if rows and kernel.rows else kernel.inputs).items():
        if place >= len(inputs):
            continue
        value: Any = nodes.constant(inputs[place])
        if value is None and key == _RATE:
            value = _decay(nodes, nodes.source(inputs[place]))
        if value is not None:
            yield key, value
        else:
            made = nodes.source(inputs[place])
            outside.setdefault(key, f"{made!r} ({nodes.op(made) or 'no op'}) in the graph makes it")


def _decay(nodes: Nodes, name: str) -> tuple[Any, ...] | None:
    """`tf.train.exponential_decay` and `inverse_time_decay` (training/learning_rate_decay.py 1.15) as a tuple."""
    if nodes.op(name) == "Mul":
        start, power = nodes.parents(name)
        initial, factors = nodes.constant(start), nodes.parents(power)
        if initial is None or nodes.op(power) != "Pow":
            return None
        rate, periods = nodes.constant(factors[0]), _periods(nodes, factors[1])
        return None if rate is None or periods is None else ("ExponentialDecay", initial, rate, *periods)
    if nodes.op(name) == "RealDiv":
        start, below = nodes.parents(name)
        initial, terms = nodes.constant(start), nodes.parents(below)
        if initial is None or nodes.op(below) not in ("Add", "AddV2") or nodes.constant(terms[0]) != 1.0:
            return None
        if nodes.op(terms[1]) != "Mul":
            return None
        slope = nodes.parents(terms[1])
        rate, periods = nodes.constant(slope[0]), _periods(nodes, slope[1])
        return None if rate is None or periods is None else ("InverseTimeDecay", initial, rate, *periods)
    return None


def _periods(nodes: Nodes, name: str) -> tuple[float, bool] | None:
    """step / decay_steps, rounded down or not: the steps and whether."""
    staircase = nodes.op(name) == "Floor"
    name = nodes.parents(name)[0] if staircase else name
    if nodes.op(name) != "RealDiv":
        return None
    step, steps = nodes.parents(name)
    count = nodes.constant(steps)
    return None if count is None or step.rpartition("/")[2] != "global_step" else (count, staircase)


def _schedule(told: tuple[Any, ...]) -> dict[str, Any]:
    class_name, initial, rate, steps, staircase = told
    config = {"initial_learning_rate": initial, "decay_steps": steps, "decay_rate": rate, "staircase": staircase}
    return {"class_name": class_name, "config": config}


def _clipping(nodes: Nodes, name: str, count: int, outside: dict[str, str]) -> tuple[str, float] | None:
    """The limit that a gradient goes through, as an option of Keras."""
    name = nodes.source(name)
    bounds = _bounds(nodes, name)
    if bounds is not None:
        low, high = bounds
        if low == -high and not _met(nodes, name):
            return "clipvalue", high
    elif _scope(name) == "clip_by_global_norm":
        limit = _global_limit(nodes, name, count)
        if limit is not None:
            return "global_clipnorm", limit
    elif _scope(name) == "clip_by_norm":
        limit = _norm_limit(nodes, name)
        if limit is not None:
            return "clipnorm", limit
    elif not _met(nodes, name):
        return None
    outside.setdefault("clipping", f"gradients go through {name!r} before they reach the optimizer")
    return None


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


def _scope(name: str) -> str:
    found = re.match(r"(?:.*/)?(clip_by_[a-z_]*?)(?:_\d+)?(?:/|$)", name)
    return found.group(1) if found else ""


def _own(nodes: Nodes, name: str) -> list[str]:
    """The nodes of the clipping in whose scope `name` stands, that its value is made from."""
    scope = name[: name.index("clip_by_")] + name[name.index("clip_by_") :].partition("/")[0]
    return [each for each in nodes.behind(name) if each == scope or each.startswith(f"{scope}/")]


def _global_limit(nodes: Nodes, name: str, count: int) -> float | None:
    """clip_norm of `clip_by_global_norm`: gradient * clip_norm * Minimum(1 / norm, 1 / clip_norm)."""
    norms = [each for each in nodes.behind(name) if nodes.op(each) == "L2Loss"]
    if len(norms) != count:
        return None
    for each in _own(nodes, name):
        if nodes.op(each) == "Minimum":
            tops = [nodes.parents(p) for p in nodes.parents(each) if nodes.op(p) == "RealDiv"]
            limits = [nodes.constant(p[1]) for p in tops if nodes.constant(p[0]) == 1.0]
            return next((limit for limit in limits if limit is not None), None)
    return None


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
    behind = (each for each in nodes.behind(name) if each != name)
    scope = name.partition("/")[0] if _scope(name) else None
    return any(_scope(each) and each.partition("/")[0] != scope for each in behind)


def _other_writers(nodes: Nodes, owners: Collection[str], own: Collection[str]) -> str | None:
    """An op that changes a trained variable and is neither the optimizer's, nor its initial value or a restore."""
    for name in nodes.by_name:
        op = nodes.op(name)
        writes = op in WRITES or op.removeprefix("Resource") in SCATTERS or re.match(r"(Resource)?(Sparse)?Apply", op)
        target = (nodes.inputs[name] or [""])[0]
        first = name.partition("/")[0].rstrip("_0123456789")
        if not writes or target not in owners or name in own or first in NOT_STEPS:
            continue
        if name not in (f"{target}/Assign", f"{target}/IsInitialized/VarIsInitializedOp"):
            return repr(name)
    return None
