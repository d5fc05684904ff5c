"""Identify the measured state of dtopt: its version, its commit, and the sources of its kernel."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
from pathlib import Path


def describe() -> dict[str, str]:
    """Describe the imported `optim`.

    Returns: `commit` (with `+` if files have changed since), if it is a checkout, and `kernel`, a hash of the sources
    that the kernel is built from.
    """
    spec = importlib.util.find_spec("optim")
    if spec is None or spec.origin is None:
        return {}
    package = Path(spec.origin).resolve().parent
    state = {"kernel": kernel(package)}
    commit = _git(package, "rev-parse", "--short=10", "HEAD")
    tracked = _git(package, "ls-files", "__init__.py")
    if commit and tracked:
        state["commit"] = commit + ("+" if _git(package, "status", "--porcelain", ".") else "")
    return state


def kernel(package: Path) -> str:
    """Return a hash of the files of `optim/native`."""
    files = sorted(path for path in (package / "native").rglob("*") if path.suffix in (".cc", ".h", ".py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def _git(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
