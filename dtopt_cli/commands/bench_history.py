"""`dtopt bench history`: parse, read, print. No TensorFlow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dtopt_cli import measuring, output
from dtopt_cli.commands import bench_options as options
from dtopt_cli.options import Json


def history(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[@NAME|RUN.json]...",
            help="All results of a name, or some files.",
            autocompletion=options.complete(options.stored_names),
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write a page with the trends as curves.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    json: Json = False,
) -> None:
    """Show how measurements changed from run to run, and since which commit something is faster or slower.

    \b
    dtopt bench --output @main                     keep a result, once for each commit
    dtopt bench history @main                      all of them
    dtopt bench history @main --output trend.html  as a page
    dtopt bench history                            which names there are
    """
    from bench import kinds
    from bench.history import report, trend
    from bench.kinds import page
    from bench.results import document, store

    if not runs:
        _list(json)
        return
    files = [path for run in runs for path in (store.files(run) if store.is_name(run) else (run,))]
    trends = trend.trends([(path.name, kinds.load(path)) for path in files])
    if file is not None:
        document.write(page.html_of("trend", list(report.sections(trends))), file)
        output.messages().print(f"wrote {file}", markup=False)
    if json:
        output.print_json(report.document(trends))
    elif markdown:
        sys.stdout.write(page.markdown_of("trend", list(report.sections(trends))))
    elif file is None:
        measuring.show(report.render(trends))


def _list(json: bool) -> None:
    from bench.results import store

    counts = {name: len(store.files(Path(f"@{name}"))) for name in store.names()}
    if json:
        output.print_json(counts)
    for name, count in counts.items() if not json else ():
        output.results().print(f"@{name}: {count} results", markup=False)
    if not counts and not json:
        output.results().print(f"Nothing is kept in {store.home()}: keep a result with --output @NAME", markup=False)
