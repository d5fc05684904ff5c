"""What a peer's own numbers say against it: times that cannot be those of the work that was to be done."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from bench.results.records import Sample
from bench.step.agreement import Agreement

MOST_OF_ROOF = 4.0
"""Times the best roof that nobody reaches: a fused pass may beat a numpy roof, but not by this much."""

LEAST_JUDGED_BY_ROOF = 4 * 1024**2
"""Bytes of the working set below which a roof shows what calling numpy costs, and no peer is judged by it."""

MORE_CPUS = 1.15
"""Times its threads that a peer may use of the CPUs, for what else the process does."""

MORE_THAN_SAID, UNTIMED = 2.0, 0.03
"""Times what its samples took, and seconds more, that a peer's threads may have worked in a round."""

MORE_THAN_TOLD, ANSWERED = 1.2, 0.02
"""Times what a worker says that a sample took, and seconds more, after which it answers."""

LEAST_DEFERRED = 0.5
"""Seconds by which the first reads may be slower than the second: copies of parameters."""

MORE_FOR_NEW, LEAST_FOR_NEW = 1.5, 2e-3
"""Times the usual step with known gradients, and seconds more, that the usual one with new ones takes where a peer
remembers."""

LATE = 0.1
"""Part of a sample that may pass after `wait` until its last element is there."""

LEAST_LATE = 1e-2
"""Seconds below which what comes late is the noise of a read, on a busy machine."""


def of_agreement(agreement: Agreement) -> str:
    """The reason of a peer that computes something else."""
    off = "beyond all numbers" if agreement.error is None else f"by {agreement.error:.1e} of its movement"
    return (
        f"computes something else: after {agreement.steps:,} steps {agreement.worst_tensor} is off {off}"
        f" (allowed: {agreement.tolerance:.0e})"
    )


def of_samples(samples: Sequence[Sample], threads: int, took: str | None = None) -> str | None:
    """The reason of a peer that used more CPUs than it has threads, or whose results came after `wait`; `took`: what it
    has that it was not given."""
    if took:
        return f"it {took} for its {threads} threads: its times are not comparable"
    used = [sample.cpus for sample in samples if sample.cpus is not None]
    if used and median(used) > threads * MORE_CPUS:
        return f"its samples used {median(used):.1f} CPUs, and it was given {threads}: its times are not comparable"
    known = [(sample.late or 0.0, sample.seconds * sample.steps) for sample in samples]
    late = [seconds / whole for seconds, whole in known if seconds > LEAST_LATE]
    if 2 * len(late) > len(samples) and median(late) > LATE:
        return f"its last element arrives after wait(), later by {median(late):.0%} of the time that was measured"
    return None


def of_clock(spent: Sequence[tuple[float, float]], threads: int) -> str | None:
    """The reason of a peer whose process worked longer than its samples say that they took.

    Args:
      spent: of each sample the CPU time of the peer's processes and what it says that its steps took, seconds.
    """
    found = [(cpu, said) for cpu, said in spent if cpu > MORE_THAN_SAID * threads * said + UNTIMED]
    if 2 * len(found) <= len(spent):
        return None
    cpu, said = (median(column) for column in zip(*found, strict=True))
    return (
        f"its processes used {cpu:.2f} s of CPU time for samples that took {said:.3f} s, as it says:"
        " it works when it is not timed, or its clock is wrong"
    )


def of_wall(clocks: Sequence[tuple[float, float]]) -> str | None:
    """The reason of a peer whose samples took longer than it says.

    Args:
      clocks: seconds of each sample by the clock of another process, and by the peer's own.
    """
    found = [(seen, said) for seen, said in clocks if seen > MORE_THAN_TOLD * said + ANSWERED]
    if 2 * len(found) <= len(clocks):
        return None
    seen, said = (median(column) for column in zip(*found, strict=True))
    return f"its samples took {seen:.3f} s, and {said:.3f} s by its own clock, which is wrong, or it works untimed"


def of_reading(first: float, second: float, timed: float) -> str | None:
    """The reason of a peer that makes its steps when it is read: to read all parameters after the rounds takes as long
    as much of them, and to read them again does not. Arguments: seconds of both and of all samples."""
    if first - second <= LATE * timed or first - second <= LEAST_DEFERRED:
        return None
    return (
        f"to read its parameters took {first:.1f} s after rounds of {timed:.1f} s: it makes its steps when it is read"
    )


def of_new_gradients(known: Sequence[float], new: Sequence[float]) -> str | None:
    """The reason of a peer that remembers what it computed of a gradient: none of its steps with new ones is as fast as
    the slowest of the others, and they are slower by far.

    Args:
      known: seconds of steps with gradients that it has had; new: of those between them, with others.
    """
    if min(new) <= max(known) or median(new) <= MORE_FOR_NEW * median(known) + LEAST_FOR_NEW:
        return None
    return (
        f"a step takes {median(new) * 1e3:.3g} ms with gradients that it has not had, and {median(known) * 1e3:.3g} ms"
        " with others: it remembers them, and in training each is new"
    )


def of_roof(fraction: float | None, working_set: int) -> str | None:
    """The reason of a peer that moves more than memory can."""
    if fraction is None or fraction <= MOST_OF_ROOF or working_set < LEAST_JUDGED_BY_ROOF:
        return None
    return f"moves {fraction:,.0%} of what memory can: it cannot have done the work in that time"
