"""Parse JSON and refuse repeated keys: readers would use one value and ignore the other."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


class SaidTwiceError(ValueError):
    """One key has two values."""


def parsed(text: str | bytes) -> Any:
    """Parse a text in any UTF. Raises ValueError if it is not JSON, or has two values for one key."""
    return json.loads(text, object_pairs_hook=once)


def once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping of pairs. Raises SaidTwiceError."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        shown, first = json.dumps(value), json.dumps(values.setdefault(name, value))
        if first != shown:
            raise SaidTwiceError(f"{name} is there twice, as {first[:80]} and {shown[:80]}; leave the wrong one out")
    return values
