"""Muon and ScheduleFreeAdamW, which Keras 3 alone has, by release and by backend; and its optimizers on PyTorch."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import migrate
from migrate.errors import AmbiguousError
from optim.errors import MismatchError, UnsupportedError
from tests import adversary
from tests.helpers.keras_releases import needs_keras
from tests.places import CORPUS
from tests.test_migrate.confirm import typed

MUON = ("keras311-muon-nested-keras", "keras312-muon-text-keras", "keras312-muon-ema-weights")
LATER = ("keras313-muon-text-keras", "keras315-muon-text-ckpt")
ON_JAX, ON_TENSORFLOW = "keras314-schedule-free-text-keras", "keras315-schedule-free-text-keras"
CHECKPOINT = "keras315-schedule-free-mlp-ckpt"
ON_PYTORCH = (
    "keras312-torch-nadam-nested-keras",
    "keras312-torch-sgd-frozen-keras",
    "keras312-torch-adam-embed-keras",
)
ALL_DECAY = {"weight_decay_exclude": []}
SAID: dict[str, dict[str, Any]] = {
    MUON[1]: ALL_DECAY,
    MUON[2]: {"aspect_scale": True},
    LATER[1]: ALL_DECAY,
    ON_JAX: {"late_z": False},
    ON_TENSORFLOW: ALL_DECAY,
    ON_PYTORCH[1]: ALL_DECAY | {"untrained": ["sequential/frozen/kernel", "sequential/frozen/bias"]},
}
"""What only a person can know of a case; the others are exact as they are."""
NEAR = 0.3
"""Of what rounding explains."""


def _case(name: str) -> tuple[Path, Path, dict[str, Any]]:
    folder = CORPUS / f"extra-{name}"
    case = adversary.case(folder)
    return folder, case.folder / case.source, case.hints


@pytest.mark.parametrize("name", [*MUON, *LATER, ON_JAX, ON_TENSORFLOW, CHECKPOINT, *ON_PYTORCH])
@pytest.mark.quick(4)
def test_the_next_steps_are_those_of_the_release(name: str, tmp_path: Path) -> None:
    folder, source, hints = _case(name)
    assert migrate.read(source, **hints).fidelity == ("approximate" if name in SAID else "exact")
    report = migrate.migrate_checkpoint(source, tmp_path / "out", overrides=SAID.get(name), **hints)
    assert report.fidelity == "exact"
    assert adversary.error(folder, tmp_path / "out") < NEAR
    assert migrate.verify(source, tmp_path / "out", overrides=SAID.get(name), **hints).ok


@pytest.mark.parametrize("name", [*MUON, *LATER])
def test_muon_keeps_the_second_slot_of_what_adam_updates(name: str) -> None:
    folder, source, hints = _case(name)
    document = json.loads((folder / "case.json").read_text())
    state = migrate.read(source, **hints)
    assert sum(map(len, state.slots.values())) == len(document["opt_weights"]["shapes"]) - 2  # counter and rate
    assert ("conv1d/kernel" in state.slots["v"]) == (name in LATER)
    assert state.hyperparameters.get("stacks", False) == (name in MUON)


def test_the_backend_decides_and_the_counter_tells_tensorflow(tmp_path: Path) -> None:
    for name, wrong in ((ON_JAX, True), (ON_TENSORFLOW, False)):
        folder, source, hints = _case(name)
        state = migrate.read(source, **hints)
        assert state.hyperparameters["late_z"] is not wrong
        assert any("JAX" in reason and "--set late_z=false" in reason for reason in state.reasons) is wrong
        migrate.migrate_checkpoint(source, tmp_path / name, overrides={**ALL_DECAY, "late_z": wrong}, **hints)
        assert adversary.error(folder, tmp_path / name) > 100
    _, source, hints = _case(CHECKPOINT)
    assert migrate.read(source, **hints).hyperparameters["late_z"] is True


def _altered(source: Path, dest: Path, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Path:
    """A `.keras` with another config of the optimizer, or other metadata."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(dest, "w") as new:
        config, metadata = json.loads(old.read("config.json")), json.loads(old.read("metadata.json"))
        change(config["compile_config"]["optimizer"]["config"], metadata)
        for name in old.namelist():
            kept = {"config.json": config, "metadata.json": metadata}.get(name)
            new.writestr(name, old.read(name) if kept is None else json.dumps(kept))
    return dest


def test_a_release_that_denies_the_rule_of_its_config_is_refused(tmp_path: Path) -> None:
    early, later = _case(MUON[0])[1], _case(LATER[0])[1]
    newer = _altered(early, tmp_path / "newer.keras", lambda c, m: m.update(keras_version="3.13.0"))
    with pytest.raises(
        UnsupportedError, match=r"has no rms_rate, which is new in Keras 3\.13: one of the two is wrong"
    ):
        migrate.read(newer)
    renamed = _altered(early, tmp_path / "renamed.keras", lambda c, m: c.update(rms_rate=0.2, adam_weight_decay=None))
    with pytest.raises(UnsupportedError, match=r"its Muon has rms_rate"):
        migrate.read(renamed)
    gone = _altered(later, tmp_path / "gone.keras", lambda c, m: c.pop("rms_rate"))
    with pytest.raises(MismatchError, match="does not fit"):  # of rank 3, the early rule has one slot
        migrate.read(gone)
    unsaid = _altered(later, tmp_path / "unsaid.keras", lambda c, m: c.pop("adam_weight_decay"))
    assert any("adam_weight_decay" in reason for reason in migrate.read(unsaid).reasons)


def test_a_pattern_that_matches_a_part_of_the_path_is_asked_for_again(tmp_path: Path) -> None:
    """Keras calls a variable in an inner model by more or less of its path than is known here."""
    source = _case(MUON[0])[1]
    partly = _altered(source, tmp_path / "m.keras", lambda c, m: c.update(exclude_layers=["^last"]))
    with pytest.raises(AmbiguousError, match=r"the part of that name.*--set exclude_layers=VALUE"):
        migrate.read(partly)
    overrides = typed("""--set 'exclude_layers=["last"]'""")
    assert migrate.read(partly, overrides=overrides).fidelity == "exact"


def test_other_patterns_than_those_of_the_slots_are_refused(tmp_path: Path) -> None:
    source = _case(MUON[0])[1]  # kernels of one shape, of which Adam has the last
    other = _altered(source, tmp_path / "m.keras", lambda c, m: c.update(exclude_layers=["inner/kernel"]))
    with pytest.raises(MismatchError):
        migrate.read(other)


@pytest.mark.usefixtures("loaded_here")
@needs_keras("3.13")
def test_keras_has_another_muon_today(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="have another Muon, with another rule and other slots"):
        migrate.migrate_checkpoint(_case(MUON[1])[1], tmp_path / "m.keras", to="keras")
    source, target = _case(LATER[0])[1], tmp_path / "m.keras"
    report = migrate.migrate_checkpoint(source, target, to="keras")
    assert [
        r for r in report.reasons if "a row several times, the source takes their sum" in r
    ]  # it is of JAX or PyTorch
    report = migrate.migrate_checkpoint(
        source, target, to="keras", overrides={"repeated_rows": "absent"}, overwrite=True
    )
    assert report.fidelity == "exact"
    assert migrate.verify(source, target, overrides={"repeated_rows": "absent"}).ok
