"""What to type instead, where a model cannot be written: the call that fills the live optimizer of today's code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ARGUMENTS = {"variables": "source_variables"}
"""Hints that `migrate.restore` calls otherwise."""


def restore_call(source: str, hints: Mapping[str, Any]) -> str:
    """`migrate.restore(...)` of a source with the hints that were given, for a model called `model`."""
    given = {ARGUMENTS.get(name, name): value for name, value in hints.items() if value not in (None, "auto", {})}
    named = "".join(f", {name}={value!r}" for name, value in given.items())
    return f"migrate.restore({source!r}, model.optimizer, model.weights, restore_variables=True{named})"
