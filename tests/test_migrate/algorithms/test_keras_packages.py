"""Optimizers of packages beside Keras 2: their own next steps taken by `optim`, once the class is confirmed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import migrate
import optim
from optim.errors import UnsupportedError
from tests.alterations.hdf5 import training_config
from tests.helpers import next_steps
from tests.places import CORPUS, PACKAGES
from tests.test_migrate.confirm import confirmed

TAKEN = {
    "keras224-adamw": "Adam",
    "keras224-nadamw": "Nadam",
    "keras224-sgdw-decay": "SGD",
    "keras224-yogi": "Yogi",
    "keras224-lars": "SGD",
    "tf115-adamw": "Adam",
    "tf115-radam": "RectifiedAdam",
    "tf115-radam-amsgrad": "RectifiedAdam",
}
"""Case -> the class of `optim`."""


@pytest.mark.parametrize("name", TAKEN)
def test_the_packages_own_next_steps_are_taken(name: str, tmp_path: Path) -> None:
    source, oracle = PACKAGES / f"{name}.h5", np.load(PACKAGES / f"{name}.npz")
    state = migrate.read(source)
    assert state.fidelity == "approximate"
    assert "by its config dtopt assumes the one of keras-" in state.reasons[0]
    report = migrate.migrate_checkpoint(source, tmp_path / "slots", overrides=confirmed(source))
    assert report.fidelity == "exact", report.reasons
    info = optim.describe_checkpoint(tmp_path / "slots")
    assert info.algorithm == TAKEN[name]
    assert (
        next_steps.of_slots(tmp_path / "slots", oracle, 3, [v.name for v in info.variables], saved="save/")
        < next_steps.NEAR
    )


@pytest.mark.parametrize("passes", [False, True])
def test_horovod_is_asked_how_many_batches_it_sums(passes: bool, tmp_path: Path) -> None:
    """Where it sums several it steps in a branch of `tf.cond`."""
    case = PACKAGES / ("tf29-horovod-passes" if passes else "tf29-horovod")
    source, oracle = case.with_suffix(".h5"), np.load(case.with_suffix(".npz"))
    report = migrate.migrate_checkpoint(source, tmp_path / "slots")
    named, *more = report.reasons
    assert named.startswith("the optimizer is named DistributedAdam, as Horovod names it")
    assert [reason.partition(" was created")[0] for reason in more] == [
        "gradients: 'cond_1/DistributedAdam/iter:0'"
    ] * passes
    state = migrate.read(source, overrides={"name": "DistributedAdam"})
    assert state.fidelity == ("approximate" if passes else "exact")
    names = [v.name for v in optim.describe_checkpoint(tmp_path / "slots").variables]
    steps = next_steps.of_slots(tmp_path / "slots", oracle, 3, names, saved="save/")
    assert (steps > next_steps.NEAR) is passes


@pytest.mark.parametrize("name", ["tf115-adamw-annealed", "tf115-nadamw"])
def test_what_no_rule_here_does_is_refused_and_carried_for_ones_own(name: str) -> None:
    with pytest.raises(UnsupportedError, match=r"no rule here does; to migrate its state .* --set own_rule=true"):
        migrate.read(PACKAGES / f"{name}.h5")
    assert migrate.read(PACKAGES / f"{name}.h5", overrides={"own_rule": True}).fidelity == "approximate"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lr_multipliers": {"first": 0.1}}, "multiplies the rate by layer"),
        ({"eta_t": 0.5}, "anneals its rate"),
        ({"weight_decays": {"first/kernel:0": [0.01, 0.0]}}, "decays weights by their signs"),
        ({"weight_decays": {"first/kernel:0": [0, 0.01], "mid/kernel:0": [0, 0.02]}}, "by different amounts"),
    ],
)
def test_options_of_keras_adamw_that_are_not_known_are_refused(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        migrate.read(_altered("keras224-adamw", changes, tmp_path))


def test_a_weight_that_is_not_there_is_told(tmp_path: Path) -> None:
    source = _altered("keras224-adamw", {"weight_decays": {"renamed/kernel:0": [0, 0.01]}}, tmp_path)
    assert any("names renamed/kernel:0, and no variable is called so" in r for r in migrate.read(source).reasons)
    sure = migrate.read(source, overrides={"class_name": "AdamW"})
    assert sure.fidelity == "approximate"


def test_a_wrapper_of_a_package_is_refused_by_name(tmp_path: Path) -> None:
    """As keras-lr-multiplier 0.9 and keras-lookahead 0.9 save themselves around Keras's Adam."""
    source = _altered("keras224-adamw", {}, tmp_path)
    inner = {"class_name": "Adam", "config": {"lr": 0.01}}
    for name, settings in (("LRMultiplier", {"multipliers": {"first": 0.1}}), ("Lookahead", {"slow_step": 0.5})):
        _set_optimizer(source, {"class_name": name, "config": {"optimizer": inner, **settings}})
        with pytest.raises(UnsupportedError, match=f"^{name} of keras-.* Restart from the weights"):
            migrate.read(source)


def _altered(name: str, changes: dict[str, Any], folder: Path) -> Path:
    copy = folder / "model.h5"
    copy.write_bytes((PACKAGES / f"{name}.h5").read_bytes())
    with h5py.File(copy, "r") as file:
        optimizer = json.loads(file.attrs["training_config"])["optimizer_config"]
    _set_optimizer(copy, {**optimizer, "config": {**optimizer["config"], **changes}})
    return copy


def _set_optimizer(source: Path, optimizer: dict[str, Any]) -> None:
    with training_config(source) as training:
        training["optimizer_config"] = optimizer


@pytest.mark.parametrize("option", [{"adapt": False}, {"bias_correction": True}, {"lazy": False}, {"partial": 0}])
def test_an_option_that_no_release_saved_tells_of_another_class(option: dict[str, Any], tmp_path: Path) -> None:
    source = tmp_path / "model.h5"
    source.write_bytes((CORPUS / "tf29-adam-clipnorm-decay-nested/source/model.h5").read_bytes())
    assert migrate.read(source).fidelity == "exact"
    with h5py.File(source, "r") as file:
        optimizer = json.loads(file.attrs["training_config"])["optimizer_config"]
    _set_optimizer(source, {**optimizer, "config": {**optimizer["config"], **option}})
    reason = f"the config has {next(iter(option))}, which Adam has in no release: it may be another class of that name"
    assert any(reason in message and "--set class_name=Adam" in message for message in migrate.read(source).reasons)
