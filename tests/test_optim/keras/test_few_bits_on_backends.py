"""`slot_dtype` and `stochastic_rounding` with Keras on JAX and PyTorch, next to TensorFlow's numbers."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import optim
from tests.helpers.once import made_once, shared_folder
from tests.test_optim.keras.test_backends import checks_of, program, which

SHAPES = {"kernel": (70, 100), "bias": (7,), "table": (3, 13, 110)}
NAMES = ("bfloat16", "int8")
OPTIONS = {"bfloat16": {"slot_dtype": "bfloat16", "rounding_seed": 11}, "int8": {"slot_dtype": "int8"}}


def draws(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def _step(optimizer: optim.Optimizer, variables: dict[str, tf.Variable], calls: range) -> None:
    for call in calls:
        gradients = draws(1 + call)
        optimizer.apply_gradients([(tf.constant(gradients[name]), variable) for name, variable in variables.items()])


@functools.cache
def folder() -> Path:
    """A folder with checkpoints of TensorFlow, and what TensorFlow has two steps later."""
    made_once("few-bits-of-tensorflow", _train)
    return _place()


def _place() -> Path:
    return shared_folder() / "few-bits"


def _train() -> str:
    place = _place()
    place.mkdir()
    for name in NAMES:
        variables = {key: tf.Variable(value, name=key) for key, value in draws(0).items()}
        optimizer = optim.Adam(0.01, **OPTIONS[name])
        _step(optimizer, variables, range(3))
        optim.save_checkpoint(place / f"tensorflow-{name}", optimizer, variables)
        _step(optimizer, variables, range(3, 5))
        np.savez(place / f"tensorflow-{name}.npz", **{key: variable.numpy() for key, variable in variables.items()})
    return str(place)


@functools.cache
def results(backend: str, checks: str = "quick") -> dict[str, str]:
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "DTOPT_KERNELS": "build", "CHECKS": checks}
    found = program(backend, "few_bits_checks", str(folder()), package="tests.test_optim.keras", **devices)
    return {each["check"]: each["error"] for each in found}


@pytest.mark.breadth
@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("check", checks_of("few_bits_checks"))
def test_few_bits(check: str, backend: str) -> None:
    """Each check of `few_bits_checks.py`."""
    assert not results(backend, which(check))[check]


@pytest.mark.breadth
@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("name", NAMES)
def test_tensorflow_continues_what_they_stored(name: str, backend: str) -> None:
    assert not results(backend, "long")["check_tensorflow_can_continue"]
    variables = {key: tf.Variable(value, name=key) for key, value in draws(0).items()}
    optimizer = optim.load_checkpoint(folder() / f"{backend}-{name}", variables)
    _step(optimizer, variables, range(3, 5))
    later = np.load(folder() / f"{backend}-{name}.npz")
    for key, variable in variables.items():
        assert np.mean(~np.isclose(variable.numpy(), later[key], rtol=1e-5, atol=1e-6)) < 1e-3
