"""The table of releases, and which of them can have written a source."""

from __future__ import annotations

import pytest

from migrate.generations import GENERATIONS
from migrate.releases import table
from migrate.releases.narrowing import candidates
from migrate.releases.versions import Versions


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


def test_backends_and_modes_narrow_as_well() -> None:
    assert {r.backend for r in candidates("keras3", Versions("3.5.0", "jax or torch"))} == {"jax", "torch"}
    assert {r.mode for r in candidates("optimizer_v2", Versions(graph_mode=True))} == {table.GRAPH}
    assert {r.mode for r in candidates("experimental", Versions(dtensor="perhaps"))} == {"", table.DTENSOR}
    assert min(r.tensorflow for r in candidates("keras2", Versions("2.2.5", "tensorflow"))) == (1, 13)


def test_a_contradiction_leaves_releases() -> None:
    assert candidates("keras3", Versions("3.5.0", tensorflow="1.4", tensorflow_after="2.20"))
