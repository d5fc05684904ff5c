"""What `for_keras` forwards, what it refuses, and what Keras does around it: loss scaling, lazy models, float8."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.saving.object_registration import GLOBAL_CUSTOM_OBJECTS

import optim
from optim.errors import CheckpointError, HyperparameterError, UnsupportedError
from optim.keras import for_keras
from optim.keras.adapter import Adapter
from optim.keras.keras_3 import Keras3Adapter
from optim.keras.scaling import ScalesLosses, base_of
from optim.legacy import v1, v2
from tests.helpers.breadth import covering
from tests.upstream.stand_ins import like

MODULES = (keras, tf_keras)
BOTH = pytest.mark.parametrize("module", MODULES, ids=["keras3", "tf_keras"])
X = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
Y = np.random.default_rng(1).normal(size=(16, 2)).astype(np.float32)


def fitted(module: Any, optimizer: Any, lazy: bool = False, dtype: str | None = None, **compiling: Any) -> Any:
    """A model after eight steps; the same whether it is built by `fit` or before."""
    module.utils.set_random_seed(3)
    kernel = lambda seed: module.initializers.GlorotUniform(seed=seed)  # noqa: E731
    layers = [
        module.layers.Dense(8, "relu", kernel_initializer=kernel(1), dtype=dtype),
        module.layers.Dense(2, kernel_initializer=kernel(2), dtype=dtype),
    ]
    model = module.Sequential(layers if lazy else [module.layers.Input((4,)), *layers])
    model.compile(optimizer, "mse", **(compiling or {"jit_compile": False}))
    model.fit(X, Y, 4, 2, verbose=0, shuffle=False)
    return model


EAGER = {"run_eagerly": True}
"""How models are fitted that others are compared with: nothing is traced, and the numbers are the same."""


def same(one: Any, two: Any, **tolerance: Any) -> None:
    for a, b in zip(one.get_weights(), two.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, **(tolerance or {"rtol": 1e-5, "atol": 1e-6}))


@BOTH
def test_every_public_method_of_keras_is_forwarded_or_refused(module: Any) -> None:
    """Whatever Keras's class has must be ours: what is inherited would act on Keras's own, unused state."""
    base, kind = module.optimizers.Optimizer, Keras3Adapter if module is keras else Adapter
    ours = {name for cls in kind.__mro__ if cls is not object for name in vars(cls)}
    public = {name for name in dir(base) if not name.startswith("_")}
    assert public
    assert public - ours == set()
    scaling = {name for name in dir(base_of(module)) if not name.startswith("_")}
    assert scaling - ours - set(vars(ScalesLosses)) == set()
    made = optim.for_keras(optim.SGD(), module)
    for name in sorted(public):
        found, theirs = getattr(type(made), name), getattr(base, name)
        if inspect.isfunction(theirs):
            given = set(inspect.signature(theirs).parameters) - {"kwargs"}
            takes = inspect.signature(found).parameters
            free = any(p.kind is p.VAR_KEYWORD for p in takes.values())
            assert free or given - {"variables"} <= {*takes, "var_list"}, name


def test_a_keras_whose_constructor_sets_iterations(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Keras 3.0 to 3.4, the first on a class that TensorFlow's checkpoints do not know: `for_keras` raised."""
    for name, registered in optim.keras_objects(keras).items():
        monkeypatch.setitem(GLOBAL_CUSTOM_OBJECTS, name, registered)  # this one again afterwards

    class Older(BaseOptimizer):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self.iterations = keras.Variable(0)

    changed = {"optimizers": like(keras.optimizers, Optimizer=Older)}
    made = optim.for_keras(optim.SGD(0.5), like(keras, __name__="keras", **changed))
    variable = tf.Variable([1.0])
    made.apply_gradients([(tf.ones(1), variable)])
    assert int(made.iterations) == 1
    assert variable.numpy() == [0.5]
    saved = tf.train.Checkpoint(made).write(str(tmp_path / "c"))
    made.iterations.assign(7)
    tf.train.Checkpoint(made).read(saved).assert_consumed()
    assert int(made.iterations) == 1


