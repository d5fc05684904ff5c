"""The slot-variable writer: what TensorFlow restores of it, and that a target is whole or not there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from migrate.bytes import atomic
from migrate.bytes.arrays import LazyArray
from migrate.errors import DamagedFileError, TargetExistsError
from migrate.readers import slots as reader
from migrate.readers import tf_object
from migrate.state import OptimizerState, StoredVariable
from migrate.writers import hdf5_file
from migrate.writers import slots as writer
from optim import slot_layout
from optim.errors import CheckpointError
from tests.helpers.timing import HANGS


def _lazy(array: np.ndarray, dtype: str | None = None) -> LazyArray:
    return LazyArray(array.shape, dtype or array.dtype.name, lambda: array, "here")


def _state(seed: int = 0, rate: object = 0.5) -> OptimizerState:
    rng = np.random.default_rng(seed)
    shapes = {"dense/kernel": (5, 7), "dense/bias": (7,), "a.b/.c": (2, 2), "mean": (3,)}
    values = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    slots = {
        slot: {n: _lazy(rng.normal(size=shapes[n]).astype(np.float32)) for n in shapes if n != "mean"}
        for slot in ("m", "v")
    }
    return OptimizerState(
        algorithm="Adam",
        hyperparameters={"learning_rate": rate, "beta_1": 0.9},
        iterations=1 << 60,
        iterations_source="iter",
        slots=slots,
        variables=tuple(StoredVariable(n, _lazy(v), v.shape, "float32", n != "mean") for n, v in values.items()),
        scalars={"u_product": 0.25},
        unmapped={"save_counter": _lazy(np.array(3)), "half": _lazy(np.array([7], np.uint16), "bfloat16")},
    )


def _arrays(state: OptimizerState) -> dict[str, bytes]:
    arrays = {f"{slot}/{n}": a for slot, owners in state.slots.items() for n, a in owners.items()}
    arrays |= {f"unmapped/{n}": a for n, a in state.unmapped.items()}
    arrays |= {f"variables/{v.name}": v.array for v in state.variables if v.array is not None}
    return {name: array.dtype.encode() + array.load().tobytes() for name, array in arrays.items()}


def test_reading_back_gives_the_same_state(tmp_path: Path) -> None:
    state, dest = _state(), str(tmp_path / "out")
    writer.write(state, dest)
    back = reader.read(dest)
    assert _arrays(back) == _arrays(state)
    assert back.algorithm == "Adam"
    assert back.iterations == 1 << 60
    assert back.hyperparameters == {"name": "Adam", **state.hyperparameters}
    assert back.scalars == state.scalars
    assert [(v.name, v.trainable) for v in back.variables] == [(v.name, v.trainable) for v in state.variables]
    assert reader.sniff(dest)
    assert not tf_object.sniff(dest)
    assert sorted(os.listdir(tmp_path)) == ["out"]


def test_a_schedule_leaves_no_learning_rate(tmp_path: Path) -> None:
    from optim.bytes.bundle import BundleReader

    schedule = {"class_name": "ExponentialDecay", "config": {"decay_rate": 0.9}}
    for name, rate in (("schedule", schedule), ("number", 0.1)):
        writer.write(_state(rate=rate), str(tmp_path / name))
        bundle = BundleReader(slot_layout.current_prefix(str(tmp_path / name)))
        key = slot_layout.scalar_key("learning_rate")
        assert (key in bundle) == (name == "number")
    assert bundle.load(key) == np.float64(0.1)


def test_variables_without_values_keep_their_slots(tmp_path: Path) -> None:
    state = _state()
    state = replace(state, variables=tuple(replace(v, array=None) for v in state.variables))
    writer.write(state, str(tmp_path / "out"))
    back = reader.read(str(tmp_path / "out"))
    assert [(v.name, v.shape, v.array) for v in back.variables] == [(v.name, v.shape, None) for v in state.variables]
    assert _arrays(back) == _arrays(state)


def test_tensorflow_restores_it_by_object(tmp_path: Path) -> None:
    import tensorflow as tf

    state, dest = _state(), str(tmp_path / "out")
    writer.write(state, dest)
    prefix = tf.train.latest_checkpoint(dest)
    assert prefix is not None
    optimizer = tf.Module()
    optimizer.iterations = tf.Variable(0, dtype=tf.int64)
    optimizer.learning_rate = tf.Variable(0.0, dtype=tf.float64)
    optimizer.slots = {
        slot: {name: tf.Variable(tf.zeros(array.shape)) for name, array in owners.items()}
        for slot, owners in state.slots.items()
    }
    variables = {v.name: tf.Variable(tf.zeros(v.shape)) for v in state.variables}
    checkpoint = tf.train.Checkpoint(optimizer=optimizer, variables=variables)
    checkpoint.restore(prefix).assert_existing_objects_matched()
    assert int(optimizer.iterations) == state.iterations
    assert float(optimizer.learning_rate) == 0.5
    for slot, owners in state.slots.items():
        for name, array in owners.items():
            assert np.array_equal(optimizer.slots[slot][name].numpy(), array.load())
    for v in state.variables:
        assert v.array is not None
        assert np.array_equal(variables[v.name].numpy(), v.array.load())
    tf.train.Checkpoint(variables=variables).restore(prefix).expect_partial()


@pytest.mark.parametrize("name", ["a/b", "a.b", ".S", "..", "./", "/.", "a..S/", "plain", "é/ü."])
def test_unescape_undoes_escape(name: str) -> None:
    assert slot_layout.unescape(slot_layout.escape(name)) == name


def test_an_existing_target_is_refused_before_any_work(tmp_path: Path) -> None:
    def never() -> np.ndarray:
        raise AssertionError("a tensor was read")

    dest = tmp_path / "out"
    dest.mkdir()
    state = replace(_state(), unmapped={"x": LazyArray((), "float32", never, "x")})
    with pytest.raises(TargetExistsError, match="--overwrite") as caught:
        writer.write(state, str(dest))
    assert caught.value.exit_code == 2


def test_overwriting_replaces_a_slot_checkpoint_and_its_leftovers(tmp_path: Path) -> None:
    dest = tmp_path / "out"
    writer.write(_state(0), str(dest))
    (dest / "state-interrupted.data-00000-of-00001").write_bytes(b"left over")
    (dest / "state-killed_temp").mkdir()
    (dest / "state-killed_temp" / "part-00000-of-00001.index").write_bytes(b"left over by TensorFlow")
    writer.write(_state(1), str(dest), overwrite=True)
    assert _arrays(reader.read(str(dest))) == _arrays(_state(1))
    assert len(os.listdir(dest)) == 3


def test_a_state_can_be_written_over_the_checkpoint_that_it_comes_from(tmp_path: Path) -> None:
    dest = str(tmp_path / "out")
    writer.write(_state(), dest)
    writer.write(reader.read(dest), dest, overwrite=True)
    assert _arrays(reader.read(dest)) == _arrays(_state())


def _a_file(dest: Path) -> None:
    dest.write_text("mine")


def _a_foreign_folder(dest: Path) -> None:
    dest.mkdir()
    (dest / "thesis.tex").write_text("mine")


def _a_tensorflow_checkpoint(dest: Path) -> None:
    dest.mkdir()
    (dest / "checkpoint").write_text('model_checkpoint_path: "ckpt-1"\n')
    (dest / "ckpt-1.index").write_text("mine")


def _a_mixed_folder(dest: Path) -> None:
    writer.write(_state(), str(dest))
    (dest / "notes.txt").write_text("mine")


@pytest.mark.parametrize("make", [_a_file, _a_foreign_folder, _a_tensorflow_checkpoint, _a_mixed_folder])
def test_what_is_not_ours_is_never_overwritten(tmp_path: Path, make: Callable[[Path], None]) -> None:
    dest = tmp_path / "out"
    make(dest)

    def content() -> dict[str, bytes]:
        return {str(p.relative_to(tmp_path)): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}

    before = content()
    with pytest.raises(TargetExistsError):
        writer.write(_state(1), str(dest), overwrite=True)
    assert content() == before


@pytest.mark.parametrize("existing", [False, True])
def test_a_source_that_fails_midway_leaves_nothing(tmp_path: Path, existing: bool) -> None:
    dest = tmp_path / "out"
    if existing:
        writer.write(_state(0), str(dest))

    def fail() -> np.ndarray:
        raise DamagedFileError("the source broke")

    before = sorted(os.listdir(dest)) if existing else None
    broken = replace(_state(1), unmapped={"x": LazyArray((), "float32", fail, "x")})
    with pytest.raises(DamagedFileError, match="the source broke"):
        writer.write(broken, str(dest), overwrite=existing)
    assert os.listdir(tmp_path) == (["out"] if existing else [])
    if existing:
        assert sorted(os.listdir(dest)) == before
        assert _arrays(reader.read(str(dest))) == _arrays(_state(0))


def test_a_refusing_system_is_a_dtopt_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left"):
        writer.write(_state(), str(tmp_path / "out"))
    assert os.listdir(tmp_path) == []


def test_a_disk_that_refuses_while_more_is_written_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by a sync at the end that succeeds: the system tells such an error once."""
    refused = threading.Event()

    def full(descriptor: int) -> None:
        refused.set()
        raise OSError(28, "No space left on device")

    def late() -> np.ndarray:
        assert refused.wait(HANGS)
        return np.float32(1)

    monkeypatch.setattr(os, "fdatasync", full)
    state = replace(_state(), unmapped={"x": LazyArray((), "float32", late, "x")})
    with pytest.raises(CheckpointError, match="No space left"):
        writer.write(state, str(tmp_path / "out"))
    assert os.listdir(tmp_path) == []
    refused.clear()
    with pytest.raises(OSError, match="No space left"), hdf5_file.created(str(tmp_path / "out.h5")):
        late()


