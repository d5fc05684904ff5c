"""Fit the hyperparameters of a rule to an update: find numbers of the graph that give the same new values.

Rule and graph are compared in float64 at probe points over many decades, of both signs, some of them 0.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice, product
from typing import Any

import numpy as np

from migrate.graphs.evaluate import UnknownError, evaluate, trace
from migrate.graphs.updates import Update
from optim import rules
from optim.arguments import Choice
from optim.errors import DtoptError
from optim.rule import VARIABLE, Rule, arguments, hyperparameters

RATE, CHANGE, DECAY = "learning_rate", "change", "weight_decay"
_SEEDS, _POINTS = 3, 160
_COUNTS = np.array([[2.0], [13.0], [1009.0]])
"""Values of counters at the probe points."""
_EXPONENTS = np.array([[1.0], [3.0], [6.0]])
"""Exponents of powers stored in variables."""
_NEAR = 1e-6
"""Relative difference of equal numbers: a graph stores constants in float32."""
_MOST_SCALARS, _MOST_COMBINATIONS = 120, 16_000
_AT_ONCE = 512
"""Combinations of hyperparameters that are evaluated together."""


@dataclass(frozen=True)
class Scalar:
    """The place of a hyperparameter in the graph.

    Attributes:
      output: the node; empty for a number that isn't in the graph, such as the epsilon of a rule without one.
      number: its value if it is a constant, None for others.
      is_derived: the hyperparameter is 1 minus that output, or a constant with the other sign.
    """

    output: str
    number: float | None = None
    is_derived: bool = False


@dataclass
class Probe:
    """Values at the probe points: arrays of shape (seeds, points), numbers of shape (seeds, 1)."""

    arrays: dict[str, np.ndarray]
    gradient: np.ndarray
    new: dict[str, np.ndarray]
    scalars: list[tuple[Scalar, np.ndarray]]
    steps: list[tuple[tuple[str, float], np.ndarray]]
    later: dict[str, np.ndarray]
    """Numbers stored in variables after the step, by the node of the number before it."""
    factors: dict[str, np.ndarray]
    """The factors by which each step multiplies numbers in variables, if it changes them in no other way."""
    sizes: dict[str, int]
    """How many nodes a number of the graph depends on."""


def probe_of(update: Update, cut: tuple[str, ...]) -> Probe | None:
    """Evaluate an update whose gradient is `cut`, None unless everything is known."""
    rng = np.random.default_rng(7)
    arrays = {name: _spread(rng, (-24, 26)) for name in update.slots}
    arrays[update.variable] = _spread(rng, (-12, 6), zeros=0.5)
    gradient = _spread(rng, (-12, 13))
    numbers: dict[str, np.ndarray] = {}
    for output, inputs in update.traced.items():
        if not inputs and output not in update.leaves and output not in arrays and update.nodes.op(output) != "Const":
            numbers[output] = _COUNTS if output in update.counters else rng.uniform(0.15, 0.9, (_SEEDS, 1))
    factors, later = _changing(update, numbers)
    powers = {name: factor**_EXPONENTS for name, factor in factors.items()}
    values = evaluate(update.nodes, update.traced, {**arrays, **numbers, **powers, **dict.fromkeys(cut, gradient)})
    if any(end not in values for end in update.ends.values()):
        return None
    new = {name: np.broadcast_to(values[end], gradient.shape) for name, end in update.ends.items()}
    scalars = _scalars(update, values)
    steps = [((counter, offset), _COUNTS + offset) for counter in update.counters for offset in (1.0, 0.0)]
    steps += [(("", offset), _EXPONENTS + offset) for offset in (0.0, 1.0) if powers]
    sizes = {name: len(_cone(update.traced, name)) for scalar, _ in scalars if (name := scalar.output)}
    changed = {s.output: later[source] for s, _ in scalars if (source := update.nodes.source(s.output)) in later}
    return Probe(arrays, gradient, new, scalars, steps, changed, factors, sizes)


def _changing(update: Update, numbers: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Numbers in variables: the factors of those that each step multiplies, and the new values of all that change."""
    traced, factors = {}, {}
    for name in [name for name in numbers if name in update.nodes.variables and len(update.writes.get(name, ())) == 1]:
        end = update.writes[name][0].op
        traced[name] = end, trace(update.nodes, [end], update.is_gradient, update.writes)
        one, two = (
            evaluate(update.nodes, traced[name][1], {**numbers, name: start}).get(end, np.array(np.nan)) / start
            for start in (numbers[name], numbers[name] / 2)
        )
        if np.allclose(one, two, rtol=1e-9) and np.all((one > 0) & (one < 1)):
            factors[name] = np.broadcast_to(one, (_SEEDS, 1))
    powers = {name: factor**_EXPONENTS for name, factor in factors.items()}
    later = {name: evaluate(update.nodes, cone, {**numbers, **powers}).get(end) for name, (end, cone) in traced.items()}
    return factors, {name: np.broadcast_to(value, (_SEEDS, 1)) for name, value in later.items() if value is not None}


