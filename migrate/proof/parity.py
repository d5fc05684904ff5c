"""One optimizer step by the formulas of the generation that wrote a checkpoint, in float64 numpy.

Written from those releases' own code and separately from `optim` and `conventions`, so that an error in either shows
when `verify` compares: only the stored config and arrays are used. `magnitude` is the size of a step without
cancellation; rounding errors are proportional to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from migrate.proof import parity_addons, parity_formula, parity_keras3
from migrate.proof.parity_source import Slots, Source
from optim.errors import UnsupportedError


def gradient_scale(
    source: Source, gradients: Mapping[str, Callable[[], np.ndarray]]
) -> Callable[[np.ndarray], np.ndarray]:
    """The clipping of this generation, as a function of one variable's gradient."""
    norm, value, overall = source.get("clipnorm"), source.get("clipvalue"), source.get("global_clipnorm")
    if source.is_native:
        if norm and (overall or source.limits_one_norm):  # they lack global_clipnorm: it selects the norm
            norm, overall = 0.0, overall or norm
        order: tuple[str, ...] = ("overall", "norm", "value")
    elif not source.is_new and not source.is_tf_train:
        late = source.version is None or source.version >= (2, 4)
        late = source.config.get("clip_order", "value_first" if late else "norm_first") == "value_first"  # of the user
        order = ("value", "norm", "overall") if late else ("norm", "overall", "value")
    else:
        first = "norm" if norm else "overall" if overall else "value"
        order = (first,)
    total = _global_norm(gradients) if overall and order[0] != "value" else None

    def clip(g: np.ndarray) -> np.ndarray:
        for kind in order:
            if kind == "value" and value:
                g = np.minimum(np.maximum(g, -value), value)
            elif kind == "norm" and norm:
                g = g * (norm / max(float(np.sqrt(np.sum(g * g))), norm))
            elif kind == "overall" and overall:
                size = (
                    total
                    if total is not None
                    else _global_norm({k: _clipped_by(f, value) for k, f in gradients.items()})
                )
                g = g * (overall / max(size, overall))
        return g

    return clip


def _clipped_by(make: Callable[[], np.ndarray], value: float) -> Callable[[], np.ndarray]:
    return lambda: np.clip(make(), -value, value) if value else make()


def _global_norm(gradients: Mapping[str, Callable[[], np.ndarray]]) -> float:
    return math.sqrt(sum(float(np.sum(np.square(make()))) for make in gradients.values()))


UNDECAYED = ("Nadam", "ConditionalGradient")
"""Classes of OptimizerV2 that accept `decay` and ignore it."""


def rate(source: Source) -> float:
    """Learning rate of the next step."""
    value = source.config.get("learning_rate", source.config.get("lr"))
    base = schedule(value, source.iterations) if isinstance(value, Mapping) else float(value)
    if source.has_time_decay and source.algorithm not in UNDECAYED and source.get("decay"):
        base *= 1.0 / (1.0 + source.get("decay") * source.iterations)
    return base


def step(source: Source, p: np.ndarray, g: np.ndarray, slots: Slots) -> tuple[np.ndarray, np.ndarray]:
    """Return the new value of a variable, and the magnitude of the change.

    Args:
      p, g: variable and clipped gradient, float64; slots: by `optim`'s names, float64.
    """
    lr = 1.0 if source.algorithm == "COCOB" else rate(source)  # it has no rate
    if not has_formula(source.algorithm):
        raise UnsupportedError(f"there is no parity check for {source.algorithm} yet; verify compares its arrays alone")
    new_style = source.is_new
    magnitude = np.zeros_like(p)
    decay = source.get("weight_decay", 0.004 if source.algorithm == "AdamW" else 0.0)
    decay = parity_keras3.muon_decay(source, slots) if source.algorithm == "Muon" else decay
    if new_style and decay:
        shrink = p * decay * lr
        p, magnitude = p - shrink, np.abs(shrink)
    if not new_style:
        shrink = p * parity_addons.shrinks(source, lr)
        p, magnitude = p - shrink, np.abs(shrink)
    if source.algorithm in _WITH_VARIABLE:
        change, size = _WITH_VARIABLE[source.algorithm](source, lr, p, g, slots)
    else:
        change, size = _FORMULAS[source.algorithm](source, lr, g, slots)
    p, magnitude = p + change, magnitude + size
    every = source.config.get("ema_overwrite_frequency")
    if new_style and source.config.get("use_ema") and every and (source.iterations + 1) % int(every) == 0:
        mu = source.get("ema_momentum", 0.99)
        p = mu * slots["average"] + (1.0 - mu) * p
    return p, magnitude


