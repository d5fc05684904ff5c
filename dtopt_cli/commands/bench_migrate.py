"""`dtopt bench migrate`: parse, measure, print."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dtopt_cli import measuring
from dtopt_cli.commands import bench_options as options
from dtopt_cli.measuring import OutputFile
from dtopt_cli.options import Json

MIGRATE = (sys.executable, "-m", "dtopt_cli", "migrate")


def migrate(
    format: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            help="h5, checkpoint or keras; may be repeated; all by default.",
            autocompletion=options.one_of("h5", "checkpoint", "keras"),
        ),
    ] = None,
    size: Annotated[str, typer.Option("--size", help="Of the tensors in each input, such as 200MB or 4GB.")] = "1GB",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Samples of each command.")] = 5,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Where to put the files, four times --size; removed afterwards.")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds that one command may take.")] = 600.0,
    json: Json = False,
    file: OutputFile = None,
) -> None:
    """Measure how fast checkpoints are migrated, compared with cp of the same files, and the memory it takes.

    \b
    dtopt bench migrate                                   three formats of 1 GB each
    dtopt bench migrate --format h5 --size 4GB --folder /scratch
    """
    from bench.forecast.footprint import parse_bytes
    from bench.migration import report, run

    measuring.require_writable(file)
    with measuring.progress() as progress:
        result = run.run(
            MIGRATE,
            formats=tuple(format or ()),
            size=parse_bytes(size),
            rounds=rounds,
            folder=folder,
            timeout=timeout,
            command=measuring.command(),
            progress=progress,
        )
    measuring.give(result, lambda: report.render(result), json=json, file=file, piped_width=160)
    raise typer.Exit(measuring.exit_code(result))
