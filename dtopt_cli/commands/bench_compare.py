"""`dtopt bench compare`: parse, compare, print. No TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dtopt_cli import measuring, output
from dtopt_cli.options import Json

EXIT_CODES = {"ok": 0, "regression": 1, "broken": 3, "nothing": 4, "noisy": 5}


def compare(
    first: Annotated[Path, typer.Argument(metavar="A.json", help="A result, such as of the version before.")],
    second: Annotated[Path, typer.Argument(metavar="B.json", help="The one to compare with it.")],
    fail_above: Annotated[
        str | None,
        typer.Option(
            "--fail-above",
            metavar="PERCENT",
            help="End with 1 if something is slower by more for certain, with 5 if noise hides whether.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compare results of different machines, threads or workload versions.")
    ] = False,
    json: Json = False,
) -> None:
    """Say what became faster or slower from one result to another, and what noise hides.

    \b
    dtopt bench -w gpt2:layer --output before.json
    dtopt bench -w gpt2:layer --output after.json
    dtopt bench compare before.json after.json --fail-above 10%
    """
    from bench import results
    from bench.compare import pairing, report

    limit = None if fail_above is None else pairing.threshold(fail_above)
    found = pairing.compare(results.load(first), results.load(second), fail_above=limit, force=force)
    if json:
        output.print_json(report.document(found))
    else:
        measuring.show(report.render(found), piped_width=160)
    raise typer.Exit(EXIT_CODES[found.outcome])
