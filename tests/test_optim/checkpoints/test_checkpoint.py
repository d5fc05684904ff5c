"""Saving and loading in the slot-variable layout, and TensorFlow's own `tf.train.Checkpoint`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.experimental import dtensor

import optim
from optim.errors import CheckpointError
from optim.state import object_graph
from tests.helpers.breadth import broad, covering
from tests.helpers.dtensor_asserts import assert_dtensor_equal, layout_of, value_of
from tests.helpers.timing import calls
from tests.test_optim.cases import ROWS, VARIANTS
from tests.test_optim.support import Place, gradient_values, put, put_gradients, snapshot, start_values, variable

ADAM = next(c for c in VARIANTS if c.name == "adam-amsgrad")
EVERYTHING = next(c for c in ROWS if c.name == "adam-amsgrad+everything")


def _trained(place: Place, case: Any = ADAM, steps: int = 3, **options: Any) -> tuple[Any, dict[str, Any], Any]:
    variables = place.variables(start_values())
    reference = case.reference(start_values())
    optimizer = case.make(**options)
    for call in range(steps):
        optimizer.apply_gradients(put_gradients(gradient_values(call), variables))
        reference.apply(gradient_values(call))
    return optimizer, variables, reference


def _check_next_step(optimizer: Any, variables: dict[str, Any], reference: Any) -> None:
    for call in (4, 5, 6):
        optimizer.apply_gradients(put_gradients(gradient_values(call), variables))
        reference.apply(gradient_values(call))
    for name, var in variables.items():
        assert_dtensor_equal(var, reference.values[name], layout_of(var), rtol=1e-12, atol=1e-14, what=name)


def test_describe(request: Any, tmp_path: Any) -> None:
    optimizer, variables, _ = _trained(Place.named("mixed", request), learning_rate=0.125)
    prefix = optim.save_checkpoint(tmp_path / "c", optimizer, variables)
    assert prefix == tf.train.latest_checkpoint(os.fspath(tmp_path / "c"))
    info = optim.describe_checkpoint(tmp_path / "c")
    assert (info.algorithm, info.iterations) == ("Adam", 3)
    assert info.config == optimizer.get_config()
    assert [(v.name, v.shape, v.dtype) for v in info.variables] == [
        (name, value.shape, "float64") for name, value in start_values().items()
    ]
    assert {slot: dict(shapes) for slot, shapes in info.slots.items()} == {
        slot: {name: value.shape for name, value in start_values().items()} for slot in ("m", "v", "vhat")
    }
    keys = dict(tf.train.list_variables(prefix))
    assert keys["optimizer/slots/m/kernel/.ATTRIBUTES/VARIABLE_VALUE"] == [6, 4]
    assert keys["variables/odd/.ATTRIBUTES/VARIABLE_VALUE"] == [3, 5]
    assert "optimizer/iterations/.ATTRIBUTES/VARIABLE_VALUE" in keys


def test_the_current_learning_rate_is_kept(request: Any, tmp_path: Any) -> None:
    optimizer, variables, _ = _trained(Place.named("rows", request), learning_rate=0.5)
    optimizer.learning_rate = 0.03125
    optim.save_checkpoint(tmp_path / "c", optimizer, variables)
    resumed = optim.load_checkpoint(tmp_path / "c", variables)
    assert float(resumed.learning_rate.numpy()) == 0.03125


@pytest.mark.breadth
def test_four_times_the_variables_take_four_times_the_calls(tmp_path: Path) -> None:
    """For each value the reader listed all keys anew: 4,000 variables took ten minutes."""

    def load(count: int) -> int:
        variables = {f"v{i}": tf.Variable(np.ones(2, np.float32), name=f"v{i}") for i in range(count)}
        optimizer = optim.Adam(0.1)
        optimizer.apply_gradients([(tf.ones(2), each) for each in variables.values()])
        optim.save_checkpoint(tmp_path / f"{count}", optimizer, variables)
        return calls(lambda: optim.load_checkpoint(tmp_path / f"{count}", variables))

    load(2)  # which imports what it needs
    assert load(200) < 4.5 * load(50)


def test_names_come_from_the_mapping(request: Any, tmp_path: Any) -> None:
    optimizer, variables, reference = _trained(Place.named("rows", request))
    renamed = {f"model/{name}.part": var for name, var in variables.items()}
    optim.save_checkpoint(tmp_path / "c", optimizer, renamed)
    others = Place.named("plain", request).variables(start_values(4))
    resumed = optim.load_checkpoint(tmp_path / "c", {f"model/{n}.part": v for n, v in others.items()})
    _check_next_step(resumed, others, reference)


def test_untrained_variables_and_untouched_values(request: Any, tmp_path: Any) -> None:
    place = Place.named("mixed", request)
    variables = place.variables(start_values())
    optimizer = optim.SGD(0.1, momentum=0.9)
    trained = {name: variables[name] for name in ("kernel", "scale")}
    optimizer.apply_gradients(put_gradients({n: gradient_values(0)[n] for n in trained}, variables))
    optim.save_checkpoint(tmp_path / "c", optimizer, list(variables.values()))
    others = place.variables(start_values(7))
    resumed = optim.load_checkpoint(tmp_path / "c", list(others.values()))
    for name, var in variables.items():
        assert_dtensor_equal(others[name], value_of(var), layout_of(var), what=name)
    assert_dtensor_equal(
        resumed.get_slot(others["kernel"], "m"),
        value_of(optimizer.get_slot(variables["kernel"], "m")),
        layout_of(others["kernel"]),
    )

    fresh = place.variables(start_values(8))
    before = snapshot(list(fresh.values()))
    some = optim.load_checkpoint(tmp_path / "c", fresh, restore_variables=False)
    assert snapshot(list(fresh.values())) == before
    assert int(some.iterations.numpy()) == 1


def test_a_checkpoint_before_the_first_step(request: Any, tmp_path: Any) -> None:
    place = Place.named("mixed", request)
    variables = place.variables(start_values())
    optimizer = ADAM.make()
    optim.save_checkpoint(tmp_path / "c", optimizer, variables)
    others = place.variables(start_values(3))
    resumed = optim.load_checkpoint(tmp_path / "c", others)
    reference = ADAM.reference(start_values())
    _check_next_step(resumed, others, reference)


# Misfits.


def _misfits(variables: dict[str, Any]) -> dict[str, Any]:
    others = dict(variables)
    del others["bias"]
    others["extra"] = tf.Variable(tf.zeros([2, 2], tf.float64), name="extra")
    others["kernel"] = tf.Variable(tf.zeros([4, 6], tf.float64), name="kernel")
    others["odd"] = tf.Variable(tf.zeros([3, 5], tf.float32), name="odd")
    return others


def test_every_misfit_is_listed_and_nothing_is_assigned(request: Any, tmp_path: Any) -> None:
    optimizer, variables, _ = _trained(Place.named("plain", request))
    optim.save_checkpoint(tmp_path / "c", optimizer, variables)
    others = _misfits(Place.named("plain", request).variables(start_values(5)))
    before = snapshot(list(others.values()))
    with pytest.raises(CheckpointError) as caught:
        optim.load_checkpoint(tmp_path / "c", others)
    text = str(caught.value)
    for culprit in ("missing 'bias' (4,)", "extra 'extra' (2, 2)", "'kernel' has shape (4, 6)", "'odd' is float32"):
        assert culprit in text
    assert snapshot(list(others.values())) == before


def test_names_must_be_unique_and_complete(request: Any, tmp_path: Any) -> None:
    optimizer, variables, _ = _trained(Place.named("plain", request))
    twice = [*variables.values(), tf.Variable(0.0, name="kernel")]
    with pytest.raises(CheckpointError, match="'kernel'"):
        optim.save_checkpoint(tmp_path / "c", optimizer, twice)
    with pytest.raises(CheckpointError, match="bias"):
        optim.save_checkpoint(tmp_path / "c", optimizer, {n: v for n, v in variables.items() if n != "bias"})
    assert not (tmp_path / "c").exists()


def test_places_that_cannot_be_written_or_read(request: Any, tmp_path: Any) -> None:
    optimizer, variables, _ = _trained(Place.named("plain", request))
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    for place in ("file", "full"):
        with pytest.raises(CheckpointError, match=place):
            optim.save_checkpoint(tmp_path / place, optimizer, variables)
        with pytest.raises(CheckpointError, match=place):
            optim.load_checkpoint(tmp_path / place, variables)
    with pytest.raises(CheckpointError, match="nothing"):
        optim.describe_checkpoint(tmp_path / "nothing")
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"


def test_damage_is_found_and_nothing_is_assigned(request: Any, tmp_path: Any) -> None:
    optimizer, variables, _ = _trained(Place.named("plain", request))
    prefix = optim.save_checkpoint(tmp_path / "c", optimizer, variables)
    data = Path(f"{prefix}.data-00000-of-00001")
    index = Path(f"{prefix}.index")
    whole, table = data.read_bytes(), index.read_bytes()
    before = snapshot(list(variables.values()))
    for damaged, content in (
        (data, whole[: len(whole) // 2]),
        (data, whole[:100] + bytes(60) + whole[160:]),
        (index, table[:20]),
        (index, b""),
    ):
        damaged.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"damaged|truncated"):
            optim.load_checkpoint(tmp_path / "c", variables)
        assert snapshot(list(variables.values())) == before
        data.write_bytes(whole)
        index.write_bytes(table)
    optim.load_checkpoint(tmp_path / "c", variables)


# Atomicity.


def test_a_save_that_fails_leaves_the_previous_whole(request: Any, tmp_path: Any, monkeypatch: Any) -> None:
    optimizer, variables, reference = _trained(Place.named("plain", request))
    folder = tmp_path / "c"
    optim.save_checkpoint(folder, optimizer, variables)
    for function in ("replace", "fsync"):
        with monkeypatch.context() as patch:

            def fail(*_: Any, **__: Any) -> None:
                raise OSError("disk full")

            patch.setattr(os, function, fail)
            for var in variables.values():
                var.assign(tf.zeros_like(var))
            with pytest.raises(OSError, match="disk full"):
                optim.save_checkpoint(folder, optimizer, variables)
    resumed = optim.load_checkpoint(folder, variables)
    _check_next_step(resumed, variables, reference)
    optim.save_checkpoint(folder, resumed, variables)
    assert len(list(folder.iterdir())) == 3  # leftovers are gone


_SAVER = """
import sys, tensorflow as tf, optim
variables = {f"v{i}": tf.Variable(tf.zeros([50_000]), name=f"v{i}") for i in range(6)}
optimizer = optim.SGD(1.0, momentum=0.5)
optimizer.build(list(variables.values()))
round_ = 0
while True:
    round_ += 1
    for variable in [*variables.values(), *(optimizer.get_slot(v, "m") for v in variables.values())]:
        variable.assign(tf.fill([50_000], float(round_)))
    optimizer.iterations.assign(round_)
    optim.save_checkpoint(sys.argv[1], optimizer, variables)
    print(round_, flush=True)
