"""Run by `test_backends.py` in a process of its own, on the backend that KERAS_BACKEND names, as without TensorFlow.

Prints one JSON line for each check: its name, and its traceback if it failed.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import pickle
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np


class NoTensorFlow:
    """As if it could not be imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.util.spec_from_loader(name, self) if name == "tensorflow" else None  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> Any:
        raise ModuleNotFoundError("no TensorFlow here", name=spec.name)

    def exec_module(self, module: Any) -> None: ...


sys.meta_path.insert(0, NoTensorFlow())  # type: ignore[arg-type]

import keras  # noqa: E402

import optim  # noqa: E402
from optim.errors import CheckpointError, HyperparameterError, MismatchError, UnsupportedError  # noqa: E402
from optim.rules.sgd import SGDRule  # noqa: E402
from tests.test_optim.keras.check_runner import run_checks  # noqa: E402

BACKEND = keras.backend.backend()
RANDOM = np.random.default_rng(0)
X, Y = (RANDOM.random((32, n)).astype(np.float32) for n in (4, 2))


def refusal(function: Any, *kinds: type[Exception]) -> str:
    """The text of the error that a call raises."""
    try:
        function()
    except kinds as error:
        return str(error)
    raise AssertionError("it was accepted")


def model_with(optimizer: Any, **how: Any) -> Any:
    seed = keras.initializers.GlorotUniform
    layers = [
        keras.layers.Dense(8, "relu", kernel_initializer=seed(1)),
        keras.layers.Dense(2, kernel_initializer=seed(2)),
    ]
    model = keras.Sequential([keras.layers.Input((4,)), *layers])
    model.compile(optimizer, loss="mse", **how)
    return model


def losses(model: Any, **how: Any) -> list[float]:
    return [
        float(x) for x in model.fit(X, Y, 8, **{"epochs": 3, "shuffle": False, "verbose": 0, **how}).history["loss"]
    ]


PAIRS = {
    "SGD": {"momentum": 0.9, "nesterov": True, "clipnorm": 0.1},
    "Adam": {"amsgrad": True, "global_clipnorm": 0.1},
    "AdamW": {"weight_decay": 0.1},
    "RMSprop": {"centered": True, "momentum": 0.5, "clipvalue": 0.01},
    "Adafactor": {},
    "Lion": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
    "Adagrad": {"gradient_accumulation_steps": 2, "use_ema": True},
}


def check_fit_follows_keras() -> None:
    """The same losses as Keras's class of the same name on this backend, whose powers of beta are float32."""
    for name, arguments in PAIRS.items():
        ours = losses(model_with(optim.for_keras(getattr(optim, name)(0.01, **arguments))))
        theirs = losses(model_with(getattr(keras.optimizers, name)(0.01, **arguments)))
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, err_msg=name)


def check_accumulation_with_a_schedule_follows_keras() -> None:
    for schedule in (keras.optimizers.schedules.ExponentialDecay, optim.schedules.ExponentialDecay):
        own = optim.SGD(schedule(0.1, 2, 0.5), gradient_accumulation_steps=3)
        theirs = keras.optimizers.SGD(
            keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), gradient_accumulation_steps=3
        )
        ours = optim.for_keras(own)
        np.testing.assert_allclose(losses(model_with(ours)), losses(model_with(theirs)), rtol=1e-5)
        assert int(ours.iterations) == 4
        np.testing.assert_allclose(float(ours.learning_rate), 0.1 * 0.5**6, rtol=1e-6)


def check_every_way_of_fit_is_the_same() -> None:
    expected = losses(model_with(optim.for_keras(optim.Adam(0.01, use_ema=True))))
    for how in ({"run_eagerly": True}, {"jit_compile": True}, {"steps_per_execution": 2}):
        if BACKEND == "torch" and "run_eagerly" not in how:
            continue  # torch.compile takes minutes, and Keras on PyTorch has no steps_per_execution
        found = losses(model_with(optim.for_keras(optim.Adam(0.01, use_ema=True)), **how))
        np.testing.assert_allclose(found, expected, rtol=1e-6, err_msg=str(how))


def check_averages_are_in_the_model_after_fit() -> None:
    optimizer = optim.for_keras(optim.SGD(0.1, use_ema=True, ema_momentum=0.5))
    model = model_with(optimizer)
    losses(model)
    for variable, average in zip(model.trainable_variables, optimizer._model_variables_moving_average, strict=True):
        np.testing.assert_array_equal(variable, average)


