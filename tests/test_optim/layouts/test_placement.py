"""Where slots are, what they occupy, and which executor steps: as promised, and as reported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim.errors import HyperparameterError, MismatchError, UnsupportedError
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.support import Place, put, put_gradients, variable


def _kernel(mesh: Any, *specs: str) -> Any:
    return variable(np.ones((8, 6)), dtensor.Layout(list(specs), mesh), "kernel", tf.float32)


def test_zero1_shrinks_the_slots_and_says_so(mesh_2x2: Any, devices: list[str]) -> None:
    var = _kernel(mesh_2x2, "unsharded", "unsharded")
    whole = 8 * 6 * 4
    for placement, share in (("like_variable", 1), ("zero1", 4)):
        optimizer = optim.Adam(slot_placement=placement)
        optimizer.build([var])
        report = optimizer.memory_report()
        assert set(report.variables) == set(devices[:4])
        assert set(report.variables.values()) == {whole}
        assert set(report.slot_bytes.values()) == {2 * whole // share}
        assert set(report.slots["m"].values()) == {whole // share}
        assert set(report.replicated_slots["m"].values()) == {whole}
        assert devices[0] in str(report)
        assert f"{2 * whole // share:,}" in str(report)
        # What is reported is what is there.
        handles = dtensor.unpack(optimizer.get_slot(var, "v").read_value())
        assert {int(np.prod(part.shape)) * 4 for part in handles} == {whole // share}


@pytest.mark.parametrize(
    ("shape", "specs", "expected"),
    [
        ((8, 6), ["unsharded", "unsharded"], ["batch", "model"]),
        ((6, 8), ["unsharded", "unsharded"], ["model", "batch"]),
        ((8, 6), ["model", "unsharded"], ["model", "batch"]),
        ((3, 4), ["unsharded", "unsharded"], ["unsharded", "batch"]),
        ((3, 5), ["unsharded", "unsharded"], ["unsharded", "unsharded"]),
        ((), [], []),
        ((4,), ["batch"], ["batch"]),
    ],
)
def test_zero1_layouts(shape: Any, specs: Any, expected: Any, mesh_2x2: Any) -> None:
    var = variable(np.ones(shape), dtensor.Layout(specs, mesh_2x2), "w")
    optimizer = optim.SGD(momentum=0.9, slot_placement="zero1")
    optimizer.build([var])
    assert list(optimizer.get_slot(var, "m").layout.sharding_specs) == expected


@pytest.mark.parametrize("mode", ["local", "portable", "function"])
def test_an_axis_of_size_one_does_not_keep_slots_whole(mode: str, devices: list[str]) -> None:
    """Its one part is the whole, so that another axis can divide the dim."""
    mesh = dtensor.create_mesh([("batch", 2), ("model", 1)], devices=devices[:2])
    layout = dtensor.Layout(["model"], mesh)
    values = []
    for placement in ("like_variable", "zero1"):
        var = variable(np.arange(4.0), layout, "bias")
        executor = "auto" if mode == "function" else mode
        optimizer = optim.Adam(0.1, slot_placement=placement, global_clipnorm=1.0, executor=executor)
        optimizer.build([var])
        step = optimizer.apply_gradients
        if mode == "function":
            step = tf.function(lambda pairs, optimizer=optimizer: optimizer.apply_gradients(pairs), autograph=False)
        for k in range(3):
            step([(put(np.array([1.0, -2.0, 0.5, 3.0]) * (k + 1), layout), var)])
        values.append(value_of(var))
    assert list(optimizer.get_slot(var, "m").layout.sharding_specs) == ["batch"]
    np.testing.assert_allclose(values[1], values[0], rtol=1e-12)


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("accumulates", [False, True])
def test_a_tensor_without_elements_stays_whole(in_function: bool, accumulates: bool, mesh_2x2: Any) -> None:
    """DTensor gathers no parts of it, and what comes after such an error in the process fails, too."""
    empty, full = (variable(np.ones(s), dtensor.Layout.replicated(mesh_2x2, len(s)), "w") for s in ((4, 0), (4,)))
    steps = {"gradient_accumulation_steps": 2} if accumulates else {}
    optimizer = optim.SGD(1.0, momentum=0.5, slot_placement="zero1", global_clipnorm=1.0, **steps)
    optimizer.build([empty, full])
    step = lambda: optimizer.apply_gradients([(v.read_value(), v) for v in (empty, full)])  # noqa: E731
    run = tf.function(step) if in_function else step
    for _ in range(1 + accumulates):
        run()
    np.testing.assert_allclose(value_of(full), np.full(4, 0.5))
    assert value_of(empty).shape == (4, 0)


def test_zero1_on_plain_variables_is_nothing(devices: list[str]) -> None:
    var = tf.Variable([1.0])
    optimizer = optim.Adam(0.5, slot_placement="zero1")
    optimizer.apply_gradients([(tf.ones(1), var)])
    assert var.numpy()[0] < 1.0
    assert optimizer.executor_report().executor == "local"


def test_slots_across_the_variables_layout_are_refused_in_a_function(mesh_2x2: Any) -> None:
    """There a read after the step would give the old value (measured with TF 2.21 on 8 of 28 pairs of layouts)."""
    var = _kernel(mesh_2x2, "model", "unsharded")
    optimizer = optim.Adam(slot_placement=lambda *_: dtensor.Layout(["batch", "unsharded"], mesh_2x2))
    before = value_of(var)
    with pytest.raises(UnsupportedError, match="eagerly"):
        tf.function(optimizer.apply_gradients, autograph=False)([(put(np.ones((8, 6)), var.layout, tf.float32), var)])
    np.testing.assert_array_equal(value_of(var), before)


def test_a_callable_places_slot_by_slot(mesh_2x2: Any) -> None:
    asked = []

    def place(var: Any, slot: str) -> Any:
        asked.append((var.name, slot))
        specs = {"m": ["batch", "unsharded"], "v": ["unsharded", "model"]}.get(slot, ["unsharded"] * 2)
        return dtensor.Layout(specs, mesh_2x2)

    one, two = _kernel(mesh_2x2, "model", "unsharded"), _kernel(mesh_2x2, "model", "unsharded")
    options = {"use_ema": True, "ema_overwrite_frequency": 2, "gradient_accumulation_steps": 2, "weight_decay": 0.1}
    placed = optim.Adam(0.1, slot_placement=place, **options)
    usual = optim.Adam(0.1, executor="portable", **options)
    for var, optimizer in ((one, placed), (two, usual)):
        for scale in (1.0, -2.0, 0.5, 3.0):
            optimizer.apply_gradients([(put(np.full((8, 6), scale), var.layout, tf.float32), var)])
    np.testing.assert_allclose(value_of(one), value_of(two), rtol=1e-6)
    assert {slot for _, slot in asked} == {"m", "v", "average", "accumulated_gradient"}
    assert list(placed.get_slot(one, "m").layout.sharding_specs) == ["batch", "unsharded"]
    assert list(placed.get_slot(one, "v").layout.sharding_specs) == ["unsharded", "model"]
    with pytest.raises(HyperparameterError, match="place"):
        optim.Adam.from_config(placed.get_config())
    again = optim.Adam.from_config({**placed.get_config(), "slot_placement": place})
    assert again.slot_placement is place


@pytest.mark.parametrize(
    ("choose", "culprit"),
    [
        (lambda mesh, other: "somewhere", "somewhere"),
        (lambda mesh, other: dtensor.Layout(["x", "unsharded"], other), "another mesh"),
        (lambda mesh, other: dtensor.Layout(["batch"], mesh), "rank"),
    ],
)
def test_a_callable_that_returns_something_else(choose: Any, culprit: str, mesh_2x2: Any, mesh_2: Any) -> None:
    optimizer = optim.Adam(slot_placement=lambda var, slot: choose(mesh_2x2, mesh_2))
    with pytest.raises(MismatchError, match=f"'m'.*kernel.*{culprit}"):
        optimizer.build([_kernel(mesh_2x2, "batch", "model")])


def test_a_callable_whose_layout_does_not_divide(mesh_2x2: Any) -> None:
    optimizer = optim.Adam(slot_placement=lambda var, slot: dtensor.Layout(["batch", "unsharded"], mesh_2x2))
    with pytest.raises(MismatchError, match="dim 0 of size 3"):
        optimizer.build([variable(np.ones((3, 2)), dtensor.Layout.replicated(mesh_2x2, 2), "odd")])


# Executors.


def test_executor_report(mesh_2x2: Any) -> None:
    place = Place(mesh_2x2, {"kernel": ["batch", "unsharded"]})
    values = {"kernel": np.ones((8, 6)), "scale": np.ones(())}

    def across(var: Any, slot: str) -> Any:
        return dtensor.Layout(["model", "unsharded"] if var.shape.rank else [], mesh_2x2)

    for optimizer, executor, kernel in (
        (optim.Adam(), "local", "fused"),
        (optim.Adam(amsgrad=True), "local", "fused"),
        (optim.Adadelta(), "local", "fused"),
        (optim.SGD(momentum=0.9), "local", "fused"),
        (optim.Adam(jit_compile=True), "local", "xla"),
        (optim.Adam(executor="portable"), "portable", "ops"),
        (optim.Adam(slot_placement="zero1"), "local", "fused"),
        (optim.Adam(slot_placement=across), "portable", "ops"),
    ):
        variables = place.variables(values, tf.float32)
        optimizer.apply_gradients(put_gradients(values, variables))
        report = optimizer.executor_report()
        assert report.executor == executor
        assert report.reason
        assert report.kernels == {"kernel": kernel, "scale": kernel}
    half = place.variables(values, tf.bfloat16)
    optimizer = optim.Adam()
    optimizer.build(list(half.values()))
    assert optimizer.executor_report().kernels == {"kernel": "ops", "scale": "ops"}


def test_local_is_refused_where_it_cannot_be(mesh_2x2: Any) -> None:
    values = {"kernel": np.ones((8, 6))}
    place = Place(mesh_2x2, {"kernel": ["batch", "unsharded"]})

    def across(var: Any, slot: str) -> Any:
        return dtensor.Layout(["model", "unsharded"], mesh_2x2)

    def one_only(var: Any, slot: str) -> Any:
        return var.layout if slot == "m" else dtensor.Layout(["batch", "model"], mesh_2x2)

    for optimizer, culprit in (
        (optim.Adam(executor="local", slot_placement=across), "not only sharded further"),
        (optim.Adam(executor="local", slot_placement=one_only), "do not all have the same placement"),
        (optim.Adam(jit_compile=True, slot_placement="zero1"), "slot_placement.*jit_compile"),
    ):
        variables = place.variables(values)
        with pytest.raises(UnsupportedError, match=culprit):
            optimizer.apply_gradients(put_gradients(values, variables))
        np.testing.assert_array_equal(value_of(variables["kernel"]), 1.0)
    variables = place.variables(values)
    optimizer = optim.Adam(executor="local")
    step = tf.function(optimizer.apply_gradients, autograph=False)
    with pytest.raises(UnsupportedError, match="local"):
        step(put_gradients(values, variables))
    np.testing.assert_array_equal(value_of(variables["kernel"]), 1.0)


@pytest.mark.parametrize("how", ["eager", "function", "portable"])
@pytest.mark.parametrize(
    "options", [{}, {"gradient_accumulation_steps": 2}, {"use_ema": True, "global_clipnorm": 0.3}], ids=str
)
@pytest.mark.quick(4)
def test_slots_are_where_their_variables_are(options: dict[str, Any], how: str) -> None:
    """As for a table that is kept on the CPU beside a GPU's layers."""
    gradients = [tf.constant([[0.1, 0.2], [0.3, 0.4]]), tf.constant([0.5, -0.5]), tf.constant(0.2)]

    def stepped(*devices: str) -> list[np.ndarray]:
        model = []
        for gradient, device in zip(gradients, devices, strict=True):
            with tf.device(device):
                model.append(tf.Variable(tf.ones_like(gradient)))
        optimizer = optim.Adam(0.1, **options, executor="portable" if how == "portable" else "auto")
        step = lambda: optimizer.apply_gradients(list(zip(gradients, model, strict=True)))  # noqa: E731
        run = tf.function(step) if how == "function" else step
        for _ in range(4):
            run()
        for own, device in zip(model, devices, strict=True):
            assert all(optimizer.get_slot(own, name).device.endswith(device) for name in optimizer.slot_names)
        return [own.numpy() for own in model]

    expected = stepped("CPU:0", "CPU:0", "CPU:0")
    for devices in (("CPU:1", "CPU:1", "CPU:1"), ("CPU:1", "CPU:0", "CPU:1")):
        for own, other in zip(stepped(*devices), expected, strict=True):
            np.testing.assert_array_equal(own, other)
