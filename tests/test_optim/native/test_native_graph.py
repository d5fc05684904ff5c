"""dtopt's own kernel inside a `tf.function`: the same steps as eagerly, in the order that the function asks for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import optim
from optim.executors import one_op
from optim.native import library
from tests.helpers.breadth import covering
from tests.test_optim.cases import FIRST, VARIANTS, WHOLE, Case, marked
from tests.test_optim.native.kernel_support import ops_of

SHAPES = ((), (0,), (3, 5), (130, 257), (70001,))
CASES = [case for case in VARIANTS if case.optimizer not in WHOLE]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "norm": {"global_clipnorm": 0.1},
    "norms": {"clipnorm": 0.1, "clipvalue": 0.05},
    "norm first": {"clipnorm": 0.1, "clipvalue": 0.05, "clip_order": "norm_first"},
    "averages": {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 2},
    "decay": {"weight_decay": 0.1, "weight_decay_exclude": ["v0"], "learning_rate_multipliers": {"v3": 0.5}},
    "accumulated": {"gradient_accumulation_steps": 2},
    "scaled": {"loss_scale": 8.0},
    "dynamic": {"loss_scale": "dynamic", "loss_scale_growth_steps": 2},
    "compiled": {"jit_compile": True},
}
NATIVE = pytest.mark.parametrize("mode", ["native"])


def values(seed: int, dtype: Any = np.float32) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [np.asarray(random.normal(size=shape), dtype) for shape in SHAPES]


def model(dtype: Any = np.float32) -> list[tf.Variable]:
    return [tf.Variable(value, name=f"v{i}") for i, value in enumerate(values(7, dtype))]


def in_function(optimizer: Any, variables: list[tf.Variable]) -> Any:
    @tf.function
    def step(gradients: Any) -> None:
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    optimizer.build(variables)
    return step


def assert_equal_state(one: Any, two: Any, rtol: float = 2e-6) -> None:
    for mine, theirs in zip(one, two, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(
            tf.cast(mine, tf.float64).numpy(), tf.cast(theirs, tf.float64).numpy(), rtol=rtol, atol=1e-8
        )


@NATIVE
@pytest.mark.parametrize("case", marked([(case,) for case in CASES], lambda case: case == FIRST[case.optimizer]))
@pytest.mark.quick(7)
def test_a_function_steps_as_eager_calls(case: Case, mode: str) -> None:
    one, two, eager, traced = case.make(), case.make(), model(), model()
    step = in_function(two, traced)
    for k in range(3):
        one.apply_gradients(zip(map(tf.constant, values(k)), eager, strict=True))
        step([tf.constant(g) for g in values(k)])
    assert "DtoptStep" in ops_of(step.get_concrete_function([tf.constant(g) for g in values(0)]))
    assert_equal_state([*one.variables, *eager], [*two.variables, *traced])


@NATIVE
@covering(1, name=OPTIONS, dtype=["float32", "float64", "bfloat16", "float16"])
@pytest.mark.quick(4)
def test_every_option(name: str, dtype: str, mode: str) -> None:
    kind = tf.as_dtype(dtype).as_numpy_dtype
    more = {} if dtype in ("float32", "float64") else {"master_copies": name != "norm"}
    if name == "compiled" and more.get("master_copies"):
        more = {}
    one = optim.Adam(0.01, **{k: v for k, v in OPTIONS[name].items() if k != "jit_compile"}, **more)
    two = optim.Adam(0.01, **OPTIONS[name], **more)
    eager, traced = model(kind), model(kind)
    step = in_function(two, traced)
    for k in range(4):
        gradients = [tf.constant(g) for g in values(k, kind)]
        one.apply_gradients(zip(gradients, eager, strict=True))
        step(gradients)
    assert "DtoptStep" in ops_of(step.get_concrete_function([tf.constant(g) for g in values(0, kind)]))
    rtol = 2e-6 if dtype in ("float32", "float64") else 0.02
    assert_equal_state([*one.variables, *eager], [*two.variables, *traced], rtol)


@NATIVE
def test_steps_and_reads_keep_their_order(mode: str) -> None:
    weights, optimizer = tf.Variable(np.ones(4, np.float32)), optim.SGD(0.25, momentum=0.5)
    optimizer.build([weights])

    @tf.function
    def run() -> Any:
        before = weights.read_value()
        optimizer.apply_gradients([(tf.ones(4), weights)])
        between = weights.read_value()
        optimizer.apply_gradients([(between, weights)])
        weights.assign_add(tf.ones(4))
        optimizer.apply_gradients([(tf.zeros(4), weights)])
        return before, between, weights.read_value(), optimizer.get_slot(weights, "m").read_value()

    before, between, after, momentum = run()
    np.testing.assert_array_equal(before, np.ones(4))
    np.testing.assert_array_equal(between, np.full(4, 0.75))
    m = 0.5 * -0.25 - 0.25 * 0.75
    np.testing.assert_allclose(after, np.full(4, 0.75 + m + 1.0 + 0.5 * m))
    np.testing.assert_allclose(momentum, np.full(4, 0.5 * m))
    np.testing.assert_array_equal(before, np.ones(4), err_msg="who has read a variable keeps the value")
    assert optimizer.iterations.numpy() == 3


@NATIVE
def test_steps_in_loops_and_branches(mode: str) -> None:
    weights, optimizer = tf.Variable(np.ones(4, np.float32)), optim.Adam(0.1)
    other, reference = tf.Variable(np.ones(4, np.float32)), optim.Adam(0.1)
    optimizer.build([weights])

    @tf.function
    def run(count: Any) -> None:
        for i in tf.range(count):
            if i % 2 == 0:
                optimizer.apply_gradients([(weights * 2.0, weights)])
            else:
                optimizer.apply_gradients([(weights * 3.0, weights)])

    run(tf.constant(6))
    for i in range(6):
        reference.apply_gradients([(other * (2.0 if i % 2 == 0 else 3.0), other)])
    assert_equal_state([*optimizer.variables, weights], [*reference.variables, other])


@NATIVE
def test_a_step_that_is_not_finite_is_left_out(mode: str) -> None:
    weights, optimizer = tf.Variable(np.ones(4, np.float32)), optim.Adam(0.1, loss_scale="dynamic")
    step = in_function(optimizer, [weights])
    step([tf.constant([1.0, np.inf, 1.0, 1.0])])
    np.testing.assert_array_equal(weights.numpy(), np.ones(4))
    assert optimizer.iterations.numpy() == 0
    step([tf.ones(4) * optimizer.current_loss_scale])
    np.testing.assert_allclose(weights.numpy(), np.full(4, 0.9), rtol=1e-5)


@NATIVE
def test_an_unknown_shape_that_does_not_fit_is_an_error(mode: str) -> None:
    weights, optimizer = tf.Variable(np.ones((3, 4), np.float32)), optim.SGD(0.1)
    optimizer.build([weights])

    @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
    def step(gradient: Any) -> None:
        optimizer.apply_gradients([(gradient, weights)])

    step(tf.ones((3, 4)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="gradient"):
        step(tf.ones(4))
    np.testing.assert_allclose(weights.numpy(), np.full((3, 4), 0.9))


@NATIVE
def test_under_xla_steps_are_ops(mode: str) -> None:
    weights, optimizer = tf.Variable(np.ones(4, np.float32)), optim.Adam(0.1)
    optimizer.build([weights])

    @tf.function(jit_compile=True)
    def step(gradient: Any) -> None:
        optimizer.apply_gradients([(gradient, weights)])

    step(tf.ones(4))
    np.testing.assert_allclose(weights.numpy(), np.full(4, 0.9), rtol=1e-5)


@NATIVE
def test_portable_insists_on_ops(mode: str) -> None:
    weights, optimizer = tf.Variable(np.ones(4, np.float32)), optim.Adam(0.1, executor="portable")
    step = in_function(optimizer, [weights])
    assert "DtoptStep" not in ops_of(step.get_concrete_function([tf.ones(4)]))


@NATIVE
def test_jit_compile_leaves_to_the_kernel_what_it_does(mode: str) -> None:
    optimizer, weights = optim.Adam(0.1, jit_compile=True), tf.Variable(np.ones(4, np.float32))
    optimizer.apply_gradients([(tf.ones(4), weights)])
    assert set(optimizer.executor_report().kernels.values()) == {"native"}
    np.testing.assert_allclose(weights.numpy(), np.full(4, 0.9), rtol=1e-5)


@NATIVE
def test_jit_compile_compiles_what_the_kernel_leaves(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As variables on a GPU: they were left to single ops, 2,500 for a step of ResNet-50."""
    monkeypatch.setattr(one_op, "takes", lambda work, i: False)
    weights, optimizer = tf.Variable(np.ones(4, np.float32)), optim.Adam(0.1, jit_compile=True)
    step = in_function(optimizer, [weights])
    calls = [op for op in step.get_concrete_function([tf.ones(4)]).graph.get_operations() if "Call" in op.type]
    assert any(op.get_attr("_XlaMustCompile") for op in calls)
    step([tf.ones(4)])
    np.testing.assert_allclose(weights.numpy(), np.full(4, 0.9), rtol=1e-5)


