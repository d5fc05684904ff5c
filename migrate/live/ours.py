"""Optimizers of `optim`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from migrate.algorithms import repeated_rows
from migrate.algorithms.clipping import LIMITS
from migrate.live.base import Live, Numbers, replaced
from migrate.live.step_answers import exceptions, lazy, multiplier
from migrate.models import loss_scale, rounding
from migrate.rules import comparison
from migrate.rules import step_factors as factors
from optim import slot_layout
from optim.checkpoints import assigning, live
from optim.checkpoints.variables import handle, identity
from optim.errors import HyperparameterError, UnsupportedError
from optim.state.names import plain_name


class OfOptim(Live):
    """What all optimizers of `optim` share: variables, slots and counters. On JAX and PyTorch `for_keras` made them."""

    def missing(self, variables: Sequence[Any]) -> tuple[list[str], list[str]]:
        known = self._tracked()
        if not known:
            return [], []
        identities = {identity(v) for v in variables}
        return (
            [plain_name(v) for v in variables if identity(v) not in known],
            [t.name for i, t in known.items() if i not in identities],
        )

    def _tracked(self) -> dict[int, Any]:
        """What the optimizer knows of its variables, by identity."""
        return {id(t.variable): t for t in live.state_of(self._optimizer).tracked}

    def known(self) -> Sequence[Any]:
        return [t.variable for t in self._tracked().values()]

    def build(self, variables: Sequence[Any]) -> None:
        if not self._optimizer.built:
            self._optimizer.build(list(variables))

    def slots(self, variable: Any) -> Mapping[str, Any]:
        state, tracked = live.state_of(self._optimizer), self._tracked()[identity(variable)]
        left = {slot_layout.GATHERED, *map(slot_layout.scale_of, state.slots)}  # made by `settle`, and with codes
        slots = {name: state.find(name, tracked) for name in state.slots if name not in left}
        return {name: slot for name, slot in slots.items() if slot is not None}

    def scales(self, variable: Any, slot: str) -> Any:
        return live.state_of(self._optimizer).find(slot_layout.scale_of(slot), self._tracked()[identity(variable)])

    def names(self, variable: Any) -> tuple[str, ...]:
        """The names that patterns are matched with: its present or future name in the optimizer, and its own."""
        tracked = self._tracked().get(identity(variable))
        return (plain_name(variable),) if tracked is None else tracked.names

    def settle(self, values: Numbers) -> None:
        assigning.settle(self._optimizer)


class Ours(OfOptim):
    """An optimizer with one rule, or the group of that number of one with several."""

    def __init__(self, optimizer: Any, number: int | None = None):
        import optim

        inner = getattr(optimizer, "inner", optimizer)
        self._number, self._key = number, str
        self._settings, self._rule = optimizer._settings, inner._rule
        if number is not None:
            inner, group = inner.members[number], optimizer._algorithm.members[number]
            self._settings, self._rule, self._key = group.settings, group.algorithm.rule, group.state.key
        base = next((c for c in type(inner).__mro__ if getattr(optim, c.__name__, None) is c), None)
        if base is None or base is optim.Optimizer:
            raise UnsupportedError(
                f"{type(inner).__name__} is not a class of optim, so its rule is not known; restore into a class"
                " of optim"
            )
        self._is_stock = type(inner) is base
        what = f"optim.{base.__name__}" if self._is_stock else f"{type(inner).__name__} (optim)"
        super().__init__(optimizer, base.__name__, rounding.OPTIM, what)
        self.asks |= {
            factors.DECAYED: lambda row: self._is_decayed(row.variable),
            factors.MULTIPLIER: lambda row: multiplier(self._values, *self.names(row.variable)),
            factors.EXCEPTED: lambda row: exceptions(self._values, *self.names(row.variable)),
            factors.LAZY: lambda row: lazy(self._values, *self.names(row.variable)),
        }

    def rule(self, dtypes: Sequence[str]) -> comparison.Rule:
        unknown = None
        try:
            values = dict(live.config_of(self._optimizer))
        except HyperparameterError as error:  # a custom schedule has no config
            raise UnsupportedError(f"{self.what} has options that cannot be compared: {error}") from error
        rate = self._optimizer._learning_rate
        if self._number is not None:
            rate, values = self._settings.rate.source, values | values.pop("groups")[self._number][1]["config"]
        self._values = values
        self.scaling = self.scaling or loss_scale.of_arguments(values)
        if callable(rate) and not isinstance(values["learning_rate"], Mapping):
            unknown, values["learning_rate"] = "a callable", None
        reasons = [] if self._is_stock else [f"{self.what} is a class of your own: its rule was not compared"]
        return comparison.Rule(self.algorithm, values, unknown, (*reasons, *replaced(self._optimizer)))

    def scalars(self, values: Numbers) -> list[tuple[str, Any, float]]:
        kept, initials = live.state_of(self._optimizer).scalars, {} if self._rule is None else self._rule.scalars
        known = {name: values[name] for name in (slot_layout.ITERATIONS, slot_layout.ACCUMULATED_STEPS)}
        known |= {name: values.get(name, initial) for name, initial in initials.items()}
        known |= {name: values[name] for name in loss_scale.SCALARS if name in values}
        keys = {name: next((k for k in (self._key(name), name) if k in kept), None) for name in known}
        return [(name, kept[key], known[name]) for name, key in keys.items() if key is not None]

    def start(self, slot: str) -> float | None:
        if slot == slot_layout.AVERAGE:
            return None
        initial = next((s.initial for s in (self._rule.slots if self._rule is not None else ()) if s.name == slot), 0.0)
        return None if isinstance(initial, str) else initial

    def repeated(self) -> tuple[str, ...]:
        options = self._settings
        return repeated_rows.acting(options.get("repeated_rows"), {k: options.get(k) for k in LIMITS})

    def _is_decayed(self, variable: Any) -> bool:
        if self._settings.weight_decay.lists(handle(variable).variable):
            return False
        patterns = self._settings.weight_decay.weight_decay_exclude
        return not any(re.search(pattern, name) for pattern in patterns for name in self.names(variable))


class OurGroups(OfOptim):
    """`optim.Groups`: each group has its own rule."""

    def __init__(self, optimizer: Any):
        inner = getattr(optimizer, "inner", optimizer)
        self._selection = optimizer._algorithm.selection
        self._parts = [Ours(optimizer, number) for number in range(len(inner.members))]
        what = f"optim.Groups of {', '.join(part.what for part in self._parts)}"
        super().__init__(optimizer, " and ".join({part.algorithm: None for part in self._parts}), rounding.OPTIM, what)

    @property
    def parts(self) -> Sequence[Live]:
        return self._parts

    def members(self, variables: Sequence[Any]) -> list[tuple[Live, list[int]]]:
        names = [self.names(v) for v in variables]
        self._selection.check(names)
        numbers = [self._selection.number_for(name) for name in names]
        owned = ((part, [i for i, n in enumerate(numbers) if n == number]) for number, part in enumerate(self._parts))
        for part in self._parts:
            part.scaling = self.scaling
        return [(part, places) for part, places in owned if places]


def adapted(optimizer: Any) -> Live:
    """Adapt an optimizer of `optim`, or what `for_keras` made of one."""
    import optim

    is_groups = isinstance(getattr(optimizer, "inner", optimizer), optim.Groups)
    return OurGroups(optimizer) if is_groups else Ours(optimizer)
