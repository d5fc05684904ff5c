"""`dtopt bench check`: parse, look, print. No TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dtopt_cli import output
from dtopt_cli.exit_codes import Exit
from dtopt_cli.options import Json

if TYPE_CHECKING:
    from rich.text import Text

    from bench.check.findings import Finding

COLOURS = {"noisy": "red", "warning": "yellow", "information": "dim"}


def check(
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN.json|@NAME]", help="A result. Without one, this machine is checked.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="How long to watch the machine.")] = 2.0,
    json: Json = False,
) -> None:
    """Check whether a run, or timing on this machine now, can be trusted. Exits with 5 if not.

    \b
    dtopt bench check               load, other processes, clocks, throttling, a fixed piece of work
    dtopt bench check run.json      whether what it calls faster, slower or the same holds
    """
    from bench import kinds
    from bench.check import findings, machine
    from bench.check import run as of_run

    results = machine.check(seconds) if run is None else of_run.check(kinds.load(run))
    stable = findings.stable(results)
    if json:
        output.print_json(findings.document(results, "machine" if run is None else "run"))
    else:
        console = output.results()
        for finding in sorted(results, key=lambda finding: findings.SEVERITIES.index(finding.severity)):
            console.print(_line(finding))
        console.print(_answer("machine" if run is None else "run", stable))
    raise typer.Exit(Exit.OK if stable else Exit.TOO_NOISY)


def _line(finding: Finding) -> Text:
    from rich.text import Text

    word = (f"{finding.severity:9}", COLOURS[finding.severity])
    return Text.assemble(word, f"{finding.what:10} {finding.where}: {finding.text}")


def _answer(of: str, stable: bool) -> str:
    if of == "machine":
        return f"This machine is {'stable' if stable else 'not stable: do not trust its times'}."
    return "You can trust this run." if stable else "Do not trust this run: see the findings that are noisy."
