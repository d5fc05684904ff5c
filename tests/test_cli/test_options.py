"""Records of options in the signature of a command."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from dtopt_cli.options import Hints, spread
from migrate.code.hints import from_code
from optim.errors import HyperparameterError

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
    result = CliRunner().invoke(app, ["x", "--count", "3", "--last"])
    assert result.output.strip() == "x Both(name='none', count=3) True"
    text = CliRunner().invoke(app, ["--help"]).output
    assert "What it does." in text
    assert text.index("--name") < text.index("--count") < text.index("--last")
    assert CliRunner().invoke(app, ["x", "--count", "0"]).exit_code == 2


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_json_may_be_of_any_unicode_encoding(encoding: str, tmp_path: Path) -> None:
    """PowerShell writes UTF-16, and editors of Windows a byte order mark."""
    file = tmp_path / "variables.json"
    file.write_bytes('[\r\n  {"name": "größe", "shape": [3]}\r\n]\r\n'.encode(encoding))
    assert Hints(variables=str(file)).arguments()["variables"] == [{"name": "größe", "shape": [3]}]


@pytest.mark.parametrize(
    ("hints", "message"),
    [
        (Hints(overrides=["rho=0.9", "rho=0.95"]), "rho is there twice, as 0.9 and 0.95"),
        (
            Hints(optimizer_config='{"class_name": "SGD", "config": {"a": 1, "a": null}}'),
            "a is there twice, as 1 and null",
        ),
        (Hints(variables='[{"name": "a", "name": "b", "shape": []}]'), 'name is there twice, as "a" and "b"'),
        (Hints(variables="[1"), 'it must be a list of objects, [{"name": ..., "shape": [...]}, ...]'),
        (Hints(variables="{}"), "holds other JSON; it must be a list of objects"),
    ],
)
def test_what_would_be_passed_over_is_refused(hints: Hints, message: str) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        hints.arguments()
    assert message in refused.value.message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("0.5", 0.5), (".5", 0.5), ("5.", 5.0), ("+5e-1", 0.5), ("1_000", 1000.0), ("7", 7)),
        *(("True", True), ("false", False), ("None", None), ("null", None), ("Adam", "Adam"), ('["a"]', ["a"])),
    ],
)
def test_values_are_read_as_people_write_them(text: str, value: Any) -> None:
    assert Hints(overrides=[f"x = {text}", f"x={text}"]).arguments()["overrides"] == {"x": value}


@pytest.mark.parametrize("option", ["optimizer_config", "variables"])
@pytest.mark.parametrize("kind", ["device", "pipe", "folder", "large"])
def test_a_hint_file_is_a_small_regular_file(option: str, kind: str, tmp_path: Path) -> None:
    """A pipe waited for ever, /dev/zero and 8 GB filled the memory."""
    path = tmp_path / "hint"
    if kind == "device":
        path = Path("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(8 << 30)
    message = "has 8589934592 bytes, and a hint has at most 67108864" if kind == "large" else "is not a regular file"
    with pytest.raises(typer.BadParameter, match=message):
        Hints(**{option: str(path)}).arguments()
    with pytest.raises(HyperparameterError, match=message):
        from_code(str(path))
