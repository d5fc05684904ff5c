"""Check whether this machine is quiet: load, other processes by name, clock frequency, throttling, and how evenly a
fixed piece of work runs. Only Linux reports all of these; checks without data are left out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.check.findings import Finding
from bench.check.run import drift
from bench.measuring import stats
from bench.measuring.clock import Clock
from bench.measuring.environment import BUSY_LOAD
from bench.measuring.stats import UNSTEADY_IQR, VERY_UNSTEADY_IQR

SHARE_NAMED = 0.05
"""SHARE: fraction of one CPU from which another process is named. SHARE_NOISY: fraction from which all of them together
make the machine noisy.
"""

SHARE_NOISY = 0.25
SLOWEST_CLOCK = 0.8
"""A core's clock is reported if it is below this fraction of its highest frequency."""

STOLEN = 0.02
"""Fraction of the time that the hypervisor may give to others."""

PIECES = 40
MOST_NAMED = 5


@dataclass(frozen=True)
class Reading:
    """The kernel's counters at one moment.

    Attributes: clock ticks of each process, {pid: (name, ticks)}; ticks of all CPUs and those stolen by the hypervisor;
      times that cores or the control group were throttled.
    """

    processes: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    ticks: int = 0
    stolen: int = 0
    throttled: int = 0


def check(
    seconds: float = 2.0,
    root: Path = Path("/"),
    clock: Clock = time.perf_counter,
    work: Callable[[], object] | None = None,
    load: Callable[[], float] = lambda: os.getloadavg()[0],
) -> tuple[Finding, ...]:
    """Watch the machine for about `seconds`; `root` is the parent folder of /proc and /sys."""
    before = read(root)
    pieces = even_work(seconds, clock, work or _work)
    after = read(root)
    cpus = len(os.sched_getaffinity(0))
    results = [*_load(load(), cpus), *_processes(before, after, cpus), *_throttling(before, after), *_frequency(root)]
    return (*results, *_pieces(pieces))


def read(root: Path = Path("/")) -> Reading:
    """Return the kernel's current counters."""
    ticks = (
        [int(word) for word in _text(root / "proc/stat").splitlines()[0].split()[1:]]
        if _text(root / "proc/stat")
        else []
    )
    self_pid = os.getpid()
    processes = dict(_processes_of(root, self_pid))
    cores = (root / "sys/devices/system/cpu").glob("cpu*/thermal_throttle/core_throttle_count")
    throttled = sum(int(_text(path) or 0) for path in cores)
    group = dict(line.split()[:2] for line in _text(root / "sys/fs/cgroup/cpu.stat").splitlines() if " " in line)
    return Reading(
        processes,
        sum(ticks[:8]),
        ticks[7] if len(ticks) > 7 else 0,
        throttled + int(group.get("nr_throttled", 0)),
    )


def _processes_of(root: Path, self_pid: int) -> Iterator[tuple[int, tuple[str, int]]]:
    for path in (root / "proc").glob("[0-9]*/stat"):
        name, _, rest = _text(path).partition(") ")
        words = rest.split()
        if len(words) > 12 and int(path.parent.name) != self_pid:
            yield int(path.parent.name), (name.partition("(")[2], int(words[11]) + int(words[12]))


def even_work(seconds: float, clock: Clock, work: Callable[[], object]) -> list[float]:
    """Return the seconds of PIECES equal pieces of work, one after the other for about `seconds`."""
    start = clock()
    work()
    repeats = max(1, int(seconds / PIECES / max(clock() - start, 1e-6)))
    durations = []
    for _ in range(PIECES):
        start = clock()
        for _ in range(repeats):
            work()
        durations.append((clock() - start) / repeats)
    return durations


def _work() -> int:
    return sum(i * i for i in range(20_000))


def _load(load: float, cpus: int) -> Iterator[Finding]:
    if load > BUSY_LOAD:
        severity = "noisy" if load > cpus else "warning"
        yield Finding(
            severity, "load", "machine", f"{load:.1f} processes want to run, mean of a minute, on {cpus} CPUs"
        )


def _processes(before: Reading, after: Reading, cpus: int) -> Iterator[Finding]:
    elapsed = (after.ticks - before.ticks) / (os.cpu_count() or cpus)
    if elapsed <= 0:
        return
    used = {
        pid: (name, (ticks - before.processes[pid][1]) / elapsed)
        for pid, (name, ticks) in after.processes.items()
        if pid in before.processes
    }
    busy = sorted((share, pid, name) for pid, (name, share) in used.items() if share >= SHARE_NAMED)[::-1]
    if busy:
        named = ", ".join(f"{name} (pid {pid}, {share:.0%} of a CPU)" for share, pid, name in busy[:MOST_NAMED])
        more = f" and {len(busy) - MOST_NAMED} more" if len(busy) > MOST_NAMED else ""
        severity = "noisy" if sum(share for share, _, _ in busy) > SHARE_NOISY else "warning"
        yield Finding(severity, "processes", "machine", f"others are running: {named}{more}")


def _throttling(before: Reading, after: Reading) -> Iterator[Finding]:
    if after.throttled > before.throttled:
        times = after.throttled - before.throttled
        yield Finding(
            "noisy", "throttling", "machine", f"throttled {times} times meanwhile: by heat, or by a CPU quota"
        )
    elapsed = after.ticks - before.ticks
    stolen = (after.stolen - before.stolen) / elapsed if elapsed > 0 else 0.0
    if stolen > STOLEN:
        yield Finding("noisy", "stolen", "machine", f"the hypervisor gave {stolen:.0%} of the CPUs' time to others")


def _frequency(root: Path) -> Iterator[Finding]:
    for folder in sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq")):
        now, most = (_text(folder / name) for name in ("scaling_cur_freq", "cpuinfo_max_freq"))
        core = folder.parent.name
        if now and most and int(now) < SLOWEST_CLOCK * int(most):
            text = f"runs at {int(now) / 1e6:.1f} of {int(most) / 1e6:.1f} GHz"
            yield Finding("warning", "frequency", core, text)
        governor = _text(folder / "scaling_governor")
        if core == "cpu0" and governor and governor != "performance":
            yield Finding("information", "frequency", "machine", f"the governor is {governor!r}: clocks may change")


def _pieces(pieces: list[float]) -> Iterator[Finding]:
    spread = stats.relative_iqr(pieces)
    if spread > UNSTEADY_IQR:
        severity = "noisy" if spread > VERY_UNSTEADY_IQR else "warning"
        yield Finding(severity, "spread", "a fixed piece of work", f"took times that spread by {spread:.0%}")
    change = drift(pieces)
    if change is not None:
        yield Finding("noisy", "drift", "a fixed piece of work", f"{change:+.0%} from the first half to the second")


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
