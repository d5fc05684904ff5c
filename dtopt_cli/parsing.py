"""How words are parsed: help that names a switch alone, and errors of usage that end as all others do."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
import typer.core

from dtopt_cli import output
from dtopt_cli.exit_codes import Exit

VALUES = {"int": "N", "float": "NUMBER", "path": "FILE", "str": "TEXT", "text": "TEXT"}
"""What help shows for a value, by the beginning of its type's name in Typer or Click."""


def _type_name(param: Any, ctx: Any) -> str:
    """Return the type of a value, or of each of several, as this release of Typer calls it."""
    shown = param.display_type(ctx) if hasattr(param, "display_type") else param.type.name
    return str(shown).lower().strip("<>").removeprefix("list[")


def _usage(argument: Any, ctx: Any) -> list[str]:
    """Return what a usage line shows for an argument; some releases of Typer put it in braces."""
    name = argument.metavar or argument.name.upper()
    name += "..." if argument.nargs != 1 and not name.endswith("...") else ""
    return [name if argument.required or name.startswith("[") else f"[{name}]"]


class _Parsing:
    """What commands and groups have in common."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Parameters: an option shows a word for its value, a switch or an argument only its name."""
        params = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if param.param_type_name == "argument":
                param.display_type_rich = lambda ctx: None  # its name is all
                param.get_usage_pieces = functools.partial(_usage, param)
            elif getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
            elif param.metavar is None:
                name = _type_name(param, ctx)
                param.metavar = next((word for begin, word in VALUES.items() if name.startswith(begin)), None)
        return params


EXAMPLES = "\b\n"
"""Begins a paragraph of examples: on each line a command, and after two spaces or more what it is for."""


def folded(help: str) -> str:
    """Return a help text with each paragraph on one line, and what an example is for on a line below its command."""
    return "\n\n".join(map(_paragraph, inspect.cleandoc(help).split("\n\n")))


def _paragraph(text: str) -> str:
    if not text.startswith(EXAMPLES):
        return " ".join(text.split())
    lines = [re.split(r"\s{2,}", line.strip()) for line in text.removeprefix(EXAMPLES).splitlines()]
    return "\n".join("\n    ".join(parts) for parts in lines)


class Command(_Parsing, typer.core.TyperCommand):
    """A command of this program."""

    def __init__(self, *args: Any, help: str | None = None, **options: Any):
        super().__init__(*args, help=folded(help or ""), **options)


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