@BOTH
def test_what_is_not_a_step_reaches_the_optimizer(module: Any) -> None:
    inner = optim.Adam(0.5)
    made = optim.for_keras(inner, module)
    variable = tf.Variable([1.0, 2.0], name="w")
    made.build([variable])
    slot = made.add_variable_from_reference(variable, "extra")
    assert inner.get_slot(variable, "extra") is slot
    more = made.add_variable([2], name="more")
    assert any(variable is more for variable in inner.variables)
    if module is keras:
        ones, twos = made.add_optimizer_variables([variable], ["a", "b"], ["ones", keras.initializers.Constant(2.0)])
        np.testing.assert_array_equal([ones[0], twos[0]], [[1, 1], [2, 2]])
        made.assign_sub(variable, [1.0, 1.0])
        np.testing.assert_array_equal(variable, [0, 1])
        with pytest.raises(UnsupportedError, match="JAX"):
            made.stateless_apply([], [], [])
        with pytest.raises(UnsupportedError, match="learning_rate"):
            made.update_step(tf.ones(2), variable, 0.1)
    made.update_step(tf.ones(2), variable)
    assert int(made.iterations) == 0


@BOTH
@pytest.mark.quick(1)
def test_an_option_that_is_set_acts_in_fit(module: Any) -> None:
    model = fitted(module, optim.for_keras(optim.SGD(0.1), module))

    def moved() -> float:
        before = model.get_weights()
        model.fit(X, Y, 16, 1, verbose=0)
        return max(float(np.linalg.norm(a - b)) for a, b in zip(model.get_weights(), before, strict=True))

    assert moved() > 0.01
    model.optimizer.clipnorm = 0.01
    np.testing.assert_allclose(moved(), 0.1 * 0.01, rtol=0.01)


@covering(1, module=MODULES, scale=[1024.0, "dynamic"], lazy=[False, True])
@pytest.mark.quick(1)
def test_a_scaled_loss_trains_as_an_unscaled_one(module: Any, scale: Any, lazy: bool) -> None:
    plain = fitted(module, optim.for_keras(optim.SGD(0.1, momentum=0.9), module), **EAGER)
    inner = optim.SGD(0.1, momentum=0.9, loss_scale=scale)
    same(plain, fitted(module, optim.for_keras(inner, module), lazy))
    assert int(inner.iterations) == 8


@BOTH
@pytest.mark.parametrize("scale", [1024.0, "dynamic"])
@pytest.mark.quick(1)
def test_keras_leaves_scaling_to_what_scales_itself(module: Any, scale: Any, tmp_path: Any) -> None:
    """Under mixed_float16 `compile` wraps every other optimizer in its LossScaleOptimizer."""
    module.mixed_precision.set_global_policy("mixed_float16")
    try:
        inner = optim.SGD(0.1, momentum=0.9, loss_scale=scale)
        kept = {"auto_scale_loss": False} if (module, scale) == (keras, 1024.0) else {}
        model = fitted(module, optim.for_keras(inner, module), jit_compile=False, **kept)
        plain = fitted(module, optim.for_keras(optim.SGD(0.1, momentum=0.9), module), **EAGER)
    finally:
        module.mixed_precision.set_global_policy("float32")
    same(plain, model, rtol=1e-3, atol=1e-4)
    assert (model.optimizer.inner, plain.optimizer.inner_optimizer.name) == (inner, "SGD")
    model.fit(np.full_like(X, 6e4), Y, 16, 1, verbose=0)  # overflows in float16
    assert int(inner.iterations) == 8
    model.save(tmp_path / "m.keras")
    again = module.models.load_model(tmp_path / "m.keras", custom_objects=optim.keras_objects(module))
    for one in (model.optimizer, again.optimizer):
        assert one.inner.current_loss_scale == (2.0**14 if scale == "dynamic" else 1024.0)
    for one in (model, again):
        one.fit(X, Y, 4, 1, verbose=0, shuffle=False)
    same(model, again)


def test_a_model_that_is_loaded_without_its_policy_says_so(tmp_path: Path) -> None:
    """Keras wraps an optimizer by the policy of the process, which no file holds."""
    path, policy = tmp_path / "m.keras", keras.mixed_precision.set_global_policy
    policy("mixed_float16")
    try:
        model = fitted(keras, optim.for_keras(optim.SGD(0.1, momentum=0.9), keras), jit_compile=False)
        model.save(path)
        policy("float32")
        with pytest.raises(ValueError, match="mixed_float16") as caught:
            keras.models.load_model(path, custom_objects=optim.keras_objects(keras))
        advice = re.findall(r"keras\.mixed_precision\.set_global_policy\(\"\w+\"\)", str(caught.value))
        eval(advice[0], {"keras": keras})
        again = keras.models.load_model(path, custom_objects=optim.keras_objects(keras))
    finally:
        policy("float32")
    assert int(again.optimizer.iterations) == int(model.optimizer.iterations)
    same(model, again)


