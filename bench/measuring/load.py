"""Measure who used the CPUs during a sample: the peer's processes, and others. None if Linux's /proc lacks the
numbers."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TICK = 1.0 / os.sysconf("SC_CLK_TCK")

PARENT, SESSION = 1, 3
"""Indices into the result of `_stat`."""


@dataclass(frozen=True)
class Use:
    """Seconds of CPU time.

    Attributes: of_sessions: of each session of processes; others: of everything else on the CPUs.
    """

    of_sessions: Mapping[int, float]
    others: float


@dataclass(frozen=True)
class Reading:
    """Seconds of CPU time so far: of each session of processes, of this process, of everything on the CPUs."""

    sessions: Mapping[int, float]
    parent: float
    everyone: float


def read(sessions: Collection[int], cpus: Sequence[int]) -> Reading | None:
    """Return the current counters; `sessions` are the ids of processes' sessions."""
    try:
        busy = _busy(cpus)
    except OSError:
        return None
    return Reading(_of_sessions(sessions), sum(os.times()[:2]), busy)


def between(before: Reading | None, after: Reading | None) -> Use | None:
    """Return the use between two readings, for the sessions that are in both."""
    if before is None or after is None:
        return None
    session_seconds = {
        name: after.sessions[name] - before.sessions[name] for name in after.sessions if name in before.sessions
    }
    rest = after.everyone - before.everyone - sum(session_seconds.values()) - (after.parent - before.parent)
    return Use(session_seconds, max(0.0, rest))


def find_violations(sessions: Collection[int], cpus: Sequence[int]) -> dict[int, str]:
    """Return the sessions with a thread that exceeds its CPUs or its priority, and the violation."""
    violations = {}
    for process, session, _ in _processes(sessions):
        for thread in map(int, _entries(Path("/proc", process, "task"))):
            try:
                if not os.sched_getaffinity(thread) <= set(cpus):
                    violations[session] = "left the CPUs that it was given"
                elif os.getpriority(os.PRIO_PROCESS, thread) < os.getpriority(os.PRIO_PROCESS, 0) or (
                    os.sched_getscheduler(thread) in (os.SCHED_FIFO, os.SCHED_RR)
                ):
                    violations[session] = "took a higher priority than it was given"
            except OSError:  # ended meanwhile
                continue
    return violations


def members(session: int) -> list[int]:
    """Return the processes of a session, and those that they started."""
    return [int(process) for process, _, _ in _processes([session])]


def _entries(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.isdigit()]
    except OSError:
        return []


def _processes(sessions: Collection[int]) -> Iterator[tuple[str, int, list[str]]]:
    """Yield process, session and numbers of all processes that belong to these sessions, directly or through an
    ancestor."""
    stats = {name: stat for name in _entries(Path("/proc")) if len(stat := _stat(name)) > SESSION}
    session_ids = {str(session) for session in sessions}
    for name, stat in stats.items():
        at: str | None = name
        while at in stats and stats[at][SESSION] not in session_ids:
            at = stats[at][PARENT]
        if at in stats:
            yield name, int(stats[at][SESSION]), stat


def _stat(process: str) -> list[str]:
    """Return the fields after the name in /proc/PID/stat; empty for a process that has ended."""
    try:
        return Path("/proc", process, "stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def _busy(cpus: Sequence[int]) -> float:
    cpu_names = {f"cpu{number}" for number in cpus}
    total = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name in cpu_names:  # user nice system idle iowait irq softirq steal
            numbers = [int(tick) for tick in ticks[:8]]
            total += sum(numbers) - sum(numbers[3:5])
    return total * TICK


def _of_sessions(sessions: Collection[int]) -> dict[int, float]:
    ticks_of = dict.fromkeys(sessions, 0)
    for _, session, stat in _processes(sessions):
        ticks_of[session] += sum(int(ticks) for ticks in stat[11:15])  # its own and those of children that have ended
    return {session: ticks * TICK for session, ticks in ticks_of.items()}
