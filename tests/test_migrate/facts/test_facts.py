"""Each row of `migrate.facts` answers for every release, and its warnings name the releases that differ."""

from __future__ import annotations

import pytest

from migrate import facts
from migrate.facts import clipping, counter, rules, steps
from migrate.facts.fact import Fact, spans
from migrate.releases.narrowing import candidates
from migrate.releases.table import KERAS_3, RELEASES, STANDALONE, TENSORFLOWS
from migrate.releases.versions import Versions
from tools import release_facts


@pytest.mark.parametrize("fact", facts.EVERY, ids=lambda fact: fact.question)
def test_every_release_answers(fact: Fact) -> None:
    answers = {fact.way(release) for release in RELEASES} - {None}
    assert answers <= fact.answers.keys()
    assert len(answers) > 1, "releases differ, or it is no row"
    assert fact.question.endswith("?")
    assert fact.source
    assert set(fact.keys) in (set(), set(fact.answers))


def test_the_page_is_what_the_rows_say() -> None:
    assert release_facts.PAGE.read_text(encoding="utf-8") == release_facts.text(), "run: python tools/release_facts.py"


def test_releases_are_named_as_spans() -> None:
    assert spans([*TENSORFLOWS[3:6], TENSORFLOWS[8], *KERAS_3[2:4]]) == "TF 1.3 to 1.5 and 1.8, Keras 3.2 to 3.3"
    assert spans(STANDALONE[4:6]) == "Keras 2.0.0 to 2.0.2"


@pytest.mark.parametrize(
    ("fact", "generation", "versions", "answer", "warning"),
    [
        (
            clipping.NORM,
            "optimizer_v1",
            Versions("2.1.6-tf"),
            None,
            "TF 1.9 limited one norm over all gradients, TF 1.10 to 1.12 limited the norm of each gradient; the source"
            " fits both, and dtopt assumes the latter",
        ),
        (clipping.NORM, "optimizer_v1", Versions("2.1.5-tf"), clipping.ALL, ""),
        (clipping.NORM, "optimizer_v1", Versions("2.1.6-tf", tensorflow_after="1.10"), clipping.EACH, ""),
        (clipping.NORM, "keras2", Versions("2.2.4"), clipping.ALL, ""),
        (clipping.ORDER, "optimizer_v2", Versions(tensorflow="2.6.1"), clipping.VALUE_FIRST, ""),
        (
            counter.read("Adam", False),
            "keras2",
            Versions("2.2.4", "tensorflow"),
            None,
            "Keras 2.2.4 on TF 1.0 to 1.12 read it before raising it, Keras 2.2.4 on TF 1.13 to 1.15 read it before or"
            " after raising it, by chance; the source fits both, and dtopt assumes the latter",
        ),
        (
            rules.SCHEDULE_FREE,
            "keras3",
            Versions("3.15.0", "jax or torch"),
            None,
            "Keras 3.15 (jax) averaged the old z, Keras 3.15 (torch) averaged the new z; the source fits both, and"
            " dtopt assumes the latter",
        ),
        (steps.ACCUMULATION, "keras3", Versions("3.4.1"), steps.BATCHES, ""),
    ],
)
def test_a_set_of_releases_answers(
    fact: Fact, generation: str, versions: Versions, answer: str | None, warning: str
) -> None:
    releases = candidates(generation, versions)
    assert fact.of(releases) == answer
    assert fact.warning(releases) == warning
