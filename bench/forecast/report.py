"""Plans as a table for people, with the answer to "does it fit" in a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bench.plan_row import Row

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_ROWS = 12
SHOWN_LAYOUT_NOTES = 3


def render(rows: Sequence[Row]) -> list[RenderableType]:
    """What to print, from top to bottom, on a rich console; `rows` are ranked."""
    from rich.text import Text

    first = rows[0]
    title = Text(f"{first.optimizer} on {first.workload}", style="bold")
    title.append(f", {first.parameters:,} {first.dtype} parameters in {first.tensors:,} tensors", style="not bold")
    shown = _shown(rows)
    parts: list[RenderableType] = [title, "", _table(shown)]
    if len(shown) < len(rows):
        parts.append(f"and {len(rows) - len(shown)} more, see --json")
    return [*parts, "", *_answer(rows), *_exchanges(shown[0]), *_notes(shown[0]), *_what_is_not_counted(first)]


def _shown(rows: Sequence[Row]) -> Sequence[Row]:
    fitting = [row for row in rows if row.fits]
    return (fitting or rows)[:MOST_ROWS]


def _table(rows: Sequence[Row]) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("mesh", "layout", "placement"):
        table.add_column(heading, no_wrap=True)
    for heading in ("parameters", "gradients", "slots", "per device", "sent/step"):
        table.add_column(heading, justify="right", no_wrap=True)
    timed = any(row.update_seconds is not None for row in rows)
    limited = rows[0].fits is not None
    if timed:
        table.add_column("step", justify="right", no_wrap=True)
    if limited:
        table.add_column("fits")
    for row in rows:
        sizes = (row.parameter_bytes, row.gradient_bytes, sum(row.slot_bytes.values()), row.device_bytes)
        cells = [row.mesh, row.layout, row.placement, *map(size, sizes), size(row.sent_bytes)]
        cells += [_time(row)] if timed else []
        cells += [("[green]yes[/]" if row.fits else "[red]no[/]")] if limited else []
        table.add_row(*cells, style="bold" if row.recommended else None)
    return table


def size(count: int) -> str:
    """Bytes with three digits: `13.5 GB`."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            value = count / factor
            return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"
    return f"{count} B"


def _time(row: Row) -> str:
    seconds = row.step_seconds
    if seconds is not None:
        return f"{seconds * 1e3:.3g} ms"
    return f"{(row.update_seconds or 0.0) * 1e3:.3g} ms + exchange"


def _answer(rows: Sequence[Row]) -> Iterator[RenderableType]:
    limit = rows[0].limit_bytes
    if limit is None:
        return
    chosen = next((row for row in rows if row.recommended), None)
    what = f"{rows[0].workload} with {rows[0].optimizer}"
    if chosen is None:
        least = min(rows, key=lambda row: row.device_bytes)
        yield (
            f"[red]{what} does not fit:[/] the least is {size(least.device_bytes)} per device ({least.mesh},"
            f" {least.layout}, {least.placement}), and there are {size(limit)}. Take more devices, a narrower --dtype,"
            " or an optimizer with fewer slots."
        )
        return
    yield (
        f"[green]{what} fits:[/] --mesh {chosen.mesh} --layout {chosen.layout} --placement {chosen.placement} holds"
        f" {size(chosen.device_bytes)} per device and leaves {size(limit - chosen.device_bytes)} for all else. Of what"
        " fits it sends least."
    )


def _exchanges(row: Row) -> Iterator[RenderableType]:
    if not row.exchanges:
        yield f"With {row.mesh} and {row.layout} a step exchanges nothing between devices."
        return
    yield f"Each device sends per step ({row.mesh}, {row.layout}, {row.placement}):"
    for one in row.exchanges:
        where = "" if one.in_step else ", before the step"
        yield (
            f"  {size(one.sent)}: {one.purpose}, {one.operation} over {' and '.join(one.axes)} ({one.devices} devices,"
            f" {one.tensors} tensors{where})"
        )


def _notes(row: Row) -> Iterator[RenderableType]:
    yield from row.layout_notes[:SHOWN_LAYOUT_NOTES]
    if len(row.layout_notes) > SHOWN_LAYOUT_NOTES:
        yield f"and {len(row.layout_notes) - SHOWN_LAYOUT_NOTES} more such tensors"


def _what_is_not_counted(row: Row) -> Iterator[RenderableType]:
    yield (
        "Not counted: activations, what tensor parallelism exchanges for them, and temporaries; reserve room with"
        " --other."
    )
    if row.optimizer == "muon" and row.update_seconds is not None:
        yield "Muon's matrix products are not in the time."
