"""`dtopt migrate batch`: many checkpoints, one summary."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dtopt_cli import output
from dtopt_cli.options import From, Generation, Json, OptimizerConfig, OptimizerPath, Order, Set, Variables, hints
from dtopt_cli.progress import Bar

if TYPE_CHECKING:
    from migrate.batch.run import BatchReport

COLORS = {"migrated": "green", "skipped": "green", "refused": "yellow", "failed": "red", "not reached": "yellow"}


def batch(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE...", help="Checkpoints, or folders with checkpoints directly in them."),
    ],
    into: Annotated[str, typer.Option("--into", metavar="DIR", help="Folder of the migrated checkpoints.")],
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, metavar="N", help="Processes at a time.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Leave targets that are there and whole.")] = False,
    shard: Annotated[
        str | None, typer.Option("--shard", metavar="I/N", help="Only the I-th of N parts, one per machine.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Take every checkpoint of a folder and of the folders in it.")
    ] = False,
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="Target format, as for `checkpoint`.")] = "slots",
    order: Order = None,
    format: From = "auto",
    optimizer_config: OptimizerConfig = None,
    variables: Variables = None,
    generation: Generation = None,
    optimizer_path: OptimizerPath = None,
    overrides: Set = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse whatever is not exact.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace migrated checkpoints in DIR.")] = False,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only what was refused or failed.")] = False,
) -> None:
    """Migrate every SOURCE to a checkpoint of its own in DIR. One that is broken stops no other.

    Exit code 0 if all are there, 1 if --strict refused some, 3 if some failed. After Ctrl-C, go on with --resume.
    """
    part = _part(shard)
    given = hints(format, optimizer_config, variables, generation, optimizer_path, overrides)
    from migrate.batch.run import BatchInterrupted, migrate_batch

    progress = None if quiet or as_json or not sys.stderr.isatty() else Bar("migrating", in_bytes=False)
    try:
        report = migrate_batch(
            sources,
            into,
            jobs=jobs,
            resume=resume,
            shard=part,
            every=every,
            to=to,
            order=order,
            strict=strict,
            overwrite=overwrite,
            progress=progress,
            **given,
        )
    except BatchInterrupted as interrupted:
        _print(interrupted.report, as_json, quiet)
        output.messages().print("interrupted: what is done is kept; --resume goes on from there", markup=False)
        raise
    finally:
        if progress is not None:
            progress.close()
    _print(report, as_json, quiet)
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _part(shard: str | None) -> tuple[int, int] | None:
    if shard is None:
        return None
    found = re.fullmatch(r"(\d+)/(\d+)", shard)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise typer.BadParameter(f"{shard!r} is not I/N, such as 1/4 to 4/4", param_hint="--shard")
    return int(found[1]), int(found[2])


def _print(report: BatchReport, as_json: bool, quiet: bool) -> None:
    if as_json:
        output.print_json(report.to_dict())
        return
    shown = [item for item in report.items if not quiet or item.status in ("refused", "failed")]
    console = output.messages() if quiet else output.results()
    for item in shown:
        console.print(f"[{COLORS[item.status]}]{item.status:<11}[/] ", end="")
        console.print(item.source + (f" -> {item.dest}" if not item.problem else ""), markup=False)
        notes = [item.problem] if item.problem else []
        if item.report is not None and item.report.fidelity != "exact":
            notes.append(f"{item.report.fidelity}: {'; '.join(item.report.reasons)}")
        for note in notes:
            console.print(f"            {note}", markup=False)
    if not quiet:
        counts = ", ".join(f"{count} {status}" for status, count in report.counts.items())
        console.print(f"{len(report.items)} in all: {counts}" if counts else "nothing to do in this part")
