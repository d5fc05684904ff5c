"""Interleaving, groups and failures with workers that are no processes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, replace
from math import exp
from pathlib import Path
from typing import Any

import pytest

from bench.cases.case import Case
from bench.cases.layouts import parse_mesh
from bench.measuring.process import UnsupportedCaseError, WorkerError
from bench.measuring.rounds import Pace
from bench.peers.abilities import Abilities
from bench.peers.peer import Home, Peer
from bench.results.document import Result
from bench.roof.patterns import ROOFS
from bench.step import run as runner
from bench.step.agreement import Agreement
from bench.step.contest import Contest, Settings
from bench.step.memory import SHARE, groups, need, too_large
from bench.step.query import Plan, make_plan
from bench.step.report import waiting

CASE = Case("gpt2:layer", "adam", parse_mesh("model=2"), "megatron", threads=1)
PLENTY = 10**15
ROOF_NAMES = {peer.name for peer, _ in ROOFS}


def peer(name: str, reason: str | None = None, on_mesh: bool = False) -> Peer:
    def prepare(case: Case) -> Any:
        raise AssertionError("a fake worker prepares nothing")

    return Peer(name, name, __name__, Abilities(("numpy",), "numpy", but=lambda case: reason), prepare, on_mesh=on_mesh)


class FakeWorker:
    """Answers as a worker would; `seconds(n)` gives sample number n, from 1, or raises."""

    log: list[tuple[str, str]]
    leak = 0
    alive = 0
    most_alive = 0

    def __init__(self, name: str, seconds: Callable[[int], float], error: float) -> None:
        self.name, self.seconds, self.error = name, seconds, error
        self.samples = 0
        self.stopped = False
        self.answers: list[Callable[[], dict[str, Any]]] = [dict]
        FakeWorker.alive += 1
        FakeWorker.most_alive = max(FakeWorker.alive, FakeWorker.most_alive)

    def request(self, do: str, **arguments: Any) -> None:
        self.log.append((self.name, do))
        self.answers.append(lambda: getattr(self, do)(**arguments))

    def answer(self, timeout: float) -> dict[str, Any]:
        return self.answers.pop(0)()

    def prepare(self) -> dict[str, Any]:
        return {"seconds": 1.0, "versions": {"numpy": "2"}}

    def check(self) -> dict[str, Any]:
        return {"first_step_seconds": 0.5, "agreement": asdict(Agreement(3, 10, self.error, "w", 2e-4))}

    def warm(self, most_seconds: float) -> dict[str, Any]:
        return {"steps": 6, "seconds": 0.1, "steady": True, "step_seconds": 0.01, "steps_per_sample": 10}

    def sample(self, steps: int) -> dict[str, Any]:
        self.samples += 1
        seconds = self.seconds(self.samples)
        resident = 10**9 + self.samples * self.leak
        return {
            "seconds": seconds,
            "latency": 1.5 * seconds,
            "late": None,
            "resident_bytes": resident,
            "peak_bytes": 1000,
            "device_peak_bytes": None,
        }

    def check_again(self, place: float) -> dict[str, Any]:
        return {
            "agreement": asdict(Agreement(30, 10, self.error, "w", 2e-4)),
            "reads": (0.1, 0.1),
            "changed": None,
            "spins": 0.004,
            "given": ([0.01], [0.01]),
        }

    def stop(self) -> None:
        if not self.stopped:
            FakeWorker.alive -= 1
        self.stopped = True


@pytest.fixture(autouse=True)
def _fresh_log() -> None:
    FakeWorker.log = []
    FakeWorker.alive = FakeWorker.most_alive = 0


def launcher(
    seconds: dict[str, Callable[[int], float]] | None = None, errors: dict[str, float] | None = None
) -> Callable[[Peer, Case], FakeWorker]:
    return lambda peer, case: FakeWorker(
        peer.name, (seconds or {}).get(peer.name, lambda n: 0.01), (errors or {}).get(peer.name, 1e-7)
    )


def run(peers: tuple[Peer, ...], rounds: int = 5, memory: int = PLENTY, **fakes: Any) -> Result:
    plan = Plan((CASE,), peers, "base", Settings(Pace(rounds), processes=1), seed=1)
    return runner.run(plan, launcher(**fakes), available_memory=lambda: memory)


def test_every_round_has_every_peer_and_roof_once_and_orders_differ() -> None:
    run((peer("a"), peer("base")), rounds=8)
    order = [name for name, what in FakeWorker.log if what == "sample"]
    rounds = [order[i : i + 4] for i in range(0, len(order), 4)]
    assert len(rounds) == 8
    assert all(set(one) == {"a", "base"} | ROOF_NAMES for one in rounds)
    assert len({tuple(one) for one in rounds}) > 3


def test_two_versions_make_as_many_steps_in_a_sample(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where others use the machine, twins with 13 and 7 steps differed by 9%: the longer sample has slower steps."""
    warm, most = FakeWorker.warm, {"a": 13, "a@other": 7, "base": 10}

    def calibrated(self: FakeWorker, most_seconds: float) -> dict[str, Any]:
        return {**warm(self, most_seconds), "steps_per_sample": most.get(self.name, 5)}

    monkeypatch.setattr(FakeWorker, "warm", calibrated)
    result = run((peer("a"), peer("a").at(Home("other", str(tmp_path))), peer("base")))
    assert [{sample.steps for sample in row.samples} for row in result.rows] == [{13}, {13}, {10}]


