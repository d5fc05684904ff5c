"""What is printed, and what happens where it cannot be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dtopt_cli import output
from dtopt_cli.commands import migrate_printing
from migrate.conversion.inspection import SlotRow
from tests.places import CORPUS

SOURCE = CORPUS / "tf115-rmsprop-mlp" / "source" / "model.h5"
FULL = "dtopt: the output cannot be written: No space left on device\n"
INSPECT = f"{sys.executable} -m dtopt_cli migrate inspect {SOURCE}"


@pytest.mark.parametrize("character", ["\x1b", "\u202e", "\u2066", "\u200f", "\u2028", "\x85"])
def test_names_steer_no_terminal(character: str) -> None:
    shown = output.plain(f"a{character}b")
    assert shown.isprintable()
    assert output.typed(f"a{character}b").startswith("$'")


@pytest.mark.parametrize(
    ("path", "typed"), [("-x", "./-x"), ("--it's", """'./--it'"'"'s'"""), ("-\n", "$'./-\\n'"), ("a-b", "a-b")]
)
def test_paths_are_no_options_where_they_are_typed(path: str, typed: str) -> None:
    assert output.typed(path) == typed


@pytest.mark.breadth
@pytest.mark.parametrize(
    ("end", "code", "message"),
    [
        (">/dev/full", 3, FULL),
        ("--json >/dev/full", 3, FULL),
        (">&-", 0, ""),
        ("2>/dev/full", 0, ""),
        ("--set beta_1=0.5x 2>/dev/full", 2, ""),
    ],
)
def test_output_that_nobody_takes(end: str, code: int, message: str) -> None:
    done = subprocess.run(f"{INSPECT} {end}", shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, message)


@pytest.mark.parametrize("words", ["migrate inspect {source}", "migrate inspect {source} --json", "bench list"])
@pytest.mark.quick(1)
def test_a_reader_that_leaves_is_no_answer(words: str) -> None:
    """`verify` ends with 1 where two differ: `| head` must not look like that."""
    command = f"set -o pipefail; {sys.executable} -m dtopt_cli {words.format(source=SOURCE)} | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("migrate inspect nowhere", 3, "nowhere does not exist"),
        ("migrate inspect", 2, "Missing argument"),
        ("migrate inspect {source} --no-such-option", 2, "No such option"),
        ("migrate inspect {source} --set lr", 2, "is not NAME=VALUE"),
        ("migrate checkpoint {source} {folder}/out --strict --set beta_1=0.5", 2, "has no effect"),
        ("migrate verify {source} nowhere", 3, "nowhere is not a slot-variable checkpoint"),
        ("migrate batch {source} --into {folder} --shard 3/2", 2, "is not I/N"),
        ("migrate code nowhere.py", 2, "does not exist"),
        ("bench plan -w nothing", 2, "no workload is called"),
    ],
)
def test_json_of_an_error_is_a_document_too(words: str, code: int, message: str, main: Any, tmp_path: Path) -> None:
    result = main(*words.format(source=SOURCE, folder=tmp_path).split(), "--json")
    document = json.loads(result[1])
    assert (result[0], document["exit_code"]) == (code, code)
    assert message in document["error"]
    assert result[2], "people read it on stderr"


def test_json_of_what_does_not_say_everything_is_one_document(main: Any) -> None:
    source = SOURCE.parents[2] / "tf24-sgd-momentum-ckpt-convbn" / "source" / "ckpt-1"
    code, out, _ = main("migrate", "inspect", str(source), "--json")
    assert (code, "--set class_name=CLASS" in json.loads(out)["refused"]) == (3, True)


def test_ctrl_c_during_imports_ends_quietly() -> None:
    """Typer's import stands for any."""
    interrupted = (
        "import sys\nclass Finder:\n def find_spec(self, name, *_):\n  if name == 'typer': raise KeyboardInterrupt\n"
    )
    program = f"{interrupted}sys.meta_path.insert(0, Finder())\nfrom dtopt_cli.__main__ import main\nmain()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "dtopt: interrupted\n")


def test_names_that_are_too_wide_are_folded() -> None:
    """By the columns that a terminal takes for them, two for each of these letters."""
    rows = tuple(SlotRow(name, "m", (2, 3), "float32", "name", "x") for name in ("层" * 10, "a\nb", "short"))
    title, _, *lines = migrate_printing._table(rows, 50)
    assert lines == [
        "层层层层层层层层  m     2x3    float32  name",
        "层层",
        "a\\nb              m     2x3    float32  name",
        "short             m     2x3    float32  name",
    ]
    assert title.split() == ["variable", "slot", "shape", "dtype", "matched", "by"]
    wide = list(migrate_printing._table(rows, None))
    assert wide[2].startswith("层" * 10 + "  m ")
