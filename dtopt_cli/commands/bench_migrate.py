"""`dtopt bench migrate`: parse, measure, print."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from dtopt_cli import output
from dtopt_cli.options import Json
from dtopt_cli.progress import Bar

BROKEN = 3
NOTHING_RAN = 4
INTERRUPTED = 130
MIGRATE = (sys.executable, "-m", "dtopt_cli", "migrate")


def migrate(
    format: Annotated[
        list[str] | None, typer.Option("--format", help="h5, checkpoint or keras; may be repeated; all by default.")
    ] = None,
    size: Annotated[str, typer.Option("--size", help="Of the tensors in each input, such as 200MB or 4GB.")] = "1GB",
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Samples of each command.")] = 5,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Where to put the files, four times --size; removed afterwards.")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds that one command may take.")] = 600.0,
    json: Json = False,
    file: Annotated[Path | None, typer.Option("--output", help="Also write the JSON to this file.")] = None,
) -> None:
    """Measure how fast checkpoints are migrated, beside cp of the same files, and the memory it takes.

    \b
    dtopt bench migrate                                   three formats of 1 GB each
    dtopt bench migrate --format h5 --size 4GB --folder /scratch --output migrate.json
    """
    from bench import results
    from bench.forecast.footprint import parse_bytes
    from bench.migration import report, run

    bar = Bar("measuring", in_bytes=False)
    watched = output.messages().is_terminal
    try:
        found = run.run(
            MIGRATE,
            formats=tuple(format or ()),
            size=parse_bytes(size),
            rounds=rounds,
            folder=folder,
            timeout=timeout,
            command=shlex.join(["dtopt", *sys.argv[1:]]),
            progress=lambda what, done, of: bar(done, of) if watched else None,
        )
    finally:
        bar.close()
    if file is not None:
        results.save(found, file)
    if json:
        output.print_json(found.to_json())
    else:
        console = output.results()
        if not console.is_terminal:
            console.width = max(console.width, 160)
        for part in report.render(found):
            console.print(part)
    raise typer.Exit(exit_code(found.interrupted, {row.status for row in found.rows}))


def exit_code(interrupted: bool, statuses: set[str]) -> int:
    """What `train` and `migrate` end with."""
    if interrupted:
        return INTERRUPTED
    if "failed" in statuses:
        return BROKEN
    return 0 if "ok" in statuses else NOTHING_RAN
