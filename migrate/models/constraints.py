"""Which weights a model puts a constraint on after each step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

CONSTRAINT = "_constraint"
"""Ends keys of a layer's config; before it stands the weight."""


def of_model(item: Any, around: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Names of a layer and of those around it, and its part that has one: (("dense",), "kernel").

    Args:
      item: a model's config, or a part of one.
    """
    if isinstance(item, (list, tuple)):
        for each in item:
            yield from of_model(each, around)
    if not isinstance(item, Mapping):
        return
    inner = (*around, item["name"]) if isinstance(item.get("name"), str) else around
    for key, value in item.items():
        if isinstance(key, str) and key.endswith(CONSTRAINT) and value is not None:
            yield inner, key.removesuffix(CONSTRAINT)
        yield from of_model(value, inner)
