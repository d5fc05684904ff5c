"""Who used the CPUs during a sample: the processes of the peer, and others. None where Linux's /proc says nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TICK = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Use:
    """Seconds of CPU time. Attributes: own: of a session of processes; others: of everything else on the same CPUs."""

    own: float
    others: float


@dataclass(frozen=True)
class Reading:
    """Seconds of CPU time so far: of a session of processes, of this process, of all on the CPUs."""

    session: float
    parent: float
    everyone: float


def read(session: int, cpus: Sequence[int]) -> Reading | None:
    """The counters now; `session` is the id of the processes' session."""
    try:
        busy = _busy(cpus)
    except OSError:
        return None
    return Reading(_of_session(session), sum(os.times()[:2]), busy)


def between(before: Reading | None, after: Reading | None) -> Use | None:
    """What was used from one reading to another."""
    if before is None or after is None:
        return None
    own = after.session - before.session
    rest = after.everyone - before.everyone - own - (after.parent - before.parent)
    return Use(own, max(0.0, rest))


def escaped(session: int, cpus: Sequence[int]) -> bool:
    """Whether a thread of a session of processes may run on other CPUs than these."""
    for process in _processes(session):
        for thread in _entries(Path("/proc", process, "task")):
            try:
                if not os.sched_getaffinity(int(thread)) <= set(cpus):
                    return True
            except OSError:  # ended meanwhile
                continue
    return False


def _entries(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.isdigit()]
    except OSError:
        return []


def _processes(session: int) -> Iterator[str]:
    for name in _entries(Path("/proc")):
        if _stat(name)[3:4] == [str(session)]:
            yield name


def _stat(process: str) -> list[str]:
    """What follows the name in /proc/PID/stat; nothing for a process that has ended."""
    try:
        return Path("/proc", process, "stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def _busy(cpus: Sequence[int]) -> float:
    wanted = {f"cpu{number}" for number in cpus}
    total = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name in wanted:  # user nice system idle iowait irq softirq steal
            numbers = [int(tick) for tick in ticks[:8]]
            total += sum(numbers) - sum(numbers[3:5])
    return total * TICK


def _of_session(session: int) -> float:
    found = (_stat(name) for name in _processes(session))
    return sum(int(ticks) for stat in found for ticks in stat[11:13]) * TICK
