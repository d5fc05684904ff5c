"""`dtopt bench roof`: parse, measure, print. No TensorFlow."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from dtopt_cli import output
from dtopt_cli.options import Json
from dtopt_cli.progress import Bar

INTERRUPTED = 130
NOTHING_RAN = 4


def roof(
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="All allowed CPUs by default.")] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Samples of each pattern.")] = 9,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the order within rounds.")] = 0,
    json: Json = False,
    file: Annotated[Path | None, typer.Option("--output", help="Also write the JSON to this file.")] = None,
) -> None:
    """Measure how fast this machine moves memory in place, as an optimizer does.

    \b
    dtopt bench roof --output roof.json
    dtopt bench plan -w gpt2 --mesh 2x2 --roof roof.json
    """
    from bench import results, roof_report, roof_run

    bar = Bar("measuring", in_bytes=False)
    watched = output.messages().is_terminal
    try:
        found = roof_run.run(
            threads,
            rounds,
            seed,
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
        for part in roof_report.render(found):
            console.print(part)
    if found.interrupted:
        raise typer.Exit(INTERRUPTED)
    if not found.rows:
        raise typer.Exit(NOTHING_RAN)
