"""Optimizer state of any source into a live optimizer of PyTorch: everything is checked, then all of it is assigned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from migrate import evidence
from migrate.bytes.arrays import widened
from migrate.bytes.source import still_the_same
from migrate.live import conversions
from migrate.live.conversions import Plan
from migrate.live.torch_rules import KINDS, Kind, rule_of
from migrate.rules import comparison
from migrate.state import OptimizerState, StoredVariable
from optim.errors import MismatchError, UnsupportedError

SHOWN = 5


def is_torch(optimizer: Any) -> bool:
    """Whether it is an optimizer of PyTorch; torch is not imported for the question."""
    return any(c.__module__.startswith("torch.optim") and c.__name__ == "Optimizer" for c in type(optimizer).__mro__)


@dataclass(frozen=True)
class Target:
    """A parameter, the stored variable that it is, and the order in which it has that one's dims."""

    stored: StoredVariable
    parameter: Any
    axes: tuple[int, ...]
    group: Mapping[str, Any]

    def laid_out(self, array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.transpose(array, self.axes))


class Restored:
    """One restoration on its way: what differs is known when it is made, `run` assigns.

    Args:
      variables: name in the source -> parameter, or (parameter, axes) where the parameter is the variable with its dims
        in another order: `numpy.transpose(variable, axes)`.

    Raises:
      UnsupportedError: a class that is not known, or another algorithm than the source's.
      MismatchError: parameters that are missing, extra, or of another shape or dtype, all of them listed.
    """

    def __init__(self, state: OptimizerState, optimizer: Any, variables: Any, restore_variables: bool):
        self._state, self._optimizer, self._restore_variables = state, optimizer, restore_variables
        self._kind, self.what = _kind(optimizer)
        if not comparison.same_class(state.algorithm, self._kind.algorithm):
            raise UnsupportedError(
                f"the source's optimizer is {state.algorithm} and the live one {self.what}: their slots hold different"
                f" things; make a live optimizer with the rule of {state.algorithm}"
            )
        self.targets = _targets(state, optimizer, variables)
        source = comparison.rule_of(state.algorithm, state.hyperparameters)
        self._plans: dict[int, Plan] = {}
        reasons: list[str] = []
        for group in optimizer.param_groups:
            live = rule_of(self._kind, group)
            found = comparison.compare(source, live)
            plan = conversions.plan(source, live, found, state.iterations, frozenset(state.slots))
            self._plans[id(group)] = plan
            differs = self._kind.differs(group, state.iterations)
            reasons += [*live.reasons, *plan.reasons, *([differs] if differs else [])]
            reasons += [comparison.described(key, *both) for key, both in plan.left.items()]
            self.warnings = tuple(plan.warnings)
            self._product = self._momentum_product(source, live)
        self.origins = (*state.origins, *evidence.doubts("live optimizer", dict.fromkeys(reasons)))
        self.reasons = evidence.reasons(self.origins)

    def _momentum_product(self, source: comparison.Rule, live: comparison.Rule) -> float | None:
        if "u_product" not in self._kind.scalars:
            return None
        return conversions.momentum_product(source, live, self._state.scalars, self._state.iterations)

    @property
    def unmapped(self) -> tuple[str, ...]:
        """What the source has and torch has no place for."""
        lost = [f"{slot}/{n}" for slot, per in self._state.slots.items() if slot not in self._kind.slots for n in per]
        return (*self._state.unmapped, *lost)

    def run(self) -> int:
        """Assign everything or nothing; returns how many bytes of slots."""
        import torch

        made = {target.parameter: dict(self._entries(target)) for target in self.targets}
        values = [(t.parameter, self._value(t)) for t in self.targets] if self._restore_variables else []
        still_the_same()
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
        for parameter, entries in made.items():
            self._optimizer.state[parameter] = entries
        return sum(e.element_size() * e.nelement() for entries in made.values() for e in entries.values())

    def _entries(self, target: Target) -> Iterator[tuple[str, Any]]:
        """What torch keeps of one parameter."""
        import torch

        owned = {slot: per[target.stored.name] for slot, per in self._state.slots.items() if target.stored.name in per}
        if not owned and self._state.slots:
            return  # never trained, so that its state begins anew
        if self._kind.counts:
            yield "step", torch.tensor(float(self._state.iterations))
        for slot, key in self._kind.slots.items():
            if slot not in owned:
                continue
            wide = widened(np.asarray(owned[slot].load()), owned[slot].dtype).reshape(owned[slot].shape)
            change = self._plans[id(target.group)].changes.get(slot)
            yield key, self._tensor(target, wide if change is None else change(wide))
        for name, key in self._kind.scalars.items():
            if name == "u_product" and self._product is not None:
                yield key, torch.tensor(self._product)

    def _value(self, target: Target) -> Any:
        array = target.stored.array
        if array is None:
            raise MismatchError(f"the source holds no value of {target.stored.name}; pass restore_variables=False")
        return self._tensor(target, widened(np.asarray(array.load()), array.dtype).reshape(array.shape))

    def _tensor(self, target: Target, array: np.ndarray) -> Any:
        import torch

        parameter = target.parameter
        return torch.from_numpy(target.laid_out(array)).to(dtype=parameter.dtype, device=parameter.device)


