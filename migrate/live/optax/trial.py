"""Test whether an optax transformation steps as the source would: run both in float64 on generated numbers.

The hyperparameters of a transformation are hidden in functions, so only its steps show them. They are compared with
those of `optim` where they differ most: with gradients of many sizes (epsilon, clipping), at step counts up to the
limit of int32 (schedules), on random slots and variables with the real names (weight decay and its exclusions), and for
several steps in a row (accumulated state). Dims are the leaf's, cut to CUT.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from migrate.algorithms import rates
from migrate.live.mapped import Target
from migrate.live.optax import sizes
from migrate.live.optax.sides import CUT, STEPS, Arrays, Numbers, Part, Slots, Source, Transformation
from migrate.live.optax.trees import Optax
from migrate.rules import comparison

SIZES = {
    1e-9: "which shows epsilon",
    1e-6: "which shows epsilon",
    1e-3: "which shows epsilon",
    1e3: "which shows clipping",
    1e6: "which shows clipping",
}
"""Unusual sizes of gradients -> the cause of a difference there."""
SMALL = 1e-6
"""Size of gradients for usual variables."""
LAST = 2**31 - 1 - STEPS
CLOSE, ROUNDED = 1e-6, 2e-7
"""Relative to the step, and to the largest step of the same numbers: optax computes schedules in float32."""
MOMENTA = {"SGD": "m", "RMSprop": "momentum"}
"""The slot of steps or gradients, whichever a transformation stores."""


@dataclass
class Outcome:
    """`factors`: (slot, variable) -> multiply its numbers by this. `reasons`: why steps differ from the source's.
    `is_other`: whether even usual steps differ."""

    factors: dict[tuple[str, str], float] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    is_other: bool = False


def tried(parts: Sequence[Part], training: Optax, fresh: Sequence[Target]) -> Outcome:
    """Compare the next steps of source and transformation.

    Args:
      parts: states of the source with their parameters. fresh: parameters that the source does not have.

    Raises:
      UnsupportedError: the transformation cannot be called with gradients, state and parameters alone.
    """
    import jax
    import jax.experimental

    enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64  # before JAX 0.8
    stored = [(state, [*targets, *(fresh if n == 0 else ())]) for n, (state, targets) in enumerate(parts)]
    plain = [(replace(s, hyperparameters=comparison.as_written(s.hyperparameters)), targets) for s, targets in stored]
    is_same = all(a.hyperparameters == b.hyperparameters for (a, _), (b, _) in zip(plain, stored, strict=True))
    outcomes: list[Outcome] = []
    with enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for candidate in (plain, stored):  # 0.9, and the 0.8999999762 that a release with float32 computes
            outcomes.append(_Trial(candidate, training).outcome())
            if not outcomes[-1].reasons or is_same:
                break
    best = min(outcomes, key=lambda outcome: (outcome.is_other, len(outcome.reasons)))
    if sizes.differs(training.tx, training.params, CUT):
        best.reasons.append(f"its operations depend on the size of variables, and it was tested with dims up to {CUT}")
    return best


class _Trial:
    def __init__(self, parts: Sequence[Part], training: Optax):
        self._count = parts[0][0].iterations
        self._ours = [Source(state, targets) for state, targets in parts]
        for source in self._ours:
            source.all_frozen = {name for other in self._ours for name in other.frozen}
        self._theirs = Transformation(training, parts)
        self._random = np.random.default_rng(zlib.crc32(b"optax"))
        self._factors: dict[tuple[str, str], float] = {}

    def outcome(self) -> Outcome:
        count = self._count
        usual = self._drawn(1.0)
        result = Outcome(self._factors)
        for source in self._ours:
            self._compare_momenta(source, usual, result)
        difference = self._difference(usual, count)
        if difference:
            result.reasons.append(f"its next steps are not the source's: {difference}")
            result.is_other = True
            return result
        for size, why in SIZES.items():
            difference = (
                "" if any(why in reason for reason in result.reasons) else self._difference(self._drawn(size), count)
            )
            if difference:
                result.reasons.append(
                    f"with gradients of about {size:g}, {why}, its steps are not the source's: {difference}"
                )
        small = replace(self._drawn(SMALL), start=usual.start)
        difference = "" if result.reasons else self._difference(small, count)
        if difference:
            result.reasons.append(
                f"with gradients of about {SMALL:g} and usual variables, which shows weight decay, its steps are not"
                f" the source's: {difference}"
            )
        largest = self._steps(usual, count)[0]
        for later in sorted({later for source in self._ours for later in _counts(count, source.rate)}):
            difference = self._difference(usual, later, largest)
            if difference:
                result.reasons.append(
                    f"{later} steps on, which shows the schedule, it is not the source's: {difference}"
                )
                break
        return result

    def _compare_momenta(self, source: Source, usual: Numbers, result: Outcome) -> None:
        """Find the factor of a momentum, which may contain the learning rate on one side."""
        if source.left_out:
            result.reasons.append(f"{', '.join(source.left_out)} of the source: not tested")
        slot = MOMENTA.get(source.algorithm, "")
        names = [name for name in usual.slots.get(slot, ()) if name in source.names]
        if not names:
            return
        factor = self._factor(source, slot, names, usual)
        result.factors |= {(slot, name): factor for name in names}
        if abs(factor) != 1.0 and source.changes:
            result.reasons.append(
                f"slot {slot}: the learning rate is inside the slot on one side and outside on the other, and"
                " changes from step to step, so that no factor is exact"
            )

    def _drawn(self, size: float) -> Numbers:
        """Draw realistic numbers for gradients of that size; variables are at most 1."""
        drawn = [source.drawn(self._random, size) for source in self._ours]
        slots: Slots = {}
        for slot, per in ((slot, per) for numbers in drawn for slot, per in numbers.slots.items()):
            slots.setdefault(slot, {}).update(per)
        start = {name: array for numbers in drawn for name, array in numbers.start.items()}
        return Numbers(start, slots, _merged([numbers.gradients for numbers in drawn]))

    def _steps(self, numbers: Numbers, count: int) -> list[Arrays]:
        """The source's changes of the variables in each of several steps, after `count` steps."""
        return _merged([source.steps(numbers, count) for source in self._ours])

    def _difference(self, numbers: Numbers, count: int, also: Arrays | None = None) -> str:
        """Describe the difference between the two steps; empty if they are the same.

        Args:
          also: another possible step for these numbers, whose size also limits rounding.
        """
        ours = self._steps(numbers, count)
        theirs = self._theirs.steps(self._scaled(numbers), count)
        for number, (have, get) in enumerate(zip(ours, theirs, strict=True), 1):
            for name in have:
                far = np.abs(get[name] - have[name])
                least = max(_largest(have[name]), _largest(also[name]) if also else 0.0)
                if not np.all(far <= CLOSE * np.abs(have[name]) + ROUNDED * least):
                    return _described(name, number, have[name], get[name])
        return ""

    def _scaled(self, numbers: Numbers) -> Numbers:
        slots = {s: {n: a * self._factors.get((s, n), 1.0) for n, a in per.items()} for s, per in numbers.slots.items()}
        return replace(numbers, slots=slots)

    def _factor(self, source: Source, slot: str, names: Sequence[str], numbers: Numbers) -> float:
        """The factor of a slot's numbers there: with or without the learning rate, added or subtracted.

        Without a gradient only the slot changes a variable; the size shows which possible factor applies.
        """
        name = next((n for n in names if n not in source.frozen), "")
        if not name:
            return 1.0
        full = replace(numbers, gradients=[_zeros(numbers.start)])
        empty = replace(full, slots={**numbers.slots, slot: _zeros(numbers.slots[slot])})
        moved = []
        for steps in (self._steps, self._theirs.steps):
            difference = steps(full, self._count)[0][name] - steps(empty, self._count)[0][name]
            moved.append(float(np.vdot(difference, numbers.slots[slot][name])))
        if not all(moved):
            return 1.0
        wanted, rate = moved[0] / moved[1], abs(source.rate_at(self._count)) or 1.0
        nearest = min((1.0, rate, 1.0 / rate), key=lambda factor: abs(np.log(factor / abs(wanted))))
        return float(nearest * np.sign(wanted))


