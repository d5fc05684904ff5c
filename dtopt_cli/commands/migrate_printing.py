"""What the commands of `dtopt migrate` print for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dtopt_cli import output

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


def report(made: Report, hints_typed: str, explain: bool) -> None:
    from rich.markup import escape

    import optim

    console = output.results()
    done = "migrated to" if made.written else "would be migrated to"
    console.print(output.line(made.source), markup=False)
    suffix = "" if made.written else "  (dry run, nothing written)"
    console.print(f"  {done} [bold]{escape(output.line(made.dest))}[/bold]{suffix}")
    ours = made.optimizer in optim.__all__
    called = f"optim.{made.optimizer}" if ours else f"{made.optimizer}, whose rule is yours,"
    console.print(
        f"  {called} from generation {made.generation}, {made.iterations} steps taken;"
        f" {made.slots} slots, {made.variables} variables, {_size(made.bytes)}"
    )
    ways = {how: sum(w == how for w in made.matched.values()) for how in dict.fromkeys(made.matched.values())}
    if ways:
        console.print("  slots matched by " + ", ".join(f"{how} ({count})" for how, count in ways.items()))
    _fidelity(made.fidelity, made.reasons)
    _origins(made.origins, made.iterations, explain)
    if made.unmapped:
        console.print(f"  carried without interpretation: {_listed(made.unmapped)}", markup=False)
    _warnings(made.warnings)
    if made.written:
        paths = f"{output.typed(made.source)} {output.typed(made.dest)}"
        console.print(f"  prove it: dtopt migrate verify {paths}{hints_typed}", markup=False, soft_wrap=True)


def _listed(names: Sequence[str]) -> str:
    """The first of names that may be many."""
    from migrate.bytes.messages import some

    left = " (--json lists all)" if len(names) > LISTED else ""
    return output.line(some(names, LISTED)) + left


def _fidelity(fidelity: str, reasons: tuple[str, ...]) -> None:
    console = output.results()
    color = "green" if fidelity == "exact" else "yellow"
    console.print(f"  fidelity: [{color}]{fidelity}[/{color}]")
    for reason in reasons:
        console.print(
            f"    - {output.line(reason)}", markup=False, soft_wrap=True
        )  # a line break is none of the command to type


def _origins(origins: tuple[Origin, ...], steps: int, explain: bool) -> None:
    """In one line how many values are from where, and what was set against the source; with `explain` each of them."""
    console = output.results()
    counts: dict[str, int] = {}
    for origin in origins:
        kind = origin.kind if origin.certain else f"{origin.kind}, not certain"
        counts[kind] = counts.get(kind, 0) + 1
    console.print("  values from: " + "; ".join(f"{kind} ({count})" for kind, count in counts.items()), markup=False)
    for origin in origins if explain else (o for o in origins if o.kind == "set" and o.where):
        mark = " " if origin.certain else "?"
        told = origin.doubt or origin.where
        value = "" if origin.value is None else f" = {_shown(origin.value, steps)}"
        console.print(
            f"  {mark} {origin.kind:<13} {origin.subject}{value}" + (f": {told}" if told else ""), markup=False
        )


def _warnings(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        output.messages().print(f"  note: {output.line(warning)}", markup=False)


def _origin_of_file(found: Inspection | Contents) -> None:
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


def inspection(found: Inspection, explain: bool) -> None:
    console = output.results()
    _origin_of_file(found)
    console.print(
        f"  optimizer   {found.optimizer}, {found.iterations} steps taken ({found.iterations_source})",
        markup=False,
    )
    stored = (found.stored_config or {}).get("config", {})
    console.print("  as stored   " + (_pairs(stored, found.iterations) or "nothing"), markup=False)
    console.print("  in optim    " + _pairs(found.hyperparameters, found.iterations), markup=False)
    if found.slots:
        _rows(found.slots)
    else:
        console.print("  slots       none: this optimizer keeps none with these options")
    _unmapped(found.unmapped)
    _fidelity(found.fidelity, found.reasons)
    _origins(found.origins, found.iterations, explain)
    _warnings(found.warnings)


def contents(found: Contents) -> None:
    """What a source holds that does not say everything, or denies what was said of it."""
    console = output.results()
    _origin_of_file(found)
    config = (found.stored_config or {}).get("config", {})
    name = (found.stored_config or {}).get("class_name")
    fitting = f" (slots are called as those of {', '.join(found.classes)})" if found.classes else ""
    console.print(f"  optimizer   {name or f'not said{fitting}'}", markup=False)
    console.print("  as stored   " + (_pairs({**config, **found.scalars}, 0) or "no number"), markup=False)
    _rows((*found.variables, *found.slots))
    _unmapped(found.unmapped)
    _warnings(found.warnings)


def _rows(rows: tuple[SlotRow, ...]) -> None:
    console = output.results()
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    console.print(_slot_table(rows))


def _unmapped(unmapped: Mapping[str, tuple[int, ...]]) -> None:
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


def verification(result: Verification) -> None:
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
    _warnings(_first(result.notes))


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