@pytest.mark.parametrize("scale", [1024.0, "dynamic"])
def test_what_is_public_of_a_loss_scale_optimizer(scale: Any) -> None:
    made = optim.for_keras(optim.SGD(0.1, loss_scale=scale), tf_keras)
    started = 1024.0 if scale == 1024.0 else 2.0**15
    assert (made.dynamic, made.initial_scale, made.loss_scale) == (scale == "dynamic", started, started)
    assert made.dynamic_growth_steps == (2000 if scale == "dynamic" else None)
    assert made.dynamic_counter is None or int(made.dynamic_counter) == 0
    assert (
        float(made.get_scaled_loss(tf.constant(2.0)))
        == float(made.get_scaled_loss(lambda: tf.constant(2.0))())
        == 2 * started
    )
    assert made.check_finite([tf.ones(2), None])
    assert not made.check_finite([tf.constant(np.inf)])
    with pytest.raises(UnsupportedError, match="get_unscaled_gradients"):
        made.get_unscaled_gradients([tf.ones(2)])


@covering(1, scale=["dynamic", 1024.0], module=MODULES)
@pytest.mark.quick(1)
def test_a_loss_is_scaled_once_where_keras_scales_it(module: Any, scale: Any) -> None:
    """An optimizer that is put into Keras's LossScaleOptimizer leaves the scaling to that, and says so."""
    theirs = (module.optimizers if module is keras else module.mixed_precision).LossScaleOptimizer
    plain = fitted(module, theirs(optim.for_keras(optim.SGD(0.1), module)), dtype="mixed_float16", **EAGER)
    inner = optim.SGD(0.1, loss_scale=scale)
    with pytest.warns(UserWarning, match="switched off"):  # before Keras 3.10 as it is built
        wrapped = fitted(module, theirs(optim.for_keras(inner, module)), dtype="mixed_float16")
    same(plain, wrapped, rtol=1e-4, atol=1e-5)
    assert inner.loss_scale is None
    assert inner.get_config()["loss_scale"] is None


@BOTH
def test_copies_and_what_is_said_of_itself(module: Any) -> None:
    variable = tf.Variable([1.0, 2.0], name="w")
    made = optim.for_keras(optim.Adam(0.5, use_ema=True), module)
    made.apply_gradients([(tf.ones(2), variable)])
    assert repr(made) == f"for_keras({made.inner!r})"
    assert "Adam" in repr(made)
    for again in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert type(again) is type(made)
        assert again.inner is not made.inner
        for a, b in zip(again.variables, made.variables, strict=True):
            assert a is not b
            np.testing.assert_array_equal(a.numpy(), b.numpy())


@BOTH
def test_a_class_derived_from_that_of_an_optimizer_acts(module: Any) -> None:
    """`horovod.keras.DistributedOptimizer` makes such a class, and an optimizer of it by `from_config`."""

    class Halves(module.optimizers.Optimizer):  # type: ignore[misc, name-defined]
        def __init__(self, **kwargs: Any):
            super(self.__class__, self).__init__(**kwargs)

        def apply_gradients(self, pairs: Any, *args: Any, **kwargs: Any) -> Any:
            return super(self.__class__, self).apply_gradients([(g / 2, v) for g, v in pairs], *args, **kwargs)

    made = optim.for_keras(optim.SGD(1.0), module)
    cls: Any = type("Distributed", (type(made),), dict(vars(Halves)))
    derived = cls.from_config(made.get_config())
    for optimizer in (derived, copy.deepcopy(derived)):
        assert type(optimizer) is cls
        variable = tf.Variable([1.0, 1.0])
        optimizer.apply_gradients([(tf.ones(2), variable)])
        np.testing.assert_array_equal(variable.numpy(), [0.5, 0.5])


@BOTH
def test_what_for_keras_does_not_take_is_named(module: Any) -> None:
    for value, name in [
        ("adam", "'adam'"),
        (optim.Adam, "<class"),
        (module.optimizers.Adam(), module.__name__),
        (None, "builtins.NoneType"),
    ]:
        with pytest.raises(HyperparameterError, match=rf"as for_keras\(optim.Adam\(0.001\)\), got {name}"):
            optim.for_keras(value, module)


