"""Peers that cheat, in real processes: each is a failed row with the reason, and honest ones beside them are not."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from bench.cases.case import Case
from bench.cases.layouts import parse_mesh
from bench.cases.workloads import Tensor
from bench.measuring.rounds import Pace
from bench.results.records import Sample
from bench.step import run as runner
from bench.step import suspicion
from bench.step.contest import Settings
from bench.step.query import Plan
from bench.step.ratios import with_ratios
from bench.step.row import Row
from tests.helpers.breadth import broad
from tests.helpers.timing import until
from tests.places import FAKES

MARK = "OF_THE_TEST_OF_CHEATS"

OTHERS = {
    "own clock": ("it changed bench.measuring.clock.sample, which judges it", "its clock is wrong"),
    "own judge": "it changed bench.step.agreement._difference, which judges it",
    "half of the steps": "it changed the number of its steps",
    "runs itself": "computes something else",
    "when read": "it makes its steps when it is read",
    "when others are read": "it makes its steps when it is read",
    "in the background": "CPU",
    "helper elsewhere": "it left the CPUs that it was given",
    "rounds to half": "computes something else",
    "own arithmetic": "computes something else",
    "looks over the shoulder": "computes something else",
    "own worker": ("it changed __main__.Worker.sample, which judges it", "by its own clock"),
    "judge changed while reading": "it changed bench.step.agreement._difference, which judges it",
    "remembers": "computes something else",
    "remembers each": "with new gradients and",
    "remembers places": "with new gradients and",
    "remembers numbers": "with new gradients and",
    "own session": "it changed Session, which judges it",
}
"""Cheats, and what the reason says: one of these, where two checks find it out."""

QUICK = {
    "good",
    "copies to read",
    "stops after 3",
    "does not wait",
    "takes more threads",
    "own clock",
    "half of the steps",
    "remembers",
}
"""Each takes a second: `make test-all` runs the others."""

SHAPES = tuple(Tensor(f"w{i}", (500,)) for i in range(20))
CASE = Case("small", "adam", parse_mesh("model=1"), "replicated", threads=1, shapes=SHAPES)


@pytest.fixture(scope="module")
def rows() -> Iterator[dict[str, Row]]:
    yield from _run(quick=True)


@pytest.fixture(scope="module")
def other_rows() -> Iterator[dict[str, Row]]:
    yield from _run(quick=False)


def of(name: str) -> Any:
    """The parameter of a test for a peer; `row` is its row."""
    return name if name in QUICK else broad(name)


@pytest.fixture
def row(name: str, request: pytest.FixtureRequest) -> Row:
    found: Row = request.getfixturevalue("rows" if name in QUICK else "other_rows")[name]
    return found


def _run(quick: bool) -> Iterator[dict[str, Row]]:
    """One run with the quick ones or all others, next to an honest one."""
    here = str(FAKES)
    sys.path.append(here)
    cheats = importlib.import_module("cheating_peers")
    honest = importlib.import_module("fake_peers").GOOD
    peers = (
        honest,
        cheats.COPIES_TO_READ,
        cheats.FINDS_MEMORY_TAKEN,
        cheats.STOPS_AFTER_3,
        cheats.STOPS_AFTER_9,
        cheats.DOES_NOT_WAIT,
        cheats.GLANCES_LATE,
        cheats.TAKES_MORE_THREADS,
        *cheats.PEERS,
    )
    peers = (honest, *(peer for peer in peers[1:] if (peer.name in QUICK) == quick))
    plan = Plan((CASE,), peers, "good", Settings(Pace(3), 1, warm_up_seconds=0.2))
    os.environ[MARK] = str(os.getpid())
    yield {row.peer: row for row in runner.run(plan).rows}
    os.environ.pop(MARK, None)  # the other run may have ended before
    sys.path.remove(here)
    assert until(lambda: not _workers_of_this_test(), 30.0)  # on a busy machine what is killed takes its time to go


def _workers_of_this_test() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit() and _is_worker_of_this_test(name)]


def _is_worker_of_this_test(process: str) -> bool:
    try:
        variables = Path("/proc", process, "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return int(process) != os.getpid() and f"{MARK}={os.getpid()}".encode() in variables


def test_the_honest_one_is_measured_and_judged_after_its_last_step(rows: dict[str, Row]) -> None:
    good = rows["good"]
    assert (good.status, good.reason) == ("ok", None)
    assert good.agreement is not None
    assert good.agreement.steps > 3


@pytest.mark.parametrize("name", [of(name) for name in ["stops after 3", "stops after 9"]])
def test_a_peer_that_stops_is_found_out(row: Row) -> None:
    assert row.status == "failed"
    assert "computes something else: after" in (row.reason or "")
    assert row.ratio is None


@pytest.mark.parametrize("name", [of(name) for name in ["does not wait", "glances late"]])
def test_a_peer_whose_wait_does_not_wait_is_found_out(row: Row) -> None:
    assert row.status == "failed"
    assert "its last element arrives after wait()" in (row.reason or "")


@pytest.mark.parametrize("name", [of(name) for name in ["copies to read", "finds memory taken"]])
def test_a_peer_that_does_what_may_look_like_it_is_not_taken_for_one(row: Row) -> None:
    assert (row.status, row.reason) == ("ok", None)


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one CPU has no other to take")
@pytest.mark.parametrize("name", [of(name) for name in ["takes more threads"]])
def test_a_peer_with_more_threads_is_found_out(row: Row) -> None:
    assert row.status == "failed"
    assert "it left the CPUs that it was given for its 1 threads" in (row.reason or "")


@pytest.mark.parametrize("name", [of(name) for name in OTHERS])
def test_other_cheats_are_found_out(row: Row, name: str) -> None:
    if name == "helper elsewhere" and (os.cpu_count() or 1) < 2:
        pytest.skip("one CPU has no other to take")
    assert row.status == "failed"
    said = OTHERS[name]
    reason = row.reason or ""
    assert any(each in reason for each in ([said] if isinstance(said, str) else said)), reason


def of_samples(row: Row, peer: str, samples: Sequence[tuple[float, float]]) -> Row:
    """A row with these times and latencies of rounds in five processes."""
    made = tuple(Sample(0, i, 0, 10, *times, process=i % 5) for i, times in enumerate(samples))
    return replace(row, peer=peer, samples=made, median=median(s.seconds for s in made), others=None)


def test_work_that_is_left_to_a_few_rounds_or_to_the_wait_is_no_gain(rows: dict[str, Row]) -> None:
    usual = [1e-3 * factor for factor in (1.0, 1.01, 0.99, 1.02, 0.98)] * 20
    base = of_samples(rows["good"], "base", [(t, t) for t in usual])
    faster = of_samples(rows["good"], "faster", [(0.6 * t, 0.7 * t) for t in usual])
    left = of_samples(rows["good"], "left", [(4.6 * t if i % 10 == 9 else 0.6 * t, t) for i, t in enumerate(usual)])
    fused = of_samples(rows["good"], "fused", [(0.3 * t, t) for t in usual])
    _, one, two, three = (row.ratio for row in with_ratios([base, faster, left, fused], "base"))
    assert one is not None
    assert two is not None
    assert three is not None
    assert (one.verdict, two.verdict, three.verdict) == ("faster", "unclear", "unclear")
    assert "all rounds together take 0.992 of the time of base" in (two.why or "")
    assert "steps that are waited for take 1 of the time of base" in (three.why or "")


def test_a_clock_that_runs_slowly_is_found_by_another() -> None:
    assert suspicion.of_wall([(0.080, 0.079), (0.150, 0.070), (0.081, 0.080)]) is None, "one late answer"
    assert suspicion.of_wall([(0.090, 0.050)] * 2) is None, "too few"
    assert "its samples took 0.090 s, but 0.050 s by its own clock" in (suspicion.of_wall([(0.090, 0.050)] * 3) or "")


def test_a_speed_that_memory_does_not_have_is_refused_unless_the_work_is_tiny() -> None:
    large, tiny = 100 * 2**20, 2**20
    assert suspicion.of_roof(1.3, large) is None
    assert suspicion.of_roof(56_775.0, tiny) is None
    assert "5,677,500% of the memory bandwidth limit" in (suspicion.of_roof(56_775.0, large) or "")


def test_new_gradients_that_take_longer_now_and_then_are_no_sign_of_memory() -> None:
    assert suspicion.of_new_gradients([0.01, 0.02, 0.01], [0.04, 0.019, 0.05]) is None
    assert suspicion.of_new_gradients([0.01, 0.012, 0.011], [0.015, 0.018, 0.016]) is None, "what comes into the cache"
    assert suspicion.of_new_gradients([0.0001, 0.0001], [0.0018, 0.0019]) is None, "what a call costs"
    assert "takes 40 ms with new gradients and 10 ms" in (
        suspicion.of_new_gradients([0.01, 0.032, 0.01], [0.04, 0.033, 0.05]) or ""
    ), "one of the others may be slow, too"


def test_one_late_or_busy_sample_alone_is_no_cheat() -> None:
    quiet = [Sample(0, i, 0, 10, 0.01, cpus=1.0, late=0.0001) for i in range(5)]
    assert suspicion.of_samples([*quiet, Sample(0, 5, 0, 10, 0.01, cpus=2.0, late=0.2)], threads=1) is None


def test_two_late_samples_of_two_are_chance_and_three_are_not() -> None:
    late = [Sample(0, i, 0, 10, 0.01, late=0.2) for i in range(3)]
    assert suspicion.of_samples(late[:2], threads=1) is None
    assert "arrives after wait(), later by 200%" in (suspicion.of_samples(late, threads=1) or "")
