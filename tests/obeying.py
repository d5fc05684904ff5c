"""Types what `dtopt migrate checkpoint` says to type, until it says nothing more: `python -m tests.obeying [FOLDER]`.

A report ends with one command that answers all that has one answer: typed as it is printed it leaves nothing of that
open. FOLDER holds cases as `corpus` and `wild` of `tests/fixtures/cases` do, which are the default. Every case is
tried without hints, as somebody who knows nothing of dtopt would, for every target. If there is no command, the options
are taken that each refusal and each reason names, typed as they are printed, with the case's own truth where it leaves
a place open (FILE, CLASS, N). Each printed line is a fault: an option that is not there, a quoting that a shell takes
otherwise, the same message again, a contradiction after obeying, a call that cannot be made.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import migrate
import optim
from dtopt_cli.app import app
from dtopt_cli.typed import answers_to
from migrate import surfaces
from migrate.bytes.messages import LONGEST
from migrate.errors import ContradictionError, MissingHintError
from optim.errors import DtoptError
from tests import adversary
from tests.places import CORPUS, WILD

TARGETS = {"slots": "", "keras": ".keras", "tf-keras": ".h5", "list": ".npz"}
DEEPEST = 7
Words = tuple[str, ...]
Commands = tuple[str, tuple[str, ...]]
"""That which answers all that has one answer, and those to choose from."""
NOTHING: Commands = "", ()
ALL, ONE = "all", "one"


@dataclass
class Obedient:
    """Somebody who types what is printed. `known`: what this person knows of the program."""

    source: str
    to: str
    known: dict[str, Any]
    faults: list[str] = field(default_factory=list)
    typed: int = 0

    def run(self) -> None:
        """Follow every suggestion from the bare command on."""
        self._follow((), [])

    def _follow(self, words: Words, before: list[str], answers: str = "") -> None:
        """`answers`: what the words were given as: a report's command for all, or one of those to choose from."""
        code, texts, error, commands = self._type(words)
        for text in texts:
            prose = len(text) - sum(end - start for start, end in surfaces.spans(text))
            if prose > LONGEST or not text.isprintable():
                self.faults.append(f"{shlex.join(words)}: long or unprintable: {text!r}")
        said = " | ".join(texts)
        if code not in (0, 1, 2, 3) or (error is not None and not isinstance(error, DtoptError)):
            self.faults.append(f"{shlex.join(words)}: {code} {error!r} {said}")
            return
        if said and said in before:
            self.faults.append(f"{shlex.join(words)}: the same again: {said}")
            return
        if answers == ALL and (error is not None or commands[0]):
            self.faults.append(f"{shlex.join(words)}: leaves something open: {commands[0] or said}")
        if words and isinstance(error, ContradictionError):
            self.faults.append(f"{shlex.join(words)}: contradicts what was obeyed: {said}")
        if len(before) == DEEPEST:
            self.faults.append(f"{shlex.join(words)}: never ends: {said}")
            return
        choices = [choice for choice in map(self._options, commands[1]) if self._is_right(choice)]
        if commands[0]:
            self._follow(self._options(commands[0]), [*before, said], ALL)
        for choice in choices:
            self._follow(choice, [*before, said], ONE)
        if not commands[0] and not choices:
            for more in self._suggestions(texts, error is not None):
                self._follow(_joined(words, more), [*before, said])

    def _is_right(self, choice: Words) -> bool:
        """Whether a choice is not that of another class than the case's own: a person knows it."""
        named = [word.partition("=")[2] for word in choice if word.startswith("class_name=")]
        return named in ([], [str(_innermost(self.known["config"])["class_name"]).split(".")[-1]])

    def _options(self, command: str) -> Words:
        """What a command adds to that which was typed, as a shell takes it."""
        typed = shlex.split(command)
        begins = ["dtopt", *self._command()]
        if typed[: len(begins)] != begins:
            self.faults.append(f"not the command that was typed: {command}")
        return tuple(typed[len(begins) :])

    def _command(self) -> list[str]:
        dest = f"/nowhere/out{TARGETS[self.to]}"
        return ["migrate", "checkpoint", self.source, dest, "--to", self.to, "--dry-run", "--json"]

    def _type(self, words: Words) -> tuple[int, list[str], BaseException | None, Commands]:
        """Exit code, what was said that one may act upon, the error, and the commands to type next."""
        self.typed += 1
        result = CliRunner().invoke(app, [*self._command(), *words])
        if isinstance(result.exception, SystemExit) and result.exit_code == 2:
            return 9, [result.output], None, NOTHING  # usage: there is no such option, or not with such a value
        if isinstance(result.exception, DtoptError):
            return result.exit_code, [result.exception.text], result.exception, answers_to(result.exception)
        if result.exception is not None:
            return result.exit_code, [str(result.exception)], result.exception, NOTHING
        report = json.loads(result.stdout)
        commands = report["confirm_command"], tuple(report["choice_commands"])
        return 0, [*report["reasons"], *report["warnings"]], None, commands

    def _suggestions(self, texts: list[str], refused: bool) -> Iterator[Words]:
        """What to type next: of a refusal each way out, of reasons all their confirmations together."""
        for text in texts:
            self._check_calls(text)
        if not refused:
            ways = [found for text in texts if (found := self._settings(text))]
            confirmed = [each for found in ways for each in found[0]]
            if confirmed:
                yield tuple(confirmed)
            return
        for text in texts:
            yield from self._settings(text)
            if "does not contain everything" in text:
                yield self._told(text)
            yield from self._choices(text)

    def _settings(self, text: str) -> list[Words]:
        """Each `--set NAME=VALUE`, as a shell takes it; those after `or` are other ways."""
        found = []
        for typed in re.findall(r"--set ((?:'[^']*'|\"[^\"]*\"|[^\s'\",;()])+)", text):
            name, equals, value = shlex.split(typed)[0].partition("=")
            if not equals:
                self.faults.append(f"no NAME=VALUE: {typed}")
                continue
            value = self._filled(name, value)
            if value is not None:
                found.append(("--set", f"{name}={value}"))
        return found

    def _filled(self, name: str, value: str) -> str | None:
        """The value, or what is known where the message leaves it open; None for what is not known."""
        if name in ("lookahead", "stochastic_average", "average_decay"):
            return self._of_wrapper(name)
        if value not in ("N", "VALUE", "CLASS", "NAME"):
            return value
        config = self.known["config"]
        if name == "class_name":
            return str(_innermost(config)["class_name"]).split(".")[-1]
        if name == "iterations":
            return str(self.known["steps"])
        given = config["config"].get(name, config["config"].get("lr" if name == "learning_rate" else name))
        return str(given) if isinstance(given, float) else None

    def _of_wrapper(self, name: str) -> str | None:
        config = self.known["config"]["config"]
        if name == "average_decay":
            return str(config[name]) if name in config else None
        keys = ("sync_period", "slow_step_size") if name == "lookahead" else ("start_averaging", "average_period")
        found = {key: config[key] for key in keys if key in config}
        return json.dumps(found) if found else None

    def _told(self, text: str) -> Words:
        """All hints that a refusal asks for."""
        words: list[str] = []
        if "--optimizer-config FILE" in text:
            words += ["--optimizer-config", json.dumps(self.known["config"])]
            text = text.replace("--set class_name=CLASS", "")
        if "--generation NAME" in text:
            words += ["--generation", self.known["generation"]]
        if "--variables FILE" in text:
            words += ["--variables", json.dumps(self.known["variables"])]
        return (*words, *(word for setting in self._settings(text) for word in setting))

    def _choices(self, text: str) -> Iterator[Words]:
        named = re.search(r"choose one with --optimizer: (.*)", text)
        for path in named.group(1).split(", ") if named else ():
            yield "--optimizer", *shlex.split(path)
        for order in re.findall(r"(\w+:\d+) is ", text) if "--order" in text else ():
            yield "--order", order
        other = re.search(r"--order takes (.*) here", text)
        for order in other.group(1).split(" or ") if other else ():
            yield "--order", order

    def _check_calls(self, text: str) -> None:
        """`migrate.restore(...)` and `optim.X(...)`, as they are pasted."""
        for start in (match.start() for match in re.finditer(r"(?:migrate\.restore|optim\.for_keras)\(", text)):
            call = _call(text[start:])
            if call is None:
                self.faults.append(f"no Python: {text[start:]}")
                continue
            self._check_call(call)

    def _check_call(self, call: ast.Call) -> None:
        shown = ast.unparse(call)
        if shown.startswith("optim.for_keras"):
            inner = call.args[0]
            assert isinstance(inner, ast.Call), shown
            made = getattr(optim, ast.unparse(inner.func).removeprefix("optim."))
            try:
                made(**{str(k.arg): ast.literal_eval(k.value) for k in inner.keywords})
            except (TypeError, ValueError) as error:
                self.faults.append(f"{shown}: {error}")
            return
        given = {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg is not None}
        place = call.args[0]  # a long one is called `source`
        source = self.source if ast.unparse(place) == "source" else ast.literal_eval(place)
        inspect.signature(migrate.restore).bind(source, None, (), **given)
        given.pop("restore_variables")
        if "source_variables" in given:
            given["variables"] = given.pop("source_variables")
        if all(keyword.arg is not None for keyword in call.keywords):
            with suppress(MissingHintError):  # the live optimizer shows its class
                migrate.read(source, **given)


