"""`compare`: verdicts on recorded noise, what is refused, gates."""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.cases.case import Case
from bench.cases.layouts import parse_mesh
from bench.compare import pairing, report, statistics
from bench.compare.measurements import Measurement, measurements
from bench.compare.statistics import Series
from bench.errors import IncomparableError, OptionError
from bench.kinds import load
from bench.measuring.process import Worker
from bench.results.document import Result
from bench.step.row import Row
from bench.step.run import start
from tests.helpers.timing import once
from tests.places import FAKES, RESULTS

RECORDED = sorted(RESULTS.glob("aa-*.json"))
"""Six runs of one command on a shared machine of two cores, its load from 2 to 8: between the runs it became twice as
fast. `command` in their context says which."""

BLOCK = 15
"""Rounds that are drawn together, so that slow phases stay in one piece."""


@pytest.fixture(scope="module")
def runs() -> list[dict[str, Measurement]]:
    """For each recorded run its rows by peer."""
    return [{dict(name)["peer"]: row for name, row in measurements(load(path)).items()} for path in RECORDED]


def draw(row: Measurement, rounds: int, random: np.random.Generator) -> Series:
    """Another run, made of blocks of a recorded one; the roofs in the same rounds go along."""
    starts = random.integers(0, len(row.values), -(-rounds // BLOCK))
    places = ((starts[:, None] + np.arange(BLOCK)) % len(row.values)).ravel()[:rounds]
    return Series(np.array(row.values)[places], {name: np.array(times)[places] for name, times in row.roofs.items()})  # type: ignore[arg-type]


def slowed(series: Series, factor: float) -> Series:
    return replace(series, times=[factor * seconds for seconds in series.times])


def test_the_recorded_runs_are_of_one_command_and_really_differ() -> None:
    loaded = [load(path) for path in RECORDED]
    assert len(loaded) == 6
    assert len({run.context["command"].partition("--rounds")[0] for run in loaded}) == 1
    roofs = [max(roof.bytes_per_second for roof in run.roofs) for run in loaded]
    assert max(roofs) / min(roofs) > 1.02


@pytest.mark.parametrize("rounds", [7, 15, 60])
def test_runs_of_the_same_thing_are_not_called_different(runs: Any, rounds: int) -> None:
    """Any two of the recorded runs: at most 5 in 100 may be called faster or slower."""
    random = np.random.default_rng(rounds)
    verdicts: Counter[str] = Counter()
    for _ in range(150):
        one, two = random.integers(0, len(runs), 2)
        for peer in runs[0]:
            first, second = draw(runs[one][peer], rounds, random), draw(runs[two][peer], rounds, random)
            verdicts[statistics.ratio(first, second).verdict] += 1
    assert verdicts["slower"] + verdicts["faster"] <= 0.05 * verdicts.total()


@pytest.mark.parametrize("peer", ["torch-fused", "torch-foreach"])
def test_a_slowdown_of_a_tenth_is_found(runs: Any, peer: str) -> None:
    """In the noise of the two runs at load 2, with 200 rounds, at least 95 times in 100."""
    random = np.random.default_rng(1)
    found = 0
    for number in range(100):
        recorded = runs[4 + number % 2][peer]
        first, second = draw(recorded, 200, random), draw(recorded, 200, random)
        found += statistics.ratio(first, slowed(second, 1.1)).verdict == "slower"
    assert found >= 95


def test_the_same_in_quiet_is_called_the_same() -> None:
    random = np.random.default_rng(2)
    one, two = (Series(list(np.exp(random.normal(0.0, 0.01, 15)))) for _ in range(2))
    found = statistics.ratio(one, two)
    assert found.verdict == "same"
    assert found.roofs is None
    assert statistics.ratio(one, slowed(two, 1.1)).verdict == "slower"
    assert statistics.ratio(one, slowed(two, 0.9)).verdict == "faster"


def test_a_slower_machine_is_not_a_slower_row() -> None:
    """All, roofs included, takes half as long again."""
    random = np.random.default_rng(3)
    noise = np.exp(random.normal(0.0, 0.01, (4, 30)))
    first = Series(list(noise[0]), {"a": list(noise[1])})
    found = statistics.ratio(first, Series(list(1.5 * noise[2]), {"a": list(1.5 * noise[3])}))
    assert found.verdict == "unclear"
    assert found.roofs == pytest.approx(1.5, rel=0.02)
    assert found.low < 1.0 < 1.5 <= found.high


def test_units_of_the_roofs_take_slow_phases_away() -> None:
    """Phases that hit a row and its roofs alike would hide a tenth otherwise."""
    random = np.random.default_rng(4)
    phases = np.exp(random.normal(0.0, 0.3, (2, 40)))
    noise = np.exp(random.normal(0.0, 0.01, (4, 40)))
    with_roofs = [Series(list(noise[i] * phases[i]), {"a": list(noise[2 + i] * phases[i])}) for i in (0, 1)]
    found = statistics.ratio(with_roofs[0], with_roofs[1])
    assert found.in_roofs
    assert found.median == pytest.approx(1.0, abs=0.02)
    assert abs(np.log(found.plain)) > 0.02


def test_few_rounds_have_no_verdict() -> None:
    one = Series([1.0, 1.01, 0.99, 1.0])
    assert statistics.ratio(one, slowed(one, 3.0)).verdict == "unclear"


def changed(result: Result, **context: Any) -> Result:
    return replace(result, context={**result.context, **context})


def rows(result: Result, **members: Any) -> Result:
    return replace(result, rows=tuple(replace(row, **members) for row in result.rows))


@pytest.fixture(scope="module")
def result() -> Result:
    return load(RECORDED[4])


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (lambda r: changed(r, cpus=64), "cpus is 2 in one and 64 in the other"),
        (lambda r: changed(r, cpu="another"), "cpu is"),
        (lambda r: changed(r, cpus_allowed=1), "cpus_allowed is"),
        (lambda r: changed(r, threads=4), "threads is 1 in one and 4 in the other"),
        (lambda r: rows(r, parameters=7), "another version: parameters 7087872, tensors 12"),
        (lambda r: Result(r.context, (), (), kind="roof"), "kind is 'step' in one and 'roof' in the other"),
    ],
)
def test_what_must_not_be_compared(result: Result, other: Any, reason: str) -> None:
    with pytest.raises(IncomparableError, match=reason) as caught:
        pairing.compare(result, other(result))
    assert caught.value.exit_code == 6