def test_two_versions_need_the_roofs_in_every_fourth_round_only() -> None:
    """Their ratio is of each other; each other run has them in every round, for `compare`."""
    ours = peer("base")
    for peers, part in (((ours, ours.at(Home("before", ""))), 4), ((ours, peer("a")), 1)):
        FakeWorker.log = []
        plan = Plan((CASE,), peers, "base", Settings(Pace(budget=0.2), processes=1), seed=1)
        rows = runner.run(plan, launcher(), available_memory=lambda: PLENTY).rows
        asked = [name for name, what in FakeWorker.log if what == "sample"]
        assert {len(row.samples) for row in rows} == {asked.count("base")}
        assert {asked.count(roof) for roof in ROOF_NAMES} == {-(-asked.count("base") // part)}


def test_the_order_follows_the_seed() -> None:
    logs = []
    for _ in range(2):
        FakeWorker.log = []
        run((peer("a"), peer("base")))
        logs.append(FakeWorker.log)
    assert logs[0] == logs[1]


def test_ratios_are_taken_within_rounds() -> None:
    result = run((peer("a"), peer("base")), seconds={"a": lambda n: 0.02 * n, "base": lambda n: 0.01 * n})
    a, base = result.rows
    assert a.ratio is not None
    assert (a.ratio.median, a.ratio.verdict) == (pytest.approx(2.0), "unclear")  # five rounds have no interval
    assert base.ratio is not None
    assert base.ratio.median == 1.0
    assert a.median == pytest.approx(0.06)
    assert a.mad == pytest.approx(0.02)


def test_the_roof_is_the_best_sample_of_the_best_roof() -> None:
    times = {name: lambda n: 0.01 / n for name in ROOF_NAMES}
    result = run((peer("base"),), seconds={**times, "base": lambda n: 0.01})
    best = max(roof.bytes_per_second for roof in result.roofs)
    assert best == pytest.approx(28 * CASE.mesh_elements / (0.01 / 5))
    row = result.rows[0]
    assert row.roof_fraction == pytest.approx(28 * CASE.elements / 0.01 / best)


def test_a_peer_that_is_not_there_is_skipped_with_its_reason() -> None:
    result = run((peer("gone", "gone not installed"), peer("base")))
    assert [(row.status, row.reason) for row in result.rows] == [("skipped", "gone not installed"), ("ok", None)]


def test_without_the_baseline_the_first_that_ran_takes_its_place() -> None:
    result = run((peer("a"), peer("b"), peer("base", "gone")))
    assert [row.ratio and row.ratio.baseline for row in result.rows] == ["a", "a", None]


def test_a_peer_that_computes_something_else_is_never_timed() -> None:
    result = run((peer("liar"), peer("base")), errors={"liar": 0.01})
    liar = result.rows[0]
    assert (liar.status, liar.samples, liar.median) == ("failed", (), None)
    assert liar.reason is not None
    assert "w is off by 1.0e-02" in liar.reason
    assert ("liar", "warm") not in FakeWorker.log


def test_a_peer_that_gives_nan_is_never_timed() -> None:
    assert run((peer("liar"), peer("base")), errors={"liar": float("nan")}).rows[0].status == "failed"


def test_a_peer_that_dies_between_rounds_keeps_its_samples_and_the_others_go_on() -> None:
    def dies(n: int) -> float:
        if n == 3:
            raise WorkerError("died of SIGABRT")
        return 0.01

    mortal, base = run((peer("mortal"), peer("base")), seconds={"mortal": dies}).rows
    assert (mortal.status, mortal.reason, len(mortal.samples), mortal.median) == ("failed", "died of SIGABRT", 2, None)
    assert (base.status, len(base.samples)) == ("ok", 5)


def test_what_a_peer_cannot_do_is_skipped_and_not_failed() -> None:
    def refuses(n: int) -> float:
        raise UnsupportedCaseError("its slots cannot be sharded")

    shy, base = run((peer("shy"), peer("base")), seconds={"shy": refuses}).rows
    assert (shy.status, shy.reason) == ("skipped", "its slots cannot be sharded")
    assert base.status == "ok"


def test_a_peer_whose_memory_grows_at_every_sample_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run((peer("base"),)).rows[0].warnings == ()
    monkeypatch.setattr(FakeWorker, "leak", 10 * 1024**2)
    grown = run((peer("base"),)).rows[0]
    assert grown.warnings == ("its memory grew by 31 MB in 30 steps: it may leak",)


def test_both_clocks_and_the_noise_are_in_the_row() -> None:
    steady = run((peer("base"),), rounds=5).rows[0]
    assert (steady.median, steady.latency, steady.noise) == (0.01, pytest.approx(0.015), "quiet")
    assert run((peer("base"),), rounds=3).rows[0].noise is None
    shaky = {"base": lambda n: 0.01 + 0.002 * (n % 3)}
    assert run((peer("base"),), rounds=6, seconds=shaky).rows[0].noise == "disturbed"


def test_a_case_too_large_to_check_is_skipped() -> None:
    made = launcher()

    def launch(peer: Peer, case: Case) -> FakeWorker:
        worker = made(peer, case)
        nothing = {"first_step_seconds": 1.0, "agreement": asdict(Agreement(3, 0, 0.0, "", 2e-4, 12))}
        worker.check = lambda: nothing  # type: ignore[method-assign]
        return worker

    plan = Plan((CASE,), (peer("base"),), "base", Settings(Pace(2), processes=1), seed=1)
    row = runner.run(plan, launch, available_memory=lambda: PLENTY).rows[0]
    assert row.status == "skipped"
    assert row.reason is not None
    assert "too large to check" in row.reason


def test_interruption_keeps_what_was_measured() -> None:
    def interrupts(n: int) -> float:
        if n == 4:
            raise KeyboardInterrupt
        return 0.01

    result = run((peer("a"), peer("base")), seconds={"a": interrupts})
    assert result.interrupted
    assert result.rows[0].status == "ok"
    assert len(result.rows[0].samples) == 3
    assert FakeWorker.alive == 0


def test_interruption_before_the_first_sample_says_so() -> None:
    def interrupts(n: int) -> float:
        raise KeyboardInterrupt

    everyone = dict.fromkeys(("a", "base", *ROOF_NAMES), interrupts)
    result = run((peer("a"), peer("base")), seconds=everyone)
    assert [row.status for row in result.rows] == ["interrupted", "interrupted"]


def test_all_workers_are_stopped() -> None:
    run((peer("a"), peer("base")))
    assert FakeWorker.alive == 0


def test_peers_that_do_not_fit_together_run_in_groups_with_the_baseline_in_each() -> None:
    peers = tuple(peer(name) for name in ("a", "b", "c", "base"))
    enough_for_three = int((3.5 * need(peers[0], CASE) + 6 * 4 * CASE.mesh_elements) / SHARE)
    result = run(peers, memory=enough_for_three)
    groups_of = {row.peer: {sample.group for sample in row.samples} for row in result.rows}
    assert groups_of == {"a": {0}, "b": {0}, "c": {1}, "base": {0, 1}}
    assert len(result.rows[3].samples) == 10
    assert [row.ratio.rounds for row in result.rows if row.ratio] == [5, 5, 5, 10]
    assert FakeWorker.most_alive == 3 + len(ROOF_NAMES)


def test_each_group_has_as_many_rounds_as_the_ratios_of_all_groups_need() -> None:
    peers = tuple(peer(name) for name in ("base", *"abcdefghi"))
    enough_for_two = int((2.5 * need(peers[0], CASE) + 6 * 4 * CASE.mesh_elements) / SHARE)
    plan = Plan((CASE,), peers, "base", Settings(Pace(budget=0.01), processes=1))
    result = runner.run(plan, launcher(), available_memory=lambda: enough_for_two)
    assert {sample.group for row in result.rows for sample in row.samples} == set(range(9))
    assert all(row.ratio and row.ratio.low for row in result.rows)


def test_a_peer_that_does_not_fit_beside_the_baseline_is_skipped() -> None:
    base, large = peer("base"), peer("large")
    just_one = int((1.5 * need(base, CASE) + 6 * 4 * CASE.mesh_elements) / SHARE)
    assert too_large(base, base, CASE, just_one) is None
    rows = run((large, base), memory=just_one).rows
    assert rows[0].status == "skipped"
    assert rows[0].reason is not None
    assert "not enough memory: large next to base needs" in rows[0].reason
    assert rows[1].status == "ok"


def test_groups_hold_everyone_once() -> None:
    peers = [peer(str(i)) for i in range(7)]
    found = groups(peers, peers[2], CASE, int(6 * need(peers[0], CASE)))
    assert all(group[0] is peers[2] for group in found)
    others = [one.name for group in found for one in group[1:]]
    assert others == ["0", "1", "3", "4", "5", "6"]


def test_many_peers_have_time_for_a_second_process_each() -> None:
    """15 seconds more for each beyond eight: a few are answered within a minute."""
    everyone = make_plan(peer=["all"])
    assert make_plan().settings.pace.budget == 60.0
    assert everyone.settings.pace.budget == 60.0 + 15.0 * (len(everyone.peers) - 8) > 200.0
    assert make_plan(peer=["all"], budget=30.0).settings.pace.budget == 30.0
    assert everyone.settings.processes_of(len(everyone.peers)) >= 2


def test_one_process_each_widens_the_intervals_on_cpus() -> None:
    """By 1.96 times a tenth: what processes differ by was not seen."""
    a, _ = run((peer("a"), peer("base")), rounds=20, seconds={"a": lambda n: 0.011}).rows
    assert a.ratio is not None
    assert (a.ratio.low, a.ratio.high) == pytest.approx((1.1 / exp(0.196), 1.1 * exp(0.196)), rel=1e-3)
    assert a.ratio.verdict == "unclear"


def test_progress_ends_at_its_total() -> None:
    seen: list[tuple[int, int]] = []
    contest = Contest(CASE, (peer("a"), peer("base")), Settings(Pace(2), processes=1), random.Random(0), launcher())
    contest.run("base", PLENTY, lambda what, done, of: seen.append((done, of)))
    assert seen == [(i, 16) for i in range(16)]


def test_an_own_algorithm_is_never_said_to_agree_with_the_reference() -> None:
    """Also where the run ends before it was seen to move."""

    class Stopped(FakeWorker):
        def sample(self, steps: int) -> dict[str, Any]:
            if self.samples == 2:
                raise KeyboardInterrupt
            return super().sample(steps)

    own = replace(peer("mine:R"), own_algorithm=True)
    plan = Plan((CASE,), (own,), "base", Settings(Pace(5), processes=1), seed=1)
    result = runner.run(
        plan, lambda peer, case: Stopped(peer.name, lambda n: 0.01, 0.5), available_memory=lambda: PLENTY
    )
    assert result.interrupted
    (row,) = result.rows
    assert (row.status, row.agreement) == ("ok", None)


def test_rounds_end_when_no_peer_is_left() -> None:
    """The roofs alone answer nothing."""
    result = run((peer("base"),), rounds=100, errors={"base": 0.5})
    assert [row.status for row in result.rows] == ["failed"]
    assert ("base", "sample") not in FakeWorker.log
    assert len([name for name, what in FakeWorker.log if what == "sample"]) == 0


@pytest.mark.parametrize("fails", [False, True])
def test_the_first_measured_peer_is_traced_after_the_last_round(fails: bool, tmp_path: Path) -> None:
    class Traced(FakeWorker):
        def trace(self, steps: int, path: str) -> dict[str, Any]:
            if fails:
                raise WorkerError("no profiler")
            Path(path).write_text(f"{self.name} {steps}")
            return {}

    settings = Settings(Pace(3), processes=2, profile=tmp_path / "t.json")
    plan = Plan((CASE,), (peer("wrong"), peer("a"), peer("base")), "base", settings, seed=1)
    errors = {"wrong": 0.5}
    result = runner.run(
        plan,
        lambda peer, case: Traced(peer.name, lambda n: 0.01, errors.get(peer.name, 0.0)),
        available_memory=lambda: PLENTY,
    )
    assert [row.status for row in result.rows] == ["failed", "ok", "ok"]
    asked = [what for name, what in FakeWorker.log if name == "a"]
    assert asked.count("trace") == 1
    assert asked.index("trace") > max(i for i, what in enumerate(asked) if what in ("sample", "check_again"))
    assert result.rows[1].warnings == (("there is no trace: no profiler",) if fails else ())
    if not fails:
        assert (tmp_path / "t.json").read_text() == "a 10"


def test_whose_threads_spin_is_measured_and_said() -> None:
    rows = run((peer("a"), peer("base"))).rows
    assert rows[0].spins == 0.004
    spin = "After a step threads of {} (4.00 ms of CPU time) spin before they sleep"
    assert waiting(rows) == spin.format("a (4.00 ms of CPU time), base") + "."
    asleep = [replace(rows[0], spins=0.0), rows[1]]
    assert waiting(asleep) == spin.format("base") + "; those of all others sleep at once."
    assert waiting(asleep[:1]) == "After a step the threads of all peers sleep until the next."
    assert waiting([replace(row, spins=None) for row in rows]) is None, "an older result"