def check_a_failed_fit_says_why() -> None:
    """Keras takes the values of variables away for `fit` on JAX, and ends it with their averages."""
    model = model_with(optim.for_keras(optim.SGD(0.1, use_ema=True)))
    losses(model)
    other = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(2)])
    other.compile(model.optimizer, "mse")
    said = refusal(lambda: losses(other), Exception)
    assert "NoneType" not in said, said


def check_groups_are_restored() -> None:
    import migrate

    def made() -> tuple[Any, list[Any]]:
        groups = [("bias", optim.SGD(0.1, momentum=0.9)), (None, optim.Nadam(0.01))]
        variables = [keras.Variable(np.ones(shape, "float32"), name=n) for n, shape in (("bias", 3), ("kernel", 4))]
        return optim.for_keras(optim.Groups(groups, global_clipnorm=1.0)), variables

    def step(optimizer: Any, variables: list[Any]) -> None:
        for factor in (1.0, 2.0):
            optimizer.apply(
                [keras.ops.convert_to_tensor(factor * np.ones(v.shape, "float32")) for v in variables], variables
            )

    (optimizer, variables), (again, copies) = made(), made()
    step(optimizer, variables)
    with tempfile.TemporaryDirectory() as folder:
        optim.save_checkpoint(f"{folder}/c", optimizer, variables)
        report = migrate.restore(f"{folder}/c", again, copies, restore_variables=True)
    assert report.fidelity == "exact", report.reasons
    for each in ((optimizer, variables), (again, copies)):
        step(*each)
    for one, two in zip(variables, copies, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(two))


def check_files() -> None:
    """A loaded model goes on as the first does, on this backend; `test_backends.py` loads it on another."""
    folder = Path(sys.argv[1])
    optimizer = optim.for_keras(optim.Adam(0.01, gradient_accumulation_steps=2, use_ema=True))
    model = model_with(optimizer)
    losses(model, epochs=1, steps_per_epoch=3)  # the third is gathered only
    model.save(folder / "model.keras")
    again = keras.models.load_model(folder / "model.keras", custom_objects=optim.keras_objects())
    assert again.optimizer.get_config() == optimizer.get_config()
    assert int(again.optimizer.iterations) == int(optimizer.iterations) == 1
    np.testing.assert_array_equal(again.optimizer.variables[-1], optimizer.variables[-1])
    expected = losses(model)
    np.testing.assert_allclose(losses(again), expected, rtol=1e-6)
    (folder / "losses.json").write_text(json.dumps(expected))
    other = model_with(optim.for_keras(optim.SGD(0.01, momentum=0.9)))
    other.optimizer.build(other.trainable_variables)
    alien = {"m.0": np.zeros((4, 8))}
    assert "does not fit the optimizer (SGD)" in refusal(
        lambda: other.optimizer.load_own_variables(alien), CheckpointError
    )


def check_checkpoints() -> None:
    """Training resumes in `fit`, though the variables are given in another order than they were saved in."""
    optimizer = optim.for_keras(optim.Adam(0.01, gradient_accumulation_steps=2, use_ema=True, jit_compile=None))
    model = model_with(optimizer)
    losses(model, epochs=1, steps_per_epoch=3)  # the third is gathered only
    again = model_with("sgd")
    named = [{f"w{i}": v for i, v in enumerate(each.trainable_variables)} for each in (model, again)]
    with tempfile.TemporaryDirectory() as folder:
        optim.save_checkpoint(folder, optimizer, dict(reversed(named[0].items())))
        info = optim.describe_checkpoint(folder)
        assert (info.algorithm, info.iterations, info.config) == ("Adam", 1, optimizer.inner_config())
        loaded = optim.load_checkpoint(folder, named[1])
        assert "extra 'w4'" in refusal(
            lambda: optim.load_checkpoint(folder, {**named[1], "w4": keras.Variable([0.0])}), CheckpointError
        )
        text = refusal(lambda: optim.save_checkpoint(folder, optimizer.inner, named[0]), UnsupportedError)
        assert "optim.for_keras" in text
    assert optim.for_keras(loaded) is loaded
    for one, other in zip(model.trainable_variables, again.trainable_variables, strict=True):
        for slot in ("m", "v", "average", "accumulated_gradient", "gathered"):
            found = (keras.ops.convert_to_numpy(o.get_slot(v, slot)) for o, v in ((optimizer, one), (loaded, other)))
            np.testing.assert_array_equal(*found)
    again.compile(loaded, loss="mse")
    np.testing.assert_allclose(losses(again), losses(model), rtol=1e-6)


