"""Bad input gets an error that names the culprit, and changes no variable."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim.errors import (
    GradientsError,
    HyperparameterError,
    MismatchError,
    NoGradientsError,
    UnknownVariableError,
)
from tests.test_optim.support import Place, put, put_gradients, snapshot, start_values, variable

CLASSES = ("SGD", "Adam", "Adadelta")


def _good(variables: dict[str, Any]) -> list[tuple[Any, Any]]:
    return put_gradients({name: np.ones(v.shape) for name, v in variables.items()}, variables)


def _replace(pairs: list[Any], position: int, pair: Any) -> list[Any]:
    return [*pairs[:position], pair, *pairs[position + 1 :]]


def _wrong_shape(pairs: list[Any]) -> Any:
    layout = getattr(pairs[2][1], "layout", None)
    whole = None if layout is None else dtensor.Layout.replicated(layout.mesh, 1)
    return _replace(pairs, 2, (put(np.ones(6), whole), pairs[2][1]))


def _wrong_dtype(pairs: list[Any]) -> Any:
    layout = getattr(pairs[0][1], "layout", None)
    return _replace(pairs, 0, (put(np.ones((6, 4)), layout, tf.int32), pairs[0][1]))


# name: (what becomes of five good pairs, the error, what its text names)
BAD_PAIRS: dict[str, tuple[Callable[[list[Any]], Any], type[Exception], str]] = {
    "number": (lambda pairs: 3, GradientsError, "grads_and_vars .*int"),
    "no pair": (lambda pairs: _replace(pairs, 1, pairs[1][0]), GradientsError, r"grads_and_vars\[1\]"),
    "triple": (lambda pairs: _replace(pairs, 3, (*pairs[3], 1)), GradientsError, r"grads_and_vars\[3\]"),
    "no variable": (
        lambda pairs: _replace(pairs, 2, (pairs[2][0], "bias")),
        GradientsError,
        "expected a variable.*bias",
    ),
    "twice": (lambda pairs: [*pairs, pairs[0]], GradientsError, "kernel.*twice"),
    "only None": (lambda pairs: [(None, v) for _, v in pairs], NoGradientsError, "kernel"),
    "shape": (_wrong_shape, MismatchError, r"bias.*\(6,\).*\(4,\)"),
    "dtype": (_wrong_dtype, MismatchError, "kernel.*int32.*float64"),
    "no tensor": (lambda pairs: _replace(pairs, 4, (object(), pairs[4][1])), GradientsError, "odd"),
    "slices of a scalar": (
        lambda pairs: _replace(pairs, 3, (tf.IndexedSlices(tf.ones([1], tf.float64), tf.constant([0])), pairs[3][1])),
        MismatchError,
        "scale",
    ),
}


@pytest.mark.parametrize("layout", ["plain", "mixed"])
@pytest.mark.parametrize("optimizer_class", CLASSES)
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "function"])
@pytest.mark.quick(2)
def test_bad_pairs_change_nothing(layout: str, optimizer_class: str, traced: bool, request: Any) -> None:
    place = Place.named(layout, request)
    variables = place.variables(start_values())
    optimizer = getattr(optim, optimizer_class)(0.1, use_ema=True)
    optimizer.apply_gradients(_good(variables))
    before = snapshot([*variables.values(), *optimizer.variables])
    bad_pairs = {
        **BAD_PAIRS,
        "unknown": (lambda pairs: [*pairs, (pairs[2][0], stranger)], UnknownVariableError, "stranger.*kernel"),
    }
    stranger = variable(np.ones(4), place.layout("bias", 1), "stranger")
    for name, (spoil, error, culprit) in bad_pairs.items():
        pairs = spoil(_good(variables))
        call = tf.function(lambda pairs=pairs: optimizer.apply_gradients(pairs), autograph=False) if traced else None
        with pytest.raises(error, match=f"(?s){culprit}"):
            optimizer.apply_gradients(pairs) if call is None else call()
        assert snapshot([*variables.values(), *optimizer.variables]) == before, name
    optimizer.apply_gradients(_good(variables))
    assert int(optimizer.iterations.numpy()) == 2


@pytest.mark.parametrize("executor", ["local", "portable"])
def test_gradients_of_another_mesh_change_nothing(executor: str, mesh_2: Any, mesh_2x2: Any) -> None:
    kernel = variable(np.ones((4, 4)), dtensor.Layout(["batch", "model"], mesh_2x2), "kernel")
    plain = variable(np.ones(3), None, "plain")
    optimizer = optim.SGD(0.1, momentum=0.9, executor=executor)
    optimizer.build([kernel, plain])
    before = snapshot([kernel, plain, *optimizer.variables])
    on_2 = put(np.ones((4, 4)), dtensor.Layout.replicated(mesh_2, 2))
    on_none = put(np.ones((4, 4)), None)
    for pairs in (
        [(put(np.ones(3), None), plain), (on_2, kernel)],
        [(put(np.ones(3), None), plain), (on_none, kernel)],
        [(put(np.ones((4, 4)), kernel.layout), kernel), (put(np.ones(3), dtensor.Layout.replicated(mesh_2, 1)), plain)],
    ):
        with pytest.raises(MismatchError, match=r"(kernel|plain).*mesh"):
            optimizer.apply_gradients(pairs)
        assert snapshot([kernel, plain, *optimizer.variables]) == before


def test_variables_of_another_mesh_are_refused(mesh_2: Any, mesh_2x2: Any) -> None:
    optimizer = optim.Adam(mesh=mesh_2)
    for layout, name in ((dtensor.Layout.replicated(mesh_2x2, 1), "far"), (None, "plain")):
        with pytest.raises(MismatchError, match=name):
            optimizer.build([variable(np.ones(4), layout, name)])
        assert optimizer.slot_names == ["m", "v"]
        assert len(optimizer.variables) == 2


@pytest.mark.parametrize("layout", ["plain", "mixed"])
@pytest.mark.parametrize("steps", [None, 2])
@pytest.mark.parametrize(
    ("make", "culprit"),
    [
        (lambda bad, **o: optim.SGD(lambda: bad.get("value", 0.1), **o), "learning_rate"),
        (lambda bad, **o: optim.Adam(0.1, beta_1=lambda: 10 * bad.get("value", 0.09), **o), "beta_1"),
        (lambda bad, **o: optim.Adadelta(0.1, epsilon=lambda: bad.get("value", 1e-7), **o), "epsilon"),
    ],
)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
@pytest.mark.quick(8)
def test_callable_that_goes_bad(
    make: Any, culprit: str, value: float, steps: int | None, layout: str, request: Any
) -> None:
    variables = Place.named(layout, request).variables(start_values())
    bad: dict[str, float] = {}
    optimizer = make(bad, gradient_accumulation_steps=steps)
    optimizer.apply_gradients(_good(variables))
    before = snapshot([*variables.values(), *optimizer.variables])
    bad["value"] = value
    with pytest.raises(HyperparameterError, match=culprit):
        optimizer.apply_gradients(_good(variables))
    assert snapshot([*variables.values(), *optimizer.variables]) == before


@pytest.mark.parametrize("layout", ["plain", "mixed"])
def test_learning_rate_variable_that_goes_bad(layout: str, request: Any) -> None:
    variables = Place.named(layout, request).variables(start_values())
    optimizer = optim.Adam(0.1)
    optimizer.apply_gradients(_good(variables))
    optimizer.learning_rate.assign(float("nan"))
    before = snapshot([*variables.values(), *optimizer.variables])
    with pytest.raises(HyperparameterError, match=r"learning_rate.*nan"):
        optimizer.apply_gradients(_good(variables))
    assert snapshot([*variables.values(), *optimizer.variables]) == before


COMMON_BAD: dict[str, tuple[Any, ...]] = {
    "learning_rate": (-0.1, float("nan"), float("inf"), "fast", True, [0.1, 0.2], np.ones(2)),
    "clipnorm": (0, -1.0, float("nan"), float("inf"), "1", True),
    "clipvalue": (0, -1.0, float("nan")),
    "global_clipnorm": (0, -1.0, float("nan")),
    "clip_order": ("sideways",),
    "use_ema": ("yes", 1),
    "ema_momentum": (-0.1, 1.1, float("nan"), "0.9"),
    "ema_start": ("", "last_step", 1),
    "ema_overwrite_frequency": (0, -1, 1.5, True),
    "jit_compile": ("yes", 1),
    "weight_decay": (-0.1, float("nan"), "0.1", True, lambda: 0.1),
    "slot_placement": ("somewhere", 3, None),
    "gradient_accumulation_steps": (0, -2, 1.5, True),
    "executor": ("gpu", None),
    "decay": (-1.0, float("nan"), "0.1"),
    "mesh": ("mesh", 3),
    "gradients_clip_option": ("garbage", {"clip": 1.0}, {"clipnorm": -1.0}, object()),
    "ema_option": ("garbage", {"momentum": 0.9}, {"ema_momentum": 2.0}, object()),
    "weight_decay_exclude": ("bias", [3], ["("], 5),
    "lr": (-1.0, float("nan")),
}
OWN_BAD: dict[str, dict[str, tuple[Any, ...]]] = {
    "SGD": {"momentum": (-0.1, 1.1, float("nan"), "0.9")},
    "Adam": {
        "beta_1": (-0.1, 1.0, float("nan")),
        "beta_2": (-0.1, 1.0, float("nan"), None),
        "epsilon": (-1e-9, float("inf"), None),
    },
    "Adadelta": {"rho": (-0.1, 1.1, float("nan")), "epsilon": (-1e-9, float("nan"))},
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("optimizer_class", CLASSES)
def test_arguments_out_of_range(optimizer_class: str) -> None:
    """Each is refused by an error that names it, or its value."""
    for name, values in {**COMMON_BAD, **OWN_BAD[optimizer_class]}.items():
        for value in values:
            with pytest.raises(HyperparameterError) as caught:
                getattr(optim, optimizer_class)(**{name: value})
            text = str(caught.value)
            inner = next(iter(value)) if isinstance(value, dict) else None
            assert (name if name != "lr" else "learning_rate") in text or repr(value) in text or str(inner) in text, (
                name,
                value,
                text,
            )


@pytest.mark.parametrize("optimizer_class", CLASSES)
def test_unknown_keyword(optimizer_class: str) -> None:
    with pytest.raises(TypeError, match="learning_rat"):
        getattr(optim, optimizer_class)(learning_rat=0.1)
    with pytest.raises((TypeError, HyperparameterError), match="bet"):
        getattr(optim, optimizer_class).from_config({"learning_rate": 0.1, "bet": 0.1})


@pytest.mark.parametrize("name", ["learning_rate", "beta_1"])
@pytest.mark.parametrize(
    ("value", "culprit"),
    [
        (optim.schedules.ExponentialDecay, "{} is the class ExponentialDecay; give an instance"),
        (lambda step: 0.1, "{} is called without arguments.*'step'.*LearningRateSchedule"),
    ],
)
def test_callables_that_no_step_can_call(name: str, value: Any, culprit: str) -> None:
    with pytest.raises(HyperparameterError, match=culprit.format(name)):
        optim.Adam(**{name: value})


def test_callables_of_every_kind() -> None:
    class Half:
        def __call__(self, factor: float = 0.5) -> float:
            return 0.1 * factor

    for value in (Half(), tf.function(lambda: tf.constant(0.05)), functools.partial(max, 0.05, 0.01)):
        optimizer, weights = optim.SGD(value), tf.Variable([1.0])
        optimizer.apply_gradients([(tf.ones(1), weights)])
        np.testing.assert_allclose(weights.numpy(), [0.95])


def test_contradictions() -> None:
    for arguments, culprit in (
        ({"clipnorm": 1.0, "global_clipnorm": 2.0}, "clipnorm.*global_clipnorm"),
        ({"clipnorm": 1.0, "gradients_clip_option": {"clipnorm": 2.0}}, "clipnorm"),
        ({"clipnorm": 1.0, "gradients_clip_option": optim.GradientsClipOption(global_clipnorm=2.0)}, "clipnorm"),
        ({"use_ema": True, "ema_momentum": 0.5, "ema_option": {"ema_momentum": 0.6}}, "ema_momentum"),
        ({"use_ema": False, "ema_option": {"use_ema": True}}, "use_ema"),
        ({"use_ema": False, "ema_option": optim.EMAOption(use_ema=True)}, "use_ema"),
    ):
        with pytest.raises(HyperparameterError, match=culprit):
            optim.Adam(**arguments)
    with pytest.raises(HyperparameterError, match="momentum_slot"):
        optim.SGD(momentum=0.9, momentum_slot=False)
    with (
        pytest.raises(HyperparameterError, match=r"lr=0.5.*learning_rate=0.1"),
        pytest.warns(DeprecationWarning, match="lr"),
    ):
        optim.Adam(learning_rate=0.1, lr=0.5)


@pytest.mark.parametrize("layout", ["plain", "mixed"])
def test_update_step_that_fails_half_way(layout: str, request: Any) -> None:
    class Halting(optim.Optimizer):
        def __init__(self) -> None:
            super().__init__("Halting", weight_decay=0.1, learning_rate=0.1, use_ema=True)

        def update_step(self, gradient: Any, variable: Any) -> None:
            if variable.shape.rank == 0:
                raise RuntimeError("half way")
            variable.assign_sub(gradient)

    variables = Place.named(layout, request).variables(start_values())
    optimizer = Halting()
    optimizer.build(list(variables.values()))
    before = snapshot([*variables.values(), *optimizer.variables])
    with pytest.raises(RuntimeError, match="half way"):
        optimizer.apply_gradients(_good(variables))
    assert snapshot([*variables.values(), *optimizer.variables]) == before


def test_constraint_that_fails(devices: list[str]) -> None:
    def refuse(value: Any) -> Any:
        raise RuntimeError("no")

    first = tf.Variable([1.0, 2.0], name="first")
    second = tf.Variable([1.0, 2.0], name="second", constraint=refuse)
    optimizer = optim.SGD(0.1, momentum=0.9)
    optimizer.build([first, second])
    before = snapshot([first, second, *optimizer.variables])
    with pytest.raises(RuntimeError, match="no"):
        optimizer.apply_gradients([(tf.ones(2), first), (tf.ones(2), second)])
    assert snapshot([first, second, *optimizer.variables]) == before


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize(
    ("made", "culprit"),
    [
        (lambda: tf.Variable([1, 2], name="steps"), "steps.*int32"),
        (lambda: tf.Variable([True], name="flag"), "flag.*bool"),
        (lambda: tf.Variable(tf.zeros([2, 2]), shape=[None, 2], name="grows"), r"grows.*\(None, 2\)"),
        (lambda: tf.Variable(tf.zeros([2]), shape=tf.TensorShape(None), name="any"), "any.*<unknown>"),
    ],
)
@pytest.mark.parametrize("make", [lambda: optim.Adam(0.1), lambda: optim.SGD(0.1, momentum=0.9, use_ema=True)])
def test_variables_that_no_step_can_move_are_named(made: Any, culprit: str, make: Any, graph: bool) -> None:
    optimizer, odd, good = make(), made(), tf.Variable([1.0])
    start = odd.read_value()
    apply = tf.function(optimizer.apply_gradients) if graph else optimizer.apply_gradients
    for _ in range(
        1 if graph else 2
    ):  # TensorFlow calls nothing where a function's first trace made variables and failed
        with pytest.raises(MismatchError, match=culprit):
            apply([(tf.ones([1]), good), (tf.ones_like(start), odd)])
    tf.debugging.assert_equal(odd, start)
    assert good.numpy() == [1.0]


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize(
    ("made", "culprit"),
    [
        (lambda: optim.SGD(0.1, clipnorm=1.0), "spectrum.*complex64.*clipped"),
        (lambda: optim.SGD(0.1, clipvalue=1.0), "spectrum.*complex64.*clipped"),
        (lambda: optim.SGD(0.1, global_clipnorm=1.0, momentum=0.9), "spectrum.*complex64.*clipped"),
        (lambda: optim.SGD(0.1, loss_scale="dynamic"), "spectrum.*complex64.*loss_scale"),
        (lambda: optim.Adamax(0.1), "AdamaxRule cannot step complex64"),
        (lambda: optim.Ftrl(0.1), "FtrlRule cannot step complex64"),
        (lambda: optim.Lamb(0.1), "LambRule cannot step complex64"),
    ],
)
def test_what_complex_numbers_do_not_have_is_refused(made: Any, culprit: str, graph: bool) -> None:
    optimizer, real = made(), tf.Variable([1.0, 2.0], name="real")
    spectrum = tf.Variable(tf.complex([1.0, 3.0], [2.0, -1.0]), name="spectrum")
    variables = [real, spectrum]
    optimizer.build(variables)
    before = snapshot([*variables, *optimizer.variables])
    apply = tf.function(optimizer.apply_gradients) if graph else optimizer.apply_gradients
    with pytest.raises(MismatchError, match=culprit):
        apply([(tf.ones(2), real), (tf.complex([1.0, 0.0], [1.0, 1.0]), spectrum)])
    assert snapshot([*variables, *optimizer.variables]) == before


def test_variables_that_are_no_list() -> None:
    variable = tf.Variable([1.0, 2.0])
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    optimizer = optim.SGD(0.1)
    for call, pass_ in [
        (lambda: optimizer.build(variable), r"as \[weights\]"),
        (lambda: optimizer.minimize(lambda: tf.reduce_sum(variable), variable), r"as \[weights\]"),
        (lambda: optimizer.build(model), "pass model.trainable_variables"),
        (lambda: optim.save_checkpoint("never", optimizer, model), "pass model.trainable_variables"),
    ]:
        with pytest.raises(GradientsError, match=f"expected a list of variables.*{pass_}"):
            call()


def test_another_variable_of_the_same_name() -> None:
    optimizer, one, other = optim.SGD(0.1), tf.Variable([1.0], name="w"), tf.Variable([1.0], name="w")
    optimizer.build([one])
    with pytest.raises(UnknownVariableError, match="another variable with the name 'w'"):
        optimizer.apply_gradients([(tf.ones(1), other)])
    optimizer.build([other])
    optimizer.apply_gradients([(tf.ones(1), other)])
    assert (one.numpy()[0], other.numpy()[0]) == (1.0, np.float32(0.9))
