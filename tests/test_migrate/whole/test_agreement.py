"""`checkpoint` and `verify` agree, whatever release wrote a file and however it limited gradients.

Real files get another release and other limits. What `checkpoint` then writes, `verify` finds right.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import pytest

import migrate
from migrate.algorithms.clipping import LIMITS
from migrate.releases import table
from optim.errors import DtoptError
from tests.places import CORPUS
from tests.test_migrate.confirm import typed

IN_FILES = ("keras1", "keras2", "keras2.3", "optimizer_v1", "optimizer_v2", "optimizer", "keras3")
"""Generations whose optimizers a file of Keras holds."""


def _called(generation: str) -> list[str]:
    """What the releases of a generation call their Keras."""
    versions = [r.keras for r in table.RELEASES if r.generation == generation and r.keras]
    if generation == "optimizer_v1":  # a file of a later tf.keras is taken for one of OptimizerV2
        versions = [keras for keras in versions if keras.endswith("-tf")]
    return [*dict.fromkeys(versions)]


RELEASES = {generation: _called(generation) for generation in IN_FILES}
CLIPPING: tuple[dict[str, float], ...] = (
    {},
    {"clipnorm": 0.01},
    {"clipvalue": 0.005},
    {"clipnorm": 0.01, "clipvalue": 0.005},
    {"global_clipnorm": 0.02},
    {"global_clipnorm": 0.02, "clipvalue": 0.005},
    {"clipnorm": 0.01, "global_clipnorm": 0.02},
)
"""So small that each acts."""


@cache
def _sources() -> dict[tuple[str, str], Path]:
    """One file for each algorithm and generation that a file of Keras holds."""
    paths: dict[tuple[str, str], Path] = {}
    for path in sorted([*CORPUS.glob("*/source/*.h5"), *CORPUS.glob("*/source/*.keras")]):
        if path.name.endswith(".weights.h5"):
            continue
        try:
            state = migrate.read(path)
        except DtoptError:
            continue
        assert state.source is not None
        paths.setdefault((state.algorithm, str(state.source.generation)), path)
    return paths


def _limited(optimizer: dict[str, Any], limits: dict[str, float]) -> None:
    """Other limits in the config of the innermost optimizer, and none where its release would name them all."""
    config = optimizer["config"]
    inner = next((config[key] for key in ("inner_optimizer", "optimizer") if isinstance(config.get(key), dict)), None)
    if inner is not None:
        _limited(inner, limits)
        return
    names_all = all(key in config for key in LIMITS)
    for key in LIMITS:
        config.pop(key, None)
    config |= {**dict.fromkeys(LIMITS if names_all else ()), **limits}


def _altered(source: Path, folder: Path, version: str, limits: dict[str, float]) -> Path:
    """A copy that says another release and other limits."""
    path = Path(shutil.copy(source, folder / f"altered{source.suffix}"))
    if source.suffix == ".h5":
        with h5py.File(path, "r+") as file:
            training = json.loads(file.attrs["training_config"])
            _limited(training["optimizer_config"], limits)
            file.attrs["training_config"] = json.dumps(training).encode()
            for group in (file, file["model_weights"]):
                if "keras_version" in group.attrs:
                    group.attrs["keras_version"] = version.encode()
        return path
    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config, metadata = (json.loads(members[name]) for name in ("config.json", "metadata.json"))
    _limited(config["compile_config"]["optimizer"], limits)
    members["config.json"] = json.dumps(config).encode()
    members["metadata.json"] = json.dumps({**metadata, "keras_version": version}).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def _answers(path: Path, choice: int) -> dict[str, Any]:
    """What the user confirms, question after question; of several answers the first or the last."""
    overrides: dict[str, Any] = {}
    for _ in range(3):
        open_ = [o for o in migrate.read(path, overrides=overrides).origins if not o.certain and o.confirm]
        if not open_:
            break
        for origin in open_:
            for name, value in typed(origin.confirm.split(" or ")[choice].partition(", if ")[0]).items():
                overrides[name] = origin.value if value in ("N", "VALUE") else value
    return overrides


def _disagreement(path: Path, folder: Path, choice: int) -> str:
    """What `verify` has against what `checkpoint` wrote; empty if nothing, or if nothing was written.

    `choice`: of several answers to a question, the first (0) or the last (-1).
    """
    dest = folder / "out"
    try:
        overrides = _answers(path, choice)
        if choice and overrides == _answers(path, 0):
            return ""  # compared with the first answers
        report = migrate.migrate_checkpoint(path, dest, overwrite=True, overrides=overrides)
    except DtoptError:
        return ""
    result = migrate.verify(path, dest, overrides=overrides)
    if result.ok and (result.parity is not None or result.notes):
        return ""
    return f"{report.fidelity}, and {'; '.join(result.differences) or 'no step was taken, and nothing says why'}"


def _combinations(generation: str) -> list[tuple[str, dict[str, float]]]:
    return [(version, limits) for version in RELEASES[generation] for limits in CLIPPING]


def test_there_is_a_file_of_every_generation() -> None:
    assert {generation for _, generation in _sources()} == RELEASES.keys()


@pytest.mark.parametrize("generation", RELEASES)
@pytest.mark.quick(3)
def test_a_diagonal_of_releases_and_limits(generation: str, tmp_path: Path) -> None:
    """Each release and each setting once, under the optimizers in turn."""
    sources = [path for (_, source_generation), path in _sources().items() if source_generation == generation]
    versions = RELEASES[generation]
    for i in range(max(len(versions), len(CLIPPING)) if sources else 0):
        version, limits, source = versions[i % len(versions)], CLIPPING[i % len(CLIPPING)], sources[i % len(sources)]
        path = _altered(source, tmp_path, version, limits)
        assert not _disagreement(path, tmp_path, 0), (source, version, limits)


@pytest.mark.parametrize("version", ["2.1.2-tf", "2.1.5-tf", "2.1.6-tf"])
@pytest.mark.parametrize("choice", [0, -1])
def test_one_norm_for_all_gradients_up_to_tf_1_9(version: str, choice: int, tmp_path: Path) -> None:
    """TF 1.5 to 1.8 were 10,000 times what rounding explains; 1.9 to 1.12 have one name, and the user says which."""
    path = _altered(_sources()["Adam", "optimizer_v1"], tmp_path, version, {"clipnorm": 0.01})
    assert not _disagreement(path, tmp_path, choice)


@pytest.mark.parametrize("choice", [0, -1])
def test_the_order_of_limits_that_the_user_gives(choice: int, tmp_path: Path) -> None:
    """TF 2.3 and 2.4 both call their Keras 2.4.0, and clip in two orders."""
    path = _altered(_sources()["SGD", "optimizer_v2"], tmp_path, "2.4.0", {"clipnorm": 0.01, "clipvalue": 0.005})
    assert _answers(path, choice)["clip_order"] == ("norm_first" if choice else "value_first")
    assert not _disagreement(path, tmp_path, choice)


def test_a_global_norm_is_of_tf_2_4(tmp_path: Path) -> None:
    """TF 2.3 has none, so that nothing is open about the order."""
    path = _altered(_sources()["SGD", "optimizer_v2"], tmp_path, "2.4.0", {"global_clipnorm": 0.02, "clipvalue": 0.005})
    assert not _answers(path, 0)
    assert not _disagreement(path, tmp_path, 0)


@pytest.mark.breadth
@pytest.mark.parametrize("choice", [0, -1])
@pytest.mark.parametrize("generation", RELEASES)
def test_every_release_optimizer_and_limit(generation: str, choice: int, tmp_path: Path) -> None:
    problems = [
        (path.parts[-3], version, limits, problem)
        for (_, source_generation), path in _sources().items()
        if source_generation == generation
        for version, limits in _combinations(generation)
        if (problem := _disagreement(_altered(path, tmp_path, version, limits), tmp_path, choice))
    ]
    assert not problems
