"""`--to list`: what a list held comes back, in the order of the generation that shall read it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from migrate.errors import AmbiguousError, MissingHintError, TargetExistsError
from migrate.lists.planning import plan
from optim.errors import DtoptError, HyperparameterError, UnsupportedError
from tests.places import CORPUS

H5 = "keras224-adam-eps-none-nested"
ROUND_TRIPS = {
    "keras224-adadelta-mlp": "keras2",
    "keras224-adam-eps-none-nested": "keras2:2",
    "keras224-nadam-mlp": "keras2",
    "keras224-sgd-momentum-convbn": "keras2",
    "keras231-adagrad-decay-eps-nested": "keras2.3",
    "keras231-adam-amsgrad-mlp": "keras2.3",
    "keras231-nadam-eps-convbn": "keras2.3",
    "extra-k224-adadelta-decay-mlp-npz": "keras2",
    "tf20-ftrl-mlp": "optimizer_v2",
    "tf20-rmsprop-centered-momentum-embed": "optimizer_v2",
    "tf24-adam-convbn": "optimizer_v2",
    "tf215-new-adafactor-mlp": "optimizer:1",
    "tf215-new-lion-embed": "optimizer",
    "tf215-new-rmsprop-mlp": "optimizer",
    "tf215-new-sgd-gclip-weights-mlp": "optimizer",
}


def _load(path: Path) -> list[np.ndarray]:
    with np.load(path) as file:
        return [file[f"arr_{i}"] for i in range(len(file.files))]


def _saved_list(case: Any) -> list[np.ndarray]:
    """The list as the release gave it. The oracle keeps every array as float32; the counters of these were int64."""
    count = sum(key.startswith("at_save/opt/") for key in case.oracle.files)
    arrays = [case.oracle[f"at_save/opt/{i}"] for i in range(count)]
    return [arrays[0].astype(np.int64), *arrays[1:]] if arrays[0].shape == () else arrays


@pytest.mark.parametrize("name", sorted(ROUND_TRIPS))
def test_a_list_comes_back_as_it_was(name: str, tmp_path: Path, load_case: Any) -> None:
    case = load_case(name)
    before = _saved_list(case)
    assert before
    optimizer = case.document["optimizer"]
    hints = {
        "optimizer_config": {"class_name": optimizer["class"], "config": optimizer["config"]},
        "variables": [{"name": v["name"], "shape": v["shape"]} for v in case.document["trainable"]],
        "generation": case.generation,
    }
    np.savez(tmp_path / "before.npz", *before)
    migrate.migrate_checkpoint(tmp_path / "before.npz", tmp_path / "slots", **hints)
    migrate.migrate_checkpoint(tmp_path / "slots", tmp_path / "after.npz", to="list", order=ROUND_TRIPS[name])
    after = _load(tmp_path / "after.npz")
    assert [(a.shape, a.dtype) for a in after] == [(a.shape, a.dtype) for a in before]
    for a, b in zip(after, before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_list_of_another_generation_reads_back_as_the_same_state(tmp_path: Path, load_case: Any) -> None:
    case = load_case(H5)
    state = migrate.read(case.source)
    report = migrate.migrate_checkpoint(case.source, tmp_path / "out.npz", to="list", order="optimizer")
    assert (report.fidelity, report.target) == ("exact", "list")
    assert "iterations, (m, v) of each variable" in report.warnings[-1]
    again = migrate.read(
        tmp_path / "out.npz",
        optimizer_config={"class_name": "Adam", "config": {"learning_rate": 0.001, "epsilon": 1e-7}},
        variables=[{"name": v.name, "shape": v.shape} for v in state.variables if v.trainable],
        generation="optimizer",
    )
    assert again.iterations == state.iterations
    for slot, owners in state.slots.items():
        for name, array in owners.items():
            np.testing.assert_array_equal(again.slots[slot][name].load(), array.load())


def test_another_rule_is_said(load_case: Any, tmp_path: Path) -> None:
    case = load_case("keras231-adagrad-decay-eps-nested")
    target: dict[str, Any] = {"to": "list", "order": "keras3", **case.hints}
    report = migrate.migrate_checkpoint(case.source, tmp_path / "a.npz", dry_run=True, **target)
    assert report.fidelity == "approximate"
    assert any("epsilon_inside is False here" in reason and "keras3" in reason for reason in report.reasons)
    assert any(reason.startswith("decay is ") for reason in report.reasons)
    with pytest.raises(DtoptError, match="refused by --strict"):
        migrate.migrate_checkpoint(case.source, tmp_path / "a.npz", strict=True, **target)
    assert os.listdir(tmp_path) == []


def test_rows_that_another_generation_moves_are_said(load_case: Any) -> None:
    state = migrate.read(load_case("tf20-rmsprop-centered-momentum-embed").source)
    assert state.hyperparameters["lazy_rows"]
    assert not plan(state, "optimizer_v2").reasons
    assert any(reason.startswith("lazy_rows: ") for reason in plan(state, "optimizer").reasons)


def test_steps_without_a_place_are_said(load_case: Any) -> None:
    case = load_case("keras231-adagrad-decay-eps-nested")
    state = migrate.read(case.source, **case.hints)
    assert any("no place for the" in reason for reason in plan(state, "keras2").reasons)


@pytest.mark.parametrize(
    ("order", "error", "says"),
    [
        ("tf1", UnsupportedError, "no get_weights"),
        ("keras2", AmbiguousError, r"keras2:1 is .*keras2:2 is"),
        ("keras2:7", HyperparameterError, "keras2:7"),
        ("keras4", HyperparameterError, "keras4"),
    ],
)
def test_orders_that_do_not_do_say_what_does(order: str, error: type[Exception], says: str, load_case: Any) -> None:
    state = migrate.read(load_case(H5).source)
    with pytest.raises(error, match=says):
        plan(state, order)


def test_slots_that_mean_something_else_are_refused(load_case: Any) -> None:
    state = migrate.read(load_case("tf20-rmsprop-centered-momentum-embed").source)
    with pytest.raises(UnsupportedError, match="learning_rate_in_momentum"):
        plan(state, "experimental")
    with pytest.raises(UnsupportedError, match="has the slots velocity, momentum, average_gradient"):
        plan(state, "keras2.3")


def test_a_state_that_does_not_know_its_generation_asks(load_case: Any) -> None:
    from dataclasses import replace

    state = migrate.read(load_case(H5).source)
    with pytest.raises(MissingHintError, match="--order"):
        plan(replace(state, source=None), None)
    assert plan(migrate.read(load_case("tf24-adam-convbn").source), None).generation == "optimizer_v2"


def test_only_a_list_is_replaced(load_case: Any, tmp_path: Path) -> None:
    source, dest = load_case("tf24-adam-convbn").source, tmp_path / "out.npz"
    migrate.migrate_checkpoint(source, dest, to="list")
    first = dest.read_bytes()
    with pytest.raises(TargetExistsError):
        migrate.migrate_checkpoint(source, dest, to="list")
    migrate.migrate_checkpoint(source, dest, to="list", order="keras2.3", overwrite=True)
    assert dest.read_bytes() != first
    dest.write_text("a diary")
    with pytest.raises(TargetExistsError, match="no get_weights"):
        migrate.migrate_checkpoint(source, dest, to="list", overwrite=True)
    assert dest.read_text() == "a diary"
    with pytest.raises(HyperparameterError, match=r"\.npz"):
        migrate.migrate_checkpoint(source, tmp_path / "out.h5", to="list")
    with pytest.raises(HyperparameterError, match="--order"):
        migrate.migrate_checkpoint(source, tmp_path / "out", order="keras2")
    assert os.listdir(tmp_path) == ["out.npz"]


def test_batches_write_lists_and_resume_them(load_case: Any, tmp_path: Path) -> None:
    sources = [load_case(name).source for name in ("tf24-adam-convbn", "tf29-adam-clipnorm-decay-nested")]
    assert migrate.migrate_batch(sources, tmp_path / "out", to="list").counts == {"migrated": 2}
    assert all(name.endswith(".npz") for name in os.listdir(tmp_path / "out"))
    assert migrate.migrate_batch(sources, tmp_path / "out", to="list", resume=True).counts == {"skipped": 2}
    again = migrate.migrate_batch(sources, tmp_path / "out", to="list", order="keras3", resume=True)
    assert again.counts == {"failed": 2}


def test_a_list_of_tf_29_has_the_rate_that_a_schedule_gives_now(tmp_path: Path) -> None:
    """Its optimizers keep that in a variable, and assign it before each step."""
    source = CORPUS / "extra-tf10-adam-polynomial-saver" / "source" / "model.ckpt"
    migrate.migrate_checkpoint(source, tmp_path / "list.npz", to="list", order="experimental:3")
    rate = _load(tmp_path / "list.npz")[0]
    assert rate.shape == ()
    assert rate == np.float32((0.05 - 0.001) * (1 - 4 / 8) ** 2 + 0.001)  # polynomial, at step 4 of 8
