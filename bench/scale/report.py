"""Show scaling as a table: bytes held, bytes sent predicted and measured, time and efficiency."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bench.page import terminal
from bench.page.words import short_mesh, size, with_interval
from bench.results.document import Result
from bench.scale.row import Row

if TYPE_CHECKING:
    from rich.console import RenderableType


def render(result: Result) -> list[RenderableType]:
    """Return what to print on a rich console, from top to bottom."""
    from rich.text import Text

    row = result.rows[0]
    title = Text(f"{row.scaling.capitalize()} scaling of {row.optimizer} on {row.workload}", style="bold")
    clients = f"{row.clients} clients" if row.clients > 1 else "1 client"
    title.append(f", layout {row.layout}, slots {row.placement}, {row.device}, {clients}", style="not bold")
    return [title, "", _table(result.rows), "", *_explanations(result), *_left_out(result.rows)]


def _table(rows: Sequence[Row]) -> RenderableType:
    table = terminal.table(("mesh", "copies", "per device", "sent", "measured", "ms/step", "efficiency"))
    for row in rows:
        if row.status == "ok":
            table.add_row(*_cells(row))
        else:
            table.add_row(short_mesh(row.mesh), str(row.copies), size(row.device_bytes), "", "", row.status)
    return table


def _cells(row: Row) -> tuple[str, ...]:
    sent = row.predicted_sent_bytes if row.clients > 1 else row.device_sent_bytes
    measured = "-" if row.measured_sent_bytes is None else size(round(row.measured_sent_bytes))
    time = f"{(row.median or 0) * 1e3:.3g} ±{(row.mad or 0) * 1e3:.2g}"
    reached = row.efficiency
    # Without the backslash rich would read the bracket as markup.
    shown = with_interval(reached.median, reached.low, reached.high, "{:.0%}").replace("[", "\\[") if reached else "-"
    return short_mesh(row.mesh), str(row.copies), size(row.device_bytes), size(sent), measured, time, shown


def _explanations(result: Result) -> Iterator[RenderableType]:
    row, context = result.rows[0], result.context
    whose = "client" if row.clients > 1 else "device"
    yield (
        "A step reduces the gradients over the examples' axis and updates. Per device: parameters, gradients and slots."
    )
    yield f"Sent: predicted bytes per {whose} and step" + (
        "; measured: counted on its connections."
        if row.clients > 1
        else "; there is no traffic to measure in a single process (see --clients)."
    )
    base = next((one.efficiency.baseline for one in result.rows if one.efficiency), None)
    if base is not None:
        yield f"Efficiency: relative to {short_mesh(base)}, with a 95% interval over {context['rounds']} rounds."
    if row.device == "cpu" and context["client"] is None:
        yield (
            f"All devices share this machine's {context['cpus_allowed']} CPUs: efficiency here shows overhead, not what"
            " more machines would give."
        )
    wrong = [
        one for one in result.rows if one.status == "ok" and (one.parameter_bytes, one.slot_bytes) != _reported(one)
    ]
    if wrong:
        meshes = ", ".join(one.mesh for one in wrong)
        yield f"[red]On {meshes} the optimizer reports other bytes than predicted, see --json.[/]"
    if context["busy"]:
        yield f"[yellow]The machine was busy before the run (load {context['load']:.1f}).[/]"
    if result.interrupted:
        yield "[yellow]Interrupted:[/] only what was measured until then is shown."


def _reported(row: Row) -> tuple[int | None, int | None]:
    return row.reported_parameter_bytes, row.reported_slot_bytes


def _left_out(rows: Sequence[Row]) -> Iterator[RenderableType]:
    from rich.text import Text

    for row in rows:
        if row.status != "ok":
            line = Text(f"{row.status.capitalize()} ", style="red" if row.status == "failed" else "dim")
            yield line.append(f"{row.mesh}: {row.reason}")
