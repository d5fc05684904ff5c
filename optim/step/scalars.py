"""The scalars of one step, evaluated and checked before anything changes, on any backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from optim.algorithm import Algorithm, Group
from optim.errors import HyperparameterError, UnsupportedError
from optim.options.settings import Settings
from optim.rule import Rule

if TYPE_CHECKING:
    from optim.state.tracked import Tracked


class StepScalars:
    """The scalars of the step after `iterations` steps.

    Args:
      tracked: all model variables. rate: the learning rate of this step. scalars: those of the algorithm.
      iterations: a Python int eagerly and a tensor in a function; in the same way all scalars are floats or float64
        tensors.
      xp: the namespace of these tensors.

    Raises:
      HyperparameterError: one is out of range now. UnsupportedError: an option that the algorithm does not support.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        settings: Settings,
        tracked: Iterable[Tracked],
        iterations: Any,
        rate: Any,
        scalars: Mapping[str, Any],
        xp: Any,
    ):
        self._algorithm = algorithm
        self._settings = settings
        self._tracked = tracked
        eager = isinstance(iterations, int)
        if settings.rate.decay and algorithm.own_step is not None:
            raise UnsupportedError(
                f"decay={settings.rate.decay} would have no effect: {algorithm.owner} has its own update_step; give it"
                " a learning-rate schedule"
            )
        self.rate = rate
        self.overwrite = settings.averages.overwrites(iterations)
        self.ema_momentum = settings.averages.momentum(xp, iterations)
        self.coefficients: dict[Group, dict[str, Any]] = {}
        self._decays: dict[tuple[Group, float], Any] = {}
        self._has_constants = algorithm.rule is not None and _has_constants(algorithm.rule)
        if algorithm.rule is None:
            return
        if self.rate is None:
            raise HyperparameterError(f"{algorithm.owner} was made without a learning_rate")
        hyper = {**algorithm.hyper(), **scalars}
        step = float(iterations + 1) if eager else xp.cast(iterations + 1, "float64")
        hyper["base_learning_rate"] = self.rate
        for group, (factor, constants) in self._groups(algorithm.rule).items():
            values = {**hyper, "learning_rate": self.rate * factor, **constants}
            scalars = algorithm.rule.coefficients(np if eager else xp, values, step)
            self.coefficients[group] = {n: float(v) for n, v in scalars.items()} if eager else scalars

    def _groups(self, rule: Rule) -> dict[Group, tuple[float, Mapping[str, float]]]:
        """Return the factor of the learning rate and the constants of the rule, by group."""
        if not self._has_constants:
            return {factor: (factor, {}) for factor in self._settings.multipliers.all_factors()}
        groups = {self._group(tracked) for tracked in self._tracked}
        return {group: (group[0], dict(group[1])) for group in groups if isinstance(group, tuple)}

    def _group(self, tracked: Tracked) -> Group:
        factor, rule = self._settings.multipliers.factor(tracked), self._algorithm.rule
        if rule is None or not self._has_constants:
            return factor
        constants = dict(rule.constants(list(tracked.variable.shape), tracked.names))
        if rule.places_weight_decay:
            constants["weight_decay"] = self._settings.weight_decay.amount(tracked) or 0.0
        return factor, tuple(sorted(constants.items()))

    def _groups_of(self, tracked: Sequence[Tracked]) -> list[Group]:
        """Return the group of each variable, with a fast path for the usual one: a step may have thousands of small
        variables."""
        if self._has_constants or self._settings.multipliers.all_factors() != {1.0}:
            return [self._group(t) for t in tracked]
        return [1.0] * len(tracked)

    def new_scalars(self) -> dict[str, Any]:
        """Return the state of the whole optimizer after this step, which does not depend on the learning rate."""
        names = self._algorithm.scalars
        return {name: next(iter(self.coefficients.values()))[name] for name in names}

    def _decay_factors(self, tracked: Sequence[Tracked]) -> list[Any]:
        rule, amounts = self._algorithm.updating_rule, self._settings.weight_decay.amounts(tracked)
        if not any(amounts) or (rule is not None and rule.places_weight_decay):
            return [None] * len(tracked)
        return [amount and self._decay_factor(t, amount) for t, amount in zip(tracked, amounts, strict=True)]

    def _decay_factor(self, tracked: Tracked, amount: float) -> Any:
        rule = self._algorithm.updating_rule
        group = self._group(tracked)
        if (group, amount) not in self._decays:
            rate = None if self.rate is None else self.rate * self._settings.multipliers.factor(tracked)
            if rule is not None:
                rate = self.coefficients[group].get("decay_rate", rate)
            self._decays[group, amount] = self._settings.weight_decay.factor(amount, rate)
        return self._decays[group, amount]


def _has_constants(rule: Rule) -> bool:
    """Whether coefficients depend on more of a variable than its factor of the learning rate."""
    return rule.places_weight_decay or rule.has_constants
