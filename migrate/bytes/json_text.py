"""JSON that says each thing once: of two values of one key, readers would take one and ignore the other."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


class SaidTwiceError(ValueError):
    """One key has two values."""


def parsed(text: str | bytes) -> Any:
    """What a text, of any UTF, says. Raises ValueError where it is no JSON, or says one thing in two ways."""
    return json.loads(text, object_pairs_hook=once)


def once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping of pairs. Raises SaidTwiceError."""
    said: dict[str, Any] = {}
    for name, value in pairs:
        shown, first = json.dumps(value), json.dumps(said.setdefault(name, value))
        if first != shown:
            raise SaidTwiceError(f"{name} is there twice, as {first[:80]} and {shown[:80]}; leave the wrong one out")
    return said
