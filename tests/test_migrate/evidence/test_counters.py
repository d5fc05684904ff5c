"""Step counters and powers that the slots, or arithmetic, deny."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

import migrate
from migrate.errors import ContradictionError, DamagedFileError
from migrate.facts import counter
from migrate.releases.narrowing import candidates
from migrate.releases.versions import Versions
from optim.errors import HyperparameterError
from tests import adversary
from tests.alterations import Case
from tests.helpers import next_steps
from tests.places import CORPUS, KERAS
from tests.test_migrate.confirm import confirmed, typed


def _altered(name: str, folder: Path, *what: str) -> Case:
    """A copy of a case with some of `tests.alterations`, and everything else confirmed."""
    case = adversary.case(CORPUS / name)
    overrides = confirmed(case.folder / case.source, **case.hints)
    overrides.pop("iterations", None)
    alterations = [alteration for alteration in case.alterations() if alteration.what in what]
    hints = copy.deepcopy({**case.hints, "overrides": overrides})
    shutil.copytree(case.folder, folder / "source")
    for alteration in alterations:
        alteration.alter(folder / "source", hints)
    assert {alteration.what for alteration in alterations} == set(what)
    return Case(folder / "source", case.source, hints)


@pytest.mark.parametrize(
    ("name", "counter", "slot"),
    [
        ("keras231-adagrad-decay-eps-nested", "weights[0]", "accumulator"),
        ("tf24-adagrad-decay-iav-nested", "weights[0]", "accumulator"),
        ("extra-k122-adam-clip-saver", "Variable", "m and slot v"),
    ],
)
def test_slots_that_have_moved_deny_a_counter_of_no_steps(name: str, counter: str, slot: str, tmp_path: Path) -> None:
    """The next steps were 4e4 times what rounding explains off, and exact."""
    case = _altered(name, tmp_path, f"{counter} is 0.0")
    report = migrate.migrate_checkpoint(case.folder / case.source, tmp_path / "out", dry_run=True, **case.hints)
    (reason,) = report.reasons
    assert reason.startswith(f"iterations is 0, and slot {slot} is not as it is before the first step")


def test_slots_of_nobody_deny_a_counter_of_no_steps(tmp_path: Path) -> None:
    """Where the object graph has no names, a list of slots is no one's; it was passed over for a fresh Adam's."""
    zero = "optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE is 0.0"
    case = _altered("extra-tfk221-new-adam-lss-mixed-restored-ckpt", tmp_path, "without names", zero)
    with pytest.raises(DamagedFileError, match="nothing shows whose slots optimizer/_variables/1"):
        migrate.read(case.folder / case.source, **case.hints)


@pytest.mark.parametrize("what", ["beta1_power is nan", "beta1_power is -1.0"])
def test_what_is_no_power_of_beta_is_refused(what: str, tmp_path: Path) -> None:
    """TensorFlow's next step is NaN with it; global_step stood for it, and the report said exact."""
    case = _altered("extra-tf115-contrib-adamax-saver", tmp_path, what)
    with pytest.raises(ContradictionError, match="not a power of beta_1"):
        migrate.read(case.folder / case.source, **case.hints)


@pytest.mark.parametrize("beta", ["beta_1", "beta_2"])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_powers_contradict_a_beta_whose_powers_are_itself(beta: str, value: float) -> None:
    """No step count follows from them. A beta of 1 is refused before the file is read, as no optimizer takes it."""
    case = adversary.case(CORPUS / "extra-tf24-train-adam-in-keras")
    overrides = confirmed(case.folder / case.source, **case.hints)
    error, message = (
        (ContradictionError, f"{beta} is 0.0 and beta{beta[-1]}_power is")
        if value == 0.0
        else (HyperparameterError, f"{beta} must be .*1")
    )
    with pytest.raises(error, match=message):
        migrate.read(case.folder / case.source, **case.hints, overrides={**overrides, beta: value})


