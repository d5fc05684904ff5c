"""Somebody who types what the messages say gets on: no option that is not there, no loop, no contradiction."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import migrate
from dtopt_cli.app import app
from dtopt_cli.options import Hints
from migrate.bytes import messages
from migrate.claims import Origin, confirming
from migrate.conversion.commands import restore_call
from optim.errors import UnsupportedError
from tests import obeying
from tests.places import CORPUS, WILD

REPRESENTATIVE = (
    CORPUS / "extra-k231-sgd-same-shapes-saver",
    CORPUS / "extra-tf115-bert-warm3-saver",
    CORPUS / "extra-tf215-adam-twins-alone",
    CORPUS / "extra-tf24-adam-two-optimizers-ckpt",
    CORPUS / "extra-tfa19-lookahead-adam-ckpt",
    CORPUS / "keras38-nadam-mlp",
    WILD / "tf29-e-tfops-functional-h5",
    WILD / "tf29-g-custom-subclass-adam-h5",
)
EVERY = [p for folder in (CORPUS, WILD) for p in sorted(folder.iterdir()) if (p / "case.json").is_file()]


@pytest.mark.parametrize("case", REPRESENTATIVE, ids=lambda p: p.name)
@pytest.mark.quick(3)
def test_what_is_said_can_be_typed(case: Path) -> None:
    faults, typed = obeying.faults(case)
    assert faults == []
    assert typed >= 4


@pytest.mark.breadth
@pytest.mark.parametrize("case", [p for p in EVERY if p not in REPRESENTATIVE], ids=lambda p: p.name)
def test_what_is_said_of_others_can_be_typed(case: Path) -> None:
    assert obeying.faults(case)[0] == []


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0.1,
        4,
        "Adam",
        "my package>Adam",
        "none",
        "1",
        "",
        ["it's"],
        ["a b", "$HOME", "c\nd", '"', "\\"],
        [";&|<*"],
    ],
    ids=repr,
)
def test_a_confirmation_says_the_same_value_to_a_shell(value: Any) -> None:
    command = confirming("name", value)
    typed = subprocess.run(["sh", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True).stdout
    assert typed.splitlines()[:1] == ["--set"]
    assert len(typed.splitlines()) == 2
    overrides = Hints(overrides=[typed.splitlines()[1]]).arguments()["overrides"]
    assert overrides == {"name": value}


@pytest.mark.parametrize(
    ("confirm", "how"),
    [
        ("--set iterations=4", "To confirm: --set"),
        ("--set iterations=4 or --set iterations=5", "Choose with --set"),
        ("--set iterations=N", "Set it with --set"),
    ],
)
def test_what_only_a_person_knows_is_asked_for(confirm: str, how: str) -> None:
    assert f". {how}" in Origin("iterations", 4, "file", doubt="it is", confirm=confirm).reason


def test_the_command_that_checks_survives_a_shell(tmp_path: Path) -> None:
    """A path with a space, a quote and brackets, on a narrow terminal, too."""
    folder = tmp_path / "a [bold]run's $HOME"
    shutil.copytree(CORPUS / "tf24-adam-convbn" / "source", folder)
    source, dest = folder / "model.h5", tmp_path / "out"
    result = CliRunner().invoke(app, ["migrate", "checkpoint", str(source), str(dest)], env={"COLUMNS": "40"})
    words = shlex.split(
        next(line for line in result.output.splitlines() if line.startswith("    dtopt migrate verify "))
    )
    assert words == ["dtopt", "migrate", "verify", str(source), str(dest)]
    assert str(source) in result.output.splitlines()[0]


@pytest.mark.breadth
@pytest.mark.parametrize(
    ("name", "options"),
    [("new.h5", ["--to", "tf-keras"]), ("new.npz", ["--to", "list", "--order", "keras3"]), ("new", [])],
)
def test_every_target_is_proven_as_the_report_says(name: str, options: list[str], tmp_path: Path) -> None:
    source = CORPUS / "tf24-adam-convbn" / "source" / "model.h5"
    done = CliRunner().invoke(app, ["migrate", "checkpoint", str(source), str(tmp_path / name), *options])
    line = next(line for line in done.output.splitlines() if line.startswith("    dtopt migrate verify "))
    proof = CliRunner().invoke(app, shlex.split(line)[1:])
    assert (proof.exit_code, proof.output.partition(":")[0]) == (0, "same")


def test_a_call_that_would_be_long_names_its_arguments() -> None:
    config = {"class_name": "Adam", "config": {"learning_rate": 0.009999999776482582}}
    assert "learning_rate': 0.01}" in restore_call("ckpt", {"optimizer_config": config})
    config["config"] |= {f"option_{i}": 0.5 for i in range(50)}  # type: ignore[attr-defined]
    call = restore_call("ckpt", {"optimizer_config": config, "generation": None})
    assert call.endswith("**hints), where hints is a dict of optimizer_config as given here")
    assert len(restore_call("x" * 400, {})) < messages.LONGEST // 2


def test_a_long_message_keeps_its_beginning_and_its_end() -> None:
    shown = messages.line(f"begins {'x' * 4000}\x1b ends")
    assert len(shown) == messages.LONGEST
    assert shown.startswith("begins x")
    assert shown.endswith("x\\x1b ends")


def test_a_long_value_of_a_source_makes_no_long_message(tmp_path: Path) -> None:
    config = {"class_name": "x" * 3000, "config": {"learning_rate": 0.1}}
    with pytest.raises(UnsupportedError) as raised:
        migrate.read(CORPUS / "tf24-sgd-momentum-ckpt-convbn" / "source" / "ckpt-1", optimizer_config=config)
    longest = messages.LONGEST + len("--set own_rule=true")
    assert longest - messages.WORD <= len(str(raised.value)) <= longest, "words are whole"
    assert str(raised.value.__cause__).count("x") > 3000
    assert str(raised.value).endswith("--set own_rule=true")
