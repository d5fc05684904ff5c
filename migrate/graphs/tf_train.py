"""Read a tf.train optimizer from a graph: class, constants, schedule, clipping and sparse gradients.

`Optimizer.apply_gradients` puts one kernel per variable into the graph, `SCOPE/update_VARIABLE/ApplyX`, and the
constructor's arguments are constants that the kernels read (tensorflow/python/training 1.15, input numbers from
tensorflow/core/ops/training_ops.cc). Nothing of the graph is run, and everything not recognised is reported.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from migrate.graphs import own_slots, schedules, table_rules
from migrate.graphs.gradients import Gradients, made_from_gradients, taken
from migrate.graphs.kernels import ARGUMENTS, L2, RATE, TF_TRAIN, Kernel, kernel_of
from migrate.graphs.late_reads import late_read
from migrate.graphs.nodes import Nodes
from migrate.graphs.patterns import ADD, DIVIDE, Anything, Captures, Variable, match
from migrate.graphs.sparse_rows import is_sparse, lazy, of_own_rule, owner_of, rows_apart
from migrate.graphs.table_rules import BETAS, TableRule
from migrate.graphs.writers import alone_written, changers, other_writer, text_of_writer
from migrate.state import CHANGED, LATE_READ, MOVING, NO_KERNEL, SPARSE_CLIPPING

_WITH_BETA = (ADD, L2, (DIVIDE, "beta", ("Mul", 2.0, Anything("rate"))))
"""The l₂ input that FtrlOptimizer of TF 2.4 and later gives its kernel (`_prepare` in `training/ftrl.py`)."""
WITH_DECAY = {"AdamOptimizer": "AdamWOptimizer", "MomentumOptimizer": "MomentumWOptimizer"}
"""Classes of `tf.contrib.opt` that decay weights before the step (`weight_decay_optimizers.py` 1.15)."""
_OTHER_TF_TRAIN = re.compile(r"(?:Resource)?(?:Sparse)?Apply(ProximalGradientDescent|AdagradDA|PowerSign|AddSign)")
"""Classes of kernels that have no rule here."""
_AS_USUAL = {"update_slots": True, "multiply_linear_by_lr": False}
"""Kernel flags that change the class's step; absent flags have these values."""
NESTEROV = ("Momentum", "Adam")
"""Kernels with an attribute use_nesterov."""


@dataclass(frozen=True)
class Trained:
    """What kernels show.

    Attributes:
      config: the arguments under Keras's names. seen: whether each gradient was followed to its end.
      outside: steps of the program, or of an argument, that are not understood.
    """

    class_name: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    sparse: frozenset[str] | None = None
    outside: Mapping[str, str] = field(default_factory=dict)
    seen: bool = False
    gathered: frozenset[str] = frozenset()
    """Variables that accumulate gradients between steps."""
    constrained: frozenset[str] = frozenset()
    """As `Stored.constrained`."""


