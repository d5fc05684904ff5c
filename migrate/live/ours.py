"""Optimizers of `optim`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from migrate.algorithms import repeated_rows
from migrate.algorithms.clipping import LIMITS
from migrate.live.base import replaced
from migrate.live.step_answers import Asks, exceptions, lazy, multiplier, of_variables
from migrate.models import loss_scale, rounding
from migrate.models.loss_scale import Scaling
from migrate.rules import comparison
from migrate.rules import step_factors as factors
from optim import slot_layout
from optim.errors import HyperparameterError, UnsupportedError


class Ours:
    """See `migrate.live.base.Live`."""

    generation = rounding.OPTIM

    def __init__(self, optimizer: Any):
        import optim

        self._optimizer = optimizer
        base = next((c for c in type(optimizer).__mro__ if getattr(optim, c.__name__, None) is c), None)
        if base is None or base is optim.Optimizer:
            raise UnsupportedError(
                f"{type(optimizer).__name__} is not a class of optim, so its rule is not known; restore into a class"
                " of optim"
            )
        self.algorithm = base.__name__
        self.what = f"optim.{base.__name__}" if type(optimizer) is base else f"{type(optimizer).__name__} (optim)"
        self._stock = type(optimizer) is base
        self.scaling: Scaling | None = None
        self._values: Mapping[str, Any] = {}
        self.asks: Asks = {
            **of_variables(),
            factors.DECAYED: lambda row: self._is_decayed(row.variable),
            factors.MULTIPLIER: lambda row: multiplier(self._values, *self._names(row.variable)),
            factors.EXCEPTED: lambda row: exceptions(self._values, *self._names(row.variable)),
            factors.LAZY: lambda row: lazy(self._values, *self._names(row.variable)),
        }

    def rule(self, dtypes: Sequence[str]) -> comparison.Rule:
        unknown = None
        try:
            values = dict(self._optimizer.get_config())
        except HyperparameterError as error:  # a custom schedule has no config
            raise UnsupportedError(f"{self.what} has options that cannot be compared: {error}") from error
        self._values = values
        self.scaling = self.scaling or loss_scale.of_arguments(values)
        rate = self._optimizer._learning_rate
        if callable(rate) and not isinstance(values["learning_rate"], Mapping):
            unknown, values["learning_rate"] = "a callable", None
        reasons = [] if self._stock else [f"{self.what} is a class of your own: its rule was not compared"]
        return comparison.Rule(self.algorithm, values, unknown, (*reasons, *replaced(self._optimizer)))

    def missing(self, variables: Sequence[Any]) -> tuple[list[str], list[str]]:
        tracked = list(self._optimizer._state.tracked)
        if not tracked:
            return [], []
        known = {id(t.variable) for t in tracked}
        from optim.state.tracked import plain_name, unwrap

        given = {id(unwrap(v)) for v in variables}
        return (
            [plain_name(v) for v in variables if id(unwrap(v)) not in known],
            [t.name for t in tracked if id(t.variable) not in given],
        )

    def known(self) -> Sequence[Any]:
        return [t.variable for t in self._optimizer._state.tracked]

    def build(self, variables: Sequence[Any]) -> None:
        if not self._optimizer.built:
            self._optimizer.build(list(variables))

    def slots(self, variable: Any) -> Mapping[str, Any]:
        state = self._optimizer._state
        names = [name for name in state.slots.names if name != slot_layout.GATHERED]  # made by `settle`
        return dict(state.slots.of(state.tracked[variable], names))

    def scalars(self, values: Mapping[str, float]) -> list[tuple[str, Any, float]]:
        kept = self._optimizer._state.scalars
        return [(name, v, values[name]) for name, v in kept.items() if name in values]

    def start(self, slot: str) -> float | None:
        if slot == slot_layout.AVERAGE:
            return None
        rule = self._optimizer._rule
        initial = next((s.initial for s in (rule.slots if rule is not None else ()) if s.name == slot), 0.0)
        return None if isinstance(initial, str) else initial

    def lazy_reasons(self, names: Sequence[str]) -> list[str]:
        return []

    def repeated(self) -> tuple[str, ...]:
        options = self._optimizer._settings
        return repeated_rows.acting(options.get("repeated_rows"), {k: options.get(k) for k in LIMITS})

    def _is_decayed(self, variable: Any) -> bool:
        from optim.state.tracked import unwrap

        if self._optimizer._settings.weight_decay.lists(unwrap(variable)):
            return False
        return not self._matches(self._optimizer.weight_decay_exclude, variable)

    def _matches(self, patterns: Iterable[str], variable: Any) -> bool:
        return any(re.search(pattern, name) for pattern in patterns for name in self._names(variable))

    def _names(self, variable: Any) -> tuple[str, ...]:
        """The names that patterns are matched with: its present or future name in the optimizer, and its own."""
        from optim.state.tracked import plain_name

        tracked = self._optimizer._state.tracked
        return tracked[variable].names if variable in tracked else (plain_name(variable),)

    def settle(self, values: Mapping[str, float]) -> None:
        from optim.checkpoints import assigning

        assigning.settle(self._optimizer)
