"""A small training loop in float64 NumPy: what goes around an algorithm, in the order that docs/optimizers.md gives.

    gather -> unscale, or skip what is not finite -> clip -> decay weights -> update, cautiously -> look ahead
    -> average -> overwrite -> count

Independent of `optim`: it imports nothing from there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

Array = np.ndarray


class Algorithm(Protocol):
    def slots(self, shape: tuple[int, ...]) -> dict[str, Array]:
        """New slots of one variable."""

    def step(self, value: Array, gradient: Array, slots: dict[str, Array], rate: float, number: int) -> Array:
        """The new value; `slots` are updated. `number` is that of the step, from 1."""


@dataclass(frozen=True)
class Options:
    """The options that every optimizer has; `not_decayed` are names of variables, factors go by patterns of names."""

    clipnorm: float | None = None
    clipvalue: float | None = None
    global_clipnorm: float | None = None
    clip_order: str = "value_first"
    adaptive_grad_clip: Mapping[str, Any] | None = None
    weight_decay: float = 0.0
    decoupled_weight_decay: bool = True
    learning_rate_in_weight_decay: bool = True
    not_decayed: Collection[str] = ()
    use_ema: bool = False
    ema_momentum: float = 0.99
    ema_overwrite_frequency: int | None = None
    ema_start: str = "initial"
    stochastic_average: Mapping[str, int] | None = None
    lookahead: Mapping[str, Any] | None = None
    cautious: bool = False
    gradient_accumulation_steps: int = 1
    decay: float = 0.0
    learning_rate_multipliers: Mapping[str, float] = field(default_factory=dict)
    loss_scale: float | str | None = None
    loss_scale_growth_steps: int = 2000

    @property
    def has_averages(self) -> bool:
        return self.use_ema or self.stochastic_average is not None

    def factor(self, name: str) -> float:
        return next((f for p, f in self.learning_rate_multipliers.items() if re.search(p, name)), 1.0)


def new_slots(algorithm: Algorithm, value: Array) -> dict[str, Array]:
    """Of one variable; an algorithm whose slots start from the variable has `start`."""
    start = getattr(algorithm, "start", None)
    return algorithm.slots(value.shape) if start is None else start(value)


@dataclass
class Training:
    """Variables under training: `apply` is `apply_gradients`.

    `rate` gives the learning rate of the step after `iterations` steps, before the inverse time `decay` of `options`.
    """

    algorithm: Algorithm
    rate: Callable[[int], float]
    values: dict[str, Array]
    options: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        self.values = {name: np.array(value, np.float64) for name, value in self.values.items()}
        self.slots = {name: new_slots(self.algorithm, value) for name, value in self.values.items()}
        self.averages = {name: value.copy() for name, value in self.values.items()}
        if self.options.lookahead is not None:
            for name, value in self.values.items():
                self.slots[name]["slow"] = value.copy()
        self.iterations = 0
        self.gathered: dict[str, Array] = {}
        self.calls = 0
        self.scale = 2.0**15 if self.options.loss_scale == "dynamic" else self.options.loss_scale
        self.finite_steps = 0

    def apply(self, gradients: Mapping[str, Any]) -> None:
        """One call: None leaves a variable alone."""
        steps = self.options.gradient_accumulation_steps
        for name, gradient in gradients.items():
            if gradient is not None:
                self.gathered[name] = self.gathered.get(name, 0.0) + np.asarray(gradient, np.float64) / steps
        self.calls += 1
        if self.calls % steps == 0:
            gathered, self.gathered = self.gathered, {}
            if self.scale is None:
                self._step(gathered)
            else:
                self._scaled_step(gathered)

    def _scaled_step(self, gradients: dict[str, Array]) -> None:
        finite = all(np.isfinite(g).all() for g in gradients.values())
        scale, options = self.scale, self.options
        if finite:
            self._step({name: g / scale for name, g in gradients.items()})
        if options.loss_scale != "dynamic":
            return
        self.finite_steps = self.finite_steps + 1 if finite else 0
        if not finite:
            self.scale = scale / 2
        elif self.finite_steps == options.loss_scale_growth_steps:
            self.scale, self.finite_steps = scale * 2, 0

    def _step(self, gradients: dict[str, Array]) -> None:
        options = self.options
        base = self.rate(self.iterations) / (1 + options.decay * self.iterations)
        for name, gradient in clipped(gradients, options).items():
            value, rate = self.values[name], base * options.factor(name)
            added: Array | float = 0.0
            if options.weight_decay and name not in options.not_decayed:
                decay_rate = getattr(self.algorithm, "decay_rate", lambda rate, number: rate)
                if not options.decoupled_weight_decay:
                    added = options.weight_decay * value
                elif options.learning_rate_in_weight_decay:
                    value = value - options.weight_decay * decay_rate(rate, self.iterations + 1) * value
                else:
                    value = value - options.weight_decay * value
            if options.adaptive_grad_clip is not None:
                gradient = by_units(gradient, value, name, **options.adaptive_grad_clip)
            gradient, before = gradient + added, value
            value = self.algorithm.step(value, gradient, self.slots[name], rate, self.iterations + 1)
            if options.cautious:
                value = before + cautious_change(value - before, gradient)
            if options.lookahead is not None:
                value = self._looked_ahead(name, value)
            self.values[name] = value
            if options.stochastic_average is not None:
                self._take_snapshot(name, value)
            if options.use_ema:
                is_start = options.ema_start == "first_step" and self.iterations == 0
                mix = 0.0 if is_start else options.ema_momentum
                self.averages[name] = mix * self.averages[name] + (1 - mix) * value
                every = options.ema_overwrite_frequency
                if every is not None and (self.iterations + 1) % every == 0:
                    self.values[name] = self.averages[name].copy()
        self.iterations += 1

    def _looked_ahead(self, name: str, fast: Array) -> Array:
        option, slots = self.options.lookahead or {}, self.slots[name]
        if (self.iterations + 1) % option["sync_period"]:
            return fast
        slots["slow"] = (1 - option["slow_step_size"]) * slots["slow"] + option["slow_step_size"] * fast
        return slots["slow"].copy()

    def _take_snapshot(self, name: str, value: Array) -> None:
        option = self.options.stochastic_average or {}
        late = self.iterations - option["start_averaging"]
        if late >= 0 and late % option["average_period"] == 0:
            before = late // option["average_period"]
            self.averages[name] = (before * self.averages[name] + value) / (before + 1)


def by_units(
    gradient: Array, value: Array, name: str, clipping: float = 0.01, eps: float = 1e-3, exclude: Collection[str] = ()
) -> Array:
    """Brock et al. (2021), equation 3, unit by unit: columns of what reshapes to a matrix, slices of a stack."""
    if any(re.search(pattern, name) for pattern in exclude):
        return gradient
    if value.ndim < 2:
        return _shrunk(gradient, np.sqrt(np.sum(gradient**2)), clipping * max(np.sqrt(np.sum(value**2)), eps))
    rows = value.shape[0] if value.ndim < 4 else int(np.prod(value.shape[:-1]))
    weights, columns = value.reshape(rows, -1), gradient.reshape(rows, -1)
    pairs = zip(weights.T, columns.T, strict=True)
    made = [_shrunk(g, np.sqrt(g @ g), clipping * max(np.sqrt(w @ w), eps)) for w, g in pairs]
    return np.stack(made, axis=1).reshape(value.shape)


def cautious_change(change: Array, gradient: Array) -> Array:
    """Liang et al. (2024), with the scale of github.com/kyleliang919/C-Optim, c_adamw.py."""
    agree = np.sign(change) * np.sign(gradient) == -1
    return np.where(agree, change, 0.0) / max(np.mean(agree), 1e-3)


def clipped(gradients: Mapping[str, Array], options: Options) -> dict[str, Array]:
    """Clipping by value and by norm in `clip_order`."""
    stages = [_clip_values, _clip_norms]
    if options.clip_order == "norm_first":
        stages = [_clip_norms, _clip_values]
    current = dict(gradients)
    for stage in stages:
        current = stage(current, options)
    return current


def _clip_values(gradients: dict[str, Array], options: Options) -> dict[str, Array]:
    limit = options.clipvalue
    return gradients if limit is None else {name: np.clip(g, -limit, limit) for name, g in gradients.items()}


def _clip_norms(gradients: dict[str, Array], options: Options) -> dict[str, Array]:
    if options.clipnorm is not None:
        return {name: _shrunk(g, np.sqrt(np.sum(g**2)), options.clipnorm) for name, g in gradients.items()}
    if options.global_clipnorm is not None:
        norm = np.sqrt(sum(np.sum(g**2) for g in gradients.values()))
        return {name: _shrunk(g, norm, options.global_clipnorm) for name, g in gradients.items()}
    return gradients


def _shrunk(gradient: Array, norm: float, limit: float) -> Array:
    return gradient * (limit / norm) if norm > limit else gradient
