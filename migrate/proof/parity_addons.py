"""One step of the optimizers of TensorFlow Addons and related packages, from their own code, as in `parity`.

Sources: tensorflow-addons 0.19 `rectified_adam.py`, `adabelief.py`, `yogi.py`, `novograd.py`, `lamb.py`,
`proximal_adagrad.py`, `cocob.py`, `conditional_gradient.py`, `weight_decay_optimizers.py`; transformers 4.25
`optimization_tf.py`; tf-models-official 2.9 `lars_optimizer.py`.
"""

from __future__ import annotations

import math
import re

import numpy as np

from migrate.proof.parity_source import Slots, Source

EXCLUDED = ("exclude_from_weight_decay", "weight_decay_exclude")
"""Keys of excluded variables: of the classes themselves, and of configs completed by hints."""
PER_STEP = ("AdamW", "SGDW", "AdamWOptimizer", "MomentumWOptimizer", "OptimizerWithDecoupledWeightDecay")
"""Classes whose `weight_decay` is not multiplied by the rate."""
Change = tuple[np.ndarray, np.ndarray]
"""The change of the variable, and its size without cancellation."""


def _matches(source: Source, *keys: str) -> bool:
    patterns = next((source.config[key] for key in keys if source.config.get(key)), ())
    return any(re.search(pattern, f"{source.variable}:0") for pattern in patterns)


def shrinks(source: Source, lr: float) -> float:
    """The fraction by which a variable decays before the step."""
    if _matches(source, *EXCLUDED):
        return 0.0
    if source.called in PER_STEP:
        return source.get("weight_decay")
    if source.called in ("AdamWeightDecay", "AdamWeightDecayOptimizer"):
        return source.get("weight_decay_rate") * lr
    return source.get("weight_decay_per_step") + source.get("weight_decay_per_rate") * lr


def _means(source: Source, g: np.ndarray, slots: Slots) -> tuple[np.ndarray, np.ndarray]:
    """The first moment after the step, and its size without cancellation."""
    b1 = source.cast("beta_1", source.get("beta1", 0.9))
    old = b1 * slots.get("m", np.zeros_like(g))
    return old + (1.0 - b1) * g, np.abs(old) + np.abs((1.0 - b1) * g)


def rectified(source: Source, lr: float, p: np.ndarray, g: np.ndarray, slots: Slots) -> Change:
    """`RectifiedAdam` and `AdaBelief`."""
    to = np.float32 if source.dtype == "float32" else np.float64
    belief, t = source.algorithm == "AdaBelief", source.iterations + 1
    b1, b2 = source.cast("beta_1", 0.9), source.cast("beta_2", 0.999)
    epsilon = source.get("epsilon") or 1e-7
    m, size = _means(source, g, slots)
    v = b2 * slots.get("v", np.zeros_like(g)) + (1.0 - b2) * np.square(g - m if belief else g)
    v = v + epsilon if belief else v
    if source.config.get("amsgrad"):
        v = np.maximum(v, slots.get("vhat", v))
    power = to(b2**t)
    rest, one, two = to(1) - power, to(1), to(2)
    longest = two / (one - to(b2)) - one
    length = longest - (two * to(t) * power / rest if belief else two * to(t) * power * (one / rest))
    below, factor = np.sqrt(v / float(rest)) + epsilon, 1.0
    if source.config.get("rectify", True):
        if length >= source.get("sma_threshold", 5.0):
            n, most = float(length), float(longest)
            factor = math.sqrt((n - 4) / (most - 4) * (n - 2) / (most - 2) * most / n)
        else:
            below = np.ones_like(g)
    rate = _warmed(source, lr) / (1.0 - float(to(b1**t))) * factor
    shrink = _warmed(source, lr) * source.get("weight_decay") * p
    return -rate * m / below - shrink, rate * size / below + np.abs(shrink)


def _warmed(source: Source, lr: float) -> float:
    total, t = source.get("total_steps"), source.iterations + 1
    if not total:
        return lr
    warm = total * source.get("warmup_proportion", 0.1)
    if t <= warm:
        return lr * t / warm
    falling = max(total - warm, 1.0)
    return lr + (source.get("min_lr") - lr) / falling * min(t - warm, falling)


def yogi(source: Source, lr: float, p: np.ndarray, g: np.ndarray, slots: Slots) -> Change:
    """`Yogi`."""
    b1, b2 = (source.cast(key, source.get(key.replace("_", ""), 0.9)) for key in ("beta_1", "beta_2"))
    t, m, size = source.iterations + 1, *_means(source, g, slots)
    v = slots.get("v", np.full_like(g, source.get("initial_accumulator_value", 1e-6)))
    difference = np.square(g) - v
    side = np.tanh(10.0 * difference) if source.config.get("activation") == "tanh" else np.sign(difference)
    v = v + (1.0 - b2) * side * np.square(g)
    alpha = lr * math.sqrt(1.0 - b2**t) / (1.0 - b1**t) / (np.sqrt(v) + source.get("epsilon", 1e-3))
    moved = p - alpha * m
    l1, l2 = source.get("l1_regularization_strength"), source.get("l2_regularization_strength")
    new = np.sign(moved) * np.maximum(np.abs(moved) - l1 * alpha, 0.0) / (1.0 + l2 * alpha)
    return new - p, alpha * size + np.abs(p - new)


