"""`dtopt migrate code`: rewrite programs along with their checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dtopt_cli import output, programs
from optim import release

if TYPE_CHECKING:
    from migrate.code.findings import Finding
    from migrate.code.run import CodeReport


def code(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Programs (.py, .ipynb), and folders of them.")],
    to: Annotated[str, typer.Option("--to", metavar="TARGET", help="Target: optim, keras (3) or tf-keras.")] = "optim",
    source: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="RELEASE", help="The release they use: keras==2.2.4, tensorflow==1.15, or a generation."
        ),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write/--diff", help="Replace the files, or only show the diff (the default).")
    ] = False,
    checkpoints: Annotated[
        str | None,
        typer.Option("--checkpoints", metavar="DIR", help="Also show which optimizer wrote each checkpoint there."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    sarif: Annotated[bool, typer.Option("--sarif", help="One SARIF 2.1.0 document, for code hosts.")] = False,
) -> None:
    """Rewrite old optimizers in programs: the same rule in the target, and a finding for each place.

    Exits with 0 if everything is rewritten or the same, 1 if something differs or is left to you, 2 if the release
    matters and is not known, so that nothing is written, 3 if a file cannot be read.
    """
    if as_json and sarif:
        raise typer.BadParameter("give one of --json and --sarif: each prints one document")
    with programs.extra():
        from migrate.code.run import migrate_code
    report = migrate_code(paths, to=to, source=source, write=write)
    if sarif:
        from migrate.code.sarif import document

        output.print_json(document(report, release.version()))
    elif as_json:
        output.print_json(report.to_dict())
    else:
        _print(report)
    for text in [*report.contradictions, *_question(report, checkpoints)]:
        output.messages().print(text, markup=False, highlight=False, soft_wrap=True)
    if checkpoints is not None:
        from migrate.code.checkpoints import survey

        _print_survey(survey(paths, checkpoints, source), as_json=as_json or sarif)
    raise typer.Exit(report.exit_code)


def _question(report: CodeReport, checkpoints: str | None) -> list[str]:
    """Which release the program is for, where that decides about some places."""
    if not report.asked:
        return []
    count = len(report.asked)
    places = "1 place depends" if count == 1 else f"{count} places depend"
    nothing = f"{places} on the release, and nothing is written."
    if checkpoints is not None:
        from migrate.code.checkpoints import writers

        if named := writers(checkpoints):
            lines = [f"  --from {name}" for name in named]
            return ["\n".join([f"{nothing} These wrote the checkpoints in {checkpoints}:", *lines])]
    return [f"{nothing} Name it, such as\n  --from {report.asked[0]}"]


def _print_survey(lines: list[str], *, as_json: bool) -> None:
    console = output.messages() if as_json else output.results()
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)  # it may be a command


def _print(report: CodeReport) -> None:
    console = output.results()
    for change in report.changes:
        for line in change.diff.splitlines():
            style = "green" if line.startswith("+") else "red" if line.startswith("-") else ""
            console.print(line, style=style or None, markup=False, highlight=False, soft_wrap=True)
    for finding in report.findings:
        _print_finding(finding)
    counts = ", ".join(f"{count} {verdict}" for verdict, count in report.counts.items()) or "nothing to do"
    written = [change for change in report.changes if change.written]
    changed = f"{_files(len(written))} written" if written else f"{_files(len(report.changes))} would change (--write)"
    console.print(f"{counts}; {changed if report.changes else f'{_files(report.files)} read'}", markup=False)


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count} files"


def _print_finding(finding: Finding) -> None:
    colors = {"rewritten": "green", "same as before": "dim", "unreadable": "red"}
    console = output.results()
    text = finding.old if len(finding.old) < 80 else finding.old[:77] + "..."
    shown = f"{finding.where}: {finding.verdict}" + (f": {text}" if text else "")
    console.print(shown, style=colors.get(finding.verdict, "yellow"), markup=False)
    if finding.message:
        output.hang(console, "    ", finding.message)
