"""The scalars of one step on TensorFlow, and the input of an executor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optim.algorithm import Algorithm
from optim.executors.gradient_metadata import UNCHANGED, GradientMetadata
from optim.executors.work import Work
from optim.namespace import XP
from optim.options.option_objects import GradientsClipOption
from optim.options.settings import Settings
from optim.rule import Rule
from optim.state.state import State
from optim.state.tracked import Tracked
from optim.step.scalars import StepScalars


class Preparation(StepScalars):
    """The scalars of the step after `iterations` steps.

    `iterations` is a Python int eagerly and a tensor in a function; in the same way all scalars are floats or float64
    tensors.

    Raises:
      HyperparameterError: one is out of range now. UnsupportedError: an option that the algorithm does not support.
    """

    def __init__(self, algorithm: Algorithm, state: State, settings: Settings, iterations: Any):
        super().__init__(
            algorithm,
            settings,
            state.tracked,
            iterations,
            settings.rate.at(iterations),
            self._scalars(algorithm, state, isinstance(iterations, int)),
            XP,
        )
        self._state = state
        self.key = state.slots.storage.step_key(iterations)
        self.loss_scale = settings.loss_scale.for_step(isinstance(iterations, int))

    @staticmethod
    def _scalars(algorithm: Algorithm, state: State, eager: bool) -> dict[str, Any]:
        """Return the current values of the algorithm's scalars; eagerly, only after waiting."""
        if eager:
            return {name: float(state.counter(name).peek()) for name in algorithm.scalars}
        return {name: state.scalars[name].read_value() for name in algorithm.scalars}

    def work(
        self,
        tracked: Sequence[Tracked],
        gradients: Sequence[Any],
        active: Sequence[Any] | None = None,
        metadata: GradientMetadata = UNCHANGED,
    ) -> Work:
        """Return the input of an executor for a whole step; `metadata`: what was done to the gradients before."""
        settings, own_step = self._settings, self._algorithm.own_step
        lazy = settings.lazy_rows
        return Work(
            tracked=tracked,
            gradients=gradients,
            slots=self._state.slots,
            rules=self._rules_of(tracked),
            update_step=self._own_step if own_step else _no_step,
            coefficients=self.coefficients,
            rate_factors=self._groups_of(tracked),
            decay_factors=self._decay_factors(tracked),
            active=active or [True] * len(tracked),
            lazy=[lazy.applies_to(t) for t in tracked] if lazy.patterns else [False] * len(tracked),
            clip=GradientsClipOption() if metadata.is_clipped else settings.clipping.option,
            has_averages=settings.averages.is_used,
            ema_momentum=self.ema_momentum,
            overwrite=self.overwrite,
            loss_scale=1.0 if metadata.is_clipped and self.loss_scale is not None else self.loss_scale,
            jit_compile=bool(settings.execution.jit_compile),
            only_ops=settings.execution.executor == "portable",
            slices=[metadata.slices.get(t.index) for t in tracked] if metadata.slices else (),
            named=[metadata.named.get(t.index) for t in tracked] if metadata.named else (),
            held_tensors=metadata.held_tensors,
            key=self.key,
        )

    def work_of_rule(self, tracked: Tracked, gradient: Any) -> Work:
        """Return the input of the rule alone for one variable, within a user's `update_step`: no decay, no average."""
        settings = self._settings
        return Work(
            tracked=[tracked],
            gradients=[gradient],
            slots=self._state.slots,
            rules=[self._algorithm.rule],
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
            key=self.key,
        )

    def _rules_of(self, tracked: Sequence[Tracked]) -> Sequence[Rule | None]:
        return [self._algorithm.updating_rule] * len(tracked)

    def _own_step(self, gradient: Any, variable: Any) -> None:
        assert self._algorithm.own_step is not None
        with self._settings.rate.in_dtype_of(variable):
            self._algorithm.own_step(gradient, variable)


def _no_step(gradient: Any, variable: Any) -> None:
    raise AssertionError("the rule updates")
