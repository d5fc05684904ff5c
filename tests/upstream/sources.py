"""Where upstream's tests are: in the wheel of Keras 3; else in its repositories, as other wheels leave them out."""

from __future__ import annotations

import os
import subprocess
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from tests.places import ROOT

FOLDER = "DTOPT_UPSTREAM"
"""A folder with clones `tf-keras` and `keras-2.9`; without it they are cloned into `.pytest_cache`."""
NOT_RUN = "UPSTREAM SUITE NOT RUN"
CACHE = ROOT / ".pytest_cache" / "upstream"


class NoSourceError(Exception):
    """There is no clone, and none can be made."""


def folder(suite: str) -> Path:
    """Where the files of a suite are, by the names that `suites.json` has for them. Raises NoSourceError."""
    if suite in ("keras", "for_keras"):
        spec = find_spec("keras")
        assert spec is not None
        assert spec.origin is not None
        return Path(spec.origin).parent / "src" / "optimizers"
    if suite == "keras29":
        return _clone("keras-2.9", "https://github.com/keras-team/keras", "v2.9.0") / "keras" / "dtensor"
    release = version("tf-keras")
    return _clone("tf-keras", "https://github.com/keras-team/tf-keras", f"v{release}") / "tf_keras" / "optimizers"


def _clone(name: str, url: str, tag: str) -> Path:
    if os.environ.get(FOLDER):
        found = Path(os.environ[FOLDER]).resolve() / name
        if not found.is_dir():
            raise NoSourceError(f"{FOLDER} has no folder {name}")
        return found
    found = CACHE / f"{name}-{tag}"
    if not found.is_dir():
        part = found.with_name(f"{found.name}.{os.getpid()}")
        command = ["git", "clone", "--quiet", "--depth", "1", "--branch", tag, url, str(part)]
        quiet = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=300, env=quiet)
        except (OSError, subprocess.SubprocessError) as error:
            told = getattr(error, "stderr", None) or str(error)
            raise NoSourceError(f"cannot clone {url} at {tag} ({told.strip()[:200]}); set {FOLDER}") from error
        try:
            part.rename(found)
        except OSError:  # another worker was quicker
            if not found.is_dir():
                raise
    return found