def _of(slots: Slots, name: str, g: np.ndarray) -> np.ndarray:
    """A slot, or its initial zeros before the first step."""
    return slots[name] if name in slots else np.zeros_like(g)


def _sgd(source: Source, lr: float, g: np.ndarray, slots: Slots) -> tuple[np.ndarray, np.ndarray]:
    """Keras 1.2.2 `optimizers.py::SGD`, TF `ResourceApplyKerasMomentum`, Keras 3 `sgd.py`."""
    mu, old = source.get("momentum"), _of(slots, "m", g)
    is_inside = source.config.get("learning_rate_in_momentum", not source.is_tf_train)
    if not is_inside:  # `ApplyMomentum`: the slot gathers gradients
        total, size = mu * old + g, np.abs(mu * old) + np.abs(g)
        return (
            (-lr * (g + mu * total), lr * (np.abs(g) + mu * size))
            if source.config.get("nesterov")
            else (-lr * total, lr * size)
        )
    velocity, size = mu * old - lr * g, np.abs(mu * old) + np.abs(lr * g)
    if source.config.get("nesterov"):
        return mu * velocity - lr * g, mu * size + np.abs(lr * g)
    return velocity, size


def _adam(source: Source, lr: float, g: np.ndarray, slots: Slots) -> tuple[np.ndarray, np.ndarray]:
    """Keras 1.2.2 `optimizers.py::Adam`, TF `ResourceApplyAdam`, Keras 3 `adam.py`."""
    b1, b2, t = source.cast("beta_1", 0.9), source.cast("beta_2", 0.999), source.iterations + 1
    mean_1, mean_2 = source.in_means("beta_1", 0.9), source.in_means("beta_2", 0.999)
    first = mean_1 * _of(slots, "m", g) + (1.0 - mean_1) * g
    second = mean_2 * _of(slots, "v", g) + (1.0 - mean_2) * g * g
    if source.config.get("amsgrad"):
        second = np.maximum(_of(slots, "vhat", g), second)
    if source.config.get("nesterov") or source.called == "NadamOptimizer":  # `ApplyAdam` with use_nesterov
        first = b1 * first + (1.0 - b1) * g
    corrected = lr
    if source.corrected:
        corrected = lr * math.sqrt(1.0 - source.power(b2, t)) / (1.0 - source.power(b1, t))
    below = np.sqrt(second) + source.epsilon
    return -corrected * first / below, corrected * (np.abs(b1 * _of(slots, "m", g)) + np.abs((1.0 - b1) * g)) / below


def _adadelta(source: Source, lr: float, g: np.ndarray, slots: Slots) -> tuple[np.ndarray, np.ndarray]:
    """Keras 1.2.2 `optimizers.py::Adadelta`, TF `ResourceApplyAdadelta`, Keras 3 `adadelta.py`."""
    rho = source.get("rho", 0.95) if source.is_native else source.in_means("rho", 0.95)
    eps = source.epsilon
    a = rho * _of(slots, "accumulated_grad", g) + (1.0 - rho) * g * g
    delta = _of(slots, "accumulated_delta_var", g)
    if source.has_old_adadelta:
        u = np.sqrt(delta + eps) * g / np.sqrt(a + eps)
        delta = rho * delta + (1.0 - rho) * u * u
    change = -lr * np.sqrt(delta + eps) * g / np.sqrt(a + eps)
    return change, np.abs(change)


