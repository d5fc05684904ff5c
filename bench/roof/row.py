"""One row of `dtopt bench roof`: the speed of one pattern of reads and writes on this machine."""

from __future__ import annotations

from dataclasses import dataclass

from bench.errors import ResultsError
from bench.results.kind import Reading, of_samples
from bench.results.records import REGIMES, Sample, check_samples, check_status, check_word


@dataclass(frozen=True)
class Row:
    """One pattern at one size with one number of threads. Sizes are bytes, times seconds.

    Attributes:
      pattern: of `bench.roof.patterns` or `bench.roof.device`; threads, working_set: the independent variables.
      regime: the memory that holds the working set.
      bytes_per_step: read and written by one step, every array of a pass once.
      samples: raw; median, mad: of their seconds per step.
      bytes_per_second: of the best sample.
      device: "cpu" or "gpu"; device_seconds: median per step between two events of the GPU.
      warnings: why the speed may be unreliable.
    """

    pattern: str
    threads: int
    working_set: int
    regime: str
    bytes_per_step: int
    samples: tuple[Sample, ...]
    median: float
    mad: float
    bytes_per_second: float
    rerun: str
    warnings: tuple[str, ...] = ()
    status: str = "ok"
    reason: str | None = None
    device: str = "cpu"
    device_seconds: float | None = None

    def check(self) -> None:
        """Check that the members agree with each other.

        Raises: ResultsError if the members contradict each other.
        """
        where = f"roof {self.pattern!r}"
        check_status(self.status, self.reason, where)
        check_word(self.regime, REGIMES, f"{where}: regime")
        check_samples(self.samples, where)
        if not self.samples or not self.bytes_per_second > 0:
            raise ResultsError(f"{where}: it holds no samples or no speed")


READING = Reading(("pattern", "threads", "working_set", "device"), ("bytes_per_step",), of_samples)
