"""Convert slots between rules that differ in ways that an exact change of the numbers compensates.

- SGD and RMSprop: the learning rate inside or outside the momentum, a factor while the rate is constant.
- Ftrl: `linear` multiplied by the learning rate or not, the same.
- Adagrad: an epsilon inside the root or no epsilon, an offset of the accumulator: √(a + ε) = √((a + ε − ε′) + ε′).
- Nadam's product of momenta follows from the number of steps, for any schedule.

Formulas: `optim/rules`; factors after `tensorflow/python/training/momentum.py` 1.15 and `optimizer_experimental` 2.9.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from migrate.algorithms import nadam
from migrate.rules import comparison
from migrate.rules.comparison import Differences, Rule
from optim.errors import UnsupportedError

Change = Callable[[np.ndarray], np.ndarray]
"""A function from float64 numbers of a slot to float64 numbers."""


@dataclass
class Plan:
    """`changes` by slot; `left`: differences that no change compensates; `reasons` why some are not exact."""

    left: Differences
    changes: dict[str, Change] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def plan(source: Rule, live: Rule, differences: Differences, iterations: int, slots: frozenset[str]) -> Plan:
    """Plan how to convert the slots of `source` so that `live` continues as `source` would.

    Args:
      differences: the result of `comparison.compare`. iterations: steps made. slots: names of the source's slots.

    Raises:
      UnsupportedError: a necessary change cannot be computed.
    """
    plan = Plan(dict(differences))
    _momentum(plan, source, live, iterations, slots)
    _linear(plan, source, live, iterations, slots)
    _accumulator(plan, source, live, slots)
    if "epsilon_inside" in plan.left:
        _say_epsilon(plan, source)
    return plan


def _momentum(plan: Plan, source: Rule, live: Rule, iterations: int, slots: frozenset[str]) -> None:
    slot, sign = comparison.MOMENTA.get(source.algorithm, ("", 0.0))
    if "learning_rate_in_momentum" not in plan.left or slot not in slots:
        return
    inside, _ = plan.left.pop("learning_rate_in_momentum")
    _scale(plan, slot, sign, bool(inside), source, live, iterations)


def _linear(plan: Plan, source: Rule, live: Rule, iterations: int, slots: frozenset[str]) -> None:
    if "learning_rate_in_linear" in plan.left and "linear" in slots:
        inside, _ = plan.left.pop("learning_rate_in_linear")
        _scale(plan, "linear", 1.0, bool(inside), source, live, iterations)


def _scale(plan: Plan, slot: str, sign: float, inside: bool, source: Rule, live: Rule, iterations: int) -> None:
    """Remove the source's learning rate from a slot, or multiply by the live one."""
    rule = source if inside else live
    rate = comparison.rate_at(rule, iterations)
    if rate == 0.0:
        raise UnsupportedError(
            f"slot {slot} would have to be {'divided' if inside else 'multiplied'} by the learning rate, which is 0;"
            " restore into a class that stores it like the source"
        )
    factor = sign / rate if inside else sign * rate
    plan.changes[slot] = lambda values: values * factor
    where = (
        "inside the slot in the source and outside in the live class" if inside else "outside the slot in the source"
    )
    where += "" if inside else " and inside in the live class"
    plan.warnings.append(f"slot {slot}: the learning rate is {where}; its numbers are multiplied by {factor:.9g}")
    if not (comparison.is_constant(source) and comparison.is_constant(live)):
        plan.reasons.append(
            f"slot {slot}: the learning rate, which is {where}, changes from step to step, so no factor is exact;"
            f" that of step {iterations} is used"
        )


def _accumulator(plan: Plan, source: Rule, live: Rule, slots: frozenset[str]) -> None:
    """Convert Adagrad without epsilon to one with epsilon inside the root and an accumulator smaller by epsilon."""
    if source.algorithm != "Adagrad" or "epsilon" not in plan.left or "accumulator" not in slots:
        return
    have, get = (float(rule.values.get("epsilon") or 0.0) for rule in (source, live))
    inside = [rule.values.get("epsilon_inside") or not rule.values.get("epsilon") for rule in (source, live)]
    if not all(inside) or (have and get):
        return
    offset = have - get

    def change(values: np.ndarray) -> np.ndarray:
        moved = values + offset
        if np.any(moved < 0):
            raise UnsupportedError(
                f"the source's Adagrad has epsilon {have:.6g} and the live one {get:.6g}, which an accumulator as small"
                f" as {float(values.min()):.3g} cannot compensate; make the live optimizer with epsilon={have:.6g}"
            )
        return moved

    plan.changes["accumulator"] = change
    plan.left.pop("epsilon")
    plan.left.pop("epsilon_inside", None)
    plan.warnings.append(
        f"slot accumulator: epsilon is {have:.6g} in the source and {get:.6g}, inside the root, in the live optimizer;"
        f" {offset:.6g} is added to its numbers, which makes the same steps"
    )


def _say_epsilon(plan: Plan, source: Rule) -> None:
    """Report a different place of epsilon: no change of slots compensates it, but a better epsilon exists."""
    inside, _ = plan.left.pop("epsilon_inside")
    epsilon = float(source.values.get("epsilon") or 0.0)
    best = comparison.nearest_epsilon(epsilon, inside=bool(inside))
    places = ("inside", "outside") if inside else ("outside", "inside")
    plan.reasons.append(
        f"epsilon is {places[0]} the root in the source and {places[1]} in the live class, so steps differ if"
        f" gradients are small; epsilon={best:.3g} in the live optimizer comes closest"
    )


def momentum_product(source: Rule, live: Rule, scalars: Mapping[str, float], iterations: int) -> float:
    """Nadam's product for the live schedule: the stored one if the schedules are equal, else computed."""
    keys = ("beta_1", "schedule_decay")
    if nadam.PRODUCT in scalars and all(comparison.same(source.values.get(k), live.values.get(k)) for k in keys):
        return float(scalars[nadam.PRODUCT])
    return nadam.product(float(live.values["beta_1"]), float(live.values["schedule_decay"]), iterations)