def _spread(rng: np.random.Generator, decades: tuple[int, int], zeros: float = 0.2) -> np.ndarray:
    size = (_SEEDS, _POINTS)
    numbers = 10.0 ** rng.uniform(*decades, size) * rng.choice([-1.0, 1.0, 1.0], size)
    return np.where(rng.uniform(size=size) < zeros, 0.0, numbers)


def _scalars(update: Update, values: Mapping[str, np.ndarray]) -> list[tuple[Scalar, np.ndarray]]:
    """The numbers of the graph, the most direct inputs of the update first; then 1 minus each, 0 and 1."""
    scalars: list[tuple[Scalar, np.ndarray]] = []
    for output in reversed(update.traced):
        if (
            output in update.others
            or output in update.dependents
            or output not in values
            or values[output].dtype == bool
        ):
            continue
        value = np.broadcast_to(values[output], (_SEEDS, 1))
        if np.all(np.isfinite(value)) and not any(np.array_equal(value, other) for _, other in scalars):
            starts = (update.nodes.op(start) for start in _cone(update.traced, output) if not update.traced[start])
            number = float(value[0, 0]) if set(starts) == {"Const"} else None
            scalars.append((Scalar(output, number), value))
    if len(scalars) > _MOST_SCALARS:
        raise UnknownError(update.variable)
    candidates = [(Scalar(s.output, None if s.number is None else 1 - s.number, True), 1 - v) for s, v in scalars]
    candidates += [(Scalar(s.output, -s.number, True), -v) for s, v in scalars if s.number is not None and s.number < 0]
    candidates += [(Scalar("", number), np.full((_SEEDS, 1), number)) for number in (0.0, 1.0)]
    for scalar, value in candidates:
        if not any(np.allclose(value, other, rtol=1e-9, atol=0) for _, other in scalars):
            scalars.append((scalar, value))
    return scalars


def _cone(traced: Mapping[str, Sequence[str]], output: str) -> set[str]:
    seen, todo = set[str](), [output]
    while todo:
        if (name := todo.pop()) not in seen:
            seen.add(name)
            todo += traced[name]
    return seen


@cache
def variants(slots: int) -> tuple[Rule, ...]:
    """All rules with this many slots of the variable's shape, for each set of structural choices."""
    candidates: dict[Rule, None] = {}
    for kind in rules.every():
        choices = {name: argument for name, argument in arguments(kind).items() if isinstance(argument, Choice)}
        options = {name: _options(name, choice) for name, choice in choices.items()}
        for values in product(*options.values()):
            for number in (0.5, 0.0):
                hyper = dict.fromkeys((RATE, *hyperparameters(kind)), number)
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        rule = kind.from_arguments(dict(zip(options, values, strict=True)), hyper)
                except DtoptError:
                    continue
                if rule.elementwise and len(rule.slots) == slots and {s.like for s in rule.slots} <= {VARIABLE}:
                    candidates[rule] = None
    return tuple(candidates)


def _options(name: str, choice: Choice) -> tuple[Any, ...]:
    """Values of a choice that change formulas. Powers in float32 change only the rounding."""
    if choice.default is None:
        return (None, True) if _takes(choice, name, True) else (None,)
    is_flag = isinstance(choice.default, bool) and not _takes(choice, name, "multiplied")
    return (False, True) if is_flag else (choice.default,)


def _takes(choice: Choice, name: str, value: Any) -> bool:
    try:
        return choice.check(name, value) == value
    except DtoptError:
        return False


