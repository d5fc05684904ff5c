"""Restore optimizer state of any source into a PyTorch optimizer: everything is checked, then everything is
assigned."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from migrate import claims
from migrate.bytes.arrays import LazyArray
from migrate.bytes.messages import some
from migrate.bytes.source import check_unchanged
from migrate.conversion import partial
from migrate.conversion.partial import Choice
from migrate.live import cells, conversions, current_values, mapped, step_answers, values
from migrate.live.base import replaced
from migrate.live.conversions import Plan
from migrate.live.current_values import Assumed
from migrate.live.mapped import Mapped, Target
from migrate.live.step_answers import Row
from migrate.live.torch_rules import KINDS, NEEDED_BY, Kind, rule_of
from migrate.rules import comparison
from migrate.rules import step_factors as factors
from migrate.state import OptimizerState
from optim.errors import UnsupportedError


def is_torch(optimizer: Any) -> bool:
    """Whether it is an optimizer of PyTorch, without importing torch."""
    return any(c.__module__.startswith("torch.optim") and c.__name__ == "Optimizer" for c in type(optimizer).__mro__)


@dataclass(frozen=True)
class Pairing:
    """A group of parameters, and a state of the source that some of them have.

    `source` and `live` are their rules, `plan` leads from one to the other.
    """

    group: Mapping[str, Any]
    state: OptimizerState
    targets: tuple[Target, ...]
    source: comparison.Rule
    live: comparison.Rule
    plan: Plan

    @property
    def product(self) -> float | None:
        """Nadam's product of momenta for the group."""
        if self.state.algorithm != "Nadam":
            return None
        return conversions.momentum_product(self.source, self.live, self.state.scalars, self.state.iterations)


