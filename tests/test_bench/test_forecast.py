"""`plan` is held against what `optim` reports on real meshes, and against figures worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.algorithms import ALGORITHMS
from bench.errors import OptionError, UnknownNameError
from bench.forecast import shapes
from bench.forecast.footprint import PLACEMENTS, Training, footprint, parse_bytes, place
from bench.forecast.plans import Speeds, meshes_of, plan, plans, ranked
from bench.forecast.traffic import FORWARD, GRADIENTS, NORMS, PARAMETERS, RULE, SLOTS, collectives
from bench.layouts import RULES as LAYOUTS
from bench.layouts import parse_mesh, sharding
from bench.scale.optimizers import make
from bench.workloads import Tensor, Workload, workload
from optim.sharding import UNSHARDED

MODEL = Workload(
    "small",
    "every rank, and dims that do not divide",
    (
        Tensor("embedding", (6, 4), 0),
        Tensor("column", (4, 8), 1),
        Tensor("row", (8, 4), 0),
        Tensor("bias", (8,), 0),
        Tensor("norm", (4,)),
        Tensor("heads", (4, 2, 6), 1),
        Tensor("odd", (3, 5), 0),
        Tensor("scalar", ()),
    ),
)

OPTIMIZERS = (
    *(known.name for known in ALGORITHMS),
    "momentum",
    "adam:amsgrad=true",
    "rmsprop:momentum=0.9",
    "rmsprop:centered=true",
    "rmsprop:centered=true:momentum=0.9",
)
"""Every optimizer, and those of its arguments that change what it keeps."""


def test_every_optimizer_can_be_planned() -> None:
    import optim

    public = {name for name in optim.__all__ if name[0].isupper() and not name.endswith("Option")} - {"Optimizer"}
    assert {known.class_name for known in ALGORITHMS} == public


@pytest.fixture(scope="module")
def variables(mesh_2x2: Any) -> Any:
    """MODEL's variables on the mesh, by layout and dtype."""
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    made: dict[tuple[str, str], list[Any]] = {}

    def make(layout: str, dtype: str) -> list[Any]:
        if (layout, dtype) not in made:
            made[layout, dtype] = []
            for tensor in MODEL.tensors:
                specs = [axis or UNSHARDED for axis in sharding(layout, tensor, parse_mesh("2x2")).axes]
                whole = dtensor.copy_to_mesh(
                    tf.constant(np.zeros(tensor.shape), dtype), dtensor.Layout.replicated(mesh_2x2, len(specs))
                )
                value = dtensor.relayout(whole, dtensor.Layout(specs, mesh_2x2))
                made[layout, dtype].append(dtensor.DVariable(value, name=tensor.name))
        return made[layout, dtype]

    return make


def compare(variables: list[Any], layout: str, placement: str, training: Training) -> None:
    """Bytes that `optim` reports on each device against those of a plan."""
    mesh = parse_mesh("2x2")
    optimizer = make(training, placement)
    optimizer.build(variables)
    report = optimizer.memory_report()
    held = footprint(place(MODEL.tensors, mesh, layout, placement, training), mesh, training)
    assert len(report.variables) == mesh.devices
    for device, size in report.variables.items():
        assert size == held.parameters, (device, training)
        slots = {name: sizes[device] for name, sizes in report.slots.items()}
        assert slots == held.slots, (device, placement, training)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_bytes_are_those_of_a_real_mesh(variables: Any, layout: str, placement: str) -> None:
    for name in OPTIMIZERS:
        compare(variables(layout, "float32"), layout, placement, Training(name))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_averages_accumulators_and_dtypes_are_those_of_a_real_mesh(variables: Any, placement: str, dtype: str) -> None:
    for name in ("adam", "sgd", "adafactor"):
        training = Training(name, dtype, ema=True, accumulate=True)
        compare(variables("megatron", dtype), "megatron", placement, training)


def exchanged(layout: str, placement: str, training: Training, mesh: str = "2x4") -> dict[tuple[str, str], int]:
    shape = parse_mesh(mesh)
    placed = place(workload("one16m").tensors, shape, layout, placement, training)
    return {(c.purpose, c.operation): c.sent for c in collectives(placed, shape, layout, training)}


WHOLE = 4096 * 4096 * 4


