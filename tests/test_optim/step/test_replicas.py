"""Steps inside `tf.distribute.Strategy.run`: sums over replicas that stay equal, as with Keras's own optimizers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import optim
from bench.scale.group import free_ports
from optim.errors import UnsupportedError
from optim.executors import one_op
from optim.legacy import v1, v2
from optim.state import row_gradient
from optim.step import gradient_inputs
from tests.helpers.breadth import broad, covering

START = np.array([[1.0, -2.0], [3.0, 0.5], [0.25, 4.0]], np.float32)


def mirrored() -> Any:
    """Two replicas. Collectives of several strategies in one process get into each other's way (TF 2.21)."""
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())


def run(strategy: Any, make: Any, steps: int = 4, traced: bool = True, sparse: bool = False, **how: Any) -> Any:
    """An optimizer and its variable after steps whose gradients differ from replica to replica."""
    with strategy.scope():
        variable, optimizer = tf.Variable(START, name="w"), make()

    def step(number: Any) -> None:
        replica = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
        gradient = (replica + 1.0) * tf.cos(number + tf.constant(START))
        if sparse:
            gradient = tf.IndexedSlices(gradient[:2], tf.stack([0, tf.cast(replica, tf.int32)]), tf.constant([3, 2]))
        optimizer.apply_gradients([(gradient, variable)], **how)

    def everywhere(number: Any) -> None:
        strategy.run(step, args=(number,))

    once = tf.function(everywhere, autograph=False) if traced else everywhere
    for number in range(steps):
        once(tf.constant(float(number)))
    return optimizer, variable


def copies(variable: Any) -> list[np.ndarray]:
    """The value in each replica; all are the same."""
    values = [copy.numpy() for copy in getattr(variable, "values", [variable])]
    for value in values[1:]:
        np.testing.assert_array_equal(value, values[0])
    return values


def alone(make: Any, steps: int = 4, replicas: int = 2) -> np.ndarray:
    """The same steps by the summed gradients, without a strategy."""
    variable, optimizer = tf.Variable(START), make()
    for number in range(steps):
        weight = sum(range(1, replicas + 1))
        optimizer.apply_gradients([(weight * tf.cos(float(number) + tf.constant(START)), variable)])
    return variable.numpy()


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped, averaged and decayed": {"global_clipnorm": 0.5, "use_ema": True, "weight_decay": 0.1},
    "accumulated": {"gradient_accumulation_steps": 2},
    "scaled": {"loss_scale": "dynamic", "clipnorm": 0.5},
    "overwritten": {"use_ema": True, "ema_overwrite_frequency": 2},
}


@covering(1, name=OPTIONS, traced=[True, False])
@pytest.mark.quick(2)
def test_a_step_is_that_of_the_summed_gradient(name: str, traced: bool) -> None:
    make = lambda: optim.Adam(0.1, executor="portable", **OPTIONS[name])  # noqa: E731
    optimizer, variable = run(mirrored(), make, traced=traced)
    np.testing.assert_allclose(copies(variable)[0], alone(make), rtol=1e-5, atol=1e-6)
    assert int(optimizer.iterations.numpy()) == (2 if "accumulation" in str(OPTIONS[name]) else 4)
    for slot in optimizer.variables:
        copies(slot)


