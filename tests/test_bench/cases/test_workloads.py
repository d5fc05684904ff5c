"""The shape tables against published totals."""

from __future__ import annotations

import pytest

from bench.cases.workloads import NAMES, workload
from bench.errors import UnknownNameError

TOTALS = {
    "gpt2": (124_439_808, 148),
    "gpt2:layer": (7_087_872, 12),
    "resnet50": (25_557_032, 161),
    "bert-base": (109_482_240, 199),
    "vit-b16": (86_567_656, 152),
    "transformer-big": (209_842_176, 185),
    "dlrm-small": (539_267_457, 17),
    "llama-7b": (6_738_415_616, 291),
    "llama-7b:layer": (202_383_360, 9),
    "one16m": (16_777_216, 1),
    "many-small": (64_000, 1000),
    "huge-and-tiny": (16_777_216 + 64_000, 1001),
    "ragged": (997 * 1009 + 1009 * 1013 + 1013 * 1019 + 1019 * 1021 + 1021 * 1031 + 5093, 10),
    "embedding": (131_072 * 64 + 64 * 256 + 256 + 256 + 1, 5),
    "embedding:1m": (64_000_000, 1),
}


def test_every_workload_has_a_published_total() -> None:
    assert set(TOTALS) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_totals(name: str) -> None:
    found = workload(name)
    assert (found.elements, len(found.tensors)) == TOTALS[name]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_unique_and_split_dims_exist(name: str) -> None:
    tensors = workload(name).tensors
    assert len({tensor.name for tensor in tensors}) == len(tensors)
    for tensor in tensors:
        assert tensor.model_dim is None or 0 <= tensor.model_dim < len(tensor.shape)


def test_gpt2_has_98_small_tensors() -> None:
    assert sum(tensor.elements <= 8192 for tensor in workload("gpt2").tensors) == 98


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(UnknownNameError, match="gpt2, gpt2:layer, resnet50"):
        workload("gpt3")
