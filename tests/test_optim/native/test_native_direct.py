"""What dtopt's own kernel does without an op: gradients are checked and unpacked, scalars read and written, as
TensorFlow does."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim.executors import native
from optim.native import direct, library
from optim.state import counter
from optim.state.counter import Counter
from optim.state.tracked import TrackedList, TrackedVariables
from optim.step.gradients import conform_all
from tests.helpers.timing import HANGS
from tests.test_optim.native.kernel_support import require_kernel
from tests.test_optim.support import put, variable

MANY = 1000  # enough for several threads


@pytest.fixture(autouse=True, params=[True, False], ids=["inside", "by the device"])
def _kernel(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once where DTensors are read themselves, and once where DTensor's device is asked, as that cannot be."""
    monkeypatch.setenv(library.VARIABLE, "build")
    require_kernel()
    path = library.status().path
    assert path is not None
    monkeypatch.setattr(direct, "_loaded", [])
    direct.load(path, looks_inside=request.param)


def _looks_inside() -> bool:
    return bool(direct._loaded[0].runtime().dtensor_class)


def _misfits_of(tensors: list[Any], wanted: list[Any]) -> list[int]:
    found = direct.hold_if(tensors, direct.AllExpected(wanted))
    return [] if isinstance(found, direct.Held) else found


def _misfits(tensors: list[Any], variables: list[Any]) -> list[int]:
    tracked = TrackedVariables()
    return _misfits_of(tensors, [tracked.add(v).expected for v in variables])


def test_what_is_not_like_its_variable_is_found(mesh_2x2: Any) -> None:
    values = np.arange(64.0).reshape(8, 8)
    first, second = (dtensor.Layout(specs, mesh_2x2) for specs in (["batch", "unsharded"], ["model", "unsharded"]))
    sharded, plain = variable(values, first, "sharded"), tf.Variable(values)
    offered = {
        "itself": (put(values, first), sharded, True),
        "another axis, the same local shape": (put(values, second), sharded, False),
        "replicated": (put(values, dtensor.Layout.replicated(mesh_2x2, 2)), sharded, False),
        "on no mesh": (tf.constant(values), sharded, False),
        "another shape": (put(values[:4], first), sharded, False),
        "another rank": (put(values[0], dtensor.Layout(["batch"], mesh_2x2)), sharded, False),
        "another dtype": (put(values, first, tf.float32), sharded, False),
        "no tensor": (values, sharded, False),
        "nothing": (None, sharded, False),
        "rows": (tf.IndexedSlices(tf.constant(values), tf.range(8)), plain, False),
        "plain": (tf.constant(values), plain, True),
        "plain, of another shape": (tf.constant(values[:4]), plain, False),
        "plain, but on a mesh": (put(values, first), plain, False),
    }
    for name, (tensor, var, fits) in offered.items():
        assert (_misfits([tensor], [var]) == []) is fits, name
    tensors, variables = [t for t, _, _ in offered.values()], [v for _, v, _ in offered.values()]
    tracked = TrackedVariables()
    wanted = [tracked.add(v).expected for v in variables]
    assert _misfits_of(tensors, wanted) == [i for i, (_, _, fits) in enumerate(offered.values()) if not fits]


def test_the_class_of_dtensors_is_known(mesh_2: Any, request: Any) -> None:
    """In the versions of TensorFlow that were looked at; with a table of another class DTensor's device is asked."""
    is_tried = tf.version.VERSION.startswith(tuple(f"{v}." for v in direct.LOOKED_AT))
    assert _looks_inside() == (is_tried and request.node.callspec.params["_kernel"])
    tensor = put(np.arange(4.0), dtensor.Layout(["x"], mesh_2))
    runtime = direct._loaded[0].runtime()
    if runtime.dtensor_class:
        runtime.dtensor_class += ctypes.sizeof(ctypes.c_void_p)
    assert _misfits([tensor], [variable(np.zeros(4), dtensor.Layout(["x"], mesh_2), "v")]) == []
    assert _sums([tensor], [0, 1]) == [1.0, 13.0]


def test_a_shape_that_is_not_known_is_left_to_python() -> None:
    loose = tf.Variable(tf.zeros([3]), shape=tf.TensorShape([None]))
    assert _misfits([tf.zeros([3])], [loose]) == [0]


def test_among_many_each_is_found(mesh_2: Any) -> None:
    layout = dtensor.Layout(["x"], mesh_2)
    good, bad = put(np.zeros(4), layout), put(np.zeros(6), layout)
    var = variable(np.zeros(4), layout, "v")
    odd = {0, 1, 127, 128, 500, 501, MANY - 1}
    assert _misfits([bad if i in odd else good for i in range(MANY)], [var] * MANY) == sorted(odd)


