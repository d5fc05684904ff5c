"""Build the page sections of `dtopt bench migrate`."""

from __future__ import annotations

from collections.abc import Iterator

from bench.migration.row import COMMANDS, OfCopy, Row
from bench.page.section import Bars, Section
from bench.page.tables import Table
from bench.page.words import size, with_interval
from bench.results.document import Result


def sections(result: Result) -> Iterator[Section]:
    """Show throughput and memory of each format."""
    rows = [row for row in result.rows if row.status == "ok"]
    text = (
        "cp is followed by sync, as a migration syncs what it writes. Each command runs in its own process, start"
        " included. Dropped: the input is not in the page cache.",
    )
    reruns = tuple(row.rerun for row in result.rows)
    yield Section("Migration against cp", text, (table(result),), tuple(_figures(rows)), reruns)


def table(result: Result) -> Table:
    headings = ("format", "command", "size", "seconds", "MB/s", "of cp's speed", "memory", "")
    return Table("Migration against cp", headings, tuple(line for row in result.rows for line in _lines(row)), text=2)


def _lines(row: Row) -> Iterator[tuple[str, ...]]:
    if row.status != "ok":
        yield (row.format, "", "", "", "", "", "", f"{row.status}: {row.reason}")
    beside = {"migrate": row.of_copy, "migrate, dropped": row.of_copy_dropped}
    for command in row.commands:
        speed = f"{command.bytes_per_second / 1e6:.0f}" if command.name != "inspect" else "-"
        memory = "-" if command.peak_bytes is None else size(command.peak_bytes)
        whole = size(row.bytes or 0)
        yield (
            row.format,
            command.name,
            whole,
            f"{command.median:.3g}",
            speed,
            _of(beside.get(command.name)),
            memory,
            "",
        )


def _of(copy: OfCopy | None) -> str:
    return "" if copy is None else with_interval(copy.median, copy.low, copy.high)


def _figures(rows: list[Row]) -> Iterator[Bars]:
    if not rows:
        return
    formats = tuple(row.format for row in rows)
    speeds = {
        name: tuple(_of_command(row, name, "bytes_per_second") for row in rows)
        for name in COMMANDS
        if name != "inspect"
    }
    yield Bars("Throughput", formats, speeds, "MB/s")
    memory = {
        name: tuple(_of_command(row, name, "peak_bytes") for row in rows) for name in ("migrate", "verify", "inspect")
    }
    yield Bars("Memory", formats, memory, "MB at most")


def _of_command(row: Row, name: str, member: str) -> float | None:
    value = next((getattr(command, member) for command in row.commands if command.name == name), None)
    return None if value is None else value / 1e6