def check_checkpoints_with_and_without_master_copies() -> None:
    """Without copies in the file, they start as the variables."""
    start = np.array([1.0, 2.0])
    for is_saved in (True, False):
        variable, other = (keras.Variable(x, dtype="bfloat16", name="v") for x in (start, 0 * start))
        optimizer = optim.for_keras(optim.SGD(0.001, momentum=0.5, master_copies=is_saved))
        optimizer.apply([keras.ops.ones((2,), "bfloat16")], [variable])
        with tempfile.TemporaryDirectory() as folder:
            optim.save_checkpoint(folder, optimizer, [variable])
            loaded = optim.load_checkpoint(folder, [other], master_copies=True)
        np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(v.value) for v in (variable, other)))
        expected = start - np.float32(0.001) if is_saved else keras.ops.convert_to_numpy(variable.value)
        found = keras.ops.convert_to_numpy(loaded.get_slot(other, "master"))
        np.testing.assert_array_equal(found, np.asarray(expected, np.float32))
        assert str(loaded.get_slot(other, "m").dtype) == "float32"


def check_weights_that_are_read_before_there_are_slots() -> None:
    optimizer = optim.for_keras(optim.Adam(0.01))
    model = model_with(optimizer)
    losses(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save_weights(f"{folder}/m.weights.h5")
        again = model_with(optim.for_keras(optim.Adam(0.5)))
        again.load_weights(f"{folder}/m.weights.h5")
    assert int(again.optimizer.iterations) == 12
    np.testing.assert_allclose(losses(again), losses(model), rtol=1e-6)


def check_copies() -> None:
    optimizer = optim.for_keras(optim.Adam(0.01, clipnorm=1.0))
    model = model_with(optimizer)
    losses(model)
    for again in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        again.build(model.trainable_variables)
        for one, other in zip(again.variables, optimizer.variables, strict=True):
            np.testing.assert_array_equal(one, other)


def check_callbacks() -> None:
    optimizer = optim.for_keras(optim.SGD(0.1))
    model = model_with(optimizer)
    rate = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    losses(model, callbacks=[rate])
    np.testing.assert_allclose(float(optimizer.learning_rate), 0.1 / 8, rtol=1e-6)
    plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.1, patience=1, min_delta=100.0)
    losses(model, callbacks=[plateau], epochs=2)
    np.testing.assert_allclose(optimizer.get_config()["learning_rate"], 0.1 / 80, rtol=1e-6)
    optimizer.learning_rate = 0.3
    assert optimizer.get_config()["learning_rate"] == 0.3
    with tempfile.TemporaryDirectory() as folder:
        losses(model, callbacks=[keras.callbacks.BackupAndRestore(folder)])
    swapped = optim.for_keras(optim.SGD(0.1, use_ema=True))
    losses(model_with(swapped), callbacks=[keras.callbacks.SwapEMAWeights()], validation_data=(X, Y))


def check_mixed_precision() -> None:
    try:
        keras.config.set_dtype_policy("mixed_float16")
        model = model_with(optim.for_keras(optim.Adam(0.01)))
        assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        first, *_, last = losses(model)
        assert last < first
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            model = model_with(optim.for_keras(optim.Adam(0.01, loss_scale=8.0)))
        assert any("switched off" in str(each.message) for each in found)
        assert model.optimizer.inner_optimizer.loss_scale is None
        keras.config.set_dtype_policy("mixed_bfloat16")
        first, *_, last = losses(model_with(optim.for_keras(optim.Adam(0.01))))
        assert last < first
    finally:
        keras.config.set_dtype_policy("float32")


def check_a_constant_loss_scale() -> None:
    plain = losses(model_with(optim.for_keras(optim.SGD(0.1))))
    optimizer = optim.for_keras(optim.SGD(0.1, loss_scale=64.0))
    np.testing.assert_allclose(losses(model_with(optimizer)), plain, rtol=1e-6)
    before = int(optimizer.iterations)
    variable = optimizer._trainable_variables[0]
    value = np.array(variable)
    bad = [keras.ops.full(v.shape, np.inf) for v in optimizer._trainable_variables]
    optimizer.apply(bad)
    np.testing.assert_array_equal(variable, value)
    assert int(optimizer.iterations) == before


def check_master_copies() -> None:
    """Steps smaller than the spacing of bfloat16 add up."""
    for copies, expected in ((True, 0.9), (False, 1.0)):
        variable = keras.Variable([1.0], dtype="bfloat16")
        optimizer = optim.for_keras(optim.SGD(0.001, master_copies=copies))
        for _ in range(100):
            optimizer.apply([keras.ops.ones((1,), "bfloat16")], [variable])
        found = np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(variable.value, "float32")))
        np.testing.assert_allclose(found, expected, atol=0.004)
    master = optim.for_keras(optim.SGD(0.001, master_copies=True))
    master.apply([keras.ops.ones((1,), "bfloat16")], [keras.Variable([1.0], dtype="bfloat16")])
    assert "master" in master.slot_names


