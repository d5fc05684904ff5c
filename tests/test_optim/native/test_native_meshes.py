"""dtopt's own kernel in functions over DTensors: one op, which each device runs on its parts, in program order."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim import devices
from optim.layouts.placement import to_host
from optim.native import direct, generate, library, spmd
from optim.rules.sgd import SGDRule
from tests.test_optim.cases import VARIANTS
from tests.test_optim.native.kernel_support import ops_of
from tests.test_optim.support import put, variable

NATIVE = pytest.mark.parametrize("mode", ["native_function"])
SPECS = (["x", "unsharded"], ["unsharded", "x"], ["unsharded", "unsharded"], ["x"])
SHAPES = ((4, 6), (3, 4), (3, 5), (8,))


def model(mesh: Any, dtype: Any = tf.float32) -> list[Any]:
    random = np.random.default_rng(7)
    layouts = [dtensor.Layout(specs, mesh) for specs in SPECS]
    return [
        variable(random.normal(size=shape), layout, f"v{i}", dtype)
        for i, (shape, layout) in enumerate(zip(SHAPES, layouts, strict=True))
    ]


def gradients_of(variables: list[Any], call: int) -> list[Any]:
    """In the variables' layouts, and at the second call replicated."""
    random = np.random.default_rng(call)
    found = []
    for item in variables:
        layout = dtensor.Layout.replicated(item.layout.mesh, item.layout.rank) if call == 1 else item.layout
        found.append(put(random.normal(size=item.shape), layout, item.dtype))
    return found


def step_of(optimizer: Any, variables: list[Any]) -> Any:
    optimizer.build(variables)

    @tf.function
    def step(gradients: Any) -> None:
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    return step


def has_op(step: Any, variables: list[Any]) -> bool:
    return "DtoptStep" in ops_of(step.get_concrete_function(gradients_of(variables, 0)))


OPTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "float16": (tf.float16, {"master_copies": True, "loss_scale": "dynamic", "use_ema": True}),
    "float32": (
        tf.float32,
        {"clipnorm": 0.5, "use_ema": True, "ema_overwrite_frequency": 2, "weight_decay": 0.1},
    ),
}


@NATIVE
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.quick(1)
def test_the_op_does_what_ops_do(name: str, mode: str, mesh_2: Any) -> None:
    dtype, options = OPTIONS[name]
    mine, theirs = model(mesh_2, dtype), model(mesh_2, dtype)
    one, two = optim.Adam(0.05, **options), optim.Adam(0.05, **options, executor="portable")
    steps = step_of(one, mine), step_of(two, theirs)
    assert has_op(steps[0], mine)
    assert not has_op(steps[1], theirs)
    for call in range(4):
        steps[0](gradients_of(mine, call))
        steps[1](gradients_of(theirs, call))
    for have, want in zip([*one.variables, *mine], [*two.variables, *theirs], strict=True):
        assert have.dtype == want.dtype
        rtol = 2e-3 if dtype == tf.float16 else 2e-6
        np.testing.assert_allclose(
            np.asarray(to_host(have), np.float64), np.asarray(to_host(want), np.float64), rtol=rtol, atol=1e-7
        )


@NATIVE
def test_norms_of_all_gradients_are_one_sum_over_devices(mode: str, mesh_2: Any) -> None:
    """A branch, for sums that float32 cannot hold, would be one for each gradient."""
    variables = model(mesh_2)
    step = step_of(optim.SGD(1.0, clipnorm=1.0), variables)
    large = [put(np.full(v.shape, 1e25), v.layout, tf.float32) for v in variables]
    ops = ops_of(step.get_concrete_function(large))
    assert {"DtoptPartSquares", "If", "StatelessIf", "L2Loss", "Square"} & ops == {"DtoptPartSquares"}
    before = [to_host(v) for v in variables]
    step(large)
    for var, start in zip(variables, before, strict=True):
        np.testing.assert_allclose(np.linalg.norm(to_host(var) - start), 1.0, rtol=1e-5)


@NATIVE
def test_steps_and_reads_keep_their_order(mode: str, mesh_2: Any) -> None:
    layout = dtensor.Layout(["x"], mesh_2)
    weights, optimizer = variable(np.ones(4), layout, "w", tf.float32), optim.SGD(0.25, momentum=0.5)
    optimizer.build([weights])
    ones, zeros = put(np.ones(4), layout, tf.float32), put(np.zeros(4), layout, tf.float32)

    @tf.function
    def run(ones: Any, zeros: Any) -> Any:
        before = weights.read_value() + zeros
        optimizer.apply_gradients([(ones, weights)])
        between = weights.read_value() + zeros
        optimizer.apply_gradients([(between, weights)])
        weights.assign_add(ones)
        optimizer.apply_gradients([(zeros, weights)])
        return before, between, weights.read_value(), optimizer.get_slot(weights, "m").read_value()

    assert "DtoptStep" in ops_of(run.get_concrete_function(ones, zeros))
    before, between, after, momentum = map(to_host, run(ones, zeros))
    np.testing.assert_array_equal(before, np.ones(4))
    np.testing.assert_array_equal(between, np.full(4, 0.75))
    m = 0.5 * -0.25 - 0.25 * 0.75
    np.testing.assert_allclose(after, np.full(4, 0.75 + m + 1.0 + 0.5 * m))
    np.testing.assert_allclose(momentum, np.full(4, 0.5 * m))
    assert optimizer.iterations.numpy() == 3