def test_gradients_are_reduced_over_the_data_axis() -> None:
    """By hand: a quarter of the tensor on each device, all-reduced between 2: 2·(1/2)·S/4."""
    assert exchanged("megatron", "like_variable", Training("adam")) == {(GRADIENTS, "all-reduce"): WHOLE // 4}
    assert exchanged("megatron", "like_variable", Training("adam"), "1x4") == {}


def test_fsdp_scatters_gradients_and_gathers_parameters_twice() -> None:
    """Rajbhandari et al. (2020), "ZeRO", section 7.2: the third stage moves 3Ψ, here times (n−1)/n."""
    sent = exchanged("fsdp", "like_variable", Training("adam"), "batch=4")
    assert sent == {(GRADIENTS, "reduce-scatter"): WHOLE * 3 // 4, (FORWARD, "all-gather"): 2 * WHOLE * 3 // 4}


def test_zero1_gathers_the_new_parameters() -> None:
    sent = exchanged("replicated", "zero1", Training("adam"), "batch=4")
    assert sent == {(GRADIENTS, "all-reduce"): 2 * WHOLE * 3 // 4, (PARAMETERS, "all-gather"): WHOLE * 3 // 4}
    # Without slots nothing is sharded, unless averages are.
    assert (PARAMETERS, "all-gather") not in exchanged("replicated", "zero1", Training("sgd"), "batch=4")
    assert (PARAMETERS, "all-gather") in exchanged("replicated", "zero1", Training("sgd", ema=True), "batch=4")


def test_rules_over_whole_variables_exchange_more() -> None:
    lamb = exchanged("megatron", "zero1", Training("lamb"))
    assert lamb[SLOTS, "all-gather"] == 2 * (WHOLE // 4) // 2
    assert lamb[RULE, "all-reduce"] == 2 * 4 * 2 * 3 // 4
    muon = exchanged("megatron", "like_variable", Training("muon"))
    assert muon[RULE, "all-gather"] == 3 * WHOLE * 3 // 4
    adafactor = exchanged("megatron", "like_variable", Training("adafactor"))
    # r: means over the dim that is sharded, 4096 numbers; and two scalars.
    assert adafactor[RULE, "all-reduce"] == 2 * 3 * (4096 * 4 + 2 * 4) // 4


def test_norms_of_clipping_are_scalars() -> None:
    sent = exchanged("megatron", "like_variable", Training("adam", clip="global_clipnorm"))
    assert sent[NORMS, "all-reduce"] == 2 * 3 * 4 // 4
    assert exchanged("replicated", "like_variable", Training("adam", clip="clipnorm"), "1x4") == {}


def test_llama_on_eight_devices_of_16_gb() -> None:
    """6,738,415,616 parameters · 16 bytes / 8; megatron keeps the 65 norms of 4096 whole."""
    found = ranked(
        plans(workload("llama-7b"), meshes_of(8), tuple(LAYOUTS), PLACEMENTS, Training("adam"), None, 16 * 10**9)
    )
    first = found[0]
    assert (str(first.mesh), first.layout, first.placement) == ("batch=1,model=8", "megatron", "like_variable")
    assert first.held.total == 16 * ((6_738_415_616 - 65 * 4096) // 8 + 65 * 4096)
    assert all(p.held.total <= 16 * 10**9 for p in found if p.fits)
    assert not any(p.fits for p in found if p.layout == "replicated")


def test_step_time_is_traffic_over_speed() -> None:
    speeds = Speeds(memory=1e9, link=1e8)
    made = plan(workload("one16m"), parse_mesh("2x4"), "megatron", "like_variable", Training("adam"), speeds)
    assert made.update_bytes == 28 * 4096 * 4096 // 4
    assert made.update_seconds == pytest.approx(made.update_bytes / 1e9)
    assert made.exchange_seconds == pytest.approx(WHOLE / 4 / 1e8)
    shared = plan(
        workload("one16m"), parse_mesh("2x4"), "megatron", "like_variable", Training(), Speeds(1e9, None, None)
    )
    assert shared.update_seconds == pytest.approx(8 * made.update_bytes / 1e9)
    assert shared.exchange_seconds is None


@pytest.mark.parametrize(
    ("optimizer", "bytes_per_parameter"),
    [
        ("sgd", 12),
        ("momentum", 20),
        ("lion", 20),
        ("adadelta", 28),
        ("adam:amsgrad=true", 36),
        ("lamb", 40),
        ("adafactor", 24),
    ],
)
def test_least_traffic_per_parameter(optimizer: str, bytes_per_parameter: int) -> None:
    """Derived from the update rules in float32: every array of a pass read and written once."""
    made = plan(workload("one16m"), parse_mesh("1"), "replicated", "like_variable", Training(optimizer))
    assert made.update_bytes == bytes_per_parameter * 4096 * 4096


def test_zero1_traffic_is_that_of_the_shard_and_one_whole_write() -> None:
    made = plan(workload("one16m"), parse_mesh("batch=4"), "replicated", "zero1", Training("adam"))
    assert made.update_bytes == 28 * 4096 * 4096 // 4 + WHOLE


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("16GB", 16e9),
        ("16GiB", 16 * 2**30),
        ("1.5 kB", 1500),
        ("900GB/s", 9e11),
        ("12", 12),
        ("1e9", 1e9),
        ("2KiB", 2048),
    ],
)
def test_sizes(text: str, count: float) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "16 apples", "nan", "inf", "1e400", "16XB", "iB"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(OptionError, match="number of bytes"):
        parse_bytes(text)


def test_unknown_names() -> None:
    with pytest.raises(UnknownNameError, match="adafactor"):
        plan(MODEL, parse_mesh("2"), "megatron", "like_variable", Training("adamant"))
    with pytest.raises(UnknownNameError, match="bfloat16"):
        Training(dtype="int8")
    with pytest.raises(UnknownNameError, match="zero1"):
        plan(MODEL, parse_mesh("2"), "megatron", "zero2", Training())


def test_shapes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "shapes.json"
    file.write_text(json.dumps([[4, 2], {"name": "b", "shape": [2], "model_dim": 0}, {"shape": []}]))
    found = shapes.read(file)
    assert found.tensors == (Tensor("tensor0", (4, 2)), Tensor("b", (2,), 0), Tensor("tensor2", ()))


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({}, "list of shapes"),
        ([], "at least one"),
        ([[0]], "entry 0"),
        ([[2], "x"], "entry 1"),
        ([[True]], "entry 0"),
        ([{"shape": [2], "model_dim": 1}], "model_dim"),
        ([{"name": "a", "shape": [2]}, {"name": "a", "shape": [3]}], "twice"),
    ],
)
def test_bad_shapes(tmp_path: Path, document: Any, says: str) -> None:
    file = tmp_path / "shapes.json"
    file.write_text(json.dumps(document))
    with pytest.raises(OptionError, match=says):
        shapes.read(file)
