"""Show plans as a table: the answer in a sentence, the runners-up and why, and what is unknown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.forecast.devices import device
from bench.forecast.footprint import OF_OPTIM
from bench.forecast.row import Row
from bench.page import terminal
from bench.page.words import duration, short_mesh, size

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_ROWS = 10
SHOWN_LAYOUT_NOTES = 3


def render(rows: Sequence[Row]) -> list[RenderableType]:
    """Return what to print on a rich console, from top to bottom; `rows` are ranked."""
    from rich.text import Text

    first = rows[0]
    title = Text(f"{first.optimizer} on {first.workload}", style="bold")
    title.append(f", {first.parameters:,} {first.dtype} parameters in {first.tensors:,} tensors", style="not bold")
    shown = _shown(rows)
    answer = [*_answer(rows), ""] if first.limit_bytes is not None else []
    parts: list[RenderableType] = [title, *_training(first), "", *answer, _table(shown)]
    if len(shown) < len(rows):
        parts.append(f"and {len(rows) - len(shown)} more, see --json")
    return [*parts, "", *_exchanges(shown[0]), *_notes(shown[0]), *_what_is_not_known(first)]


def _training(row: Row) -> Iterator[str]:
    if row.sequence is None or row.batch is None:
        return
    master = ", master copies and slots in float32" if row.master_copies else ""
    master += f", slots in {row.slot_dtype}" if row.slot_dtype else ""
    yield (
        f"A batch of {row.batch:,}, {row.micro_batch} at once, {row.sequence:,} tokens each; {row.checkpointing}"
        f" recomputation{master}."
    )


def _shown(rows: Sequence[Row]) -> Sequence[Row]:
    fitting = [row for row in rows if row.fits and row.possible]
    return (fitting or rows)[:MOST_ROWS]


def _table(rows: Sequence[Row]) -> RenderableType:
    table = terminal.table(("mesh", "params", "grads", "slots", "activ.", "device", "sent", "step", "fits"))
    for row in rows:
        activations = "?" if row.activation_bytes is None else size(row.activation_bytes)
        sizes = (row.parameter_bytes, row.gradient_bytes, sum(row.slot_bytes.values()))
        fits = {None: "", True: "[green]yes[/]", False: "[red]no[/]"}[row.fits if row.possible else False]
        cells = [*map(size, sizes), activations, size(row.device_bytes), size(row.sent_bytes), _time(row), fits]
        short = (cell.replace(" ", "") for cell in cells)
        table.add_row(_short(row), *short, style="bold" if row.recommended else None)
    return table


def name(row: Row) -> str:
    """Format `batch=8,model=1 zero1`, with the layout if it is not megatron."""
    words = [row.mesh, *([row.layout] if row.layout != "megatron" else [])]
    return " ".join([*words, *([row.placement] if row.placement != "like_variable" else [])])


def _short(row: Row) -> str:
    """Return the same with the short form of the mesh, which `--mesh` accepts, too: 8x1."""
    return name(replace(row, mesh=short_mesh(row.mesh)))


def _time(row: Row) -> str:
    seconds = row.step_seconds
    return "?" if seconds is None else duration(seconds)


def _answer(rows: Sequence[Row]) -> Iterator[RenderableType]:
    limit = rows[0].limit_bytes
    if limit is None:
        return
    chosen = next((row for row in rows if row.recommended), None)
    what = f"{rows[0].workload} with {rows[0].optimizer}"
    if chosen is None:
        least = min(rows, key=lambda row: row.device_bytes)
        yield (
            f"[red]{what} does not fit:[/] the least is {size(least.device_bytes)} per device ({name(least)}), and"
            f" there are {size(limit)}. Take more devices, --checkpointing full, a narrower --dtype, or an optimizer"
            " with fewer slots."
        )
        return
    yield (
        f"[green]{what} fits:[/] --mesh {chosen.mesh} --layout {chosen.layout} --slot-placement {chosen.placement}"
        f" holds {size(chosen.device_bytes)} per device and leaves {size(limit - chosen.device_bytes)}."
    )
    yield _why(chosen, rows) + _parts(chosen) + "."
    if chosen.placement not in OF_OPTIM:
        yield f"optim itself has like_variable and zero1 today; {chosen.placement} is other libraries' (ZeRO, FSDP)."
    yield from _runners_up(chosen, [row for row in rows if row.fits and row.possible and row is not chosen][:2])


def _why(chosen: Row, rows: Sequence[Row]) -> str:
    """Explain in what the plan is the best of those that fit."""
    best = "takes the shortest step" if chosen.step_seconds is not None else "sends least"
    if len(rows) == 1:
        return "A step takes" if chosen.step_seconds is not None else "It is the only plan"
    if chosen.activation_bytes is None:
        return f"What a split model sends is not known: of what fits it splits least, and then {best}"
    return f"Of what fits it {best}"


def _parts(row: Row) -> str:
    if row.step_seconds is None or row.update_seconds is None or row.exchange_seconds is None:
        return ""
    computed = "forward and backward (not known), "
    if row.compute_seconds is not None:
        computed = f"{duration(row.compute_seconds)} of forward and backward, "
    return f": {computed}{duration(row.exchange_seconds)} of exchange, {duration(row.update_seconds)} of update"


def _runners_up(chosen: Row, others: Sequence[Row]) -> Iterator[str]:
    for row in sorted(others, key=lambda row: row.step_seconds or 0.0):
        if chosen.step_seconds is not None and row.step_seconds is not None:
            more = row.step_seconds / chosen.step_seconds - 1
            why = f"{more:+.1%} time{_parts(row)}" if abs(more) > 0.01 else "as fast, but more is sharded"
            if more < -0.01:
                why = "quicker in what is known, but what it sends for the split model is not"
        else:
            why = f"sends {size(row.sent_bytes)} instead of {size(chosen.sent_bytes)}"
        yield f"Next: {name(row)}, {why}."


def _exchanges(row: Row) -> Iterator[RenderableType]:
    if not row.exchanges:
        yield f"With {name(row)} a step exchanges nothing between devices."
        return
    yield f"Each device sends per step ({name(row)}):"
    for one in row.exchanges:
        where = "" if one.in_step else ", not in the optimizer's step"
        yield (
            f"  {size(one.sent)}: {one.purpose}, {one.operation} over {' and '.join(one.axes)} ({one.devices} devices,"
            f" {one.tensors} tensor{'s' * (one.tensors > 1)}{where})"
        )


def _notes(row: Row) -> Iterator[RenderableType]:
    yield from row.layout_notes[:SHOWN_LAYOUT_NOTES]
    if len(row.layout_notes) > SHOWN_LAYOUT_NOTES:
        yield f"and {len(row.layout_notes) - SHOWN_LAYOUT_NOTES} more such tensors"
    if row.device is not None:
        known = device(row.device)
        yield f"{known.name}: {known.source}."
    yield from filter(None, [_bandwidth(row)])


def _bandwidth(row: Row) -> str | None:
    """State the speed of memory for updates, and its source."""
    if row.measured and row.update_seconds:
        speed = row.update_bytes / row.update_seconds / 1e9
        return f"Updates are counted at {speed:,.0f} GB/s a device ({row.measured})."
    known = device(row.device) if row.device is not None else None
    if known is None:
        return None
    if known.reached is None:
        return (
            f"Not measured: the part of the memory bandwidth of {known.name} that dtopt's kernel reaches."
            " Updates are counted at all of it."
        )
    return f"Updates are counted at {known.reached:.0%} of the memory bandwidth, which dtopt's kernel reached."


def _what_is_not_known(row: Row) -> Iterator[RenderableType]:
    if row.activation_bytes is None:
        yield "Not known: activations, and what tensor parallelism sends for them; reserve room with --other."
    yield "Not counted: overlap of exchange and computing, pipelines, memory that libraries and fragments take."
    if row.optimizer == "muon" and row.update_seconds is not None:
        yield "Muon's matrix products are not in the time."
