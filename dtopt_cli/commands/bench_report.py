"""`dtopt bench report`: parse, make a page, write it. No TensorFlow."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from dtopt_cli import output
from dtopt_cli.options import Json


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN.json...", help="Results of any kind.")],
    file: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Where to write it; report.html by default.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Markdown without plots, on stdout without -o.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="The rows without samples, on stdout without -o.")] = False,
    json: Json = False,
) -> None:
    """Make one self-contained page of results, with plots; or Markdown, or CSV.

    \b
    dtopt bench report run.json scaling.json -o report.html
    dtopt bench report run.json --markdown
    dtopt bench report *.json --csv -o rows.csv
    """
    from bench import results
    from bench.page import make

    if markdown and csv:
        raise typer.BadParameter("give one of them", param_hint="--markdown and --csv")
    loaded = [(path.name, results.load(path)) for path in runs]
    text = make.markdown(loaded) if markdown else make.csv_text(loaded) if csv else make.html(loaded)
    if file is None and (markdown or csv) and not json:
        sys.stdout.write(text)
        return
    target = file or Path("report.md" if markdown else "report.csv" if csv else "report.html")
    _write(text, target)
    if json:
        output.print_json({"written": str(target), "results": len(loaded), "bytes": len(text.encode())})
    else:
        output.messages().print(f"wrote {target}", markup=False)


def _write(text: str, target: Path) -> None:
    """Through a sibling, so that no half of a page is ever seen."""
    from bench.errors import ResultsError

    beside = target.with_name(target.name + ".part")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, target)
    except OSError as error:
        raise ResultsError(f"cannot write {target}: {error.strerror}; name a file in a folder that exists") from None