class Fit:
    """Search for the hyperparameters with which a rule computes the same as a graph."""

    def __init__(self, rule: Rule, slots: Mapping[str, str], variable: str, probe: Probe) -> None:
        self._rule, self._probe = rule, probe
        self._old = {name: probe.arrays[slot] for name, slot in slots.items()}
        self._start = probe.arrays[variable]
        self._want = {name: probe.new[slot] for name, slot in slots.items()}
        self._want[CHANGE] = probe.new[variable] - self._start
        self._margin = {name: 1e-14 * np.abs(old) for name, old in (*self._old.items(), (CHANGE, self._start))}
        self._valid = self._possible()
        self._names = (RATE, *hyperparameters(type(rule)), *rule.scalars)
        self._fits_slots = False
        """Whether only the change of the variable is left to fit."""

    def _possible(self) -> np.ndarray:
        """Select the points with values that slots can have: a mean of squares is at least the square of the mean, and
        graphs compute roots of the difference."""
        possible = np.ones(self._start.shape, bool)
        undefined = np.any([np.isnan(values) for values in self._want.values()], axis=0)
        for square in [slot for slot in self._rule.slots if slot.nonnegative]:
            possible &= self._old[square.name] >= 0
            for mean in self._old.keys() - {square.name}:
                possible &= ~undefined | (self._want[square.name] >= np.square(self._want[mean]))
        return possible

    def solved(self) -> tuple[dict[str, Scalar], tuple[str, float] | None, str] | None:
        for step, number in self._steps() if self._valid.sum() >= _POINTS // 2 else ():
            solution = self._solve({}, list(self._names), number)
            if solution is not None:
                hyper, decays = solution
                return hyper, step, decays
            if not self._fits_slots:
                return None
        return None

    def _steps(self) -> Iterator[tuple[tuple[str, float] | None, np.ndarray]]:
        base = {name: np.full((_SEEDS, 1), 0.37) for name in self._names}
        one, two = (self._outputs(base, np.full((_SEEDS, 1), count)) for count in (2.0, 5.0))
        if one is None or two is None or any(np.any(self._moves_alone(name, result)) for name, result in one.items()):
            return
        if all(np.array_equal(one[name], two[name], equal_nan=True) for name in one):
            yield None, np.ones((_SEEDS, 1))
        else:
            yield from self._probe.steps

    def _moves_alone(self, name: str, result: np.ndarray) -> np.ndarray:
        exact = self._start == 0 if name == CHANGE else True
        return exact & self._valid & (result == 0) & (self._want[name] != 0)

    def _outputs(self, hyper: Mapping[str, np.ndarray], step: np.ndarray) -> dict[str, np.ndarray] | None:
        """Evaluate the rule. Hyperparameters may have a leading dim of candidates."""
        rule, probe = self._rule, self._probe
        try:
            with np.errstate(all="ignore"):
                c = rule.coefficients(np, {**hyper, "base_learning_rate": hyper[RATE]}, step)
                change, slots = rule.update(np, self._start, probe.gradient, dict(self._old), c)
        except (DtoptError, ArithmeticError, AttributeError, TypeError, ValueError, KeyError, NotImplementedError):
            return None
        return {**slots, CHANGE: change}

    def _close(self, name: str, result: np.ndarray) -> np.ndarray:
        want = self._want[name]
        with np.errstate(all="ignore"):
            near = np.abs(result - want) <= _NEAR * np.abs(want) + self._margin[name]
        return np.where(np.isfinite(want), near, (result == want) | (np.isnan(result) & np.isnan(want)))

    def _solve(
        self, places: dict[str, int], unknown: list[str], step: np.ndarray
    ) -> tuple[dict[str, Scalar], str] | None:
        """Fit one hyperparameter after another, at the points that depend on it alone or on few others."""
        base = self._hyper(places, unknown)
        outputs = self._outputs(base, step)
        if outputs is None:
            return None
        depends = {name: self._dependence(outputs, base, name, step) for name in unknown}
        unknown = [name for name in unknown if any(points.any() for points in depends[name].values())]
        if not unknown:
            return self._checked(places, outputs, step)
        names, place, points = self._least(depends, unknown)
        self._fits_slots |= place == CHANGE
        for combination in self._fitting(base, names, place, points, step)[:3]:
            rest = [name for name in unknown if name not in names]
            solution = self._solve({**places, **dict(zip(names, combination, strict=True))}, rest, step)
            if solution is not None:
                return solution
        return None

    def _hyper(self, places: Mapping[str, int], unknown: Sequence[str]) -> dict[str, np.ndarray]:
        base = {name: np.full((_SEEDS, 1), 0.37) for name in self._names}
        return base | {name: self._probe.scalars[place][1] for name, place in places.items()}

    def _dependence(
        self, outputs: Mapping[str, np.ndarray], base: Mapping[str, np.ndarray], name: str, step: np.ndarray
    ) -> dict[str, np.ndarray]:
        """The points of each output that depend on a hyperparameter; for the change, only those without weight
        decay."""
        points = {key: np.zeros(self._valid.shape, bool) for key in outputs}
        for value in (0.61, 1e-3):
            other = self._outputs({**base, name: np.full((_SEEDS, 1), value)}, step)
            for key in points if other is not None else ():
                with np.errstate(all="ignore"):
                    near = np.abs(other[key] - outputs[key]) <= 1e-12 * np.abs(outputs[key])  # type: ignore[index]
                points[key] |= ~near & np.isfinite(other[key]) & self._valid  # type: ignore[index]
        points[CHANGE] &= self._start == 0
        return points

    def _least(
        self, depends: Mapping[str, Mapping[str, np.ndarray]], unknown: Sequence[str]
    ) -> tuple[tuple[str, ...], str, np.ndarray]:
        """The smallest set of hyperparameters that some points of an output depend on, and these points."""
        best: tuple[tuple[str, ...], str, np.ndarray] | None = None
        for key in (*self._old, CHANGE):
            codes = sum(depends[name][key].astype(int) << i for i, name in enumerate(unknown))
            for code in set(np.ravel(codes)) - {0}:
                names = tuple(name for i, name in enumerate(unknown) if code >> i & 1)
                if best is None or len(names) < len(best[0]):
                    best = names, key, codes == code
        assert best is not None
        return best

    def _fitting(
        self, base: Mapping[str, np.ndarray], names: tuple[str, ...], key: str, points: np.ndarray, step: np.ndarray
    ) -> list[tuple[int, ...]]:
        """The numbers of the graph, by place, that reproduce its values at these points."""
        scalars, scanned = self._probe.scalars, names
        is_linear = RATE in names and len(names) > 1 and self._is_linear(base, key, step)
        if is_linear:
            scanned = tuple(name for name in names if name != RATE)
        if len(scalars) ** len(scanned) > _MOST_COMBINATIONS:
            return []
        values = np.stack([value for _, value in scalars])
        fits: list[tuple[int, ...]] = []
        every = product(range(len(scalars)), repeat=len(scanned))
        while combinations := list(islice(every, _AT_ONCE)):
            hyper = dict(base) | ({RATE: np.ones((_SEEDS, 1))} if is_linear else {})
            hyper |= {name: values[[combination[i] for combination in combinations]] for i, name in enumerate(scanned)}
            outputs = self._outputs(hyper, step)
            if outputs is None:
                return []
            results = np.broadcast_to(outputs[key], (len(combinations), *points.shape))
            if is_linear:
                fits += self._with_rate(combinations, results, names, key, points)
            else:
                good = np.all(self._close(key, results) | ~points, axis=(1, 2))
                fits += [combinations[i] for i in np.flatnonzero(good)]
        return fits

    def _is_linear(self, base: Mapping[str, np.ndarray], key: str, step: np.ndarray) -> bool:
        one, two = (self._outputs({**base, RATE: np.full((_SEEDS, 1), rate)}, step) for rate in (1.0, 2.0))
        return one is not None and two is not None and np.allclose(2 * one[key], two[key], rtol=1e-12, equal_nan=True)

    def _with_rate(
        self,
        combinations: list[tuple[int, ...]],
        results: np.ndarray,
        names: tuple[str, ...],
        key: str,
        points: np.ndarray,
    ) -> list[tuple[int, ...]]:
        fits = []
        place = names.index(RATE)
        with np.errstate(all="ignore"):
            factors = self._want[key] / results
            counts = points & np.isfinite(factors) & (self._margin[key] <= _NEAR * np.abs(self._want[key]))
            least = np.min(factors, axis=2, initial=np.inf, where=counts)
            most = np.max(factors, axis=2, initial=-np.inf, where=counts)
            even = np.all((most - least <= 4 * _NEAR * np.abs(most)) & np.any(counts, axis=2), axis=1)
        for i in np.flatnonzero(even):
            for j, (_, value) in enumerate(self._probe.scalars):
                if np.all(np.abs(value[:, 0] - most[i]) <= 4 * _NEAR * np.abs(most[i])):
                    whole = list(combinations[i])
                    whole.insert(place, j)
                    fits.append(tuple(whole))
        return fits

    def _checked(
        self, places: Mapping[str, int], outputs: Mapping[str, np.ndarray], step: np.ndarray
    ) -> tuple[dict[str, Scalar], str] | None:
        """The hyperparameters, if all outputs are right at all points; weights may decay first."""
        if not self._keeps_scalars(places, step):
            return None
        hyper = {name: self._probe.scalars[places[name]][0] for name in self._names if name in places}
        good = {name: np.all(self._close(name, outputs[name]) | ~self._valid) for name in self._want}
        if all(good.values()):
            return hyper, ""
        if not all(good[name] for name in self._old):
            return None
        rate = self._probe.scalars[places[RATE]][1] if RATE in places else None
        for scalar, value in self._probe.scalars:
            for decays, amount in (("rate", None if rate is None else rate * value), ("step", value)):
                if (
                    amount is not None
                    and np.any(amount)
                    and np.all(self._close(CHANGE, outputs[CHANGE] - amount * self._start) | ~self._valid)
                ):
                    return {**hyper, DECAY: scalar}, decays
        return None

    def _keeps_scalars(self, places: Mapping[str, int], step: np.ndarray) -> bool:
        if not self._rule.scalars:
            return True
        hyper = self._hyper(places, ())
        c = self._rule.coefficients(np, {**hyper, "base_learning_rate": hyper[RATE]}, step)
        for name in self._rule.scalars:
            later = self._probe.later.get(self._probe.scalars[places[name]][0].output) if name in places else None
            if later is None or not np.allclose(c[name], later, rtol=_NEAR, atol=0):
                return False
        return True
