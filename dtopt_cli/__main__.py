"""The entry point: `python -m dtopt_cli` is `dtopt`."""

from __future__ import annotations

import atexit
import gc
import sys

SELDOM = (20_000, 20, 20)
"""Thresholds of the garbage collector: most that imports make stays, and a short command is little but imports."""


def main() -> None:
    """Run the command; Ctrl-C while it is still being imported ends it as later on."""
    gc.set_threshold(*SELDOM)
    atexit.register(gc.freeze)  # at its end nobody needs what a search for garbage would find
    try:
        from dtopt_cli import app
    except KeyboardInterrupt:
        sys.stderr.write("dtopt: interrupted\n")
        sys.exit(130)
    app.main()


if __name__ == "__main__":
    main()
