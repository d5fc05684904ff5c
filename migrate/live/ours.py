"""Optimizers of `optim`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
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


class Ours(Live):
    """An optimizer of `optim`, or what `for_keras` made of it on JAX and PyTorch."""

    def __init__(self, optimizer: Any):
        import optim

        inner = getattr(optimizer, "inner", optimizer)
        if isinstance(inner, optim.Groups):
            raise UnsupportedError(
                "optim.Groups has several optimizers, and a source is restored into one: build the Groups on all"
                " variables, then restore into optimizer.members[i] with the variables of its group, for each i"
            )
        base = next((c for c in type(inner).__mro__ if getattr(optim, c.__name__, None) is c), None)
        if base is None or base is optim.Optimizer:
            raise UnsupportedError(
                f"{type(inner).__name__} is not a class of optim, so its rule is not known; restore into a class"
                " of optim"
            )
        what = f"optim.{base.__name__}" if type(inner) is base else f"{type(inner).__name__} (optim)"
        super().__init__(optimizer, base.__name__, rounding.OPTIM, what)
        self._is_stock, self._rule = type(inner) is base, inner._rule
        self.asks |= {
            factors.DECAYED: lambda row: self._is_decayed(row.variable),
            factors.MULTIPLIER: lambda row: multiplier(self._values, *self._names(row.variable)),
            factors.EXCEPTED: lambda row: exceptions(self._values, *self._names(row.variable)),
            factors.LAZY: lambda row: lazy(self._values, *self._names(row.variable)),
        }

    def rule(self, dtypes: Sequence[str]) -> comparison.Rule:
        unknown = None
        try:
            values = dict(live.config_of(self._optimizer))
        except HyperparameterError as error:  # a custom schedule has no config
            raise UnsupportedError(f"{self.what} has options that cannot be compared: {error}") from error
        self._values = values
        self.scaling = self.scaling or loss_scale.of_arguments(values)
        rate = self._optimizer._learning_rate
        if callable(rate) and not isinstance(values["learning_rate"], Mapping):
            unknown, values["learning_rate"] = "a callable", None
        reasons = [] if self._is_stock else [f"{self.what} is a class of your own: its rule was not compared"]
        return comparison.Rule(self.algorithm, values, unknown, (*reasons, *replaced(self._optimizer)))

    def missing(self, variables: Sequence[Any]) -> tuple[list[str], list[str]]:
        known = self._tracked()
        if not known:
            return [], []
        given = {identity(v) for v in variables}
        return (
            [plain_name(v) for v in variables if identity(v) not in known],
            [t.name for i, t in known.items() if i not in given],
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
        found = {name: state.find(name, tracked) for name in state.slots if name not in left}
        return {name: slot for name, slot in found.items() if slot is not None}

    def scales(self, variable: Any, slot: str) -> Any:
        return live.state_of(self._optimizer).find(slot_layout.scale_of(slot), self._tracked()[identity(variable)])

    def scalars(self, values: Numbers) -> list[tuple[str, Any, float]]:
        kept = live.state_of(self._optimizer).scalars
        return [(name, v, values[name]) for name, v in kept.items() if name in values]

    def start(self, slot: str) -> float | None:
        if slot == slot_layout.AVERAGE:
            return None
        initial = next((s.initial for s in (self._rule.slots if self._rule is not None else ()) if s.name == slot), 0.0)
        return None if isinstance(initial, str) else initial

    def repeated(self) -> tuple[str, ...]:
        options = self._optimizer._settings
        return repeated_rows.acting(options.get("repeated_rows"), {k: options.get(k) for k in LIMITS})

    def _is_decayed(self, variable: Any) -> bool:
        if self._optimizer._settings.weight_decay.lists(handle(variable).variable):
            return False
        return not self._matches(self._optimizer.weight_decay_exclude, variable)

    def _matches(self, patterns: Iterable[str], variable: Any) -> bool:
        return any(re.search(pattern, name) for pattern in patterns for name in self._names(variable))

    def _names(self, variable: Any) -> tuple[str, ...]:
        """The names that patterns are matched with: its present or future name in the optimizer, and its own."""
        tracked = self._tracked().get(identity(variable))
        return (plain_name(variable),) if tracked is None else tracked.names

    def settle(self, values: Numbers) -> None:
        assigning.settle(self._optimizer)