def novograd(source: Source, lr: float, p: np.ndarray, g: np.ndarray, slots: Slots) -> Change:
    """`NovoGrad`."""
    b1, b2 = source.cast("beta_1", 0.9), source.cast("beta_2", 0.999)
    square = float(np.sum(np.square(g)))
    v = square if source.iterations == 0 else b2 * float(slots["v"]) + (1.0 - b2) * square
    v = max(v, float(slots["vhat"])) if "vhat" in slots else v
    u = g / (math.sqrt(v) + (source.get("epsilon") or 1e-7)) + source.get("weight_decay") * p
    if source.config.get("grad_averaging") and source.iterations:
        u = (1.0 - b1) * u
    old = b1 * slots.get("m", np.zeros_like(g))
    return old - lr * u, np.abs(old) + np.abs(lr * u)


def lamb(source: Source, lr: float, p: np.ndarray, g: np.ndarray, slots: Slots) -> Change:
    """`LAMB`."""
    b1, b2, t = source.cast("beta_1", 0.9), source.cast("beta_2", 0.999), source.iterations + 1
    m, size = _means(source, g, slots)
    v = b2 * slots.get("v", np.zeros_like(g)) + (1.0 - b2) * np.square(g)
    below = (1.0 - source.power(b1, t)) * (np.sqrt(v / (1.0 - source.power(b2, t))) + (source.get("epsilon") or 1e-7))
    u, size = m / below, size / below
    amount = source.get("weight_decay", source.get("weight_decay_rate"))
    unadapted = _matches(source, "exclude_from_layer_adaptation", *EXCLUDED)
    if not _matches(source, *EXCLUDED):
        u, size = u + amount * p, size + np.abs(amount * p)
    norms = float(np.linalg.norm(p)), float(np.linalg.norm(u))
    rate = lr * (norms[0] / norms[1] if min(norms) > 0 and not unadapted else 1.0)
    return -rate * u, rate * size


def lars(source: Source, lr: float, p: np.ndarray, g: np.ndarray, slots: Slots) -> Change:
    """`LARSOptimizer` of tf.contrib.opt 1.15, `LARS` of tf-models; the slot has `optim`'s sign."""
    mu, rate, slope = source.get("momentum", 0.9), lr, g
    if not source.is_tf_train:
        slope = g if _matches(source, *EXCLUDED) else g + source.get("weight_decay_rate") * p
        size, length = float(np.linalg.norm(p)), float(np.linalg.norm(slope))
        if min(size, length) > 0 and not _matches(source, "exclude_from_layer_adaptation", *EXCLUDED):
            rate = lr * source.get("eeta", 0.001) * size / length
    elif not any(part in f"{source.variable}:0" for part in source.config.get("skip_list") or ()):
        decay = source.get("weight_decay", 0.0001)
        size, length = float(np.linalg.norm(p)), float(np.linalg.norm(g))
        if size > 0 and length > 0:
            rate = lr * source.get("eeta", 0.001) * size / (length + decay * size + source.get("epsilon"))
        slope = g + decay * p
    old = mu * slots.get("m", np.zeros_like(g))
    moved = old - rate * slope
    if source.config.get("nesterov") or source.config.get("use_nesterov"):
        moved = mu * moved - rate * slope
    return moved, np.abs(old) + np.abs(rate * slope)


def proximal_adagrad(source: Source, lr: float, p: np.ndarray, g: np.ndarray, slots: Slots) -> Change:
    """`ProximalAdagrad`: TensorFlow's `ResourceApplyProximalAdagrad`."""
    total = slots.get("accumulator", np.full_like(g, source.get("initial_accumulator_value", 0.1))) + np.square(g)
    l1, l2 = source.get("l1_regularization_strength"), source.get("l2_regularization_strength")
    alpha = lr / np.sqrt(total)
    moved = p - g * alpha
    new = np.sign(moved) * np.maximum(np.abs(moved) - alpha * l1, 0.0) / (1.0 + l2 * alpha)
    return new - p, np.abs(g * alpha) + np.abs(p - new)


def cocob(source: Source, lr: float, p: np.ndarray, g: np.ndarray, slots: Slots) -> Change:
    """`COCOB`."""
    zeros = np.zeros_like(g)
    before = slots.get("bet", zeros)
    largest = np.maximum(slots.get("largest_gradient", np.full_like(g, 1e-8)), np.abs(g))
    total, norms = slots.get("gradient_sum", zeros) + g, slots.get("gradient_norm_sum", zeros) + np.abs(g)
    reward = np.maximum(slots.get("reward", zeros) - g * before, 0.0)
    bet = -total / (largest * np.maximum(norms + largest, source.get("alpha", 100.0) * largest)) * (reward + largest)
    return bet - before, np.abs(before) + np.abs(bet)


def conditional_gradient(source: Source, lr: float, p: np.ndarray, g: np.ndarray, slots: Slots) -> Change:
    """`ConditionalGradient`, which gets singular vectors from LAPACK."""
    if source.config.get("ord") == "nuclear":
        left, _, right = np.linalg.svd(g if g.ndim == 2 else g.reshape(1, -1), full_matrices=False)
        towards = np.outer(left[:, 0], right[0]).reshape(g.shape)
    else:
        towards = g / (np.sqrt(np.sum(np.square(g))) + (source.get("epsilon") or 1e-7))
    towards = source.get("lambda_", 0.01) * towards
    return -(1.0 - lr) * (p + towards), (1.0 - lr) * (np.abs(p) + np.abs(towards))


FORMULAS = {
    "RectifiedAdam": rectified,
    "AdaBelief": rectified,
    "Yogi": yogi,
    "NovoGrad": novograd,
    "LARS": lars,
    "ProximalAdagrad": proximal_adagrad,
    "COCOB": cocob,
    "ConditionalGradient": conditional_gradient,
}
