"""Runs programs one after the other in this process, and prints as JSON {path: its numbers, or its error}."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import traceback
from pathlib import Path


def numbers(path: Path) -> list[float] | str:
    """What a program prints, or the error that ends it."""
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})
    except Exception:
        return traceback.format_exc()
    return [float(word) for word in out.getvalue().split()]


if __name__ == "__main__":
    results = {argument: numbers(Path(argument)) for argument in sys.argv[1:]}
    json.dump(results, sys.stdout)
