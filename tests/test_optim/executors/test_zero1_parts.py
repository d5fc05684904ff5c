"""What dtopt's kernel updates of a variable whose slots are sharded further: parts of master copies, and what has no
slot but a sum of gradients. Bit for bit as with slots like their variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim.executors import portable
from optim.rules.adafactor import AdafactorRule
from optim.step import gradients as dense_gradients
from tests.helpers.breadth import covering
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.support import put, variable

ROWS, COLUMNS, CALLS = 8, 4, 4
IDS = [3, 0, 3, 3, 6, 0]
SPECS = {"whole": [None, None], "rows": ["batch", None], "columns": [None, "model"]}
MASTERS: dict[str, Any] = {"master_copies": True}
GATHERED: dict[str, Any] = {"gradient_accumulation_steps": 2}
OPTIONS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "masters": (optim.Adam, "bfloat16", MASTERS),
    "masters, average": (
        optim.Adam,
        "bfloat16",
        {**MASTERS, "use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2, "weight_decay": 0.1},
    ),
    "masters, gathered": (optim.Adagrad, "float16", {**MASTERS, **GATHERED, "clipvalue": 0.3}),
    "masters, scaled": (optim.SGD, "float16", {**MASTERS, "loss_scale": 4.0}),
    "masters, lazy": (optim.Adam, "bfloat16", {**MASTERS, "lazy_rows": ["table"]}),
    "masters, squared": (optim.Adam, "bfloat16", {**MASTERS, "repeated_rows": ["clip", "square"]}),
    "a sum": (optim.SGD, "float32", GATHERED),
    "a sum, clipped, scaled": (optim.SGD, "float32", {**GATHERED, "clipvalue": 0.3, "loss_scale": "dynamic"}),
    "a sum of float64": (optim.SGD, "float64", {**GATHERED, "weight_decay": 0.1}),
}


class Model:
    def __init__(self, name: str, layout: dtensor.Layout, **more: Any):
        kind, dtype, options = OPTIONS[name]
        self.dtype, self.whole = tf.as_dtype(dtype), dtensor.Layout.replicated(layout.mesh, 2)
        start = np.linspace(-1, 1, ROWS * COLUMNS).reshape(ROWS, COLUMNS)
        self.layout, self.table = layout, variable(start, layout, "table", self.dtype)
        self.optimizer = kind(0.1, **options, **more)
        self.optimizer.build([self.table])

    def run(self, how: str, given: str) -> None:
        def step(values: Any, ids: Any) -> None:
            self.optimizer.apply_gradients(
                [(values if given == "dense" else tf.IndexedSlices(values, ids), self.table)]
            )

        run = tf.function(step, autograph=False) if how == "function" else step
        ids = dtensor.copy_to_mesh(tf.constant(IDS), self.whole.delete([1]))
        shape = (ROWS, COLUMNS) if given == "dense" else (len(IDS), COLUMNS)
        for k in range(CALLS):
            drawn = np.random.default_rng(k).normal(size=shape)
            run(put(drawn, self.layout if given == "dense" else self.whole, self.dtype), ids)

    def state(self) -> dict[str, np.ndarray]:
        slots = {name: self.optimizer.get_slot(self.table, name) for name in self.optimizer.slot_names}
        slots.pop("gathered", None)
        return {name: value_of(slot) for name, slot in slots.items()} | {"table": value_of(self.table)}


@pytest.fixture
def only_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("TensorFlow's ops stepped, or a gradient was made dense")

    monkeypatch.setattr(portable, "rule_value", refuse)
    monkeypatch.setattr(dense_gradients, "densify", refuse)


@pytest.mark.parametrize("mode", ["native"])
@covering(1, name=OPTIONS, place=SPECS, how=["eager", "function"], given=["dense", "rows"])
@pytest.mark.quick(3)
def test_as_with_slots_like_their_variables(
    name: str, place: str, how: str, given: str, mode: str, mesh_2x2: Any, only_kernel: None
) -> None:
    if given == "dense" and "lazy" in name:
        given = "rows"
    layout = dtensor.Layout([s or dtensor.UNSHARDED for s in SPECS[place]], mesh_2x2)
    found = Model(name, layout, slot_placement="zero1")
    expected = Model(name, dtensor.Layout.replicated(mesh_2x2, 2))
    further = [n for n in found.optimizer.slot_names if found.optimizer.get_slot(found.table, n).layout != layout]
    assert further
    assert found.optimizer.executor_report().why_dense_rows == ""
    found.run(how, given)
    expected.run("eager", given)
    for slot, value in expected.state().items():
        np.testing.assert_array_equal(found.state()[slot], value, err_msg=slot)
    for part in dtensor.unpack(dtensor.relayout(found.table.read_value(), found.whole)):
        np.testing.assert_array_equal(part.numpy(), value_of(found.table))


@pytest.mark.parametrize("mode", ["ops"])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.quick(4)
def test_without_the_kernel(name: str, mode: str, mesh_2x2: Any) -> None:
    """To 3e-5: TensorFlow's fused kernels, which step whole shards, form 1 - beta in float32."""
    layout = dtensor.Layout.replicated(mesh_2x2, 2)
    found, expected = Model(name, layout, slot_placement="zero1"), Model(name, layout)
    for model in (found, expected):
        model.run("eager", "rows")
    if "masters" in name:
        assert "only dtopt's kernel updates parts of master copies" in found.optimizer.executor_report().reason
    for slot, value in expected.state().items():
        mine, others = (np.asarray(each, np.float64) for each in (found.state()[slot], value))
        np.testing.assert_allclose(mine, others, rtol=3e-5, atol=3e-5, err_msg=slot)


class Length(optim.Rule):
    """A step of a given length, which needs all of the gradient, and no slot."""

    learning_rate = optim.Hyperparameter(0.1, "the length of a step")

    @property
    def elementwise(self) -> bool:
        return False

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Any, c: Any) -> Any:
        return -c["learning_rate"] * gradient / xp.sqrt(xp.reduce_sum(xp.square(gradient))), {}


@pytest.mark.parametrize("mode", ["native"])
@pytest.mark.parametrize("how", ["eager", "function"])
@pytest.mark.parametrize("rule", [Length(), AdafactorRule()], ids=["length", "adafactor"])
@pytest.mark.quick(2)
def test_rules_that_add_up_are_given_no_parts(rule: Any, how: str, mode: str, mesh_2x2: Any) -> None:
    """Though their sum of gradients is in parts."""
    found = []
    for placement in ("like_variable", "zero1"):
        layout = dtensor.Layout.replicated(mesh_2x2, 2)
        table = variable(np.ones((ROWS, COLUMNS)), layout, "table")
        optimizer = optim.Optimizer(rule=rule, learning_rate=0.1, slot_placement=placement, **GATHERED)
        optimizer.build([table])
        step = lambda g, o=optimizer, t=table: o.apply_gradients([(g, t)])  # noqa: E731
        run = tf.function(step, autograph=False) if how == "function" else step
        for k in range(CALLS):
            run(put(np.random.default_rng(k).normal(size=(ROWS, COLUMNS)), layout))
        found.append(value_of(table))
    np.testing.assert_allclose(*found, rtol=1e-12)
