"""Find the release of this dtopt."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

DISTRIBUTIONS = ("dtopt", "dtopt-light")
"""Names of the distributions: with TensorFlow, or without."""


def installed() -> dict[str, str]:
    """Return the versions of the installed distributions by name. Both are installed only by mistake: they own the same
    files."""
    versions = {}
    for name in DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            versions[name] = version_of(name)
    return versions


def version() -> str:
    """Return the version of the installed distribution; `from source` if it is not installed."""
    return next(iter(installed().values()), "from source")
