"""`dtopt migrate`: carry optimizer state over, look at it, prove it."""

from __future__ import annotations

import json
import os
import shlex
import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dtopt_cli import output
from dtopt_cli.commands.batch import batch
from dtopt_cli.commands.migrate_code import code, from_program
from dtopt_cli.exit_codes import Exit
from dtopt_cli.options import (
    DryRun,
    Explain,
    From,
    Generation,
    Hints,
    Json,
    OptimizerConfig,
    OptimizerFrom,
    OptimizerPath,
    Order,
    Set,
    Strict,
    Variables,
    spread,
)
from dtopt_cli.progress import Bar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from migrate.evidence import Origin
    from migrate.operations.contents import Contents
    from migrate.operations.convert import Report
    from migrate.operations.inspection import Inspection, SlotRow
    from migrate.proof.verification import Verification

SHOWN = 5
"""Differences, and notes of a comparison; `--json` has them all."""
LISTED = 12
"""Names of what is carried without interpretation; likewise."""
PIPED_WIDTH = 200

app = typer.Typer(
    no_args_is_help=True,
    help="Carry optimizer state from any Keras or TensorFlow into a checkpoint that resumes exactly.",
)

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="File, folder, or prefix of a TensorFlow checkpoint.")]
Dest = Annotated[str, typer.Argument(metavar="DEST", help="The migrated checkpoint, a folder.")]


