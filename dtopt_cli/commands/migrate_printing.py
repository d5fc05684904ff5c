"""What the commands of `dtopt migrate` print for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dtopt_cli import output

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from migrate.claims import Origin
    from migrate.conversion.contents import Contents
    from migrate.conversion.convert import Report
    from migrate.conversion.inspection import Inspection, SlotRow
    from migrate.proof.verification import Verification

SHOWN = 5
"""Differences, and notes of a comparison; `--json` has them all."""
LISTED = 12
"""Names of what is copied without interpretation; `--json` has them all."""
STATISTICS = ("norm", "min", "max", "finite")
LEAST = 12
"""Columns of a variable's name in a narrow terminal."""
GAP = "  "


def report(result: Report, hints: Sequence[str], explain: bool) -> None:
    import optim

    console = output.results()
    console.print(output.line(result.source), markup=False)
    form = ", a slot checkpoint for optim.load_checkpoint" if result.target == "slots" else ""
    done = "migrated to {}{}" if result.written else "would be migrated to {}{} (dry run, nothing written)"
    output.hang(console, "  ", done.format(result.dest, form))
    ours = result.optimizer in optim.__all__
    called = f"optim.{result.optimizer}" if ours else f"{result.optimizer}, whose rule is yours,"
    progress = f"{called} from generation {result.generation}, {result.iterations} steps taken"
    output.hang(console, "  ", f"{progress}; {result.slots} slots, {result.variables} variables, {_size(result.bytes)}")
    ways = {how: sum(w == how for w in result.matched.values()) for how in dict.fromkeys(result.matched.values())}
    if ways:
        output.hang(console, "  slots matched by ", ", ".join(f"{how} ({count})" for how, count in ways.items()))
    _fidelity(result.fidelity, result.reasons)
    _origins(result.origins, result.iterations, explain)
    for what, names in (("fresh", result.fresh), ("grown", result.grown), ("dropped", result.dropped)):
        if names:
            output.hang(console, f"  {what}: ", _listed(names))
    if result.unmapped:
        output.hang(console, "  copied without interpretation: ", _listed(result.unmapped))
    _warnings(result.warnings)
    if result.written:
        paths = f"{output.typed(result.source)} {output.typed(result.dest)}"
        words = "".join(f" {output.typed_word(word)}" for word in hints)
        console.print("  to check it:")
        console.print(f"    dtopt migrate verify {paths}{words}", markup=False, soft_wrap=True)
    _answers(result)


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
        output.hang(console, "    - ", reason)


def _answers(result: Report | Inspection) -> None:
    """What to type next, each command whole and on a separate line."""
    console = output.results()
    if result.confirm_command:
        console.print("  to confirm, if it is right:", markup=False)
        console.print(f"    {result.confirm_command}", markup=False, soft_wrap=True)
    if result.choice_commands:
        console.print("  to answer, one of:", markup=False)
    for command in result.choice_commands:
        console.print(f"    {command}", markup=False, soft_wrap=True)


def _origins(origins: tuple[Origin, ...], steps: int, explain: bool) -> None:
    """In one line how many values are from where, and what was set against the source; with `explain` each of them."""
    console = output.results()
    counts: dict[str, int] = {}
    for origin in origins:
        kind = origin.kind if origin.certain else f"{origin.kind}, not certain"
        counts[kind] = counts.get(kind, 0) + 1
    output.hang(console, "  values from: ", "; ".join(f"{kind} ({count})" for kind, count in counts.items()))
    for origin in origins if explain else (o for o in origins if o.kind == "set" and o.where):
        mark = " " if origin.certain else "?"
        text = origin.doubt or origin.where
        value = "" if origin.value is None else f" = {_shown(origin.value, steps)}"
        output.hang(console, f"  {mark} {origin.kind:<13} ", f"{origin.subject}{value}" + (f": {text}" if text else ""))


