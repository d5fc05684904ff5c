"""Meshes as text, and the layout rules with their fallbacks."""

from __future__ import annotations

import pytest

from bench.cases.case import Case
from bench.cases.layouts import RULES, elements_on_all_devices, parse_mesh, sharding
from bench.cases.workloads import NAMES, Tensor, workload
from bench.errors import OptionError, UnknownNameError


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("batch=2,model=4", (("batch", 2), ("model", 4))),
        ("data=3", (("data", 3),)),
        ("2x4", (("batch", 2), ("model", 4))),
        ("2", (("model", 2),)),
    ],
)
def test_mesh_text(text: str, axes: tuple[tuple[str, int], ...]) -> None:
    mesh = parse_mesh(text)
    assert mesh.axes == axes
    assert parse_mesh(str(mesh)) == mesh


@pytest.mark.parametrize("text", ["", "model", "0", "model=0", "a=1,a=2", "2x2x2", "=2", "batch=2,", "-1x2"])
def test_bad_mesh_text(text: str) -> None:
    with pytest.raises(OptionError, match="mesh"):
        parse_mesh(text)


def test_megatron_splits_columns_rows_and_column_biases() -> None:
    mesh = parse_mesh("2x2")
    axes = {t.name: sharding("megatron", t, mesh).axes for t in workload("gpt2:layer").tensors}
    assert axes["h0/mlp/in/kernel"] == (None, "model")
    assert axes["h0/mlp/in/bias"] == ("model",)
    assert axes["h0/mlp/out/kernel"] == ("model", None)
    assert axes["h0/mlp/out/bias"] == (None,)
    assert axes["h0/ln_1/scale"] == (None,)


def test_what_does_not_divide_is_split_elsewhere_and_says_so() -> None:
    layout = sharding("megatron", workload("gpt2").tensors[0], parse_mesh("2"))
    assert layout.axes == (None, "model")
    assert layout.note == "wte (50257, 768): dim 0 does not divide by 2: dim 1 is split over model instead"


def test_what_divides_nowhere_is_whole_and_says_so() -> None:
    layout = sharding("fsdp", Tensor("odd", (3, 5)), parse_mesh("batch=2"))
    assert layout.axes == (None, None)
    assert layout.note == "odd (3, 5): dim 0 does not divide by 2: every device holds it whole"


def test_kerashub_turns_embeddings_row_kernels_and_heads() -> None:
    mesh = parse_mesh("2x2")
    axes = {t.name: sharding("kerashub", t, mesh).axes for t in workload("llama-7b").tensors}
    assert axes["embedding"] == ("model", "batch")
    assert axes["layer0/attention/query"] == ("model", "batch")
    assert axes["layer0/attention/out"] == ("model", "batch")
    assert axes["layer0/mlp/gate"] == ("batch", "model")
    assert axes["layer0/mlp/down"] == ("model", "batch")
    assert axes["norm"] == (None,)
    odd = sharding("kerashub", Tensor("w", (3, 8), 1), mesh)
    assert odd.axes == (None, "model")
    assert odd.note == "w (3, 8): dim 0 does not divide by 2: not split over it"
    alone = sharding("kerashub", Tensor("w", (4, 8), 1), parse_mesh("model=2"))
    assert sorted(map(str, alone.axes)) == ["None", "model"]


def test_fsdp_splits_dim_0_over_batch() -> None:
    assert sharding("fsdp", Tensor("w", (4, 6)), parse_mesh("2x3")).axes == ("batch", None)


def test_largest_axis_takes_the_largest_dims_first() -> None:
    assert sharding("largest-axis", Tensor("w", (6, 8)), parse_mesh("batch=2,model=3")).axes == ("model", "batch")
    layout = sharding("largest-axis", Tensor("b", (8,)), parse_mesh("2x2"))
    assert layout.axes == ("batch",)
    assert layout.note == "b (8,): no dim is left for model"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", NAMES)
def test_every_split_is_even_and_uses_an_axis_once(rule: str, name: str) -> None:
    mesh = parse_mesh("batch=2,model=4")
    sizes = dict(mesh.axes)
    for tensor in workload(name).tensors:
        used = [axis for axis in sharding(rule, tensor, mesh).axes if axis]
        assert len(set(used)) == len(used)
        for size, axis in zip(tensor.shape, sharding(rule, tensor, mesh).axes, strict=True):
            assert axis is None or size % sizes[axis] == 0


def test_replicas_count_as_updated_elements() -> None:
    tensor, mesh = Tensor("w", (4, 4), 1), parse_mesh("2x2")
    assert elements_on_all_devices(tensor, sharding("megatron", tensor, mesh), mesh) == 32
    case = Case("one16m", "adam", mesh, "replicated")
    assert case.mesh_elements == 4 * case.elements


def test_unknown_rule() -> None:
    with pytest.raises(UnknownNameError, match="megatron, kerashub, fsdp"):
        sharding("none", Tensor("w", (2,)), parse_mesh("2"))


def test_a_case_survives_the_pipe() -> None:
    case = Case("gpt2", "adam", parse_mesh("2x2"), "fsdp", "cpu", seed=3, threads=2)
    assert Case.from_message(case.to_message()) == case
