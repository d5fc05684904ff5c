"""Which release of dtopt this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

DISTRIBUTIONS = ("dtopt", "dtopt-light")
"""What the packages are installed as: with TensorFlow, or without."""


def version() -> str:
    """As the installed distribution says; `from source` where none is installed."""
    for name in DISTRIBUTIONS:
        try:
            return version_of(name)
        except PackageNotFoundError:
            continue
    return "from source"
