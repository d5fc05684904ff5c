"""Records of options in the signature of a command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from dtopt_cli.options import spread

Name = Annotated[str, typer.Option("--name")]
Count = Annotated[int, typer.Option("--count", min=1)]


@dataclass(frozen=True)
class Both:
    name: Name = "none"
    count: Count = 1


def command(
    first: Annotated[str, typer.Argument()], *, both: Both, last: Annotated[bool, typer.Option("--last")] = False
) -> None:
    """What it does."""
    print(first, both, last)


def test_fields_of_a_record_are_options_in_its_place() -> None:
    app = typer.Typer()
    app.command()(spread(command))
    found = CliRunner().invoke(app, ["x", "--count", "3", "--last"])
    assert found.output.strip() == "x Both(name='none', count=3) True"
    text = CliRunner().invoke(app, ["--help"]).output
    assert "What it does." in text
    assert text.index("--name") < text.index("--count") < text.index("--last")
    assert CliRunner().invoke(app, ["x", "--count", "0"]).exit_code == 2