class Restored:
    """A restoration: differences are known after it is created, `run` assigns.

    Args:
      states: of the source's groups, or its only one. whole: all of them joined.
      variables: name in the source -> parameter, or as in `mapped.targets`.

    Raises:
      UnsupportedError: an unknown class, or another algorithm than the source's.
      MismatchError: parameters that are missing, extra, or of another shape or dtype, all of them listed.
    """

    def __init__(
        self,
        states: Sequence[OptimizerState],
        whole: OptimizerState,
        optimizer: Any,
        variables: Any,
        restore_variables: bool,
        choice: Choice,
    ):
        self._optimizer, self._restore_variables = optimizer, restore_variables
        self._kind, self.what = _kind(optimizer)
        strange = [
            state.algorithm for state in states if not comparison.same_class(state.algorithm, self._kind.algorithm)
        ]
        if strange:
            raise UnsupportedError(
                f"the source's optimizer is {strange[0]} and the live one {self.what}: their slots hold different"
                f" things; make a live optimizer with the rule of {strange[0]}, or {partial.WEIGHTS_ONLY}"
            )
        matching = _mapped(whole, optimizer, variables, choice)
        self.state, self.targets, self._fresh = matching.state, matching.targets, matching.fresh
        self._parts = cells.by_state(states, matching.state, self.targets)
        self._pairings = [pairing for group in optimizer.param_groups for pairing in self._pairings_of(group)]
        self._of = {target.place: pairing for pairing in self._pairings for target in pairing.targets}
        self.warnings = tuple(dict.fromkeys(text for pairing in self._pairings for text in pairing.plan.warnings))
        self.origins = (*self.state.origins, *claims.doubts("live optimizer", dict.fromkeys(self._doubts())))
        self.reasons = claims.reasons(self.origins)

    def _pairings_of(self, group: Mapping[str, Any]) -> Iterator[Pairing]:
        members = {id(p) for p in group["params"]}
        for state, of_state in self._parts:
            targets = tuple(t for t in of_state if id(t.place) in members)
            if not targets:
                continue
            source, live = comparison.rule_of(state.algorithm, state.hyperparameters), rule_of(self._kind, group)
            rows = [Row(t.stored, t.stored.name, t.place) for t in targets]
            acting_rule, _ = step_answers.acting(state, factors.TORCH, rows, {}, source, live)
            differences = comparison.compare(acting_rule, live)
            plan = conversions.plan(source, live, differences, state.iterations, frozenset(state.slots))
            yield Pairing(group, state, targets, source, live, plan)

    def _doubts(self) -> Iterator[str]:
        by_text: dict[str, list[str]] = {}
        for pairing in self._pairings:
            for text in self._rule_reasons(pairing):
                by_text.setdefault(text, []).extend(t.stored.name for t in pairing.targets)
        for text, names in by_text.items():
            yield text if len(names) == len(self.targets) else f"{some(names)}: {text}"
        if _has_hooks(self._optimizer):
            yield "the live optimizer calls hooks at each step, which are not compared"
        yield from replaced(self._optimizer)
        if self._fresh and self._kind.counts:
            yield FRESH_COUNT
        for state, targets in self._parts:
            yield from mapped.variable_reasons(state, targets)
            yield from self._factor_reasons(state, targets)
        yield from current_values.reasons(
            (
                Assumed(t.stored, functools.partial(_current_value, t.place), t.order)
                for t in self.targets
                if not t.is_grown
            ),
            self.state.variables,
            self._restore_variables,
        )

    def _rule_reasons(self, pairing: Pairing) -> Iterator[str]:
        yield from (*pairing.live.reasons, *pairing.plan.reasons)
        if differs := self._kind.differs(pairing.group, pairing.state.iterations):
            yield differs
        yield from (comparison.described(key, *both) for key, both in pairing.plan.left.items())
        if "initial_lr" in pairing.group:
            yield OF_SCHEDULER
        if isinstance(pairing.plan.left.get("learning_rate", (None,))[0], Mapping):
            yield OF_SCHEDULE

    def _factor_reasons(self, state: OptimizerState, targets: Sequence[Target]) -> Iterator[str]:
        """Report single parameters: a group decays all of them, and torch skips those that require no gradient."""
        rows = [Row(t.stored, t.stored.name, t.place) for t in targets]
        asks: step_answers.Asks = {
            factors.TRAINED: lambda row: bool(row.variable.requires_grad),
            factors.DECAYED: lambda row: bool(self._of[row.variable].group.get("weight_decay")),
        }
        source = comparison.rule_of(state.algorithm, state.hyperparameters)
        decays = bool(source.values.get("weight_decay")) and any(asks[factors.DECAYED](row) for row in rows)
        yield from step_answers.differences(state, factors.TORCH, rows, asks, decays, "requires_grad")
        yield from step_answers.of_whole(state, factors.TORCH, source, source, None)

    @property
    def unmapped(self) -> tuple[str, ...]:
        """Parts of the source without a place in torch."""
        lost = [f"{slot}/{n}" for slot, per in self.state.slots.items() if slot not in self._kind.slots for n in per]
        return (*self.state.unmapped, *lost)

    def run(self) -> int:
        """Assign everything or nothing; return the bytes of slots."""
        states = {target.place: dict(self._entries(target)) for target in self.targets}
        _assign_all_or_none(self.targets if self._restore_variables else ())
        for parameter, entries in states.items():
            self._optimizer.state[parameter] = entries
        for parameter in self._fresh.values():
            self._optimizer.state.pop(parameter, None)
        return sum(e.element_size() * e.nelement() for entries in states.values() for e in entries.values())

    def _entries(self, target: Target) -> Iterator[tuple[str, Any]]:
        """The state of one parameter in torch. Keras counts steps for all together, also for one never trained."""
        owned = {slot: per[target.stored.name] for slot, per in self.state.slots.items() if target.stored.name in per}
        pairing = self._of[target.place]
        if self._kind.counts:
            yield "step", self._number(target, self.state.iterations)
        for slot, key in self._kind.slots.items():
            if slot not in owned:
                if pairing.group.get(NEEDED_BY.get(slot, ""), self._kind.counts):
                    yield key, _tensor(target, self._initial_value(slot, target, owned))
                continue
            wide = mapped.numbers(owned[slot])
            change = pairing.plan.changes.get(slot)
            start = functools.partial(self._start, slot, target)
            yield key, _tensor(target, target.filled(wide if change is None else change(wide), start))
        if pairing.product is not None:
            yield self._kind.scalars["u_product"], self._number(target, pairing.product)

    def _initial_value(self, slot: str, target: Target, owned: Mapping[str, LazyArray]) -> np.ndarray:
        start = self._start(slot, target)
        return target.filled(mapped.numbers(owned["v"]), lambda: start) if slot == "vhat" and "v" in owned else start

    def _start(self, slot: str, target: Target) -> np.ndarray:
        rule = self._of[target.place].source
        return np.full(target.shape, values.initial(slot, rule.algorithm, rule.values))

    def _number(self, target: Target, value: float) -> Any:
        """A number that torch stores with a parameter, on the device that its kernels require."""
        import torch

        group = self._of[target.place].group
        is_beside = group.get("capturable") or group.get("fused")
        dtype = torch.float32 if group.get("fused") else None
        return torch.tensor(float(value), dtype=dtype, device=target.place.device if is_beside else None)


