"""`dtopt migrate`: carry optimizer state over, look at it, prove it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dtopt_cli import output
from dtopt_cli.commands.batch import batch
from dtopt_cli.options import From, Generation, Json, OptimizerConfig, OptimizerPath, Order, Variables, hints
from dtopt_cli.progress import Bar

if TYPE_CHECKING:
    from migrate.convert import Report
    from migrate.inspection import Inspection, SlotRow
    from migrate.verification import Verification

SHOWN_DIFFERENCES = 20
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
    variables: Variables = None,
    generation: Generation = None,
    optimizer_path: OptimizerPath = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse whatever is not exact.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Do everything but write.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a migrated checkpoint at DEST.")] = False,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Migrate the optimizer state in SOURCE to DEST. SOURCE is never changed, DEST is whole or not there."""
    given = hints(format, optimizer_config, variables, generation, optimizer_path)
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
        _print_report(report)


@app.command()
def inspect(
    source: Source,
    stats: Annotated[bool, typer.Option("--stats", help="Read every slot: norm, smallest, greatest, finite.")] = False,
    format: From = "auto",
    optimizer_config: OptimizerConfig = None,
    variables: Variables = None,
    generation: Generation = None,
    optimizer_path: OptimizerPath = None,
    as_json: Json = False,
) -> None:
    """Say what SOURCE is, how that was recognised, every slot, and what would be lost."""
    given = hints(format, optimizer_config, variables, generation, optimizer_path)
    from migrate import inspect as look

    found = look(source, stats=stats, **given)
    if as_json:
        output.print_json(found.to_dict())
    else:
        _print_inspection(found)


@app.command()
def verify(
    source: Source,
    dest: Dest,
    format: From = "auto",
    optimizer_config: OptimizerConfig = None,
    variables: Variables = None,
    generation: Generation = None,
    optimizer_path: OptimizerPath = None,
    order: Order = None,
    as_json: Json = False,
) -> None:
    """Compare DEST with SOURCE: every slot bit for bit, and one step of both. Exit code 1 if they differ."""
    given = hints(format, optimizer_config, variables, generation, optimizer_path)
    from migrate import verify as compare

    progress = _byte_bar("comparing", as_json=as_json)
    with output.importing_tensorflow():  # beside the comparison of arrays, which does not need it
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


def _byte_bar(label: str, *, quiet: bool = False, as_json: bool = False) -> Bar | None:
    return None if quiet or as_json or not sys.stderr.isatty() else Bar(label, in_bytes=True)


def _print_report(report: Report) -> None:
    console = output.results()
    done = "migrated to" if report.written else "would be migrated to"
    console.print(
        f"{report.source}\n  {done} [bold]{report.dest}[/bold]"
        + ("" if report.written else "  (dry run, nothing written)")
    )
    console.print(
        f"  optim.{report.optimizer} from generation {report.generation}, {report.iterations} steps taken;"
        f" {report.slots} slots, {report.variables} variables, {_size(report.bytes)}"
    )
    ways = {how: sum(w == how for w in report.matched.values()) for how in dict.fromkeys(report.matched.values())}
    if ways:
        console.print("  slots matched by " + ", ".join(f"{how} ({count})" for how, count in ways.items()))
    _print_fidelity(report.fidelity, report.reasons)
    if report.unmapped:
        console.print(f"  carried without interpretation: {', '.join(report.unmapped)}", markup=False)
    _print_warnings(report.warnings)
    if report.written and report.target == "slots":
        console.print(f"  prove it: dtopt migrate verify {report.source} {report.dest}", markup=False)


def _print_fidelity(fidelity: str, reasons: tuple[str, ...]) -> None:
    console = output.results()
    color = "green" if fidelity == "exact" else "yellow"
    console.print(f"  fidelity: [{color}]{fidelity}[/{color}]")
    for reason in reasons:
        console.print(f"    - {reason}", markup=False)


def _print_warnings(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        output.messages().print(f"  note: {warning}", markup=False)


def _print_inspection(found: Inspection) -> None:
    console = output.results()
    console.print(f"[bold]{found.source}[/bold]\n  format      {found.format}\n  generation  {found.generation}")
    for reason in found.evidence:
        console.print(f"                {reason}", markup=False)
    if len(found.optimizers) > 1:
        console.print(f"  optimizers  {', '.join(found.optimizers)} (--optimizer chooses)", markup=False)
    if found.versions:
        console.print("  written by  " + ", ".join(f"{k} {v}" for k, v in found.versions.items()), markup=False)
    console.print(
        f"  optimizer   {found.optimizer}, {found.iterations} steps taken ({found.iterations_source})",
        markup=False,
    )
    stored = (found.stored_config or {}).get("config", {})
    console.print("  as stored   " + (_pairs(stored) or "nothing"), markup=False)
    console.print("  in optim    " + _pairs(found.hyperparameters), markup=False)
    if found.slots:
        if not console.is_terminal:
            console.width = PIPED_WIDTH
        console.print(_slot_table(found.slots))
    else:
        console.print("  slots       none: this optimizer keeps none with these options")
    if found.unmapped:
        console.print("  unmapped    " + ", ".join(f"{n} {list(s)}" for n, s in found.unmapped.items()), markup=False)
    _print_fidelity(found.fidelity, found.reasons)
    _print_warnings(found.warnings)


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
        table.add_row(*map(Text, cells))
    return table


def _print_verification(result: Verification) -> None:
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
        console.print(f"[red]different[/red]: {result.source} and {result.dest}")
        for difference in result.differences[:SHOWN_DIFFERENCES]:
            console.print(f"  {difference}", markup=False)
        if len(result.differences) > SHOWN_DIFFERENCES:
            console.print(f"  and {len(result.differences) - SHOWN_DIFFERENCES} more; --json lists them all")
    _print_warnings(result.notes)


def _pairs(values: Any) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in values.items())


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return ""
