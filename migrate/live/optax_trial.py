"""Test whether an optax transformation steps as the source would: run both in float64 on generated numbers.

The hyperparameters of a transformation are hidden in functions, so only its steps show them. They are compared with
those of `optim` where they differ most: with gradients of many sizes (epsilon, clipping), at step counts up to the
limit of int32 (schedules), on random slots and variables with the real names (weight decay and its exclusions), and for
several steps in a row (accumulated state). Dims are the leaf's, cut to CUT.
"""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from migrate.algorithms import nadam, rates
from migrate.algorithms.clipping import LIMITS
from migrate.live import optax_sizes, optax_state, step_answers
from migrate.live.mapped import Target
from migrate.live.optax_state import FIELDS, KEPT, Leaf, Optax
from migrate.rules import comparison
from migrate.rules import step_factors as factors
from migrate.state import OptimizerState
from optim import rules
from optim.errors import UnsupportedError
from optim.options.adaptive_clipping import unit_axes
from optim.rule import arguments, made_from, slot_dims

CUT = 32
"""Largest dim of a trial."""
STEPS = 3
SIZES = {
    1e-9: "which shows epsilon",
    1e-6: "which shows epsilon",
    1e-3: "which shows epsilon",
    1e3: "which shows clipping",
    1e6: "which shows clipping",
}
"""Sizes of gradients, besides usual ones -> the cause of a difference there."""
SMALL = 1e-6
"""Size of gradients for usual variables."""
LAST = 2**31 - 1 - STEPS
CLOSE, ROUNDED = 1e-6, 2e-7
"""Relative to the step, and to the largest step of the same numbers: optax computes schedules in float32."""
APART = {
    "use_ema": "averages of the variables",
    "gradient_accumulation_steps": "accumulation of gradients",
    "lookahead": "Lookahead",
    "cautious": "cautious updates",
    "stochastic_average": "averages of the variables",
}
"""Options of a source that transformations here do not have."""
NOT_TRIED = {
    *APART,
    "ema_momentum",
    "ema_overwrite_frequency",
    "ema_start",
    "lazy_rows",
    "loss_scale",
    "float32_powers",
}
MOMENTA = {"SGD": "m", "RMSprop": "momentum"}
"""The slot of steps or gradients, whichever a transformation stores."""
TRIED = {
    "learning_rate",
    "decay",
    "weight_decay",
    "weight_decay_exclude",
    "clip_order",
    "adaptive_grad_clip",
    *comparison.ON,
    *LIMITS,
}
"""Options, other than the rule's own, that are tested."""
Arrays = dict[str, np.ndarray]
Slots = dict[str, Arrays]
"""Slot -> variable -> array."""


@dataclass(frozen=True)
class Numbers:
    """The data of a trial: variables by name, slots, and gradients of several steps in a row."""

    start: Arrays
    slots: Slots
    gradients: list[Arrays]


@dataclass
class Outcome:
    """`factors`: multiply each slot's numbers by these. `reasons`: why steps differ from the source's. `is_other`:
    whether even usual steps differ."""

    factors: dict[str, float] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    is_other: bool = False


def tried(state: OptimizerState, training: Optax, targets: Sequence[Target]) -> Outcome:
    """Compare the next steps of source and transformation.

    Raises:
      UnsupportedError: the transformation cannot be called with gradients, state and parameters alone.
    """
    import jax
    import jax.experimental

    enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64  # before JAX 0.8
    plain = replace(state, hyperparameters=comparison.as_written(state.hyperparameters))
    outcomes: list[Outcome] = []
    with enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each in (plain, state):  # 0.9, and the 0.8999999762 that a release with float32 computes
            outcomes.append(_Trial(each, training, targets).outcome())
            if not outcomes[-1].reasons or plain.hyperparameters == state.hyperparameters:
                break
    found = min(outcomes, key=lambda outcome: (outcome.is_other, len(outcome.reasons)))
    if optax_sizes.differs(training.tx, training.params, CUT):
        found.reasons.append(f"its operations depend on the size of variables, and it was tested with dims up to {CUT}")
    return found