def describe(nodes: Nodes, updates: Mapping[str, Mapping[str, Any]], scopes: Collection[str] = ()) -> Trained:
    """Read the kernels of an optimizer.

    Args:
      updates: as `SaverGraph.updates`. scopes: those of the chosen optimizer; other optimizers may change its variables
        too. Empty if all are of one optimizer.
    """
    others = _updating(nodes, list(updates) if scopes else [])
    scopes = scopes or list(updates)
    owners = {variable for scope in scopes for variable in updates[scope]}
    update_ops = _updating(nodes, scopes)
    kernels = {name: kernel_of(nodes.op(name), TF_TRAIN) for name in update_ops}
    applied = {name: match for name, match in kernels.items() if match is not None}
    beside = [n for n in _updating(nodes, list(updates)) if n not in update_ops and kernel_of(nodes.op(n), TF_TRAIN)]
    sparse = frozenset(owner_of(name) for name in update_ops if is_sparse(nodes, [name])) & owners
    tables = _ops_by_owner(update_ops, sparse.difference(map(owner_of, applied)))
    rules = table_rules.read(nodes, tables)
    classes = {kernel.class_name for kernel, _ in applied.values()} | {rule.class_name for rule in rules.values()}
    strange = _mixed_rules(nodes, update_ops, applied, classes)
    unknown = {table: ops for table, ops in tables.items() if table not in rules}
    if strange or (not applied and (unknown or not rules)):
        called = None if applied else _class_without_rule(nodes, update_ops)
        return Trained(called, sparse=sparse if owners else None, outside=strange or of_own_rule(nodes, unknown))
    reader = _Reader(nodes, owners)
    for name, (kernel, rows) in applied.items():
        reader.kernel(name, kernel, rows)
    for table, ops in tables.items():
        reader.table(table, ops)
    for rule in rules.values():
        reader.rule(rule)
    outside, moves = reader.outside, [*applied, *(rule.op for rule in rules.values())]
    wrong = other_writer(nodes, reader.changed, {*others, *update_ops}) or _idle(nodes, scopes, moves)
    if wrong is not None:
        outside["updates"] = wrong
    config = reader.agreed()
    among = scopes if len(scopes) == 1 else ()
    standing = schedules.never_counts(nodes, moves, None if len(updates) == 1 else among)
    if standing and isinstance(config.get(RATE), Mapping):
        outside[RATE] = standing
        outside |= schedules.moving(nodes, RATE, reader.rates, reader.moved, standing)
        del config[RATE]
    config |= _common_limit(reader.limits, outside)
    config |= rows_apart(config, sparse, reader.gradients.added, outside)
    class_name = _with_decay(nodes, classes.pop(), owners, applied, config, outside)
    class_name = lazy(nodes, class_name, sparse, update_ops, unknown, outside)
    late = late_read(nodes, *({n: nodes.target(nodes.inputs[n][0]) for n in names} for names in (moves, beside)))
    if late is not None:
        outside[LATE_READ] = late
    still = owners - {owner_of(name) for name in applied} - sparse
    if still:
        outside["updates"] = f"no kernel updates {min(still)!r}, which has slots"
    seen = not outside.keys() - {SPARSE_CLIPPING, LATE_READ, *ARGUMENTS, *(MOVING + key for key in ARGUMENTS)}
    return Trained(class_name, config, sparse, outside, seen, frozenset(reader.gradients.gathered))


def _ops_by_owner(names: Collection[str], owners: Collection[str]) -> dict[str, list[str]]:
    ops: dict[str, list[str]] = {}
    for name in names:
        if (owner := owner_of(name)) in owners:
            ops.setdefault(owner, []).append(name)
    return ops


def _updating(nodes: Nodes, scopes: Collection[str]) -> list[str]:
    return [name for scope in scopes for name in nodes.by_name if name.startswith(f"{scope}/update_")]


def _class_without_rule(nodes: Nodes, update_ops: Collection[str]) -> str | None:
    kernels = (_OTHER_TF_TRAIN.fullmatch(nodes.op(name)) for name in update_ops)
    called = {kernel.group(1) for kernel in kernels if kernel is not None}
    return f"{called.pop()}Optimizer" if len(called) == 1 else None


def _mixed_rules(
    nodes: Nodes, update_ops: Collection[str], applied: Mapping[str, tuple[Kernel, bool]], classes: Collection[str]
) -> dict[str, str]:
    other = next((name for name in update_ops if _OTHER_TF_TRAIN.fullmatch(nodes.op(name))), None)
    if other is not None:
        return {"optimizer": f"{other!r} ({nodes.op(other)}) updates a variable by the rule of another class"}
    first = next((name for name, (kernel, _) in applied.items() if _changes_gradient(nodes, name, kernel)), None)
    if first is not None:
        text = f"{first!r} gets a gradient that the optimizer's own step has changed, as LARSOptimizer's does"
        return {"trust_coefficient": text}
    return {"optimizer": f"variables are updated by {', '.join(sorted(classes))}"} if len(classes) > 1 else {}


