"""The reference for a step: the release's formula, with the stored config and arrays alone, and rounding.

How `migrate` read the config is not used, except the learning rate if a source has no other.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from migrate.bytes.arrays import LazyArray, widened
from migrate.proof import parity
from migrate.proof.loading import representable
from migrate.state import OptimizerState
from optim.errors import UnsupportedError

TF1_EPSILON = {"RMSprop": 1e-10, "Adagrad": 0.0}
TF1_NAMES = {"beta1": "beta_1", "beta2": "beta_2", "use_nesterov": "nesterov"}
"""Arguments of `tf.train` optimizers by Keras's names; RMSPropOptimizer's `decay` is `rho`."""
INSIDE = ("inner_optimizer", "optimizer")
"""Keys of a wrapper's config for the inner optimizer."""
STEPS_ITSELF = ("MovingAverage", "Lookahead", "SWA")
"""Wrappers that get gradients like an optimizer."""
ROUNDINGS = 8
"""Allowed number of roundings of the variable and of its change in a step."""


def parity_source(state: OptimizerState) -> parity.Source:
    """The source of a state in the formulas' form.

    Raises:
      UnsupportedError: only dtopt's own reading is stored.
    """
    stored = state.source
    if stored is None or stored.format == "slots" or stored.optimizer_config is None or stored.generation is None:
        raise UnsupportedError(
            "the source is a slot-variable checkpoint itself, so there is no other formula to compare with"
        )
    inner = _innermost_optimizer(stored.optimizer_config)
    config = {**inner.get("config", {}), **_outer_limits(stored.optimizer_config)}
    if stored.traits.has_tf_train_names:
        config = {TF1_NAMES.get(key, key): value for key, value in config.items()}
        if str(inner.get("class_name", "")).endswith("RMSPropOptimizer") and "decay" in config:
            config["rho"] = config.pop("decay")
        config.setdefault("epsilon", TF1_EPSILON.get(state.algorithm, 1e-8))
    config |= _kept_as_variables({**_settings(stored.weights or ()), **stored.scalars}, config)
    if not {"learning_rate", "lr"} & set(config) or stored.traits.lists_rate:  # a Keras 3 list has its own
        config["learning_rate"] = state.hyperparameters["learning_rate"]
    dtypes = {a.dtype for owners in state.slots.values() for a in owners.values()}
    dtypes = dtypes or {v.dtype for v in state.variables if v.trainable}  # before the first step
    return parity.Source(
        state.algorithm,
        config,
        stored.generation,
        stored.versions.tensorflow_number if stored.traits.has_tf_train_names else stored.versions.keras_number,
        state.iterations,
        "float32" if dtypes == {"float32"} else "float64",
        product=state.scalars.get("u_product"),
        scaled_linear=bool(state.hyperparameters.get("learning_rate_in_linear")),
        late_z=bool(state.hyperparameters.get("late_z")),
        called=str(inner.get("class_name", "")).rpartition(">")[2],
    )


def _innermost_optimizer(document: Mapping[str, Any]) -> Mapping[str, Any]:
    while True:
        config = document.get("config")
        children = (config.get(key) for key in INSIDE) if isinstance(config, Mapping) else ()
        inner = next((child for child in children if isinstance(child, Mapping) and "class_name" in child), None)
        if inner is None:
            return document
        document = inner


def _outer_limits(document: Mapping[str, Any]) -> dict[str, Any]:
    """Gradient limits of a wrapper that calls only the inner optimizer's update, and clips by itself."""
    while isinstance(config := document.get("config"), Mapping):
        if str(document.get("class_name", "")).rpartition(">")[2] in STEPS_ITSELF:
            return {key: config.get(key) for key in ("clipnorm", "clipvalue", "global_clipnorm")}
        document = next((config[key] for key in INSIDE if isinstance(config.get(key), Mapping)), {})
    return {}


def _settings(weights: Sequence[tuple[str, LazyArray]]) -> dict[str, LazyArray]:
    """The values next to a learning rate in a named list; a slot may have the name of a hyperparameter."""
    scopes = {key.rpartition("/")[0] for key, _ in weights if key.rpartition("/")[2] == "learning_rate"}
    split = ((key.rpartition("/"), array) for key, array in weights)
    return {name: array for (scope, _, name), array in split if scope in scopes}


def _kept_as_variables(scalars: Mapping[str, LazyArray], config: Mapping[str, Any]) -> dict[str, float]:
    """Hyperparameters that a checkpoint stores as variables: newer than the config."""
    named = {name.lstrip("_"): array for name, array in scalars.items()}
    wanted = [k for k in ("learning_rate", "decay", "momentum", "rho", "beta_1", "beta_2") if k in named]
    if isinstance(config.get("learning_rate"), Mapping):
        wanted = [k for k in wanted if k != "learning_rate"]
    return {k: float(numbers(named[k]).reshape(-1)[0]) for k in wanted}


def numbers(array: LazyArray) -> np.ndarray:
    """A whole array, in float64 and in its shape."""
    return widened(array.load(), array.dtype).reshape(array.shape)


def random(name: str, shape: tuple[int, ...], dtype: str, scale: float) -> np.ndarray:
    """Fixed pseudo-random numbers of a variable, representable in its dtype, as float64."""
    values = scale * np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    return representable(values, dtype)


def error(got: np.ndarray, want: np.ndarray, magnitude: np.ndarray, dtype: str) -> float:
    """Greatest difference relative to the rounding tolerance; infinite if only one side is finite."""
    limit = ROUNDINGS * _machine_epsilon(dtype) * (np.abs(want) + magnitude)
    finite = np.isfinite(want)
    if not np.array_equal(finite, np.isfinite(got)):
        return float("inf")
    if not finite.any():
        return 0.0
    return float(np.max(np.abs(got - want)[finite] / np.maximum(limit[finite], np.finfo(np.float64).tiny)))


def _machine_epsilon(dtype: str) -> float:
    return 2.0**-7 if dtype == "bfloat16" else float(np.finfo(dtype).eps)