@pytest.mark.parametrize("mode", ["native_function"])
def test_a_gradient_below_the_limit_is_left_as_it_is(mode: str) -> None:
    """0.8 is another number in float32, which a step in float64 must not see."""
    variable = tf.Variable(tf.constant(0.0, tf.float64))
    optimizer = optim.SGD(1.0, clipnorm=0.8)
    tf.function(lambda: optimizer.apply_gradients([(tf.constant(-0.5, tf.float64), variable)]))()
    assert variable.numpy() == 0.5


@NATIVE
@pytest.mark.parametrize("jit_compile", [None, True])
def test_a_kernel_that_is_there_at_a_later_trace_only(
    jit_compile: bool | None, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading it makes no variable, of which a `tf.function` may make none any more."""
    variable, optimizer = tf.Variable([1.0, 2.0]), optim.SGD(1.0)
    optimizer.build([variable])

    @tf.function(jit_compile=jit_compile)
    def step(gradient: Any, is_real: bool) -> None:
        if is_real:
            optimizer.apply_gradients([(gradient, variable)])

    monkeypatch.setattr(library._kernels, "ops", None)
    step(tf.ones(2), False)
    assert library._kernels.ops is None
    step(tf.ones(2), True)
    assert library._kernels.ops is not None
    np.testing.assert_array_equal(variable, [0.0, 1.0])