class _Trial:
    def __init__(self, state: OptimizerState, training: Optax, targets: Sequence[Target]):
        self._state = state
        self._ours = _Source(state, targets)
        self._theirs = _Transformation(training, targets, FIELDS[state.algorithm])
        self._random = np.random.default_rng(zlib.crc32(b"optax"))
        self._factors: dict[str, float] = {}

    def outcome(self) -> Outcome:
        count, rate = self._state.iterations, self._ours.rate
        usual = self._drawn(1.0)
        result = Outcome()
        if self._ours.left_out:
            result.reasons.append(f"{', '.join(self._ours.left_out)} of the source: not tested")
        slot = MOMENTA.get(self._state.algorithm)
        if slot in usual.slots:
            self._factors[slot] = result.factors[slot] = self._factor(slot, usual, count)
            if abs(self._factors[slot]) != 1.0 and self._ours.changes:
                result.reasons.append(
                    f"slot {slot}: the learning rate is inside the slot on one side and outside on the other, and"
                    " changes from step to step, so that no factor is exact"
                )
        apart = self._apart(usual, count)
        if apart:
            result.reasons.append(f"its next steps are not the source's: {apart}")
            result.is_other = True
            return result
        for size, why in SIZES.items():
            apart = "" if any(why in reason for reason in result.reasons) else self._apart(self._drawn(size), count)
            if apart:
                result.reasons.append(
                    f"with gradients of about {size:g}, {why}, its steps are not the source's: {apart}"
                )
        small = replace(self._drawn(SMALL), start=usual.start)
        apart = "" if result.reasons else self._apart(small, count)
        if apart:
            result.reasons.append(
                f"with gradients of about {SMALL:g} and usual variables, which shows weight decay, its steps are not"
                f" the source's: {apart}"
            )
        largest = self._ours.steps(usual, count)[0]
        for later in _counts(count, rate):
            apart = self._apart(usual, later, largest)
            if apart:
                result.reasons.append(f"{later} steps on, which shows the schedule, it is not the source's: {apart}")
                break
        return result

    def _drawn(self, size: float) -> Numbers:
        return self._ours.drawn(self._random, size)

    def _apart(self, numbers: Numbers, count: int, also: Arrays | None = None) -> str:
        """Describe the difference between the two steps; empty if they are the same.

        Args:
          also: another possible step for these numbers, whose size also limits rounding.
        """
        ours = self._ours.steps(numbers, count)
        theirs = self._theirs.steps(self._scaled(numbers), count)
        for number, (have, get) in enumerate(zip(ours, theirs, strict=True), 1):
            for name in have:
                far = np.abs(get[name] - have[name])
                least = max(_largest(have[name]), _largest(also[name]) if also else 0.0)
                if not np.all(far <= CLOSE * np.abs(have[name]) + ROUNDED * least):
                    return _said(name, number, have[name], get[name])
        return ""

    def _scaled(self, numbers: Numbers) -> Numbers:
        slots = {s: {n: a * self._factors.get(s, 1.0) for n, a in per.items()} for s, per in numbers.slots.items()}
        return replace(numbers, slots=slots)

    def _factor(self, slot: str, numbers: Numbers, count: int) -> float:
        """The factor of a slot's numbers there: with or without the learning rate, added or subtracted.

        Without a gradient only the slot changes a variable; the size shows which possible factor applies.
        """
        name = next((n for n in numbers.slots[slot] if n not in self._ours.frozen), "")
        if not name:
            return 1.0
        full = replace(numbers, gradients=[_zeros(numbers.start)])
        empty = replace(full, slots={**numbers.slots, slot: _zeros(numbers.slots[slot])})
        moved = []
        for side in (self._ours, self._theirs):
            difference = side.steps(full, count)[0][name] - side.steps(empty, count)[0][name]
            moved.append(float(np.vdot(difference, numbers.slots[slot][name])))
        if not all(moved):
            return 1.0
        wanted, rate = moved[0] / moved[1], abs(self._ours.rate_at(count)) or 1.0
        nearest = min((1.0, rate, 1.0 / rate), key=lambda factor: abs(np.log(factor / abs(wanted))))
        return float(nearest * np.sign(wanted))


def _zeros(arrays: Arrays) -> Arrays:
    return {name: np.zeros_like(array) for name, array in arrays.items()}


def _largest(array: np.ndarray) -> float:
    return float(np.abs(array).max(initial=0.0))


def _said(name: str, number: int, have: np.ndarray, get: np.ndarray) -> str:
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