class _Reader:
    """What kernels of one class show, collected over the variables that they update."""

    def __init__(self, nodes: Nodes, owners: Collection[str]):
        self._nodes = nodes
        by_variable = changers(nodes)
        self._written = alone_written(nodes, by_variable)
        self.moved = by_variable.keys()
        """Variables that steps change."""
        self.rates: dict[str, Any] = {}
        """Schedules that were read; kernels share them."""
        self._doubted: set[tuple[str, str]] = set()
        self._texts: dict[tuple[str, str], dict[str, str]] = {}
        self._values: dict[str, list[Any]] = {}
        self.gradients = Gradients(nodes, owners)
        self.changed = set(owners)
        self.limits: set[tuple[str, float] | None] = set()
        self.outside: dict[str, str] = {}

    def kernel(self, name: str, kernel: Kernel, rows: bool) -> None:
        nodes, owner = self._nodes, owner_of(name)
        end = kernel.state
        slots, powers = own_slots.read(nodes, name, kernel)
        self.limits.add(self.gradients.clipping(owner, kernel.gradient(nodes, name), self.outside))
        self._report_wrong(name, slots, powers, nodes.inputs[name][end + 1 :], _unusual(nodes, name))
        inputs = dict(enumerate(nodes.inputs[name]))
        self._note(kernel.fixed.items())
        if any(nodes.op(name).endswith(suffix) for suffix in NESTEROV):
            self._note([("nesterov", nodes.flag(name, "use_nesterov"))])
        self._note(self._arguments(name, {key: inputs.get(place) for key, place in kernel.inputs(rows).items()}))

    def rule(self, rule: TableRule) -> None:
        """Read a table that follows the rule of its class, which has no kernel for its rows."""
        self._report_wrong(rule.op, rule.slots, rule.powers, [rule.inputs[key] for key in rule.inputs if key in BETAS])
        self._note(self._arguments(rule.op, rule.inputs))

    def _report_wrong(
        self, name: str, slots: list[str], powers: list[str], betas: Sequence[str], unusual: str | None = None
    ) -> None:
        wrong = own_slots.strange(self._nodes, name, owner_of(name), slots, powers, betas, self._written)
        wrong = wrong or unusual or _out_of_order(self._nodes, name, self.gradients)
        if wrong is not None:
            self.outside["updates"] = wrong
        self.changed.update(slots)

    def _note(self, pairs: Iterable[tuple[str, Any]]) -> None:
        for key, value in pairs:
            values = self._values.setdefault(key, [])
            values.extend([value] if value not in values else ())

    def _arguments(self, name: str, inputs: Mapping[str, str | None]) -> Iterator[tuple[str, Any]]:
        """Yield what the inputs of a kernel, or of a rule without one, are."""
        nodes, outside, rates = self._nodes, self.outside, self.rates
        for key, input_name in inputs.items():
            if input_name is None:
                outside[key] = f"{name!r} in the graph lacks this input"
                continue
            value: Any = nodes.constant(input_name)
            if value is None and key == RATE:
                if input_name not in rates:
                    rates[input_name] = schedules.read(nodes, input_name)
                value = rates[input_name]
            source = nodes.source(input_name)
            if value is None and key == L2 and match(nodes, source, _WITH_BETA, captures := Captures()):
                value = captures.constants[L2]
                yield from [("beta", captures.constants["beta"])] if captures.constants["beta"] else []
            if value is None and source in nodes.changing:
                value, op = nodes.changing[source]
                outside |= self._rewritten(name, key, source, op)
            if made_from_gradients(nodes, source):
                outside[NO_KERNEL] = f"{name!r} uses a {key} that steps compute from gradients, which no rule here does"
            if value is not None:
                yield key, value
            else:
                self._report_unknown(key, source)

    def _rewritten(self, kernel: str, key: str, variable: str, op: str) -> dict[str, str]:
        """Report a hyperparameter whose variable the graph changes, once for all kernels."""
        text = self._texts.get((key, variable))
        if text is None:
            text = self._texts[key, variable] = text_of_writer(self._nodes, key, variable, op, [kernel])
        return text

    def _report_unknown(self, key: str, source: str) -> None:
        if (key, source) in self._doubted:
            return
        self._doubted.add((key, source))
        how = f"{source!r} ({self._nodes.op(source) or 'no op'}) in the graph computes it"
        how = self.outside.setdefault(key, how)
        self.outside |= schedules.moving(self._nodes, key, [source], self.moved, how)

    def table(self, owner: str, ops: Collection[str]) -> None:
        """Read a variable whose rows several ops change, without a kernel."""
        for gradient in taken(self._nodes, ops):
            self.limits.add(self.gradients.clipping(owner, gradient, self.outside))

    def agreed(self) -> dict[str, Any]:
        """Return the arguments that are the same for all kernels, and report the others."""
        differing = {key for key, values in self._values.items() if len(values) > 1}
        self.outside |= {key: f"variables have different values of {key}" for key in sorted(differing)}
        return {key: values[0] for key, values in self._values.items() if key not in differing}


