"""Least traffic of a step against the table worked out by hand (bytes per float32 parameter)."""

from __future__ import annotations

import pytest

from bench.cases import traffic
from bench.cases.case import Case
from bench.cases.layouts import parse_mesh
from bench.cases.options import Options

BYTES = {
    "sgd": 12,
    "sgd:momentum=0.9": 20,
    "adagrad": 20,
    "rmsprop": 20,
    "lion": 20,
    "rmsprop:momentum=0.9": 28,
    "rmsprop:centered=true": 28,
    "adadelta": 28,
    "adam": 28,
    "adamw": 28,
    "nadam": 28,
    "adamax": 28,
    "ftrl": 28,
    "adam:amsgrad=true": 36,
    "rmsprop:momentum=0.9:centered=true": 36,
    "lamb": 40,
}


def case(optimizer: str = "adam", workload: str = "gpt2:layer", **options: object) -> Case:
    return Case(workload, optimizer, parse_mesh("2"), "megatron", options=Options(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("optimizer", BYTES)
def test_bytes_per_parameter(optimizer: str) -> None:
    assert traffic.bytes_per_parameter(case(optimizer)) == BYTES[optimizer]


@pytest.mark.parametrize(
    ("options", "added"),
    [
        ({"clip": "value=1"}, 0),
        ({"clip": "norm=1"}, 4),
        ({"clip": "global_norm=1"}, 4),
        ({"ema": 0.9}, 8),
        ({"weight_decay": 0.1}, 0),
        ({"accumulate": 3}, 24),
        ({"dtype": "bfloat16"}, -14),
    ],
)
def test_options_add_to_it(options: dict[str, object], added: int) -> None:
    assert traffic.bytes_per_parameter(case(**options)) == 28 + added


def test_adafactor_keeps_almost_nothing_and_muon_one_slot_of_matrices() -> None:
    assert 24 < traffic.bytes_per_parameter(case("adafactor", "one16m")) < 24.01
    assert traffic.bytes_per_parameter(case("muon", "one16m")) == 20
    assert traffic.bytes_per_parameter(case("muon", "many-small")) == 28
    assert traffic.bytes_per_parameter(case("muon", "embedding")) < 20.2


def test_touched_rows_cost_their_part_of_the_table() -> None:
    assert traffic.touched_bytes(case()) is None
    shown = case(workload="embedding", sparse_rows=1024)
    tower = 64 * 256 + 256 + 256 + 1
    assert traffic.touched_bytes(shown) == 28 * (1024 * 64 + tower)


def test_working_set_counts_every_array() -> None:
    assert traffic.working_set(case(workload="one16m"), on_mesh=True) == 4 * 4 * 4096**2
    more = case("sgd", "one16m", ema=0.9, accumulate=2, dtype="bfloat16")
    assert traffic.working_set(more, on_mesh=False) == 2 * 4 * 4096**2


def test_muon_splits_tensors_as_its_rule_does() -> None:
    muon = case("muon", "bert-base")
    slots = {tensor.name: set(muon.algorithm.slots_of(tensor)) for tensor in muon.tensors}
    assert slots["embeddings/word"] == slots["embeddings/norm/scale"] == {"m", "v"}
    assert slots["layer0/mlp/in/kernel"] == {"m"}
