"""Run the checks of a program of its own process, and print one JSON line for each: its name, and its traceback."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from typing import Any


def run_checks(names: Mapping[str, Any]) -> None:
    """Call each function of a module that is called `check_...`; an error of one leaves the others alone."""
    for name, check in list(names.items()):
        if name.startswith("check_"):
            try:
                check()
                error = ""
            except Exception:
                error = traceback.format_exc()
            print(json.dumps({"check": name, "error": error}), flush=True)