class _Source:
    """The source's steps by its rule, in float64, on variables with the source's names.

    `left_out` are options of the source that affect its steps but not these; `frozen` the variables that it does not
    train.
    """

    def __init__(self, state: OptimizerState, targets: Sequence[Target]):
        cls = rules.of(state.algorithm)
        if cls is None:
            raise UnsupportedError(f"there is no rule for {state.algorithm}")
        self._state = state
        values = {k: v for k, v in state.hyperparameters.items() if k not in NOT_TRIED}
        own = arguments(cls)
        self._made, self._hyper = made_from(cls, values)
        self._rule = comparison.Rule(state.algorithm, values)
        self._decay = float(values.get("weight_decay") or 0.0)
        self._is_coupled = values.get("decoupled_weight_decay") is False and not self._made.places_weight_decay
        self._has_rate_in_decay = values.get("learning_rate_in_weight_decay") is not False
        self._by_unit = values.get("adaptive_grad_clip")
        self._limits = {key: float(values[key]) for key in LIMITS if values.get(key)}
        self.rate = values["learning_rate"]
        self.changes = isinstance(self.rate, Mapping) or bool(values.get("decay"))
        self.left_out = [n for n, v in values.items() if n not in own and not _has_no_effect(n, v)]
        self.left_out += ["clip_order"] if len(self._limits) > 1 else []
        self.left_out += ["weight_decay"] if state.algorithm == "AdamW" and "weight_decay" not in values else []
        source = step_answers.Source(state).asks[factors.TRAINED]
        self.frozen = {t.stored.name for t in targets if source(t.stored) is False}
        self._shapes = {t.stored.name: tuple(min(n, CUT) for n in t.shape) for t in targets}

    def rate_at(self, count: int) -> float:
        return comparison.rate_at(self._rule, count)

    def drawn(self, random: Any, size: float) -> Numbers:
        """Draw realistic numbers for gradients of that size; variables are at most 1."""
        gradients = [self._normal(random, size) for _ in range(STEPS)]
        return Numbers(self._normal(random, min(size, 1.0)), self._slots(random, size), gradients)

    def _normal(self, random: Any, size: float) -> Arrays:
        return {name: size * random.normal(size=shape) for name, shape in self._shapes.items()}

    def _slots(self, random: Any, size: float) -> Slots:
        found: Slots = {}
        for slot in self._made.slots:
            low, high = (1.0, 2.0) if slot.nonnegative else (-1.0, 1.0)
            low, high = (low + 1.0, high + 1.0) if slot.at_least else (low, high)
            unit = size**2 if slot.nonnegative and slot.name != "u" else size
            for name, whole in self._shapes.items():
                dims = slot_dims(slot.like, len(whole))
                if dims is not None:
                    drawn = unit * random.uniform(low, high, tuple(whole[d] for d in dims))
                    found.setdefault(slot.name, {})[name] = np.asarray(drawn)
        return found

    def steps(self, numbers: Numbers, count: int) -> list[Arrays]:
        """The changes of the variables in each of several steps, after `count` steps."""
        values, slots, changes = dict(numbers.start), {s: dict(per) for s, per in numbers.slots.items()}, []
        product = {nadam.PRODUCT: self._product_of_momenta(count)} if self._state.algorithm == "Nadam" else {}
        for step, gradients in enumerate(numbers.gradients, count + 1):
            rate = self.rate_at(step - 1)
            clipped = self._clipped(gradients)
            added = {}
            for name, value in values.items():
                decay = 0.0 if self._is_excluded_from_decay(name) else self._decay
                inside = decay if self._made.places_weight_decay else 0.0
                gradient, shrunk = clipped[name], value
                if not self._is_coupled and not self._made.places_weight_decay:
                    shrunk = value * (1.0 - decay * (rate if self._has_rate_in_decay else 1.0))
                if self._by_unit:
                    gradient = _clipped_by_unit(name, shrunk, gradient, **self._by_unit)
                if self._is_coupled:
                    gradient = gradient + decay * value
                given = {**self._hyper, **product, "learning_rate": rate, "base_learning_rate": rate}
                given |= {"weight_decay": inside, **self._made.constants(value.shape, (name,))}
                with np.errstate(all="ignore"):
                    c = self._made.coefficients(np, given, np.float64(step))
                    own = {slot: per[name] for slot, per in slots.items() if name in per}
                    change, new = self._made.update(np, shrunk, gradient, own, c)
                if name in self.frozen:
                    added[name] = np.zeros_like(value)
                    continue
                added[name] = change + (shrunk - value)
                for slot, array in new.items():
                    slots[slot][name] = np.asarray(array)
            product = {nadam.PRODUCT: c[nadam.PRODUCT]} if product else {}
            values = {name: value + added[name] for name, value in values.items()}
            changes.append(added)
        return changes

    def _is_excluded_from_decay(self, name: str) -> bool:
        patterns = self._state.hyperparameters.get("weight_decay_exclude") or ()
        return any(re.search(pattern, name) for pattern in patterns)

    def _clipped(self, gradients: Arrays) -> Arrays:
        for key, limit in self._limits.items():
            if key == "clipvalue":
                gradients = {name: np.clip(g, -limit, limit) for name, g in gradients.items()}
                continue
            norms = {name: float(np.linalg.norm(g)) for name, g in gradients.items()}
            if key == "global_clipnorm":
                trained = [norm for name, norm in norms.items() if name not in self.frozen]
                norms = dict.fromkeys(norms, float(np.linalg.norm(trained)))
            gradients = {name: g * (limit / max(norms[name], limit)) for name, g in gradients.items()}
        return gradients

    def _product_of_momenta(self, steps: int) -> float:
        if steps == self._state.iterations and nadam.PRODUCT in self._state.scalars:
            return self._state.scalars[nadam.PRODUCT]
        return nadam.product(float(self._hyper["beta_1"]), float(self._hyper["schedule_decay"]), steps)


