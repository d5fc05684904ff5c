"""Read an OptimizerV2's class, epsilon, momentum type and clipping from a graph.

The checkpoint stores learning rate, decay and betas as variables. The rest are constants or attributes of the ops in
`SCOPE/update_VARIABLE` (keras/optimizer_v2 of tf.keras 1.14 - 2.10; input numbers from
tensorflow/core/ops/training_ops.cc). Rules without a kernel are sums of ops, and their epsilon is read from these.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from migrate import algorithms
from migrate.algorithms.spec import KEPT
from migrate.graphs import constraints, own_slots, schedules
from migrate.graphs.evaluate import assignments
from migrate.graphs.gradients import Gradients, taken
from migrate.graphs.identify import Identifier, Identity
from migrate.graphs.kernels import ARGUMENTS, L2, OPTIMIZER_V2, RATE, Kernel, kernel_of
from migrate.graphs.nodes import INT32, INT64, READS, SCATTERS, SETS, Nodes, Write
from migrate.graphs.patterns import ADD, DIVIDE, STEP, Captures, Cast, Either, Pattern, Variable, match
from migrate.graphs.rule_configs import class_of_rule
from migrate.graphs.sparse_rows import is_sparse, owner_of
from migrate.graphs.tf_train import Trained
from migrate.graphs.writers import alone_written, other_writer, rewritten
from migrate.releases.recognition import COUNTER_NAMED_ITER
from migrate.state import CHANGED, NO_KERNEL

_CALLED = {"schedule_decay": "decay"}
"""Hyperparameters of rules that have another name in configs."""


@dataclass
class _Step:
    """The update of one variable.

    Attributes:
      limits: of its gradient; None if the gradient was not followed to its end. outside: what its update does that no
        update of Keras does. constrained: whether a constraint follows.
    """

    class_name: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, float] | None = None
    outside: dict[str, str] = field(default_factory=dict)
    constrained: bool = False


def describe(nodes: Nodes, updates: Mapping[str, Mapping[str, Collection[str]]], scope: str) -> Trained:
    """Read the updates of one optimizer.

    Args:
      updates: as `SaverGraph.updates`. scope: that of its variables, `training/Adam`; its updates read one of them.
    """
    scopes = [
        update_scope
        for update_scope, per in updates.items()
        if any(_reads(variables, scope) for variables in per.values())
    ]
    ops: dict[str, list[str]] = {variable: [] for update_scope in scopes for variable in updates[update_scope]}
    for name in nodes.by_name:
        if name.startswith(tuple(f"{update_scope}/update_" for update_scope in scopes)) and owner_of(name) in ops:
            ops[owner_of(name)].append(name)
    if not ops:
        return Trained()
    outside: dict[str, str] = {}
    gradients = Gradients(nodes, ops)
    limited = {owner: _clipping(nodes, owner, names, gradients, outside) for owner, names in ops.items()}
    bounds = {owner: op for owner, names in ops.items() if (op := _constraint_op(nodes, owner, names)) is not None}
    moving = {owner: [name for name in names if name != bounds.get(owner)] for owner, names in ops.items()}
    scalars = {name: [write] for name, write in alone_written(nodes).items() if nodes.shape(name) == ()}
    written = {owner: assignments(nodes, names) for owner, names in moving.items()}
    identifier = Identifier(nodes, {**scalars, **_joined(written.values())}, rows=True)
    steps = [_update_step(nodes, owner, names, scope, limited[owner], identifier) for owner, names in moving.items()]
    bound = frozenset(bounds)
    for step in steps:
        outside |= step.outside
    keys = dict.fromkeys(key for step in steps for key in step.config)
    by_key = {key: [step.config[key] for step in steps if key in step.config] for key in keys}
    config = {key: values[0] for key, values in by_key.items() if all(value == values[0] for value in values)}
    classes = {step.class_name for step in steps}
    class_name = classes.pop() if len(classes) == 1 else None
    sparse = frozenset(owner for owner, names in ops.items() if is_sparse(nodes, names))
    limits = steps[0].limits
    own_ops = {name for names in ops.values() for name in names}
    heads = {f"{scope}/{owner}" for owner in ops}
    slots = {variable for variable in nodes.variables if variable.rpartition("/")[0] in heads}
    other = other_writer(nodes, slots.union(ops), own_ops)
    if other is not None:
        outside["updates"] = other
    outside |= rewritten(nodes, {key: f"{scope}/{key}" for key in (*ARGUMENTS, "decay")}, own_ops)
    if other is not None or limits is None or any(step.limits != limits for step in steps):
        return Trained(class_name, config, sparse, outside, constrained=bound)
    gathered = frozenset(gradients.gathered)
    return Trained(class_name, {**config, **limits}, sparse, outside, True, gathered, bound)


def _reads(names: Collection[str], scope: str) -> bool:
    return any(name.startswith(f"{scope}/") for name in names)


def _joined(written: Iterable[Mapping[str, list[Write]]]) -> dict[str, list[Write]]:
    all_writes: dict[str, list[Write]] = {}
    for update in written:
        for variable, writes in update.items():
            all_writes[variable] = all_writes.get(variable, []) + writes
    return all_writes


def _update_step(
    nodes: Nodes, owner: str, names: Sequence[str], scope: str, limits: dict[str, float] | None, identifier: Identifier
) -> _Step:
    kernels = [(name, match) for name in names if (match := kernel_of(nodes.op(name), OPTIMIZER_V2)) is not None]
    writes = assignments(nodes, names)
    moving = writes.get(owner, [])
    if kernels:
        if len(kernels) > 1 or moving or _moves_rows(nodes, names):
            return _Step(limits=limits)  # another op changes the variable too, such as weight decay
        (name, (kernel, is_rows)), *_ = kernels
        changed = _changed(nodes, name, kernel.gradient(nodes, name))
        strange = own_slots.strange_in_v2(nodes, name, owner, kernel.slots)
        changed |= {} if strange is None else {"updates": strange}
        if changed:
            return _Step(outside=changed)
        config = _of_kernel(nodes, name, kernel, is_rows, scope)
        return _Step() if config is None else _Step(kernel.class_name, config, limits)
    rule_class = class_of_rule(identifier.of(owner), COUNTER_NAMED_ITER) if moving else None
    config = None if rule_class is None else _of_rule(nodes, scope, owner, writes, rule_class)
    if rule_class is not None and config is not None:
        changed = _changed(nodes, moving[0].op, rule_class[2].gradient[0])
        return _Step(outside=changed) if changed else _Step(rule_class[0], config, limits)
    if len(moving) != 1 or _moves_rows(nodes, names):
        return _Step(limits=limits)
    text = f"{moving[0].op!r} updates {owner!r} in the graph by a custom rule that Keras does not have"
    return _Step(limits=limits, outside={NO_KERNEL: text})


def _moves_rows(nodes: Nodes, names: Sequence[str]) -> bool:
    return any(nodes.op(name).removeprefix("Resource") in SCATTERS for name in names)


def _of_rule(
    nodes: Nodes,
    scope: str,
    owner: str,
    writes: Mapping[str, list[Write]],
    rule_class: tuple[str, dict[str, Any], Identity],
) -> dict[str, Any] | None:
    """The numbers of a rule that the graph contains. None if it reads variables of another optimizer, or skips rows
    without a gradient although the class does not."""
    class_name, flags, identity = rule_class
    algorithm, config = algorithms.find(class_name), dict[str, Any]()
    if writes.keys() != {owner, *identity.slots.values()}:
        return None
    ops = [write.op for slot in identity.slots.values() for write in writes[slot]]
    keeps = algorithm.lazy({**algorithm.defaults(COUNTER_NAMED_ITER), **flags}, COUNTER_NAMED_ITER) == KEPT
    scattered = [_moves_rows(nodes, [op]) for op in ops]
    if any(scattered) and keeps != all(scattered):
        return None
    for slot, variable in identity.slots.items():
        head, _, called = variable.rpartition("/")
        if head != f"{scope}/{owner}" or algorithm.slot_of(called) != slot:
            return None
    states = dict(algorithm.state_scalars)
    for key, scalar in reversed(list(identity.hyper.items())):
        if key in states:
            is_known, value = nodes.source(scalar.output) in [f"{scope}/{name}" for name in states[key]], None
        else:
            is_known, value = _argument(nodes, scalar.output, scope, key)
        if not is_known or scalar.is_derived:
            return None
        if value is not None:
            config[_CALLED.get(key, key)] = value if key == RATE else float(np.float32(value))
    counts = identity.step is None or (match(nodes, identity.step[0], STEP, Captures()) and identity.step[1] == 1.0)
    return config if counts and not identity.decays else None


def _constraint_op(nodes: Nodes, owner: str, names: Sequence[str]) -> str | None:
    moving = {name for name in names if nodes.inputs[name][:1] == [owner] and nodes.op(name) not in READS}
    bounds = Either(*constraints.patterns(Variable(owner)))
    for write in nodes.writes_of(name for name in names if nodes.op(name) in SETS and len(moving) > 1):
        if write.target == owner and match(nodes, write.value, bounds, Captures()):
            readers = [reader for reader in nodes.ancestors(write.value) if owner in nodes.inputs.get(reader, ())]
            if all(moving - {write.op} <= nodes.waits_for(reader) for reader in readers):
                return write.op
    return None


def _changed(nodes: Nodes, update: str, gradient: str) -> dict[str, str]:
    """Report a gradient that is computed in the scope of its update: the class changes it first."""
    source = nodes.source(nodes.before_rows_added(gradient))
    inside = source.startswith(f"{update.rpartition('/')[0]}/")
    return {CHANGED: f"gradients pass through {source!r} before they reach the optimizer"} if inside else {}


def _of_kernel(nodes: Nodes, name: str, kernel: Kernel, is_rows: bool, scope: str) -> dict[str, Any] | None:
    """The config that a kernel shows; None unless Keras itself builds such a kernel."""
    config: dict[str, Any] = dict(kernel.fixed)
    for key, place in kernel.inputs(is_rows).items():
        is_known, value = _argument(nodes, nodes.inputs[name][place], scope, key)
        if not is_known:
            return None
        config |= {} if value is None else {key: value}
    if nodes.op(name).endswith("KerasMomentum"):
        config["nesterov"] = nodes.flag(name, "use_nesterov")
    return config


def _argument(nodes: Nodes, source: str, scope: str, key: str) -> tuple[bool, Any]:
    """Whether a rule's argument is understood, and its value; the value is None for a variable."""
    variable, rate = _setting(nodes, scope, key), _setting(nodes, scope, RATE)
    decayed = (DIVIDE, rate, (ADD, 1.0, ("Mul", Variable(f"{scope}/decay"), STEP)))
    patterns = [variable, *([decayed] if key == RATE else ())]
    if key == L2:  # Ftrl adds its beta to it from TF 2.4 on
        patterns += [(ADD, variable, (DIVIDE, Variable(f"{scope}/beta"), ("Mul", 2.0, r))) for r in (rate, decayed)]
    if any(match(nodes, source, pattern, Captures()) for pattern in patterns):
        return True, None
    value: Any = nodes.constant(source)
    if value is None and key == RATE:
        value = schedules.read(nodes, source)
    return value is not None, value


def _setting(nodes: Nodes, scope: str, key: str) -> Pattern:
    """A variable of a setting. A setting from a whole number, `SGD(1)`, is cast when it is read."""
    variable = Variable(f"{scope}/{key}")
    dtype = nodes.attribute(variable.name, "dtype") if variable.name in nodes.variables else None
    return Cast(variable) if dtype is not None and dtype.type in (INT32, INT64) else variable


def _clipping(
    nodes: Nodes, owner: str, names: Sequence[str], gradients: Gradients, outside: dict[str, str]
) -> dict[str, float] | None:
    values = taken(nodes, names)
    plain = [value for value in values if nodes.is_gradient(value) or nodes.op(nodes.source(value)) == "Placeholder"]
    computed = [value for value in values if value not in plain]
    if not computed:
        strange = [value for value in plain if gradients.clipping(owner, value, outside) is None and outside]
        return {} if plain and not strange else None
    if len(computed) > 1:
        outside.setdefault(CHANGED, f"gradients of {owner!r} reach its update in {len(computed)} ways")
        return None
    limit = gradients.clipping(owner, computed[0], outside)
    return None if limit is None else dict([limit])
