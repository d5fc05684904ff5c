"""Names of layers and models that TensorFlow refuses as a scope: Keras on Theano and CNTK took any, and Keras and
tf.keras up to TF 2.1 any for the model itself, which they called in no scope of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator

from migrate.models.canonical import Layer, layer_name
from migrate.models.layers import ADVICE, MODELS
from optim.errors import UnsupportedError

_INSIDE = re.compile(r"[A-Za-z0-9_.>/-]+")
_FIRST = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.>/-]*")
"""tensorflow/python/framework/ops.py 2.21, `Graph.name_scope`, less the backslash, which no node may have."""


def check(model: Layer, nested: bool) -> None:
    """Raise UnsupportedError for a name with which the target could not be trained on TensorFlow.

    Args:
      nested: whether layers are called within the scope of their model, as in Keras 3, and not in one of their own.
    """
    for kind, name, first in _names(model):
        if not (_FIRST if first or not nested else _INSIDE).fullmatch(name):
            raise UnsupportedError(
                f"the {kind} is called {name!r}, which TensorFlow refuses as the name of a scope, so that the target"
                f" could not be trained on it; {ADVICE}, or give it a name of letters, digits and . _ - in the source"
            )


def _names(model: Layer) -> Iterator[tuple[str, str, bool]]:
    yield "model", layer_name(model), True
    todo = list(model["config"]["layers"])
    while todo:
        layer = todo.pop(0)
        if layer["class_name"] != "InputLayer":  # which is never called
            yield "layer", layer_name(layer), False
        todo += layer["config"]["layers"] if layer["class_name"] in MODELS else ()
