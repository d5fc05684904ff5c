"""A program: Keras loads a model, says what it holds, and takes one step. It imports nothing of dtopt.

`python -m migrate.proof.loading FILE keras|tf_keras OUT.npz` prints one line of JSON; OUT has the variables after the
step, called by their numbers. Gradient i is `numpy.random.default_rng(i).standard_normal(shape)`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from importlib import import_module
from typing import Any

import numpy as np


def described(value: Any) -> tuple[list[int], str, str]:
    """Shape, dtype and digest."""
    array = np.asarray(value)
    digest = hashlib.blake2b(np.ascontiguousarray(array).tobytes(), digest_size=16).hexdigest()
    return list(array.shape), array.dtype.name, digest


def main(path: str, library: str, out: str) -> dict[str, Any]:
    """What Keras sees."""
    keras = import_module(library)
    try:
        model = keras.models.load_model(path)
    except Exception as error:  # whatever it raises, it is the answer
        return {"problem": f"{type(error).__name__}: {error}"}
    around = model.optimizer
    if around is None:
        return {"problem": "the model has no optimizer"}
    optimizer = getattr(around, "inner_optimizer", around)
    kept = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    trained = list(model.trainable_variables)
    found = {
        "optimizer": type(optimizer).__name__,
        "version": keras.__version__,
        "iterations": int(np.asarray(optimizer.iterations)),
        "weights": [described(w) for w in model.weights],
        "kept": [described(v) for v in kept],
        "trained": [described(v) for v in trained],
    }
    try:
        gradients = [np.random.default_rng(i).standard_normal(tuple(v.shape)) for i, v in enumerate(trained)]
        import tensorflow as tf

        given = [tf.constant(g, v.dtype) for g, v in zip(gradients, trained, strict=True)]
        optimizer.apply_gradients(list(zip(given, trained, strict=True)))
    except Exception as error:
        return {**found, "problem": f"a step raises {type(error).__name__}: {error}"}
    after: dict[str, Any] = {str(i): np.asarray(v) for i, v in enumerate(trained)}
    np.savez(out, **after)
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
