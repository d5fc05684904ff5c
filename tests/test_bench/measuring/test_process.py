"""Real workers with fake peers: agreement, crashes, hangs, and nothing left behind."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from statistics import geometric_mean
from types import ModuleType

import pytest

from bench.cases.case import Case
from bench.cases.layouts import parse_mesh
from bench.measuring.process import WorkerError, worker_environment
from bench.measuring.rounds import Pace
from bench.results.document import Result
from bench.step import run as runner
from bench.step.contest import Settings
from bench.step.query import Plan
from bench.step.run import start
from tests.helpers.timing import HANGS
from tests.places import FAKES

CASE = Case("many-small", "adam", parse_mesh("model=2"), "replicated", threads=1)


@pytest.fixture(scope="module")
def fakes() -> Iterator[ModuleType]:
    """The module `fake_peers`, importable here and in workers."""
    sys.path.append(str(FAKES))
    yield importlib.import_module("fake_peers")
    sys.path.remove(str(FAKES))


@pytest.fixture(scope="module")
def result(fakes: ModuleType) -> Result:
    """One run with every kind of peer."""
    peers = (fakes.GOOD, fakes.TWIN, fakes.WRONG, fakes.CRASHES, fakes.RAISES, fakes.ABSENT)
    plan = Plan((CASE,), peers, "good", Settings(Pace(2), 1, warm_up_seconds=0.2))
    return runner.run(plan)


def test_good_peers_are_measured_and_compared(result: Result) -> None:
    good, twin = result.rows[:2]
    assert (good.status, twin.status) == ("ok", "ok")
    assert len(good.samples) == len(twin.samples) == 2
    assert good.agreement is not None
    assert good.agreement.error < 1e-5
    assert good.agreement.elements == 64_000
    assert twin.ratio is not None
    ratios = [mine.seconds / theirs.seconds for mine, theirs in zip(twin.samples, good.samples, strict=True)]
    assert twin.ratio.median == pytest.approx(geometric_mean(ratios), rel=0.01)
    assert (good.updated, twin.updated) == (64_000, 128_000)
    assert good.peak_bytes is not None
    assert good.peak_bytes > 10**7
    assert len(result.roofs) == 2


def test_a_wrong_peer_is_refused(result: Result) -> None:
    wrong = result.rows[2]
    assert (wrong.status, wrong.samples) == ("failed", ())
    assert wrong.reason is not None
    assert "computes something else" in wrong.reason


def test_a_crash_has_its_signal_as_the_reason(result: Result) -> None:
    crashed = result.rows[3]
    assert crashed.status == "failed"
    assert crashed.reason is not None
    assert crashed.reason.startswith("died of SIGABRT")


def test_an_exception_has_its_first_line_as_the_reason(result: Result) -> None:
    raised = result.rows[4]
    assert raised.status == "failed"
    assert raised.reason == "ValueError: the framework does not know this shape"


def test_an_absent_peer_starts_no_process(result: Result) -> None:
    absent = result.rows[5]
    assert (absent.status, absent.reason) == ("skipped", "nothing not installed: pip install nothing")


@pytest.mark.breadth
def test_a_hanging_worker_is_given_up_and_killed(fakes: ModuleType) -> None:
    for timeout in (2.0, 10.0, 30.0, HANGS / 2):  # as long as the good one needs, on a machine as busy as this one
        settings = Settings(Pace(1), 1, warm_up_seconds=timeout, timeout=timeout)
        good, hung = runner.run(Plan((CASE,), (fakes.GOOD, fakes.HANGS), "good", settings)).rows
        if good.status == "ok":
            break
    assert good.status == "ok"
    assert hung.status == "failed"
    assert hung.reason is not None
    assert hung.reason.startswith(f"gave no answer within {timeout:.0f} s while it was asked to")


def test_a_stopped_worker_leaves_no_process_and_no_folder(fakes: ModuleType) -> None:
    process = start(fakes.GOOD, CASE)
    process.answer(HANGS)
    child, folder = process._child.pid, process._folder
    process.stop()
    process.stop()
    assert not os.path.exists(folder)
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_worker_cannot_be_asked_what_it_does_not_know(fakes: ModuleType) -> None:
    process = start(fakes.GOOD, CASE)
    try:
        process.answer(HANGS)
        process.request("sample", steps=1)
        with pytest.raises(WorkerError, match="before it was asked to prepare"):
            process.answer(HANGS)
    finally:
        process.stop()


def test_all_thread_pools_are_set_alike() -> None:
    environment = worker_environment(3)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC")
    assert {environment[name] for name in names} == {"3"}


@pytest.mark.parametrize("chosen", [None, "PASSIVE"])
def test_how_openmp_waits_is_left_to_the_user(chosen: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """PASSIVE, which keeps idle workers quiet, makes torch's fused step on many small tensors 15 times slower."""
    for name in ("OMP_WAIT_POLICY", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    if chosen:
        monkeypatch.setenv("OMP_WAIT_POLICY", chosen)
    environment = worker_environment(2)
    assert environment.get("OMP_WAIT_POLICY") == chosen
    assert "KMP_BLOCKTIME" not in environment
