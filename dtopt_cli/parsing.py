"""How words are parsed: help that names a switch alone, and errors of usage that end as all others do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
import typer.core

from dtopt_cli import output
from dtopt_cli.exit_codes import Exit


class _Parsing:
    """What commands and groups have in common."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Parameters, of which a switch has no value to show."""
        params = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
        return params


class Command(_Parsing, typer.core.TyperCommand):
    """A command of this program."""


class Group(_Parsing, typer.core.TyperGroup):
    """A group of commands."""


class App(typer.Typer):
    """A Typer whose commands and groups are these."""

    def __init__(self, *, cls: type[Group] = Group, **options: Any):
        super().__init__(cls=cls, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        return super().command(name, cls=Command, **options)


@contextmanager
def usage_errors() -> Iterator[None]:
    """Report the parser's errors as all others are, and end with their exit code.

    Their class is not the same in all releases of Typer.
    """
    try:
        yield
    except Exception as error:
        if not hasattr(error, "format_message") or type(error).__name__ == "NoArgsIsHelpError":
            raise
        output.tell(output.message(error.format_message()), (_help(getattr(error, "ctx", None)),))
        raise typer.Exit(getattr(error, "exit_code", Exit.USAGE)) from error


def _help(context: Any) -> str:
    """The command that shows the options of a command."""
    names: list[str] = []
    while context is not None and context.parent is not None:
        names.insert(0, context.info_name)
        context = context.parent
    return " ".join(("dtopt", *names, "--help"))
