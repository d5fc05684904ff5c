"""Values of models of a few variables and of their gradients, for any framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

SHAPES: Mapping[str, tuple[int, ...]] = {
    "kernel": (6, 4),
    "table": (8, 3),
    "bias": (4,),
    "scale": (),
    "odd": (3, 5),  # divides over no axis of two
}
MODES = ("local", "portable", "function", "native", "native_function")
"""`native` ones run dtopt's own kernel."""


def start_values(seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: np.asarray(random.normal(size=shape)) for name, shape in SHAPES.items()}


def gradient_values(step: int) -> dict[str, np.ndarray | None]:
    """Gradients of one call, of many magnitudes; `bias` has none in the fourth."""
    random = np.random.default_rng(1000 + step)
    values: dict[str, np.ndarray | None] = {}
    for position, (name, shape) in enumerate(SHAPES.items()):
        values[name] = np.asarray(random.normal(size=shape)) * 10.0 ** (position - 2)
    if step == 3:
        values["bias"] = None
    return values


def scaled_values(values: Mapping[str, Any], scale: float, call: int, steps: int) -> dict[str, Any]:
    """Gradients under loss scaling: not finite in the second call and, where each call is a step, in the fifth."""
    scaled = {name: None if value is None else value * scale for name, value in values.items()}
    if call == 1:
        scaled["kernel"][4, 3] = np.inf
    if call == 4 and steps == 1:
        scaled["odd"][0, 2] = np.nan
    return scaled
