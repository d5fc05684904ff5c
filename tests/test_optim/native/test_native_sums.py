"""dtopt's own kernel for rules that need sums over whole variables, rows or columns: Lamb, Adafactor, a user's own."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim.native.generate import builtin_programs, program_for, why_none
from optim.rule import COLUMNS, ROWS, SCALAR, Whole
from tests.helpers.breadth import covering
from tests.test_optim.cases import FIRST, VARIANTS, Case, marked
from tests.test_optim.native.kernel_support import ops_of
from tests.test_optim.native.test_native_graph import OPTIONS, SHAPES, in_function, model, values

CASES = [case for case in VARIANTS if case.has_sums]
CASES += [
    replace(case, name=f"{case.name}-nesterov", arguments={**case.arguments, "nesterov": True})
    for case in CASES
    if case.name == "lars-sum"
]
NATIVE = pytest.mark.parametrize("mode", ["native"])
TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 0.02, "float16": 2e-3}


def assert_close(one: Any, two: Any, rtol: float) -> None:
    """To so much of the largest element: the kernel and TensorFlow add up norms in another order."""
    for mine, theirs in zip(one, two, strict=True):
        a, b = (tf.cast(t, tf.float64).numpy() for t in (mine, theirs))
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.max(np.abs(b), initial=0.0))


@NATIVE
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("case", marked([(case,) for case in CASES], lambda case: case == FIRST[case.optimizer]))
@pytest.mark.quick(4)
def test_the_kernel_steps_as_tensorflows_ops(case: Case, traced: bool, mode: str) -> None:
    one, two, by_ops, mine = case.make(executor="portable"), case.make(), model(), model()
    reference, step = in_function(one, by_ops), in_function(two, mine)
    for k in range(4):
        gradients = [tf.constant(g) for g in values(k)]
        reference(gradients)
        if traced:
            step(gradients)
        else:
            two.apply_gradients(zip(gradients, mine, strict=True))
    assert set(two.executor_report().kernels.values()) == {"native"}
    assert set(one.executor_report().kernels.values()) == {"ops"}
    if traced:
        assert "DtoptStep" in ops_of(step.get_concrete_function([tf.constant(g) for g in values(0)]))
    assert_close([*two.variables, *mine], [*one.variables, *by_ops], 1e-5)


@NATIVE
@covering(1, name=[name for name in OPTIONS if name != "compiled"], dtype=TOLERANCE, case=CASES)
@pytest.mark.quick(4)
def test_every_option(name: str, dtype: str, case: Case, mode: str) -> None:
    kind = tf.as_dtype(dtype).as_numpy_dtype
    more = {} if dtype in ("float32", "float64") else {"master_copies": name != "norm"}
    made = {**case.arguments, **OPTIONS[name], **more}
    one = getattr(optim, case.optimizer)(0.01, executor="portable", **made)
    two = getattr(optim, case.optimizer)(0.01, **made)
    by_ops, mine = model(kind), model(kind)
    reference, step = in_function(one, by_ops), in_function(two, mine)
    for k in range(4):
        gradients = [tf.constant(g) for g in values(k, kind)]
        reference(gradients)
        step(gradients)
    assert "DtoptStep" in ops_of(step.get_concrete_function([tf.constant(g) for g in values(0, kind)]))
    assert_close([*two.variables, *mine], [*one.variables, *by_ops], TOLERANCE[dtype])


@NATIVE
def test_what_else_is_updated_changes_no_bit(mode: str) -> None:
    """Sums are added up alike wherever a variable lies in the line of all."""
    random = np.random.default_rng(3)
    start, gradient = random.normal(size=(2, 50_021)).astype(np.float32)
    found = []
    for before in ([], [(3,), (777, 13)]):
        optimizer = optim.Lamb(0.1)
        variables = [tf.Variable(tf.ones(shape)) for shape in before] + [tf.Variable(start)]
        for _ in range(3):
            gradients = [*(tf.ones(shape) for shape in before), tf.constant(gradient)]
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        found.append(variables[-1].numpy())
    np.testing.assert_array_equal(*found)


@NATIVE
@pytest.mark.parametrize("kind", [optim.Lamb, optim.NovoGrad, optim.Adafactor])
@pytest.mark.parametrize("divided", [False, True])
def test_on_a_mesh_only_what_every_device_has_whole(divided: bool, kind: Any, mode: str, mesh_2x2: Any) -> None:
    layout = dtensor.Layout([mesh_2x2.dim_names[0] if divided else dtensor.UNSHARDED, dtensor.UNSHARDED], mesh_2x2)
    start, gradient = np.random.default_rng(5).normal(size=(2, 6, 4)).astype(np.float32)

    def put(value: Any) -> Any:
        whole = dtensor.copy_to_mesh(tf.constant(value), dtensor.Layout.replicated(mesh_2x2, 2))
        return dtensor.relayout(whole, layout)

    plain, on_mesh = tf.Variable(start), dtensor.DVariable(put(start), name="w")
    one, two = kind(0.1, weight_decay=0.1), kind(0.1, weight_decay=0.1)
    step = in_function(two, [on_mesh])
    for _ in range(3):
        one.apply_gradients([(tf.constant(gradient), plain)])
        step([put(gradient)])
    assert ("DtoptStep" in ops_of(step.get_concrete_function([put(gradient)]))) == (not divided)
    for part in dtensor.unpack(dtensor.relayout(on_mesh.read_value(), dtensor.Layout.replicated(mesh_2x2, 2))):
        np.testing.assert_allclose(part.numpy(), plain.numpy(), rtol=1e-5)


@NATIVE
def test_indexed_slices_are_made_dense(mode: str) -> None:
    table, twin = tf.Variable(tf.ones((5, 3))), tf.Variable(tf.ones((5, 3)))
    one, two = optim.Lamb(0.1), optim.Lamb(0.1)
    rows = tf.IndexedSlices(tf.constant([[1.0, 2.0, 3.0]] * 2), tf.constant([1, 1]), tf.constant([5, 3]))
    one.apply_gradients([(rows, table)])
    two.apply_gradients([(tf.convert_to_tensor(rows), twin)])
    np.testing.assert_array_equal(table, twin)


class Normalized(Whole):
    """A step against the direction of the gradient, whatever its length."""

    learning_rate = optim.Hyperparameter(0.1, "the length of a step")

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Any, c: Any) -> Any:
        return -c["learning_rate"] * gradient / xp.sqrt(xp.reduce_sum(xp.square(gradient))), {}


def _asks(ask: Any) -> str:
    class Asking(Whole):
        def update(self, xp: Any, variable: Any, gradient: Any, slots: Any, c: Any) -> Any:
            return gradient * ask(xp, gradient), {}

    return why_none(Asking())


@NATIVE
def test_a_rule_of_ones_own(mode: str) -> None:
    program = program_for(Normalized())
    assert program is not None
    assert program.functions == (program.name, f"{program.name}_sums0")
    assert not program.is_identity_at_zero
    weights = tf.Variable([1.0, 2.0])
    optimizer = optim.Optimizer(rule=Normalized(), learning_rate=0.5)
    optimizer.apply_gradients([(tf.constant([3.0, 4.0]), weights)])
    np.testing.assert_allclose(weights, [0.7, 1.6], rtol=1e-6)
    assert set(optimizer.executor_report().kernels.values()) == {"native"}


class Signed(Whole):
    """Steps by the sign of a slot that is one number."""

    learning_rate = optim.Hyperparameter(0.1, "the size of a step")

    @property
    def slots(self) -> tuple[optim.Slot, ...]:
        return (optim.Slot("total", unit="gradient", initial=2.0, like=SCALAR),)

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Any, c: Any) -> Any:
        total = slots["total"] + xp.reduce_sum(gradient * slots["total"]) + 1.0
        return xp.ones_like(gradient) * (-c["learning_rate"] * xp.sign(total)), {"total": total}


@NATIVE
def test_a_sum_of_what_depends_on_a_slot_that_is_one_number(mode: str) -> None:
    weights, scalar, empty = tf.Variable([1.0, 2.0]), tf.Variable(1.0), tf.Variable(tf.zeros((0, 3)))
    optimizer = optim.Optimizer(rule=Signed(), learning_rate=0.5)
    gradients = [tf.constant([-3.0, 1.0]), tf.constant(1.0), tf.zeros((0, 3))]
    for _ in range(2):
        optimizer.apply_gradients(zip(gradients, [weights, scalar, empty], strict=True))
    assert set(optimizer.executor_report().kernels.values()) == {"native"}
    np.testing.assert_array_equal(weights, [1.0, 2.0])  # up by 0.5, and down again
    np.testing.assert_array_equal(scalar, 0.0)
    assert [float(optimizer.get_slot(v, "total")) for v in (weights, scalar, empty)] == [2.0, 11.0, 4.0]


def test_what_has_no_kernel() -> None:
    assert "the same for all elements" in _asks(lambda xp, g: xp.reduce_sum(xp.reduce_sum(g)))
    assert _asks(lambda xp, g: xp.reduce_sum(xp.ones_like(g))) == ""
    assert "unexpected keyword" in _asks(lambda xp, g: xp.reduce_sum(g, out=g))
    assert "along axis 2 of 2" in _asks(lambda xp, g: xp.reduce_sum(g, axis=2))
    assert "columns with rows" in _asks(lambda xp, g: xp.reduce_sum(g, axis=1))
    assert "int()" in _asks(lambda xp, g: int(g.shape[0]) * g)
    assert _asks(lambda xp, g: sum(xp.reduce_sum(xp.square(g) + k) for k in range(9))) == ""


@dataclass(frozen=True)
class Along(Whole):
    """Sums and slots of every kind, and sums of what depends on sums, with steps that are the same along rows."""

    learning_rate = optim.Hyperparameter(0.1, "the size of a step")

    kind: str = "elements"

    @property
    def slots(self) -> tuple[optim.Slot, ...]:
        shapes = {"row": ROWS, "column": COLUMNS, "one": SCALAR, "full": "variable"}
        return tuple(optim.Slot(name, unit="gradient", initial=0.5, like=like) for name, like in shapes.items())

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Any, c: Any) -> Any:
        rows = xp.reduce_mean(gradient, axis=1, keepdims=True)
        columns = slots["column"] + xp.reduce_sum(xp.abs(gradient - rows), axis=0)
        largest = xp.reduce_mean(columns * columns)
        row = slots["row"] + xp.reduce_sum(gradient * xp.expand_dims(columns / largest, 0), -1)
        one = slots["one"] + xp.reduce_mean(variable * xp.expand_dims(row, -1), axis=(0, 1)) * xp.reduce_sum(row)
        full = slots["full"] + gradient * one + xp.ones_like(gradient) * xp.expand_dims(slots["row"], 1)
        step = {"elements": full + rows * variable, "rows": xp.expand_dims(row, 1), "columns": columns, "one": one}
        new = {"row": row, "column": columns, "one": one, "full": full}
        return -c["learning_rate"] * step[self.kind] * 0.01, new


@NATIVE
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("kind", ["elements", "rows", "columns", "one"])
@pytest.mark.quick(3)
def test_rows_and_columns(kind: str, traced: bool, mode: str) -> None:
    random, shapes = np.random.default_rng(1), [(3, 5), (130, 257), (2, 9001), (4099, 2), (1, 1)]
    starts = [random.normal(size=shape) for shape in shapes]
    found = []
    for executor in ("auto", "portable"):
        variables = [tf.Variable(start) for start in starts]
        optimizer = optim.Optimizer(
            rule=Along(kind), learning_rate=0.1, executor=executor, clipvalue=2.0, weight_decay=0.1
        )
        step = in_function(optimizer, variables) if traced else None
        given = np.random.default_rng(2)
        for _ in range(3):
            gradients = [tf.constant(given.normal(size=shape)) for shape in shapes]
            step(gradients) if step else optimizer.apply_gradients(zip(gradients, variables, strict=True))
        assert set(optimizer.executor_report().kernels.values()) == {"native" if executor == "auto" else "ops"}
        found.append([*variables, *optimizer.variables])
    assert_close(*found, 1e-11)


@NATIVE
def test_sums_do_not_depend_on_threads(mode: str) -> None:
    """Nor on what else is updated."""
    random = np.random.default_rng(3)
    start, gradient = random.normal(size=(2, 1500, 301)).astype(np.float32)
    found = []
    for before in ([], [(7, 3), (300, 200)]):
        optimizer = optim.Adafactor(0.1)
        variables = [tf.Variable(tf.ones(shape)) for shape in before] + [tf.Variable(start)]
        for _ in range(3):
            gradients = [*(tf.ones(shape) for shape in before), tf.constant(gradient)]
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        found.append([variables[-1].numpy(), *(optimizer.get_slot(variables[-1], n).numpy() for n in "rc")])
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)


@dataclass(frozen=True)
class Batch(Whole):
    """Sums and slots of every kind of variables of two dims and more, of which the first are a batch; and sums of what
    depends on sums."""

    learning_rate = optim.Hyperparameter(0.1, "the size of a step")

    @property
    def slots(self) -> tuple[optim.Slot, ...]:
        shapes = {"row": ROWS, "column": COLUMNS, "one": SCALAR, "full": "variable"}
        return tuple(optim.Slot(name, unit="gradient", initial=0.5, like=like) for name, like in shapes.items())

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Any, c: Any) -> Any:
        rows = xp.reduce_mean(gradient, axis=-1, keepdims=True)
        columns = slots["column"] + xp.reduce_sum(xp.abs(gradient - rows), axis=-2)
        of_matrix = xp.reduce_mean(columns * columns, axis=-1)
        row = slots["row"] + xp.reduce_sum(gradient * xp.expand_dims(columns, -2), -1) / xp.expand_dims(of_matrix, -1)
        middle = xp.reduce_mean(variable * xp.expand_dims(row, -1), axis=(-2, -1), keepdims=True)
        least = xp.reduce_sum(row, axis=-1, keepdims=True) * 0.01
        one = slots["one"] + xp.reduce_mean(gradient * middle) + xp.reduce_mean(row) + xp.reduce_mean(columns)
        full = slots["full"] + gradient * one + middle * xp.expand_dims(slots["row"] + least, -1)
        new = {"row": row, "column": columns + least, "one": one, "full": full}
        return -c["learning_rate"] * (full + rows * variable) * 0.01, new


BATCHES = [(3, 5, 7), (2, 130, 257), (3, 3, 64, 32), (300, 2, 3), (1, 4, 5), (5, 1, 1), (2, 9001, 2), (0, 3, 4), (6, 4)]


def stepped(make: Any, shapes: Any, traced: bool, dtype: Any = np.float64) -> Any:
    """Variables and slots after three steps, by the kernel and by TensorFlow's ops."""
    found = []
    for executor in ("auto", "portable"):
        random = np.random.default_rng(1)
        variables = [tf.Variable(random.normal(size=shape).astype(dtype)) for shape in shapes]
        optimizer = make(executor=executor)
        step = in_function(optimizer, variables) if traced else None
        for _ in range(3):
            gradients = [tf.constant(random.normal(size=shape).astype(dtype)) for shape in shapes]
            step(gradients) if step else optimizer.apply_gradients(zip(gradients, variables, strict=True))
        assert set(optimizer.executor_report().kernels.values()) == {"native" if executor == "auto" else "ops"}
        found.append([*variables, *optimizer.variables])
    return found


