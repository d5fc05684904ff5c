"""What is printed, and what happens where it cannot be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dtopt_cli import output

SOURCE = Path(__file__).parents[1] / "fixtures" / "corpus" / "keras224-sgd-momentum-convbn" / "source" / "model.h5"
INSPECT = f"{sys.executable} -m dtopt_cli migrate inspect {SOURCE}"


@pytest.mark.parametrize("character", ["\x1b", "\u202e", "\u2066", "\u200f", "\u2028", "\x85"])
def test_names_steer_no_terminal(character: str) -> None:
    shown = output.plain(f"a{character}b")
    assert shown.isprintable()
    assert output.typed(f"a{character}b").startswith("$'")


@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [
        (">/dev/full", 3, "dtopt: the output cannot be written: No space left on device\n"),
        (">&-", 0, ""),
        ("2>/dev/full", 0, ""),
    ],
)
def test_output_that_nobody_takes(redirection: str, code: int, said: str) -> None:
    done = subprocess.run(f"{INSPECT} {redirection}", shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, said)
