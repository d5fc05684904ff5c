"""Every example in the documentation is run, in the order of its page, as a reader would run it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [
    str(path.relative_to(ROOT))
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
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


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of each example."""
    return [(match[1], match[2]) for match in FENCE.finditer((ROOT / page).read_text(encoding="utf-8"))]


def commands(page: str) -> list[str]:
    lines = [line for language, text in blocks(page) if language == "console" for line in text.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("page", [p if p in QUICK_PAGES else pytest.param(p, marks=pytest.mark.breadth) for p in PAGES])
def test_examples_of_a_page_run_in_order(page: str, tmp_path: Path) -> None:
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    found = blocks(page)
    assert found
    for language, text in found:
        if language == "python":
            result = run([sys.executable, "-c", text], tmp_path)
            assert result.returncode == 0, f"{text}\n{result.stderr[-2000:]}"
            continue
        for line in [x.removeprefix("$ ") for x in text.splitlines() if x.startswith("$ ")]:
            if line.startswith(SLOW_COMMANDS):
                continue
            words = shlex.split(line)
            assert words[0] == "dtopt", line
            result = run([sys.executable, "-m", "dtopt_cli", *words[1:]], tmp_path)
            assert result.returncode == 0, f"{line}\n{result.stdout[-2000:]}\n{result.stderr[-2000:]}"


def test_every_option_in_a_documented_command_exists() -> None:
    """Also of the commands that are too slow to run here."""
    slow = [line for page in PAGES for line in commands(page) if line.startswith(SLOW_COMMANDS)]
    assert slow
    for line in slow:
        words = shlex.split(line)
        command = "step" if words[2].startswith("-") else words[2]
        help_text = run([sys.executable, "-m", "dtopt_cli", "bench", command, "--help"], ROOT).stdout
        for option in [word for word in words if word.startswith("-")]:
            assert re.search(rf"(^|[\s,]){re.escape(option)}\b", help_text), f"{option} of {line!r}"


def test_pages_have_examples() -> None:
    assert {"README.md", "docs/optimizers.md", "docs/migrating.md"} <= set(PAGES)


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
