"""Whatever flag, command or call a message names is there, and takes what it is said to take."""

from __future__ import annotations

import ast
import inspect
import json
import re
import shlex
import shutil
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import pytest
import typer
from typer.testing import CliRunner

import migrate
import optim
from dtopt_cli.app import app
from migrate.bytes import messages
from migrate.errors import ContradictionError
from migrate.evidence.user_input import settings
from optim.bytes import urls
from optim.errors import DtoptError
from tests.places import CORPUS, ROOT

FILES = [
    *(p for p in sorted((ROOT / "migrate").rglob("*.py")) if not p.is_relative_to(ROOT / "migrate" / "code")),
    *sorted((ROOT / "dtopt_cli" / "commands").glob("migrate*.py")),
]
OTHERS = {"--debug"}
"""Of `dtopt` itself, in front of the command."""


@cache
def _texts() -> list[tuple[Path, str]]:
    """Every string of the sources but docstrings, formatted ones with `…` for what is put in."""
    return list(_read())


def _read() -> Iterator[tuple[Path, str]]:
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inner = {id(v) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for v in ast.walk(n)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = (v.value if isinstance(v, ast.Constant) else "…" for v in node.values)
                yield path, "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
                yield path, node.value


def _commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return dict(group.commands["migrate"].commands)


def _options() -> set[str]:
    every = [
        option for command in _commands().values() for p in command.params for option in (*p.opts, *p.secondary_opts)
    ]
    return {option for option in every if option.startswith("--")} | OTHERS | {"--help"}


def test_every_flag_that_a_message_names_is_an_option() -> None:
    options = _options()
    named = [(path, flag) for path, text in _texts() for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", text)]
    assert len({flag for _, flag in named}) > 8
    assert not {f"{path.relative_to(ROOT)}: {flag}" for path, flag in named if flag not in options}


def test_every_command_that_a_message_names_is_there() -> None:
    commands = _commands()
    named = [(path, name) for path, text in _texts() for name in re.findall(r"dtopt migrate ([a-z]+)", text)]
    assert not {f"{path.relative_to(ROOT)}: {name}" for path, name in named if name not in commands}


def test_every_call_that_a_message_names_takes_its_arguments() -> None:
    wrong = set()
    for path, text in _texts():
        for library, name, arguments in re.findall(r"\b(optim|migrate)\.([a-z_]+)\(([^()]*)", text):
            called = getattr({"optim": optim, "migrate": migrate}[library], name, None)
            keywords = re.findall(r"\b([a-z_]+)=", arguments)
            if called is None or not _takes(called, keywords):
                wrong.add(f"{path.relative_to(ROOT)}: {library}.{name}({arguments}")
    assert not wrong


def _takes(called: Any, keywords: list[str]) -> bool:
    parameters = inspect.signature(called).parameters
    return all(key in parameters for key in keywords) or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def test_every_value_of_set_that_a_message_names_is_taken() -> None:
    """`--set NAME=...`: no message names an override that is refused, but as one of another class."""
    source = str(CORPUS / "tf24-adam-convbn" / "source" / "model.h5")
    names = {name for _, text in _texts() for name in re.findall(r"--set '?([a-z_0-9]+)=", text)}
    names -= {"stochastic_average", "lookahead"}  # of slots that this source lacks
    values: dict[str, Any] = {"class_name": "Adam", "generation": "optimizer_v2", "name": "Adam"}
    values |= {
        "iterations": 5,
        "clipnorm": None,
        "untrained": [],
        "weight_decay_exclude": [],
        "lazy_rows": [],
        "own_rule": True,
        "slot_order": "source",
        "zero_slots": "source",
    }
    for name in sorted(names):
        value = values.get(name, 0.5)
        word = "none" if value is None else value if isinstance(value, str) else json.dumps(value)
        words = ["migrate", "inspect", source, "--set", f"{name}={word}"]
        result = CliRunner().invoke(app, words)
        of_another = name in settings.known() and "has no effect" in str(result.exception)
        assert result.exit_code == 0 or of_another, (shlex.join(words), result.output)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["checkpoint", "{h5}", "{out}", "--to", "tf-keras"], r"\.h5"),
        (["checkpoint", "{list}", "{out}"], "--optimizer-config"),
    ],
)
def test_a_refusal_names_what_to_type(words: list[str], command: str, tmp_path: Path) -> None:
    paths = {
        "h5": CORPUS / "tf24-adam-convbn" / "source" / "model.h5",
        "list": CORPUS / "tf215-new-sgd-gclip-weights-mlp" / "source" / "weights.npz",
        "out": tmp_path / "out",
    }
    result = CliRunner().invoke(app, ["migrate", *(word.format(**paths) for word in words)])
    assert result.exit_code != 0
    assert re.search(command, str(result.exception))