class SignumRule(optim.Rule):
    learning_rate = optim.Hyperparameter(0.0001, "the size of a step")
    momentum = optim.Hyperparameter(0.9, "decay rate of the mean of gradients", high=1.0)
    slots = (optim.Slot("m", unit="gradient"),)

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Any, c: Any) -> Any:
        m = c["momentum"] * slots["m"] + (1.0 - c["momentum"]) * gradient
        return -c["learning_rate"] * xp.sign(m), {"m": m}


@keras.saving.register_keras_serializable("mine")
class Signum(optim.RuleOptimizer, rule=SignumRule):
    """signSGD with momentum."""


class Unknown(optim.Rule):
    learning_rate = optim.Hyperparameter(0.1, "the size of a step")

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Any, c: Any) -> Any:
        return xp.no_such_function(gradient), {}


def check_a_rule_of_ones_own() -> None:
    variable = keras.Variable([1.0, -2.0], name="v")
    optimizer = optim.for_keras(Signum(0.25, momentum=0.5))
    optimizer.apply([keras.ops.convert_to_tensor([2.0, -4.0])], [variable])
    np.testing.assert_array_equal(variable, [0.75, -1.75])
    np.testing.assert_array_equal(optimizer.get_slot(variable, "m"), [1.0, -2.0])
    again = type(optimizer).from_config(optimizer.get_config())
    assert type(again.inner) is Signum
    loose = optim.for_keras(optim.Optimizer(rule=SignumRule(), learning_rate=0.25))
    loose.apply([keras.ops.convert_to_tensor([2.0, -4.0])], [keras.Variable([1.0, -2.0])])


def check_lazy_rows() -> None:
    table = keras.Variable(np.ones((3, 2), np.float32), name="table")
    optimizer = optim.for_keras(optim.SGD(0.5, momentum=0.5, lazy_rows=["table"]))
    for _ in range(2):
        optimizer.apply([keras.ops.convert_to_tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])], [table])
    np.testing.assert_array_equal(np.array(table)[:, 0], [-0.25, 1.0, 1.0])
    optimizer.apply([keras.ops.zeros((3, 2))], [table])
    np.testing.assert_array_equal(np.array(table)[:, 0], [-0.25, 1.0, 1.0])


def check_a_large_variable_steps_as_its_parts_do() -> None:
    """PyTorch updates it in place, by threads or part by part; its average, and a float16 one's copy, follow."""
    for mode in ("build", "off"):
        os.environ["DTOPT_KERNELS"] = mode
        _check_parts_of_a_large_variable()
    os.environ.pop("DTOPT_KERNELS")


def _check_parts_of_a_large_variable() -> None:
    size = 300_001
    for dtype, options in (("float32", {"use_ema": True}), ("float16", {"master_copies": True, "weight_decay": 0.1})):
        values = RANDOM.standard_normal(size).astype(dtype)
        pieces = np.split(values, [100_000, 200_000])
        whole, parts = [keras.Variable(values, dtype=dtype)], [keras.Variable(x, dtype=dtype) for x in pieces]
        one, other = (optim.for_keras(optim.Adam(0.1, **options)) for _ in range(2))
        for step in range(3):
            gradient = np.random.default_rng(step).standard_normal(size).astype(dtype)
            tensors = [keras.ops.convert_to_tensor(x) for x in (gradient, *np.split(gradient, [100_000, 200_000]))]
            one.apply(tensors[:1], whole)
            other.apply(tensors[1:], parts)
        for slot in (None, *one.slot_names):
            found = [v if slot is None else o.get_slot(v, slot) for o, of in ((one, whole), (other, parts)) for v in of]
            first, *rest = (np.asarray(keras.ops.convert_to_numpy(x.value)) for x in found)
            np.testing.assert_array_equal(first, np.concatenate(rest), err_msg=f"{dtype} {slot}")


