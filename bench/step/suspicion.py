"""Detect times that cannot be those of the requested work, from a peer's own numbers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from bench.results.records import Sample
from bench.step.agreement import Agreement

MOST_OF_ROOF = 4.0
"""Impossible multiple of the memory bandwidth limit: a fused pass may beat a numpy pass, but not by this much."""

LEAST_JUDGED_BY_ROOF = 4 * 1024**2
"""Smallest working set in bytes that is judged by the memory bandwidth limit: below it, the limit measures the cost of
numpy calls.
"""

MORE_CPUS = 1.15
"""Factor on a peer's threads that its CPU use may reach, because the process has other work."""

MORE_THAN_SAID, UNTIMED = 2.0, 0.03
"""Factor on the time of the samples, and seconds to add, that a peer's threads may have worked in a round."""

MORE_THAN_TOLD, ANSWERED = 1.2, 0.02
"""Factor on the time that a worker reports for a sample, and seconds to add, within which it must answer."""

LEAST_DEFERRED = 0.5
"""Seconds by which the first reads may be slower than the second: copies of parameters."""

MORE_FOR_NEW, LEAST_FOR_NEW = 1.5, 2e-3
"""Factor on the typical step with known gradients, and seconds to add, above which a typical step with new gradients
shows that a peer remembers.
"""

LATE = 0.1
"""Fraction of a sample that may pass after `wait` until its last element is ready."""

LEAST_LATE = 1e-2
"""Seconds below which a late element is noise of the read, on a busy machine."""

FEWEST_SAMPLES = 3
"""Samples that must show it: one or two are slow by chance, if other programs run."""


def of_agreement(agreement: Agreement) -> str:
    """Explain that a peer computes something else."""
    off = "beyond all numbers" if agreement.error is None else f"by {agreement.error:.1e} of its movement"
    return (
        f"computes something else: after {agreement.steps:,} steps {agreement.worst_tensor} is off {off}"
        f" (allowed: {agreement.tolerance:.0e})"
    )


def of_samples(samples: Sequence[Sample], threads: int, took: str | None = None) -> str | None:
    """Explain that a peer used more CPUs than it has threads, or that its results came after `wait`.

    Args:
      took: resources that the peer used without permission.
    """
    if took:
        return f"it {took} for its {threads} threads: its times are not comparable"
    used = [sample.cpus for sample in samples if sample.cpus is not None]
    if used and median(used) > threads * MORE_CPUS:
        return f"its samples used {median(used):.1f} CPUs, but it may use {threads}: its times are not comparable"
    known = [(sample.late or 0.0, sample.seconds * sample.steps) for sample in samples]
    late = [seconds / whole for seconds, whole in known if seconds > LEAST_LATE]
    if _are_enough(late, samples) and median(late) > LATE:
        return f"its last element arrives after wait(), later by {median(late):.0%} of the time that was measured"
    return None


def _are_enough(suspicious: Sequence[object], samples: Sequence[object]) -> bool:
    return len(suspicious) >= FEWEST_SAMPLES and 2 * len(suspicious) > len(samples)


def of_clock(spent: Sequence[tuple[float, float]], threads: int) -> str | None:
    """Explain that a peer's process worked longer than its samples report.

    Args:
      spent: for each sample the CPU time of the peer's processes and the time of its steps that it reports, in seconds.
    """
    excesses = [(cpu, reported) for cpu, reported in spent if cpu > MORE_THAN_SAID * threads * reported + UNTIMED]
    if not _are_enough(excesses, spent):
        return None
    cpu, reported = (median(column) for column in zip(*excesses, strict=True))
    return (
        f"its processes used {cpu:.2f} s of CPU time, but it reports {reported:.3f} s for its samples:"
        " it works outside the timed steps, or its clock is wrong"
    )


def of_wall(clocks: Sequence[tuple[float, float]]) -> str | None:
    """Explain that a peer's samples took longer than it reports.

    Args:
      clocks: seconds of each sample by the clock of another process, and by the peer's own.
    """
    excesses = [(seen, reported) for seen, reported in clocks if seen > MORE_THAN_TOLD * reported + ANSWERED]
    if not _are_enough(excesses, clocks):
        return None
    seen, reported = (median(column) for column in zip(*excesses, strict=True))
    return (
        f"its samples took {seen:.3f} s, but {reported:.3f} s by its own clock: the clock is wrong, or it works untimed"
    )


def of_reading(first: float, second: float, timed: float) -> str | None:
    """Explain that a peer makes its steps when its parameters are read.

    Reading all parameters after the rounds takes about as long as the rounds, and reading them again does not.

    Args:
      first, second: seconds of both reads.
      timed: seconds of all samples.
    """
    if first - second <= LATE * timed or first - second <= LEAST_DEFERRED:
        return None
    return (
        f"reading its parameters took {first:.1f} s after rounds of {timed:.1f} s: it makes its steps when it is read"
    )


def of_new_gradients(known: Sequence[float], new: Sequence[float]) -> str | None:
    """Explain that a peer remembers results of a gradient.

    That is so if every step with new gradients is slower than the slowest of the others, and by far.

    Args:
      known: seconds of steps with gradients that the peer had before.
      new: seconds of the steps between them, with other gradients.
    """
    if min(new) <= max(known) or median(new) <= MORE_FOR_NEW * median(known) + LEAST_FOR_NEW:
        return None
    return (
        f"a step takes {median(new) * 1e3:.3g} ms with new gradients and {median(known) * 1e3:.3g} ms"
        " with known ones: it remembers gradients, but in training each is new"
    )


def of_roof(fraction: float | None, working_set: int) -> str | None:
    """Explain that a peer moves more bytes than memory can."""
    if fraction is None or fraction <= MOST_OF_ROOF or working_set < LEAST_JUDGED_BY_ROOF:
        return None
    return f"moves {fraction:,.0%} of the memory bandwidth limit: it cannot have done the work in that time"
