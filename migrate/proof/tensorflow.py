"""Whether TensorFlow is installed."""

from __future__ import annotations

from importlib.util import find_spec


def is_installed() -> bool:
    return find_spec("tensorflow") is not None
