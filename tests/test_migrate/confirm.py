"""What a person types who has read a report: the `--set` options that its reasons name."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import migrate


def typed(command: str) -> dict[str, Any]:
    """`--set a=1 --set 'b=[]'` as the overrides of the library."""
    words = shlex.split(command)
    assert words[::2] == ["--set"] * (len(words) // 2), command
    pairs = (word.partition("=") for word in words[1::2])
    return {name: _value(value) for name, _, value in pairs}


def _value(text: str) -> Any:
    try:
        return None if text == "none" else json.loads(text)
    except ValueError:
        return text


def confirmed(source: str | Path, **hints: Any) -> dict[str, Any]:
    """The overrides that confirm whatever was assumed; each reason must name one."""
    state = migrate.read(source, **hints)
    overrides: dict[str, Any] = {}
    for origin in state.origins:
        if not origin.certain:
            assert origin.confirm, origin
            overrides |= {
                name: origin.value if value in ("N", "VALUE") else value
                for name, value in typed(origin.confirm.split(" or ")[0].partition(", if ")[0]).items()
            }
    return overrides
