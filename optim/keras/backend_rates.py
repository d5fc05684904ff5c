"""The learning rates of an optimizer on JAX or PyTorch: one, or one for each group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from optim import schedules, slot_layout
from optim.errors import UnsupportedError
from optim.groups.proportion import factor_between
from optim.hyperparameters import to_number
from optim.keras.backend_options import check_rate
from optim.keras.configured import Configured
from optim.keras.rule_groups import RuleGroup
from optim.keras.step_values import Arrays, dtype_of
from optim.options import rate as rates


class BackendRates(Configured):
    """The learning rates of `AnyBackend`, which completes it."""

    _groups: list[RuleGroup]
    _scalars: dict[str, Any]
    _xp: Any
    _settings: Any
    _exact_rates: dict[str, float]
    _learning_rate: Any
    _untrack_variable: Any

    @property
    def _main(self) -> RuleGroup:
        """The group with the learning rate that Keras knows."""
        return next(group for group in self._groups if group.is_main)

    @property
    def _other_groups(self) -> list[RuleGroup]:
        """Those with a rate that is not the optimizer's own."""
        return [group for group in self._groups if not group.is_main]

    def _live_rate(self) -> Any:
        return self._learning_rate

    def _get_current_learning_rate(self) -> Any:
        rate = self._learning_rate
        if schedules.is_schedule(rate):
            now = {name: variable.value for name, variable in self._scalars.items()}
            return self._scheduled(rate, self._count_now(now))
        return rate() if callable(rate) else rate

    def _count_now(self, now: Mapping[str, Any]) -> Any:
        """What a schedule is given by the next call."""
        accumulation, iterations = self._settings.accumulation, now[slot_layout.ITERATIONS]
        if not accumulation.goes_by_calls:
            return iterations
        return iterations * accumulation.steps + now[slot_layout.ACCUMULATED_STEPS]

    @property
    def learning_rate(self) -> Any:
        """The variable of a constant rate, or what a schedule gives now. Setting a number assigns the variable.

        With several groups it is that of the last one, and setting it moves those of the others by the same factor.
        """
        return self._get_current_learning_rate()

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        attributes, before = vars(self), self._learning_rate
        if schedules.is_schedule(value) or (callable(value) and not hasattr(value, "dtype")):
            if self._other_groups:
                raise UnsupportedError("a schedule belongs to one group; make the Groups again with it")
            parsed = rates.parse(value)
            check_rate(parsed, self._xp)
            attributes["_learning_rate"] = parsed
            attributes["_exact_rates"].pop(self._main.rate_key, None)
            if attributes["_scalars"].pop(self._main.rate_key, None) is not None:
                self._untrack_variable(before)
            return
        if schedules.is_schedule(before) or callable(before):
            raise TypeError(
                "This optimizer was created with a LearningRateSchedule, which a number cannot replace; set another"
                " schedule"
            )
        if self._other_groups:
            self._move_other_rates(float(value))
        self._set_rate(self._main.rate_key, value)

    def _set_rate(self, key: str, value: Any) -> None:
        exact = vars(self)["_exact_rates"]
        exact.pop(key, None)
        if isinstance(value, float):
            exact[key] = value
        self._scalars[key].assign(value)

    def _move_other_rates(self, value: float) -> None:
        """Multiply the rates of the other groups as the main one is multiplied to become `value`."""
        if any(group.rate_key not in self._scalars for group in self._groups):
            raise TypeError("the learning rate of a group is a schedule, which does not follow a number")
        factor = factor_between(self._constant_rate(self._main), value)
        for group in self._other_groups:
            self._set_rate(group.rate_key, self._constant_rate(group) * factor)

    def _rate(self, group: RuleGroup, now: Arrays, count: Any) -> Any:
        constant, exact = now.get(group.rate_key), self._exact_rates.get(group.rate_key)
        rate = self._learning_rate if group.is_main else group.settings.rate.source
        if constant is None:
            value = self._scheduled(rate, count) if schedules.is_schedule(rate) else rate()
        elif self._xp.is_known(constant) and exact is not None:
            value = exact if np.asarray(exact, dtype_of(constant)) == float(constant) else float(constant)
        else:
            value = constant
        if not self._xp.is_known(value):
            return value
        number = to_number("learning_rate", value if isinstance(value, float) else float(value))
        return rates.check_rate(number, f" at count {count}") if number is not None else None

    def _constant_rate(self, group: RuleGroup) -> float:
        return float(self._rate(group, {group.rate_key: self._scalars[group.rate_key].value}, 0))

    @property
    def _constant_rates(self) -> dict[str, float]:
        """The constant learning rates by their keys."""
        return {g.rate_key: self._constant_rate(g) for g in self._groups if g.rate_key in self._scalars}

    def _scheduled(self, schedule: Any, count: Any) -> Any:
        xp = self._xp
        if not isinstance(schedule, schedules.LearningRateSchedule):
            return schedule(count)
        if xp.is_known(count):
            return schedule.at(int(count))
        with xp.float64():
            return schedule.on(xp, count) if isinstance(schedule, schedules.Computed) else schedule(count)
