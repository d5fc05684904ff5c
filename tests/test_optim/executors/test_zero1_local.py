"""ZeRO-1 on the local executor: the same bits as slots like the variable, and no device holds more than its share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim.layouts import placement
from optim.layouts.shard_slices import Box, box_of, partners
from tests.helpers.breadth import covering
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.cases import VARIANTS, WHOLE, Case, is_one_of_few, marked
from tests.test_optim.support import put_gradients, start_values, variable

CASES = [case for case in VARIANTS if case.optimizer not in WHOLE]
OPTIONS = {"weight_decay": 0.1, "use_ema": True, "ema_overwrite_frequency": 2, "global_clipnorm": 1.0}
SHARDING = {
    "kernel": ["batch", "unsharded"],  # (6, 4): the slots divide the columns further
    "table": ["unsharded", "unsharded"],  # (8, 3): the slots divide the rows over one axis
    "bias": ["unsharded"],  # (4,)
    "scale": [],
    "odd": ["unsharded", "unsharded"],  # (3, 5): divides over no axis
    "cube": ["unsharded", "unsharded", "unsharded"],  # (4, 6, 8): the slots divide two dims, with gaps in both
}


def _values(seed: int) -> dict[str, np.ndarray]:
    return {**start_values(seed), "cube": np.random.default_rng(seed).normal(size=(4, 6, 8))}


def _middle(var: Any, slot: str) -> Any:
    """`zero1`, but for a cube over the two first dims."""
    layout = var.layout
    if layout.rank == 3:
        return dtensor.Layout(["batch", "model", "unsharded"], layout.mesh)
    return placement.zero1_layout(layout, var.shape.as_list())


def _trained(case: Case, mesh: Any, dtype: Any, **more: Any) -> tuple[Any, dict[str, Any]]:
    model = {n: variable(v, dtensor.Layout(SHARDING[n], mesh), n, dtype) for n, v in _values(0).items()}
    optimizer = case.make(executor="local", **OPTIONS, **more)
    for step in range(3):
        optimizer.apply_gradients(put_gradients(_values(step + 1), model))
    return optimizer, model


def _assert_same(one: Any, other: Any, ones: dict[str, Any], others: dict[str, Any], exactly: bool) -> None:
    """TensorFlow's kernels round the last elements of a tensor, for which there is no whole vector, otherwise than the
    rest (they fuse multiplications with additions in vectors only); dtopt's kernel rounds all alike."""
    pairs = [(n, var, others[n]) for n, var in ones.items()]
    pairs += [
        (f"{slot} of {n}", one.get_slot(a, slot), other.get_slot(b, slot))
        for n, a, b in pairs
        for slot in one.slot_names
    ]
    for what, a, b in pairs:
        mine, theirs = value_of(a), value_of(b)
        if exactly:
            assert mine.tobytes() == theirs.tobytes(), what
        else:
            np.testing.assert_allclose(mine, theirs, rtol=1e-11, atol=1e-13)


def _assert_replicas_agree(model: dict[str, Any]) -> None:
    """Each device's own copy, which a read of the whole may not look at."""
    for name, var in model.items():
        whole, mesh = value_of(var), var.layout.mesh
        parts = dtensor.unpack(var.read_value())
        for part, place in zip(parts, mesh.local_device_locations(), strict=True):
            index = tuple(
                slice(None) if axis == "unsharded" else slice(place[axis] * n, (place[axis] + 1) * n)
                for n, axis in zip(part.shape, var.layout.sharding_specs, strict=True)
            )
            assert part.numpy().tobytes() == whole[index].tobytes(), f"{name} at {place}"


