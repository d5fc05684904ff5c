"""Rename layers and models whose names TensorFlow refuses as a scope. Keras on Theano and CNTK allowed any, and Keras
and tf.keras up to TF 2.1 any for the model itself, which had no scope."""

from __future__ import annotations

import re
from typing import Any

from migrate.models.layers import ADVICE
from migrate.models.normalized_config import Layer, layer_name, leaves
from optim.errors import UnsupportedError

_INSIDE = re.compile(r"[A-Za-z0-9_.>/-]+")
_FIRST = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.>/-]*")
"""tensorflow/python/framework/ops.py 2.21, `Graph.name_scope`, without the backslash, which no node may have."""


def rename(model: dict[str, Any], notes: list[str]) -> None:
    """Give the whole model a valid scope name; nothing refers to the old one."""
    name = layer_name(model)
    if not _FIRST.fullmatch(name):
        plain = re.sub(r"[^A-Za-z0-9_.>/-]", "_", name)
        model["config"]["name"] = plain if _FIRST.fullmatch(plain) else f"model{plain}"
        if "name" in model:
            model["name"] = model["config"]["name"]
        notes.append(
            f"the model {name!r} is called {layer_name(model)!r} in the target, because TensorFlow does not"
            " allow that scope"
        )


def check(model: Layer, nested: bool) -> None:
    """Raise UnsupportedError for a name that prevents training on TensorFlow.

    Args:
      nested: whether layers are in the scope of their model, as in Keras 3.
    """
    called = [("model", layer_name(model), _FIRST)]
    inside = _INSIDE if nested else _FIRST
    for leaf in leaves(model):
        if leaf.class_name != "InputLayer":  # which is never called
            called += [("layer", name, inside) for name in leaf.path]
    for kind, name, pattern in called:
        if not pattern.fullmatch(name):
            raise UnsupportedError(
                f"the {kind} is called {name!r}, which TensorFlow refuses as the name of a scope, so that the target"
                f" could not be trained on it; {ADVICE}, or give it a name of letters, digits and . _ - in the source"
            )
