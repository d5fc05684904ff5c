"""SavedModels with a `tf.function` that holds a step."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim.errors import UnsupportedError
from tests.test_optim.native.kernel_support import ops_of

GRADIENT = [3.0, -1.0]


def _module(variable: Any, **options: Any) -> Any:
    module = tf.Module()
    module.optimizer, module.w = optim.Adam(0.1, **options), variable
    module.optimizer.build([module.w])
    module.step = tf.function(lambda g: module.optimizer.apply_gradients([(g, module.w)]))
    return module


@pytest.mark.parametrize("mode", ["native", "portable"])
@pytest.mark.parametrize("concrete", [False, True])
def test_the_step_goes_on_in_what_is_loaded(concrete: bool, mode: str, tmp_path: Path) -> None:
    module = _module(tf.Variable([1.0, 2.0]), executor="portable" if mode == "portable" else "auto")
    module.step(tf.constant(GRADIENT))
    if concrete:
        module.step = module.step.get_concrete_function(tf.constant(GRADIENT))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tf.saved_model.save(module, str(tmp_path / "saved"))
    again = tf.saved_model.load(str(tmp_path / "saved"))
    needs_kernel = "DtoptStep" in ops_of(again.step if concrete else again.step.concrete_functions[0])
    assert needs_kernel == (mode == "native" and concrete)
    told = [str(warning.message) for warning in caught if "optim.build_kernels()" in str(warning.message)]
    assert len(told) == needs_kernel
    again.step(tf.constant(GRADIENT))
    module.step(tf.constant(GRADIENT))
    np.testing.assert_allclose(again.w.numpy(), module.w.numpy(), rtol=1e-6)


@pytest.mark.parametrize("mode", ["native"])
def test_the_kernels_step_on_a_mesh_is_refused(mode: str, mesh_2x2: Any, tmp_path: Path) -> None:
    layout = dtensor.Layout.replicated(mesh_2x2, 1)
    put = lambda value: dtensor.copy_to_mesh(tf.constant(value), layout)  # noqa: E731
    module = _module(dtensor.DVariable(put([1.0, 2.0]), name="w"))
    module.step(put(GRADIENT))
    tf.saved_model.save(module, str(tmp_path / "saved"))
    module.step = module.step.get_concrete_function(put(GRADIENT))
    with pytest.raises(UnsupportedError, match=r"save the tf\.function that it comes from"):
        tf.saved_model.save(module, str(tmp_path / "refused"))


@pytest.mark.parametrize("concrete", [False, True])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.quick(2)
def test_signatures_keep_all_arguments(count: int, concrete: bool, tmp_path: Path) -> None:
    """A step of several optimizers, in a function of one argument, and of more arguments than optimizers."""
    module = tf.Module()
    module.variables_of_it = [tf.Variable([1.0, 2.0]) for _ in range(count)]
    module.optimizers = [optim.SGD(0.5, executor="portable") for _ in range(count)]
    for optimizer, variable in zip(module.optimizers, module.variables_of_it, strict=True):
        optimizer.build([variable])

    def apply(gradient: Any) -> Any:
        for optimizer, variable in zip(module.optimizers, module.variables_of_it, strict=True):
            optimizer.apply_gradients([(gradient, variable)])
        return {"first": module.variables_of_it[0] + 0.0}

    spec = tf.TensorSpec([2], tf.float32)
    module.plain = tf.function(apply, input_signature=[spec])
    module.weighed = tf.function(lambda g, by, plus: apply(g * by + plus), input_signature=[spec, spec, spec])
    functions = {"plain": module.plain, "weighed": module.weighed}
    signatures = {n: f.get_concrete_function() if concrete else f for n, f in functions.items()}
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures=signatures)
    again = tf.saved_model.load(str(tmp_path / "saved"))
    one = tf.constant([1.0, 2.0])
    np.testing.assert_allclose(again.signatures["plain"](gradient=one)["first"], [0.5, 1.0])
    np.testing.assert_allclose(again.signatures["weighed"](g=one, by=one, plus=-one)["first"], [0.5, 0.0])
    np.testing.assert_allclose(again.weighed(one, one, one)["first"], [-0.5, -3.0])


@pytest.mark.parametrize("mode", ["native"])
def test_the_kernels_step_as_a_signature(mode: str, tmp_path: Path) -> None:
    module = _module(tf.Variable([1.0, 2.0]))

    @tf.function(input_signature=[tf.TensorSpec([2], tf.float32)])
    def apply(gradient: Any) -> Any:
        module.optimizer.apply_gradients([(gradient, module.w)])
        return module.w + 0.0

    step = apply.get_concrete_function()
    assert "DtoptStep" in ops_of(step)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tf.saved_model.save(module, str(tmp_path / "saved"), signatures=step)
    assert any("optim.build_kernels()" in str(warning.message) for warning in caught)
    again = tf.saved_model.load(str(tmp_path / "saved"))
    again.signatures["serving_default"](gradient=tf.constant(GRADIENT))
    module.step(tf.constant(GRADIENT))
    np.testing.assert_allclose(again.w.numpy(), module.w.numpy(), rtol=1e-6)