def check_the_kernel_is_used() -> None:
    """On PyTorch's CPU, unless DTOPT_KERNELS is off; steps agree to rounding."""
    if BACKEND != "torch":
        return
    from optim.native import maths

    found = []
    for mode in ("build", "off"):
        os.environ["DTOPT_KERNELS"] = mode
        assert (maths.update_for(SGDRule(), "float32") is not None) == (mode == "build")
        variable = keras.Variable(np.linspace(-1, 1, 100_003, dtype=np.float32))
        version = variable.value._version
        optimizer = optim.for_keras(optim.AdamW(0.1, weight_decay=0.1))
        for step in range(3):
            gradient = np.random.default_rng(step).standard_normal(100_003).astype(np.float32)
            optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
        assert variable.value._version > version, "autograd would not notice that the variable changed"
        found.append(np.asarray(keras.ops.convert_to_numpy(variable.value)))
    os.environ.pop("DTOPT_KERNELS")
    np.testing.assert_allclose(found[0], found[1], rtol=2e-6, atol=1e-7)


def check_a_refused_step_changes_nothing() -> None:
    """Large variables are updated in place on PyTorch."""
    first, second = (keras.Variable(np.ones((600, 600), np.float32)) for _ in range(2))
    optimizer = optim.for_keras(optim.Adam(0.1))
    gradients = [keras.ops.ones(shape) for shape in ((600, 600), (600, 1))]
    assert "has shape (600, 1)" in refusal(lambda: optimizer.apply(gradients, [first, second]), MismatchError)
    assert np.all(keras.ops.convert_to_numpy(first.value) == 1.0)
    assert int(optimizer.iterations.value) == 0


def check_constraints_and_exclusions() -> None:
    kernel = keras.Variable([1.0], name="kernel")
    bias = keras.Variable([1.0], name="bias")
    kernel.constraint = keras.constraints.NonNeg()
    optimizer = optim.for_keras(optim.SGD(0.5, weight_decay=0.5, weight_decay_exclude=["bias"]))
    optimizer.apply([keras.ops.convert_to_tensor([4.0]), keras.ops.zeros((1,))], [kernel, bias])
    np.testing.assert_array_equal(kernel, [0.0])
    np.testing.assert_array_equal(bias, [1.0])


class OwnStep(optim.Optimizer):
    def update_step(self, gradient: Any, variable: Any) -> None:
        variable.assign_sub(gradient)


def check_what_is_refused() -> None:
    refused: dict[str, Any] = {
        "loss_scale": lambda: optim.SGD(0.1, loss_scale="dynamic"),
        "jit_compile": lambda: optim.SGD(0.1, jit_compile=True),
        "executor": lambda: optim.SGD(0.1, executor="local"),
        "repeated_rows": lambda: optim.SGD(0.1, repeated_rows=["clip"]),
        "slot_placement": lambda: optim.SGD(0.1, slot_placement="zero1"),
        "mesh": lambda: optim.SGD(0.1, mesh=object()),
        "its own update_step": lambda: OwnStep(learning_rate=0.1),
        "momentum is a tensor or a callable": lambda: optim.SGD(0.1, momentum=lambda: 0.9),
        "no_such_function": lambda: optim.Optimizer(rule=Unknown(), learning_rate=0.1),
        "takes an optimizer of optim": lambda: keras.optimizers.SGD(),
    }
    if BACKEND == "jax":
        refused["callable learning_rate"] = lambda: optim.SGD(lambda: 0.1)
    for text, make in refused.items():
        found = refusal(lambda make=make: optim.for_keras(make()), UnsupportedError, HyperparameterError)
        assert text in found, (text, found)
    optimizer = optim.for_keras(optim.Adam(0.1))
    for name in ("clipnorm", "beta_1", "use_ema"):
        assert "fixed" in refusal(lambda name=name: setattr(optimizer, name, 0.5), UnsupportedError)
    assert "for_keras" in refusal(lambda: optim.Adam(0.1).apply_gradients([]), AttributeError)


def check_what_is_printed() -> None:
    optimizer, variable = optim.for_keras(optim.Adam(0.25, clipnorm=2.0)), keras.Variable(np.ones(3))
    for _ in range(2):
        optimizer.apply([keras.ops.ones(3)], [variable])
    assert repr(optimizer).endswith(", clipnorm=2.0): 2 steps, 1 variable>)"), repr(optimizer)


def check_qk_clip() -> None:
    query, key = (keras.Variable(np.ones((4, heads, 3))) for heads in (4, 2))
    optim.QKClip([query], [key], 1.0, key_heads=2)(keras.ops.convert_to_tensor([4.0, 16.0, 0.5, np.nan]))
    for variable, factors in ((query, [0.25, 0.25, 1.0, 1.0]), (key, [0.25, 1.0])):
        expected = np.array(factors)[:, None] * np.ones((4, 1, 3))
        np.testing.assert_allclose(keras.ops.convert_to_numpy(variable), expected, rtol=1e-6)


def main() -> None:
    run_checks(globals())


if __name__ == "__main__":
    main()
