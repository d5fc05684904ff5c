"""Chromium without a window."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

PROGRAM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
needed = pytest.mark.skipif(PROGRAM is None, reason="no Chromium: apt-get install chromium, or set CHROMIUM")


def chromium(folder: Path, *words: str) -> str:
    """What it prints, of a page in this folder."""
    command = [str(PROGRAM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run(
        [*command, "--allow-file-access-from-files", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=400,
        check=True,
    )
    return done.stdout


def found(folder: Path, page: str, *words: str) -> Any:
    """The JSON that a script of the page leaves in its title."""
    dom = chromium(folder, *words, "--dump-dom", page)
    return json.loads(unescape(re.search(r"<title>(.*?)</title>", dom, re.DOTALL)[1]))  # type: ignore[index]