def _rmsprop(source: Source, lr: float, g: np.ndarray, slots: Slots) -> tuple[np.ndarray, np.ndarray]:
    """Keras 1.2.2 `optimizers.py::RMSprop`, TF `ResourceApplyRMSProp`, 2.9's experimental `rmsprop.py`, Keras 3's."""
    rho, mu, eps = source.in_means("rho", 0.9), source.get("momentum"), source.epsilon
    square = rho * _of(slots, "velocity", g) + (1.0 - rho) * g * g
    if source.config.get("centered"):
        mean = rho * _of(slots, "average_gradient", g) + (1.0 - rho) * g
        square = np.maximum(square - mean * mean, 0.0)
    is_inside = source.config.get("epsilon_inside", source.rmsprop_adds_inside(mu))
    below = np.sqrt(square + eps) if is_inside else np.sqrt(square) + eps
    if not mu:
        return -lr * g / below, np.abs(lr * g / below)
    old = mu * _of(slots, "momentum", g)
    if source.is_momentum_without_rate:
        return -lr * (old + g / below), lr * (np.abs(old) + np.abs(g / below))
    return -(old + lr * g / below), np.abs(old) + np.abs(lr * g / below)


def _adagrad(source: Source, lr: float, g: np.ndarray, slots: Slots) -> tuple[np.ndarray, np.ndarray]:
    """Keras 1.2.2 `optimizers.py::Adagrad`, TF `ResourceApplyAdagradV2`, Keras 3 `adagrad.py`; tf.train: no epsilon."""
    start = source.get("initial_accumulator_value", 0.0 if source.is_native else 0.1)
    total = slots.get("accumulator", start) + g * g
    if source.is_tf_train:
        below = np.sqrt(total) + source.get("epsilon", 0.0)
    elif not source.is_new:
        below = np.sqrt(total) + source.epsilon
    else:
        below = np.sqrt(total + source.epsilon)
    return -lr * g / below, np.abs(lr * g / below)


def _adamax(source: Source, lr: float, g: np.ndarray, slots: Slots) -> tuple[np.ndarray, np.ndarray]:
    """Keras 1.2.2 `optimizers.py::Adamax`, TF `ResourceApplyAdaMax`, Keras 3 `adamax.py`."""
    b1, b2, t = source.cast("beta_1", 0.9), source.cast("beta_2", 0.999), source.iterations + 1
    mean = source.in_means("beta_1", 0.9)
    old, new = mean * _of(slots, "m", g), (1.0 - mean) * g
    below = np.maximum(b2 * _of(slots, "u", g), np.abs(g)) + source.epsilon
    factor = lr / (1.0 - source.power(b1, t))
    return -factor * (old + new) / below, factor * (np.abs(old) + np.abs(new)) / below


def _nadam(source: Source, lr: float, g: np.ndarray, slots: Slots) -> tuple[np.ndarray, np.ndarray]:
    """Keras 2.2.4 `optimizers.py::Nadam`, 2.9 `optimizer_v2/nadam.py`, Keras 3 `nadam.py`."""
    b1, b2, t = source.cast("beta_1", 0.9), source.cast("beta_2", 0.999), source.iterations + 1
    rate_of_decay = source.schedule_decay

    def mu(i: int) -> float:
        return b1 * (1.0 - 0.5 * math.pow(0.96, i * rate_of_decay))

    before = source.product
    if before is None:
        before = math.exp(sum(math.log(mu(i)) for i in range(1, t))) if b1 > 0 else 0.0
    now, ahead = before * mu(t), before * mu(t) * mu(t + 1)
    old = b1 * _of(slots, "m", g)
    second = (b2 * _of(slots, "v", g) + (1.0 - b2) * g * g) / (1.0 - source.power(b2, t))
    below = np.sqrt(second) + source.epsilon
    direct = (1.0 - mu(t)) / (1.0 - now) * g
    looked = mu(t + 1) / (1.0 - ahead)
    size = looked * (np.abs(old) + np.abs((1.0 - b1) * g)) + np.abs(direct)
    return -lr * (looked * (old + (1.0 - b1) * g) + direct) / below, lr * size / below


