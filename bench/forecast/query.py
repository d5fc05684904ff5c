"""What `dtopt bench plan` asks, as strings and numbers, and its answer as a result."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from bench import results, workloads
from bench.environment import versions
from bench.errors import OptionError, UnknownNameError
from bench.forecast import shapes as shape_files
from bench.forecast.footprint import PLACEMENTS, Training, parse_bytes
from bench.forecast.plans import Speeds, meshes_of, plans, ranked
from bench.forecast.state import algorithm
from bench.layouts import RULES, MeshShape, parse_mesh
from bench.plan_row import make_row

WORKLOAD = "gpt2"
MESH = "2x2"


def answer(
    *,
    workload: str | None = None,
    shapes: Path | None = None,
    optimizer: str = "adam",
    mesh: Sequence[str] = (),
    devices: int | None = None,
    layout: Sequence[str] = (),
    placement: Sequence[str] = (),
    dtype: str = "float32",
    clip: str = "none",
    ema: bool = False,
    accumulate: bool = False,
    memory: str | None = None,
    other: str | None = None,
    bandwidth: str | None = None,
    link: str | None = None,
    roof: Path | None = None,
    command: str = "",
) -> results.Result:
    """Plans from the options of `dtopt bench plan`, ranked; without a mesh or devices it is a mesh of 2x2.

    Raises: UnknownNameError; OptionError for values that cannot be used or exclude each other; ResultsError for a
    `roof` that is none.
    """
    if workload is not None and shapes is not None:
        raise OptionError("--workload and --shapes exclude each other; give one")
    model = workloads.workload(workload or WORKLOAD) if shapes is None else shape_files.read(shapes)
    given = {"--memory": memory, "--other": other, "--bandwidth": bandwidth, "--link": link, "--roof": roof}
    words = ["-w", model.name] if shapes is None else ["--shapes", str(shapes)]
    again = [*words, *(word for option, value in given.items() if value is not None for word in (option, str(value)))]
    algorithm(optimizer)
    training = Training(optimizer, dtype, ema, accumulate, clip)
    limit = _limit(memory, other)
    found = ranked(
        plans(
            model,
            _meshes(mesh, devices),
            _layouts(layout),
            tuple(placement) or PLACEMENTS,
            training,
            _speeds(bandwidth, link, roof),
            limit,
        )
    )
    rows = [make_row(one, model, training, again, limit, one is found[0] and bool(one.fits)) for one in found]
    return results.Result(_context(command), (), tuple(rows), kind="plan")


def _context(command: str) -> dict[str, object]:
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return {"command": command, "started": now, "packages": {k: v for k, v in versions().items() if k == "dtopt"}}


def _layouts(wanted: Sequence[str]) -> Sequence[str]:
    """Those asked for, or every rule."""
    for name in wanted:
        if name not in RULES:
            raise UnknownNameError(f"no layout rule is called {name!r}; there are: {', '.join(RULES)}")
    return wanted or tuple(RULES)


def _meshes(mesh: Sequence[str], devices: int | None) -> list[MeshShape]:
    if mesh and devices is not None:
        raise OptionError("--mesh and --devices exclude each other; give one")
    return meshes_of(devices) if devices is not None else [parse_mesh(text) for text in mesh or (MESH,)]


def _limit(memory: str | None, other: str | None) -> int | None:
    if memory is None:
        if other is not None:
            raise OptionError("--other is a part of --memory; give that, too")
        return None
    limit = parse_bytes(memory) - (parse_bytes(other) if other is not None else 0)
    if limit <= 0:
        raise OptionError(f"--other {other} leaves nothing of --memory {memory}")
    return limit


def _speeds(bandwidth: str | None, link: str | None, roof: Path | None) -> Speeds:
    if bandwidth is not None and roof is not None:
        raise OptionError("--bandwidth and --roof exclude each other; give one")
    sending = None if link is None else float(parse_bytes(link))
    if roof is not None:
        return Speeds(measured(roof), sending, sharing=None)
    return Speeds(None if bandwidth is None else float(parse_bytes(bandwidth)), sending)


def measured(path: Path) -> float:
    """Bytes per second of the best roof in a result. Raises: ResultsError."""
    found = results.load(path).roofs
    if not found:
        raise results.ResultsError(f"{path} holds no roof; `dtopt bench roof --output FILE` measures one")
    return max(one.bytes_per_second for one in found)
