"""`check`: what makes a run or a machine doubtful, on made-up samples and a made-up /proc and /sys."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from bench.check import findings, machine
from bench.check import run as of_run
from bench.kinds import load
from bench.measuring.stats import Ratio, median_absolute_deviation
from bench.results.document import Result
from bench.results.records import Sample
from bench.step.row import Row
from tests.places import RESULTS, ROOT

SOURCE = RESULTS / "step-v1.json"


def result(times: Any, **context: Any) -> Result:
    """One row with these times, nothing else to complain about."""
    loaded = load(SOURCE)
    row: Row = next(row for row in loaded.rows if row.status == "ok")
    seconds = [float(value) for value in times]
    row = replace(
        row,
        samples=tuple(Sample(0, i, 0, 1, value) for i, value in enumerate(seconds)),
        median=median(seconds),
        mad=median_absolute_deviation(seconds),
        bytes_per_second=row.bytes_per_step / median(seconds),
        warm_up=None,
    )
    quiet = {**loaded.context, "busy": False, "governor": "performance", **context}
    return Result(quiet, (), (row,))


def quiet(size: int = 30, seed: int = 0) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).normal(0.0, 0.01, size))


def what(found: Any) -> list[tuple[str, str]]:
    return [(finding.severity, finding.what) for finding in found]


def test_quiet_runs_are_stable() -> None:
    for seed in range(20):
        assert of_run.check(result(quiet(seed=seed))) == ()


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (quiet() * np.linspace(1.0, 1.3, 30), ("noisy", "drift")),
        (quiet() * np.where(np.arange(30) % 3 == 0, 1.3, 1.0), ("noisy", "modes")),
        (quiet() * np.where(np.arange(30) == 7, 3.0, 1.0), ("warning", "outliers")),
        (quiet() * np.where(np.arange(30) % 8 == 0, 3.0, 1.0), ("noisy", "outliers")),
        (np.exp(np.random.default_rng(1).normal(0.0, 0.4, 30)), ("warning", "spread")),
        (np.exp(np.random.default_rng(1).normal(0.0, 0.9, 30)), ("noisy", "spread")),
    ],
)
def test_what_a_row_shows(times: Any, expected: tuple[str, str]) -> None:
    found = of_run.check(result(times))
    assert expected in what(found)
    assert findings.stable(found) == all(severity != "noisy" for severity, _ in what(found))


def test_spread_alone_is_no_drift_and_no_two_modes() -> None:
    for seed in range(50):
        times = np.exp(np.random.default_rng(seed).normal(0.0, 0.2, 30))
        assert "modes" not in [word for _, word in what(of_run.check(result(times)))]


def compared(mine: Any, base: Any, others: float = 0.0, waits: str = "sleeps") -> Result:
    """Two peers whose first one was called faster."""
    row = result(base).rows[0]
    rows = [
        replace(
            row,
            peer=peer,
            samples=tuple(Sample(0, i, 0, 1, float(value), process=i % 3) for i, value in enumerate(times)),
            median=median(map(float, times)),
            mad=median_absolute_deviation([float(value) for value in times]),
            bytes_per_second=row.bytes_per_step / median(map(float, times)),
            others=others,
            waits=waits if peer == "mine" else "sleeps",
            ratio=Ratio("base", 0.8, 0.79, 0.81, len(times), "faster" if peer == "mine" else "same", 3),
            beside=(),
        )
        for peer, times in (("mine", mine), ("base", base))
    ]
    context = {**load(SOURCE).context, "busy": False, "governor": "performance", "load": 0.1}
    return Result(context, (), tuple(rows))


def noisy(run: Result) -> list[str]:
    return [finding.what for finding in of_run.check(run) if finding.severity == "noisy"]


def test_a_verdict_stands_whatever_both_peers_have_in_common() -> None:
    phases = np.linspace(1.0, 2.0, 60) * np.where(np.arange(60) % 2, 1.0, 1.6)
    run = compared(0.8 * quiet(60) * phases, quiet(60, 1) * phases)
    assert noisy(run) == []
    assert ("warning", "drift") in what(of_run.check(run))


@pytest.mark.parametrize(
    ("mine", "others", "waits", "expected"),
    [
        (np.exp(np.random.default_rng(2).normal(0.0, 0.3, 60)), 0.0, "sleeps", ["verdict"]),
        (np.full(60, 0.8), 0.5, "spins", ["verdict"]),
        (np.full(60, 0.8), 0.5, "sleeps", []),
        (np.linspace(1.0, 0.63, 60) * np.exp(np.random.default_rng(3).normal(0.0, 0.1, 60)), 0.0, "sleeps", ["drift"]),
        (np.where(np.arange(60) % 3 == 1, 3.0, 0.9), 0.0, "sleeps", ["verdict"]),
        (np.where(np.random.default_rng(4).random(60) < 0.3, 1.8, 0.9), 0.0, "sleeps", ["verdict"]),
    ],
)
def test_what_stands_against_a_verdict(mine: Any, others: float, waits: str, expected: list[str]) -> None:
    assert noisy(compared(mine * quiet(60), quiet(60, 1), others, waits)) == expected


def test_what_has_no_verdict_is_told_and_misleads_nobody() -> None:
    run = compared(quiet(5), quiet(5, 1))
    bare = Ratio("base", 1.0, None, None, 5, "unclear", 1)
    run = replace(run, rows=tuple(replace(row, ratio=bare) for row in run.rows))
    told = [finding.text for finding in of_run.check(run) if finding.severity == "information"]
    assert "1 of 1 have no interval" in told[0]
    assert "one process of each peer" in told[1]
    assert noisy(run) == []


def test_a_busy_run_that_did_not_see_who_used_the_cpus_is_not_believed() -> None:
    run = compared(0.8 * quiet(60), quiet(60, 1))
    rows = tuple(replace(row, others=None) for row in run.rows)
    assert noisy(replace(run, rows=rows)) == []
    assert noisy(replace(run, rows=rows, context={**run.context, "load": 8.0, "cpus": 2})) == ["load"]


@pytest.mark.parametrize("path", sorted((ROOT / "docs/benchmarks").glob("*.json")), ids=lambda path: path.stem)
def test_every_run_of_the_page_can_be_believed(path: Path) -> None:
    assert noisy(load(path)) == []


def test_what_the_context_says() -> None:
    found = of_run.check(result(quiet(), busy=True, load=3.0, governor="powersave"))
    assert what(found) == [("warning", "load"), ("information", "frequency")]
    assert findings.stable(found)
    loaded = load(SOURCE)
    assert ("warning", "failed") in what(of_run.check(loaded))


class Kernel:
    """A /proc and /sys whose counters move on with each piece of work."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.time = count()
        self.busy = self.throttled = self.stolen = 0
        self.pieces = 0
        self.clocks = (3_000_000, 3_000_000)
        self.write()

    def write(self) -> None:
        self._put("proc/stat", f"cpu {self.pieces * 4} 0 0 {self.pieces * 4} 0 0 0 {self.stolen * self.pieces}\n")
        self._put("proc/77/stat", f"77 (another one) R {' '.join(['0'] * 10)} {self.busy * self.pieces} 0 0")
        cpu = "sys/devices/system/cpu/cpu0"
        self._put(f"{cpu}/thermal_throttle/core_throttle_count", str(self.throttled * self.pieces))
        self._put(f"{cpu}/cpufreq/scaling_cur_freq", str(self.clocks[0]))
        self._put(f"{cpu}/cpufreq/cpuinfo_max_freq", str(self.clocks[1]))
        self._put(f"{cpu}/cpufreq/scaling_governor", "performance")

    def _put(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def work(self) -> None:
        self.pieces += 1
        self.write()

    def look(self, load: float = 0.0, slow: float = 0.0) -> list[tuple[str, str]]:
        times = [0.0]

        def clock() -> float:
            times[0] += 1.0 + slow * self.pieces
            return times[0]

        return what(machine.check(40.0, self.root, clock, self.work, lambda: load))


def test_a_quiet_machine_is_stable(tmp_path: Path) -> None:
    assert Kernel(tmp_path).look() == []


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"throttled": 1}, ("noisy", "throttling")),
        ({"stolen": 1}, ("noisy", "stolen")),
        ({"clocks": (1_000_000, 3_000_000)}, ("warning", "frequency")),
        ({"busy": 8}, ("noisy", "processes")),
    ],
)
def test_what_the_kernel_shows(tmp_path: Path, members: dict[str, Any], expected: tuple[str, str]) -> None:
    kernel = Kernel(tmp_path)
    for name, value in members.items():
        setattr(kernel, name, value)
    assert kernel.look() == [expected]


def test_other_processes_are_named(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.busy = 8
    found = machine.check(40.0, tmp_path, count().__next__, kernel.work, lambda: 0.0)
    assert "another one (pid 77" in next(finding.text for finding in found if finding.what == "processes")


def test_load_and_uneven_work(tmp_path: Path) -> None:
    assert ("warning", "load") in Kernel(tmp_path).look(load=0.6)
    assert ("noisy", "load") in Kernel(tmp_path).look(load=1000.0)
    assert ("noisy", "drift") in Kernel(tmp_path).look(slow=0.1)


def test_the_real_machine_can_be_read() -> None:
    reading = machine.read()
    assert reading.ticks > 0
    assert len(reading.processes) > 0
    assert all(finding.severity in findings.SEVERITIES for finding in machine.check(0.05))