@pytest.mark.parametrize("mode", ["native", "local"])
@pytest.mark.parametrize("case", marked([(case,) for case in CASES], is_one_of_few))
@pytest.mark.quick(1)
def test_the_result_of_slots_like_the_variable(case: Case, mode: str, mesh_2x2: Any) -> None:
    dtype = tf.float32 if mode == "native" else tf.float64
    plain, plain_model = _trained(case, mesh_2x2, dtype)
    for policy in ("zero1", _middle):
        placed, model = _trained(case, mesh_2x2, dtype, slot_placement=policy)
        kernels = set(placed.executor_report().kernels.values())
        assert kernels == ({"native"} if mode == "native" else set(plain.executor_report().kernels.values()))
        _assert_same(plain, placed, plain_model, model, mode == "native")
        _assert_replicas_agree(model)
        report, whole = placed.memory_report(), plain.memory_report()
        if placed.slot_names:
            assert max(report.slot_bytes.values()) < 0.6 * max(whole.slot_bytes.values())


@covering(1, dtype=[tf.bfloat16, tf.float64, tf.float16], mode=["native", "local"])
@pytest.mark.quick(1)
def test_other_dtypes(dtype: Any, mode: str, mesh_2x2x2: Any) -> None:
    """On a third axis, which neither the variables nor, where they do not divide, the slots use."""
    case = next(case for case in VARIANTS if case.name == "adam")
    plain, plain_model = _trained(case, mesh_2x2x2, dtype)
    placed, model = _trained(case, mesh_2x2x2, dtype, slot_placement="zero1")
    _assert_same(plain, placed, plain_model, model, mode == "native" or dtype.size == 2)
    _assert_replicas_agree(model)


@pytest.mark.parametrize("mode", ["native", "local"])
def test_a_reader_keeps_the_value_and_a_late_variable_joins(mode: str, mesh_2: Any) -> None:
    layout = dtensor.Layout(["unsharded"], mesh_2)
    var, late = (variable(np.arange(8.0), layout, name, tf.float32) for name in ("w", "late"))
    optimizer = optim.SGD(0.5, momentum=0.9, slot_placement="zero1", executor="local")
    read = var.read_value()
    optimizer.apply_gradients([(read, var)])  # the gradient is the value: its buffer is the variable's
    np.testing.assert_array_equal(value_of(var), np.arange(8.0) / 2)
    for part in dtensor.unpack(read):
        np.testing.assert_array_equal(part.numpy(), np.arange(8.0))
    optimizer.build([var, late])
    optimizer.apply_gradients([(read, late)])
    np.testing.assert_array_equal(value_of(late), np.arange(8.0) / 2)
    _assert_replicas_agree({"w": var, "late": late})


def test_runs_name_the_elements_of_a_box() -> None:
    for shape, begin, end in (
        ((8,), (2,), (5,)),
        ((4, 6), (0, 3), (4, 6)),
        ((4, 6), (2, 0), (4, 6)),
        ((4, 6, 8), (0, 3, 0), (2, 6, 8)),
        ((4, 6, 8), (2, 3, 4), (4, 6, 8)),
        ((2, 1, 8), (1, 0, 4), (2, 1, 8)),
        ((3, 4), (0, 0), (3, 4)),
    ):
        first, run, levels, *pairs = Box(shape, begin, end).runs()
        assert len(pairs) == 2 * levels
        offsets = [first]
        for count, stride in zip(pairs[::2], pairs[1::2], strict=True):
            offsets = [offset + k * stride for offset in offsets for k in range(count)]
        found = [offset + k for offset in offsets for k in range(run)]
        cut = tuple(slice(b, e) for b, e in zip(begin, end, strict=True))
        assert found == np.arange(math.prod(shape)).reshape(shape)[cut].ravel().tolist()


def test_partners_hold_the_same_shard_and_other_slots(mesh_2x2x2: Any) -> None:
    layout = dtensor.Layout(["data", "unsharded"], mesh_2x2x2)
    finer = dtensor.Layout(["data", "model"], mesh_2x2x2)
    places = mesh_2x2x2.local_device_locations()
    for mine, others in zip(places, partners(layout, finer), strict=True):
        assert [places[k] for k in others] == [{**mine, "model": 1 - mine["model"]}]
    box = box_of((4, 6), layout, finer, places[-1])
    assert box == Box((2, 6), (0, 3), (2, 6))
    assert box_of((4, 6), layout, layout, places[-1]) is None
