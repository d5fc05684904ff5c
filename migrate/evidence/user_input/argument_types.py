"""Check the type of each argument of the public functions before any file is opened."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from migrate.bytes.messages import brief
from migrate.errors import ArgumentError

CONFIG = "a mapping {'class_name': ..., 'config': {...}}"
ROWS = "a list of {'name': ..., 'shape': [...]}, or of patterns of names"
KINDS: Mapping[str, tuple[type, str]] = {
    "format": (str, "a text"),
    "optimizer_config": (Mapping, CONFIG),
    "variables": (Sequence, ROWS),
    "source_variables": (Sequence, ROWS),
    "generation": (str, "a text"),
    "optimizer_path": (str, "a text"),
    "overrides": (Mapping, "a mapping {'NAME': value}"),
}
"""Argument -> its type, and what to give."""


def check(**arguments: Any) -> None:
    """Raises ArgumentError for the first argument of another type; None means an argument that is not given."""
    for name, value in arguments.items():
        kind, form = KINDS[name]
        is_text = isinstance(value, (str, bytes)) and kind is not str
        if value is not None and (is_text or not isinstance(value, kind)):
            raise ArgumentError(f"{name} is {_shown(value)}; give {form}{_advice(name, value)}")
    for key, value in (arguments.get("overrides") or {}).items():
        if not isinstance(key, str):
            raise ArgumentError(f"overrides has the key {brief(key)}, which is no text; give {KINDS['overrides'][1]}")
        if not _is_plain(value):
            raise ArgumentError(
                f"overrides: {key!r} is {_shown(value)}; give a number, a text, a list or what get_config() returns"
            )


def _is_plain(value: Any) -> bool:
    """Return whether JSON, or a config of Keras with NumPy's numbers, can hold a value."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(member) for key, member in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, np.generic))


def path(name: str, value: Any) -> str:
    """Return a path as text. Raises ArgumentError: it is not a path."""
    try:
        text = os.fspath(value)
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise ArgumentError(f"{name} is {_shown(value)}; give the path of a file or folder")
    return text


def check_variables(variables: Any) -> None:
    """Raises ArgumentError: `variables` is not a sequence or mapping of variables, or is empty."""
    if hasattr(variables, "trainable_variables") or hasattr(variables, "named_parameters"):
        raise ArgumentError(
            f"variables is {_shown(variables)}; give its variables, model.trainable_variables in Keras, or a mapping of"
            " the source's names to them"
        )
    if isinstance(variables, (str, bytes)) or not isinstance(variables, Collection):
        raise ArgumentError(
            f"variables is {_shown(variables)}; give a list of variables, or a mapping of the source's names to them"
        )
    if not len(variables):
        raise ArgumentError(
            "variables is empty: a model has no variables before it is built. Build it first, with an Input layer,"
            " model.build(shape), or one call on a batch"
        )


def _advice(name: str, value: Any) -> str:
    if name == "optimizer_config" and hasattr(value, "get_config"):
        return ": {'class_name': type(optimizer).__name__, 'config': optimizer.get_config()}"
    return ""


def _shown(value: Any) -> str:
    """Return a value's type as text: a model or an optimizer prints too much."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, (str, bytes, int, float)):
        return brief(value)
    return f"of the type {type(value).__name__}"
