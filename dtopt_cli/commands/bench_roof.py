"""`dtopt bench roof`: parse, measure, print. No TensorFlow."""

from __future__ import annotations

from typing import Annotated

import typer

from dtopt_cli import measuring
from dtopt_cli.commands.bench_options import one_of
from dtopt_cli.exit_codes import Exit
from dtopt_cli.measuring import OutputFile
from dtopt_cli.options import Json


def roof(
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="All allowed CPUs by default.")] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Samples of each pattern.")] = 9,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the order within rounds.")] = 0,
    device: Annotated[
        str, typer.Option("--device", help="cpu, or gpu: the first NVIDIA GPU.", autocompletion=one_of("cpu", "gpu"))
    ] = "cpu",
    json: Json = False,
    file: OutputFile = None,
) -> None:
    """Measure how fast this machine moves memory in place, as an optimizer does, or how fast a GPU copies its memory.

    \b
    dtopt bench roof --output roof.json
    dtopt bench plan -w gpt2 --mesh 2x2 --roof roof.json
    """
    from bench.roof import report as roof_report
    from bench.roof import run as roof_run

    measuring.require_writable(file)
    with measuring.progress() as progress:
        result = roof_run.run(
            threads,
            rounds,
            seed,
            command=measuring.command(),
            progress=progress,
            device=device,
        )
    measuring.give(result, lambda: roof_report.render(result), json=json, file=file)
    if result.interrupted:
        raise typer.Exit(Exit.INTERRUPTED)
    if not result.rows:
        raise typer.Exit(Exit.NOTHING_RAN)
