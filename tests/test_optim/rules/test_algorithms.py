"""What single algorithms promise beside their formulas: ranges, names, which variables, refusals."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import optim
from optim.errors import HyperparameterError
from tests.helpers.dtensor_asserts import value_of
from tests.reference.adam import Adam as ReferenceAdam
from tests.reference.muon import Muon as ReferenceMuon
from tests.test_optim.support import Place, put

REFUSED = [
    ("RMSprop", {"rho": 1.0}, "rho"),
    ("RMSprop", {"momentum": -0.1}, "momentum"),
    ("RMSprop", {"momentum": 0.5, "momentum_slot": False}, "momentum_slot"),
    ("RMSprop", {"initial_velocity": -1.0}, "initial_velocity"),
    ("Adagrad", {"initial_accumulator_value": float("nan")}, "initial_accumulator_value"),
    ("Adagrad", {"initial_accumulator_value": "much"}, "initial_accumulator_value"),
    ("Adamax", {"beta_2": 1.0}, "beta_2"),
    ("Nadam", {"schedule_decay": -1.0}, "schedule_decay"),
    ("Ftrl", {"learning_rate_power": 0.1}, "learning_rate_power"),
    ("Ftrl", {"l1_regularization_strength": -1.0}, "l1_regularization_strength"),
    ("AdamW", {"weight_decay": None}, "weight_decay"),
    ("AdamW", {"weight_decay": -0.1}, "weight_decay"),
    ("Lion", {"beta_1": 1.1}, "beta_1"),
    ("Adafactor", {"clip_threshold": 0.0}, "clip_threshold"),
    ("Adafactor", {"beta_2_decay": 0.5}, "beta_2_decay"),
    ("Adafactor", {"learning_rate_cap": False}, "relative_step"),
    ("Adafactor", {"lazy_rows": ["table"]}, "lazy_rows"),
    ("Lamb", {"lazy_rows": ["table"]}, "lazy_rows"),
    ("Lamb", {"epsilon": -1e-7}, "epsilon"),
    ("Muon", {"ns_steps": 0}, "ns_steps"),
    ("Muon", {"ns_steps": True}, "ns_steps"),
    ("Muon", {"exclude_layers": ["("]}, "exclude_layers"),
    ("Muon", {"exclude_layers": "dense"}, "exclude_layers"),
    ("Muon", {"adam_weight_decay": -1.0}, "adam_weight_decay"),
]


@pytest.mark.parametrize(("name", "arguments", "word"), REFUSED)
def test_refused_by_name(name: str, arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(HyperparameterError, match=word):
        getattr(optim, name)(**arguments)


def test_bounds_that_are_allowed() -> None:
    assert optim.Lion(beta_1=1.0).beta_1 == 1.0
    assert optim.Ftrl(learning_rate_power=0.0).learning_rate_power == 0.0
    with pytest.raises(HyperparameterError, match=r"\[0, 1\]"):
        optim.Lion(beta_1=1.5)


def test_ftrl_refuses_a_rate_of_zero_before_anything_changes() -> None:
    variable = tf.Variable([1.0, 2.0])
    optimizer = optim.Ftrl(learning_rate=0.0)
    with pytest.raises(HyperparameterError, match="learning rate"):
        optimizer.apply_gradients([(tf.ones(2), variable)])
    np.testing.assert_array_equal(variable.numpy(), [1.0, 2.0])
    assert int(optimizer.iterations.numpy()) == 0


def test_adafactor_says_that_relative_step_alone_changes_nothing() -> None:
    with pytest.warns(UserWarning, match="learning_rate_cap"):
        optim.Adafactor(relative_step=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optim.Adafactor(relative_step=False, learning_rate_cap=False)


def test_nadam_keeps_the_product_of_its_schedule(mesh_2: Any) -> None:
    place = Place(mesh_2, {"x": ["x"]})
    x = place.variables({"x": np.ones(4)})["x"]
    optimizer = optim.Nadam(0.1, beta_1=0.8, schedule_decay=0.004)
    for _ in range(3):
        optimizer.apply_gradients([(put(np.ones(4), place.layout("x", 1)), x)])
    expected = np.prod([0.8 * (1 - 0.5 * 0.96 ** (0.004 * t)) for t in (1, 2, 3)])
    (product,) = [v for v in optimizer.variables if v.name.startswith("u_product")]
    np.testing.assert_allclose(value_of(product), expected, rtol=1e-15)


def test_centered_rmsprop_survives_rounding() -> None:
    """Gradients that hardly vary: in float32 v − a² can round below −ε, whose root is NaN."""
    variable = tf.Variable(np.ones(1000, np.float32))
    optimizer = optim.RMSprop(1e-3, centered=True)
    gradient = tf.constant(np.linspace(1e3, 1e4, 1000), tf.float32)
    for _ in range(200):
        optimizer.apply_gradients([(gradient, variable)])
    assert np.all(np.isfinite(variable.numpy()))


def test_muon_leaves_embeddings_vectors_and_excluded_layers_to_adam(mesh_2x2: Any) -> None:
    random = np.random.default_rng(0)
    shapes = {"hidden": (6, 4), "word_Embedding": (8, 4), "head": (4, 2), "bias": (4,), "conv": (2, 2, 4)}
    place = Place(mesh_2x2, {"hidden": ["batch", "model"], "word_Embedding": ["model", "unsharded"]})
    start = {name: random.normal(size=shape) for name, shape in shapes.items()}
    variables = place.variables(start)
    optimizer = optim.Muon(0.1, adam_weight_decay=0.5, weight_decay=0.2, exclude_layers=["^he"], adam_lr_ratio=0.5)
    gradients = {name: random.normal(size=shape) for name, shape in shapes.items()}
    optimizer.apply_gradients([(put(g, variables[n].layout), variables[n]) for n, g in gradients.items()])

    for name, shape in shapes.items():
        muon = name == "hidden"
        value = start[name] * (1 - 0.1 * (0.2 if muon else 0.5))
        algorithm = ReferenceMuon() if muon else ReferenceAdam()
        expected = algorithm.step(value, gradients[name], algorithm.slots(shape), 0.1 if muon else 0.05, 1)
        np.testing.assert_allclose(value_of(variables[name]), expected, rtol=1e-12, err_msg=name)
    assert optimizer.get_slot(variables["hidden"], "v").shape == ()
    assert float(value_of(optimizer.get_slot(variables["hidden"], "v"))) == 0.0
    assert optimizer.get_slot(variables["head"], "v").layout == variables["head"].layout


def test_muon_makes_each_matrix_of_a_stack_orthogonal(mesh_2x2: Any) -> None:
    random, reference = np.random.default_rng(2), ReferenceMuon(rms_rate=None, aspect_scale=True, stacks=True)
    shapes = {"tall": (5, 4, 2), "wide": (2, 3, 8), "four": (2, 2, 2, 4)}
    place = Place(mesh_2x2, {"tall": ["unsharded", "batch", "model"], "wide": ["unsharded", "unsharded", "batch"]})
    start = {name: random.normal(size=shape) for name, shape in shapes.items()}
    variables, slots = place.variables(start), {name: reference.slots(shape) for name, shape in shapes.items()}
    optimizer = optim.Muon(
        0.1, rms_rate=None, aspect_scale=True, stacks=True, weight_decay=None, adam_weight_decay=None
    )
    for step in range(1, 4):
        gradients = {name: random.normal(size=shape) for name, shape in shapes.items()}
        optimizer.apply_gradients([(put(g, variables[n].layout), variables[n]) for n, g in gradients.items()])
        for name in shapes:
            start[name] = reference.step(start[name], gradients[name], slots[name], 0.1, step)
            np.testing.assert_allclose(value_of(variables[name]), start[name], rtol=1e-10, err_msg=name)


def test_muon_makes_a_matrix_nearly_orthogonal() -> None:
    variable = tf.Variable(np.zeros((5, 9)))
    gradient = np.random.default_rng(1).normal(size=(5, 9))
    optim.Muon(1.0, rms_rate=None, weight_decay=None).apply_gradients([(tf.constant(gradient), variable)])
    singular = np.linalg.svd(variable.numpy(), compute_uv=False)
    assert np.all((singular > 0.6) & (singular < 1.3)), singular  # the band of its quintic's five iterations


def test_adafactor_keeps_two_means_of_a_matrix(mesh_2x2: Any) -> None:
    place = Place(mesh_2x2, {"w": ["unsharded", "batch", "model"]})
    w = place.variables({"w": np.ones((3, 4, 2))})["w"]
    optimizer = optim.Adafactor()
    optimizer.build([w])
    r, c = optimizer.get_slot(w, "r"), optimizer.get_slot(w, "c")
    assert (tuple(r.shape), list(r.layout.sharding_specs)) == ((3, 4), ["unsharded", "batch"])
    assert (tuple(c.shape), list(c.layout.sharding_specs)) == ((3, 2), ["unsharded", "model"])
    assert optimizer.get_slot(w, "v").shape == ()
    assert float(value_of(optimizer.get_slot(w, "v"))) == 0.0
    assert optimizer.executor_report().executor == "portable"


@pytest.mark.parametrize("kind", [optim.Adadelta, optim.legacy.v2.Adadelta])
def test_adadelta_whose_means_stand_still(kind: Any) -> None:
    """ρ = 1 leaves both means at 0, so that each step is the gradient: TensorFlow's own tests use it so."""
    weights = tf.Variable([[1.0, 2.0], [3.0, 4.0]], dtype=tf.float64)
    kind(1.0, 1.0, 1.0).apply_gradients([(tf.constant([[0.5, 0.0], [-1.0, 2.0]], tf.float64), weights)])
    np.testing.assert_allclose(weights, [[0.5, 2.0], [4.0, 2.0]], rtol=1e-15)
