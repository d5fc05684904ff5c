"""Check the options of `dtopt bench scale`, given as strings and numbers, and return its result."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from statistics import median

from bench.cases import layouts, workloads
from bench.cases.shapes import Shapes
from bench.cases.workloads import Workload
from bench.errors import OptionError, UnknownNameError
from bench.forecast.footprint import OF_OPTIM
from bench.forecast.state import algorithm
from bench.measuring import environment, stats
from bench.measuring.process import threads_of
from bench.results.document import Result
from bench.scale.crossing import sent_by_a_client
from bench.scale.group import Clients, Launch, find_clients, start_client
from bench.scale.row import SCALINGS, Efficiency, Row
from bench.scale.run import Entry, Measurement, Progress, make_entry
from bench.scale.setup import Setup

WORKLOAD = "gpt2:layer"
MESHES = ("1x1", "2x1", "1x2", "2x2")


def answer(
    *,
    workload: str | None = None,
    shapes: Shapes | None = None,
    optimizer: str = "adam",
    mesh: Sequence[str] = (),
    layout: str = "megatron",
    placement: str = "like_variable",
    scaling: str = "strong",
    clients: int | None = None,
    device: str = "auto",
    clip: str = "none",
    ema: bool = False,
    rounds: int = 9,
    threads: int | None = None,
    seed: int = 0,
    timeout: float = 300.0,
    command: str = "",
    launch: Launch = start_client,
    progress: Progress = lambda what, done, of: None,
) -> tuple[Result, bool, bool]:
    """Measure every mesh; `threads` is the number of each machine, shared by its clients.

    Returns: the result; whether a client gave no answer in time; whether this machine is the one that reports.

    Raises: UnknownNameError; OptionError; UnsupportedError (this machine lacks the device).
    """
    here = find_clients(clients, os.environ)
    setups = _setups(
        here,
        shapes or workloads.workload(workload or WORKLOAD),
        optimizer,
        mesh,
        layout,
        placement,
        scaling,
        device,
        clip,
        ema,
        _threads(threads, here),
    )
    log = environment.Log(command, setups[0].threads)
    measurement = Measurement([make_entry(setup) for setup in setups], here, rounds, timeout, seed, launch)
    interrupted = False
    try:
        measurement.run(environment.available_memory(), progress)
    except KeyboardInterrupt:
        interrupted = True
        measurement.interrupt()
    context = log.context(rounds=rounds, order_seed=seed, interleaved=measurement.interleaved, client=here.local_client)
    rows = _rows(measurement.entries, here, rounds)
    hung = any(entry.hung for entry in measurement.entries)
    return Result(context, (), rows, interrupted, kind="scale"), hung, here.prints


def _threads(requested: int | None, clients: Clients) -> int:
    """Return the threads of each client."""
    return max(1, threads_of(requested) // (clients.count if clients.local_client is None else 1))


def _setups(
    clients: Clients,
    workload: Workload | Shapes,
    optimizer: str,
    mesh: Sequence[str],
    layout: str,
    placement: str,
    scaling: str,
    device: str,
    clip: str,
    ema: bool,
    threads: int,
) -> list[Setup]:
    algorithm(optimizer)
    for what, value, known in (
        ("layout rule", layout, tuple(layouts.RULES)),
        ("placement", placement, OF_OPTIM),
        ("scaling", scaling, SCALINGS),
    ):
        if value not in known:
            raise UnknownNameError(f"no {what} is called {value!r}; there are: {', '.join(known)}")
    meshes = [layouts.parse_mesh(text) for text in mesh]
    if not meshes:
        meshes = [shape for shape in map(layouts.parse_mesh, MESHES) if shape.devices % clients.count == 0]
    if not meshes:
        raise OptionError(f"no default mesh has a multiple of {clients.count} devices: choose one with --mesh")
    return [
        Setup(
            workload=workload.name,
            shapes=workload.tensors if isinstance(workload, Shapes) else (),
            optimizer=optimizer,
            mesh=shape,
            layout=layout,
            placement=placement,
            clients=clients.count,
            scaling=scaling,
            device=environment.find_device(device),
            threads=threads,
            clip=clip,
            ema=ema,
        )
        for shape in meshes
    ]


def _rows(entries: Sequence[Entry], clients: Clients, rounds: int) -> tuple[Row, ...]:
    rows = [_row(entry, clients, rounds) for entry in entries]
    first = next((row for row in rows if row.status == "ok"), None)
    if first is None:
        return tuple(rows)
    from dataclasses import replace

    return tuple(
        replace(row, efficiency=efficiency(row, first, max(1, len(rows) - 1))) if row.status == "ok" else row
        for row in rows
    )


def efficiency(row: Row, first: Row, comparisons: int = 1) -> Efficiency | None:
    """Return the efficiency. Strong scaling: t₀·n₀ / (t·n), the same work over the devices' time. Weak scaling: t₀ / t,
    n times the work in the same time.
    """
    times = {number: seconds for (_, number, _), seconds in row.times().items()}
    base = {number: seconds for (_, number, _), seconds in first.times().items()}
    shared = sorted(times.keys() & base.keys())
    if not shared:
        return None
    ideal = first.devices / row.devices if row.scaling == "strong" else 1.0
    values = [ideal * base[number] / times[number] for number in shared]
    ratio = stats.estimate(values, comparisons)
    return Efficiency(first.mesh, ratio.median, ratio.low, ratio.high, ratio.rounds)


def _row(entry: Entry, clients: Clients, rounds: int) -> Row:
    setup, planned = entry.setup, entry.plan
    seconds = [sample.seconds for sample in entry.samples]
    done = entry.status == "ok" and bool(seconds)
    on_cpu = setup.device == "cpu"
    return Row(
        workload=setup.workload,
        optimizer=setup.optimizer,
        mesh=str(setup.mesh),
        devices=setup.mesh.devices,
        clients=setup.clients,
        layout=setup.layout,
        placement=setup.placement,
        clip=setup.clip,
        ema=setup.ema,
        scaling=setup.scaling,
        device=setup.device,
        threads=setup.threads,
        copies=setup.copies,
        parameters=setup.model.elements,
        tensors=len(setup.tensors),
        device_bytes=planned.footprint.total,
        parameter_bytes=planned.footprint.parameters,
        slot_bytes=planned.footprint.slot_bytes,
        device_sent_bytes=sum(c.sent_on_cpu if on_cpu else c.sent for c in planned.collectives if c.in_step),
        predicted_sent_bytes=sent_by_a_client(planned.collectives, setup.mesh, setup.clients, on_cpu=on_cpu),
        status=entry.status if done or entry.status != "ok" else "failed",
        reason=entry.reason if done or entry.status != "ok" else "it gave no sample",
        rerun=_rerun(setup, clients, rounds),
        reported_parameter_bytes=entry.reported_bytes.get("parameters"),
        reported_slot_bytes=entry.reported_bytes.get("slots"),
        measured_sent_bytes=median(entry.sent) if entry.sent else None,
        samples=tuple(entry.samples),
        client_seconds=tuple(entry.client_seconds) if clients.local_client is None else (),
        median=median(seconds) if done else None,
        mad=stats.median_absolute_deviation(seconds) if done else None,
        gradient_error=entry.gradient_error,
        movement_error=entry.movement_error,
        prepare_seconds=entry.prepare_seconds,
        peak_bytes=entry.peak_bytes,
    )


def _rerun(setup: Setup, clients: Clients, rounds: int) -> str:
    words = ["dtopt", "bench", "scale", "-w", setup.workload, "-o", setup.optimizer, "--mesh", str(setup.mesh)]
    words += ["--layout", setup.layout, "--slot-placement", setup.placement, "--scaling", setup.scaling]
    words += ["--device", setup.device, "--rounds", str(rounds)]
    words += ["--clients", str(setup.clients)] if clients.local_client is None and setup.clients > 1 else []
    words += [f"--{setup.clip.replace('_', '-')}", "1"] if setup.clip != "none" else []
    words += ["--use-ema"] if setup.ema else []
    return shlex.join(words)