def test_force_compares_and_marks(result: Result) -> None:
    other = rows(changed(result, cpus=64, threads=2), threads=2)
    found = pairing.compare(result, other, force=True)
    assert [change.ratio.verdict for change in found.changes if change.ratio] != []
    assert len(found.forced) == 2
    assert "--force" in str(report.render(found)[0])
    with pytest.raises(IncomparableError, match="share no row"):
        pairing.compare(result, Result(result.context, (), (), kind="roof"), force=True)


def test_plans_are_not_compared(result: Result) -> None:
    plans = Result(result.context, (), (), kind="plan")
    with pytest.raises(IncomparableError, match="nothing measured"):
        pairing.compare(plans, plans)


def scaled(result: Result, factor: float) -> Result:
    """Every row, but no roof, slower."""

    def slower(row: Row) -> Row:
        samples = tuple(replace(s, seconds=factor * s.seconds) for s in row.samples)
        middle, mad, speed = (row.median or 0.0) * factor, (row.mad or 0.0) * factor, row.bytes_per_second
        return replace(row, samples=samples, median=middle, mad=mad, bytes_per_second=(speed or 0.0) / factor)

    return replace(result, rows=tuple(slower(row) for row in result.rows))


@pytest.mark.parametrize(
    ("factor", "fail_above", "outcome"),
    [(2.0, 0.05, "regression"), (2.0, None, "ok"), (1.0, 0.0, "noisy"), (1.0, 0.5, "ok"), (0.5, 0.05, "ok")],
)
def test_gates(result: Result, factor: float, fail_above: float | None, outcome: str) -> None:
    assert pairing.compare(result, scaled(result, factor), fail_above=fail_above).outcome == outcome


def test_a_row_that_fails_now_is_broken_and_missing_ones_are_named(result: Result) -> None:
    first, *others = result.rows
    failed = replace(first, status="failed", reason="crashed", samples=(), median=None)
    found = pairing.compare(result, replace(result, rows=(failed, *others[:1])))
    assert found.outcome == "broken"
    assert [dict(name)["peer"] for name in found.only_first] == [others[1].peer]
    assert found.changes[0].reason == "failed in the second result: crashed"
    skipped = replace(failed, status="skipped")
    assert pairing.compare(result, replace(result, rows=(skipped,))).outcome == "nothing"


def test_the_document_is_json(result: Result) -> None:
    document = json.loads(json.dumps(report.document(pairing.compare(result, scaled(result, 2.0), fail_above=0.05))))
    assert (document["kind"], document["of"], document["outcome"]) == ("dtopt bench compare", "step", "regression")
    assert document["changes"][0]["name"]["peer"] == result.rows[0].peer
    assert document["changes"][0]["ratio"]["verdict"] == "slower"


@pytest.mark.parametrize(("text", "value"), [("5%", 0.05), ("0.05", 0.05), ("0%", 0.0), ("150%", 1.5)])
def test_thresholds(text: str, value: float) -> None:
    assert pairing.threshold(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "-1%", "nan", "fast"])
def test_thresholds_that_are_none(text: str) -> None:
    with pytest.raises(OptionError, match="5%"):
        pairing.threshold(text)


@pytest.mark.breadth
def test_a_peer_that_waits_a_tenth_longer_is_found_in_real_processes() -> None:
    """Sleeping alone, and long beside what a busy machine is late by; the twin run is not called different."""
    sys.path.append(str(FAKES))  # workers find the fakes by the same path
    fakes = importlib.import_module("fake_peers")
    case = Case("many-small", "adam", parse_mesh("1"), "replicated", threads=1)
    workers = [start(peer, case) for peer in (fakes.SLEEPS, fakes.SLEEPS, fakes.WAITS)]
    try:
        for worker in workers:
            worker.request("prepare")
            for _ in range(2):  # that it has started, that it is prepared
                worker.answer(60.0)
        assert once(lambda: _found(*map(Series, _sampled(workers))))
    finally:
        for worker in workers:
            worker.stop()
        sys.path.remove(str(FAKES))


def _sampled(workers: Sequence[Worker]) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in workers]
    for _ in range(31):  # of which the interval of a median spares the nine latest
        for worker, found in zip(workers, times, strict=True):
            worker.request("sample", steps=1)
            found.append(worker.answer(60.0)["seconds"])
    return times


def _found(first: Series, twin: Series, slower: Series) -> bool:
    assert statistics.ratio(first, twin).verdict in ("same", "unclear")
    return statistics.ratio(first, slower).verdict == "slower"
