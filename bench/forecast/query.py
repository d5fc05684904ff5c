"""Check the options of `dtopt bench plan`, given as strings and numbers, and return its result."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from bench.cases import workloads
from bench.cases.layouts import RULES, MeshShape, parse_mesh
from bench.cases.shapes import Shapes
from bench.errors import OptionError, UnknownNameError
from bench.forecast import devices as devices_by_name
from bench.forecast.devices import Device
from bench.forecast.footprint import OF_OPTIM, PLACEMENTS, Training, parse_bytes
from bench.forecast.measured import Measured
from bench.forecast.plans import Speeds, meshes_of, plans, ranked
from bench.forecast.row import make_row
from bench.forecast.state import algorithm
from bench.measuring.environment import versions
from bench.results.document import Result

WORKLOAD = "gpt2"
MESH = "2x2"
SEARCHED = ("megatron",)
"""Placements with ZeRO's stages over the data axis, the common way to train on many devices."""


def answer(
    *,
    workload: str | None = None,
    shapes: Shapes | None = None,
    optimizer: str = "adam",
    mesh: Sequence[str] = (),
    devices: int | None = None,
    layout: Sequence[str] = (),
    placement: Sequence[str] = (),
    training: Training | None = None,
    device: str | None = None,
    memory: str | None = None,
    other: str | None = None,
    bandwidth: str | None = None,
    link: Sequence[str] = (),
    roof: Path | None = None,
    read_speed: Callable[[Path], Measured] | None = None,
    command: str = "",
) -> Result:
    """Return ranked plans from the options of `dtopt bench plan`; without a mesh or devices, for a mesh of 2x2.

    Args:
      device: an accelerator of `bench.forecast.devices`, with defaults of `memory`, `bandwidth` and `link`.
      roof: a result from which `read_speed` reads the speed of memory, see `bench.forecast.measured`.

    Raises: UnknownNameError; OptionError for invalid values and for options that exclude each other.
    """
    if workload is not None and shapes is not None:
        raise OptionError("--workload and --shapes exclude each other; give one")
    model = workloads.workload(workload or WORKLOAD) if shapes is None else shapes.workload
    preset = None if device is None else devices_by_name.device(device)
    limits = {"--device-type": device, "--memory": memory, "--other": other, "--bandwidth": bandwidth, "--roof": roof}
    words = ["-w", model.name] if shapes is None else ["--shapes", shapes.source]
    again = [*words, *(word for option, value in limits.items() if value is not None for word in (option, str(value)))]
    again += [word for text in link for word in ("--link", text)]
    algorithm(optimizer)
    requirements = replace(training or Training(), optimizer=optimizer)
    limit = _limit(memory or (f"{preset.memory}" if preset else None), other)
    meshes = _meshes(mesh, devices)
    if bandwidth is not None and roof is not None:
        raise OptionError("--bandwidth and --roof exclude each other: use only one")
    measured = read_speed(roof) if roof is not None and read_speed is not None else None
    speeds = _speeds(bandwidth, link, measured, preset)
    chosen = tuple(placement) or (PLACEMENTS if devices is not None or preset else OF_OPTIM)
    ranking = ranked(plans(model, meshes, _layouts(layout, devices is not None), chosen, requirements, speeds, limit))
    best = ranking[0] if ranking[0].fits and ranking[0].possible else None
    speed_source = measured.text if measured is not None else ""
    rows = [make_row(one, model, requirements, again, limit, one is best, device, speed_source) for one in ranking]
    return Result(_context(command), (), tuple(rows), kind="plan")


def _context(command: str) -> dict[str, object]:
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return {"command": command, "started": now, "packages": {k: v for k, v in versions().items() if k == "dtopt"}}


def _layouts(names: Sequence[str], searching: bool) -> Sequence[str]:
    """Return the requested layouts. By default these are all rules, or in a search over meshes the one whose forward
    pass is known.
    """
    for name in names:
        if name not in RULES:
            raise UnknownNameError(f"no layout rule is called {name!r}; there are: {', '.join(RULES)}")
    return names or (SEARCHED if searching else tuple(RULES))


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


def _speeds(
    bandwidth: str | None,
    link: Sequence[str],
    measured: Measured | None,
    device: Device | None,
) -> Speeds:
    links: dict[str, float] = {}
    everywhere: float | None = None
    for text in link:
        axis, equals, speed = text.partition("=")
        if equals:
            links[axis] = float(parse_bytes(speed))
        else:
            everywhere = float(parse_bytes(text))
    flops = device.flops if device else None
    if measured is not None:
        return Speeds(measured.speed, everywhere, 1 if measured.of_each else None, links, flops, device)
    memory = device.bandwidth * (device.reached or 1.0) if device else None
    memory = memory if bandwidth is None else float(parse_bytes(bandwidth))
    return Speeds(memory, everywhere, 1, links, flops, device)
