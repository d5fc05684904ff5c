"""`fit` of Keras and tf_keras."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np

import optim
from tools.gpu.device import Device, NothingToCheckError, first_line, named

WAYS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("eagerly", {"run_eagerly": True}, "float32"),
    ("in a graph", {"jit_compile": False}, "float32"),
    ("with jit_compile", {"jit_compile": True}, "float32"),
    ("in a graph, mixed_float16", {"jit_compile": False}, "mixed_float16"),
    ("in a graph, mixed_bfloat16", {"jit_compile": False}, "mixed_bfloat16"),
    ("with jit_compile, mixed_bfloat16", {"jit_compile": True}, "mixed_bfloat16"),
)
"""How a model is fitted: a name, arguments of `compile`, and Keras's dtype policy."""


def check_fit(device: Device, name: str) -> tuple[bool, str]:
    """`fit` with our Adam against Keras's own, which computes eagerly on the same device."""
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise NothingToCheckError(f"{name} is not installed") from error
    wrong = []
    for how, arguments, policy in WAYS:
        try:
            problem = _problem_of_fit(device, module, arguments, policy)
        except Exception as error:  # whatever Keras raises is the result of this way
            problem = first_line(error)
        if problem:
            wrong.append(f"{how}: {problem}")
            print("  ", wrong[-1], file=sys.stderr, flush=True)
    text = f"{len(WAYS) - len(wrong)} of {len(WAYS)} ways of fit as with Keras's optimizer"
    return not wrong, "; ".join([text, *wrong[:1]])


def _problem_of_fit(device: Device, module: Any, arguments: dict[str, Any], policy: str) -> str:
    """What is wrong with a fit; empty if nothing is. XLA compiles a step without the kernel."""
    x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    y = np.random.default_rng(1).normal(size=(32, 2)).astype(np.float32)
    inner = optim.Adam(0.01)
    weights = []
    for optimizer, how in (
        (module.optimizers.Adam(0.01), {"run_eagerly": True}),
        (optim.for_keras(inner, module), arguments),
    ):
        module.utils.set_random_seed(3)
        layers = module.layers
        model = module.Sequential(
            [layers.Input((4,)), layers.Dense(8, "tanh", dtype=policy), layers.Dense(2, dtype=policy)]
        )
        start = [np.asarray(weight) for weight in model.get_weights()]
        model.compile(optimizer, module.losses.MeanSquaredError(), **how)
        with device.launching(named("adam")):
            model.fit(x, y, 8, 3, verbose=0, shuffle=False)
            reason = device.why_not_used(inner) if how is arguments and not arguments.get("jit_compile") else ""
        if reason:
            return f"the kernel is not used: {reason}"
        weights.append([np.asarray(weight) for weight in model.get_weights()])
    moved = max(float(np.max(np.abs(a - b))) for a, b in zip(start, weights[0], strict=True))
    off = max(float(np.max(np.abs(a - b))) for a, b in zip(*weights, strict=True))
    allowed = (1e-3 if policy == "float32" else 0.1) * moved
    return "" if off <= allowed and moved > 0 else f"weights are {off:.3g} off, where they moved by {moved:.3g}"