def _steps_in_a_branch(step: Any, flag: Any) -> None:
    tf.cond(flag, lambda: (step(), tf.constant(True))[1], lambda: tf.constant(False))


def _steps_in_a_loop(step: Any, flag: Any) -> None:
    tf.while_loop(lambda i: i < 1, lambda i: (step(), i + 1)[1], [tf.constant(0)])


AROUND = {
    "by itself": lambda step, flag: step(),
    "function": lambda step, flag: tf.function(step)(),
    "branch": _steps_in_a_branch,
    "loop": _steps_in_a_loop,
}


@NATIVE
@pytest.mark.parametrize("around", AROUND)
def test_slots_are_read_and_written_before_and_after_steps(around: str, mode: str, mesh_2: Any) -> None:
    """A step has no handle of a slot: see `mesh_groups.py`."""
    layout = dtensor.Layout(["x"], mesh_2)
    weights, optimizer = variable(np.ones(4), layout, "w", tf.float32), optim.SGD(0.25, momentum=0.5)
    optimizer.build([weights])
    slot = optimizer.get_slot(weights, "m")
    ones, zeros = put(np.ones(4), layout, tf.float32), put(np.zeros(4), layout, tf.float32)

    @tf.function
    def run(ones: Any, zeros: Any, flag: Any) -> Any:
        read = lambda: slot.read_value() + zeros  # noqa: E731
        first = read()
        AROUND[around](lambda: optimizer.apply_gradients([(ones, weights)]), flag)
        second = read()
        slot.assign(ones)
        AROUND[around](lambda: optimizer.apply_gradients([(ones, weights)]), flag)
        return first, second, read(), weights.read_value()

    flag = dtensor.copy_to_mesh(tf.constant(True), dtensor.Layout.replicated(mesh_2, 0))
    for call in range(2):
        first, second, third, last = map(to_host, run(ones, zeros, flag))
        before = 0.25 * call
        np.testing.assert_array_equal(first, np.full(4, before))
        np.testing.assert_array_equal(second, np.full(4, 0.5 * before - 0.25))
        np.testing.assert_array_equal(third, np.full(4, 0.25))
    np.testing.assert_array_equal(last, np.full(4, 1.0 - 0.25 + 0.25 - 0.125 + 0.25))


@NATIVE
def test_groups_live_as_long_as_the_function(mode: str, mesh_2: Any) -> None:
    """TensorFlow may capture what they are found by as a constant, where a mesh has one device."""
    alone = dtensor.create_mesh([("x", 1)], devices=["CPU:0"])
    for mesh in (alone, mesh_2):
        layout = dtensor.Layout.replicated(mesh, 1)
        weights = variable(np.ones(4), layout, "w", tf.float32)
        step = step_of(optim.SGD(0.25, momentum=0.5), [weights])
        for _ in range(2):
            step([put(np.ones(4), layout, tf.float32)])
            gc.collect()
        np.testing.assert_array_equal(to_host(weights), np.full(4, 1.0 - 0.25 - 0.375))


@NATIVE
def test_a_function_has_one_handle_for_each_variable(mode: str, mesh_2: Any) -> None:
    """What a step on small variables costs is what DTensor does for each argument of the function."""
    layout, sizes = dtensor.Layout.replicated(mesh_2, 1), []
    for count in (2, 7):
        weights = [variable(np.ones(4), layout, f"w{i}", tf.float32) for i in range(count)]
        optimizer = optim.Adam(0.1, use_ema=True)
        step = step_of(optimizer, weights)
        graph = step.get_concrete_function([put(np.ones(4), layout, tf.float32) for _ in weights]).graph
        sizes.append((len(graph.inputs), len(graph.get_operations())))
    (few_inputs, few_ops), (inputs, ops) = sizes
    assert inputs - few_inputs == 2 * 5  # its gradient and its handle
    assert ops - few_ops == 3 * 5  # and the gradient's relayout: nothing else is done for each