"""


@pytest.mark.breadth
@pytest.mark.parametrize("seed", [0, *map(broad, range(1, 5))])
def test_a_killed_save_leaves_the_previous_whole(seed: int, tmp_path: Any) -> None:
    """SIGKILL at some moment of a process that saves without pause."""
    folder = tmp_path / "c"
    random = np.random.default_rng(seed)
    root = Path(optim.__file__).parents[1]
    process = subprocess.Popen(
        [sys.executable, "-c", _SAVER, os.fspath(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.fspath(root)},
    )
    assert process.stdout is not None
    done = [process.stdout.readline() for _ in range(int(random.integers(2, 12)))]
    time.sleep(float(random.uniform(0, 0.03)))
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read().split()
    process.wait()
    last = int([*done, *rest][-1])

    variables = {f"v{i}": tf.Variable(tf.zeros([50_000]), name=f"v{i}") for i in range(6)}
    optimizer = optim.load_checkpoint(folder, variables)
    found = int(optimizer.iterations.numpy())
    assert found in (last, last + 1)
    for var in variables.values():
        assert np.all(var.numpy() == found)
        assert np.all(optimizer.get_slot(var, "m").numpy() == found)


# TensorFlow's own.


@covering(1, case=[EVERYTHING, ADAM], target=["mixed", "plain", "rows"], when=["before build", "after build"])
@pytest.mark.quick(1)
def test_tf_train_checkpoint(case: Any, target: str, when: str, request: Any, tmp_path: Any) -> None:
    optimizer, variables, reference = _trained(Place.named("mixed", request), case)
    path = tf.train.Checkpoint(optimizer=optimizer, model=_module(variables)).write(os.fspath(tmp_path / "ckpt"))

    place = Place.named(target, request)
    others = place.variables(start_values(6))
    resumed = case.make(mesh=place.mesh)
    if when == "after build":
        resumed.build(list(others.values()))
    status = tf.train.Checkpoint(optimizer=resumed, model=_module(others)).read(path)
    if when == "before build":
        resumed.build(list(others.values()))
    status.assert_existing_objects_matched()
    if when == "after build":
        status.assert_consumed()
    _check_next_step(resumed, others, reference)
    assert int(resumed.iterations.numpy()) == reference.iterations


@pytest.mark.breadth
def test_tf_train_checkpoint_before_the_mesh_is_known(request: Any, tmp_path: Any) -> None:
    """Counters restored before they move to the mesh of the variables take their values along."""
    optimizer, variables, reference = _trained(Place.named("mixed", request))
    path = tf.train.Checkpoint(optimizer=optimizer, model=_module(variables)).write(os.fspath(tmp_path / "ckpt"))
    others = Place.named("rows", request).variables(start_values(6))
    resumed = ADAM.make(learning_rate=0.25)
    tf.train.Checkpoint(optimizer=resumed, model=_module(others)).read(path)
    _check_next_step(resumed, others, reference)
    assert int(resumed.iterations.numpy()) == reference.iterations


def _module(variables: dict[str, Any]) -> tf.Module:
    module = tf.Module()
    module.all = variables
    return module


def _one_more_step(model: Any, optimizer: Any) -> list[Any]:
    variables = list(model.trainable_variables)
    pairs = [(tf.fill(v.shape, 1.0 + k), v) for k, v in enumerate(variables)]
    optimizer.apply_gradients(pairs)
    return [v.numpy() for v in variables]


@pytest.mark.parametrize("module", [keras, tf_keras], ids=["keras3", "tf_keras"])
@pytest.mark.parametrize("is_built", [False, True], ids=["before build", "after build"])
def test_tf_train_checkpoint_of_a_model_that_keras_numbers(module: Any, is_built: bool, tmp_path: Any) -> None:
    """The second model of a process has other names than the first, and is yet the same model."""

    def made() -> tuple[Any, Any]:
        layers = [module.layers.Dense(2) for _ in range(3)]
        return module.Sequential([module.layers.Input((2,)), *layers]), optim.Adam(0.1)

    model, optimizer = made()
    _one_more_step(model, optimizer)
    path = tf.train.Checkpoint(model=model, optimizer=optimizer).write(os.fspath(tmp_path / "c"))
    again, resumed = made()
    if is_built:
        resumed.build(again.trainable_variables)
    tf.train.Checkpoint(model=again, optimizer=resumed).read(path)
    for one, two in zip(_one_more_step(again, resumed), _one_more_step(model, optimizer), strict=True):
        np.testing.assert_array_equal(one, two)


def test_tf_train_checkpoint_that_is_read_when_the_step_was_traced(tmp_path: Any) -> None:
    """Functions look for slots under other names, too, however they are called."""
    one, two = _named("dense_1", "dense_2"), _named("dense_2", "dense_3")
    optimizer, resumed = optim.Adam(0.1), optim.Adam(0.1)
    pairs = [(tf.constant([1.0, 2.0]), v) for v in two.all]
    step = tf.function(lambda: resumed.apply_gradients(pairs))
    outer, concrete = tf.function(lambda: step()), step.get_concrete_function()
    outer()
    for call in (step, outer, concrete):
        for _ in range(2):
            optimizer.apply_gradients([(tf.constant([1.0, 2.0]), v) for v in one.all])
        path = tf.train.Checkpoint(model=one, optimizer=optimizer).write(os.fspath(tmp_path / "c"))
        tf.train.Checkpoint(model=two, optimizer=resumed).read(path)
        optimizer.apply_gradients([(tf.constant([1.0, 2.0]), v) for v in one.all])
        call()
        for theirs, mine in zip(one.all, two.all, strict=True):
            np.testing.assert_allclose(resumed.get_slot(mine, "m"), optimizer.get_slot(theirs, "m"), rtol=1e-6)
            np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def _named(*names: str) -> Any:
    module = tf.Module()
    module.all = [tf.Variable([1.0, 2.0], name=name) for name in names]
    module.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)  # saved, too, and no variable
    return module


@pytest.mark.parametrize("is_built", [False, True], ids=["before build", "after build"])
@pytest.mark.parametrize("depth", [0, 5])
def test_tf_train_checkpoint_where_a_name_is_now_another_variables(depth: int, is_built: bool, tmp_path: Any) -> None:
    """Also where TensorFlow's reader comes to the variables, deep in the model, after the slots."""

    def within(model: Any) -> Any:
        for _ in range(depth):
            outer = tf.Module()
            outer.inner = model
            model = outer
        return model

    one, two = _named("dense_1", "dense_2"), _named("dense_2", "dense_3")
    optimizer, resumed = optim.Adam(0.1), optim.Adam(0.1)
    _one_more_step(one, optimizer)
    path = tf.train.Checkpoint(model=within(one), optimizer=optimizer).write(os.fspath(tmp_path / "c"))
    if is_built:
        resumed.build(two.all)
    status = tf.train.Checkpoint(model=within(two), optimizer=resumed).read(path)
    if is_built:
        np.testing.assert_array_equal(resumed.get_slot(two.all[1], "m"), optimizer.get_slot(one.all[1], "m"))
        status.assert_existing_objects_matched()
    np.testing.assert_array_equal(_one_more_step(two, resumed), _one_more_step(one, optimizer))
    np.testing.assert_array_equal(resumed.get_slot(two.all[1], "m"), optimizer.get_slot(one.all[1], "m"))