@pytest.mark.parametrize("room", [-5, 0, 3, 40, 71, 72, 200])
def test_a_text_takes_no_more_than_its_room(room: int) -> None:
    """Whatever else a message says: what is to be typed must be whole."""
    shown = messages.line("because " * 50, room)
    assert len(shown) <= max(room, len(messages.END))
    words = shown.partition(" ...")[0].split()
    assert len(words) >= room // 4 // len("because ") - 1
    assert room < 40 or set(words) == {"because"}, "no word is cut"


def test_of_two_schedules_that_differ_both_are_shown_and_the_way_out() -> None:
    source = CORPUS / "extra-tf10-adam-polynomial-saver" / "source" / "model.ckpt"
    other = {"class_name": "PiecewiseConstantDecay", "config": {"boundaries": [*range(60)], "values": [0.1] * 61}}
    config = {"class_name": "AdamOptimizer", "config": {"learning_rate": other}}
    with pytest.raises(ContradictionError) as error:
        migrate.read(source, optimizer_config=config)
    text = str(error.value)
    assert text.startswith("learning_rate is {'class_name': 'PolynomialDecay'")
    assert "in the source's graph and {'class_name': 'PiecewiseConstantDecay'" in text
    assert re.search(r"in --optimizer-config[.] Remove the wrong one, or override with --set learning_rate=", text)
    assert messages.CUT not in text


def test_constraints_are_said_to_be_of_the_variables(tmp_path: Path) -> None:
    """`optim` puts those of the variables that it is given on them; a slot checkpoint holds none."""
    source = tmp_path / "model.h5"
    shutil.copy(CORPUS / "tf115-adamax-mlp" / "source" / "model.h5", source)
    with h5py.File(source, "r+") as file:
        model = json.loads(file.attrs["model_config"])
        layer = model["config"]["layers"][0]["config"]
        layer["kernel_constraint"] = {"class_name": "NonNeg", "config": {}}
        file.attrs["model_config"] = json.dumps(model)
    warnings = migrate.migrate_checkpoint(source, tmp_path / "slots").warnings
    assert any(text.startswith(f"{layer['name']}/kernel: the model constrains them") for text in warnings)
    model_itself = migrate.migrate_checkpoint(source, tmp_path / "model.keras", to="keras")
    assert not any("constraints" in text for text in model_itself.warnings)


@pytest.mark.parametrize("name", ["A" * 100_000, "a://" * 25_000, "tf." * 33_000], ids=["word", "urls", "modules"])
def test_a_long_name_is_looked_through_once(name: str) -> None:
    """A class name of 100,000 letters took minutes."""
    source, start = CORPUS / "tf24-adam-convbn" / "source" / "model.h5", time.monotonic()
    with pytest.raises(DtoptError):
        migrate.read(source, overrides={"class_name": name})
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:password@host/a?sig=1, then 's3://bucket/b?c'", "http://host/a, then 's3://bucket/b'"),
        ("s3://one,gs://two?key=3;rest", "s3://one,gs://two;rest"),
        ("what? no://mark", "what? no://mark"),
    ],
)
def test_credentials_are_left_out_of_each_url(text: str, shown: str) -> None:
    assert urls.shown(text) == shown
