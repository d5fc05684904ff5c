"""`dtopt migrate`: convert optimizer state, look at it, check it."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from typing import Annotated, Any

import typer

from dtopt_cli import importing, output, parsing
from dtopt_cli.commands import migrate_printing as printing
from dtopt_cli.commands.batch import batch
from dtopt_cli.commands.migrate_code import code
from dtopt_cli.exit_codes import Exit
from dtopt_cli.options import TARGETS, DryRun, Explain, Hints, Json, Order, Partial, Strict, spread
from dtopt_cli.progress import Bar
from dtopt_cli.typed import answered, answers_to
from optim.errors import DtoptError

app = parsing.App(
    no_args_is_help=True,
    help="Convert optimizer state from any Keras or TensorFlow release into a checkpoint you can resume from.",
)

Source = Annotated[
    str, typer.Argument(metavar="SOURCE", help="File, folder, prefix of a TensorFlow checkpoint, or URL.")
]
Dest = Annotated[
    str,
    typer.Argument(metavar="DEST", help="What is written: a folder (slots), or a .keras, .h5 or .npz file; or a URL."),
]
Migrated = Annotated[str, typer.Argument(metavar="DEST", help="What `dtopt migrate checkpoint` wrote.")]


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
            help=f"Target: {', '.join(TARGETS)}. Default: by the ending of DEST, which is .keras for keras, .h5 for"
            " tf-keras, .npz for list, and anything else for slots.",
        ),
    ] = None,
    order: Order = None,
    hints: Hints,
    part: Partial,
    strict: Strict = False,
    dry_run: DryRun = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing DEST.")] = False,
    explain: Explain = False,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Migrate the optimizer state in SOURCE to DEST.

    SOURCE is never modified; DEST is written completely or not at all.
    """
    arguments = hints.arguments()
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
            **part.arguments(),
            **arguments,
        )
    finally:
        if progress is not None:
            progress.close()
    report = answered(report, exists=report.written)
    if as_json:
        output.print_json(report.to_dict())
    elif not quiet:
        words = [*hints.words(), *part.words(), *(() if order is None else ("--order", order))]
        printing.report(report, words, explain)


@app.command()
@spread
def inspect(
    source: Source,
    *,
    stats: Annotated[
        bool, typer.Option("--stats", help="Print each slot's norm, min, max and whether it is finite.")
    ] = False,
    hints: Hints,
    explain: Explain = False,
    as_json: Json = False,
) -> None:
    """Show what SOURCE is, how it was recognised, every slot, and what would be lost."""
    from migrate import inspect as look

    arguments = hints.arguments()
    try:
        inspection = answered(look(source, stats=stats, **arguments))
    except DtoptError as error:
        if error.exit_code != Exit.USAGE:
            _print_contents(source, arguments, stats, as_json, error)
        raise
    if as_json:
        output.print_json(inspection.to_dict())
    else:
        printing.inspection(inspection, explain)


@app.command()
@spread
def verify(
    source: Source,
    dest: Migrated,
    *,
    hints: Hints,
    part: Partial,
    order: Order = None,
    as_json: Json = False,
) -> None:
    """Compare DEST with SOURCE: every slot bit for bit, then one training step from each.

    Exits with 1 if they differ.
    """
    arguments = hints.arguments()
    from migrate import verify as compare

    progress = _byte_bar("comparing", as_json=as_json)
    needless = os.path.isfile(dest)  # a list needs no step, and Keras takes one in a process of its own
    with nullcontext() if needless else importing.tensorflow_meanwhile():  # while arrays are compared
        try:
            result = compare(source, dest, order=order, progress=progress, **part.arguments(), **arguments)
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


def _print_contents(source: str, arguments: dict[str, Any], stats: bool, as_json: bool, error: DtoptError) -> None:
    """The content of a source that is incomplete, or contradicts the user's input."""
    from migrate import contents

    known = {name: arguments[name] for name in ("format", "generation", "optimizer_path")}
    try:
        result = contents(source, stats=stats, **known)
    except DtoptError:
        return
    if result is None:
        return
    if as_json:
        confirm, choices = answers_to(error)
        commands = {"confirm_command": confirm, "choice_commands": choices}
        output.print_json({**result.to_dict(), "refused": error.text, **commands})
    else:
        printing.contents(result)