def _clipped_by_unit(
    name: str, value: np.ndarray, gradient: np.ndarray, clipping: float, eps: float, exclude: Sequence[str]
) -> np.ndarray:
    """As `optim.AdaptiveGradClip`."""
    if any(re.search(pattern, name) for pattern in exclude):
        return gradient
    axes = unit_axes(value.ndim)
    weights, norm = (np.sqrt(np.sum(x**2, axis=axes, keepdims=True)) for x in (value, gradient))
    limit = clipping * np.maximum(weights, eps)
    return np.asarray(gradient * (limit / np.maximum(norm, limit)))


def _has_no_effect(name: str, value: Any) -> bool:
    if name in TRIED or name in comparison.NOT_THE_RULE:
        return True
    return not value


class _Transformation:
    def __init__(self, training: Optax, targets: Sequence[Target], fields: Mapping[str, str]):
        import jax

        self._targets = {t.place: t for t in targets}
        self._slot_of = {field: slot for slot, field in fields.items()}
        self._structure = jax.tree_util.tree_structure(training.params)
        self._names = list(optax_state.named(training.params))
        arrays = zip(
            optax_state.leaves(training.state, training.params), jax.tree_util.tree_leaves(training.state), strict=True
        )
        self._kept = [
            np.asarray(comparison.as_written(np.asarray(array).tolist())) for what, array in arrays if what.what == KEPT
        ]
        self._init = training.tx.init
        self._update = jax.jit(lambda gradients, state, params: training.tx.update(gradients, state, params))

    def steps(self, numbers: Numbers, count: int) -> list[Arrays]:
        """As `_Source.steps`."""
        params = self._tree(numbers.start)
        state = self._state(params, numbers.slots, count)
        changes = []
        for gradient in numbers.gradients:
            try:
                updates, state = self._update(self._tree(gradient), state, params)
            except Exception as error:
                raise UnsupportedError(
                    "the optax transformation cannot be tried with gradients, state and parameters alone:"
                    f" {type(error).__name__}: {str(error)[:200]}"
                ) from error
            added = {name: np.asarray(update) for name, update in optax_state.named(updates).items()}
            changes.append({self._targets[n].stored.name: value for n, value in added.items()})
            params = self._unflatten([old + added[name] for name, old in optax_state.named(params).items()])
        return changes

    def _state(self, params: Any, slots: Slots, count: int) -> Any:
        import jax

        state, kept = self._init(params), iter(self._kept)

        def value(what: Leaf, old: Any) -> Any:
            if what.what == KEPT:
                return optax_state.like(next(kept), old)
            if not what.name:
                return jax.numpy.asarray(count, "int64")  # a power of an int32 would be a float32
            per = slots.get(self._slot_of.get(what.what, ""))
            target = self._targets[what.name]
            return old if per is None else optax_state.like(per[target.stored.name], old)

        return optax_state.filled(state, params, value)

    def _tree(self, arrays: Arrays) -> Any:
        return self._unflatten([arrays[self._targets[n].stored.name] for n in self._names])

    def _unflatten(self, leaves: Sequence[np.ndarray]) -> Any:
        import jax

        return jax.tree_util.tree_unflatten(self._structure, [jax.numpy.asarray(leaf) for leaf in leaves])