def _common_limit(limits: set[tuple[str, float] | None], outside: dict[str, str]) -> dict[str, float]:
    if len(limits) > 1:
        outside.setdefault(CHANGED, "not all gradients are clipped in the same way")
    limit = next(iter(limits)) if len(limits) == 1 else None
    return {} if limit is None else dict([limit])


def _idle(nodes: Nodes, scopes: Collection[str], kernels: Collection[str]) -> str | None:
    """Report a kernel that the op returned by `apply_gradients` does not wait for, or None. That op has
    the name of its scope, unless the scope belongs to a distribution strategy."""
    prefixes = tuple({f"{name.rpartition('/')[0]}/" for name in kernels})
    for scope in scopes:
        inside = (name for name in nodes.by_name if name.startswith(f"{scope}/") and not name.startswith(prefixes))
        done = set[str]().union(*map(nodes.waits_for, [scope] if scope in nodes.by_name else inside))
        left = next((name for name in kernels if name.startswith(f"{scope}/update_") and name not in done), None)
        if left is not None:
            return f"no op in {scope!r} waits for {left!r}, which may never run"
    return None


def _out_of_order(nodes: Nodes, name: str, gradients: Gradients) -> str | None:
    """Report a kernel on a side of a condition that reads accumulated gradients too early, or again."""
    if any(nodes.op(nodes.source(input_name)) in ("Switch", "RefSwitch") for input_name in nodes.inputs[name]):
        return f"{name!r} is on a side of a condition that is not understood"
    branch = nodes.branches.get(name)
    for op in gradients.gathering.get(owner_of(name), ()) if branch else ():
        early, late = (op, name) if nodes.op(op).startswith("AssignAdd") else (name, op)
        if early not in nodes.waits_for(late) and (early == op or nodes.branches.get(op) == branch):
            return f"{late!r} does not wait for {early!r}, and both use accumulated gradients"
    return None


def _unusual(nodes: Nodes, name: str) -> str | None:
    """Describe a kernel's flag that differs from its class, such as RegAdagradOptimizer's update_slots, or None."""
    flags = {key: nodes.attribute(name, key) for key in _AS_USUAL}
    key = next((k for k, flag in flags.items() if flag is not None and bool(flag.b) != _AS_USUAL[k]), None)
    return None if key is None else f"{name!r} has {key} = {not _AS_USUAL[key]}"


def _with_decay(
    nodes: Nodes,
    class_name: str,
    owners: Collection[str],
    applied: Collection[str],
    config: dict[str, Any],
    outside: dict[str, str],
) -> str:
    """The class, replaced by that of tf.contrib.opt if updates also do p ← p − weight_decay·p."""
    captures = Captures()
    decayed: set[str] = set()
    stepped = {owner_of(name) for name in applied}
    for write in nodes.writes():
        owner = write.target
        if owner not in owners or f"/update_{owner}/" not in write.op:
            continue
        subtracted = nodes.op(write.op).startswith("AssignSub")
        if subtracted and match(nodes, write.value, ("Mul", "weight_decay", Variable(owner)), captures):
            decayed.add(owner)
        elif owner in stepped:
            outside["updates"] = f"{write.op!r} changes a variable that the optimizer's kernel updates too"
    if not decayed:
        return class_name
    if class_name not in WITH_DECAY:
        outside["updates"] = f"{class_name} also lets variables decay"
        return class_name
    wholes = {nodes.parts.get(name, name) for name in set(owners) - decayed}
    left_out = [f"^{re.escape(name)}(:0)?$" for name in sorted(wholes)]
    config |= {"weight_decay": captures.constants["weight_decay"], "exclude_from_weight_decay": left_out}
    return WITH_DECAY[class_name]


def _changes_gradient(nodes: Nodes, name: str, kernel: Kernel) -> bool:
    return nodes.source(kernel.gradient(nodes, name)).startswith(f"{name.rpartition('/')[0]}/")
