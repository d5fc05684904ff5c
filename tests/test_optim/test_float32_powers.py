"""Where β is rounded to float32: Keras's own optimizers as the oracle, in float32, over steps that show it.

A slot or step of the right rule differs by float32's roundings, some 1e-7 of it; 1 − 0.999 of a rounded 0.999 is off by
1.3e-5 of itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import optim

STEPS, START = 4, np.zeros(8, np.float32)
GRADIENTS = np.random.default_rng(3).normal(size=(STEPS, 8)).astype(np.float32)


def _variable_after(optimizer: Any, variable: Any) -> np.ndarray:
    for gradient in GRADIENTS:
        optimizer.apply_gradients([(tf.constant(gradient), variable)])
    return np.asarray(variable)


def _oracle(family: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The variable, and the slot of Adam's or LAMB's `v` or of Adamax's `m`."""
    index = 0 if name == "Adamax" else 1
    if family == "keras3":
        import keras

        optimizer = getattr(keras.optimizers, name)(0.01)
        value = _variable_after(optimizer, keras.Variable(START))
        return value, np.asarray(optimizer.variables[2 + index])
    import tf_keras

    optimizer = getattr(tf_keras.optimizers if family == "tf_keras" else tf_keras.optimizers.legacy, name)(0.01)
    variable = tf.Variable(START)
    value = _variable_after(optimizer, variable)
    if family == "legacy":
        return value, optimizer.get_slot(variable, "mv"[index]).numpy()
    return value, optimizer.variables[1 + index].numpy()  # after iterations


@pytest.mark.parametrize(
    ("family", "name"),
    [
        (f, n)
        for f in ("keras3", "tf_keras", "legacy")
        for n in ("Adam", "Adamax", "Lamb")
        if n != "Lamb" or f == "keras3"
    ],
)
@pytest.mark.parametrize("executor", ["auto", "portable"])
def test_keras_rounds_beta_in_these_places(family: str, name: str, executor: str) -> None:
    expected, expected_slot = _oracle(family, name)
    if family == "legacy":
        arguments = {f"beta_{i}": float(np.float32(b)) for i, b in ((1, 0.9), (2, 0.999))}
    else:
        arguments = {"float32_powers": True}
    found = {}
    for kind, given in (("right", arguments), ("other", {"float32_powers": family == "legacy"})):
        variable = tf.Variable(START)
        optimizer = getattr(optim, name)(0.01, executor=executor, **given)
        value = _variable_after(optimizer, variable)
        slot = optimizer.get_slot(variable, "m" if name == "Adamax" else "v").numpy()
        found[kind] = (_apart(value - START, expected - START), _apart(slot, expected_slot))
    step, slot = found["right"]
    assert step < (2e-6 if family == "legacy" else 3e-7), found  # whose powers have float32's roundings, too
    assert slot < 3e-7, found
    if name == "Adam":
        assert max(found["other"]) > 4e-6, found


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    wide = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.linalg.norm(wide[0] - wide[1]) / np.linalg.norm(wide[1]))
