"""What a terminal shows: whole words and commands at any width, and help that names values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from rich.cells import cell_len
from typer.testing import CliRunner

from dtopt_cli import options, output, parsing
from dtopt_cli.app import app
from dtopt_cli.commands.bench_list import KINDS
from tests.places import CORPUS

COUNTED = str(CORPUS / "keras231-adam-amsgrad-mlp" / "source" / "model.h5")
SGD = str(CORPUS / "tf24-sgd-momentum-ckpt-convbn" / "source" / "ckpt-1")
COLORS = re.compile(r"\x1b\[[\d;]*m")


def shown(width: int, *words: str) -> list[str]:
    """The lines of stdout and stderr in a terminal of this width."""
    done = CliRunner().invoke(app, words, env={"COLUMNS": str(width), "FORCE_COLOR": "1"})
    return [COLORS.sub("", line) for line in (done.stdout + done.stderr).splitlines()]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(
    "words",
    [
        ("migrate", "inspect", COUNTED, "--explain"),
        ("migrate", "inspect", SGD, "--set", "class_name=SGD", "--set", "momentum=0.9"),
        ("migrate", "checkpoint", COUNTED, "/nowhere/out", "--dry-run"),
        ("bench", "list"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_lines_fit_and_hang(words: tuple[str, ...], width: int) -> None:
    lines = shown(width, *words)
    assert len(lines) > 5
    for line in lines:
        fits = cell_len(line) <= width
        alone = line.strip().startswith("dtopt ") or " " not in line.strip().removeprefix("- ")  # a command, a path
        assert fits or alone, line
    reasons = [number for number, line in enumerate(lines) if line.startswith("    - ")]
    for number in reasons:
        after = lines[number + 1]
        assert after.startswith(("      ", "    - ", "  ")), after
    assert not any(line[:1].isalnum() for number in reasons for line in lines[number + 1 : number + 3])


def test_options_and_long_words_are_left_whole() -> None:
    lines = output.fold("confirm it with --set clipnorm=none or " + "x" * 50, 30, "  note: ")
    assert lines == ["  note: confirm it with", "        --set clipnorm=none or", "        " + "x" * 50]


def test_a_usage_error_ends_with_the_help_command(main: Any) -> None:
    code, out, error = main("migrate", "verify", COUNTED)
    assert (code, out) == (2, "")
    assert error.splitlines() == ["dtopt: Missing argument 'DEST'.", "  dtopt migrate verify --help"]
    code, _, error = main("bench", "--rounds", "none")
    assert (code, error.splitlines()[-1]) == (2, "  dtopt bench step --help")


def _commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*words, name))


@pytest.mark.parametrize("words", list(_commands(typer.main.get_command(app))), ids=" ".join)
def test_help_shows_no_types_of_python(words: tuple[str, ...]) -> None:
    text = "\n".join(shown(100, *words, "--help"))
    assert not re.search(r"<[a-z]|BOOLEAN", text)
    assert "--help" in text
    (usage,) = re.findall("Usage: .*", text)
    assert not re.search(r"[{}]|\.\.\.\.", usage)


@pytest.mark.parametrize("words", list(_commands(typer.main.get_command(app))), ids=" ".join)
def test_help_breaks_no_example(words: tuple[str, ...]) -> None:
    """In 80 columns; at the right of a command there is nothing."""
    command = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]  # type: ignore[attr-defined]
    typed = [line for line in (command.help or "").splitlines() if line.startswith("dtopt ")]
    assert set(typed) <= {line.strip() for line in shown(80, *words, "--help")}


def test_paragraphs_of_help_are_folded() -> None:
    assert parsing.folded("One\n    line.\n\n    Two\n    lines.") == "One line.\n\nTwo lines."
    assert parsing.folded("\b\na --b   what it is for\nc --d") == "a --b\n    what it is for\nc --d"


def test_options_list_their_values() -> None:
    from migrate.conversion.targets import TARGETS
    from migrate.readers import READERS

    assert ("auto", *(reader.name for reader in READERS)) == options.FORMATS
    assert options.TARGETS == TARGETS
    for words in (("checkpoint",), ("batch",)):
        text = " ".join(" ".join(shown(100, "migrate", *words, "--help")).replace("│", " ").split())
        assert ", ".join(options.FORMATS) in text
        assert ", ".join(options.TARGETS) in text


def test_a_list_can_be_asked_for_one_kind() -> None:
    every, some = shown(100, "bench", "list"), shown(100, "bench", "list", "layouts")
    assert [line for line in every if line and not line.startswith(" ")] == list(KINDS.values())
    assert some[0] == KINDS["layouts"]
    summaries = "\n".join(some[1:]).replace("\n    ", " ")
    assert all(line.endswith(".") for line in summaries.splitlines())
    assert len(summaries.splitlines()) == 5
    assert " 1 tensors" not in " ".join(every)
    refused = shown(100, "bench", "list", "layout")
    assert refused[0].startswith("dtopt: Invalid value for KIND: there is no kind 'layout'; there are workloads")