class Reset:
    """Set parameters to the stored values and clear the optimizer's state; same interface as `Restored`."""

    def __init__(self, state: OptimizerState, optimizer: Any, variables: Any, choice: Choice):
        self._optimizer = optimizer
        self.what = f"torch.optim.{type(optimizer).__name__}"
        matching = _mapped(replace(state, algorithm=type(optimizer).__name__), optimizer, variables, choice)
        self.state, self.targets = matching.state, matching.targets
        self.origins, self.warnings, self.unmapped = self.state.origins, (), ()
        self.reasons = claims.reasons(self.origins)

    def run(self) -> int:
        """Assign everything or nothing; return the bytes of slots."""
        _assign_all_or_none(self.targets)
        self._optimizer.state.clear()
        return 0


def restored(
    states: Sequence[OptimizerState],
    whole: OptimizerState,
    optimizer: Any,
    variables: Any,
    restore_variables: bool,
    choice: Choice,
) -> Restored | Reset:
    """Create the restoration, see `Restored`."""
    if choice.weights_only:
        return Reset(whole, optimizer, variables, choice)
    return Restored(states, whole, optimizer, variables, restore_variables, choice)


def _mapped(state: OptimizerState, optimizer: Any, variables: Any, choice: Choice) -> Mapped:
    parameters = {p: None for group in optimizer.param_groups for p in group["params"]}
    named: dict[str, Any] = {}
    for group in optimizer.param_groups:  # torch stores names if it got them, from 2.6 on
        named |= dict(zip(group.get("param_names", ()), group["params"], strict=False))

    def lookup(parameter: Any) -> tuple[Any, tuple[int, ...], str] | None:
        if parameter not in parameters:
            return None
        if parameter.is_meta:
            raise UnsupportedError("parameters are on torch's meta device, without numbers; make them (to_empty) first")
        shape = tuple(int(n) for n in parameter.shape)
        return parameter, shape, str(parameter.dtype).removeprefix("torch.")

    return mapped.mapped(state, variables, lookup, tuple(parameters), "parameter", choice, named)


def _assign_all_or_none(targets: Sequence[Target]) -> None:
    import torch

    values = [(t.place, _tensor(t, t.value(functools.partial(_current_value, t.place)))) for t in targets]
    check_unchanged()
    before = [(parameter, parameter.detach().clone()) for parameter, _ in values]
    try:
        with torch.no_grad():
            for parameter, value in values:
                parameter.copy_(value)
    except BaseException:
        with torch.no_grad():
            for parameter, old in before:
                parameter.copy_(old)
        raise


def _tensor(target: Target, array: np.ndarray) -> Any:
    """A tensor with the parameter's memory layout: fused steps go through both in order of addresses."""
    import torch

    live, whole = target.place, torch.from_numpy(array)
    if _is_sharded(live):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(whole.to(live.device, live.dtype), live.device_mesh, live.placements)
    return torch.empty_like(live, requires_grad=False).copy_(whole)


def _is_sharded(parameter: Any) -> bool:
    return hasattr(parameter, "full_tensor")


def _current_value(parameter: Any) -> np.ndarray:
    import torch

    whole = parameter.detach()
    if _is_sharded(parameter):
        whole = whole.full_tensor()
    return np.asarray(whole.to("cpu", torch.float64).numpy())


def _has_hooks(optimizer: Any) -> bool:
    from torch.optim import optimizer as shared

    hooks = [getattr(optimizer, name, None) for name in HOOKS]
    return any((*hooks, *(getattr(shared, name, None) for name in FOR_ALL)))


HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
FOR_ALL = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
FRESH_COUNT = "torch counts steps for each parameter, and begins at 0 with those that start fresh"
OF_SCHEDULER = "a scheduler of torch changes the learning rate of the live optimizer, in a way that is not compared"
OF_SCHEDULE = (
    "before each step set group['lr'] = migrate.learning_rate(state, steps taken), where state = migrate.read(source),"
    " in each group of the optimizer's param_groups to have the source's"
)


def _kind(optimizer: Any) -> tuple[Kind, str]:
    name = type(optimizer).__name__
    if name not in KINDS or not type(optimizer).__module__.startswith("torch.optim."):
        raise UnsupportedError(
            f"{type(optimizer).__module__}.{name} is not an optimizer of torch.optim that dtopt restores into:"
            f" {', '.join(KINDS)}"
        )
    return KINDS[name], f"torch.optim.{name}"
