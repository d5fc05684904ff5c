"""The command `dtopt` and its one error edge: every DtoptError becomes one message and its exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Annotated, Any, NoReturn, TextIO

import typer

from dtopt_cli import output, parsing, typed
from dtopt_cli.commands import bench, demo, migrate
from dtopt_cli.exit_codes import Exit
from optim import release
from optim.errors import DtoptError
from optim.interrupts import interruption

app = parsing.App(
    name="dtopt",
    cls=typed.Recording,
    help="Migrate optimizer state between releases of Keras and TensorFlow, and benchmark optimizers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(migrate.app, name="migrate")
app.add_typer(bench.app, name="bench")
app.command()(demo.demo)


def _print_version(is_set: bool) -> None:
    if is_set:
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
    """SIGTERM ends a command as Ctrl-C does: finished work is kept, and temporary files are removed. A
    second one changes nothing, because the command is already ending."""

    def end(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    context.call_on_close(lambda: signal.signal(signal.SIGTERM, before))


def main() -> None:
    """Entry point of the console script."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, by `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    both = release.installed()
    if len(both) > 1:
        uninstall = f"pip uninstall -y {' '.join(both)}"
        output.tell(
            f"dtopt: {' and '.join(both)} contain the same files. Uninstall both, then install one:", (uninstall,)
        )
    output.printed.document = False
    if "--debug" in sys.argv[2:]:  # after a command, which does not know it
        sys.argv[1:] = ["--debug", *(word for word in sys.argv[1:] if word != "--debug")]
    try:
        _run()
    except SystemExit as end:  # of typer, which has said why
        behind = end.__context__
        if isinstance(behind, typer.Exit):
            behind = behind.__cause__
        if isinstance(behind, BrokenPipeError):
            _quit(behind)
        if behind is not None and isinstance(interruption(behind), KeyboardInterrupt):
            _quit(behind)
        _print_error(getattr(behind, "format_message", str)(), end.code)
        raise
    except (Exception, KeyboardInterrupt) as error:
        if "--debug" in sys.argv[1:]:
            if isinstance(error, DtoptError):
                confirm, choices = typed.answers_to(error)
                error.commands = tuple(command for command in (confirm, *choices) if command)
            raise
        _quit(error)


def _run() -> None:
    """The command, all of whose output is written: an error of that comes too late at Python's end."""
    try:
        app()
    except SystemExit:
        sys.stdout.flush()
        raise


def _quit(error: BaseException) -> NoReturn:
    message, code = _message(error)
    confirm, choices = typed.answers_to(error)
    if code != Exit.NOBODY_READS:
        output.tell(message, (command for command in (confirm, *choices) if command))
        _print_error(message, code, confirm_command=confirm, choice_commands=choices)
    for stream in (sys.stdout, sys.stderr):
        _let_go(stream)
    sys.exit(code)


def _let_go(stream: TextIO) -> None:
    """Drop unread output: if not, Python tries again at its end, and exits with 120."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _message(error: BaseException) -> tuple[str, int]:
    """The message of an error, and the exit code."""
    stopped = interruption(error)
    if isinstance(stopped, KeyboardInterrupt):
        return f"dtopt: {str(stopped) or 'interrupted'}", Exit.INTERRUPTED
    if isinstance(error, DtoptError):
        return output.message(error.text), error.exit_code
    if isinstance(error, ModuleNotFoundError) and error.name == "tensorflow":
        return "dtopt: this needs TensorFlow, which is not installed: pip install tensorflow", Exit.USAGE
    if isinstance(error, BrokenPipeError):  # as `| head` closes it
        return "", Exit.NOBODY_READS
    if isinstance(error, OSError) and error.filename is None:  # of a file it has the name
        return output.message(f"the output cannot be written: {error.strerror}"), Exit.BROKEN
    what = f"{type(error).__name__}: {error}"
    return output.message(f"{what}; please report it, with what --debug shows"), Exit.BROKEN


def _print_error(message: str, code: Any, **commands: Any) -> None:
    """With `--json` as the one document, if the command has not printed one."""
    if code and "--json" in sys.argv[1:] and not output.printed.document:
        with contextlib.suppress(OSError):
            extra = {name: command for name, command in commands.items() if command}
            output.print_json({"error": message.removeprefix("dtopt: "), "exit_code": int(code), **extra})
            sys.stdout.flush()


if __name__ == "__main__":
    main()
