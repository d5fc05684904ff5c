"""`dtopt migrate`: carry optimizer state over, look at it, prove it."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from typing import Annotated, Any

import typer

from dtopt_cli import importing, output
from dtopt_cli.commands import migrate_printing as printing
from dtopt_cli.commands.batch import batch
from dtopt_cli.commands.migrate_code import code
from dtopt_cli.exit_codes import Exit
from dtopt_cli.options import DryRun, Explain, Hints, Json, Order, Strict, spread
from dtopt_cli.progress import Bar
from dtopt_cli.typed import answered, answers_to
from optim.errors import DtoptError

app = typer.Typer(
    no_args_is_help=True,
    help="Carry optimizer state from any Keras or TensorFlow into a checkpoint that resumes exactly.",
)

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="File, folder, or prefix of a TensorFlow checkpoint.")]
Dest = Annotated[str, typer.Argument(metavar="DEST", help="The migrated checkpoint: a folder, or a file.")]


@app.command()
@spread
def checkpoint(
    source: Source,
    dest: Dest,
    *,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="Target: slots, keras, tf-keras or list. Without it the ending of DEST decides: .keras, .h5, .npz; any"
            " other is slots.",
        ),
    ] = None,
    order: Order = None,
    hints: Hints,
    strict: Strict = False,
    dry_run: DryRun = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a migrated checkpoint at DEST.")] = False,
    explain: Explain = False,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Migrate the optimizer state in SOURCE to DEST.

    SOURCE is never changed; DEST is written completely or not at all.
    """
    given = hints.arguments()
    from migrate import migrate_checkpoint

    progress = _byte_bar("writing", quiet=quiet, as_json=as_json)
    try:
        report = migrate_checkpoint(
            source,
            dest,
            to=to,
            order=order,
            strict=strict,
            dry_run=dry_run,
            overwrite=overwrite,
            progress=progress,
            **given,
        )
    finally:
        if progress is not None:
            progress.close()
    report = answered(report, exists=report.written)
    if as_json:
        output.print_json(report.to_dict())
    elif not quiet:
        printing.report(report, [*hints.words(), *(() if order is None else ("--order", order))], explain)


@app.command()
@spread
def inspect(
    source: Source,
    *,
    stats: Annotated[bool, typer.Option("--stats", help="Read every slot: norm, smallest, greatest, finite.")] = False,
    hints: Hints,
    explain: Explain = False,
    as_json: Json = False,
) -> None:
    """Say what SOURCE is, how that was recognised, every slot, and what would be lost."""
    from migrate import inspect as look

    given = hints.arguments()
    try:
        found = answered(look(source, stats=stats, **given))
    except DtoptError as error:
        if error.exit_code != Exit.USAGE:
            _print_contents(source, given, stats, as_json, error)
        raise
    if as_json:
        output.print_json(found.to_dict())
    else:
        printing.inspection(found, explain)


@app.command()
@spread
def verify(
    source: Source,
    dest: Dest,
    hints: Hints,
    order: Order = None,
    as_json: Json = False,
) -> None:
    """Compare DEST with SOURCE: every slot bit for bit, and one step of both. Exit code 1 if they differ."""
    given = hints.arguments()
    from migrate import verify as compare

    progress = _byte_bar("comparing", as_json=as_json)
    needless = os.path.isfile(dest)  # a list needs no step, and Keras takes one in a process of its own
    with nullcontext() if needless else importing.tensorflow_meanwhile():  # while arrays are compared
        try:
            result = compare(source, dest, order=order, progress=progress, **given)
        finally:
            if progress is not None:
                progress.close()
    if as_json:
        output.print_json(result.to_dict())
    else:
        printing.verification(result)
    if not result.ok:
        raise typer.Exit(1)


app.command()(batch)
app.command()(code)


def _byte_bar(label: str, *, quiet: bool = False, as_json: bool = False) -> Bar | None:
    return None if quiet or as_json or not sys.stderr.isatty() else Bar(label, in_bytes=True)


def _print_contents(source: str, given: dict[str, Any], stats: bool, as_json: bool, error: DtoptError) -> None:
    """What is in a source that does not say everything, or denies what was said of it."""
    from migrate import contents

    known = {name: given[name] for name in ("format", "generation", "optimizer_path")}
    try:
        found = contents(source, stats=stats, **known)
    except DtoptError:
        return
    if found is None:
        return
    if as_json:
        confirm, choices = answers_to(error)
        commands = {"confirm_command": confirm, "choice_commands": choices}
        output.print_json({**found.to_dict(), "refused": error.text, **commands})
    else:
        printing.contents(found)