def test_a_file_of_keras_2_says_for_which_tensorflow_it_is_taken(tmp_path: Path) -> None:
    """On TF 1.13 and 1.15 Keras 2.2.4 and 2.2.5 read their counter at either time; on 1.12 first (run in each)."""
    source = CORPUS / "keras224-adam-eps-none-nested" / "source" / "model.h5"
    (note,) = (warning for warning in migrate.read(source).warnings if "TensorFlow 1.13" in warning)
    assert "--set iterations=6" in note
    later = shutil.copy(source, tmp_path / "later.h5")
    with h5py.File(later, "r+") as file:
        file.attrs["keras_version"] = b"2.2.5"
    (reason,) = migrate.read(later).reasons
    assert "--set iterations=5 or --set iterations=6" in reason
    saver = CORPUS / "keras224-adam-saver-mlp" / "source" / "ckpt"  # whose graph names TF 1.12.3
    assert not any("TensorFlow 1.13" in warning for warning in migrate.read(saver).warnings)


def test_tf_keras_read_its_counter_before_or_after_it_raised_it(tmp_path: Path) -> None:
    """Its own counter was exact, and the next steps of TF 1.8 were 5e3 times what rounding explains off."""
    folder = KERAS / "late_counter"
    (reason,) = migrate.read(folder / "model.h5").reasons
    assert reason.endswith("Choose with --set iterations=3 or --set iterations=4")
    report = migrate.migrate_checkpoint(folder / "model.h5", tmp_path / "out", overrides={"iterations": 4})
    assert report.fidelity == "exact", report.reasons
    assert next_steps.of_slots(tmp_path / "out", np.load(folder / "oracle.npz"), 4) < next_steps.NEAR


def test_the_decay_of_adam_read_the_counter_after_a_correction_that_waited_for_it(tmp_path: Path) -> None:
    """The report offered 3 and 4 alone, and said exact of either: 6e3 times what rounding explains off."""
    folder = KERAS / "late_decay"
    (reason,) = migrate.read(folder / "model.h5").reasons
    after = typed(reason.rpartition(" or ")[2])
    assert list(after) == ["iterations", "learning_rate", "decay"]
    report = migrate.migrate_checkpoint(folder / "model.h5", tmp_path / "out", overrides=after)
    assert report.fidelity == "exact", report.reasons
    assert next_steps.of_slots(tmp_path / "out", np.load(folder / "oracle.npz"), 4) < next_steps.NEAR


@pytest.mark.parametrize(
    ("versions", "algorithm", "decays", "races"),
    [
        ({"tensorflow": "1.10.1"}, "Adam", False, False),
        ({"tensorflow": "1.10.1"}, "SGD", True, True),
        ({"tensorflow": "1.12.3"}, "Adam", False, True),
        ({"tensorflow": "1.13.2"}, "Adam", False, False),
        ({"tensorflow": "1.13.2"}, "Adam", True, True),
        ({"keras": "2.2.4-tf"}, "Adamax", False, True),
        ({"tensorflow": "1.14.0"}, "Adamax", False, False),
        ({"tensorflow": "1.15.5"}, "Adamax", True, True),
        ({"keras": "2.3.0-tf"}, "Nadam", False, False),
        ({"keras": "2.1.4-tf"}, "Nadam", False, False),
        ({"keras": "2.1.6-tf"}, "Adam", False, True),
        ({"keras": "2.1.6-tf", "tensorflow_before": "1.12"}, "Adam", False, False),
        ({"keras": "2.1.6-tf", "tensorflow_after": "1.10"}, "Adam", False, True),
        ({}, "Adam", False, True),
    ],
)
def test_releases_of_tf_keras_that_raced(versions: dict[str, str], algorithm: str, decays: bool, races: bool) -> None:
    """As runs of 240 steps each showed, and the graph of 1.13, where Adam's step waits for the addition."""
    releases = candidates("optimizer_v1", Versions(**versions))
    assert counter.read(algorithm, decays).may_be(counter.BY_CHANCE, releases) is races
