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

if TYPE_CHECKING:
    from bench.results import Result

BROKEN = 3
NOTHING_RAN = 4
INTERRUPTED = 130

OutputFile = Annotated[Path | None, typer.Option("--output", help="Also write the JSON to this file.")]


def command() -> str:
    """This command as it was typed, for results to say how they came about."""
    return shlex.join(["dtopt", *sys.argv[1:]])


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr, called with (what, done, of), gone when done; silent where stderr is no terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = output.messages()
    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
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
    from bench import results

    if file is not None:
        results.save(result, file)
    if json:
        output.print_json(result.to_json())
    else:
        show(render(), piped_width=piped_width)


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
        return INTERRUPTED
    if "failed" in statuses:
        return BROKEN
    return 0 if "ok" in statuses else NOTHING_RAN
