"""Meshes of three axes: every optimizer, and the variables and gradients that are awkward there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

from tests.helpers.breadth import covering
from tests.helpers.dtensor_asserts import assert_dtensor_equal, layout_of
from tests.reference.common import Options, Training
from tests.test_optim.cases import FIRST, VARIANTS, Case, is_one_of_few, marked
from tests.test_optim.support import Place, gradient_values, put, put_gradients, start_values, stepper, variable

TOLERANCE = {"rtol": 1e-12, "atol": 1e-14}
# kernel (6, 4), table (8, 3), bias (4,), scale () and odd (3, 5), which divides over no axis; batch is used by none.
SHARDING = {"kernel": ["data", "model"], "table": ["model", "unsharded"], "bias": ["data"]}
IDS = [3, 0, 3, 3, 7, 0]


@pytest.mark.parametrize(
    ("case", "mode"),
    marked(
        [(case, mode) for case in FIRST.values() for mode in ("eager", "function")],
        lambda case, mode: is_one_of_few(case) and (mode == "eager" or case.optimizer == "Adam"),
    ),
)
@pytest.mark.quick(1)
def test_every_optimizer_on_three_axes(case: Case, mode: str, mesh_2x2x2: Any) -> None:
    """Gradients come in the layout of another variable's kind: replicated in the second call."""
    variables = Place(mesh_2x2x2, SHARDING).variables(start_values())
    reference = case.reference(start_values())
    optimizer = case.make(mesh=mesh_2x2x2)
    step = stepper(optimizer, mode)
    for call in range(3):
        step(put_gradients(gradient_values(call), variables, replicated=call == 1))
        reference.apply(gradient_values(call))
    for name, var in variables.items():
        assert_dtensor_equal(var, reference.values[name], layout_of(var), what=name, **TOLERANCE)


@covering(
    2,
    specs=[["data", "model"], ["unsharded", "batch"], ["model", "unsharded"]],
    mode=["eager", "function"],
    indices=["replicated", "sharded"],
)
@pytest.mark.quick(2)
def test_repeated_rows_of_a_sharded_table(indices: str, specs: list[str], mode: str, mesh_2x2x2: Any) -> None:
    layout = dtensor.Layout(specs, mesh_2x2x2)
    start, values = np.linspace(-1, 1, 32).reshape(8, 4), np.linspace(0.5, 2, 24).reshape(6, 4)
    table = variable(start, layout, "table")
    axis = "unsharded" if indices == "replicated" else "batch"
    ids = dtensor.relayout(
        dtensor.copy_to_mesh(tf.constant(IDS), dtensor.Layout.replicated(mesh_2x2x2, 1)),
        dtensor.Layout([axis], mesh_2x2x2),
    )
    rows = put(values, dtensor.Layout([axis, "unsharded"], mesh_2x2x2))
    case = next(c for c in VARIANTS if c.name == "adam")
    optimizer = case.make(mesh=mesh_2x2x2, global_clipnorm=1.0)

    def given(values: Any, ids: Any) -> None:
        optimizer.apply_gradients([(tf.IndexedSlices(values, ids), table)])

    step = tf.function(given, autograph=False) if mode == "function" else given
    reference = Training(case.algorithm, case.rate, {"table": start}, Options(global_clipnorm=1.0))
    dense = np.zeros((8, 4))
    np.add.at(dense, IDS, values)
    for _ in range(2):
        step(rows, ids)
        reference.apply({"table": dense})
    assert_dtensor_equal(table, reference.values["table"], layout, **TOLERANCE)


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.quick(2)
def test_empty_and_late_variables(mode: str, mesh_2x2x2: Any) -> None:
    """A variable without elements changes nothing for the others; one that comes later starts with fresh slots."""
    case = next(c for c in VARIANTS if c.name == "adam")
    whole = dtensor.Layout.replicated(mesh_2x2x2, 2)
    empty = variable(np.zeros((0, 4)), whole, "empty")
    first = variable(np.ones((4, 2)), dtensor.Layout(["batch", "model"], mesh_2x2x2), "first")
    late = variable(np.full((2, 2), 2.0), dtensor.Layout(["data", "batch"], mesh_2x2x2), "late")
    options = Options(global_clipnorm=0.5)
    reference = Training(case.algorithm, case.rate, {"first": np.ones((4, 2)), "late": np.full((2, 2), 2.0)}, options)
    optimizer = case.make(mesh=mesh_2x2x2, global_clipnorm=0.5)
    step = stepper(optimizer, mode)
    ones = put(np.ones((4, 2)), whole)
    step([(put(np.zeros((0, 4)), whole), empty), (ones, first)])
    reference.apply({"first": np.ones((4, 2)), "late": None})
    with pytest.raises(KeyError, match="late"):
        optimizer.apply_gradients([(put(np.ones((2, 2)), whole), late)])
    optimizer.build([late])
    pairs = [(put(np.zeros((0, 4)), whole), empty), (ones, first), (put(np.ones((2, 2)), whole), late)]
    stepper(optimizer, mode)(pairs)
    reference.apply({"first": np.ones((4, 2)), "late": np.ones((2, 2))})
    for var in (first, late):
        assert_dtensor_equal(var, reference.values[var.name.split(":")[0]], layout_of(var), **TOLERANCE)
    assert tuple(optimizer.get_slot(empty, "m").shape) == (0, 4)