def test_a_state_that_json_cannot_say_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="JSON"):
        writer.write(_state(rate=float("nan")), str(tmp_path / "out"))
    assert os.listdir(tmp_path) == []


def test_progress_ends_at_the_whole(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    writer.write(_state(), str(tmp_path / "out"), progress=lambda done, total: steps.append((done, total)))
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert steps[-1][0] == steps[-1][1] == sum(a.load().nbytes for a in _all(_state())) + 4 * 8


def _all(state: OptimizerState) -> list[LazyArray]:
    arrays = [a for owners in state.slots.values() for a in owners.values()] + list(state.unmapped.values())
    return arrays + [v.array for v in state.variables if v.array is not None]


def test_memory_is_bounded_by_one_tensor(tmp_path: Path) -> None:
    import tracemalloc

    size = 4 << 20
    big = {f"v{i}": LazyArray((size,), "uint8", lambda: np.ones(size, np.uint8), "") for i in range(8)}
    tracemalloc.start()
    try:
        writer.write(replace(_state(), unmapped=big), str(tmp_path / "out"))
        assert tracemalloc.get_traced_memory()[1] < 1.5 * size
    finally:
        tracemalloc.stop()


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    dest = tmp_path / "out"
    writer.write(_state(), str(dest))
    data = next(dest.glob("*.data-*"))
    whole = data.read_bytes()
    data.write_bytes(whole[:-1])
    with pytest.raises(DamagedFileError):
        reader.read(str(dest))
    data.write_bytes(whole)
    os.unlink(dest / "checkpoint")
    with pytest.raises(CheckpointError, match="checkpoint"):
        reader.read(str(dest))


_CHILD = """
import sys, time
import numpy as np
from migrate.state import LazyArray, OptimizerState, StoredVariable
from migrate.writers import slots

def lazy(fill):
    return LazyArray((20000,), "float32", lambda: np.full(20000, fill, np.float32), "")

while True:
    for seed in range(1, 100):
        names = [f"v{i}" for i in range(40)]
        state = OptimizerState("Adam", {}, seed, "", {"m": {n: lazy(seed) for n in names}},
            tuple(StoredVariable(n, lazy(seed), (20000,), "float32", True) for n in names))
        if len(sys.argv) == 2:
            print("go", flush=True)
        slots.write(state, sys.argv[1], overwrite=True)
        if len(sys.argv) == 2:
            time.sleep(60)
        print("go", flush=True)
"""


def _kill_while_writing(dest: Path, *more: str, after: float) -> None:
    child = subprocess.Popen([sys.executable, "-c", _CHILD, str(dest), *more], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    time.sleep(after)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()


def _is_whole(dest: Path) -> None:
    state = reader.read(str(dest))
    arrays = [a for owners in state.slots.values() for a in owners.values()]
    arrays += [v.array for v in state.variables if v.array is not None]
    assert len(arrays) == 80
    for array in arrays:
        assert (array.load() == state.iterations).all()


@pytest.mark.breadth
def test_killed_while_creating_there_is_a_whole_target_or_none(tmp_path: Path) -> None:
    delays = random.Random(0)
    outcomes = set()
    for i in range(30):
        if i >= 6 and False in outcomes:
            break
        dest = tmp_path / f"out{i}"
        _kill_while_writing(dest, after=delays.uniform(0.0, 0.02))
        outcomes.add(dest.exists())
        if dest.exists():
            _is_whole(dest)
        else:
            writer.write(_state(), str(dest))
        assert not [n for n in os.listdir(tmp_path) if n.startswith(f".out{i}.")] or dest.exists()
    assert False in outcomes  # else the kills came too late to mean anything


def test_killed_while_overwriting_the_target_stays_whole(tmp_path: Path) -> None:
    delays = random.Random(1)
    dest = tmp_path / "out"
    for _ in range(5):
        _kill_while_writing(dest, "again", after=delays.uniform(0.0, 0.05))
        _is_whole(dest)
    writer.write(_state(), str(dest), overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["out"]
    assert len(os.listdir(dest)) == 3


def test_two_runs_on_one_target_do_not_mix(tmp_path: Path) -> None:
    dest = tmp_path / "out"
    command = [sys.executable, "-c", _CHILD, str(dest), "again"]
    writer.write(_state(), str(dest))
    children = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    for _ in range(20):
        with contextlib.suppress(DamagedFileError):  # replaced between reading the pointer and what it names
            _is_whole(dest)
        time.sleep(0.01)
    assert [child.poll() for child in children] == [None, None]
    for child in children:
        child.kill()
        child.communicate()
    _is_whole(dest)


@pytest.mark.parametrize(("module", "name"), [(os, "open"), (fcntl, "flock")])
def test_ctrl_c_before_a_scratch_folder_is_locked_leaves_none(
    module: ModuleType, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(module, name, interrupted)
    with pytest.raises(KeyboardInterrupt), atomic.scratch_folder(str(tmp_path / "out")):
        pass
    assert list(tmp_path.iterdir()) == []