@NATIVE
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "function"])
def test_a_batch_of_matrices(traced: bool, mode: str) -> None:
    make = functools.partial(optim.Optimizer, rule=Batch(), learning_rate=0.1, clipvalue=2.0, weight_decay=0.1)
    assert_close(*stepped(make, BATCHES, traced), 1e-11)


@NATIVE
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "function"])
@pytest.mark.quick(1)
def test_adafactor_of_more_than_two_dims(traced: bool, dtype: str, mode: str) -> None:
    kind = tf.as_dtype(dtype).as_numpy_dtype
    assert_close(*stepped(functools.partial(optim.Adafactor, 0.05), BATCHES, traced, kind), TOLERANCE[dtype])


def test_ranks_share_their_programs() -> None:
    programs = [program_for(rule, rank) for rule in (optim.Adafactor()._rule, Batch()) for rank in (3, 4, 7)]
    assert [program.name for program in programs[:3]] == [programs[0].name] * 3
    assert [program.name for program in programs[3:]] == [programs[3].name] * 3


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda xp, g: xp.reduce_sum(g, axis=0, keepdims=True), "looks along some of them"),
        (lambda xp, g: xp.reduce_sum(g, axis=(0, 2), keepdims=True), "looks along some of them"),
        (lambda xp, g: xp.reduce_sum(xp.reduce_sum(g, axis=(-1, -2))), "one number of each matrix"),
        (lambda xp, g: xp.reduce_sum(g, axis=(1, 2), keepdims=True), ""),
        (lambda xp, g: xp.reduce_sum(g, axis=2, keepdims=True), ""),
    ],
)
def test_what_of_a_batch_has_a_kernel(ask: Any, why: str) -> None:
    class Asking(Whole):
        def update(self, xp: Any, variable: Any, gradient: Any, slots: Any, c: Any) -> Any:
            return gradient * ask(xp, gradient), {}

    found = why_none(Asking(), rank=3)
    assert why in found
    assert bool(found) == bool(why)


