"""The two sides of a trial: the source's steps by its rule, and those of a transformation."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from migrate.algorithms import nadam
from migrate.algorithms.clipping import LIMITS
from migrate.live import step_answers
from migrate.live.mapped import Target
from migrate.live.optax import trees
from migrate.live.optax.trees import FIELDS, KEPT, Leaf, Optax
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


Part = tuple[OptimizerState, Sequence[Target]]
"""A state, and the parameters that have it."""


@dataclass(frozen=True)
class Numbers:
    """The data of a trial: variables by name, slots, and gradients of several steps in a row."""

    start: Arrays
    slots: Slots
    gradients: list[Arrays]


class Source:
    """The source's steps by its rule, in float64, on variables with the source's names.

    `left_out` are options of the source that affect its steps but not these; `frozen` the variables that it does not
    train, and `all_frozen` those of all parts, which count in a norm of all gradients.
    """

    def __init__(self, state: OptimizerState, targets: Sequence[Target]):
        cls = rules.of(state.algorithm)
        if cls is None:
            raise UnsupportedError(f"there is no rule for {state.algorithm}")
        self._state = state
        values = {k: v for k, v in state.hyperparameters.items() if k not in NOT_TRIED}
        rule_arguments = arguments(cls)
        self._step_rule, self._hyper = made_from(cls, values)
        self._rule = comparison.Rule(state.algorithm, values)
        self._decay = float(values.get("weight_decay") or 0.0)
        self._is_coupled = values.get("decoupled_weight_decay") is False and not self._step_rule.places_weight_decay
        self._has_rate_in_decay = values.get("learning_rate_in_weight_decay") is not False
        self._by_unit = values.get("adaptive_grad_clip")
        self._limits = {key: float(values[key]) for key in LIMITS if values.get(key)}
        self.rate = values["learning_rate"]
        self.changes = isinstance(self.rate, Mapping) or bool(values.get("decay"))
        self.left_out = [n for n, v in values.items() if n not in rule_arguments and not _has_no_effect(n, v)]
        self.left_out += ["clip_order"] if len(self._limits) > 1 else []
        self.left_out += ["weight_decay"] if state.algorithm == "AdamW" and "weight_decay" not in values else []
        source = step_answers.Source(state).asks[factors.TRAINED]
        self.frozen = self.all_frozen = {t.stored.name for t in targets if source(t.stored) is False}
        self.algorithm = state.algorithm
        self._shapes = {t.stored.name: tuple(min(n, CUT) for n in t.shape) for t in targets}

    @property
    def names(self) -> Collection[str]:
        """The names of its variables."""
        return self._shapes

    def rate_at(self, count: int) -> float:
        return comparison.rate_at(self._rule, count)

    def drawn(self, random: Any, size: float) -> Numbers:
        gradients = [self._normal(random, size) for _ in range(STEPS)]
        return Numbers(self._normal(random, min(size, 1.0)), self._slots(random, size), gradients)

    def _normal(self, random: Any, size: float) -> Arrays:
        return {name: size * random.normal(size=shape) for name, shape in self._shapes.items()}

    def _slots(self, random: Any, size: float) -> Slots:
        slots: Slots = {}
        for slot in self._step_rule.slots:
            low, high = (1.0, 2.0) if slot.nonnegative else (-1.0, 1.0)
            low, high = (low + 1.0, high + 1.0) if slot.at_least else (low, high)
            unit = size**2 if slot.nonnegative and slot.name != "u" else size
            for name, whole in self._shapes.items():
                dims = slot_dims(slot.like, len(whole))
                if dims is not None:
                    drawn = unit * random.uniform(low, high, tuple(whole[d] for d in dims))
                    slots.setdefault(slot.name, {})[name] = np.asarray(drawn)
        return slots

    def steps(self, numbers: Numbers, count: int) -> list[Arrays]:
        """The changes of the variables in each of several steps, after `count` steps."""
        values = {name: numbers.start[name] for name in self._shapes}
        slots, changes = {s: dict(per) for s, per in numbers.slots.items()}, []
        product = {nadam.PRODUCT: self._product_of_momenta(count)} if self._state.algorithm == "Nadam" else {}
        for step, gradients in enumerate(numbers.gradients, count + 1):
            rate = self.rate_at(step - 1)
            clipped = self._clipped(gradients)
            added = {}
            for name, value in values.items():
                decay = 0.0 if self._is_excluded_from_decay(name) else self._decay
                inside = decay if self._step_rule.places_weight_decay else 0.0
                gradient, shrunk = clipped[name], value
                if not self._is_coupled and not self._step_rule.places_weight_decay:
                    shrunk = value * (1.0 - decay * (rate if self._has_rate_in_decay else 1.0))
                if self._by_unit:
                    gradient = _clipped_by_unit(name, shrunk, gradient, **self._by_unit)
                if self._is_coupled:
                    gradient = gradient + decay * value
                hyperparameters = {**self._hyper, **product, "learning_rate": rate, "base_learning_rate": rate}
                hyperparameters |= {"weight_decay": inside, **self._step_rule.constants(value.shape, (name,))}
                with np.errstate(all="ignore"):
                    c = self._step_rule.coefficients(np, hyperparameters, np.float64(step))
                    arrays = {slot: per[name] for slot, per in slots.items() if name in per}
                    change, new = self._step_rule.update(np, shrunk, gradient, arrays, c)
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
                trained = [norm for name, norm in norms.items() if name not in self.all_frozen]
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


class Transformation:
    def __init__(self, training: Optax, parts: Sequence[Part]):
        import jax

        self._targets = {t.place: t for _, targets in parts for t in targets}
        self._slot_of = {
            t.place: {field: slot for slot, field in FIELDS[state.algorithm].items()}
            for state, targets in parts
            for t in targets
        }
        self._structure = jax.tree_util.tree_structure(training.params)
        self._names = list(trees.named(training.params))
        arrays = zip(
            trees.leaves(training.state, training.params), jax.tree_util.tree_leaves(training.state), strict=True
        )
        self._kept = [
            np.asarray(comparison.as_written(np.asarray(array).tolist())) for what, array in arrays if what.what == KEPT
        ]
        self._init = training.tx.init
        self._update = jax.jit(lambda gradients, state, params: training.tx.update(gradients, state, params))

    def steps(self, numbers: Numbers, count: int) -> list[Arrays]:
        """As `trial._Trial._steps`."""
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
            added = {name: np.asarray(update) for name, update in trees.named(updates).items()}
            changes.append({self._targets[n].stored.name: value for n, value in added.items()})
            params = self._unflatten([old + added[name] for name, old in trees.named(params).items()])
        return changes

    def _state(self, params: Any, slots: Slots, count: int) -> Any:
        import jax

        state, kept = self._init(params), iter(self._kept)

        def value(what: Leaf, old: Any) -> Any:
            if what.what == KEPT:
                return trees.like(next(kept), old)
            if not what.name:
                return jax.numpy.asarray(count, "int64")  # a power of an int32 would be a float32
            per = slots.get(self._slot_of[what.name].get(what.what, ""), {})
            array = per.get(self._targets[what.name].stored.name)
            return old if array is None else trees.like(array, old)

        return trees.filled(state, params, value)

    def _tree(self, arrays: Arrays) -> Any:
        return self._unflatten([arrays[self._targets[n].stored.name] for n in self._names])

    def _unflatten(self, leaves: Sequence[np.ndarray]) -> Any:
        import jax

        return jax.tree_util.tree_unflatten(self._structure, [jax.numpy.asarray(leaf) for leaf in leaves])