@NATIVE
def test_a_value_that_was_read_is_never_changed(mode: str, mesh_2: Any) -> None:
    weights = variable(np.ones(4), dtensor.Layout(["x"], mesh_2), "w", tf.float32)
    step = step_of(optim.SGD(0.5), [weights])
    kept = weights.read_value()
    step([put(np.ones(4), weights.layout, tf.float32)])
    np.testing.assert_array_equal(to_host(kept), np.ones(4))
    np.testing.assert_array_equal(to_host(weights), np.full(4, 0.5))


@NATIVE
def test_slots_that_are_sharded_further_are_left_to_ops(mode: str, mesh_2: Any) -> None:
    variables = model(mesh_2)[2:3]
    variables.append(variable(np.ones((4, 2)), dtensor.Layout.replicated(mesh_2, 2), "whole", tf.float32))
    optimizer = optim.SGD(0.5, momentum=0.5, slot_placement="zero1")
    step = step_of(optimizer, variables)
    step([put(np.ones(item.shape), item.layout, tf.float32) for item in variables])
    assert optimizer.get_slot(variables[1], "m").layout != variables[1].layout
    np.testing.assert_array_equal(to_host(variables[1]), np.full((4, 2), 0.5))


@NATIVE
@pytest.mark.parametrize("missing", range(len(spmd.SYMBOLS)))
def test_without_tensorflows_private_functions_steps_are_ops(
    missing: int, mode: str, mesh_2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = library.status().path
    assert path is not None
    assert spmd.available()
    known = list(spmd.SYMBOLS)
    known[missing] += "_of_a_later_version"
    monkeypatch.setattr(spmd, "_works", [])
    monkeypatch.setattr(spmd, "SYMBOLS", tuple(known))
    spmd.load(path)
    assert not spmd.available()
    variables = model(mesh_2)[:1]
    assert not has_op(step_of(optim.SGD(0.5), variables), variables)


@NATIVE
def test_another_class_of_expansions_is_refused(mode: str) -> None:
    """TensorFlow's own entries stay as they are, and ours is made at most once."""
    path = library.status().path
    addresses = [direct.address(symbol, direct.DTENSORS) for symbol in spmd.SYMBOLS]
    expand = ctypes.PyDLL(str(path)).DtoptExpandLike
    expand.restype, expand.argtypes = ctypes.c_bool, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]

    def tell(op: bytes, like: bytes, shift: int = 0) -> bool:
        found = [*addresses[:3], (addresses[3] or 0) + shift]
        return bool(expand((ctypes.c_void_p * 4)(*found), op, like))

    assert all(tell(op, spmd.LIKE) for op in spmd.OPS), "known already"
    assert not tell(b"tf.DtoptOther", b"tf.MatMul"), "not its own expansion"
    assert not tell(b"tf.DtoptOther", b"tf.NoSuchOp")
    assert not tell(b"tf.DtoptOther", spmd.LIKE, shift=8), "another table"
    assert not tell(b"tf.MatMul", spmd.LIKE), "somebody else's"


TABLE, NAMED = (10, 4), [3, 9, 3, 0, 7, 3]
TABLE_SPECS = (["x", "unsharded"], ["unsharded", "x"], ["unsharded", "unsharded"])


def table_step(optimizer: Any, start: Any, spec: list[str], mesh: Any, dtype: Any) -> Any:
    """A table, and a function that steps it by the rows of a batch, which every device knows."""
    weights = variable(start, dtensor.Layout(spec, mesh), "table", dtype)
    optimizer.build([weights])

    @tf.function
    def step(values: Any, rows: Any) -> None:
        optimizer.apply_gradients([(tf.IndexedSlices(values, rows, tf.constant(TABLE)), weights)])

    def put_rows(values: Any, rows: Any) -> tuple[Any, Any]:
        whole = dtensor.Layout.replicated(mesh, 1)
        return put(values, dtensor.Layout.replicated(mesh, 2), dtype), dtensor.copy_to_mesh(tf.constant(rows), whole)

    return weights, step, put_rows


@NATIVE
@pytest.mark.parametrize("spec", TABLE_SPECS, ids=str)
@pytest.mark.parametrize("name", ["adagrad", "adam"])
@pytest.mark.quick(2)
def test_rows_of_a_table_on_a_mesh(name: str, spec: list[str], mode: str, mesh_2: Any) -> None:
    """Adagrad's step visits the rows alone, Adam's all; float64, so that nothing is off by more than a rounding."""
    case = next(case for case in VARIANTS if case.name == name)
    random = np.random.default_rng(0)
    start = random.normal(size=TABLE)
    reference = case.reference({"table": start})
    weights, step, put_rows = table_step(case.make(), start, spec, mesh_2, tf.float64)
    for call in range(3):
        values, rows = random.normal(size=(len(NAMED), TABLE[1])), np.roll(NAMED, call)
        given = put_rows(values, rows.astype(np.int32 if call == 1 else np.int64))
        step(*given)
        whole = np.zeros(TABLE)
        np.add.at(whole, rows, values)
        reference.apply({"table": whole})
    assert "UnsortedSegmentSum" not in ops_of(step.get_concrete_function(*given))
    np.testing.assert_allclose(to_host(weights), reference.values["table"], rtol=1e-12, atol=1e-14)


