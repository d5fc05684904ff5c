"""The command `dtopt` and its one error edge: every DtoptError becomes one message and its exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Annotated, Any

import typer

from dtopt_cli import output
from dtopt_cli.commands import bench, migrate
from dtopt_cli.exit_codes import Exit
from optim import release
from optim.errors import DtoptError
from optim.interrupts import interruption

app = typer.Typer(
    name="dtopt",
    help="Carry optimizer state across Keras and TensorFlow generations, and measure mesh optimizers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(migrate.app, name="migrate")
app.add_typer(bench.app, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dtopt {release.version()}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command."""
    _end_like_ctrl_c(context)


def _end_like_ctrl_c(context: typer.Context) -> None:
    """SIGTERM ends a command as Ctrl-C does, so that what is done is kept and nothing is left behind. A
    second one changes nothing: the first is being obeyed."""

    def end(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    context.call_on_close(lambda: signal.signal(signal.SIGTERM, before))


def _say(text: str) -> None:
    """On stderr, if anybody can read it: the exit code says the same."""
    with contextlib.suppress(OSError):
        typer.echo(text, err=True)


def main() -> None:
    """Entry point of the console script."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, by `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    debug = "--debug" in sys.argv[1:]
    both = release.installed()
    if len(both) > 1:
        typer.echo(
            f"dtopt: {' and '.join(both)} are both installed and own the same files: pip uninstall -y {' '.join(both)},"
            " then install one of them",
            err=True,
        )
    try:
        app()
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            raise
        if isinstance(interruption(error), KeyboardInterrupt):
            _say("dtopt: interrupted")
            sys.exit(Exit.INTERRUPTED)
        if isinstance(error, DtoptError):
            _say(output.message(str(error)))
            sys.exit(error.exit_code)
        if isinstance(error, ModuleNotFoundError) and error.name == "tensorflow":
            _say("dtopt: this needs TensorFlow, which is not installed: pip install tensorflow")
            sys.exit(Exit.USAGE)
        what = f"{type(error).__name__}: {error}"
        if isinstance(error, OSError) and error.filename is None:  # of a file it has the name
            _say(output.message(f"the output cannot be written: {error.strerror}"))
            sys.exit(Exit.BROKEN)
        _say(output.message(f"{what}; please report it, with what --debug shows"))
        sys.exit(Exit.BROKEN)


if __name__ == "__main__":
    main()
