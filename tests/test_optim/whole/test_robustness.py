"""What happens around steps: Ctrl-C, threads, copies, memory, taken names, configs and checkpoints of others."""

from __future__ import annotations

import copy
import pickle
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim import schedules
from optim.errors import CheckpointError, HyperparameterError, MismatchError, UnsupportedError
from optim.layouts import placement
from tests.helpers.breadth import broad
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.support import put, variable


class _Own(optim.Adam):
    """A built-in whose update is extended, as users do."""

    def update_step(self, gradient: Any, variable: Any) -> None:
        super().update_step(2.0 * gradient, variable)


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize("place", ["plain", "mesh"])
def test_a_subclass_of_a_built_in_calls_super(place: str, mode: str, mesh_2: Any) -> None:
    layout = dtensor.Layout(["x"], mesh_2) if place == "mesh" else None
    mine, theirs = variable([1.0, 2.0], layout, "a"), variable([1.0, 2.0], layout, "a")
    own, stock = _Own(0.1, weight_decay=0.2, use_ema=True), optim.Adam(0.1, weight_decay=0.2, use_ema=True)
    own.build([mine])
    step = lambda: own.apply_gradients([(put([0.3, -0.1], layout), mine)])  # noqa: E731
    run = tf.function(step) if mode == "function" else step
    for _ in range(3):
        run()
        stock.apply_gradients([(put([0.6, -0.2], layout), theirs)])
    from optim.layouts.placement import to_host

    np.testing.assert_allclose(to_host(mine), to_host(theirs), rtol=1e-12)
    np.testing.assert_allclose(to_host(own.get_slot(mine, "v")), to_host(stock.get_slot(theirs, "v")), rtol=1e-12)