def test_every_built_in_rule_with_sums_is_tested_on_several_blocks() -> None:
    programs = [program for program in builtin_programs() if program.has_sums]
    of_cases = {program_for(case.make()._rule, rank).name for case in CASES for rank in (1, 2, 3)}
    assert {program.name for program in programs} == of_cases
    assert max(int(np.prod(shape)) for shape in SHAPES) > 2 * 32 * 1024


def test_the_kernel_of_muon_follows_the_slots() -> None:
    """What Muon leaves to Adam has a kernel, whatever its rank."""
    rule = optim.Muon()._rule
    one = program_for(rule, 1)
    assert one is not None
    assert program_for(rule, 2, ["m", "v"]) == one
    assert program_for(rule, 2, ["m"]) is None


@NATIVE
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize(
    ("algorithm", "kernels"),
    [(optim.Muon, ["native", "native", "ops", "native"]), (optim.SOAP, ["ops", "ops", "ops", "native"])],
    ids=["Muon", "SOAP"],
)
@pytest.mark.quick(1)
def test_what_rules_of_matrices_leave_to_adam(algorithm: Any, kernels: list[str], traced: bool, mode: str) -> None:
    """Matrices run on TensorFlow's ops, in the same step; SOAP has a kernel for scalars alone."""
    shapes = [(5,), (40, 3), (6, 4), ()]
    found = []
    for executor in ("auto", "portable"):
        random = np.random.default_rng(8)
        names = ["bias", "embedding", "kernel", "scale"]
        variables = [tf.Variable(random.normal(size=s), name=n) for s, n in zip(shapes, names, strict=True)]
        optimizer = algorithm(0.1, executor=executor, global_clipnorm=0.5)
        step = in_function(optimizer, variables) if traced else None
        for _ in range(3):
            gradients = [tf.constant(random.normal(size=shape)) for shape in shapes]
            step(gradients) if step else optimizer.apply_gradients(zip(gradients, variables, strict=True))
        found.append([*variables, *optimizer.variables])
        if executor == "auto":
            assert [optimizer.executor_report().kernels[v.name.removesuffix(":0")] for v in variables] == kernels
    assert_close(*found, 1e-11)
