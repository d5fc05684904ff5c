"""One row of `dtopt bench scale`: one mesh shape with a number of clients."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bench.errors import ResultsError
from bench.measuring.stats import Place
from bench.results.kind import Reading, of_samples
from bench.results.records import Sample, check_samples, check_status, check_word

SCALINGS = ("strong", "weak")


@dataclass(frozen=True)
class Efficiency:
    """The fraction of an ideal speed-up that is reached; 1 is ideal.

    Attributes: mesh that it is relative to; median over rounds; low, high: 95% interval or None; rounds.
    """

    baseline: str
    median: float
    low: float | None
    high: float | None
    rounds: int


@dataclass(frozen=True)
class Row:
    """One mesh. Sizes are bytes, times seconds; a value that was not measured is None.

    Attributes:
      workload, optimizer, mesh, devices, clients, layout, placement, clip, ema, scaling, device, threads (of each
        client): the independent variables.
      copies: how many copies of the model there are (weak scaling); parameters, tensors: of all copies.
      device_bytes: predicted on one device, including parameter_bytes and slot_bytes; reported_parameter_bytes and
        reported_slot_bytes: those that the optimizer reports for the fullest device.
      predicted_sent_bytes: bytes that one client sends to others in a step; measured_sent_bytes: median of the samples,
        of the client that sent most, None if all devices are in one process.
      device_sent_bytes: predicted for one device, to any other.
      samples: seconds of the slowest client; client_seconds: of each client, sample by sample (empty with clients on
        other machines).
      median, mad: of the samples' seconds per step. efficiency: see there.
      gradient_error, movement_error: of the reduced gradients, and of the parameters' movement relative to that on the
        first mesh, both relative.
      prepare_seconds: of the slowest client; peak_bytes: of the largest client's process.
    """

    workload: str
    optimizer: str
    mesh: str
    devices: int
    clients: int
    layout: str
    placement: str
    clip: str
    ema: bool
    scaling: str
    device: str
    threads: int
    copies: int
    parameters: int
    tensors: int
    device_bytes: int
    parameter_bytes: int
    slot_bytes: int
    device_sent_bytes: int
    predicted_sent_bytes: int
    status: str
    reason: str | None
    rerun: str
    reported_parameter_bytes: int | None = None
    reported_slot_bytes: int | None = None
    measured_sent_bytes: float | None = None
    samples: tuple[Sample, ...] = ()
    client_seconds: tuple[tuple[float, ...], ...] = ()
    median: float | None = None
    mad: float | None = None
    efficiency: Efficiency | None = None
    gradient_error: float | None = None
    movement_error: float | None = None
    prepare_seconds: float | None = None
    peak_bytes: int | None = None

    def check(self) -> None:
        """Check that the members agree with each other.

        Raises: ResultsError if the members contradict each other.
        """
        where = f"scaling on {self.mesh}"
        check_status(self.status, self.reason, where)
        check_word(self.scaling, SCALINGS, f"{where}: scaling")
        check_samples(self.samples, where)
        if self.status == "ok" and not (self.samples and self.median and math.isfinite(self.median)):
            raise ResultsError(f"{where}: it is 'ok' but holds no samples or no median")

    def times(self) -> dict[Place, float]:
        """Return the seconds per step by (group, round, process)."""
        return {(sample.group, sample.round, sample.process): sample.seconds for sample in self.samples}


READING = Reading(
    ("workload", "optimizer", "mesh", "clients", "layout", "placement", "clip", "ema", "scaling", "device", "threads"),
    ("parameters", "tensors", "copies"),
    of_samples,
)
