"""`dtopt migrate batch`: many checkpoints, one summary."""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from dtopt_cli import output
from dtopt_cli.options import TARGETS, DryRun, Hints, Json, Order, Partial, Strict, spread
from dtopt_cli.progress import Bar
from dtopt_cli.typed import answered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from migrate.batches.results import BatchItem, BatchReport

COLORS = {
    "migrated": "green",
    "planned": "green",
    "skipped": "green",
    "refused": "yellow",
    "failed": "red",
    "not reached": "yellow",
}


Sources = Annotated[
    list[str], typer.Argument(metavar="SOURCE...", help="Checkpoints, or folders with checkpoints directly in them.")
]
Into = Annotated[str, typer.Option("--into", metavar="DIR", help="Folder of the migrated checkpoints.")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=1, metavar="N", help="Processes at a time.")]
Resume = Annotated[bool, typer.Option("--resume", help="Skip targets that are already complete.")]
Engine = Annotated[
    str | None, typer.Option("--engine", metavar="URL", help="Work on a Dask cluster, dask://HOST:PORT.")
]
Shard = Annotated[str | None, typer.Option("--shard", metavar="I/N", help="Only part I of N, one per machine.")]
Every = Annotated[bool, typer.Option("--all", help="Include the checkpoints in all folders below.")]
To = Annotated[str, typer.Option("--to", metavar="FORMAT", help=f"Target: {', '.join(TARGETS)}.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace migrated checkpoints in DIR.")]
ByReason = Annotated[bool, typer.Option("--report", help="Print a table by outcome and reason instead of each source.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only what was refused or failed.")]


@spread
def batch(
    sources: Sources,
    into: Into,
    *,
    jobs: Jobs = 1,
    resume: Resume = False,
    engine: Engine = None,
    shard: Shard = None,
    every: Every = False,
    to: To = "slots",
    order: Order = None,
    hints: Hints,
    part: Partial,
    strict: Strict = False,
    dry_run: DryRun = False,
    overwrite: Overwrite = False,
    by_reason: ByReason = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Migrate every SOURCE to its own target in DIR. A broken checkpoint doesn't stop the rest.

    Exits with 0 if all are done, 1 if --strict refused some, 3 if some failed. After Ctrl-C, continue with --resume.
    """
    shard_of, arguments = _part(shard), hints.arguments()
    options = [
        *(("--order", order) if order else ()),
        *(("--strict",) if strict else ()),
        *hints.words(),
        *part.words(),
    ]
    if engine is not None and jobs > 1:
        raise typer.BadParameter("give one of --jobs and --engine: an engine has its own processes")
    from migrate.batches.engines import connected
    from migrate.batches.run import BatchInterrupted
    from migrate.batches.run import batch as run

    progress = None if quiet or as_json or not sys.stderr.isatty() else Bar("migrating", in_bytes=False)
    try:
        with nullcontext() if engine is None else connected(engine) as executor:
            report = run(
                sources,
                into,
                jobs=jobs,
                executor=executor,
                resume=resume,
                shard=shard_of,
                every=every,
                to=to,
                order=order,
                strict=strict,
                dry_run=dry_run,
                overwrite=overwrite,
                progress=progress,
                **part.arguments(),
                **arguments,
            )
    except BatchInterrupted as interrupted:
        _print(_answered(interrupted.report, options), as_json, quiet, by_reason)
        raise
    finally:
        if progress is not None:
            progress.close()
    _print(_answered(report, options), as_json, quiet, by_reason)
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _answered(report: BatchReport, options: Sequence[str]) -> BatchReport:
    """With a command for each source that leaves something open: others need not have the same answers."""
    return replace(report, items=tuple(_item_answered(item, options) for item in report.items))


def _item_answered(item: BatchItem, options: Sequence[str]) -> BatchItem:
    words = ["migrate", "checkpoint", output.argument(item.source), output.argument(item.dest), *options]
    if item.report is None:
        return answered(item, words)
    exists = item.report.written
    return replace(answered(item, words, exists=exists), report=answered(item.report, words, exists=exists))


def _part(shard: str | None) -> tuple[int, int] | None:
    if shard is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise typer.BadParameter(f"{shard!r} is not I/N, such as 1/4 to 4/4", param_hint="--shard")
    return int(match[1]), int(match[2])


def _print(report: BatchReport, as_json: bool, quiet: bool, by_reason: bool) -> None:
    if as_json:
        output.print_json(report.to_dict())
        return
    console = output.messages() if quiet else output.results()
    if by_reason:
        _print_groups(console, report)
    else:
        _print_items(console, report, only_problems=quiet)
    if not quiet:
        counts = ", ".join(f"{count} {status}" for status, count in report.counts.items())
        console.print(f"{len(report.items)} in all: {counts}" if counts else "nothing to do in this part")


def _print_items(console: Console, report: BatchReport, only_problems: bool) -> None:
    for item in report.items:
        if only_problems and not item.problem:
            continue
        console.print(f"[{COLORS.get(item.status, 'yellow')}]{item.status:<11}[/] ", end="")
        console.print(output.line(item.source + (f" -> {item.dest}" if not item.problem else "")), markup=False)
        notes = [item.problem] if item.problem else []
        if item.report is not None and item.report.fidelity != "exact":
            notes.append(f"{item.report.fidelity}: {'; '.join(item.report.reasons)}")
        for note in notes:
            output.hang(console, "            ", note)
        for command in (item.confirm_command, *item.choice_commands):
            if command:
                console.print(f"            {command}", markup=False, soft_wrap=True)


def _print_groups(console: Console, report: BatchReport) -> None:
    """One block for each outcome and reason: a table would break reasons into columns of single words."""
    for group in report.groups:
        console.print(f"{group.count:>7}  {group.outcome}", markup=False)
        if group.reason:
            output.hang(console, "         ", group.reason)
        console.print(f"         such as {output.line(group.example)}", markup=False)
