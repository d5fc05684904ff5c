"""`plan` is held against what `optim` reports on real meshes, and against figures worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from bench.cases import shapes
from bench.cases.algorithms import ALGORITHMS
from bench.cases.layouts import RULES as LAYOUTS
from bench.cases.layouts import parse_mesh, sharding
from bench.cases.workloads import Architecture, Tensor, Workload, workload
from bench.errors import OptionError, UnknownNameError
from bench.forecast import activations
from bench.forecast.devices import device as device_of
from bench.forecast.footprint import OF_OPTIM, PLACEMENTS, Training, footprint, parse_bytes, place
from bench.forecast.plans import Plan, Speeds, meshes_of, plan, plans, ranked
from bench.forecast.traffic import FORWARD, GRADIENTS, NORMS, PARAMETERS, RULE, SLOTS, collectives
from bench.scale.optimizers import make
from optim.layouts.sharding import UNSHARDED
from tests.helpers.breadth import broad, covering

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


UNMEASURED = {"Shampoo", "SOAP"}
"""Not in `dtopt bench`: docs/optimizers.md gives the reason."""


def test_every_optimizer_can_be_planned() -> None:
    import optim

    found = {name: getattr(optim, name) for name in optim.__all__}
    classes = {name for name, c in found.items() if isinstance(c, type) and issubclass(c, optim.Optimizer)}
    assert {known.class_name for known in ALGORITHMS} == classes - {"Optimizer", "RuleOptimizer", "Groups"} - UNMEASURED


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


@pytest.mark.parametrize("placement", OF_OPTIM)
@pytest.mark.parametrize("layout", ["megatron", *map(broad, sorted({*LAYOUTS} - {"megatron"}))])
@pytest.mark.quick(1)
def test_bytes_are_those_of_a_real_mesh(variables: Any, layout: str, placement: str) -> None:
    for name in OPTIMIZERS:
        compare(variables(layout, "float32"), layout, placement, Training(name))


@pytest.mark.breadth
@covering(1, dtype=["float32", "bfloat16", "float16", "float64"], placement=OF_OPTIM)
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


@pytest.mark.parametrize(("slot_dtype", "count"), [("bfloat16", 2), ("int8", 1)])
def test_slots_in_fewer_bits(slot_dtype: str, count: int) -> None:
    """A kernel of 128 x 64 numbers and a bias of 64, whose slots `zero1` divides by 4; four blocks have scales."""
    tensors = (Tensor("kernel", (128, 64)), Tensor("bias", (64,)))
    training = Training("adam:amsgrad=true", "float32", slot_dtype)
    mesh = parse_mesh("batch=4")
    placed = place(tensors, mesh, "replicated", "zero1", training)
    found = dict(footprint(placed, mesh, training).slots)
    of_bias = 64 // 4 * (2 if slot_dtype == "bfloat16" else 4)
    wanted = dict.fromkeys(("m", "v"), 128 * 64 // 4 * count + of_bias)
    wanted |= {"vhat": 4 * (128 * 64 + 64) // 4}
    wanted |= {"m_scale": 16, "v_scale": 16} if slot_dtype == "int8" else {}
    assert found == wanted


def test_bytes_in_fewer_bits_are_those_of_optim() -> None:
    import optim

    variables = [tf.Variable(tf.zeros(shape)) for shape in ((128, 64), (64,))]
    tensors = [Tensor(name, tuple(v.shape)) for name, v in zip(("kernel", "bias"), variables, strict=True)]
    for slot_dtype in ("bfloat16", "int8"):
        optimizer = optim.Adam(slot_dtype=slot_dtype)
        optimizer.build(variables)
        training = Training(slot_dtype=slot_dtype)
        mesh = parse_mesh("batch=1")
        found = footprint(place(tensors, mesh, "replicated", "like_variable", training), mesh, training)
        assert found.slot_bytes == sum(optimizer.memory_report().slot_bytes.values())


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"slot_dtype": "int4"}, "int4"),
        ({"slot_dtype": "int8", "dtype": "float64"}, "float64"),
        ({"slot_dtype": "int8", "optimizer": "ftrl"}, "no slot"),
    ],
)
def test_a_slot_dtype_without_effect_is_refused(how: dict[str, str], text: str) -> None:
    with pytest.raises((UnknownNameError, OptionError), match=text):
        Training(**how)


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


MIXED = Training("adam", "bfloat16", master_copies=True, batch=2048)
"""As people train: 2 + 2 bytes for parameter and gradient, 12 for master copy and moments."""


def best(devices: int, name: str, model: str | Workload = "llama-7b", training: Training = MIXED) -> Plan:
    """What is recommended for so many devices of a kind."""
    known = device_of(name)
    speeds = Speeds(known.bandwidth, flops=known.flops, device=known)
    chosen = workload(model) if isinstance(model, str) else model
    found = ranked(plans(chosen, meshes_of(devices), ("megatron",), PLACEMENTS, training, speeds, known.memory))
    assert found[0].fits
    assert found[0].possible
    assert all(p.footprint.total <= known.memory for p in found if p.fits)
    return found[0]


def test_llama_on_eight_devices_is_data_parallel_with_its_slots_sharded() -> None:
    """What ZeRO's authors and FSDP's users do: no tensor parallelism where a copy fits. By hand: 2 and 2 bytes of each
    parameter, and an eighth of 12."""
    found = best(8, "a100-80gb")
    assert (str(found.mesh), found.placement) == ("batch=8,model=1", "zero1")
    n = 6_738_415_616
    assert found.footprint.parameters == found.footprint.gradients == 2 * n
    assert found.footprint.slot_bytes == 12 * n // 8


def test_without_a_batch_every_mesh_has_the_one_it_was_trained_with() -> None:
    """4 million tokens (Touvron et al. 2023): not more for each replica, which would favour few of them."""
    training = replace(MIXED, batch=None)
    assert best(8, "a100-80gb", training=training) == best(8, "a100-80gb")
    assert best(4096, "a100-80gb", "gpt2", training).batch == 4096


def test_llama_on_4096_devices_splits_tensors_within_a_node_only() -> None:
    """Megatron-LM (Narayanan et al. 2021, section 5.4.1): tensor parallelism up to the eight devices of a node. The
    batch of 2,048 sequences cannot be divided over 4,096, so some of it is needed; all of it would be the slowest."""
    found = best(4096, "a100-80gb")
    assert 2 <= found.split <= 8
    assert found.mesh.devices // found.split <= 2048


def _gpt(layers: int, hidden: int, heads: int) -> Workload:
    """A GPT of Megatron-LM's table 1, vocabulary 51,200 and sequences of 2,048 tokens."""
    block = (("qkv", (hidden, 3 * hidden), 1), ("out", (hidden, hidden), 0), ("up", (hidden, 4 * hidden), 1))
    named = [
        Tensor(f"h{i}/{name}", shape, dim)
        for i in range(layers)
        for name, shape, dim in (*block, ("down", (4 * hidden, hidden), 0))
    ]
    known = Architecture(layers, hidden, heads, 2048, 51200)
    return Workload("gpt", "", (Tensor("embedding", (51200, hidden), 0), *named), known)


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "devices", "batch", "split"),
    [(24, 2304, 24, 32, 512, 1), (30, 3072, 32, 64, 512, 2), (36, 4096, 32, 128, 512, 4), (40, 6144, 48, 256, 1024, 8)],
)
def test_published_configurations_of_megatron_fit_and_are_near_what_is_recommended(
    layers: int, hidden: int, heads: int, devices: int, batch: int, split: int
) -> None:
    """Narayanan et al. 2021, table 1: 1.7, 3.6, 7.5 and 18.4 billion parameters on A100 of 80 GB, no slots sharded,
    whole layers recomputed; the published tensor-parallel size fits, and ours is at most a factor of two from it."""
    training = Training("adam", "float16", master_copies=True, batch=batch, checkpointing="full")
    model, known = _gpt(layers, hidden, heads), device_of("a100-80gb")
    speeds = Speeds(known.bandwidth, flops=known.flops, device=known)
    made = plans(model, meshes_of(devices), ("megatron",), ("like_variable",), training, speeds, known.memory)
    found = {one.split: one for one in made}
    assert found[split].fits
    assert split / 2 <= ranked(made)[0].split <= 2 * split