@BOTH
@pytest.mark.quick(1)
def test_state_that_is_read_before_the_optimizer_is_built(module: Any, tmp_path: Any) -> None:
    """As by `load_weights` of a model that was just compiled, where Keras's own optimizers start anew."""
    path = str(tmp_path / "m.weights.h5")
    make = lambda: optim.for_keras(optim.Adam(0.1, use_ema=True), module)  # noqa: E731
    model = fitted(module, make(), **EAGER)
    model.save_weights(path)
    kernel = module.initializers.Zeros()
    layers = [module.layers.Dense(8, "relu", kernel_initializer=kernel), module.layers.Dense(2)]
    again = module.Sequential([module.layers.Input((4,)), *layers])
    again.compile(make(), "mse", jit_compile=False)
    if module is keras:
        again.load_weights(path)
        assert int(again.optimizer.iterations) == 8
    else:  # saves the model's weights alone
        store: dict[str, Any] = {}
        model.optimizer.save_own_variables(store)
        again.optimizer.load_own_variables(store)
        again.set_weights(model.get_weights())
    for one in (model, again):
        one.fit(X, Y, 4, 1, verbose=0, shuffle=False)
    same(model, again)
    store = {}
    model.optimizer.save_own_variables(store)
    other = optim.for_keras(optim.Adam(0.1), module)
    other.load_own_variables(store)
    with pytest.raises(CheckpointError, match="average"):
        other.build(model.trainable_variables)


def test_the_scale_of_tf_keras_is_in_checkpoints(tmp_path: Any) -> None:
    made = []
    for _ in range(2):
        variable = tf.Variable([1.0], name="w")
        wrapped = tf_keras.mixed_precision.LossScaleOptimizer(optim.for_keras(optim.Adam(0.1), tf_keras))
        wrapped.build([variable])
        made.append((wrapped, variable))
    (one, variable), (two, other) = made
    one.apply_gradients([(tf.constant([np.inf]), variable)])
    path = tf.train.Checkpoint(optimizer=one, w=variable).write(str(tmp_path / "c"))
    tf.train.Checkpoint(optimizer=two, w=other).read(path).assert_consumed()
    assert float(two.loss_scale) == float(one.loss_scale) == 2.0**14


@covering(1, how=[{"jit_compile": True}, {"jit_compile": False}, {"run_eagerly": True}], module=MODULES)
@pytest.mark.quick(1)
def test_a_model_that_fit_builds_trains_as_one_built_before(module: Any, how: Any) -> None:
    """Averages and slow weights start from values that the variables get only after the first trace."""
    options = {"use_ema": True, "ema_momentum": 0.9, "gradient_accumulation_steps": 2, "lookahead": {"sync_period": 2}}
    wrapped = (optim.for_keras(optim.Adam(0.01, **options), module) for _ in range(2))
    ends = [fitted(module, next(wrapped), **EAGER), fitted(module, next(wrapped), lazy=True, **how)]
    same(*ends)
    states = [model.optimizer.variables for model in ends]
    for a, b in zip(*states, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6, err_msg=a.name)


@BOTH
@pytest.mark.quick(1)
def test_slots_that_start_as_variables_of_a_model_that_fit_builds(module: Any) -> None:
    wrapped = (optim.for_keras(optim.ScheduleFreeAdamW(0.05), module) for _ in range(2))
    same(fitted(module, next(wrapped), **EAGER), fitted(module, next(wrapped), lazy=True))


@BOTH
@pytest.mark.quick(1)
def test_master_copies_of_a_model_that_fit_builds(module: Any) -> None:
    make = lambda: optim.for_keras(optim.Adam(0.01, master_copies=True), module)  # noqa: E731
    ends = [fitted(module, make(), dtype="bfloat16", **EAGER), fitted(module, make(), lazy=True, dtype="bfloat16")]
    same(*ends, rtol=1e-2, atol=1e-2)
    copies = [[v for v in m.optimizer.variables if "master" in v.name] for m in ends]
    assert copies[0]
    for a, b in zip(*copies, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-2, atol=1e-3)


def test_variables_that_take_their_gradient_as_their_value() -> None:
    """As the scales of float8 layers: no slots, no step, no average."""
    weights, scale = keras.Variable([1.0, 2.0], name="w"), keras.Variable([4.0], name="scale")
    scale.overwrite_with_gradient = True
    optimizer = optim.for_keras(optim.SGD(0.5, momentum=0.9, use_ema=True, weight_decay=0.1), keras)
    for _ in range(2):
        optimizer.apply_gradients([(tf.ones(2), weights), (tf.constant([7.0]), scale)])
    np.testing.assert_array_equal(scale.numpy(), [7.0])
    assert len(optimizer.inner._state.tracked) == 1
    optimizer.finalize_variable_values([weights, scale])
    scaled = optim.for_keras(optim.SGD(0.5, loss_scale="dynamic"), keras)
    scaled.apply_gradients([(tf.constant([np.inf, 1.0]), weights), (tf.constant([9.0]), scale)])
    np.testing.assert_array_equal(scale.numpy(), [7.0])  # no step, no new scale
    scaled.apply_gradients([(tf.constant([9.0]), scale)])  # with no other there is nothing that could overflow
    np.testing.assert_array_equal(scale.numpy(), [9.0])
    with pytest.raises(UnsupportedError, match="float8"):
        optim.for_keras(optim.SGD(gradient_accumulation_steps=2), keras).build([weights, scale])


