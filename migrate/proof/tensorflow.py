"""Whether TensorFlow is installed, and a start on its import while something else is done."""

from __future__ import annotations

import threading
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec


def is_installed() -> bool:
    return find_spec("tensorflow") is not None


def import_ahead() -> None:
    """Begin to import it on another thread: that takes as long as a gigabyte takes to be compared."""

    def run() -> None:
        with suppress(Exception):  # whoever needs it is told by an import of its own
            import_module("tensorflow")

    if is_installed():
        threading.Thread(target=run).start()
