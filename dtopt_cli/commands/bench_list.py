"""`dtopt bench list` and `dtopt bench env`: what can be measured, and where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from dtopt_cli import output
from dtopt_cli.options import Json

KINDS = {
    "workloads": "Workloads: the tensors to update (-w NAME)",
    "problems": "Problems: what `dtopt bench train` trains (--problem NAME)",
    "optimizers": "Optimizers and their defaults (-o NAME:ARGUMENT=VALUE)",
    "layouts": "Layouts: how tensors are laid out (--layout NAME)",
    "peers": "Peers: who takes part (-p NAME)",
}
"""What can be listed, and its heading."""


def list_and_leave(is_set: bool) -> None:
    """For `--list`."""
    if is_set:
        list_names()
        raise typer.Exit


def list_names(
    kinds: Annotated[list[str] | None, typer.Argument(metavar="[KIND]...", help=f"Only {', '.join(KINDS)}.")] = None,
    json: Json = False,
) -> None:
    """List workloads, problems, optimizers, layouts and peers."""
    for kind in kinds or ():
        if kind not in KINDS:
            raise typer.BadParameter(f"there is no kind {kind!r}; there are {', '.join(KINDS)}", param_hint="KIND")
    known = [entry for entry in _known() if entry[0] in (kinds or KINDS)]
    if json:
        documents = ({"what": kind.removesuffix("s"), "name": name, "summary": text} for kind, name, text in known)
        output.print_json(list(documents))
        return
    console = output.results()
    width = max(len(name) for _, name, _ in known) + 4
    for number, kind in enumerate(dict.fromkeys(kind for kind, _, _ in known)):
        console.print(("\n" if number else "") + KINDS[kind], style="bold", markup=False)
        for _, name, summary in (entry for entry in known if entry[0] == kind):
            output.hang(console, f"  {name}".ljust(width), summary)


def _known() -> Iterator[tuple[str, str, str]]:
    from bench import peers
    from bench.cases import algorithms, layouts, workloads
    from bench.train import problems

    for name in workloads.NAMES:
        workload = workloads.workload(name)
        tensors = "1 tensor" if len(workload.tensors) == 1 else f"{len(workload.tensors):,} tensors"
        yield "workloads", name, f"{workload.summary}: {workload.elements:,} elements in {tensors}."
    for problem in problems.PROBLEMS:
        yield "problems", problem.name, f"{problem.summary}."
    for algorithm in algorithms.ALGORITHMS:
        words = (f"{name}={algorithms.shown(value)}" for name, value in algorithm.hyperparameters.items())
        yield "optimizers", algorithm.name, " ".join(words)
    for name, summary in layouts.SUMMARIES.items():
        yield "layouts", name, summary
    for peer in peers.PEERS:
        yield "peers", peer.name, f"{peer.summary}."


def env(json: Json = False) -> None:
    """Show the machine and package versions that would be stored with a result."""
    from bench.measuring import environment, process

    description = environment.describe(len(process.allowed_cpus()))
    if json:
        output.print_json(description)
        return
    for name, value in description.items():
        shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        output.hang(output.results(), f"{name:24}", str(shown))
