"""Records as JSON and back, checked against their own type hints, and the records that all kinds of results share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.errors import ResultsError

REGIMES = ("cache", "mixed", "dram", "unknown")
STATUSES = ("ok", "skipped", "failed", "interrupted")


@dataclass(frozen=True)
class Sample:
    """One sample.

    Attributes: group and round of the sample, from 0; place within the round, from 0; steps; seconds per step; process,
      from 0.

    Further, None if not measured: `latency`, seconds of a single step that is waited for; `step_share`, the step's part
      of forward, backward and step (in older results); `resident_bytes` of the process after the sample; `cpus`, CPUs
      that the peer's processes kept busy in the round for each second of the sample, `others`, the same for all other
      programs on these CPUs; `late`, seconds after the wait until the last element had arrived; `host`, seconds until
      the call of the step that is waited for had returned and left the work to the device; `device_seconds` per step
      between two events of the device, see `bench.measuring.events`.
    """

    group: int
    round: int
    position: int
    steps: int
    seconds: float
    latency: float | None = None
    step_share: float | None = None
    resident_bytes: int | None = None
    process: int = 0
    cpus: float | None = None
    others: float | None = None
    late: float | None = None
    host: float | None = None
    device_seconds: float | None = None

    @property
    def place(self) -> tuple[int, int, int]:
        """(group, round, process)."""
        return self.group, self.round, self.process


@dataclass(frozen=True)
class Roof:
    """In-place memory speed measured among the peers of one case: bytes per second of the best sample."""

    workload: str
    optimizer: str
    name: str
    bytes_per_step: int
    bytes_per_second: float
    samples: tuple[Sample, ...]


def check_status(status: str, reason: str | None, where: str) -> None:
    """Raise ResultsError for an unknown status, or one that is not "ok" without a reason."""
    check_word(status, STATUSES, f"{where}: status")
    if status != "ok" and not reason:
        raise ResultsError(f"{where}: it is {status!r} without a reason")


def check_word(word: str, allowed: tuple[str, ...], what: str) -> None:
    """Raise ResultsError if a word is not allowed."""
    if word not in allowed:
        raise ResultsError(f"{what} {word!r} is not one of {', '.join(allowed)}")


def check_samples(samples: tuple[Sample, ...], where: str) -> None:
    """Raise ResultsError for impossible times and steps."""
    for sample in samples:
        latency = sample.seconds if sample.latency is None else sample.latency
        if not (all(math.isfinite(t) and t > 0 for t in (sample.seconds, latency)) and sample.steps > 0):
            raise ResultsError(f"{where}: a sample of {sample.steps} steps and {sample.seconds} s is impossible")


def check_summary(what: str, stored: float | None, computed: float, where: str) -> None:
    """Raise ResultsError for a number that its own samples contradict."""
    if stored is not None and not math.isclose(stored, computed, rel_tol=1e-6, abs_tol=1e-12):
        raise ResultsError(
            f"{where}: its {what} is {stored:.6g}, but its samples give {computed:.6g}: the file was changed"
        )


def plain(value: Any) -> Any:
    """Convert records, mappings and tuples to JSON values; numbers that are not finite become None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read(kind: Any, members: Any, where: str) -> Any:
    """Convert JSON values to a record, or a tuple of them.

    Members that a record does not know are dropped; missing ones get their defaults.

    Args:
      kind: a dataclass whose hints give the types of its members, or `tuple[X, ...]` of one.
      where: for messages, such as `rows`.

    Raises: ResultsError, which names the member.
    """
    import msgspec

    try:
        return msgspec.convert(members, kind)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        raise ResultsError(f"the result is damaged: {where}{place.rstrip('`')}: {what}") from None
