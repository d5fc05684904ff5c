"""Every example in the documentation is run, in the order of its page, as a reader would run it."""

from __future__ import annotations

import multiprocessing
import os
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dtopt_cli.app import app
from tests.timing import HANGS

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if FENCE.search(path.read_text(encoding="utf-8"))
]
QUICK_PAGES = ("README.md",)  # the others take minutes: `make test-all`
SLOW_COMMANDS = (
    "dtopt bench -w gpt2",
    "dtopt bench scale",
    "dtopt bench train --problem chars",
    "dtopt bench train --problem teacher",
    "dtopt bench migrate",
)  # minutes; tests/test_bench covers the same path in small

LESS = {"dtopt bench --quick": ["--rounds", "2"]}
"""Commands that say in fewer rounds, too, whether they work."""
FORKS = multiprocessing.get_context("forkserver")
"""Each example runs in a process of its own, forked from one that has imported TensorFlow and computed nothing yet."""
FORKS.set_forkserver_preload(["tensorflow", "tf_keras", "dtopt_cli.app"])


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of each example."""
    return [(match[1], match[2]) for match in FENCE.finditer((ROOT / page).read_text(encoding="utf-8"))]


def commands(page: str) -> list[str]:
    lines = [line for language, text in blocks(page) if language == "console" for line in text.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def _perform(text: str, words: tuple[str, ...], folder: Path, said: Path) -> None:
    """Runs a Python text or, with words, `dtopt`; in a process of its own."""
    os.chdir(folder)
    os.environ |= {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    with said.open("w") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    if words:
        sys.argv = ["dtopt", *words]
        runpy.run_module("dtopt_cli", run_name="__main__")
    else:
        exec(text, {"__name__": "__main__"})


def check(folder: Path, text: str = "", words: tuple[str, ...] = ()) -> None:
    """Runs an example in the folder, which has to end well."""
    said = folder.parent / "said.txt"
    process = FORKS.Process(target=_perform, args=(text, words, folder, said))
    process.start()
    process.join(HANGS)
    process.kill()
    assert process.exitcode == 0, f"{text or words}\n{said.read_text()[-3000:]}"


@pytest.mark.parametrize("page", [p if p in QUICK_PAGES else pytest.param(p, marks=pytest.mark.breadth) for p in PAGES])
def test_examples_of_a_page_run_in_order(page: str, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "tests").symlink_to(ROOT / "tests")
    found = blocks(page)
    assert found
    for language, text in found:
        if language == "python":
            check(folder, text)
            continue
        for line in [x.removeprefix("$ ") for x in text.splitlines() if x.startswith("$ ")]:
            if line.startswith(SLOW_COMMANDS):
                continue
            words = shlex.split(line)
            assert words[0] == "dtopt", line
            check(folder, words=(*words[1:], *LESS.get(line, ())))


def test_every_option_in_a_documented_command_exists() -> None:
    """Also of the commands that are too slow to run here."""
    slow = [line for page in PAGES for line in commands(page) if line.startswith(SLOW_COMMANDS)]
    assert slow
    for line in slow:
        words = shlex.split(line)
        command = "step" if words[2].startswith("-") else words[2]
        help_text = CliRunner().invoke(app, ["bench", command, "--help"]).stdout
        for option in [word for word in words if word.startswith("-")]:
            assert re.search(rf"(^|[\s,]){re.escape(option)}\b", help_text), f"{option} of {line!r}"


def test_pages_have_examples() -> None:
    assert {"README.md", "docs/optimizers.md", "docs/migrating.md"} <= set(PAGES)


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
