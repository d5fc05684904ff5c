"""Every example in the documentation is run, in the order of its page, as a reader would run it."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dtopt_cli.app import app
from tests.helpers import servers
from tests.helpers.timing import HANGS
from tests.places import CORPUS, ROOT

FENCE = re.compile(r"^(?:\*Needs `(\w+)`\.\*\n\n)?```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""An example, and the package without which it is left out."""
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

LESS = {"dtopt bench --quick": ["--rounds", "2", "-p", "optim-native"]}
"""Commands that say in fewer rounds and with fewer peers, too, whether they work."""
FORKS = multiprocessing.get_context("forkserver")
"""Each example runs in a process of its own, forked from one that has imported TensorFlow and computed nothing yet."""
FORKS.set_forkserver_preload(["tensorflow", "tf_keras", "dtopt_cli.app"])


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of each example that can run here; the language is `fresh` of one that needs a package."""
    matches = FENCE.finditer((ROOT / page).read_text(encoding="utf-8"))
    here = [match for match in matches if match[1] is None or importlib.util.find_spec(match[1])]
    return [("fresh" if match[1] else match[2], match[3]) for match in here]


def commands(page: str) -> list[str]:
    texts = [text for language, text in blocks(page) if language == "console"]
    return [command for text in texts for command, _ in prompts(text)]


def prompts(text: str) -> list[tuple[str, str]]:
    """Each command of a console block, whose lines a backslash joins, and the output shown below it."""
    parts = re.split(r"^\$ ", text.replace("\\\n", ""), flags=re.MULTILINE)[1:]
    return [(command, " ".join(output.split())) for command, _, output in (part.partition("\n") for part in parts)]


def _perform(text: str, words: tuple[str, ...], folder: Path, output: Path) -> None:
    """Runs a Python text or, with words, `dtopt`; in a process of its own."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    os.environ |= {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    with output.open("w") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    if words:
        sys.argv = ["dtopt", *words]
        runpy.run_module("dtopt_cli", run_name="__main__")
    else:
        exec(text, {"__name__": "__main__"})


def check(folder: Path, text: str = "", words: tuple[str, ...] = (), refusal: str = "") -> None:
    """Runs an example in the folder, which has to end well, or to say why it does not."""
    output = folder.parent / "output.txt"
    process = FORKS.Process(target=_perform, args=(text, words, folder, output))
    process.start()
    process.join(HANGS)
    process.kill()
    transcript = output.read_text()
    assert (process.exitcode == 0) == (not refusal), f"{text or words}\n{transcript[-3000:]}"
    for part in refusal.split(" ... "):
        assert part in " ".join(transcript.split()), f"{words} says\n{transcript[-3000:]}"


def fresh(folder: Path, words: list[str]) -> None:
    """Runs Python in a new process, which has to end well."""
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("page", [p if p in QUICK_PAGES else pytest.param(p, marks=pytest.mark.breadth) for p in PAGES])
def test_examples_of_a_page_run_in_order(page: str, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    for shown in ("tests", "examples"):
        (folder / shown).symlink_to(ROOT / shown)
    examples = blocks(page)
    assert examples
    for language, text in examples:
        if language == "python":
            check(folder, text)
            continue
        if language == "fresh":  # Keras is imported already where other examples are forked, with its backend
            fresh(folder, ["-c", text])
            continue
        for line, refusal in prompts(text):
            if line.startswith(SLOW_COMMANDS):
                continue
            program, *words = shlex.split(line)
            if program == "python":
                fresh(folder, words)
                continue
            assert program == "dtopt", line
            check(folder, words=(*words, *LESS.get(" ".join(line.split()), ())), refusal=refusal)


@pytest.mark.breadth
def test_commands_take_an_old_file_from_s3_to_keras(tmp_path: Path) -> None:
    """The commands that a stranger types, with a bucket of moto's server under their name."""
    import boto3

    old = CORPUS / "keras224-adam-eps-none-nested/source/model.h5"
    typed = re.findall(
        r"^    dtopt (migrate .*s3://.*)$", (ROOT / "docs" / "remote.md").read_text("utf-8"), re.MULTILINE
    )
    assert [line.split()[1] for line in typed] == ["inspect", "checkpoint", "verify"]
    with servers.s3() as endpoint:
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "a-secret-key"}
        store = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
        store.create_bucket(Bucket="bucket")
        store.upload_file(str(old), "bucket", "old.h5")
        settings = {**{name.upper(): value for name, value in keys.items()}, "AWS_ENDPOINT_URL": endpoint}
        environment = {**os.environ, **settings, "PYTHONPATH": str(ROOT)}
        go_on = "import keras; print(int(keras.saving.load_model('new.keras').optimizer.iterations))"
        for words in [*(["-m", "dtopt_cli", *line.split()] for line in typed), ["-c", go_on]]:
            done = subprocess.run(
                [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["5"]


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


def test_what_is_typed_and_not_run_says_why() -> None:
    """In docs/: commands and code in other blocks than those that are run here."""
    block = re.compile(
        r"(^[^\n]*\n)\n(```(?!python$|console$|json$|$)\w+$|(?: {4}(?:dtopt|pip|python|\$|[A-Z_]+=) ?.*$))",
        re.MULTILINE,
    )
    for page in (ROOT / "docs").rglob("*.md"):
        for match in block.finditer(page.read_text(encoding="utf-8")):
            assert "*Not run" in match[1], f"{page.name}: {match[2]} after {match[1]!r}"
