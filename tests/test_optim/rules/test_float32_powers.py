"""Where β is rounded to float32: Keras's own optimizers as the oracle, in float32, over steps that show it.

A slot or step of the right rule differs by float32's roundings, some 1e-7 of it; 1 − 0.999 of a rounded 0.999 is off by
1.3e-5 of itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim.errors import HyperparameterError
from optim.rules.powers import KEPT, power
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.support import put, variable

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


@pytest.mark.parametrize("how", ["eager", "portable", "function", "xla", "on a mesh", "function on a mesh"])
@pytest.mark.quick(2)
def test_tf_train_multiplies_its_powers(how: str, mesh_2: Any) -> None:
    """From the first step, where 1 − βᵗ has the fewest digits; TensorFlow's own optimizer is the oracle."""
    expected = _variable_after(tf.compat.v1.train.AdamOptimizer(0.01), tf.Variable(START))
    layout = dtensor.Layout(["x"], mesh_2) if "mesh" in how else None
    betas = {f"beta_{i}": float(np.float32(b)) for i, b in ((1, 0.9), (2, 0.999))}
    executor, found = "portable" if how == "portable" else "auto", {}
    for form in ("multiplied", True):
        weights = variable(START, layout, "w", tf.float32)
        optimizer = optim.Adam(0.01, epsilon=1e-8, float32_powers=form, executor=executor, **betas)
        optimizer.build([weights])

        def step(gradient: Any, optimizer: Any = optimizer, weights: Any = weights) -> None:
            optimizer.apply_gradients([(gradient, weights)])

        run = tf.function(step, jit_compile=how == "xla") if "function" in how or how == "xla" else step
        for gradient in GRADIENTS:
            run(put(gradient, layout, tf.float32))
        found[form] = _apart(value_of(weights), expected)
    assert found["multiplied"] < 3e-7 < found[True], found


def test_a_product_is_kept_as_long_as_it_differs() -> None:
    """Where the table ends, the power goes on within a rounding of the step; a β that changes has no product."""
    for beta in (0.9, 0.999, 0.9999):
        product = np.float32(1)
        for _ in range(KEPT):
            product *= np.float32(beta)
        last, after = (1 - power(np, beta, float(step), "multiplied") for step in (KEPT, KEPT + 1))
        assert last == 1 - float(product)
        assert after / last == pytest.approx((1 - beta ** (KEPT + 1)) / (1 - beta**KEPT), rel=2e-6)
    with pytest.raises(HyperparameterError, match="float32_powers must be one of 'multiplied', got 'powers'"):
        optim.Adam(float32_powers="powers")
