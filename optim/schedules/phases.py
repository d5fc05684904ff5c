"""Schedules that Keras does not have: a warm-up before any schedule, one cycle, and warm-up, stable, decay."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from optim.arguments import boolean, one_of
from optim.errors import HyperparameterError
from optim.schedules import documents
from optim.schedules.base import KNOWN, Computed, LearningRateSchedule, finite, positive_steps

Shape = Callable[[Any, Any, float, float], Any]
"""(xp, part, start, end) -> the rate after that part, in [0, 1], of a phase."""


def _line(xp: Any, part: Any, start: Any, end: Any) -> Any:
    return start + (end - start) * part


def _half_cosine(xp: Any, part: Any, start: float, end: float) -> Any:
    return end + (start - end) * (0.5 * (1.0 + xp.cos(math.pi * part)))


def _root(xp: Any, part: Any, start: float, end: float) -> Any:
    return start + (end - start) * xp.sqrt(part)


def _power(xp: Any, part: Any, start: float, end: float) -> Any:
    return start * xp.exp(math.log(end / start) * part) if start else _line(xp, part, start, end)


def _phases(xp: Any, step: Any, first: float, phases: Sequence[tuple[float, float, float, Shape]]) -> Any:
    """Return the rate of phases (last step, rate before, rate at its end, shape) in order; the last rate stays after
    its end.

    Args:
      first: the step at which the first one begins.
    """
    starts = [first, *(end for end, *_ in phases)]
    rate = xp.zeros_like(step) + phases[-1][2]
    for start, (end, before, after, shape) in reversed([*zip(starts, phases, strict=False)]):
        part = xp.minimum(xp.maximum((step - start) / ((end - start) or 1.0), 0.0), 1.0)
        rate = xp.where(step <= end, shape(xp, part, before, after), rate)
    return rate


def _not_negative(name: str, value: Any) -> float:
    number = finite(name, value)
    if number < 0:
        raise HyperparameterError(f"{name} must be >= 0, got {value!r}")
    return number


class LinearWarmup(Computed):
    """A linear warm-up to the first rate of another schedule, which begins after it with its own step 0.

        step < warmup_steps:  initial + (schedule(0) − initial) · step / warmup_steps
        then:                 schedule(step − warmup_steps)

    It matches `SequentialLR([LinearLR(...), other])` of torch, and `join_schedules([linear_schedule(...), other],
    [warmup_steps])` of optax. Around a CosineDecay it is Keras's CosineDecay with `warmup_target` and `warmup_steps`.

    Args:
      schedule: a schedule of `optim`, Keras or your own, the `{"class_name", "config"}` of one, or a number, the
        constant rate after the warm-up.
      warmup_steps: number of steps of the line, > 0.
      initial_learning_rate: the rate of the first step, >= 0.
      name: any.

    Raises:
      HyperparameterError: an argument is out of range, or not a schedule.

    Example:
      >>> rate = optim.schedules.LinearWarmup(optim.schedules.CosineDecay(0.1, 100), warmup_steps=10)
      >>> [round(rate.at(step), 3) for step in (0, 5, 10, 60, 110)]
      [0.0, 0.05, 0.1, 0.05, 0.0]
    """

    def __init__(
        self, schedule: Any, warmup_steps: float, initial_learning_rate: float = 0.0, name: str = "LinearWarmup"
    ):
        self.schedule = _parsed(schedule)
        self.warmup_steps = positive_steps("warmup_steps", warmup_steps)
        self.initial_learning_rate = _not_negative("initial_learning_rate", initial_learning_rate)
        self.name = name

    def formula(self, xp: Any, step: Any) -> Any:
        later = xp.maximum(step - self.warmup_steps, 0.0 * step)
        line = _line(xp, step / self.warmup_steps, self.initial_learning_rate, self._after(xp, 0.0 * step))
        return xp.where(step < self.warmup_steps, line, self._after(xp, later))

    def _after(self, xp: Any, step: Any) -> Any:
        """Return the rate of the other schedule at its own step."""
        inner = self.schedule
        if isinstance(inner, float):
            return inner + 0.0 * step
        if xp is np:
            return (
                inner.at(int(step)) if isinstance(inner, LearningRateSchedule) else finite("schedule", inner(int(step)))
            )
        if isinstance(inner, Computed):
            return xp.cast(inner.on(xp, step), self._dtype)
        return xp.cast(inner(xp.cast(step, "int64")), self._dtype)

    def get_config(self) -> dict[str, Any]:
        inner = self.schedule
        return {**super().get_config(), "schedule": inner if isinstance(inner, float) else documents.to_config(inner)}


def _parsed(schedule: Any) -> Any:
    """Return a float, or a schedule: one of `optim` if it exists, because it needs no Keras."""
    if documents.is_schedule(schedule) and not isinstance(schedule, LearningRateSchedule):
        document = documents.to_config(schedule)
        return documents.from_config(document) if documents.is_known(document) else schedule
    if isinstance(schedule, Mapping):
        return documents.from_config(schedule)
    return schedule if documents.is_schedule(schedule) else _not_negative("schedule", schedule)


class OneCycle(Computed):
    """One cycle: up to `max_learning_rate` and down to almost nothing (Smith & Topin, 2018, arXiv:1708.07120).

    The rate starts at max/div_factor and reaches the maximum at step pct_start · total_steps − 1. Then it falls to
    max/(div_factor · final_div_factor) at step total_steps − 1, and stays there. With `three_phase`, it first falls to
    max/div_factor, as fast as it rose. Arguments, defaults and numbers are those of torch's `OneCycleLR` with
    `cycle_momentum=False`.

    Args:
      max_learning_rate: the largest rate, > 0.
      total_steps: number of steps of the cycle, > 1.
      pct_start: the part of them in which the rate rises, in (0, 1), at most 1/2 with `three_phase`; it must have more
        than one step.
      anneal_strategy: `"cos"` for half cosines, `"linear"` for lines.
      div_factor: the maximum divided by the first rate, > 0.
      final_div_factor: the first rate divided by the last, > 0.
      three_phase: whether the rate falls to the first one before it falls below it.
      name: any.

    Raises:
      HyperparameterError: an argument is out of range.

    Example:
      >>> rate = optim.schedules.OneCycle(0.1, total_steps=100)
      >>> [round(rate.at(step), 4) for step in (0, 29, 64, 99)]
      [0.004, 0.1, 0.05, 0.0]
    """

    SHAPES: Mapping[str, Shape] = {"cos": _half_cosine, "linear": _line}

    def __init__(
        self,
        max_learning_rate: float,
        total_steps: float,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        name: str = "OneCycle",
    ):
        self.max_learning_rate = positive_steps("max_learning_rate", max_learning_rate)
        self.total_steps = positive_steps("total_steps", total_steps)
        self.pct_start = positive_steps("pct_start", pct_start)
        self.anneal_strategy = one_of(*self.SHAPES)("anneal_strategy", anneal_strategy)
        self.div_factor = positive_steps("div_factor", div_factor)
        self.final_div_factor = positive_steps("final_div_factor", final_div_factor)
        self.three_phase = boolean("three_phase", three_phase)
        self.name = name
        most = 0.5 if self.three_phase else 1.0
        if self.pct_start > most or (most == self.pct_start == 1.0) or self.pct_start * self.total_steps <= 1:
            raise HyperparameterError(
                f"pct_start must be less than 1, at most 0.5 with three_phase, and leave more than one step to go up:"
                f" got {pct_start!r} of {total_steps!r} steps"
            )

    def formula(self, xp: Any, step: Any) -> Any:
        shape, top = self.SHAPES[self.anneal_strategy], self.max_learning_rate
        first, up = top / self.div_factor, self.pct_start * self.total_steps
        last, end = first / self.final_div_factor, self.total_steps - 1
        phases = [(up - 1, first, top, shape)]
        if self.three_phase:
            phases += [(2 * up - 2, top, first, shape), (end, first, last, shape)]
        else:
            phases += [(end, top, last, shape)]
        return _phases(xp, step, 0.0, phases)


class WarmupStableDecay(Computed):
    """WSD: a line up, a plateau, and a decay at the end (Hu et al., "MiniCPM", 2024, arXiv:2404.06395, section 4).

    With a plateau, you can decay from any of its steps, and later continue from the state before the decay. The rate
    stays at `end_learning_rate` after the decay.

    Args:
      learning_rate: that of the plateau, > 0.
      warmup_steps: number of steps of the line from `initial_learning_rate`, >= 0.
      stable_steps: number of steps of the plateau, >= 0.
      decay_steps: number of steps of the decay, > 0.
      end_learning_rate: the rate at the end of the decay, >= 0; for `"exponential"` > 0.
      decay: its shape. `"linear"`; `"cosine"`; `"sqrt"`, 1 − √part (Hägele et al., 2024, arXiv:2405.18392); or
        `"exponential"`, the paper's, with `end_learning_rate` = learning_rate · 0.5^(decay_steps / half_life).
      initial_learning_rate: the rate of the first step, >= 0.
      name: any.

    Raises:
      HyperparameterError: an argument is out of range.

    Example:
      >>> rate = optim.schedules.WarmupStableDecay(0.1, warmup_steps=10, stable_steps=80, decay_steps=10)
      >>> [round(rate.at(step), 3) for step in (0, 5, 10, 90, 95, 100)]
      [0.0, 0.05, 0.1, 0.1, 0.05, 0.0]
    """

    SHAPES: Mapping[str, Shape] = {"linear": _line, "cosine": _half_cosine, "sqrt": _root, "exponential": _power}

    def __init__(
        self,
        learning_rate: float,
        warmup_steps: float,
        stable_steps: float,
        decay_steps: float,
        end_learning_rate: float = 0.0,
        decay: str = "linear",
        initial_learning_rate: float = 0.0,
        name: str = "WarmupStableDecay",
    ):
        self.learning_rate = positive_steps("learning_rate", learning_rate)
        self.warmup_steps = _not_negative("warmup_steps", warmup_steps)
        self.stable_steps = _not_negative("stable_steps", stable_steps)
        self.decay_steps = positive_steps("decay_steps", decay_steps)
        self.end_learning_rate = _not_negative("end_learning_rate", end_learning_rate)
        self.decay = one_of(*self.SHAPES)("decay", decay)
        self.initial_learning_rate = _not_negative("initial_learning_rate", initial_learning_rate)
        self.name = name
        if self.decay == "exponential" and not self.end_learning_rate:
            raise HyperparameterError('end_learning_rate must be > 0 with decay="exponential", which never reaches 0')

    def formula(self, xp: Any, step: Any) -> Any:
        top, warm, flat = self.learning_rate, self.warmup_steps, self.warmup_steps + self.stable_steps
        phases: list[tuple[float, float, float, Shape]] = (
            [(warm, self.initial_learning_rate, top, _line)] if warm else []
        )
        phases += [
            (flat, top, top, _line),
            (flat + self.decay_steps, top, self.end_learning_rate, self.SHAPES[self.decay]),
        ]
        return _phases(xp, step, 0.0, phases)


KNOWN.update({cls.__name__: cls for cls in (LinearWarmup, OneCycle, WarmupStableDecay)})
