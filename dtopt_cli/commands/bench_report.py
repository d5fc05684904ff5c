"""`dtopt bench report`: parse, make a page, write it. No TensorFlow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dtopt_cli import output
from dtopt_cli.exit_codes import Exit
from dtopt_cli.options import Json


def report(
    runs: Annotated[list[Path] | None, typer.Argument(metavar="RUN.json|@NAME...", help="Results of any kind.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Where to write it; report.html by default, - for stdout."),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown without plots, on stdout by default.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="The rows without samples, on stdout by default.")] = False,
    into: Annotated[
        Path | None,
        typer.Option(
            "--into", metavar="PAGE.md", help="Update the tables of this Markdown page from the results next to it."
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="With --into: write nothing, exit with 1 if a number differs.")
    ] = False,
    json: Json = False,
) -> None:
    """Make one self-contained page of results, with plots; or Markdown, or CSV.

    \b
    dtopt bench report run.json scaling.json --output report.html
    dtopt bench report run.json --markdown
    dtopt bench report *.json --csv --output rows.csv
    dtopt bench report --into docs/benchmarks.md     tables from docs/benchmarks/*.json, numbers checked
    """
    from bench import kinds
    from bench.kinds import page as make
    from bench.results import document

    if into is not None:
        _fill(into, check)
        return
    if not runs:
        raise typer.BadParameter("name at least one result", param_hint="RUN.json")
    if markdown and csv:
        raise typer.BadParameter("give one of them", param_hint="--markdown and --csv")
    loaded = [(path.name, kinds.load(path)) for path in runs]
    text = make.markdown(loaded) if markdown else make.csv_text(loaded) if csv else make.html(loaded)
    if str(file) == "-" or (file is None and (markdown or csv) and not json):
        sys.stdout.write(text)
        return
    target = file or Path("report.md" if markdown else "report.csv" if csv else "report.html")
    document.write(text, target)
    if json:
        output.print_json({"written": str(target), "results": len(loaded), "bytes": len(text.encode())})
    else:
        output.messages().print(f"wrote {target}", markup=False)


def _fill(page: Path, check: bool) -> None:
    """The tables of a documentation page, and what is wrong with its numbers."""
    from bench.kinds import prose

    if not check:
        prose.fill(page)
    problems = prose.problems(page)
    for problem in problems:
        output.messages().print(f"{page}: {problem}", markup=False)
    if problems:
        raise typer.Exit(Exit.NO)
