"""`dtopt bench list` and `dtopt bench env`: what can be measured, and where."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from dtopt_cli import output
from dtopt_cli.options import Json


def list_and_leave(wanted: bool) -> None:
    """For `--list`."""
    if wanted:
        list_names()
        raise typer.Exit


def list_names(json: Json = False) -> None:
    """List workloads, problems, optimizers, layouts, devices and peers."""
    from rich.table import Table

    if json:
        output.print_json([{"what": what, "name": name, "summary": summary} for what, name, summary in _known()])
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for line in _known():
        table.add_row(*line)
    output.results().print(table)


def _known() -> Iterator[tuple[str, str, str]]:
    from bench import peers
    from bench.cases import algorithms, layouts, workloads
    from bench.train import problems

    for name in workloads.NAMES:
        found = workloads.workload(name)
        yield "workload", name, f"{found.summary}: {found.elements:,} in {len(found.tensors):,} tensors"
    for problem in problems.PROBLEMS:
        yield "problem", problem.name, problem.summary
    for algorithm in algorithms.ALGORITHMS:
        words = (f"{name}={algorithms.shown(value)}" for name, value in algorithm.hyperparameters.items())
        yield "optimizer", algorithm.name, " ".join(words)
    for name, rule in layouts.RULES.items():
        yield "layout", name, " ".join((rule.__doc__ or "").split(".")[0].split())
    for peer in peers.PEERS:
        yield "peer", peer.name, peer.summary


def env(json: Json = False) -> None:
    """Show the machine and the versions that a result would be recorded with."""
    from bench.measuring import environment, process

    found = environment.describe(len(process.allowed_cpus()))
    if json:
        output.print_json(found)
        return
    for name, value in found.items():
        shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        output.results().print(f"{name:24}{shown}", markup=False)
