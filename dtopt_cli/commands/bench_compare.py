"""`dtopt bench compare`: parse, compare, print. No TensorFlow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dtopt_cli import measuring, output
from dtopt_cli.exit_codes import Exit
from dtopt_cli.options import Json

EXIT_CODES = {
    "ok": Exit.OK,
    "regression": Exit.NO,
    "broken": Exit.BROKEN,
    "nothing": Exit.NOTHING_RAN,
    "noisy": Exit.TOO_NOISY,
}


def compare(
    first: Annotated[
        Path, typer.Argument(metavar="A", help="A result, such as of the version before: a file, or @NAME.")
    ],
    second: Annotated[Path, typer.Argument(metavar="B", help="The one to compare with it.")],
    fail_above: Annotated[
        str | None,
        typer.Option(
            "--fail-above",
            metavar="PERCENT",
            help="Exit with 1 if something is certainly slower by more, with 5 if noise hides it.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compare results of different machines, threads or workload versions.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, as for a pull request.")] = False,
    json: Json = False,
) -> None:
    """Show what became faster or slower from one result to another, and what noise hides.

    \b
    dtopt bench -w gpt2:layer --output before.json
    dtopt bench -w gpt2:layer --output after.json
    dtopt bench compare before.json after.json --fail-above 10%
    dtopt bench compare @main after.json --markdown      what was kept last with --output @main
    """
    from bench import kinds
    from bench.compare import pairing, report

    limit = None if fail_above is None else pairing.threshold(fail_above)
    comparison = pairing.compare(kinds.load(first), kinds.load(second), fail_above=limit, force=force)
    if json:
        output.print_json(report.document(comparison))
    elif markdown:
        sys.stdout.write(report.markdown(comparison))
    else:
        measuring.show(report.render(comparison), piped_width=160)
    raise typer.Exit(EXIT_CODES[comparison.outcome])
