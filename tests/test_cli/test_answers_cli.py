"""Reports and refusals end with commands that are typed as they are printed."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dtopt_cli import typed
from dtopt_cli.app import app
from migrate.claims import Questions
from migrate.errors import StrictError
from tests.places import CORPUS

SGD = str(CORPUS / "tf24-sgd-momentum-ckpt-convbn" / "source" / "ckpt-1")
COUNTED = str(CORPUS / "keras231-adam-amsgrad-mlp" / "source" / "model.h5")
ADAM = str(CORPUS / "tf24-adam-convbn" / "source" / "model.h5")
GIVEN = ["--set", "class_name=SGD", "--set", "momentum=0.9"]


def _commands(text: str) -> list[list[str]]:
    """The lines of a text that are commands which answer, as a shell takes them."""
    return [
        shlex.split(line)[1:]
        for line in map(str.strip, text.splitlines())
        if line.startswith(("dtopt migrate ", "dtopt --debug ")) and not line.startswith("dtopt migrate verify ")
    ]


def test_a_report_ends_with_a_command(dtopt: Any, main: Any, tmp_path: Path) -> None:
    """Of the very words that were typed, and of --overwrite where the target is there by now."""
    dest = str(tmp_path / "a [bold]new's $HOME")
    code, out, _ = dtopt("checkpoint", SGD, dest, *GIVEN, "--explain")
    (command,) = _commands(out)
    assert command[: len(GIVEN) + 5] == ["migrate", "checkpoint", SGD, dest, *GIVEN, "--explain"]
    assert code == 0
    code, out, _ = main(*command)
    assert (code, "fidelity: exact" in out, _commands(out)) == (0, True, [])


@pytest.mark.parametrize(
    "words", [["checkpoint", SGD, "/nowhere/out", "--dry-run"], ["inspect", SGD]], ids=lambda w: w[0]
)
def test_no_terminal_breaks_a_command(words: list[str]) -> None:
    shown = CliRunner().invoke(app, ["migrate", *words, *GIVEN], env={"COLUMNS": "40", "FORCE_COLOR": "1"})
    (command,) = _commands(shown.stdout)
    again = CliRunner().invoke(app, [*command, "--json"])
    assert json.loads(again.stdout)["fidelity"] == "exact"


def test_a_strict_refusal_ends_with_commands(dtopt: Any, main: Any, tmp_path: Path) -> None:
    words = ("checkpoint", COUNTED, str(tmp_path / "out"), "--strict")
    code, _, err = dtopt(*words)
    choices = _commands(err)
    assert (code, len(choices)) == (1, 2)
    _, out, _ = dtopt(*words, "--json")
    assert [shlex.split(choice)[1:] for choice in json.loads(out)["choice_commands"]] == [
        [*command[:-2], "--json", *command[-2:]] for command in choices
    ]
    assert main(*choices[1])[0] == 0


def test_what_inspect_refuses_ends_with_commands(dtopt: Any, main: Any) -> None:
    code, out, err = dtopt("inspect", SGD, "--json")
    choices = [command[-1] for command in _commands(err)]
    assert (code, choices) == (3, ["class_name=SGD"])
    assert [shlex.split(choice)[-1] for choice in json.loads(out)["choice_commands"]] == choices


def test_each_source_of_a_batch_has_its_own_command(dtopt: Any, main: Any, tmp_path: Path) -> None:
    sources = tmp_path / "runs"
    sources.mkdir()
    shutil.copy(COUNTED, sources / "asks.h5")
    shutil.copy(ADAM, sources / "exact.h5")
    _, out, _ = dtopt("batch", str(sources), "--into", str(tmp_path / "out"), "--to", "tf-keras", "--jobs", "2")
    commands = _commands(out)
    assert [command[:4] for command in commands] == [
        ["migrate", "checkpoint", str(sources / "asks.h5"), str(tmp_path / "out" / "asks.h5")]
    ] * 2
    code, out, _ = main(*commands[0])
    assert (code, "fidelity: exact" in out) == (0, True)
    code, _, err = dtopt("batch", str(sources / "asks.h5"), "--into", str(tmp_path / "strict"), "--strict", "--quiet")
    assert (code, len(_commands(err))) == (1, 2)


def test_answers_take_the_place_of_what_was_typed() -> None:
    words = ["migrate", "inspect", "x", "--set", "a=1", "--generation=tf1", "--set=b=2", "--variables", "v.json"]
    asked = Questions({"a": None, "--variables": ["d/kernel"]}, ({"a": 3, "c": ["x y"]},))
    confirm, (choice,) = typed.answering(words, asked, exists=True)
    assert confirm == (
        "dtopt migrate inspect x --generation=tf1 --set=b=2 --set a=none --variables '[\"d/kernel\"]' --overwrite"
    )
    assert choice == (
        "dtopt migrate inspect x --generation=tf1 --set=b=2 --variables v.json --set a=3 --set 'c=[\"x y\"]'"
        " --overwrite"
    )


def test_a_contradicting_ending_is_usage_with_and_without_dry_run(dtopt: Any, tmp_path: Path) -> None:
    for more in ((), ("--dry-run",)):
        code, out, err = dtopt("checkpoint", ADAM, str(tmp_path / "new.h5"), "--to", "keras", *more)
        assert (code, out, "leave --to out" in err) == (2, "", True)
    assert dtopt("checkpoint", ADAM, str(tmp_path / "new.keras"))[0] == 0
    assert (tmp_path / "new.keras").is_file()


def test_every_command_with_hints_reads_the_program(dtopt: Any, tmp_path: Path) -> None:
    pytest.importorskip("libcst")
    script, dest = tmp_path / "train.py", str(tmp_path / "out")
    script.write_text("import tensorflow as tf\noptimizer = tf.keras.optimizers.SGD(0.02, momentum=0.9)\n")
    read = ("--optimizer-from", str(script), "--generation", "optimizer_v2", "--set", "clipnorm=none")
    code, out, err = dtopt("inspect", SGD, *read)
    assert (code, "optimizer from" in err, "SGD, 4 steps taken" in out) == (0, True, True)
    code, out, _ = dtopt("checkpoint", SGD, dest, *read)
    (proof,) = [shlex.split(line)[2:] for line in out.splitlines() if line.startswith("    dtopt migrate verify ")]
    assert (code, proof[:3]) == (0, ["verify", SGD, dest])
    assert dtopt(*proof)[0] == 0
    assert dtopt("batch", SGD, "--into", str(tmp_path / "batch"), *read)[0] == 0


@pytest.mark.parametrize("place", [0, 2, 5])
def test_a_traceback_ends_with_the_commands_too(place: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from dtopt_cli import app as entry

    words = ["migrate", "checkpoint", COUNTED, str(tmp_path / "out"), "--strict"]
    monkeypatch.setattr("sys.argv", ["dtopt", *words[:place], "--debug", *words[place:]])
    words = ["--debug", *words]
    with pytest.raises(StrictError) as refused:
        entry.main()
    commands = _commands(str(refused.value))
    assert commands == [[*words, "--set", f"iterations={steps}"] for steps in (5, 6)]