def test_python_and_the_kernel_conform_alike(mesh_2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, whole = dtensor.Layout(["x"], mesh_2), dtensor.Layout.replicated(mesh_2, 1)
    var = variable(np.zeros(4), layout, "v")
    tracked = TrackedList([TrackedVariables().add(var)] * 2)
    given = [put(np.arange(4), layout), put(np.arange(4), whole)]
    fast, held = conform_all(given, tracked, by_kernel=True)
    assert fast[0] is given[0]
    assert held is None
    monkeypatch.setenv(library.VARIABLE, "off")
    slow, _ = conform_all(given, tracked)
    assert slow[0] is given[0]
    assert dtensor.fetch_layout(fast[1]) == dtensor.fetch_layout(slow[1]) == layout


def _sums(tensors: list[Any], places: list[int]) -> list[float]:
    return native.square_sums(direct.hold(tensors), places)


def test_parts_are_held_in_the_order_of_variables_and_devices(mesh_2x2: Any) -> None:
    values = np.arange(1.0, 9.0)
    sharded = put(values, dtensor.Layout(["batch"], mesh_2x2))
    found = _sums([tf.constant(values), sharded, tf.constant([3.0], tf.float64)], list(range(6)))
    wanted = [np.square(part.numpy()).sum() for part in dtensor.unpack(sharded)]
    assert found == [np.square(values).sum(), *wanted, 9.0]


def test_sums_without_an_op_are_those_of_the_op_bit_for_bit(mesh_2: Any) -> None:
    random = np.random.default_rng(3)
    parts = [tf.constant(random.normal(size=n), kind) for n in (1, 4097, 70_001) for kind in native.DTYPES]
    tensors = [*parts, put(random.normal(size=10), dtensor.Layout(["x"], mesh_2)), tf.zeros([0])]
    held, places = direct.hold(tensors), list(range(len(tensors) + 1))
    ((group, number),) = counter.scalar_groups([tf.Variable(1.0).handle])
    assert direct.square_sums(number, held, places) == native.square_sums(held, places)
    with pytest.raises(RuntimeError, match="no tensor 99"):
        direct.square_sums(number, held, [99])
    del group
    with pytest.raises(RuntimeError, match="no group"):
        direct.square_sums(number, held, places)


BAD_ROWS: dict[str, tuple[Any, Any, str]] = {
    "too few": (np.zeros([3, 2]), [0, 1], "values of shape .3,2. for indices of shape .2."),
    "outside": (np.zeros([1, 2]), [9], "row 9, the variable has 9 rows"),
    "a scalar": (np.zeros([]), [0], "values of shape"),
    "half": (np.zeros([1, 2], np.float16), [0], "no rows of half"),
    "no integers": (np.zeros([1, 2]), [0.0], "indices are float"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_rows_that_cannot_be_sorted_are_refused(name: str) -> None:
    values, indices, message = BAD_ROWS[name]
    with pytest.raises(RuntimeError, match=message):
        direct.sort(tf.constant(values), tf.constant(indices), 9)
    with pytest.raises(RuntimeError, match="no eager tensor"):
        direct.sort(values, tf.constant(indices), 9)


def test_many_are_held_in_order(mesh_2: Any) -> None:
    layout = dtensor.Layout(["x"], mesh_2)
    tensors = [put(np.array([i, i + 0.5]), layout) for i in range(MANY)]
    assert _sums(tensors, list(range(2 * MANY))) == [(k / 2) ** 2 for k in range(2 * MANY)]


def test_held_tensors_outlive_what_they_came_from_and_no_longer_than_held(mesh_2: Any) -> None:
    layout = dtensor.Layout(["x"], mesh_2)
    tensors = [put(np.full(2, 3.0), layout)]
    held = direct.hold(tensors)
    number = held.number
    del tensors
    assert native.square_sums(held, [0, 1]) == [9.0, 9.0]
    with pytest.raises(Exception, match="no tensor 2 of 2"):
        native.square_sums(held, [2])
    del held
    gone = direct.hold([tf.zeros([1])])
    gone.number, kept = number, gone.number
    with pytest.raises(Exception, match=f"nothing is held under number {number}"):
        native.square_sums(gone, [0])
    gone.number = kept


BAD_CALLS: dict[str, tuple[str, tuple[Any, ...], str]] = {
    "too few": ("update", (1, 2), "takes 9"),
    "no group": ("update", (10**9, 0, [], [], [], [], False, -1, []), "no joined group 1000000000"),
    "no number": ("update", (0, 0, ["a"], [], [], [], False, -1, []), "must be real number"),
    "no list": ("update", (0, 0, (1.0,), [], [], [], False, -1, []), "bad argument"),
    "no control": ("update", (0, 0, [], [], [], [], False, 10**9, []), "no joined group|nothing is held"),
    "no verdict": ("is_left_out", (10**9,), "no verdict is held under number 1000000000"),
    "no gpu": ("control", (10**9, 0, [0], [1.0, 0.0, 0.0, 1.0]), "there is no group 1000000000"),
    "too few numbers": ("control", (0, 0, [0], [1.0]), "control takes 4 numbers"),
    "too large": ("read", (2**64,), "too (large|big)"),
    "no address": ("hold", (0, [], "1"), "integer is required"),
    "a text": ("write", (0, "1"), "must be real number"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_wrong_call_raises(name: str) -> None:
    function, arguments, message = BAD_CALLS[name]
    with pytest.raises((RuntimeError, TypeError, SystemError, OverflowError), match=message):
        getattr(direct._loaded[0], function)(*arguments)


@pytest.mark.parametrize("dtype", [tf.int64, tf.float32, tf.float64], ids=lambda d: d.name)
def test_scalars_are_read_and_written(dtype: Any) -> None:
    var = tf.Variable(tf.constant(3, dtype))
    before = var.read_value()
    ((group, number),) = counter.scalar_groups([var.handle])
    assert direct.read_scalar(number) == 3.0
    assert direct.write_scalar(number, 0.1 if dtype.is_floating else 2**40 + 1)
    expected = tf.constant(0.1 if dtype.is_floating else 2**40 + 1, dtype).numpy()
    assert var.numpy() == expected
    assert direct.read_scalar(number) == expected
    assert before.numpy() == 3  # who has read keeps what was there
    del group
    assert direct.read_scalar(number) is None
    assert not direct.write_scalar(number, 1.0)


def test_other_scalars_are_left_to_ops() -> None:
    for value in (tf.constant(1, tf.int32), tf.constant(1.0, tf.bfloat16), tf.zeros([2], tf.float64)):
        var = tf.Variable(value)
        groups = counter.scalar_groups([var.handle])
        assert direct.read_scalar(groups[0][1]) is None
        assert not direct.write_scalar(groups[0][1], 2.0)
        np.testing.assert_array_equal(var.numpy(), value.numpy())


def test_a_counter_is_one_whatever_reads_it(mesh_2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    count, counters = variable(0, dtensor.Layout.replicated(mesh_2, 0), "count", tf.int64), {}
    for mode in ("off", "build"):
        monkeypatch.setenv(library.VARIABLE, mode)
        counters[mode] = Counter(count)
        assert counters[mode].now() == 0  # else the first value may still be on its way when another is set
    monkeypatch.setenv(library.VARIABLE, "off")
    for mode, value in (("build", 5), ("off", 6), ("build", 7)):
        counters[mode].set(value)
        for each in counters.values():
            assert each.now() == each.peek() == value
        assert [int(part.numpy()) for part in dtensor.unpack(count.read_value())] == [value, value]
    count.assign_add(put(1, dtensor.Layout.replicated(mesh_2, 0), tf.int64))
    assert counters["build"].now() == 8


PENDING = """
import time
import tensorflow as tf
from tensorflow.python.eager import context
import optim

weights, optimizer = tf.Variable(tf.zeros([4])), optim.SGD(1.0)
optimizer.apply_gradients([(tf.ones([4]), weights)])
context.context().execution_mode = context.ASYNC
pending = tf.py_function(lambda x: time.sleep(0.2) or x * 2, [tf.ones([4])], tf.float32)
optimizer.apply_gradients([(tf.reshape(pending, [4]), weights)])
print(weights.numpy().tolist(), optimizer.executor_report().kernels)
"""


@pytest.mark.breadth
@pytest.mark.parametrize("_kernel", [True], indirect=True, ids=["in a process of its own"])
def test_a_gradient_that_python_still_computes_is_waited_for() -> None:
    done = subprocess.run([sys.executable, "-c", PENDING], capture_output=True, text=True, timeout=HANGS, check=False)
    assert done.stdout.strip() == "[-3.0, -3.0, -3.0, -3.0] {'Variable': 'native'}", done.stderr[-2000:]


def test_without_these_functions_steps_go_on(mesh_2: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "_loaded", [])
    weights, optimizer = tf.Variable(np.ones(4, np.float32)), optim.Adam(0.1, global_clipnorm=1.0, use_ema=True)
    for _ in range(2):
        optimizer.apply_gradients([(tf.ones(4), weights)])
    assert set(optimizer.executor_report().kernels.values()) == {"native"}
    np.testing.assert_allclose(weights.numpy(), np.full(4, 0.8), rtol=1e-5)
    layout = dtensor.Layout(["x"], mesh_2)
    sharded, on_mesh = variable(np.ones(4), layout, "w", tf.float32), optim.Adam(0.1)
    on_mesh.apply_gradients([(put(np.ones(4), layout, tf.float32), sharded)])
    assert "read the parts of DTensors" in on_mesh.executor_report().why_not_native
    assert on_mesh.iterations.numpy() == 1