def _warnings(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        output.hang(output.messages(), "  note: ", warning)


def _origin_of_file(source: Inspection | Contents) -> None:
    from rich.markup import escape

    console = output.results()
    console.print(f"[bold]{escape(output.line(source.source))}[/bold]")
    console.print(f"  format      {source.format}\n  generation  {source.generation}")
    for reason in source.evidence:
        output.hang(console, "              - ", reason)
    if len(source.optimizers) > 1:
        output.hang(console, "  optimizers  ", f"{', '.join(source.optimizers)} (--optimizer chooses)")
    if source.versions:
        versions = (k if v == "yes" else f"{k} {v}" for k, v in source.versions.items())
        output.hang(console, "  written by  ", ", ".join(versions))


def inspection(result: Inspection, explain: bool) -> None:
    console = output.results()
    _origin_of_file(result)
    progress = f"{result.optimizer}, {result.iterations} steps taken ({result.iterations_source})"
    output.hang(console, "  optimizer   ", progress)
    stored = (result.stored_config or {}).get("config", {})
    output.hang(console, "  as stored   ", _pairs(stored, result.iterations) or "nothing")
    output.hang(console, "  in optim    ", _pairs(result.hyperparameters, result.iterations))
    if result.slots:
        _rows(result.slots)
    elif result.unmade:
        output.hang(console, "  slots       ", f"not created yet: the first step creates {', '.join(result.unmade)}")
    else:
        console.print("  slots       this optimizer needs no slots with these options")
    _unmapped(result.unmapped)
    _fidelity(result.fidelity, result.reasons)
    _origins(result.origins, result.iterations, explain)
    _warnings(result.warnings)
    _answers(result)


def contents(result: Contents) -> None:
    """The content of a source that is incomplete, or contradicts the user's input."""
    console = output.results()
    _origin_of_file(result)
    config = (result.stored_config or {}).get("config", {})
    name = (result.stored_config or {}).get("class_name")
    fitting = f" (its slots fit {', '.join(result.classes)})" if result.classes else ""
    console.print(f"  optimizer   {name or f'unknown{fitting}'}", markup=False)
    output.hang(console, "  as stored   ", _pairs({**config, **result.scalars}, 0) or "no number")
    _rows((*result.variables, *result.slots))
    _unmapped(result.unmapped)
    _warnings(result.warnings)


def _rows(rows: tuple[SlotRow, ...]) -> None:
    """A table, which rich would take seconds for where there are thousands of rows."""
    console = output.results()
    title, *lines = _table(rows, console.width if console.is_terminal else None)
    console.print(title, style="bold", markup=False)
    console.print("\n".join(lines), markup=False, soft_wrap=True)


def _unmapped(unmapped: Mapping[str, tuple[int, ...]]) -> None:
    if unmapped:
        items = [f"{n} {list(s)}" for n, s in unmapped.items()]
        output.hang(output.results(), "  unmapped    ", _listed(items))


def _table(rows: tuple[SlotRow, ...], width: int | None) -> Iterator[str]:
    """The titles, a rule and the rows; names of variables are folded where all is wider than `width`."""
    from rich.cells import cell_len, chop_cells, set_cell_size

    with_stats = any(row.stats for row in rows)
    titles = ("variable", "slot", "shape", "dtype", "matched by", *(STATISTICS if with_stats else ()))
    cells = [[output.line(cell) for cell in (*_cells(row), *(_numbers(row) if with_stats else ()))] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(titles, *cells, strict=True)]
    if width is not None:
        widths[0] = min(widths[0], max(LEAST, width - sum(widths[1:]) - len(GAP) * (len(widths) - 1)))

    def joined(name: str, others: Iterable[str]) -> str:
        shown = [set_cell_size(name, widths[0])]
        for i, (other, wide) in enumerate(zip(others, widths[1:], strict=True), 1):
            shown.append(other.rjust(wide) if titles[i] in STATISTICS else set_cell_size(other, wide))
        return GAP.join(shown).rstrip()

    yield joined(titles[0], titles[1:])
    yield "─" * (sum(widths) + len(GAP) * (len(widths) - 1))
    for name, *others in cells:
        first, *rest = chop_cells(name, widths[0]) or [""]
        yield joined(first, others)
        yield from rest


def _cells(row: SlotRow) -> tuple[str, ...]:
    return row.variable, row.slot, "x".join(map(str, row.shape)) or "scalar", row.dtype, row.matched


def _numbers(row: SlotRow) -> tuple[str, ...]:
    stats = row.stats
    if stats is None:
        return ("",) * len(STATISTICS)
    return f"{stats.norm:.3g}", f"{stats.min:.2g}", f"{stats.max:.2g}", "yes" if stats.finite else "NO"


def _step(parity: float | None) -> str:
    """Describe the step, which may differ if the migration is approximate."""
    if parity is None:
        return "no step compared"
    if parity > 1:
        return f"one step differs by {parity:.3g} times the rounding tolerance, as an approximate migration may"
    return f"one step agrees (error is {_percent(parity)} of the rounding tolerance)"


def verification(result: Verification) -> None:
    from rich.markup import escape

    console = output.results()
    if result.ok:
        console.print(
            f"[green]same[/green]: {result.slots} slots and {result.variables} variables bit for bit,"
            f" {result.iterations} steps taken; {_step(result.parity)}"
        )
    else:
        console.print(
            f"[red]different[/red]: {escape(output.line(result.source))} and {escape(output.line(result.dest))}"
        )
        for difference in _first(result.differences):
            output.hang(console, "  - ", difference)
    _warnings(_first(result.notes))


def _percent(part: float) -> str:
    return f"{100 * part:.2g} %" if part >= 0.01 else "under 1 %"


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
        return repr(_shortest(value))
    try:
        return f"<{short}, {parity.schedule(value, steps):.7g} at step {steps}>"
    except UnsupportedError:  # an op that only optim computes
        return f"<{short}>"


def _shortest(value: Any) -> Any:
    """A number that a file keeps in float32, as people write it: 0.2 for 0.20000000298023224."""
    import numpy as np

    if not isinstance(value, float) or value != np.float32(value):
        return value
    return float(str(np.float32(value)))


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return ""
