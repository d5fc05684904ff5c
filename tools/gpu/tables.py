"""The tables that `gpu_check.py` measures with `dtopt bench`, and the targets that they are compared with."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OURS = "optim-plain"
BUDGET = 18
"""Seconds of the rounds of a table."""


@dataclass(frozen=True)
class Table:
    """What `dtopt bench step` measures at one time."""

    workload: str
    how: str
    peers: str

    @property
    def name(self) -> str:
        return f"time of {self.workload}, {self.how}"

    @property
    def file(self) -> str:
        return f"{self.workload}-{self.how}.json"

    def command(self, path: Path, emulated: bool) -> list[str]:
        words = [sys.executable, "-m", "dtopt_cli", "bench", "step", "-w", self.workload, "-o", "adam"]
        words += ["-p", self.peers, "--baseline", OURS, "--mesh", "model=1", "--output", str(path)]
        words += (
            ["--device", "cpu", "--rounds", "2", "--processes", "1"]
            if emulated
            else ["--device", "gpu", "--budget", str(BUDGET)]
        )
        return [*words, *(["--in", self.how] if self.how in ("eager", "fit") else [])]

    def result(self, document: Mapping[str, Any]) -> tuple[bool, list[str]]:
        """Whether our row was measured, and each row in words."""
        rows = {row["peer"]: row for row in document["rows"]}
        return rows.get(OURS, {}).get("status") == "ok", [f"{name} {in_words(row)}" for name, row in rows.items()]


@dataclass(frozen=True)
class Bandwidth:
    """How fast the GPU copies its memory, as `dtopt bench roof` measures it."""

    name: str = "bandwidth of the memory"
    file: str = "bandwidth.json"

    def command(self, path: Path, emulated: bool) -> list[str]:
        words = [sys.executable, "-m", "dtopt_cli", "bench", "roof", "--rounds", "5", "--output", str(path)]
        return [*words, "--device", "cpu" if emulated else "gpu"]

    def result(self, document: Mapping[str, Any]) -> tuple[bool, list[str]]:
        """Whether it was measured, and the speed of each size of array."""
        rows = document["rows"]
        parts = [f"{row['working_set'] / 1e6:,.0f} MB at {row['bytes_per_second'] / 1e9:,.0f} GB/s" for row in rows]
        return bool(rows), [document["context"].get("gpu", {}).get("name", "a CPU"), *parts]


EAGER = f"{OURS},torch-fused,torch-foreach"
FUNCTION = f"{OURS},torch-fused,optax,keras3"
TABLES: tuple[Table | Bandwidth, ...] = (
    Bandwidth(),
    *(Table(workload, "eager", EAGER) for workload in ("resnet50", "gpt2", "many-small")),
    *(Table(workload, "function", FUNCTION) for workload in ("resnet50", "gpt2", "many-small")),
    Table("resnet50", "fit", f"{OURS},keras3"),
)
EMULATED: tuple[Table | Bandwidth, ...] = (Table("many-small", "eager", OURS),)
TARGETS = {"resnet50": (0.8, 1.3, 0.85), "gpt2": (0.95, 1.1, 0.9), "many-small": (0.3, 1.5, None)}
"""Of each workload: an eager step in parts of torch's fused one, one in a function in parts of an eager one, and the
share of the bandwidth that an eager step reaches."""


def in_words(row: Mapping[str, Any]) -> str:
    """A row of a table: its time, that on the GPU alone, and its share of the bandwidth, or why it was not measured."""
    if row["status"] != "ok":
        return f"{row['status']} ({row['reason']})"
    events = f" ({row['device_seconds'] * 1e3:.3f} on the GPU)" if row.get("device_seconds") else ""
    share = share_of_bandwidth(row)
    return f"{row['median'] * 1e3:.3f} ms{events}" + (f", {share:.0%} of the bandwidth" if share else "")


def share_of_bandwidth(row: Mapping[str, Any]) -> float | None:
    """By the GPU's own clock if it was read."""
    return row.get("device_roof_fraction") or row.get("roof_fraction")


def targets(
    folder: Path,
    measured: Sequence[str],
    limits: Mapping[str, tuple[float, float, float | None]] = TARGETS,
) -> Iterator[str]:
    """Compare the tables with the targets.

    Args:
      measured: the names of the tables of this run; files of earlier ones do not count.
    """
    for workload, (of_torch, of_eager, share) in limits.items():
        times = {}
        for how in ("eager", "function"):
            table = Table(workload, how, "")
            path = folder / table.file
            rows = json.loads(path.read_text())["rows"] if table.name in measured and path.exists() else []
            times |= {(how, row["peer"]): row for row in rows if row["status"] == "ok"}
        ours, torch, traced = (
            times.get(key) for key in (("eager", OURS), ("eager", "torch-fused"), ("function", OURS))
        )
        if ours and torch:
            yield judged(f"{workload}, eager / torch fused", ours["median"] / torch["median"], most=of_torch)
        if ours and traced:
            yield judged(f"{workload}, function / eager", traced["median"] / ours["median"], most=of_eager)
        if ours and share is not None and share_of_bandwidth(ours):
            yield judged(f"{workload}, share of bandwidth", share_of_bandwidth(ours) or 0.0, least=share)


def judged(what: str, value: float, most: float | None = None, least: float | None = None) -> str:
    is_met = value <= most if most is not None else value >= (least or 0.0)
    limit = f"at most {most}" if least is None else f"at least {least}"
    return f"{'met' if is_met else 'MISSED':<8} {what:<34} {value:.2f} ({limit})"
