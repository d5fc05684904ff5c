"""What mkdocs.yml cannot say: signatures as Python shows them, commands as their --help does, README as first page."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = "<!-- commands -->"
ALGORITHMS = "<!-- algorithms -->"
FIRST_PAGE = "<!-- README.md -->"
KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: griffe.ParameterKind.positional_only,
    inspect.Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
    inspect.Parameter.VAR_POSITIONAL: griffe.ParameterKind.var_positional,
    inspect.Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
    inspect.Parameter.VAR_KEYWORD: griffe.ParameterKind.var_keyword,
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Puts in what a page asks for: commands' arguments and options, all algorithms, or README, seen from docs/."""
    if COMMANDS in markdown:
        return markdown.replace(COMMANDS, commands())
    if ALGORITHMS in markdown:
        return markdown.replace(ALGORITHMS, algorithms())
    if FIRST_PAGE in markdown:
        return markdown.replace(FIRST_PAGE, (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "]("))
    return markdown


def algorithms() -> str:
    """Every optimizer of `optim` that is made from a rule."""
    import optim

    made = [name for name in optim.__all__ if getattr(getattr(optim, name), "_rule_class", None) is not None]
    return "\n\n".join(f"::: optim.{name}\n    options: {{heading_level: 3, members: false}}" for name in made)


def commands() -> str:
    """Markdown of `dtopt` and of each command under it."""
    import typer
    from typer.cli import get_docs_for_click

    from dtopt_cli.app import app

    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="dtopt")
    return text.removeprefix("# `dtopt`\n")  # the page has a title


class Signatures(griffe.Extension):
    """Gives each class the signature that `inspect` finds: an optimizer's is made from its rule."""

    def on_class_instance(self, *, node: Any, cls: griffe.Class, **_: Any) -> None:
        made = getattr(getattr(node, "obj", None), "__signature__", None)
        if made is None or issubclass(node.obj, BaseException):
            return
        first = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
        rest = [
            griffe.Parameter(p.name, kind=KINDS[p.kind], default=None if p.default is p.empty else repr(p.default))
            for p in made.parameters.values()
        ]
        cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(first, *rest)))