def _ftrl(source: Source, lr: float, p: np.ndarray, g: np.ndarray, slots: Slots) -> tuple[np.ndarray, np.ndarray]:
    """TF `ResourceApplyFtrl` and `ResourceApplyFtrlV2`, Keras 3 `ftrl.py`."""
    power = -source.get("learning_rate_power", -0.5)
    l1, shrink = source.get("l1_regularization_strength"), source.get("l2_shrinkage_regularization_strength")
    l2 = source.get("l2_regularization_strength") + source.get("beta") / (2.0 * lr)
    n = slots.get("accumulator", source.get("initial_accumulator_value", 0.1))
    z = _of(slots, "linear", g)
    if source.scaled_linear:
        z = z / lr
    grown = n + g * g
    sigma = (grown**power - n**power) / lr
    z = z + g + 2.0 * shrink * p - sigma * p
    quadratic = grown**power / lr + 2.0 * l2
    value = (np.clip(z, -l1, l1) - z) / quadratic
    size = (
        np.abs(_of(slots, "linear", g)) / (lr if source.scaled_linear else 1.0) + np.abs(g) + np.abs(sigma * p)
    ) / quadratic
    return value - p, size + np.abs(p)


def _lion(source: Source, lr: float, g: np.ndarray, slots: Slots) -> tuple[np.ndarray, np.ndarray]:
    """tf_keras 2.15 `lion.py`, Keras 3's."""
    b1 = source.cast("beta_1", 0.9)
    step = lr * np.sign(b1 * _of(slots, "m", g) + (1.0 - b1) * g)
    return -step, np.abs(step)


def _adafactor(source: Source, lr: float, p: np.ndarray, g: np.ndarray, slots: Slots) -> tuple[np.ndarray, np.ndarray]:
    """tf_keras 2.15 `adafactor.py`, Keras 3's."""
    t = source.iterations + 1
    rest = float(t) ** source.get("beta_2_decay", -0.8)
    square = g * g + source.get("epsilon_1", 1e-30)
    if g.ndim < 2:
        v = (1.0 - rest) * _of(slots, "v", g) + rest * square
    else:
        rows = (1.0 - rest) * slots.get("r", np.zeros(g.shape[:-1])) + rest * square.mean(axis=-1)
        columns = slots.get("c", np.zeros((*g.shape[:-2], g.shape[-1])))
        columns = (1.0 - rest) * columns + rest * square.mean(axis=-2)
        v = (rows / rows.mean(axis=-1, keepdims=True))[..., None] * columns[..., None, :]
    u = g / np.sqrt(v)
    u = u / max(1.0, math.sqrt(float(np.mean(u * u))) / source.get("clip_threshold", 1.0))
    size = max(source.get("epsilon_2", 1e-3), math.sqrt(float(np.mean(p * p))))
    step = size * min(lr, 1.0 / math.sqrt(t)) * u
    return -step, np.abs(step)


def _lamb(source: Source, lr: float, p: np.ndarray, g: np.ndarray, slots: Slots) -> tuple[np.ndarray, np.ndarray]:
    """Keras 3 `lamb.py`."""
    if source.has_addons:
        return parity_addons.lamb(source, lr, p, g, slots)
    b1, b2, t = source.cast("beta_1", 0.9), source.cast("beta_2", 0.999), source.iterations + 1
    mean_1, mean_2 = source.in_means("beta_1", 0.9), source.in_means("beta_2", 0.999)
    old, new = mean_1 * _of(slots, "m", g), (1.0 - mean_1) * g
    second = (mean_2 * _of(slots, "v", g) + (1.0 - mean_2) * g * g) / (1.0 - source.power(b2, t))
    below = (1.0 - source.power(b1, t)) * (np.sqrt(second) + source.epsilon)
    u = (old + new) / below
    norms = float(np.linalg.norm(p.ravel())), float(np.linalg.norm(u.ravel()))
    rate = lr * (norms[0] / norms[1] if min(norms) > 0 else 1.0)
    return -rate * u, rate * (np.abs(old) + np.abs(new)) / below


