"""Turn the measurements of a contest into the rows and memory bandwidth limits of the results."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from statistics import median

from bench.cases import traffic
from bench.cases.case import Case
from bench.measuring import environment, stats
from bench.results.records import Roof
from bench.roof.patterns import elements as roof_elements
from bench.roof.patterns import roofs
from bench.step import suspicion
from bench.step.contest import Contest, Contestant
from bench.step.ratios import with_ratios
from bench.step.row import Row

LEAK_BYTES = 20 * 1024**2
"""Growth in bytes from which a peer is reported to leak, if it grows at every sample: allocators stabilize within the
first.
"""


def make_roofs(contest: Contest) -> tuple[Roof, ...]:
    """Return the memory bandwidth limits that have a sample."""
    case = contest.case
    limits = []
    for contestant, (peer, per_element) in zip(contest.roofs, roofs(case), strict=True):
        if contestant.samples:
            moved = per_element * roof_elements(case)
            best = moved / min(sample.seconds for sample in contestant.samples)
            samples = tuple(contestant.samples)
            limits.append(Roof(case.workload, case.algorithm.text, peer.name, moved, best, samples))
    return tuple(limits)


def make_rows(contest: Contest, baseline: str, roofs: tuple[Roof, ...], again: Sequence[str]) -> tuple[Row, ...]:
    """Return one row per peer, with ratios to the baseline or, if it gave no sample, to the first peer that did.

    Args:
      again: the words of the command that describe how it was measured, for `rerun`.
    """
    best = max((roof.bytes_per_second for roof in roofs), default=None)
    rows = [_row(contest.case, contestant, best, again) for contestant in contest.contestants]
    return with_ratios(rows, baseline)


def _row(case: Case, contestant: Contestant, roof: float | None, again: Sequence[str]) -> Row:
    peer = contestant.peer
    working_set = traffic.working_set(case, peer.on_mesh)
    per_parameter = traffic.bytes_per_parameter(case)
    row = Row(
        **asdict(case.options),
        workload=case.workload,
        optimizer=case.algorithm.text,
        peer=peer.name,
        mesh=str(case.mesh),
        layout=case.layout,
        device=case.device,
        threads=case.threads,
        seed=case.seed,
        status=contestant.status,
        reason=contestant.reason,
        parameters=case.elements,
        tensors=len(case.tensors),
        updated=case.updated_elements(peer.on_mesh),
        bytes_per_parameter=per_parameter,
        bytes_per_step=round(per_parameter * case.updated_elements(peer.on_mesh)),
        touched_bytes=traffic.touched_bytes(case),
        working_set=working_set,
        regime=environment.regime(working_set, environment.last_level_cache()),
        rerun=rerun_command(case, peer.name, again),
        samples=tuple(contestant.samples),
        agreement=contestant.agreement,
        prepare_seconds=contestant.prepare_seconds,
        first_step_seconds=contestant.first_step_seconds,
        warm_up=contestant.warm_up,
        peak_bytes=contestant.peak_bytes,
        device_peak_bytes=contestant.device_peak_bytes,
        versions=contestant.versions,
        note=", ".join(filter(None, (peer.remark(case), contestant.remark))),
        waits=peer.waits,
        spins=_median(contestant.spins),
        others=_median(sample.others for sample in contestant.samples),
        cpus=_median(sample.cpus for sample in contestant.samples),
        host=_median(sample.host for sample in contestant.samples),
        clock=contestant.clock,
        step_share=contestant.step_share,
        warnings=_warnings(contestant),
        layout_notes=tuple(layout.note for layout in case.shardings if peer.on_mesh and layout.note),
    )
    return _with_summary(row, roof) if contestant.status == "ok" else row


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _with_summary(row: Row, roof: float | None) -> Row:
    seconds = [sample.seconds for sample in row.samples]
    middle = median(seconds)
    speed = row.bytes_per_step / middle
    fraction = speed / roof if roof else None
    on_device = _median(sample.device_seconds for sample in row.samples)
    least = row.touched_bytes or row.bytes_per_step
    reason = suspicion.of_roof(fraction and fraction * least / row.bytes_per_step, row.working_set)
    if reason and row.status == "ok":
        row = replace(row, status="failed", reason=reason)
    return replace(
        row,
        median=middle,
        mad=stats.median_absolute_deviation(seconds),
        latency=_median(sample.latency for sample in row.samples),
        noise=_noise(seconds),
        bytes_per_second=speed,
        roof_fraction=fraction,
        device_seconds=on_device,
        device_roof_fraction=row.bytes_per_step / on_device / roof if roof and on_device else None,
    )


def _noise(seconds: Sequence[float]) -> str | None:
    """Judge the spread of the samples; None if there are too few."""
    if len(seconds) < stats.FEWEST_FOR_IQR:
        return None
    spread = stats.relative_iqr(seconds)
    return "disturbed" if spread > stats.VERY_UNSTEADY_IQR else "unsteady" if spread > stats.UNSTEADY_IQR else "quiet"


def _warnings(contestant: Contestant) -> tuple[str, ...]:
    notes = []
    if contestant.warm_up and not contestant.warm_up.steady:
        notes.append("never became steady")
    seconds = [sample.seconds for sample in contestant.samples]
    noise = _noise(seconds)
    if noise not in (None, "quiet"):
        notes.append(f"samples spread by {stats.relative_iqr(seconds):.0%}" + (": disturbed" * (noise == "disturbed")))
    if contestant.untraced:
        notes.append(f"there is no trace: {contestant.untraced}")
    grown, steps = _growth(contestant)
    if grown > LEAK_BYTES:
        notes.append(f"its memory grew by {grown / 1e6:,.0f} MB in {steps:,} steps: it may leak")
    return tuple(notes)


def _growth(contestant: Contestant) -> tuple[int, int]:
    """Return the growth of the process in bytes from its second sample to its last, and the steps between, if it never
    shrank."""
    samples = [sample for sample in contestant.samples if sample.resident_bytes is not None][1:]
    sizes = [sample.resident_bytes or 0 for sample in samples]
    if len(sizes) < 2 or any(later < earlier for earlier, later in pairwise(sizes)):
        return 0, 0
    return sizes[-1] - sizes[0], sum(sample.steps for sample in samples[1:])


def rerun_command(case: Case, peer: str, again: Sequence[str]) -> str:
    """Return the command that measures one peer of a case again against the baseline, with the same numbers."""
    shapes = ["--shapes", case.shapes_from] if case.shapes_from else ["-w", case.workload]
    words = ["dtopt", "bench", "step", *shapes, "-o", case.algorithm.text, "-p", peer.partition("@")[0]]
    words += ["--mesh", str(case.mesh), "--layout", case.layout, "--device", case.device]
    words += ["--threads", str(case.threads), "--seed", str(case.seed), *again]
    return shlex.join([*words, *case.options.words()])