@pytest.mark.parametrize("mode", ["native_function"])
@covering(1, name=OPTIONS, traced=[True, False])
@pytest.mark.quick(2)
def test_the_kernel_steps_every_copy(name: str, traced: bool, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    updated: list[int] = []
    own = one_op._update
    monkeypatch.setattr(one_op, "_update", lambda *given: updated.append(len(given[1])) or own(*given))
    make = lambda: optim.Adam(0.1, **OPTIONS[name])  # noqa: E731
    optimizer, variable = run(mirrored(), make, traced=traced)
    assert len(updated) >= 2, "in both replicas"
    np.testing.assert_allclose(copies(variable)[0], alone(make), rtol=1e-5, atol=1e-6)
    for slot in optimizer.variables:
        copies(slot)


@pytest.mark.parametrize("name", ["SGD", "RMSprop", "Adagrad", "Adadelta", "Adam", "AdamW", "Adamax", "Ftrl", "Lion"])
@pytest.mark.breadth
def test_every_optimizer_steps_as_that_of_tf_keras(name: str) -> None:
    ends = [run(mirrored(), lambda m=m: getattr(m, name)(learning_rate=0.1))[1] for m in (optim, tf_keras.optimizers)]
    np.testing.assert_allclose(copies(ends[0])[0], copies(ends[1])[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("name", ["Adam", "SGD"])
@pytest.mark.quick(2)
def test_legacy_optimizers_step_as_those_of_tf_keras(name: str, sparse: bool) -> None:
    options = {"momentum": 0.9} if name == "SGD" else {"clipnorm": 0.5}
    ends = [
        run(mirrored(), lambda m=m: getattr(m, name)(0.1, **options), sparse=sparse)[1]
        for m in (v2, tf_keras.optimizers.legacy)
    ]
    np.testing.assert_allclose(copies(ends[0])[0], copies(ends[1])[0], rtol=1e-5, atol=1e-6)


def test_sparse_gradients_are_summed() -> None:
    ends = [run(mirrored(), lambda m=m: m.Adagrad(0.1), sparse=True)[1] for m in (optim, tf_keras.optimizers)]
    np.testing.assert_allclose(copies(ends[0])[0], copies(ends[1])[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("traced", [True, False])
@pytest.mark.parametrize("mode", ["native_function"])
def test_sparse_gradients_are_gathered_row_by_row(traced: bool, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    own = row_gradient.add_rows
    monkeypatch.setattr(row_gradient, "add_rows", lambda *given: seen.append(given) or own(*given))
    more: dict[str, Any] = {"gradient_accumulation_steps": 2, "global_clipnorm": 1.0}
    ends = [
        run(mirrored(), lambda how=how: optim.Adagrad(0.1, **how, **more), traced=traced, sparse=True)[1]
        for how in ({}, {"executor": "portable"})
    ]
    assert seen
    np.testing.assert_allclose(copies(ends[0])[0], copies(ends[1])[0], rtol=1e-6)
    assert not np.array_equal(copies(ends[0])[0], START)


@pytest.mark.parametrize("mode", ["native_function"])
def test_sparse_gradients_are_summed_row_by_row(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    own = gradient_inputs.row_gradient
    monkeypatch.setattr(gradient_inputs, "row_gradient", lambda *given, **how: seen.append(given) or own(*given, **how))
    ends = [run(mirrored(), lambda m=m: m.Adagrad(0.1), sparse=True)[1] for m in (optim, tf_keras.optimizers)]
    assert seen
    np.testing.assert_allclose(copies(ends[0])[0], copies(ends[1])[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", [{"skip_gradients_aggregation": True}, {"experimental_aggregate_gradients": False}])
def test_sums_of_ones_own_are_not_summed_again(how: Any) -> None:
    strategy = mirrored()
    with strategy.scope():
        variable, optimizer = tf.Variable([0.0]), optim.SGD(1.0)

    @tf.function
    def step() -> None:
        def replica() -> None:
            total = tf.distribute.get_replica_context().all_reduce("sum", tf.constant([1.0]))
            optimizer.apply_gradients([(total, variable)], **how)

        strategy.run(replica)

    step()
    assert copies(variable)[0] == -2.0


def test_one_device_and_no_gradient_for_some() -> None:
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    make = lambda: optim.Adam(0.1, executor="portable")  # noqa: E731
    optimizer, variable = run(strategy, make)
    np.testing.assert_allclose(variable.numpy(), alone(make, replicas=1), rtol=1e-5)
    strategy = mirrored()
    with strategy.scope():
        one, two, optimizer = tf.Variable([1.0]), tf.Variable([1.0]), optim.SGD(0.5)
    with pytest.warns(UserWarning, match="no gradients"):
        strategy.run(lambda: optimizer.apply_gradients([(tf.constant([1.0]), one), (None, two)]))
    assert (copies(one)[0], copies(two)[0]) == (0.0, 1.0)


@pytest.mark.parametrize("traced", [True, False], ids=["function", "eager"])
def test_a_gradient_that_one_replica_lacks_is_zero_there(traced: bool) -> None:
    """Sums go by position: without that, the gradient of one variable would be added to that of another."""
    strategy = mirrored()
    with strategy.scope():
        one, two, three, four = (tf.Variable([1.0, 1.0]) for _ in range(4))
        optimizer = optim.SGD(0.5)

    def replica() -> None:
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        is_first = int(number if isinstance(number, int) else tf.get_static_value(number)) == 0
        rows = tf.IndexedSlices(tf.constant([8.0]), tf.constant([1]), tf.constant([2]))
        own = [None, tf.ones(2), rows, rows] if is_first else [tf.fill([2], 4.0), None, None, tf.ones(2)]
        optimizer.apply_gradients(zip(own, [one, two, three, four], strict=True))

    everywhere = lambda: strategy.run(replica) and None  # noqa: E731
    (tf.function(everywhere, autograph=False) if traced else everywhere)()
    found = [copies(variable)[0] for variable in (one, two, three, four)]
    np.testing.assert_array_equal(found, [[-1, -1], [0.5, 0.5], [1, -3], [0.5, -3.5]])
    assert all(float(v.numpy()) == 1 for v in optimizer.iterations.values)


@pytest.mark.parametrize("traced", [True, False], ids=["function", "eager"])
def test_what_overflows_in_one_replica_is_a_step_of_none(traced: bool) -> None:
    strategy = mirrored()
    with strategy.scope():
        variable = tf.Variable([1.0, 1.0])
        optimizer = optim.Adam(0.5, loss_scale="dynamic", use_ema=True)

    def replica() -> None:
        rank = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
        optimizer.apply_gradients([(tf.where(rank > 0, np.inf, 1.0) * tf.ones(2), variable)])

    everywhere = lambda: strategy.run(replica) and None  # noqa: E731
    (tf.function(everywhere, autograph=False) if traced else everywhere)()
    state = {v.name.split(":")[0]: copies(v)[0] for v in optimizer.variables}
    np.testing.assert_array_equal(copies(variable)[0], [1, 1])
    assert state["iteration"] == 0
    assert state["loss_scale"] == 2.0**14


def test_averages_are_swapped_in_every_replica() -> None:
    strategy = mirrored()
    with strategy.scope():
        variable = tf.Variable([1.0])
        optimizer = optim.SGD(0.5, use_ema=True, ema_momentum=0.5)
    strategy.run(lambda: optimizer.apply_gradients([(tf.ones(1), variable)]))
    with optimizer.averages_swapped():
        assert copies(variable)[0] == 0.5
    assert copies(variable)[0] == 0.0


def test_what_cannot_be_is_refused_before_anything_changes() -> None:
    strategy = mirrored()
    plain, outside = tf.Variable([1.0], name="plain"), optim.SGD(1.0)
    with strategy.scope():
        variable, optimizer, old = tf.Variable([1.0]), optim.SGD(1.0), v1.SGD(1.0)
        with pytest.raises(UnsupportedError, match=r"Strategy\.run"):
            optimizer.apply_gradients([(tf.ones(1), variable)])
    for made, target in ((outside, variable), (optimizer, plain)):
        with pytest.raises(UnsupportedError, match="scope"):
            strategy.run(lambda made=made, target=target: made.apply_gradients([(tf.ones(1), target)]))
    for made in (optimizer, outside):
        with pytest.raises(UnsupportedError, match=r"strategy\.run"):
            made.apply_gradients([(tf.ones(1), variable)])
    with pytest.raises(UnsupportedError, match=r"legacy\.v2"):
        strategy.run(lambda: old.get_updates(lambda: tf.reduce_sum(variable), [variable]))
    central = tf.distribute.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0")
    with central.scope():
        held, there = tf.Variable([1.0]), optim.SGD(1.0)
    with pytest.raises(UnsupportedError, match="CentralStorageStrategy"):
        central.run(lambda: there.apply_gradients([(tf.ones(1), held)]))
    assert [float(v.numpy()[0]) for v in (plain, variable, held)] == [1.0, 1.0, 1.0]


def test_a_variable_on_a_parameter_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a ParameterServerStrategy makes them, outside of whose scope a step may be called, too."""
    variable, optimizer = tf.Variable([1.0], name="far"), optim.SGD(1.0)
    monkeypatch.setattr(type(variable), "device", "/job:ps/replica:0/task:0/device:CPU:0")
    with pytest.raises(UnsupportedError, match="'far' is on a parameter server"):
        optimizer.apply_gradients([(tf.ones(1), variable)])
    assert not optimizer.built


@pytest.mark.breadth
@pytest.mark.parametrize("module", [keras, tf_keras], ids=["keras3", "tf_keras"])
@pytest.mark.parametrize("lazy", [broad(False), True], ids=["built", "lazy"])
def test_a_fit_is_that_of_keras(module: Any, lazy: bool) -> None:
    x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    y = np.random.default_rng(1).normal(size=(32, 2)).astype(np.float32)

    def fitted(make: Any) -> Any:
        strategy = mirrored()
        with strategy.scope():
            layers = [
                module.layers.Dense(8, "relu", kernel_initializer=module.initializers.GlorotUniform(seed=1)),
                module.layers.Dense(2, kernel_initializer=module.initializers.GlorotUniform(seed=2)),
            ]
            model = module.Sequential(layers if lazy else [module.layers.Input((4,)), *layers])
            model.compile(make(), "mse", **({} if module is tf_keras else {"jit_compile": False}))
        model.fit(x, y, 8, 2, verbose=0, shuffle=False)
        return model

    options = {"learning_rate": 0.05, "weight_decay": 0.1}
    if module is tf_keras:  # Keras 3 clips before it sums
        options["global_clipnorm"] = 0.5
    theirs = fitted(lambda: module.optimizers.Adam(**options))
    ours = fitted(lambda: optim.for_keras(optim.Adam(**options), module))
    for one, two in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)
    for variable in ours.trainable_variables:
        copies(getattr(variable, "value", variable) if module is keras else variable)
    assert int(ours.optimizer.iterations.numpy()) == 8


@pytest.mark.breadth
def test_callbacks_read_and_set_the_rate_within_the_scope_of_a_strategy() -> None:
    rates = []
    with mirrored().scope():
        for make in (keras.optimizers.SGD, lambda rate: optim.for_keras(optim.SGD(rate), keras)):
            model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
            model.compile(make(0.5), loss="mse")
            callback = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
            history = model.fit(START, START[:, :1], epochs=3, batch_size=2, verbose=0, callbacks=[callback])
            rates.append([*history.history["learning_rate"], float(np.array(model.optimizer.learning_rate))])
            assert int(np.array(model.optimizer.iterations)) == 6
    assert rates[0] == rates[1] == [0.25, 0.125, 0.0625, 0.0625]


@pytest.mark.parametrize("module", [keras, tf_keras], ids=["keras3", "tf_keras"])
@pytest.mark.quick(1)
def test_averages_in_fit_become_the_weights_whatever_scales_the_loss(module: Any) -> None:
    strategy = mirrored()
    with strategy.scope():
        model = module.Sequential([module.layers.Input((2,)), module.layers.Dense(1, kernel_initializer="ones")])
        made = optim.for_keras(
            optim.SGD(0.1, use_ema=True, ema_momentum=0.5, ema_start="initial", loss_scale="dynamic"), module
        )
        model.compile(made, "mse", **({} if module is tf_keras else {"jit_compile": False}))
    model.fit(np.ones((4, 2), np.float32), np.zeros((4, 1), np.float32), 4, 1, verbose=0)
    kernel = model.trainable_variables[0]
    np.testing.assert_allclose(np.asarray(kernel), 1 - 0.5 * 0.1 * 2 * 2, rtol=1e-5)


def test_state_is_saved_and_resumed_on_any_number_of_replicas(tmp_path: Path) -> None:
    make = lambda: optim.Adam(0.1, use_ema=True)  # noqa: E731
    optimizer, variable = run(mirrored(), make, 3)
    optim.save_checkpoint(tmp_path / "ours", optimizer, {"w": variable})
    path = tf.train.Checkpoint(optimizer=optimizer, w=variable).write(str(tmp_path / "theirs"))
    strategy = mirrored()
    with strategy.scope():
        again, other = tf.Variable(tf.zeros_like(START), name="w"), make()
        other.build([again])
    tf.train.Checkpoint(optimizer=other, w=again).read(path).assert_consumed()
    single = tf.Variable(tf.zeros_like(START), name="w")
    loaded = optim.load_checkpoint(tmp_path / "ours", {"w": single})
    gradient = tf.constant(START)
    strategy.run(lambda: other.apply_gradients([(gradient / 2, again)]))
    loaded.apply_gradients([(gradient, single)])
    np.testing.assert_allclose(copies(again)[0], single.numpy(), rtol=1e-6)
    assert int(other.iterations.numpy()) == int(loaded.iterations.numpy()) == 4


def by_two_workers(folder: Path, what: str) -> dict[str, np.ndarray]:
    """What `two_workers.py` leaves: MultiWorkerMirroredStrategy in two processes on this machine, which agree."""
    workers = [f"127.0.0.1:{port}" for port in free_ports(2)]
    script = Path(__file__).with_name("two_workers.py")
    processes = []
    for index in range(2):
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(config), "PYTHONPATH": str(script.parents[2])}
        command = [sys.executable, str(script), str(folder), what]
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    outputs = [process.communicate(timeout=500)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(o[-3000:] for o in outputs)
    one, two = (dict(np.load(folder / f"worker-{index}.npz")) for index in range(2))
    for name, value in one.items():
        np.testing.assert_array_equal(value, two[name], err_msg=name)
    return one


@pytest.mark.breadth
def test_two_workers_step_alike_save_and_resume(tmp_path: Path) -> None:
    one = by_two_workers(tmp_path, "loop")
    variable, optimizer = tf.Variable(START), optim.Adam(0.1, global_clipnorm=0.5, use_ema=True)
    for number in range(5):
        optimizer.apply_gradients([(3.0 * tf.cos(float(number) + tf.constant(START)), variable)])
    np.testing.assert_allclose(one["w"], variable.numpy(), rtol=1e-5, atol=1e-6)
    assert one["iterations"] == 5


@pytest.mark.breadth
def test_two_workers_accumulate_scale_and_clip_sums(tmp_path: Path) -> None:
    found = by_two_workers(tmp_path, "options")
    variable, table = tf.Variable(START), tf.Variable(START)
    optimizer = optim.Adam(0.1, global_clipnorm=0.5, weight_decay=0.1)
    for window in ((0, 1), (4, 5)):  # of the calls 2 and 3 one was infinite
        mean = np.mean([np.cos(number + START) for number in window], 0)
        rows = mean * np.array([[1.0], [3.0], [3.0]], np.float32)
        optimizer.apply_gradients([(tf.constant(3 * mean), variable), (tf.constant(rows), table)])
    np.testing.assert_allclose(found["w"], variable.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["table"], table.numpy(), rtol=1e-5, atol=1e-6)
    assert found["steps"] == 2


@pytest.mark.breadth
def test_two_workers_fit_as_tf_keras_does(tmp_path: Path) -> None:
    found = by_two_workers(tmp_path, "fit")
    names = [name.partition(".")[2] for name in found if name.startswith("ours.")]
    assert names
    for name in names:
        np.testing.assert_allclose(found[f"ours.{name}"], found[f"theirs.{name}"], rtol=1e-9)  # float64
    assert found["steps"] == 8