_FORMULAS: dict[str, Callable[[Source, float, np.ndarray, Slots], tuple[np.ndarray, np.ndarray]]] = {
    "SGD": _sgd,
    "RMSprop": _rmsprop,
    "Adagrad": _adagrad,
    "Adadelta": _adadelta,
    "Adam": _adam,
    "AdamW": _adam,
    "Adamax": _adamax,
    "Nadam": _nadam,
    "Lion": _lion,
}
_WITH_VARIABLE: dict[str, Callable[[Source, float, np.ndarray, np.ndarray, Slots], tuple[np.ndarray, np.ndarray]]] = {
    "Ftrl": _ftrl,
    "Adafactor": _adafactor,
    "Lamb": _lamb,
    **parity_addons.FORMULAS,
    **parity_keras3.FORMULAS,
}
"""Algorithms whose step depends on the variable itself."""
ELEMENTWISE = frozenset(_FORMULAS) | {
    *("Ftrl", "RectifiedAdam", "AdaBelief", "Yogi", "ProximalAdagrad", "COCOB", "ScheduleFreeAdamW")
}
"""Algorithms that work element by element on variable, gradient and slots."""


def has_formula(algorithm: str) -> bool:
    return algorithm in _FORMULAS or algorithm in _WITH_VARIABLE


SCHEDULES = ("ExponentialDecay", "InverseTimeDecay", "PolynomialDecay", "CosineDecay", "CosineDecayRestarts")


def schedule(value: Mapping[str, Any], step_number: int) -> float:
    """A stock `LearningRateSchedule` at a step, as in `keras/optimizers/schedules` 2.9 to 3.15."""
    name, c, t = str(value["class_name"]).rsplit(">", 1)[-1], value["config"], float(step_number)
    if name == "PiecewiseConstantDecay":
        return float(c["values"][sum(t > b for b in c["boundaries"])])
    if name == "Formula":
        return parity_formula.rate(c["operations"], step_number)
    if name not in SCHEDULES:
        raise UnsupportedError(f"the learning rate is {name}, whose formula is not known; verify compares arrays alone")
    start = float(c["initial_learning_rate"])
    if name in ("ExponentialDecay", "InverseTimeDecay"):
        done = t / c["decay_steps"]
        done = math.floor(done) if c.get("staircase") else done
        return start * c["decay_rate"] ** done if name == "ExponentialDecay" else start / (1.0 + c["decay_rate"] * done)
    if name == "PolynomialDecay":
        return _polynomial(c, start, t)
    if name == "CosineDecay":
        return _cosine(c, start, t)
    if name == "CosineDecayRestarts":
        return _restarts(c, start, t)
    raise UnsupportedError(f"there is no parity check for the schedule {name}")


def _polynomial(c: Mapping[str, Any], start: float, t: float) -> float:
    total, end = float(c["decay_steps"]), float(c.get("end_learning_rate", 0.0001))
    if c.get("cycle"):
        total *= max(1.0, math.ceil(t / total))
    return (start - end) * (1.0 - min(t, total) / total) ** float(c.get("power", 1.0)) + end


def _cosine(c: Mapping[str, Any], start: float, t: float) -> float:
    warm, target = float(c.get("warmup_steps") or 0), c.get("warmup_target")
    if target is not None and t < warm:
        return start + (float(target) - start) * t / warm
    peak = start if target is None else float(target)
    done = min(max(t - (warm if target is not None else 0.0), 0.0), float(c["decay_steps"])) / float(c["decay_steps"])
    alpha = float(c.get("alpha", 0.0))
    return peak * ((1.0 - alpha) * 0.5 * (1.0 + math.cos(math.pi * done)) + alpha)


def _restarts(c: Mapping[str, Any], start: float, t: float) -> float:
    done, growth, shrink = (
        t / float(c["first_decay_steps"]),
        float(c.get("t_mul", 2.0)),
        float(c.get("m_mul", 1.0)),
    )
    cycle = math.floor(done) if growth == 1.0 else math.floor(math.log(1.0 - done * (1.0 - growth)) / math.log(growth))
    if growth == 1.0:
        within = done - cycle
    else:
        within = (done - (1.0 - growth**cycle) / (1.0 - growth)) / growth**cycle
    alpha = float(c.get("alpha", 0.0))
    return start * ((1.0 - alpha) * 0.5 * shrink**cycle * (1.0 + math.cos(math.pi * within)) + alpha)
