"""What the shell completes after `dtopt bench`: commands, and the values of every option that takes known words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from dtopt_cli.commands.bench import app
from tests.places import ROOT

WORDS = {
    "step": ("-w", "-o", "-p", "--layout", "--device", "--baseline", "--slot-placement", "--dtype", "--in", "--cache"),
    "plan": ("-w", "-o", "--layout", "--slot-placement", "--dtype", "--checkpointing", "--device-type"),
    "scale": ("-w", "-o", "--scaling", "--layout", "--slot-placement", "--device"),
    "train": ("--problem", "-o", "-p", "--layout", "--device"),
    "migrate": ("--format",),
}


@pytest.mark.parametrize(("command", "option"), [(name, option) for name, known in WORDS.items() for option in known])
def test_an_option_of_known_words_completes_them(command: str, option: str) -> None:
    parameter = next(p for p in get_command(app).commands[command].params if option in p.opts)  # type: ignore[attr-defined]
    assert parameter._custom_shell_complete is not None


def complete(line: str, **more: str) -> list[str]:
    """As bash asks."""
    words = line.split(" ")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "_DTOPT_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        **more,
    }
    program = "from dtopt_cli.app import app; app(prog_name='dtopt')"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    return done.stdout.split()


def test_bash_is_given_commands_and_values(tmp_path: Path) -> None:
    assert {"step", "plan", "history", "compare"} <= set(complete("dtopt bench "))
    assert complete("dtopt bench step --cache c") == ["cold"]
    assert complete("dtopt bench plan --checkpointing s") == ["selective"]
    (tmp_path / "main").mkdir()
    (tmp_path / "main" / "a.json").touch()
    assert complete("dtopt bench history @", DTOPT_BENCH_HISTORY=str(tmp_path)) == ["@main"]