@NATIVE
@pytest.mark.parametrize(
    "options",
    [{"lazy_rows": ["table"], "weight_decay": 0.1}, {"use_ema": True}, {"clipvalue": 0.5}, {"clipnorm": 0.5}],
    ids=str,
)
@pytest.mark.parametrize("calls", [None, 3])
@pytest.mark.quick(1)
def test_rows_on_a_mesh_with_options(calls: int | None, options: dict[str, Any], mode: str, mesh_2: Any) -> None:
    random = np.random.default_rng(1)
    start, ends = random.normal(size=TABLE), []
    values = [random.normal(size=(len(NAMED), TABLE[1])) for _ in range(2 * (calls or 1))]
    for executor in ("auto", "portable"):
        optimizer = optim.Adam(0.1, executor=executor, gradient_accumulation_steps=calls, **options)
        weights, step, put_rows = table_step(optimizer, start, TABLE_SPECS[0], mesh_2, tf.float32)
        for value in values:
            step(*put_rows(value, NAMED))
        ends.append([to_host(item) for item in (weights, *optimizer.variables)])
    for have, want in zip(*ends, strict=True):
        np.testing.assert_allclose(have, want, rtol=2e-6, atol=1e-7)


@NATIVE
@pytest.mark.parametrize("spec", TABLE_SPECS, ids=str)
def test_a_window_of_rows_in_bfloat16_is_summed_in_float32(spec: list[str], mode: str, mesh_2: Any) -> None:
    """2⁸ + 1 is no bfloat16: what is added to a sum of 2⁸ must not get lost."""
    optimizer = optim.SGD(2.0**-9, gradient_accumulation_steps=2, master_copies=True)
    weights, step, put_rows = table_step(optimizer, np.zeros(TABLE), spec, mesh_2, tf.bfloat16)
    for value in (256.0, 2.0):
        given = put_rows(np.full((len(NAMED), TABLE[1]), value), NAMED)
        step(*given)
    assert "UnsortedSegmentSum" not in ops_of(step.get_concrete_function(*given))
    times = np.bincount(NAMED, minlength=TABLE[0])
    master = to_host(optimizer.get_slot(weights, "master"))
    np.testing.assert_array_equal(master, np.repeat(-129.0 / 512 * times[:, None], TABLE[1], axis=1))


@NATIVE
@pytest.mark.parametrize("row", [-1, 10])
def test_a_row_that_a_table_does_not_have(row: int, mode: str) -> None:
    """What a device's op says, here of the second half of a table: an error within a mesh ends all that is on it."""
    half, program = tf.Variable(np.ones((5, 4), np.float32)), generate.program_for(SGDRule())
    assert program is not None
    numbers = lambda *given: tf.constant(given, tf.float64, [len(given)])  # noqa: E731

    nothing = tf.constant([], tf.int64)
    _kept, number = devices.call(
        "DtoptGroup", [half.handle], [], [], [], nothing, nothing, tf.constant([5, 0, 4], tf.int64), nothing
    )

    def step(rows: list[int]) -> None:
        library.ops().dtopt_step(
            variables=[half.handle],
            slots=[],
            averages=[],
            roundings=[],
            group=number,
            gradients=[tf.ones((2, 4))],
            rows=[tf.constant(rows, tf.int64)],
            totals=[10],
            windows=[],
            meanings=numbers(),
            gathered=[],
            limits=[],
            calls=1,
            scalars=numbers(0.5),
            scales=numbers(),
            decays=numbers(),
            options=numbers(np.inf, 0.0, 0.0),
            active=tf.constant([], tf.bool),
            overwrite=False,
            control=numbers(),
            T=tf.float32,
            rule=program.name,
            shapes=program.shapes,
            passes=program.passes,
            powers=program.powers,
            scalars_of_all=1,
            identity_at_zero=True,
            sparse=[0],
            others=[],
        )

    with pytest.raises(tf.errors.InvalidArgumentError, match=f"row {row}, the variable has 10 rows"):
        step([6, row])
    np.testing.assert_array_equal(half.numpy(), np.ones((5, 4)))
    step([6, 2])
    np.testing.assert_array_equal(half.numpy()[:, 0], [1.0, 0.5, 1.0, 1.0, 1.0], err_msg="row 2 is another device's")
