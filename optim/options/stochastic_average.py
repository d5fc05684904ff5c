"""Stochastic weight averaging: the plain mean of what the variables are at every so many steps, once training is late.

Izmailov, Podoprikhin, Garipov, Vetrov & Wilson, "Averaging Weights Leads to Wider Optima and Better Generalization"
(2018, arXiv:1803.05407), algorithm 1; as `tfa.optimizers.SWA` of TensorFlow Addons 0.19, whose arguments have the same
names. The mean is the slot `average`, used as that of `use_ema` is (`optim/options/averages.py`). A variable that has
no gradient in such a step keeps its mean, which then counts as one more of it, as there.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any

from optim.arguments import count
from optim.errors import HyperparameterError


@dataclass(frozen=True)
class StochasticAverage:
    """When the variables join their mean.

    Attributes:
      start_averaging: after how many steps the mean begins: with what the next step makes of the variables. >= 0.
      average_period: they join at that step, and at every so many after it. >= 1.

    Raises:
      HyperparameterError: out of range.
    """

    start_averaging: int = 0
    average_period: int = 10

    def __post_init__(self) -> None:
        object.__setattr__(self, "average_period", count("average_period", self.average_period))
        start = self.start_averaging
        if isinstance(start, bool) or not isinstance(start, Integral) or start < 0:
            raise HyperparameterError(f"start_averaging must be an integer >= 0, got {start!r}")
        object.__setattr__(self, "start_averaging", int(start))

    def momentum(self, xp: Any, iterations: Any) -> Any:
        """μ of average ← μ·average + (1 − μ)·variable in the step after `iterations` steps.

        n/(n + 1) where the variables join n others, 1 where they do not; a float, or a float64 tensor of `xp` for one.
        """
        since = iterations - self.start_averaging
        if isinstance(since, int):
            number, rest = divmod(since, self.average_period)
            return number / (number + 1) if since >= 0 and rest == 0 else 1.0
        number = xp.cast(since // self.average_period, "float64")
        joins = xp.logical_and(since >= 0, xp.equal(since % self.average_period, 0))
        one = xp.ones_like(number)
        return xp.where(joins, number / (xp.maximum(number, 0.0) + 1.0), one)
