"""One row of `dtopt bench migrate`: one format of checkpoints at one size."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bench.errors import ResultsError
from bench.results.kind import Reading, Values
from bench.results.records import check_status

COMMANDS = ("cp", "migrate", "verify", "inspect", "cp, dropped", "migrate, dropped")


@dataclass(frozen=True)
class Command:
    """One command in every round.

    Attributes: name, one of COMMANDS ("dropped": the input is not in the page cache); seconds of each round, including
      the start of the process; peak_bytes: most resident memory of any round, None for `cp`; bytes_per_second: of the
      input, by the median.
    """

    name: str
    seconds: tuple[float, ...]
    median: float
    bytes_per_second: float
    peak_bytes: int | None = None


@dataclass(frozen=True)
class OfCopy:
    """Throughput over that of `cp` and `sync` in the same rounds.

    Attributes: median; low, high: 95% interval or None; rounds.
    """

    median: float
    low: float | None
    high: float | None
    rounds: int


@dataclass(frozen=True)
class Row:
    """One input. Sizes are bytes, times seconds.

    Attributes:
      format, tensor_bytes (the requested size): the independent variables.
      bytes: of the files; largest_tensor_bytes.
      commands: in the order of COMMANDS; of_copy, of_copy_dropped: see OfCopy.
      rerun: the command that measures this row again.
    """

    format: str
    tensor_bytes: int
    status: str
    reason: str | None
    rerun: str
    bytes: int | None = None
    largest_tensor_bytes: int | None = None
    commands: tuple[Command, ...] = ()
    of_copy: OfCopy | None = None
    of_copy_dropped: OfCopy | None = None

    def check(self) -> None:
        """Check that the members agree with each other.

        Raises: ResultsError if the members contradict each other.
        """
        where = f"migration of {self.format}"
        check_status(self.status, self.reason, where)
        if self.status == "ok" and not self.commands:
            raise ResultsError(f"{where}: it is 'ok' but holds no times")
        for command in self.commands:
            if not command.seconds or not all(math.isfinite(s) and s > 0 for s in command.seconds):
                raise ResultsError(f"{where}: the times of {command.name!r} are impossible")


def _seconds(row: Row) -> Values:
    return {command.name: command.seconds for command in row.commands}


READING = Reading(("format", "tensor_bytes"), ("bytes",), _seconds)