@app.command()
def checkpoint(
    source: Source,
    dest: Dest,
    to: Annotated[
        str, typer.Option("--to", metavar="FORMAT", help="Target: slots, keras (.keras), tf-keras (.h5), list (.npz).")
    ] = "slots",
    order: Order = None,
    format: From = "auto",
    optimizer_config: OptimizerConfig = None,
    optimizer_from: OptimizerFrom = None,
    variables: Variables = None,
    generation: Generation = None,
    optimizer_path: OptimizerPath = None,
    overrides: Set = None,
    strict: Strict = False,
    dry_run: DryRun = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a migrated checkpoint at DEST.")] = False,
    explain: Explain = False,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Migrate the optimizer state in SOURCE to DEST. SOURCE is never changed, DEST is whole or not there."""
    hints = Hints(format, optimizer_config, variables, generation, optimizer_path, overrides)
    given = hints.arguments()
    if optimizer_from is not None:
        given |= from_program(optimizer_from, optimizer_config, generation)
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
    if as_json:
        output.print_json(report.to_dict())
    elif not quiet:
        if optimizer_from is not None:
            said = json.dumps(given["optimizer_config"])
            hints = replace(hints, optimizer_config=said, generation=given["generation"])
        typed = hints.typed() + ("" if order is None else f" --order {shlex.quote(order)}")
        _print_report(report, typed, explain)


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
    from optim.errors import DtoptError

    given = hints.arguments()
    try:
        found = look(source, stats=stats, **given)
    except DtoptError as error:
        if error.exit_code != Exit.USAGE:
            _print_contents(source, given, stats, as_json, str(error))
        raise
    if as_json:
        output.print_json(found.to_dict())
    else:
        _print_inspection(found, explain)


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
    with nullcontext() if needless else output.importing_tensorflow():  # while arrays are compared
        try:
            result = compare(source, dest, order=order, progress=progress, **given)
        finally:
            if progress is not None:
                progress.close()
    if as_json:
        output.print_json(result.to_dict())
    else:
        _print_verification(result)
    if not result.ok:
        raise typer.Exit(1)


app.command()(batch)
app.command()(code)


def _byte_bar(label: str, *, quiet: bool = False, as_json: bool = False) -> Bar | None:
    return None if quiet or as_json or not sys.stderr.isatty() else Bar(label, in_bytes=True)


def _print_report(report: Report, hints_typed: str, explain: bool) -> None:
    from rich.markup import escape

    import optim

    console = output.results()
    done = "migrated to" if report.written else "would be migrated to"
    console.print(output.line(report.source), markup=False)
    suffix = "" if report.written else "  (dry run, nothing written)"
    console.print(f"  {done} [bold]{escape(output.line(report.dest))}[/bold]{suffix}")
    ours = report.optimizer in optim.__all__
    called = f"optim.{report.optimizer}" if ours else f"{report.optimizer}, whose rule is yours,"
    console.print(
        f"  {called} from generation {report.generation}, {report.iterations} steps taken;"
        f" {report.slots} slots, {report.variables} variables, {_size(report.bytes)}"
    )
    ways = {how: sum(w == how for w in report.matched.values()) for how in dict.fromkeys(report.matched.values())}
    if ways:
        console.print("  slots matched by " + ", ".join(f"{how} ({count})" for how, count in ways.items()))
    _print_fidelity(report.fidelity, report.reasons)
    _print_origins(report.origins, report.iterations, explain)
    if report.unmapped:
        console.print(f"  carried without interpretation: {_listed(report.unmapped)}", markup=False)
    _print_warnings(report.warnings)
    if report.written:
        paths = f"{output.typed(report.source)} {output.typed(report.dest)}"
        console.print(f"  prove it: dtopt migrate verify {paths}{hints_typed}", markup=False, soft_wrap=True)


def _listed(names: Sequence[str]) -> str:
    """The first of names that may be many."""
    from migrate.bytes.messages import some

    left = " (--json lists all)" if len(names) > LISTED else ""
    return output.line(some(names, LISTED)) + left


def _print_fidelity(fidelity: str, reasons: tuple[str, ...]) -> None:
    console = output.results()
    color = "green" if fidelity == "exact" else "yellow"
    console.print(f"  fidelity: [{color}]{fidelity}[/{color}]")
    for reason in reasons:
        console.print(
            f"    - {output.line(reason)}", markup=False, soft_wrap=True
        )  # a line break is none of the command to type


def _print_origins(origins: tuple[Origin, ...], steps: int, explain: bool) -> None:
    """In one line how many values are from where; with `explain` each of them."""
    console = output.results()
    counts: dict[str, int] = {}
    for origin in origins:
        kind = origin.kind if origin.certain else f"{origin.kind}, not certain"
        counts[kind] = counts.get(kind, 0) + 1
    console.print("  values from: " + "; ".join(f"{kind} ({count})" for kind, count in counts.items()), markup=False)
    for origin in origins if explain else ():
        mark = " " if origin.certain else "?"
        told = origin.doubt or origin.where
        value = "" if origin.value is None else f" = {_shown(origin.value, steps)}"
        console.print(
            f"  {mark} {origin.kind:<13} {origin.subject}{value}" + (f": {told}" if told else ""), markup=False
        )


def _print_warnings(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        output.messages().print(f"  note: {output.line(warning)}", markup=False)


def _print_origin_of_file(found: Inspection | Contents) -> None:
    from rich.markup import escape

    console = output.results()
    console.print(f"[bold]{escape(output.line(found.source))}[/bold]")
    console.print(f"  format      {found.format}\n  generation  {found.generation}")
    for reason in found.evidence:
        console.print(f"                {output.line(reason)}", markup=False)
    if len(found.optimizers) > 1:
        console.print(f"  optimizers  {', '.join(found.optimizers)} (--optimizer chooses)", markup=False)
    if found.versions:
        told = (k if v == "yes" else f"{k} {v}" for k, v in found.versions.items())
        console.print("  written by  " + ", ".join(told), markup=False)


def _print_inspection(found: Inspection, explain: bool) -> None:
    console = output.results()
    _print_origin_of_file(found)
    console.print(
        f"  optimizer   {found.optimizer}, {found.iterations} steps taken ({found.iterations_source})",
        markup=False,
    )
    stored = (found.stored_config or {}).get("config", {})
    console.print("  as stored   " + (_pairs(stored, found.iterations) or "nothing"), markup=False)
    console.print("  in optim    " + _pairs(found.hyperparameters, found.iterations), markup=False)
    if found.slots:
        _print_rows(found.slots)
    else:
        console.print("  slots       none: this optimizer keeps none with these options")
    _print_unmapped(found.unmapped)
    _print_fidelity(found.fidelity, found.reasons)
    _print_origins(found.origins, found.iterations, explain)
    _print_warnings(found.warnings)


def _print_contents(source: str, given: dict[str, Any], stats: bool, as_json: bool, refused: str) -> None:
    """What is in a source that does not say everything, or denies what was said of it."""
    from migrate import contents
    from optim.errors import DtoptError

    known = {name: given[name] for name in ("format", "generation", "optimizer_path")}
    try:
        found = contents(source, stats=stats, **known)
    except DtoptError:
        return
    if found is None:
        return
    if as_json:
        output.print_json({**found.to_dict(), "refused": refused})
        return
    console = output.results()
    _print_origin_of_file(found)
    config = (found.stored_config or {}).get("config", {})
    name = (found.stored_config or {}).get("class_name")
    fitting = f" (slots are called as those of {', '.join(found.classes)})" if found.classes else ""
    console.print(f"  optimizer   {name or f'not said{fitting}'}", markup=False)
    console.print("  as stored   " + (_pairs({**config, **found.scalars}, 0) or "no number"), markup=False)
    _print_rows((*found.variables, *found.slots))
    _print_unmapped(found.unmapped)
    _print_warnings(found.warnings)


def _print_rows(rows: tuple[SlotRow, ...]) -> None:
    console = output.results()
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    console.print(_slot_table(rows))


def _print_unmapped(unmapped: Mapping[str, tuple[int, ...]]) -> None:
    if unmapped:
        told = [f"{n} {list(s)}" for n, s in unmapped.items()]
        output.results().print("  unmapped    " + _listed(told), markup=False)


def _slot_table(rows: tuple[SlotRow, ...]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    with_stats = any(row.stats for row in rows)
    table.add_column("variable", overflow="fold", min_width=12)
    for title in ("slot", "shape", "dtype", "matched by"):
        table.add_column(title, no_wrap=True)
    for title in ("norm", "min", "max", "finite") if with_stats else ():
        table.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        cells = [row.variable, row.slot, "x".join(map(str, row.shape)) or "scalar", row.dtype, row.matched]
        if row.stats:
            cells += [
                f"{row.stats.norm:.3g}",
                f"{row.stats.min:.2g}",
                f"{row.stats.max:.2g}",
                "yes" if row.stats.finite else "NO",
            ]
        table.add_row(*(Text(output.plain(cell)) for cell in cells))
    return table


def _print_verification(result: Verification) -> None:
    from rich.markup import escape

    console = output.results()
    if result.ok:
        step = (
            f"one step agrees ({result.parity:.2g} of what rounding allows)"
            if result.parity is not None
            else "no step compared"
        )
        console.print(
            f"[green]same[/green]: {result.slots} slots and {result.variables} variables bit for bit,"
            f" {result.iterations} steps taken; {step}"
        )
    else:
        console.print(
            f"[red]different[/red]: {escape(output.line(result.source))} and {escape(output.line(result.dest))}"
        )
        for difference in _first(result.differences):
            console.print(f"  {difference}", markup=False)
    _print_warnings(_first(result.notes))


def _first(texts: tuple[str, ...]) -> tuple[str, ...]:
    """The first of what may be many, each in a line, and how many more there are."""
    from migrate.bytes import messages

    more = (f"and {len(texts) - SHOWN} more; --json lists them all",) if len(texts) > SHOWN else ()
    return (*(messages.line(text, cut=messages.IN_JSON) for text in texts[:SHOWN]), *more)


def _pairs(values: Any, steps: int) -> str:
    return ", ".join(f"{key}={_shown(value, steps)}" for key, value in values.items())


def _shown(value: Any, steps: int) -> str:
    """A value, or a learning rate of too many operations to read in short and what it is after so many steps."""
    from migrate.algorithms import rates
    from migrate.proof import parity
    from optim.errors import UnsupportedError

    short = rates.shown(value)
    if short is None:
        return repr(value)
    try:
        return f"<{short}, {parity.schedule(value, steps):.7g} at step {steps}>"
    except UnsupportedError:  # an op that only optim computes
        return f"<{short}>"


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return ""
