"""Provide another `optim` to measure against this one in the same run: another checkout, environment, commit or
release.

This `bench` drives both: both get the same numbers, the same timing and the same checks. Only the `optim` that
`import optim` finds differs.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import bench
from bench.errors import OptionError
from bench.peers.peer import Home

RELEASE = re.compile(r"\d+(\.\d+)+\S*$")


@contextmanager
def home(text: str) -> Iterator[Home]:
    """Prepare what `--against` names in a folder that is removed afterwards.

    Args:
      text: one of these: a folder that contains the package `optim`; an environment, that is a folder that contains
        `bin/python`; a commit, branch or tag of the checkout that this program runs from; the version of a release.

    Raises: OptionError.
    """
    with tempfile.TemporaryDirectory(prefix="dtopt-against-") as name:
        place = Path(name)
        yield replace(_find(text, place), source=text)


def _find(text: str, place: Path) -> Home:
    path = Path(text)
    if (path / "bin" / "python").is_file():
        (place / "bench").symlink_to(_ours())
        return Home(text, str(place), str((path / "bin" / "python").absolute()))
    if (path / "optim" / "__init__.py").is_file():
        (place / "optim").symlink_to((path / "optim").resolve())
        return Home(_commit(path) or text, str(place))
    if path.exists():
        raise OptionError(f"--against {text}: the folder contains neither a package optim nor bin/python")
    if RELEASE.match(text):
        return _release(text, place)
    return _of_commit(text, place)


def _ours() -> Path:
    return Path(bench.__file__).resolve().parent


def _commit(folder: Path) -> str | None:
    result = _git("rev-parse", "--short=10", "HEAD", folder=folder)
    return result.stdout.decode().strip() if result.returncode == 0 else None


def _of_commit(text: str, place: Path) -> Home:
    root = _ours().parent
    result = _git("rev-parse", "--verify", "--quiet", "--short=10", f"{text}^{{commit}}", folder=root)
    if result.returncode:
        raise OptionError(
            f"--against {text}: not a folder, a version such as 0.2.0, or a commit of the checkout {root};"
            " name one of these"
        )
    archive = _git("archive", "--format=zip", text, "optim", folder=root)
    if archive.returncode:
        raise OptionError(f"--against {text}: that commit contains no package optim")
    with zipfile.ZipFile(io.BytesIO(archive.stdout)) as files:
        files.extractall(place)
    return Home(result.stdout.decode().strip(), str(place))


def _release(version: str, place: Path) -> Home:
    """Install the release; keep only its `optim` and its version, because its own `bench` must not drive it."""
    installed = place / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(installed)]
    done = subprocess.run([*pip, f"dtopt=={version}"], capture_output=True, text=True, check=False)
    for part in (*installed.glob("optim"), *installed.glob("dtopt-*.dist-info")):
        (place / part.name).symlink_to(part)
    if done.returncode or not (place / "optim").is_dir():
        last = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise OptionError(f"--against {version}: cannot install dtopt {version}: {last}")
    return Home(version, str(place))


def _git(*words: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, check=False, env={**os.environ})
    except OSError:
        return subprocess.CompletedProcess(words, 1, b"", b"")
