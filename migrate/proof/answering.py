"""A program: two models are loaded and asked the same. It imports nothing of dtopt.

`python -m migrate.proof.answering SOURCE keras|tf_keras TARGET keras|tf_keras` prints one line of JSON: `worst`, the
greatest difference of an output in units of its greatest number; or `silent`, why they were not compared.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

import numpy as np

LENGTH = 64
"""Of dims that a model leaves open, but for the first."""
EXAMPLES = 3


def _asked(tensor: Any, number: int) -> np.ndarray:
    """Zeros and ones, which rows of tables are looked up with, too."""
    dtype = getattr(tensor.dtype, "name", tensor.dtype)
    if str(dtype) == "string":
        raise TypeError("an input is of strings")
    shape = [EXAMPLES, *(LENGTH if n is None else n for n in tensor.shape[1:])]
    return np.random.default_rng(number).integers(0, 2, shape).astype(dtype)


def _answers(model: Any, asked: list[np.ndarray]) -> list[np.ndarray]:
    import tensorflow as tf

    found = model(asked if len(asked) > 1 else asked[0], training=False)
    return [np.asarray(tf.cast(x, tf.float64)) for x in tf.nest.flatten(found)]


def _difference(have: list[np.ndarray], get: list[np.ndarray]) -> float:
    if [x.shape for x in have] != [x.shape for x in get]:
        return float("inf")
    rows = zip(have, get, strict=True)
    return max((float(np.max(np.abs(a - b)) / (np.max(np.abs(a)) + 1e-6)) for a, b in rows if a.size), default=0.0)


def main(source: str, of_source: str, target: str, of_target: str) -> dict[str, Any]:
    """How far the models are apart."""
    try:
        model = import_module(of_source).models.load_model(source, compile=False)
        asked = [_asked(tensor, i) for i, tensor in enumerate(model.inputs)]
        have, again = _answers(model, asked), _answers(model, asked)
        if _difference(have, again) > 0:
            return {"silent": "the source's model does not answer the same twice"}
    except Exception as error:  # whatever it raises: today's Keras does not read all that there was
        return {"silent": f"today's {of_source} does not run the source's model ({type(error).__name__})"}
    other = import_module(of_target).models.load_model(target, compile=False)
    return {"worst": _difference(have, _answers(other, asked))}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
