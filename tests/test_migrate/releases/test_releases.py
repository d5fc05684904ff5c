"""The table of releases, and which of them can have written a source."""

from __future__ import annotations

import re

import pytest

from migrate import facts, generations
from migrate.generations import GENERATIONS
from migrate.releases import narrowing, table
from migrate.releases.narrowing import candidates
from migrate.releases.versions import Versions
from tests.places import ROOT


def test_every_generation_has_releases() -> None:
    assert {release.generation for release in table.RELEASES} == set(GENERATIONS)
    assert len(set(table.PACKAGES)) == len(table.PACKAGES)
    assert len(set(table.RELEASES)) == len(table.RELEASES)


@pytest.mark.parametrize(
    ("generation", "versions", "names"),
    [  # what each calls itself is in its wheel
        ("optimizer_v1", Versions("2.1.5-tf"), ["TF 1.8"]),
        ("optimizer_v1", Versions("2.1.6-tf"), ["TF 1.9", "TF 1.10", "TF 1.11", "TF 1.12"]),
        ("optimizer_v1", Versions("2.1.6-tf", tensorflow_after="1.10"), ["TF 1.11", "TF 1.12"]),
        ("optimizer_v1", Versions(tensorflow="1.9.0"), ["TF 1.9"]),
        ("optimizer_v2", Versions("2.4.0"), ["TF 2.3", "TF 2.4"]),
        ("optimizer_v2", Versions("2.4.0", tensorflow_after="2.3"), ["TF 2.4"]),
        ("optimizer_v2", Versions("2.3.0-tf"), ["TF 1.14", "TF 1.15", "TF 2.0", "TF 2.1", "TF 2.2"]),
        ("optimizer", Versions("2.13.0"), ["TF 2.13"]),
        ("optimizer", Versions("2.99.0"), ["tf_keras 2.21.0"]),
        ("experimental", Versions(dtensor="yes"), ["TF 2.9", "TF 2.10", "TF 2.11", "TF 2.12"]),
        ("experimental", Versions(), ["TF 2.9", "TF 2.10"]),
        ("keras2", Versions("2.0.7", "theano"), ["Keras 2.0.6"]),
        ("keras3", Versions("3.16.2", "jax or torch"), ["Keras 3.15.0"]),
    ],
)
def test_what_a_source_shows_narrows_its_releases(generation: str, versions: Versions, names: list[str]) -> None:
    assert [*dict.fromkeys(release.name for release in candidates(generation, versions))] == names


@pytest.mark.parametrize(
    ("versions", "shown"),
    [
        (Versions("3.99.0"), "Keras 3.99 wrote it, which is newer than 3.15"),
        (Versions("4.0.1"), "Keras 4.0 wrote it, which is newer than 3.15"),
        (Versions("2.22.0"), "Keras 2.22 wrote it, which is newer than 2.21"),
        (Versions(tensorflow="2.30.0"), "TensorFlow 2.30 wrote it, which is newer than 2.21"),
        *((Versions(known), "") for known in ("3.15.9", "2.21.1", "2.3.0-tf", "1.2.2", "")),
        *((Versions(tensorflow=known), "") for known in ("1.15.5", "2.15.1", "2.21.0")),
    ],
)
def test_a_release_after_the_last_known_one_is_an_assumption(versions: Versions, shown: str) -> None:
    warning = narrowing.newer(versions)
    assert warning.startswith(shown)
    assert bool(warning) == bool(shown)


def test_backends_and_modes_narrow_as_well() -> None:
    assert {r.backend for r in candidates("keras3", Versions("3.5.0", "jax or torch"))} == {"jax", "torch"}
    assert {r.mode for r in candidates("optimizer_v2", Versions(graph_mode=True))} == {table.GRAPH}
    assert {r.mode for r in candidates("experimental", Versions(dtensor="perhaps"))} == {"", table.DTENSOR}
    assert min(r.tensorflow for r in candidates("keras2", Versions("2.2.5", "tensorflow"))) == (1, 13)


@pytest.mark.parametrize(
    ("package", "version", "generation"),
    [
        ("keras", "1.2.2", "keras1"),
        ("keras", "2.2.4", "keras2"),
        ("keras", "2.3.1", "keras2.3"),
        ("keras", "2.6.0", "optimizer_v2"),
        ("keras", "3.5", "keras3"),
        ("tensorflow", "1.13.2", "optimizer_v1"),
        ("tensorflow", "2.10", "optimizer_v2"),
        ("tensorflow", "2", "optimizer_v2"),
        ("tensorflow", "2.15.1", "optimizer"),
        ("tensorflow", "2.16.2", "keras3"),
        ("tf_keras", "2.16.0", "optimizer"),
    ],
)
def test_what_a_release_has_under_plain_names(package: str, version: str, generation: str) -> None:
    assert table.default_generation(package, version) == generation


@pytest.mark.parametrize(
    ("name", "rows", "generation", "version"),
    [
        (table.KERAS, "KERAS_3", generations.KERAS3, "3.99.0"),
        (table.TF_KERAS, "TF_KERASES", generations.OPTIMIZER, "2.99.0"),
    ],
)
def test_a_new_release_is_one_row(
    name: str, rows: str, generation: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sources are of it, each fact answers for it as for the release before, and CONTRIBUTING.md names no more."""
    versions = Versions(version, "tensorflow")
    before = candidates.__wrapped__(generation, versions)
    new = table.Package(name, version, (version,))
    monkeypatch.setattr(table, rows, (*getattr(table, rows), new))
    monkeypatch.setattr(narrowing, "RELEASES", (*table._of_keras(), *table._of_tensorflow()))
    releases = candidates.__wrapped__(generation, versions)
    assert {release.package for release in releases} == {new} != {release.package for release in before}
    for fact in facts.EVERY:
        answers = {fact.way(release) for release in releases}
        assert answers == {fact.way(release) for release in before}, fact.question
        assert answers <= {None, *fact.answers}, fact.question
        assert fact.warning(releases) == fact.warning(before)
    (row,) = re.findall(
        r"^\| a release \| (.*?) \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert re.findall(r"`(\S+?)`", row) == ["migrate/releases/table.py"]


def test_a_contradiction_leaves_releases() -> None:
    assert candidates("keras3", Versions("3.5.0", tensorflow="1.4", tensorflow_after="2.20"))
