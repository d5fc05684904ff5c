"""Which release of dtopt this is."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

DISTRIBUTIONS = ("dtopt", "dtopt-light")
"""What the packages are installed as: with TensorFlow, or without."""


def installed() -> dict[str, str]:
    """The versions of what is installed, by distribution: of both only by mistake, as they own the same files."""
    found = {}
    for name in DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            found[name] = version_of(name)
    return found


def version() -> str:
    """As the installed distribution says; `from source` where none is installed."""
    return next(iter(installed().values()), "from source")