@pytest.mark.parametrize("is_built", [False, True], ids=["before build", "after build"])
def test_tf_train_checkpoint_warns_of_slots_that_it_does_not_find(is_built: bool, tmp_path: Any) -> None:
    one, two = _named("a", "b"), _named("b", "c")
    optimizer, resumed = optim.Adam(0.1), optim.Adam(0.1)
    _one_more_step(one, optimizer)
    path = tf.train.Checkpoint(optimizer=optimizer).write(os.fspath(tmp_path / "c"))
    if is_built:
        resumed.build(two.all)
    tf.train.Checkpoint(optimizer=resumed).read(path)
    with pytest.warns(UserWarning, match="slots of 'a'.* the slots of 'c' are not in it"):
        _one_more_step(two, resumed)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        _one_more_step(two, resumed)


def test_tf_train_checkpoint_of_variables_that_are_built_one_after_another(tmp_path: Any) -> None:
    one, two = _named("a", "b"), _named("a", "b")
    optimizer, resumed = optim.Adam(0.1), optim.Adam(0.1)
    _one_more_step(one, optimizer)
    path = tf.train.Checkpoint(optimizer=optimizer).write(os.fspath(tmp_path / "c"))
    tf.train.Checkpoint(optimizer=resumed).read(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for var in two.all:
            resumed.build([var])
            resumed.apply_gradients([(tf.zeros(2), var)])
    np.testing.assert_allclose(resumed.get_slot(two.all[1], "m"), 0.9 * optimizer.get_slot(one.all[1], "m"))


def test_tf_train_checkpoint_is_looked_through_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not for each variable, which for hundreds of them takes seconds."""

    def model() -> tuple[list[tf.Variable], optim.Adam]:
        return [tf.Variable([float(i)], name=f"w{i}") for i in range(20)], optim.Adam()

    variables, optimizer = model()
    optimizer.apply_gradients([(tf.constant([1.0 + i]), w) for i, w in enumerate(variables)])
    path = tf.train.Checkpoint(optimizer=optimizer).write(str(tmp_path / "c"))
    read, calls = object_graph._names_in, []
    monkeypatch.setattr(object_graph, "_names_in", lambda checkpoint: calls.append(0) or read(checkpoint))
    others, restored = model()
    tf.train.Checkpoint(optimizer=restored).read(path)
    restored.build(others)
    for w, other in zip(variables, others, strict=True):
        np.testing.assert_array_equal(restored.get_slot(other, "m"), optimizer.get_slot(w, "m"))
    assert len(calls) <= 3  # of the model once, and once for the slots of each name


def test_tf_train_checkpoint_reads_ours(request: Any, tmp_path: Any) -> None:
    optimizer, variables, reference = _trained(Place.named("mixed", request))
    prefix = optim.save_checkpoint(tmp_path / "c", optimizer, variables)
    others = Place.named("rows", request).variables(start_values(6))
    resumed = ADAM.make()
    resumed.build(list(others.values()))
    tf.train.Checkpoint(optimizer=resumed).restore(prefix).assert_existing_objects_matched()
    for name, var in others.items():
        var.assign(put_gradients({name: reference.values[name]}, others)[0][0])
    _check_next_step(resumed, others, reference)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_shards_of_every_dtype_are_read_again(dtype: str, mesh_2: Any, tmp_path: Path) -> None:
    """TensorFlow writes float16 in slices, and cannot read it so."""
    layout = dtensor.Layout(["x"], mesh_2)
    model = [variable(np.arange(4.0), layout, "w", dtype)]
    optimizer = optim.SGD(0.5, momentum=0.9)
    optimizer.apply_gradients([(put(np.ones(4), layout, dtype), model[0])])
    optim.save_checkpoint(tmp_path / "c", optimizer, model)
    again = [variable(np.zeros(4), layout, "w", dtype)]
    loaded = optim.load_checkpoint(tmp_path / "c", again)
    np.testing.assert_array_equal(value_of(again[0]), np.arange(4.0) - 0.5)
    np.testing.assert_array_equal(value_of(loaded.get_slot(again[0], "m")), np.full(4, -0.5))


def test_variables_on_several_meshes_are_saved_and_loaded(mesh_2: Any, mesh_2x2: Any, tmp_path: Path) -> None:
    """Written in one go TensorFlow refuses them; they come back onto the same meshes, and onto others."""
    start = np.arange(24.0).reshape(6, 4)
    one, other = dtensor.Layout(["x", "unsharded"], mesh_2), dtensor.Layout(["batch", "model"], mesh_2x2)
    layouts = {"a": one, "b": other, "c": None}
    optimizer = optim.Adam(0.1, use_ema=True, gradient_accumulation_steps=2, slot_placement="zero1")
    variables = {name: variable(start, layout, name) for name, layout in layouts.items()}

    def step(optimizer: Any, variables: dict[str, Any]) -> None:
        optimizer.apply_gradients([(put(np.cos(start), layout_of(v)), v) for v in variables.values()])

    for _ in range(3):
        step(optimizer, variables)
    optim.save_checkpoint(tmp_path / "c", optimizer, variables)
    copies = [
        {n: variable(start * 0, to, n) for n, to in zip("abc", order, strict=True)}
        for order in ((one, other, None), (None, one, other))
    ]
    resumed = [optim.load_checkpoint(tmp_path / "c", copy) for copy in copies]
    step(optimizer, variables)
    for again, copy in zip(resumed, copies, strict=True):
        step(again, copy)
        assert int(again.iterations) == 2
        for name, expected in variables.items():
            np.testing.assert_array_equal(value_of(copy[name]), value_of(expected), name)
