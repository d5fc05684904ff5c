"""Keras's schedules, from `keras/src/optimizers/schedules/learning_rate_schedule.py` of Keras 3.

Keras computes in float32. If a document has `"dtype": "float32"`, the class from here computes in float32 as well, op
by op, so that training resumes with the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from optim.errors import HyperparameterError
from optim.schedules.base import KNOWN, Computed, finite, positive_steps


class Stock(Computed):
    """A schedule of Keras."""


class ExponentialDecay(Stock):
    """initial · decay_rate ^ (step / decay_steps), the exponent rounded down if `staircase`."""

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        decay_rate: float,
        staircase: bool = False,
        name: str = "ExponentialDecay",
    ):
        self.initial_learning_rate = finite("initial_learning_rate", initial_learning_rate)
        self.decay_steps = positive_steps("decay_steps", decay_steps)
        self.decay_rate = finite("decay_rate", decay_rate)
        self.staircase = bool(staircase)
        self.name = name

    def formula(self, xp: Any, step: Any) -> Any:
        periods = step / self.decay_steps
        if self.staircase:
            periods = xp.floor(periods)
        return self.initial_learning_rate * xp.power(xp.zeros_like(step) + self.decay_rate, periods)


class InverseTimeDecay(Stock):
    """initial / (1 + decay_rate · step / decay_steps), the quotient rounded down if `staircase`."""

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        decay_rate: float,
        staircase: bool = False,
        name: str = "InverseTimeDecay",
    ):
        self.initial_learning_rate = finite("initial_learning_rate", initial_learning_rate)
        self.decay_steps = positive_steps("decay_steps", decay_steps)
        self.decay_rate = finite("decay_rate", decay_rate)
        self.staircase = bool(staircase)
        self.name = name

    def formula(self, xp: Any, step: Any) -> Any:
        periods = step / self.decay_steps
        if self.staircase:
            periods = xp.floor(periods)
        return self.initial_learning_rate / (1.0 + self.decay_rate * periods)


class PiecewiseConstantDecay(Stock):
    """values[k] while step <= boundaries[k], and the last value after the last boundary."""

    _counts_whole = True

    def __init__(self, boundaries: Sequence[float], values: Sequence[float], name: str = "PiecewiseConstant"):
        if len(boundaries) != len(values) - 1:
            raise HyperparameterError(
                f"values must be one longer than boundaries, got {len(values)} and {len(boundaries)}"
            )
        self.boundaries = [finite("boundaries", b) for b in boundaries]
        if self.boundaries != sorted(self.boundaries):  # Keras 3 adds up values there, TensorFlow's own step fails
            raise HyperparameterError(f"boundaries must be in ascending order, got {boundaries!r}")
        self.values = [finite("values", v) for v in values]
        self.name = name

    def formula(self, xp: Any, step: Any) -> Any:
        rate = xp.zeros_like(step) + self.values[-1]
        for boundary, value in zip(reversed(self.boundaries), reversed(self.values[:-1]), strict=True):
            rate = xp.where(step <= boundary, xp.zeros_like(step) + value, rate)
        return rate


class PolynomialDecay(Stock):
    """(initial − end) · (1 − step / decay_steps) ^ power + end; with `cycle`, decay_steps grows by whole multiples."""

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        end_learning_rate: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        name: str = "PolynomialDecay",
    ):
        self.initial_learning_rate = finite("initial_learning_rate", initial_learning_rate)
        self.decay_steps = positive_steps("decay_steps", decay_steps)
        self.end_learning_rate = finite("end_learning_rate", end_learning_rate)
        self.power = finite("power", power)
        self.cycle = bool(cycle)
        self.name = name

    def formula(self, xp: Any, step: Any) -> Any:
        steps: Any = self.decay_steps
        if self.cycle:
            steps = xp.maximum(xp.ceil(step / steps), 1.0) * steps
        else:
            step = xp.minimum(step, steps)
        left = xp.power(1.0 - step / steps, self.power)
        height = self._rounded(self._rounded(self.initial_learning_rate) - self._rounded(self.end_learning_rate))
        return height * left + self.end_learning_rate


class CosineDecay(Stock):
    """Optional linear warm-up to `warmup_target`, then half a cosine down to alpha · (warmup_target or initial)."""

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        alpha: float = 0.0,
        name: str = "CosineDecay",
        warmup_target: float | None = None,
        warmup_steps: float = 0,
    ):
        self.initial_learning_rate = finite("initial_learning_rate", initial_learning_rate)
        self.decay_steps = positive_steps("decay_steps", decay_steps)
        self.alpha = finite("alpha", alpha)
        self.name = name
        self.warmup_target = None if warmup_target is None else finite("warmup_target", warmup_target)
        self.warmup_steps = finite("warmup_steps", warmup_steps)

    def _decayed(self, xp: Any, step: Any, steps: Any, top: Any) -> Any:
        cosine = 0.5 * (1.0 + xp.cos(math.pi * (step / steps)))
        return top * ((1.0 - self.alpha) * cosine + self.alpha)

    def formula(self, xp: Any, step: Any) -> Any:
        if self.warmup_target is None:
            step = xp.minimum(step, self.decay_steps)
            return self._decayed(xp, step, self.decay_steps, self.initial_learning_rate)
        numbers = (self.decay_steps, max(self.warmup_steps, 1e-30), self.warmup_target, self.initial_learning_rate)
        steps, warm_up, target, initial = (self._outside(xp, number) for number in numbers)
        step = xp.minimum(step, self._rounded(self._rounded(self.decay_steps) + self._rounded(self.warmup_steps)))
        return self._either(
            xp,
            step < self.warmup_steps,
            lambda: (target - initial) * (step / warm_up) + initial,
            lambda: self._decayed(xp, step - self.warmup_steps, steps, target),
        )


class CosineDecayRestarts(Stock):
    """Cosine decay that starts again, each period `t_mul` times as long and its top `m_mul` times as high."""

    def __init__(
        self,
        initial_learning_rate: float,
        first_decay_steps: float,
        t_mul: float = 2.0,
        m_mul: float = 1.0,
        alpha: float = 0.0,
        name: str = "SGDRDecay",
    ):
        self.initial_learning_rate = finite("initial_learning_rate", initial_learning_rate)
        self.first_decay_steps = positive_steps("first_decay_steps", first_decay_steps)
        self.t_mul = finite("t_mul", t_mul)
        self.m_mul = finite("m_mul", m_mul)
        self.alpha = finite("alpha", alpha)
        self.name = name

    def formula(self, xp: Any, step: Any) -> Any:
        fraction = step / self.first_decay_steps
        if self.t_mul == 1.0:
            restarts = xp.floor(fraction)
            fraction = fraction - restarts
        else:
            ratio = xp.zeros_like(step) + self.t_mul
            restarts = xp.floor(xp.log(1.0 - fraction * (1.0 - ratio)) / xp.log(ratio))
            before = (1.0 - ratio**restarts) / (1.0 - ratio)
            fraction = (fraction - before) / ratio**restarts
        top = (xp.zeros_like(step) + self.m_mul) ** restarts
        cosine = 0.5 * top * (1.0 + xp.cos(math.pi * fraction))
        alpha = self._rounded(self.alpha)
        return self.initial_learning_rate * (self._rounded(1.0 - alpha) * cosine + alpha)


STOCK: dict[str, type[Stock]] = {
    cls.__name__: cls
    for cls in (
        ExponentialDecay,
        InverseTimeDecay,
        PiecewiseConstantDecay,
        PolynomialDecay,
        CosineDecay,
        CosineDecayRestarts,
    )
}
KNOWN.update(STOCK)
