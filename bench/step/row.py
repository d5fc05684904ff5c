"""The row of `dtopt bench step`: one peer on one case."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from bench.errors import ResultsError
from bench.measuring.clock import WALL_CLOCK, WarmUp
from bench.measuring.stats import Place, Ratio, median_absolute_deviation
from bench.results.kind import Reading, of_samples
from bench.results.records import REGIMES, Sample, check_samples, check_status, check_summary, check_word
from bench.step.agreement import Agreement

VERDICTS = ("faster", "slower", "same", "unclear")
NOISE = ("quiet", "unsteady", "disturbed")
CACHES = ("warm", "cold")


@dataclass(frozen=True)
class Row:
    """One peer on one case. Times are in seconds, sizes in bytes; a value that was not measured is None.

    Attributes:
      workload, optimizer, peer, mesh, layout, device, threads, seed: independent variables; `optimizer` as `-o` takes
        it, such as "adam:amsgrad=true".
      dtype, clip, ema, accumulate, weight_decay, placement, sparse_rows, lazy_rows, cache, in_situ, where: the others,
        see `bench.cases.options.Options`.
      status: "ok", "skipped", "failed" or "interrupted"; reason: why it is not "ok".
      parameters, tensors: of the workload; updated: elements updated, replicas on the mesh counted.
      bytes_per_parameter, bytes_per_step: least traffic of a step with dense gradients, and times `updated`.
      touched_bytes: least traffic if only touched rows of the tables are updated; None with dense gradients.
      working_set, regime: bytes of parameters, gradients and slots, and the memory that holds them.
      samples: raw, in the order they were taken; median, mad: of their seconds per step; latency: median of theirs.
      bytes_per_second, roof_fraction: bytes_per_step over the median; and that over the highest memory bandwidth limit
        of the case.
      ratio: to the baseline; agreement: with the float64 reference.
      noise: "quiet", "unsteady" or "disturbed", from the spread of the samples; None if there are too few.
      step_share: with in_situ, the step's part of the time of forward, backward and step.
      prepare_seconds, first_step_seconds: imports and building; the step that traces or compiles.
      warm_up, peak_bytes, device_peak_bytes, versions: of the worker process.
      note: how the peer works, in a word or two; warnings: why its times may be unreliable.
      layout_notes: tensors that could not follow the layout rule.
      beside: for our own peers, the ratio to each other peer.
      waits: the library whose threads wait; spins: seconds of CPU time that they use after a step.
      cpus: busy CPUs of the peer on average; others: busy CPUs of all other programs.
      host, device_seconds: medians of the samples'.
      device_roof_fraction: bytes_per_step over device_seconds, as a fraction of the highest memory bandwidth limit of
        the case.
      clock: what timed the steps, and why device events did not.
      rerun: the command that measures this row again.
    """

    workload: str
    optimizer: str
    peer: str
    mesh: str
    layout: str
    device: str
    threads: int
    seed: int
    status: str
    reason: str | None
    parameters: int
    tensors: int
    updated: int
    bytes_per_parameter: float
    bytes_per_step: int
    working_set: int
    regime: str
    rerun: str
    dtype: str = "float32"
    clip: str | None = None
    ema: float | None = None
    accumulate: int = 1
    weight_decay: float | None = None
    placement: str = "like_variable"
    sparse_rows: int | None = None
    lazy_rows: bool = False
    cache: str = "warm"
    in_situ: bool = False
    where: str | None = None
    touched_bytes: int | None = None
    samples: tuple[Sample, ...] = ()
    median: float | None = None
    mad: float | None = None
    latency: float | None = None
    bytes_per_second: float | None = None
    roof_fraction: float | None = None
    ratio: Ratio | None = None
    agreement: Agreement | None = None
    noise: str | None = None
    step_share: float | None = None
    prepare_seconds: float | None = None
    first_step_seconds: float | None = None
    warm_up: WarmUp | None = None
    peak_bytes: int | None = None
    device_peak_bytes: int | None = None
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    note: str = ""
    warnings: tuple[str, ...] = ()
    layout_notes: tuple[str, ...] = ()
    beside: tuple[Ratio, ...] = ()
    waits: str = ""
    spins: float | None = None
    cpus: float | None = None
    others: float | None = None
    host: float | None = None
    device_seconds: float | None = None
    device_roof_fraction: float | None = None
    clock: str = WALL_CLOCK

    def times(self) -> dict[Place, float]:
        """Return the seconds per step by (group, round, process)."""
        return {sample.place: sample.seconds for sample in self.samples}

    def check(self) -> None:
        """Check that the members agree with each other.

        Raises: ResultsError if the members contradict each other.
        """
        where = f"row {self.peer!r} of {self.workload!r}"
        check_status(self.status, self.reason, where)
        check_word(self.regime, REGIMES, f"{where}: regime")
        check_word(self.cache, CACHES, f"{where}: cache")
        if self.noise is not None:
            check_word(self.noise, NOISE, f"{where}: noise")
        if self.ratio:
            check_word(self.ratio.verdict, VERDICTS, f"{where}: verdict")
        if self.status == "ok" and not (self.samples and self.median):
            raise ResultsError(f"{where}: it is 'ok' but holds no samples or no median")
        check_samples(self.samples, where)
        if self.status == "ok":
            seconds = [sample.seconds for sample in self.samples]
            check_summary("median", self.median, median(seconds), where)
            check_summary("mad", self.mad, median_absolute_deviation(seconds), where)
            speed = self.bytes_per_step / median(seconds)
            check_summary("bytes_per_second", self.bytes_per_second, speed, where)
            on_device = [s.device_seconds for s in self.samples if s.device_seconds is not None]
            if self.device_seconds is not None and not on_device:
                raise ResultsError(f"{where}: it has device_seconds, and its samples do not")
            if on_device:
                check_summary("device_seconds", self.device_seconds, median(on_device), where)


READING = Reading(
    (
        "workload",
        "optimizer",
        "peer",
        "mesh",
        "layout",
        "device",
        "threads",
        "seed",
        "dtype",
        "clip",
        "ema",
        "accumulate",
        "weight_decay",
        "placement",
        "sparse_rows",
        "lazy_rows",
        "cache",
        "in_situ",
        "where",
    ),
    ("parameters", "tensors", "bytes_per_step"),
    of_samples,
)