def _merged(sides: Sequence[list[Arrays]]) -> list[Arrays]:
    """Join the arrays of several parts, step by step."""
    return [{name: a for arrays in step for name, a in arrays.items()} for step in zip(*sides, strict=True)]


def _zeros(arrays: Arrays) -> Arrays:
    return {name: np.zeros_like(array) for name, array in arrays.items()}


def _largest(array: np.ndarray) -> float:
    return float(np.abs(array).max(initial=0.0))


def _described(name: str, number: int, have: np.ndarray, get: np.ndarray) -> str:
    size, off = float(np.linalg.norm(have)), float(np.linalg.norm(get - have))
    ratio = float(np.vdot(have, get)) / size**2 if size else 0.0
    if size and np.linalg.norm(get - ratio * have) < 0.01 * off:
        return f"step {number} of {name} is {round(ratio, 9) + 0.0:.7g} times as large"
    if not size:
        return f"step {number} changes {name}, and the source does not"
    return f"step {number} of {name} is {off / size:.2g} of its size away"


def _counts(count: int, rate: Any) -> list[int]:
    """Step counts after one, densest at the start and where a schedule may change."""
    config = rate.get("config", {}) if isinstance(rate, Mapping) else {}
    turns = [*(config.get("boundaries") or ()), *(config.get(key) for key in ("decay_steps", "first_decay_steps"))]
    turns += rates.ends_of_phases(rate)
    turns += [inputs[1] for op, *inputs in config.get("operations", ()) if op == "Const" and np.ndim(inputs[1]) == 0]
    near = [int(turn) + i for turn in turns if isinstance(turn, (int, float)) for i in (-1, 0, 1)]
    wanted = {*near, *(count + 2**power + i for power in range(31) for i in (0, 1))}
    return sorted(n for n in wanted if count < n <= LAST)