def _call(text: str) -> ast.Call | None:
    """The call with which a text begins."""
    for end in (match.end() for match in re.finditer(r"\)", text)):
        try:
            parsed = ast.parse(text[:end], mode="eval").body
        except SyntaxError:
            continue
        return parsed if isinstance(parsed, ast.Call) else None
    return None


def _innermost(config: dict[str, Any]) -> dict[str, Any]:
    """The optimizer within wrappers."""
    inner = next((config["config"][k] for k in ("inner_optimizer", "optimizer") if k in config["config"]), None)
    return config if inner is None else _innermost(inner)


def _joined(words: Words, more: Words) -> Words:
    """Options in addition to those that were typed, another value of the same name instead of it."""
    pairs = [*zip(words[::2], words[1::2], strict=True), *zip(more[::2], more[1::2], strict=True)]
    keyed = {(option, value.partition("=")[0] if option == "--set" else ""): value for option, value in pairs}
    return tuple(word for (option, _), value in keyed.items() for word in (option, value))


def of_case(folder: Path) -> Iterator[Obedient]:
    """A person for each target of a case."""
    document = json.loads((folder / "case.json").read_text())
    case = adversary.case(folder)
    optimizer = document.get("optimizer")
    config = case.hints.get("optimizer_config") or document.get("optimizer_config") or document.get("config")
    if config is None and isinstance(optimizer, dict):
        config = {
            "class_name": optimizer["class"].split(".")[-1],
            "config": optimizer.get("config") or optimizer["args"],
        }
    known = {
        "config": config or {"class_name": "Adam", "config": {}},
        "steps": document.get("k", 0),
        "generation": adversary.generation(document) if "format" in document else "tf1",
        "variables": [{"name": v["name"], "shape": v["shape"]} for v in document["trainable"] if isinstance(v, dict)],
    }
    for to in TARGETS:
        yield Obedient(str(case.folder / case.source), to, known)


def faults(folder: Path) -> tuple[list[str], int]:
    """What is wrong with what is said of a case, and how many commands were typed."""
    found, typed = [], 0
    for person in of_case(folder):
        person.run()
        found += [f"{folder.name} --to {person.to} {fault}" for fault in person.faults]
        typed += person.typed
    return found, typed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folders", nargs="*", type=Path, default=[CORPUS, WILD])
    parser.add_argument("--match", default="")
    given = parser.parse_args()
    wrong = commands = 0
    for folder in given.folders:
        for name in sorted(p.name for p in folder.iterdir() if (p / "case.json").is_file() and given.match in p.name):
            found, typed = faults(folder / name)
            wrong, commands = wrong + len(found), commands + typed
            for fault in found:
                print(fault, flush=True)
    print(f"{commands} commands typed, {wrong} faults")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
