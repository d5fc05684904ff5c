"""What the commands of `dtopt bench` do around their one library call: watch it, keep the result, end with its code."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dtopt_cli import output
from dtopt_cli.exit_codes import Exit

if TYPE_CHECKING:
    from bench.results.document import Result

OutputFile = Annotated[
    Path | None,
    typer.Option("--output", metavar="FILE|@NAME", help="Also write the JSON to this file, or keep it under a name."),
]


def command() -> str:
    """This command as the user typed it, to record in results."""
    return shlex.join(["dtopt", *sys.argv[1:]])


def require_writable(file: Path | None) -> None:
    """Refuse a file that cannot be written before anything is measured. Raises: ResultsError."""
    from bench.results import document

    if file is not None:
        document.require_writable(file)


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr, called with (what, done, of), gone when done; silent where stderr is no terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = output.messages()
    columns = (BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("")
        yield lambda what, done, of: bar.update(task, description=what, completed=done, total=of)


def give(
    result: Result, render: Callable[[], Iterable[Any]], *, json: bool, file: Path | None, piped_width: int = 0
) -> None:
    """Write a result to the file of `--output`, if one is named, and print it: as JSON, or as the report it makes.

    Args:
      piped_width: as `show` takes it.
    """
    from bench.measuring.process import undisturbed
    from bench.results import document

    try:
        if file is not None:
            with undisturbed():
                document.save(result, file)
    finally:  # what was measured is printed although it cannot be kept
        if json:
            tell_failures(result)
            output.print_json(result.to_json())
        else:
            show(render(), piped_width=piped_width)


def tell_failures(result: Result) -> None:
    """Print on stderr why rows failed: the user sees it even if stdout goes to a file."""
    for row in result.rows:
        if row.status == "failed":
            name = " ".join(str(getattr(row, member)) for member in ("peer", "mesh") if hasattr(row, member))
            output.messages().print(f"{name}: {row.reason}", markup=False)


def show(parts: Iterable[Any], *, piped_width: int = 0) -> None:
    """Print a report.

    Args:
      piped_width: columns at the least where stdout is no terminal: a wide table cut off at 80 has no numbers left.
    """
    console = output.results()
    if not console.is_terminal:
        console.width = max(console.width, piped_width)
    for part in parts:
        console.print(part)


def exit_code(result: Result) -> int:
    """What a command that measured ends with."""
    statuses = {row.status for row in result.rows}
    if result.interrupted:
        return Exit.INTERRUPTED
    if "failed" in statuses:
        return Exit.BROKEN
    return Exit.OK if "ok" in statuses else Exit.NOTHING_RAN