def _palm() -> tuple[Workload, Training]:
    """540 billion parameters in 118 layers (about 4.4e9 numbers of each), Adafactor, parameters in float32."""
    tensors = [Tensor(f"h{i}", (18432, 13 * 18432), 1) for i in range(118)]
    model = Workload("palm", "", tuple(tensors), Architecture(118, 18432, 48, 2048, 256_000))
    return model, Training("adafactor", batch=2048, checkpointing="full")


def test_palms_configuration_fits_a_tpu_v4_pod() -> None:
    """Chowdhery et al. 2022, section 4: 12-way model and 256-way fully sharded data parallelism in each pod; no plan
    without sharded parameters fits."""
    model, training = _palm()
    made = {
        placement: plan(model, parse_mesh("256x12"), "megatron", placement, training, None, device_of("v4").memory)
        for placement in ("like_variable", "zero3")
    }
    assert made["zero3"].fits
    assert not made["like_variable"].fits


def test_palms_configuration_of_two_pods_is_among_the_first_that_are_recommended() -> None:
    """The same section: 6,144 chips, two pods of 3,072 that data parallelism alone joins. What stands before it takes
    less than a hundredth less time."""
    model, training = _palm()
    known = device_of("tpu-v4")
    speeds = Speeds(known.bandwidth, flops=known.flops, device=known)
    found = ranked(plans(model, meshes_of(6144), ("megatron",), ("zero3",), training, speeds, known.memory))
    first = [str(one.mesh) for one in found[:3]]
    assert "batch=512,model=12" in first
    published = found[first.index("batch=512,model=12")]
    assert published.fits
    assert published.seconds is not None
    assert published.seconds < 1.01 * min(one.seconds or 0.0 for one in found if one.fits)