@pytest.fixture
def heeds_sigint() -> Any:
    """As in a terminal: a shell that runs the tests in the background has them ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("options", [{}, {"executor": "portable"}, {"use_ema": True}], ids=str)
@pytest.mark.quick(1)
def test_ctrl_c_leaves_a_step_done_or_not_done(options: dict[str, Any], heeds_sigint: None) -> None:
    model = [tf.Variable(np.zeros(1000)) for _ in range(20)]
    optimizer = optim.SGD(1.0, **options)
    pairs = [(tf.constant(np.ones(1000)), v) for v in model]
    optimizer.apply_gradients(pairs)
    caught = 0
    for delay in np.linspace(0.0001, 0.02, 25):
        timer = threading.Timer(float(delay), signal.raise_signal, (signal.SIGINT,))
        try:
            timer.start()
            for _ in range(200):
                optimizer.apply_gradients(pairs)
            timer.join()
        except KeyboardInterrupt:
            caught += 1
        timer.join()
        steps = int(optimizer.iterations)
        assert {float(-v.numpy()[0]) for v in model} == {float(steps)}
    assert caught
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_threads_take_turns() -> None:
    var, optimizer = tf.Variable(0.0, dtype=tf.float64), optim.SGD(1.0)
    optimizer.build([var])

    def work() -> None:
        for _ in range(250):
            optimizer.apply_gradients([(tf.constant(-1.0, tf.float64), var)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert int(optimizer.iterations) == 1000
    assert float(var) == 1000.0


@pytest.mark.parametrize("how", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize(
    "make",
    [lambda: optim.Adam(0.1, clipnorm=1.0, use_ema=True), optim.Nadam, lambda: optim.SGD(0.5)],
    ids=["Adam", "Nadam", "SGD"],
)
def test_a_copy_goes_on_as_the_original(make: Any, how: Any) -> None:
    optimizer = make()
    assert how(optimizer).get_config() == optimizer.get_config()
    var = tf.Variable([1.0, 2.0], name="w")
    optimizer.apply_gradients([(tf.constant([0.1, 0.2]), var)])
    optimizer.executor_report()
    other = how(optimizer)
    (twin,) = [t.user_variable for t in other._state.tracked]
    assert twin is not var
    for one, its in ((optimizer, var), (other, twin)):
        one.apply_gradients([(tf.constant([0.3, -0.2]), its)])
    for a, b in zip(optimizer.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(var, twin)


def test_a_copy_on_a_mesh_is_refused(mesh_2: Any) -> None:
    with pytest.raises(UnsupportedError, match="save_checkpoint"):
        copy.deepcopy(optim.SGD(mesh=mesh_2))


EVERYTHING = {"weight_decay": 0.1, "global_clipnorm": 1.0, "clipvalue": 1.0, "loss_scale": 3.0}
COMPILING: Mapping[str, Callable[..., Any]] = {
    "sums": lambda rate: optim.Lamb(rate, **EVERYTHING),
    "rows and columns": lambda rate: optim.Adafactor(rate, use_ema=True, slot_placement="zero1"),
    "portable": lambda rate: optim.Adam(rate, executor="portable", lookahead={"sync_period": 3}, **EVERYTHING),
    "one number": lambda rate: optim.NovoGrad(rate, clipnorm=0.1, master_copies=True),
    "accumulation": lambda rate: optim.Adam(rate, gradient_accumulation_steps=2),
    "super": lambda rate: _CallsSuper(rate, weight_decay=0.1, use_ema=True),
}


class _CallsSuper(optim.Adam):
    def update_step(self, gradient: Any, variable: Any) -> None:
        super().update_step(gradient, variable)


@pytest.mark.parametrize(
    "case", [broad("sums"), "rows and columns", broad("portable"), "one number", "accumulation", "super"]
)
@pytest.mark.quick(1)
def test_eager_steps_on_a_mesh_compile_nothing_per_step(mesh_2: Any, case: str) -> None:
    """Small tensors of float32 are what DTensor makes constants of, and a model has variables of several shapes."""
    shapes = {(4, 2): ["x", "unsharded"], (2,): ["unsharded"], (4,): ["x"], (): []}
    layouts = [dtensor.Layout(specs, mesh_2) for specs in shapes.values()]
    random = np.random.default_rng(0)
    some = [variable(np.ones(shape), layout, "w", tf.float32) for shape, layout in zip(shapes, layouts, strict=True)]
    optimizer = COMPILING[case](schedules.CosineDecay(0.1, 1000))

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    def steps(count: int) -> float:
        gradients = [[put(random.normal(size=v.shape), v.layout, tf.float32) for v in some] for _ in range(count)]
        before = resident()
        for given in gradients:
            optimizer.apply_gradients(zip(given, some, strict=True))
        return (resident() - before) / count

    steps(20)
    is_little = any(steps(25) < 50_000 for _ in range(2))
    assert is_little, "functions were compiled at each step, about 140 KB for each value of a small tensor"


def test_names_that_are_taken() -> None:
    var, optimizer = tf.Variable([1.0, 2.0]), optim.Adam()
    optimizer.build([var])
    m, iterations = optimizer.get_slot(var, "m"), optimizer.iterations
    with pytest.raises(HyperparameterError, match="'m'"):
        optimizer.add_variable_from_reference(var, "m")
    with pytest.raises(HyperparameterError, match="iterations"):
        optimizer.add_variable(name="iterations")
    assert optimizer.get_slot(var, "m") is m
    assert optimizer.iterations is iterations


@pytest.mark.parametrize(
    "options",
    [
        {"clipnorm": np.float32(0.5)},
        {"clipvalue": np.float64(0.5), "weight_decay": np.float16(0.5)},
        {"gradient_accumulation_steps": np.int64(2)},
        {"use_ema": np.bool_(True), "ema_momentum": np.float32(0.5), "ema_overwrite_frequency": np.int32(3)},
        {"loss_scale": np.float32(4.0)},
        {"loss_scale": "dynamic", "loss_scale_growth_steps": np.int64(5)},
    ],
    ids=str,
)
def test_numbers_of_numpy(options: dict[str, Any]) -> None:
    config = optim.SGD(np.float32(0.5), momentum=1.0, **options).get_config()
    for name, value in options.items():
        assert config[name] == value
        assert not isinstance(config[name], np.generic)


@pytest.mark.parametrize("cls", [optim.SGD, optim.Adam, optim.Optimizer, _Own])
def test_a_config_of_unknown_keys(cls: Any) -> None:
    with pytest.raises(HyperparameterError, match="foo"):
        cls.from_config({"foo": 1})


def test_a_keras_3_config_is_taken() -> None:
    keras = pytest.importorskip("keras")
    theirs = keras.optimizers.Adam(0.25, beta_1=0.8, clipnorm=2.0, loss_scale_factor=8.0, use_ema=True)
    ours = optim.Adam.from_config(theirs.get_config())
    assert (ours.beta_1, ours.clipnorm, ours.loss_scale_factor, ours.use_ema) == (0.8, 2.0, 8.0, True)


def test_weights_and_the_stores_of_keras() -> None:
    var, optimizer = tf.Variable([1.0, 2.0]), optim.Adam(0.1)
    optimizer.apply([tf.constant([0.1, 0.2])], [var])
    optimizer.apply([tf.constant([0.1, 0.2])])
    store: dict[str, Any] = {}
    optimizer.save_own_variables(store)
    other, twin = optim.Adam(0.1), tf.Variable(var.read_value())
    other.build([twin])
    other.load_own_variables(store)
    for a, b in zip(optimizer.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(MismatchError):
        other.set_weights(other.get_weights()[:-1])
    with pytest.raises(MismatchError):
        optimizer.apply([tf.constant([0.1, 0.2])] * 2)


@pytest.mark.parametrize("kind", ["legacy", "new"])
def test_a_checkpoint_of_another_optimizer_is_refused(kind: str, tmp_path: Any) -> None:
    tf_keras = pytest.importorskip("tf_keras")
    var = tf.Variable([1.0, 2.0])
    theirs = (tf_keras.optimizers.legacy if kind == "legacy" else tf_keras.optimizers).Adam(0.1)
    theirs.apply_gradients([(tf.constant([0.1, 0.2]), var)])
    path = tf.train.Checkpoint(optimizer=theirs, w=var).write(str(tmp_path / "c"))
    ours, mine = optim.Adam(0.1), tf.Variable([5.0, 5.0])
    ours.build([mine])
    with pytest.raises(CheckpointError, match="migrate"):
        tf.train.Checkpoint(optimizer=ours, w=mine).read(path)


def test_repr_says_what_it_is() -> None:
    var, optimizer = tf.Variable([1.0]), optim.Adam(0.25, clipnorm=2.0)
    optimizer.apply_gradients([(tf.constant([1.0]), var)])
    assert repr(optimizer) == "<Adam(learning_rate=0.25, clipnorm=2.0): 1 step, 1 variable>"


@pytest.mark.parametrize("place", ["plain", "mesh"])
@pytest.mark.quick(1)
def test_a_build_that_was_cut_short_is_completed(place: str, mesh_2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after Ctrl-C, or where memory ran out and somebody tries again."""
    layout = dtensor.Layout.replicated(mesh_2, 1) if place == "mesh" else None
    options: dict[str, Any] = {"use_ema": True, "gradient_accumulation_steps": 2, "amsgrad": True}
    pairs = lambda: [(put([0.3, -0.1], layout), variable([1.0, 2.0], layout, name)) for name in "ab"]  # noqa: E731
    whole, expected = optim.Adam(0.1, **options), pairs()
    for _ in range(4):
        whole.apply_gradients(expected)
    made = placement.filled_variable
    for last in range(8):
        left = iter(range(last))

        def fails(*args: Any, left: Any = left) -> Any:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return made(*args)

        optimizer, own = optim.Adam(0.1, **options), pairs()
        monkeypatch.setattr(placement, "filled_variable", fails)
        with pytest.raises(KeyboardInterrupt):
            optimizer.apply_gradients(own)
        monkeypatch.setattr(placement, "filled_variable", made)
        for _ in range(4):
            optimizer.apply_gradients(own)
        for (_, a), (_, b) in zip(own, expected, strict=True):
            np.testing.assert_array_equal(placement.to_host(a), placement.to_host(b))
        assert [v.name for v in optimizer.variables] == [v.name for v in whole.variables]


@pytest.mark.breadth
@pytest.mark.parametrize(("name", "options"), [("SOAP", {"first_iterations": 4}), ("Shampoo", {})])
def test_several_variables_on_a_mesh_step(name: str, options: dict[str, Any], mesh_2: Any) -> None:
    """DTensor names functions of loops so that those of several variables collided."""
    variables = []
    for i in range(3):
        layout = dtensor.Layout(["x" if i % 2 else "unsharded", "unsharded"], mesh_2)
        start = np.random.default_rng(i).normal(size=(4 + 2 * i, 5 + i)).astype(np.float32)
        variables.append(variable(start, layout, f"v{i}"))
    optimizer = getattr(optim, name)(0.01, precondition_frequency=2, **options)
    for call in range(3):
        random = np.random.default_rng(call)
        gradients = [put(random.normal(size=v.shape).astype(np.float32), v.layout) for v in variables]
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
    assert int(optimizer.iterations) == 3
    assert all(np.isfinite(value_of(v)).all() for v in variables)
