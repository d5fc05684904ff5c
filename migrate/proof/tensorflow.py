"""Check whether TensorFlow is installed, and import it in the background."""

from __future__ import annotations

import threading
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec


def is_installed() -> bool:
    return find_spec("tensorflow") is not None


def import_ahead() -> None:
    """Begin the import in another thread: it needs as long as comparing a gigabyte."""

    def run() -> None:
        with suppress(Exception):  # a later import reports the error
            import_module("tensorflow")

    if is_installed():
        threading.Thread(target=run).start()
