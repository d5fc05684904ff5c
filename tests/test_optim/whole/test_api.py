"""The API that the reference pages document: signatures, defaults, returns, errors, and Keras 2.9's names."""

from __future__ import annotations

import inspect
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim.errors import DtoptError, HyperparameterError, UnknownVariableError, UnsupportedError
from tests.helpers.dtensor_asserts import assert_dtensor_equal, value_of
from tests.test_optim.support import put, variable

SIGNATURES = {
    "Adadelta": {"learning_rate": 0.001, "rho": 0.95, "epsilon": 1e-07},
    "Adam": {"learning_rate": 0.001, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-07, "amsgrad": False},
    "SGD": {"learning_rate": 0.01, "momentum": 0.0, "nesterov": False},
}
TAIL = ("gradients_clip_option", "ema_option", "name", "mesh")
KEYWORDS = {
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
    "jit_compile",
    "weight_decay",
    "slot_placement",
    "gradient_accumulation_steps",
    "lr",
    "decay",
}
METHODS = {
    "add_variable": ["shape", "dtype", "initializer", "name"],
    "add_variable_from_reference": ["model_variable", "variable_name", "shape", "initial_value"],
    "apply_gradients": ["grads_and_vars"],
    "build": ["var_list"],
    "compute_gradients": ["loss", "var_list", "tape"],
    "finalize_variable_values": ["var_list"],
    "from_config": ["config"],
    "get_config": [],
    "get_slot": ["variable", "name"],
    "minimize": ["loss", "var_list", "tape"],
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_begin_as_documented(name: str) -> None:
    parameters = inspect.signature(getattr(optim, name)).parameters
    positional = [p for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    own = SIGNATURES[name]
    assert [p.name for p in positional] == [*own, *TAIL]
    defaults = {p.name: p.default for p in positional}
    assert defaults == {**own, "gradients_clip_option": None, "ema_option": None, "name": name, "mesh": None}
    assert {p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY} >= KEYWORDS


@pytest.mark.parametrize("name", SIGNATURES)
def test_positional_arguments_land_where_documented(name: str, mesh_2: Any) -> None:
    own = list(SIGNATURES[name].values())
    clip, ema = optim.GradientsClipOption(clipnorm=2.0), optim.EMAOption(use_ema=True)
    optimizer = getattr(optim, name)(*own, clip, ema, "other", mesh_2)
    assert (optimizer.clipnorm, optimizer.use_ema, optimizer.name, optimizer.mesh) == (2.0, True, "other", mesh_2)
    config = optimizer.get_config()
    assert {key: config[key] for key in SIGNATURES[name]} == SIGNATURES[name]


@pytest.mark.parametrize("name", SIGNATURES)
def test_methods_take_what_is_documented(name: str) -> None:
    cls = getattr(optim, name)
    for method, parameters in METHODS.items():
        found = [p for p in inspect.signature(getattr(cls, method)).parameters if p != "self"]
        assert found[: len(parameters)] == parameters, method
    assert list(inspect.signature(cls.add_variable).parameters.values())[1].default in (inspect.Parameter.empty, ())
    assert issubclass(cls, tf.Module)


@pytest.mark.parametrize("name", ["schedules", "legacy"])
def test_modules_are_there_without_a_further_import(name: str) -> None:
    assert optim.__getattr__(name) is sys.modules[f"optim.{name}"]
    assert name in dir(optim)


def test_update_step_takes_documented_keywords(devices: list[str]) -> None:
    """The page of Adadelta says `grad`, that of Adam `gradient`; both names work where they are documented."""
    assert list(inspect.signature(optim.Adam.update_step).parameters)[1:] == ["gradient", "variable"]
    assert list(inspect.signature(optim.Adadelta.update_step).parameters)[1:] == ["grad", "variable"]
    for cls, keyword in ((optim.Adadelta, "grad"), (optim.Adam, "gradient")):
        var = tf.Variable([1.0], name="w")
        optimizer = cls(0.5)
        optimizer.build([var])
        assert optimizer.update_step(**{keyword: tf.constant([1.0])}, variable=var) is None
        assert var.numpy()[0] < 1.0


@pytest.mark.parametrize("layout", ["plain", "mesh"])
def test_update_step_is_the_algorithm_alone(layout: str, mesh_2: Any) -> None:
    place = None if layout == "plain" else dtensor.Layout(["x"], mesh_2)
    var, other = variable(np.ones(4), place, "w"), variable(np.ones(4), place, "other")
    direct, full = optim.Adam(0.5, clipnorm=0.1, use_ema=True), optim.Adam(0.5)
    direct.build([var])
    direct.update_step(put(np.full(4, 3.0), place), var)
    full.apply_gradients([(put(np.full(4, 3.0), place), other)])
    np.testing.assert_allclose(value_of(var), value_of(other), rtol=1e-15)
    np.testing.assert_array_equal(value_of(direct.get_slot(var, "average")), 1.0)
    assert int(direct.iterations.numpy()) == 0
    with pytest.raises(UnsupportedError, match="update_step"):
        optim.Optimizer("bare").update_step(put(np.ones(4), place), var)


# Names of Keras 2.9 (its own test of the DTensor optimizers asserts these).


def test_names_of_variables(mesh_2: Any) -> None:
    var = variable(np.ones(4), dtensor.Layout.replicated(mesh_2, 1), "Variable")
    optimizer = optim.Adam(mesh=mesh_2, amsgrad=True)
    optimizer.build([var])
    names = [v._shared_name for v in optimizer.variables]
    assert names == ["iteration", "learning_rate", "Adam/m/Variable", "Adam/v/Variable", "Adam/vhat/Variable"]
    assert optimizer._iterations is optimizer.iterations

    mine = optim.SGD(momentum=0.9, name="mine")
    plain = tf.Variable(1.0, name="block/kernel")
    mine.apply_gradients([(tf.constant(1.0), plain)])
    assert mine.get_slot(plain, "m").name == "mine/m/block/kernel:0"


def test_add_variable_from_reference_names_and_layout(mesh_2: Any) -> None:
    optimizer = optim.Adam(mesh=mesh_2)
    layout = dtensor.Layout(["x", "unsharded"], mesh_2)
    var = variable(np.ones((4, 2)), layout, "tmp", tf.float32)
    made = optimizer.add_variable_from_reference(var, "test")
    assert made._shared_name == "test/tmp"
    assert_dtensor_equal(made, np.zeros((4, 2), np.float32), layout)
    ones = optimizer.add_variable_from_reference(var, "ones", initial_value=tf.ones([4, 2]))
    assert_dtensor_equal(ones, np.ones((4, 2), np.float32), layout)
    assert optimizer.get_slot(var, "test") is made


def test_clip_gradients_of_keras() -> None:
    """The private method that many know: gradients as a step would clip them."""
    rows = tf.IndexedSlices(tf.constant([[3.0], [4.0]]), tf.constant([0, 2]), tf.constant([3, 1]))
    dense, sparse = optim.SGD(global_clipnorm=1.0)._clip_gradients([tf.constant([12.0, 0.0]), rows])
    np.testing.assert_allclose(dense, [12 / 13, 0.0], rtol=1e-6)
    np.testing.assert_allclose(sparse.values, [[3 / 13], [4 / 13]], rtol=1e-6)
    assert optim.SGD()._clip_gradients([5.0]) == [5.0]


def test_index_dict_of_keras_2_9(mesh_2: Any) -> None:
    layout = dtensor.Layout.replicated(mesh_2, 1)
    first, second = variable(np.ones(2), layout, "a"), variable(np.ones(2), layout, "b")
    optimizer = optim.Adam(mesh=mesh_2)
    optimizer._build_index_dict([first, second])
    assert optimizer._index_dict == {optimizer._var_key(first): 0, optimizer._var_key(second): 1}
    optimizer.build([first, second])
    assert optimizer._index_dict[optimizer._var_key(second)] == 1


def test_add_variable(mesh_2: Any) -> None:
    optimizer = optim.SGD()
    scalar = optimizer.add_variable((), name="count")
    assert (scalar.dtype, scalar.shape.rank, scalar.name) == (tf.float32, 0, "count:0")
    made = optimizer.add_variable(tf.constant([2, 3]), tf.int32, lambda shape, dtype: tf.fill(shape, tf.cast(7, dtype)))
    np.testing.assert_array_equal(made.numpy(), np.full((2, 3), 7))
    assert any(v is made for v in optimizer.variables)
    drawn = optimizer.add_variable([50], tf.float64, "random_uniform", "drawn").numpy()  # as Keras's RandomUniform
    assert drawn.dtype == np.float64
    assert drawn.std() > 0
    assert np.abs(drawn).max() <= 0.05
    with pytest.raises(HyperparameterError, match="sideways"):
        optimizer.add_variable((), initializer="sideways")


# Gradients.


@pytest.mark.parametrize("layout", ["plain", "mesh"])
def test_compute_gradients_and_minimize(layout: str, mesh_2: Any) -> None:
    place = None if layout == "plain" else dtensor.Layout(["x"], mesh_2)
    var, unused = variable(np.arange(4.0), place, "w"), variable(np.ones(4), place, "unused")
    optimizer = optim.SGD(0.25)

    @tf.function  # eagerly, TensorFlow's gradients of reductions are not on the mesh
    def loss() -> Any:
        return tf.reduce_sum(tf.square(var))

    for variables in ([var, unused], lambda: [var, unused]):
        (gradient, first), (none, second) = optimizer.compute_gradients(loss, variables)
        assert first is var
        assert second is unused
        assert none is None
        np.testing.assert_array_equal(value_of(gradient), 2 * np.arange(4.0))
    with tf.GradientTape() as tape:
        value = loss()
    (gradient, _), _ = optimizer.compute_gradients(value, [var, unused], tape)
    np.testing.assert_array_equal(value_of(gradient), 2 * np.arange(4.0))

    assert optimizer.minimize(loss, [var, unused]) is None
    np.testing.assert_array_equal(value_of(var), np.arange(4.0) / 2)
    with tf.GradientTape() as tape:
        value = loss()
    optimizer.minimize(value, [var], tape=tape)
    np.testing.assert_array_equal(value_of(var), np.arange(4.0) / 4)


def test_a_loss_tensor_needs_its_tape(devices: list[str]) -> None:
    var = tf.Variable(1.0)
    for method in (optim.SGD().compute_gradients, optim.SGD().minimize):
        with pytest.raises(ValueError, match="tape"):
            method(tf.constant(1.0), [var])


def test_minimize_inside_a_function_with_a_mesh(mesh_2: Any) -> None:
    var = variable(np.arange(4.0), dtensor.Layout(["x"], mesh_2), "w")
    optimizer = optim.SGD(0.25)

    @tf.function
    def train() -> None:
        optimizer.minimize(lambda: tf.reduce_sum(tf.square(var)), [var])

    train()
    train()
    assert_dtensor_equal(var, np.arange(4.0) / 4, var.layout)
    assert int(optimizer.iterations.numpy()) == 2


# Attributes.


@pytest.mark.parametrize("on_mesh", [False, True])
def test_iterations(on_mesh: bool, mesh_2: Any) -> None:
    mesh = mesh_2 if on_mesh else None
    optimizer = optim.Adam(0.1, mesh=mesh)
    assert int(optimizer.iterations.numpy()) == 0
    assert optimizer.iterations.dtype == tf.int64
    optimizer.iterations = 7
    var = variable(np.ones(2), None if mesh is None else dtensor.Layout.replicated(mesh, 1), "w")
    optimizer.apply_gradients([(put(np.ones(2), getattr(var, "layout", None)), var)])
    assert int(optimizer.iterations.numpy()) == 8
    with pytest.raises(RuntimeError, match="iterations"):
        optimizer.iterations = 1
    for bad in (-1, 1.5, "1"):
        with pytest.raises(HyperparameterError, match="iterations"):
            optim.Adam().iterations = bad


def test_slots_are_found_by_variable_and_name(devices: list[str]) -> None:
    optimizer = optim.Adam()
    assert optimizer.slot_names == ["m", "v"]
    var = tf.Variable([1.0, 2.0], name="w")
    with pytest.raises(KeyError, match="w"):
        optimizer.get_slot(var, "m")
    optimizer.build([var])
    assert optimizer.get_slot(var, "v").shape == var.shape
    with pytest.raises(UnknownVariableError, match=r"'u'.*m, v"):
        optimizer.get_slot(var, "u")


def test_build_again_adds_and_keeps(devices: list[str]) -> None:
    first, second = tf.Variable([1.0], name="first"), tf.Variable([1.0], name="second")
    optimizer = optim.Adam()
    optimizer.build([first])
    kept = optimizer.get_slot(first, "m")
    optimizer.build([first, second])
    assert optimizer.get_slot(first, "m") is kept
    assert len(optimizer.variables) == 6


def test_finalize_without_averages_is_nothing_and_too_early_is_an_error(devices: list[str]) -> None:
    var = tf.Variable([1.0])
    assert optim.SGD().finalize_variable_values([var]) is None
    optimizer = optim.SGD(use_ema=True)
    with pytest.raises(UnsupportedError, match="average"):
        optimizer.finalize_variable_values([var])


def test_options_are_readable() -> None:
    optimizer = optim.SGD(clipnorm=1.5, ema_momentum=0.5, weight_decay=0.25, gradient_accumulation_steps=3)
    assert (optimizer.clipnorm, optimizer.ema_momentum, optimizer.use_ema) == (1.5, 0.5, False)
    assert (optimizer.weight_decay, optimizer.gradient_accumulation_steps) == (0.25, 3)
    with pytest.raises(AttributeError, match="clipnrom"):
        _ = optimizer.clipnrom


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_lr_of_a_subclass_that_passes_arguments_on() -> None:
    class Passing(optim.Adam):
        def __init__(self, *args: Any, scale: float = 1.0, **kwargs: Any):
            super().__init__(*args, **kwargs)

    assert float(Passing(lr=0.25).learning_rate) == 0.25
    with pytest.raises(HyperparameterError, match="contradicts"):
        Passing(lr=0.25, learning_rate=0.5)


def test_lr_and_decay_are_the_old_names(devices: list[str]) -> None:
    with pytest.warns(DeprecationWarning, match="lr"):
        optimizer = optim.SGD(lr=0.5)
    assert float(optimizer.learning_rate) == float(optimizer.lr) == 0.5
    assert optimizer.get_config()["learning_rate"] == 0.5
    optimizer.lr = 0.25
    assert float(optimizer.learning_rate) == 0.25
    with pytest.warns(DeprecationWarning, match="decay"):
        decaying = optim.SGD(1.0, decay=1.0)
    var = tf.Variable([0.0], dtype=tf.float64)
    for _ in range(3):
        decaying.apply_gradients([(tf.constant([1.0], tf.float64), var)])
    np.testing.assert_allclose(var.numpy(), -(1 + 1 / 2 + 1 / 3), rtol=1e-15)


def test_exclude_from_weight_decay(devices: list[str]) -> None:
    kept, decayed, named = (tf.Variable([1.0], name=n) for n in ("kept", "decayed", "layer/bias"))
    optimizer = optim.SGD(0.5, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_list=[kept], var_names=["bias"])
    optimizer.apply_gradients([(tf.zeros(1), v) for v in (kept, decayed, named)])
    assert [float(v[0]) for v in (kept, decayed, named)] == [1.0, 0.75, 1.0]
    again = optim.SGD.from_config(optimizer.get_config())
    for v in (kept, decayed, named):
        v.assign([1.0])
    again.apply_gradients([(tf.zeros(1), v) for v in (kept, decayed, named)])
    assert [float(v[0]) for v in (kept, decayed, named)] == [1.0, 0.75, 1.0]


def test_errors_are_one_family_and_the_documented_builtins() -> None:
    from optim import errors

    classes = {name: c for name, c in vars(errors).items() if isinstance(c, type) and issubclass(c, DtoptError)}
    assert issubclass(classes["GradientsError"], TypeError)
    assert issubclass(classes["NoGradientsError"], ValueError)
    assert issubclass(classes["UnknownVariableError"], KeyError)
    assert str(UnknownVariableError("no 'w'")) == "no 'w'"


def test_public_names() -> None:
    assert set(optim.__all__) <= set(dir(optim))
    for name in optim.__all__:
        assert getattr(optim, name).__doc__
    with pytest.raises(AttributeError, match="Adm"):
        _ = optim.Adm


def test_minimize_eagerly_on_a_mesh(mesh_2: Any) -> None:
    layout = dtensor.Layout(["x"], mesh_2)
    weights = variable([1.0, 2.0, 3.0, 4.0], layout, "weights")
    optimizer = optim.SGD(0.5)
    optimizer.minimize(lambda: tf.reduce_sum(weights.read_value() * weights.read_value()), [weights])
    np.testing.assert_array_equal(value_of(weights), np.zeros(4))


@pytest.mark.parametrize("sharding", [None, ["x", "unsharded"]], ids=["plain", "sharded"])
def test_a_gradient_of_another_floating_dtype_is_cast(sharding: Any, mesh_2: Any) -> None:
    """As by Keras 3's `apply`; of integers, nothing is guessed."""
    layout = None if sharding is None else dtensor.Layout(sharding, mesh_2)
    for dtype, given in ((tf.float64, tf.float32), (tf.float32, tf.float64), (tf.float32, tf.bfloat16)):
        var = variable(np.ones((4, 2)), layout, "w", dtype)
        optim.SGD(0.5).apply_gradients([(put(np.full((4, 2), 0.25), layout, given), var)])
        assert var.dtype == dtype
        np.testing.assert_array_equal(value_of(var), np.full((4, 2), 0.875))


def test_variables_without_gradients_are_named_once() -> None:
    one, two, three = (tf.Variable([1.0], name=name) for name in ("one", "two", "three"))
    optimizer, gradient = optim.SGD(0.5), tf.ones(1)
    with pytest.warns(UserWarning, match="no gradients for two: they stay as they are") as found:
        optimizer.apply_gradients([(gradient, one), (None, two), (gradient, three)])
    assert [warning.filename for warning in found] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.apply_gradients([(gradient, one), (None, two), (gradient, three)])
    with pytest.warns(UserWarning, match="no gradients for two, three"):
        optimizer.apply_gradients([(gradient, one), (None, two), (None, three)])
    assert [float(v[0]) for v in (one, two, three)] == [-0.5, 1.0, 0.0]
