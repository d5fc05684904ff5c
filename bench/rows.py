"""Turns what a contest measured into the rows and roofs of the results."""

from __future__ import annotations

import shlex
from dataclasses import replace
from statistics import median

from bench import environment, stats
from bench.case import Case
from bench.contest import Contest, Contestant
from bench.records import Roof
from bench.roof import ROOFS
from bench.roof import elements as roof_elements
from bench.step_row import Row

UNSTEADY_IQR = 0.10
VERY_UNSTEADY_IQR = 0.25
"""Bands of IQR over median from which torch.utils.benchmark warns."""


def make_roofs(contest: Contest) -> tuple[Roof, ...]:
    """The roofs that gave a sample."""
    case = contest.case
    found = []
    for contestant, (peer, per_element) in zip(contest.roofs, ROOFS, strict=False):
        if contestant.samples:
            moved = per_element * roof_elements(case)
            best = moved / min(sample.seconds for sample in contestant.samples)
            samples = tuple(contestant.samples)
            found.append(Roof(case.workload, case.optimizer, peer.name, moved, best, samples))
    return tuple(found)


def make_rows(contest: Contest, baseline: str, roofs: tuple[Roof, ...], rounds: int) -> tuple[Row, ...]:
    """One row per peer, with ratios to the baseline or, where it gave no sample, to the first peer that
    did."""
    best = max((roof.bytes_per_second for roof in roofs), default=None)
    rows = [_row(contest.case, contestant, best, rounds) for contestant in contest.contestants]
    measured = [row for row in rows if row.status == "ok"]
    base = next((row for row in measured if row.peer == baseline), measured[0] if measured else None)
    if base is None:
        return tuple(rows)
    return tuple(_with_ratio(row, base) if row.status == "ok" else row for row in rows)


def _with_ratio(row: Row, base: Row) -> Row:
    return replace(row, ratio=stats.paired_ratio(row.times(), base.peer, base.times()))


def _row(case: Case, contestant: Contestant, roof: float | None, rounds: int) -> Row:
    peer = contestant.peer
    working_set = case.working_set(peer.on_mesh)
    row = Row(
        workload=case.workload,
        optimizer=case.optimizer,
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
        bytes_per_parameter=case.algorithm.bytes_per_parameter,
        bytes_per_step=case.algorithm.bytes_per_parameter * case.updated_elements(peer.on_mesh),
        working_set=working_set,
        regime=environment.regime(working_set, environment.last_level_cache()),
        rerun=rerun_command(case, peer.name, rounds),
        samples=tuple(contestant.samples),
        agreement=contestant.agreement,
        prepare_seconds=contestant.prepare_seconds,
        first_step_seconds=contestant.first_step_seconds,
        warm_up=contestant.warm_up,
        peak_bytes=contestant.peak_bytes,
        versions=contestant.versions,
        note=peer.note,
        warnings=_warnings(contestant),
        layout_notes=tuple(layout.note for layout in case.shardings if peer.on_mesh and layout.note),
    )
    return _with_summary(row, roof) if contestant.status == "ok" else row


def _with_summary(row: Row, roof: float | None) -> Row:
    seconds = [sample.seconds for sample in row.samples]
    middle = median(seconds)
    speed = row.bytes_per_step / middle
    return replace(
        row,
        median=middle,
        mad=stats.median_absolute_deviation(seconds),
        bytes_per_second=speed,
        roof_fraction=speed / roof if roof else None,
    )


def _warnings(contestant: Contestant) -> tuple[str, ...]:
    notes = []
    if contestant.warm_up and not contestant.warm_up.steady:
        notes.append("never became steady")
    spread = stats.relative_iqr([sample.seconds for sample in contestant.samples])
    if spread > VERY_UNSTEADY_IQR:
        notes.append(f"samples spread by {spread:.0%}: disturbed")
    elif spread > UNSTEADY_IQR:
        notes.append(f"samples spread by {spread:.0%}")
    return tuple(notes)


def rerun_command(case: Case, peer: str, rounds: int) -> str:
    """The command that measures one peer of a case again, with the same numbers."""
    words = ["dtopt", "bench", "step", "-w", case.workload, "-o", case.optimizer, "-p", peer]
    words += ["--mesh", str(case.mesh), "--layout", case.layout, "--device", case.device]
    words += ["--rounds", str(rounds), "--threads", str(case.threads), "--seed", str(case.seed)]
    return shlex.join(words)
