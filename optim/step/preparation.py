"""The scalars of one step, evaluated and checked before anything changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from optim.algorithm import Algorithm
from optim.errors import HyperparameterError, UnsupportedError
from optim.executors.apart import AS_GIVEN, Apart
from optim.executors.work import Group, Work
from optim.namespace import XP
from optim.options.option_objects import GradientsClipOption
from optim.options.settings import Settings
from optim.rule import Rule
from optim.state.state import State
from optim.state.tracked import Tracked


class Preparation:
    """The scalars of the step after `iterations` steps.

    `iterations` is a Python int eagerly and a tensor in a function; so are all scalars floats or float64 tensors.

    Raises:
      HyperparameterError: one is out of range now. UnsupportedError: an option that the algorithm cannot keep.
    """

    def __init__(self, algorithm: Algorithm, state: State, settings: Settings, iterations: Any):
        self._algorithm = algorithm
        self._state = state
        self._settings = settings
        eager = isinstance(iterations, int)
        if settings.rate.decay and algorithm.own_step is not None:
            raise UnsupportedError(
                f"decay={settings.rate.decay} would have no effect: {algorithm.owner} has its own update_step; give it"
                " a learning-rate schedule"
            )
        self.rate = settings.rate.at(iterations)
        self.loss_scale = settings.loss_scale.for_step(eager)
        self.overwrite = settings.averages.overwrites(iterations)
        self.ema_momentum = settings.averages.momentum(iterations)
        self.coefficients: dict[Group, dict[str, Any]] = {}
        self._decays: dict[tuple[Group, float], Any] = {}
        self._has_constants = algorithm.rule is not None and _has_constants(algorithm.rule)
        if algorithm.rule is None:
            return
        if self.rate is None:
            raise HyperparameterError(f"{algorithm.owner} was made without a learning_rate")
        hyper = {**algorithm.hyper(), **self._scalars(eager)}
        step = float(iterations + 1) if eager else tf.cast(iterations + 1, tf.float64)
        hyper["base_learning_rate"] = self.rate
        for group, (factor, constants) in self._groups(algorithm.rule).items():
            given = {**hyper, "learning_rate": self.rate * factor, **constants}
            scalars = algorithm.rule.coefficients(np if eager else XP, given, step)
            self.coefficients[group] = {n: float(v) for n, v in scalars.items()} if eager else scalars

    def _groups(self, rule: Rule) -> dict[Group, tuple[float, Mapping[str, float]]]:
        """Factor of the learning rate and constants of the rule, by group."""
        if not self._has_constants:
            return {factor: (factor, {}) for factor in self._settings.multipliers.all_factors()}
        groups = {self._group(tracked) for tracked in self._state.tracked}
        return {group: (group[0], dict(group[1])) for group in groups if isinstance(group, tuple)}

    def _group(self, tracked: Tracked) -> Group:
        factor, rule = self._settings.multipliers.factor(tracked), self._algorithm.rule
        if rule is None or not self._has_constants:
            return factor
        constants = dict(rule.constants(tracked.variable.shape.as_list(), tracked.names))
        if rule.places_weight_decay:
            constants["weight_decay"] = self._settings.weight_decay.amount(tracked) or 0.0
        return factor, tuple(sorted(constants.items()))

    def _groups_of(self, tracked: Sequence[Tracked]) -> list[Group]:
        """The group of each, at once where all have the usual one: a step may have thousands of small variables."""
        if self._has_constants or self._settings.multipliers.all_factors() != {1.0}:
            return [self._group(t) for t in tracked]
        return [1.0] * len(tracked)

    def _scalars(self, eager: bool) -> dict[str, Any]:
        """Current values of the algorithm's own scalars; eagerly, only after waiting."""
        names = self._algorithm.scalars
        if eager:
            return {name: float(self._state.counter(name).peek()) for name in names}
        return {name: self._state.scalars[name].read_value() for name in names}

    def new_scalars(self) -> dict[str, Any]:
        """State of the whole optimizer after this step, which no learning rate enters."""
        names = self._algorithm.scalars
        return {name: next(iter(self.coefficients.values()))[name] for name in names}

    def work(
        self,
        tracked: Sequence[Tracked],
        gradients: Sequence[Any],
        active: Sequence[Any] | None = None,
        apart: Apart = AS_GIVEN,
    ) -> Work:
        """What an executor is given for a whole step; `apart`: what was done to the gradients before."""
        settings, own_step = self._settings, self._algorithm.own_step
        lazy = settings.lazy_rows
        return Work(
            tracked=tracked,
            gradients=gradients,
            slots=self._state.slots,
            rule=self._algorithm.updating_rule,
            update_step=self._own_step if own_step else _no_step,
            coefficients=self.coefficients,
            rate_factors=self._groups_of(tracked),
            decay_factors=self._decay_factors(tracked),
            active=active or [True] * len(tracked),
            lazy=[lazy.applies_to(t) for t in tracked] if lazy.patterns else [False] * len(tracked),
            clip=GradientsClipOption() if apart.is_settled else settings.clipping.option,
            has_averages=settings.averages.is_used,
            ema_momentum=self.ema_momentum,
            overwrite=self.overwrite,
            loss_scale=1.0 if apart.is_settled and self.loss_scale is not None else self.loss_scale,
            jit_compile=bool(settings.execution.jit_compile),
            only_ops=settings.execution.executor == "portable",
            slices=[apart.slices.get(t.index) for t in tracked] if apart.slices else (),
            named=[apart.named.get(t.index) for t in tracked] if apart.named else (),
            held=apart.held,
        )

    def work_of_rule(self, tracked: Tracked, gradient: Any) -> Work:
        """What the rule alone is given for one variable, from within a user's `update_step`: no decay, no average."""
        settings = self._settings
        return Work(
            tracked=[tracked],
            gradients=[gradient],
            slots=self._state.slots,
            rule=self._algorithm.rule,
            update_step=_no_step,
            coefficients=self.coefficients,
            rate_factors=[self._group(tracked)],
            decay_factors=[None],
            active=[True],
            lazy=[settings.lazy_rows.applies_to(tracked)],
            clip=settings.clipping.option,
            has_averages=False,
            ema_momentum=1.0,
            overwrite=False,
        )

    def _own_step(self, gradient: Any, variable: Any) -> None:
        assert self._algorithm.own_step is not None
        with self._settings.rate.in_dtype_of(variable):
            self._algorithm.own_step(gradient, variable)

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


def _no_step(gradient: Any, variable: Any) -> None:
    raise AssertionError("the rule updates")