@pytest.mark.breadth
def test_a_float8_model_fits_as_with_keras() -> None:
    def quantized(optimizer: Any) -> Any:
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(2)])
        model.quantize("float8")
        model.compile(optimizer, "mse", jit_compile=False)
        model.fit(X, Y, 4, 2, verbose=0, shuffle=False)
        return model

    theirs = quantized(keras.optimizers.SGD(0.05, momentum=0.9))
    same(theirs, quantized(optim.for_keras(optim.SGD(0.05, momentum=0.9), keras)), rtol=1e-3, atol=1e-3)


@covering(1, module=MODULES, make=[v1.Adam, v2.Adam, lambda: v2.SGD(0.1, momentum=0.9, clipnorm=0.5)])
@pytest.mark.quick(1)
def test_legacy_optimizers_fit(module: Any, make: Any, tmp_path: Any) -> None:
    legacy = make()
    model = fitted(module, optim.for_keras(legacy, module))
    assert int(legacy.iterations) == 8
    if type(legacy) is not v1.Adam:
        config = legacy.get_config()
        theirs = getattr(tf_keras.optimizers.legacy, type(legacy).__name__).from_config(config)
        if module is tf_keras:
            same(fitted(tf_keras, theirs, **EAGER), model)
    model.save(tmp_path / "m.keras")
    again = module.models.load_model(tmp_path / "m.keras", custom_objects=optim.keras_objects(module))
    assert type(again.optimizer.inner) is type(legacy)
    assert int(again.optimizer.iterations) == 8
    for one in (model, again):
        one.fit(X, Y, 4, 1, verbose=0, shuffle=False)
    same(model, again)


@BOTH
def test_a_train_step_of_ones_own(module: Any) -> None:
    class Model(module.Model):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.dense = module.layers.Dense(2, kernel_initializer="ones")

        def call(self, inputs: Any) -> Any:
            return self.dense(inputs)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x) - y))
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return {"loss": loss}

    ends = []
    for optimizer in (module.optimizers.Adam(0.1), optim.for_keras(optim.Adam(0.1), module)):
        model = Model()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.compile(optimizer, **({"jit_compile": False} if ends else EAGER))
            model.fit(X, Y, 4, 2, verbose=0, shuffle=False)
        ends.append(model)
    same(*ends, rtol=1e-4)


@pytest.mark.parametrize("scale", ["dynamic", 1024.0])
@pytest.mark.quick(1)
def test_a_loss_is_scaled_once_where_keras_says_so_late(scale: Any) -> None:
    """Before 3.10 Keras's LossScaleOptimizer, when it is made, tells what it wraps nothing; nor does it here, where it
    is given that after it was made."""
    wrap = keras.optimizers.LossScaleOptimizer
    plain = fitted(keras, wrap(optim.for_keras(optim.SGD(0.1), keras)), dtype="mixed_float16", **EAGER)
    inner, wrapped = optim.SGD(0.1, loss_scale=scale), wrap(keras.optimizers.SGD(0.1))
    wrapped.inner_optimizer = optim.for_keras(inner, keras)
    with pytest.warns(UserWarning, match="switched off"):
        same(plain, fitted(keras, wrapped, dtype="mixed_float16"), rtol=1e-4, atol=1e-5)
    assert inner.loss_scale is None


@pytest.mark.parametrize(("view", "module"), [("keras._tf_keras.keras", keras), ("tf_keras.api._v2.keras", tf_keras)])
def test_a_view_of_keras_is_as_good_as_keras(view: str, module: Any) -> None:
    """`tf.keras` is one or the other, and has not all of the package's modules: in Keras 3 no `saving`."""
    made = optim.for_keras(optim.SGD(0.1), importlib.import_module(view))
    assert type(made) is type(optim.for_keras(optim.SGD(0.1), module))
    assert isinstance(made, module.optimizers.Optimizer)
    assert type(copy.deepcopy(made)) is type(made)
    assert optim.keras_objects(importlib.import_module(view)) == optim.keras_objects(module)


def test_before_any_keras_is_imported_it_is_that_of_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that makes its optimizer first: `tf.keras` is loaded when it is used."""
    monkeypatch.setattr(for_keras, "sys", SimpleNamespace(modules={}))
    assert isinstance(optim.for_keras(optim.SGD(0.1)), keras.optimizers.Optimizer)
