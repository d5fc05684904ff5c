"""Optimizers with state in few bits, and what a step of theirs leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import optim
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.support import put, stepper, variable

SHAPES = {"kernel": (70, 100), "bias": (7,), "table": (3, 13, 1100)}
RULES = [
    *(optim.AdamW, optim.Adamax, optim.Nadam, optim.Lion, optim.Adadelta, optim.Adan, optim.AdaBelief, optim.Yogi),
    *(optim.RectifiedAdam, optim.ProximalAdagrad, optim.ScheduleFreeAdamW, optim.Adagrad),
]
"""Optimizers, other than Adam, with rules that treat elements by themselves."""
OPTIONS: dict[str, dict[str, Any]] = {
    "bfloat16": {"slot_dtype": "bfloat16", "rounding_seed": 11},
    "int8": {"slot_dtype": "int8"},
    "low bfloat16": {"slot_dtype": "bfloat16", "dtype": tf.bfloat16},
    "low int8": {"slot_dtype": "int8", "dtype": tf.bfloat16},
    "half int8": {"slot_dtype": "int8", "dtype": tf.float16},
    "half bfloat16": {"slot_dtype": "bfloat16", "dtype": tf.float16, "weight_decay": 0.01},
    "rounds": {"stochastic_rounding": True, "dtype": tf.bfloat16},
    "rounds int8": {"stochastic_rounding": True, "slot_dtype": "int8", "dtype": tf.bfloat16},
    "copies int8": {"master_copies": True, "slot_dtype": "int8", "dtype": tf.bfloat16},
    "copies bfloat16": {"master_copies": True, "slot_dtype": "bfloat16", "dtype": tf.float16},
    "all int8": {"slot_dtype": "int8", "use_ema": True, "weight_decay": 0.1, "clipvalue": 0.25, "amsgrad": True},
    "all bfloat16": {
        "slot_dtype": "bfloat16",
        "stochastic_rounding": True,
        "dtype": tf.bfloat16,
        "use_ema": True,
        "weight_decay": 0.1,
        "clipvalue": 0.25,
        "gradient_accumulation_steps": 2,
        "loss_scale": 4.0,
    },
    "overwritten": {"stochastic_rounding": True, "dtype": tf.bfloat16, "use_ema": True, "ema_overwrite_frequency": 2},
    "accumulated int8": {"slot_dtype": "int8", "gradient_accumulation_steps": 2, "loss_scale": "dynamic"},
}
"""Arguments of Adam, and the dtype of variables if it is not float32."""


def gradients_of(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def executor_of(mode: str) -> str:
    return "portable" if mode in ("portable", "function") else "auto"


def train(optimizer: Any, mode: str, dtype: Any = tf.float32, steps: int = 4, places: Any = None) -> dict[str, Any]:
    """Variables after some steps with the gradients of `gradients_of`, on no mesh or in `places`."""
    places = places or {}
    variables = {name: variable(v, places.get(name), name, dtype) for name, v in gradients_of(0).items()}
    optimizer.build(list(variables.values()))
    step = stepper(optimizer, mode)
    for call in range(steps):
        gradients = gradients_of(1 + call)
        step([(put(gradients[name], places.get(name), dtype), var) for name, var in variables.items()])
    return variables


def bits_of(optimizer: Any, variables: dict[str, Any]) -> dict[str, np.ndarray]:
    """All that a step leaves: variables, and slots by name and variable."""
    found = {name: value_of(var) for name, var in variables.items()}
    for slot, index, var in optimizer._state.slots.items():
        found[f"{slot}/{list(variables)[index]}"] = value_of(var)
    return {name: np.asarray(value) for name, value in found.items()}


def assert_same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        assert value.dtype == wanted[name].dtype
        np.testing.assert_array_equal(value, wanted[name], err_msg=name)