def test_gpt3_on_1024_devices_is_split_within_a_node() -> None:
    """Narayanan et al. 2021, table 1: 175 billion parameters, tensor-parallel over 8. Their pipelines, which nothing
    here has, are not there to hold the rest, so that gradients and slots are sharded."""
    training = Training("adam", "float16", master_copies=True, batch=1536, checkpointing="full")
    found = best(1024, "a100-80gb", _gpt(96, 12288, 96), training)
    assert (str(found.mesh), found.placement) == ("batch=128,model=8", "zero2")
    assert found.footprint.parameters == pytest.approx(2 * 174.6e9 / 8, rel=0.01)
    assert found.footprint.slot_bytes == pytest.approx(12 * 174.6e9 / 1024, rel=0.01)


@pytest.mark.parametrize("name", ["resnet50", "dlrm-small"])
def test_models_of_unknown_activations_are_not_split_where_a_copy_fits(name: str) -> None:
    """What tensor parallelism would send for them is not known, and nothing is not what it is."""
    assert best(8, "a100-80gb", name, Training()).split == 1


def test_the_large_table_of_a_recommender_is_split_where_no_copy_fits() -> None:
    tensors = (Tensor("table", (80_000_000, 128), 0, table=True), *workload("dlrm-small").tensors[1:])
    found = best(8, "a100-40gb", Workload("recommender", "", tensors), Training("adagrad"))
    assert 1 < found.split <= 8
    assert any("table" in note and "dense" in note for note in found.notes)


def test_stages_of_zero_by_hand() -> None:
    """One matrix of 64 x 64 on 4 data devices, float32 Adam: 16 kB whole; a stage divides slots, then gradients, then
    parameters by 4; the third sends half as much again (Rajbhandari et al. 2020, section 7)."""
    model = Workload("one", "", (Tensor("w", (64, 64)),))
    found = [plan(model, parse_mesh("4x1"), "megatron", stage, Training()) for stage in PLACEMENTS]
    assert [(p.footprint.parameters, p.footprint.gradients, p.footprint.slot_bytes) for p in found] == [
        (16384, 16384, 32768),
        (16384, 16384, 8192),
        (16384, 4096, 8192),
        (4096, 4096, 8192),
    ]
    sent = [p.sent for p in found]
    assert sent[0] == 2 * 3 * 16384 // 4
    assert (sent[2], sent[3]) == (sent[0], sent[0] * 3 // 2)


def test_activations_by_hand() -> None:
    """Korthikanti et al. 2022, equation 3, for s=2, b=1, h=4, a=1, one layer: 8 · (10 + 24/2) bytes over two devices,
    and 5·a·s²·b/2 more where the attention is kept."""
    model = Architecture(1, 4, 1, 2, 0)
    assert activations.stored_bytes(model, 2, 1, 2, "selective", 2) == 8 * 22
    assert activations.stored_bytes(model, 2, 1, 2, "none", 2) == 8 * 22 + 10
    assert activations.reduced(model, 2, 3, "selective", 2) == 4 * 2 * 3 * 4 * 2
    assert activations.reduced(model, 2, 3, "full", 2) == 6 * 2 * 3 * 4 * 2


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
        ("radam", 28),
        ("novograd", 24),
        ("lars", 28),
        ("adan", 44),
        ("schedule-free-adamw", 28),
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
        plan(MODEL, parse_mesh("2"), "megatron", "zero9", Training())


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