def _kind(optimizer: Any) -> tuple[Kind, str]:
    name = type(optimizer).__name__
    if name not in KINDS or not type(optimizer).__module__.startswith("torch.optim."):
        raise UnsupportedError(
            f"{type(optimizer).__module__}.{name} is none of the optimizers of torch.optim that dtopt restores into:"
            f" {', '.join(KINDS)}"
        )
    return KINDS[name], f"torch.optim.{name}"


def _targets(state: OptimizerState, optimizer: Any, variables: Any) -> list[Target]:
    if not isinstance(variables, Mapping):
        trained = [v.name for v in state.variables if v.trainable]
        raise MismatchError(
            "for an optimizer of torch give a mapping of the source's names to parameters, or to (parameter, axes)"
            f" where dims are in another order; the source has {_shown(trained)}"
        )
    stored = {v.name: v for v in state.variables}
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    found: list[Target] = []
    problems: list[str] = [f"the source has no {name!r}" for name in variables if name not in stored]
    for name, given in variables.items():
        if name in stored:
            found += _target(stored[name], given, groups, problems)
    owners = {name for per in state.slots.values() for name in per}
    problems += [f"no parameter is given for {name!r}" for name in owners - set(variables)]
    given_ids = {id(t.parameter) for t in found}
    lacking = sum(each not in given_ids for each in groups)
    problems += [f"{lacking} parameters of the optimizer are not in the mapping"] if lacking else []
    if problems:
        raise MismatchError(f"the parameters are not those of the source: {_shown(problems)}")
    return found


def _target(
    stored: StoredVariable, given: Any, groups: Mapping[int, Mapping[str, Any]], problems: list[str]
) -> list[Target]:
    parameter, axes = given if isinstance(given, tuple) else (given, range(len(stored.shape)))
    axes, shape = tuple(int(a) for a in axes), tuple(int(n) for n in parameter.shape)
    if sorted(axes) != list(range(len(stored.shape))) or tuple(stored.shape[a] for a in axes) != shape:
        problems.append(
            f"{stored.name!r} has shape {list(stored.shape)}, its parameter {list(shape)}, axes {list(axes)}"
        )
        return []
    if str(parameter.dtype).removeprefix("torch.") != stored.dtype:
        problems.append(f"{stored.name!r} is {stored.dtype}, its parameter {parameter.dtype}")
        return []
    if id(parameter) not in groups:
        return []
    return [Target(stored, parameter, axes, groups[id(parameter)])]


def _shown(items: Sequence[str]) -> str:
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return "; ".join(items[:SHOWN]) + more
