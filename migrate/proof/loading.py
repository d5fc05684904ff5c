"""A program: Keras loads a model, lists its state, makes one step, and compares its outputs with another model's.

It does not import dtopt. `python -m migrate.proof.loading OUT FILE keras|tf_keras [SOURCE keras|tf_keras]` writes into
the folder OUT: `seen.json`; `after.npz`, the variables after the step, by their numbers; and `answers.json`: `worst`,
the greatest difference of an output relative to its greatest number, or `silent`, why they were not compared.
Gradient i is `gradient(i, shape, dtype)`.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

LARGEST = 1 << 24
"""Numbers of all variables together above which no step is made."""
LENGTH = 64
"""Size of dims that a model leaves open, except the first."""
EXAMPLES = 3
NEEDLESS = ("jax", "matplotlib", "scipy")
"""Optional imports of TensorFlow and Keras, for converters and plots: half of their start-up time."""
FULL = 74
"""Exit code if the system refused to write a file; `sysexits.h` calls it an error of input or output."""


def main(out: str, path: str, library: str, *source: str) -> None:
    """Write each result as soon as it is known."""
    keras = _imported(library)
    try:
        model = keras.models.load_model(path)
    except Exception as error:  # any exception is the answer
        _write(out, "seen", {"problem": f"{type(error).__name__}: {error}"})
    else:
        _write(out, "seen", {"version": keras.__version__, **_seen(model, out)})
        if source:
            _write(out, "answers", _compared(model, *source))


def _imported(library: str) -> ModuleType:
    """`keras` or `tf_keras`, imported without its optional imports; a model's own code can import these later."""
    modules: dict[str, Any] = sys.modules
    needless = NEEDLESS if library == "keras" else (*NEEDLESS, "keras")  # only TensorFlow would import it
    absent = [name for name in needless if name not in modules]
    modules.update(dict.fromkeys(absent))
    gc.disable()  # imported objects stay, and would be scanned for garbage repeatedly
    try:
        return import_module(library)
    finally:
        gc.freeze()
        gc.enable()
        for name in absent:
            del modules[name]


def _write(out: str, name: str, content: dict[str, Any]) -> None:
    with open(os.path.join(out, f"{name}.json"), "w", encoding="utf-8") as file:
        json.dump(content, file)


def _seen(model: Any, out: str) -> dict[str, Any]:
    """Describe a model and its optimizer, and a step, after which the model's values are restored."""
    wrapper = model.optimizer
    if wrapper is None:
        return {"problem": "the model has no optimizer"}
    optimizer = getattr(wrapper, "inner_optimizer", wrapper)
    kept = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    trained = list(model.trainable_variables)
    description = {
        "iterations": int(np.asarray(optimizer.iterations)),
        "weights": [_shape_dtype_digest(w) for w in model.weights],
        "kept": [_shape_dtype_digest(v) for v in kept],
        "trained": [_shape_dtype_digest(v) for v in trained],
    }
    if sum(int(np.prod(v.shape)) for v in trained) <= LARGEST:
        start = [np.asarray(v).copy() for v in trained]
        try:
            after = _after_step(optimizer, trained)
        except Exception as error:
            return {**description, "problem": f"a step raises {type(error).__name__}: {error}"}
        np.savez(os.path.join(out, "after.npz"), **after)
        for variable, value in zip(trained, start, strict=True):
            variable.assign(value)
    return description


def _shape_dtype_digest(value: Any) -> tuple[list[int], str, str]:
    array = np.asarray(value)
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return list(array.shape), array.dtype.name, hashlib.blake2b(data, digest_size=16).hexdigest()


def representable(values: np.ndarray, dtype: str) -> np.ndarray:
    """The nearest numbers that a dtype can hold, as float64."""
    if dtype == "bfloat16":  # numpy does not have it: the upper half of a float32
        return (values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
    return values.astype(dtype).astype(np.float64)


def gradient(number: int, shape: Sequence[int], dtype: str) -> np.ndarray:
    """The gradient of a variable, by its number."""
    return representable(np.random.default_rng(number).standard_normal(tuple(shape)), dtype)


def _after_step(optimizer: Any, trained: list[Any]) -> dict[str, Any]:
    import tensorflow as tf

    gradients = [gradient(i, v.shape, np.asarray(v).dtype.name) for i, v in enumerate(trained)]
    constants = [tf.constant(g, v.dtype) for g, v in zip(gradients, trained, strict=True)]
    for variable in trained:  # only the optimizer's own step is compared; layers get their constraints from the config
        if variable.constraint is not None:
            variable._constraint = None
    optimizer.apply_gradients(list(zip(constants, trained, strict=True)))
    return {str(i): _plain(np.asarray(v)) for i, v in enumerate(trained)}


def _plain(array: np.ndarray) -> np.ndarray:
    """As stored in an `.npz`: bfloat16 as its bits."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def _compared(model: Any, path: str, library: str) -> dict[str, Any]:
    """Largest difference between two models' outputs for the same input."""
    try:
        other = import_module(library).models.load_model(path, compile=False)
        asked = [_asked(tensor, i) for i, tensor in enumerate(other.inputs)]
        have, again = _answers(other, asked), _answers(other, asked)
    except Exception as error:  # any exception: today's Keras does not read all old models
        return {"silent": f"today's {library} does not run the source's model ({type(error).__name__})"}
    if _difference(have, again) > 0:
        return {"silent": "the source's model does not answer the same twice"}
    return {"worst": _difference(have, _answers(model, asked))}


def _asked(tensor: Any, number: int) -> np.ndarray:
    """Zeros and ones, which are also valid row numbers of tables."""
    dtype = getattr(tensor.dtype, "name", tensor.dtype)
    if str(dtype) == "string":
        raise TypeError("an input is of strings")
    shape = [EXAMPLES, *(LENGTH if n is None else n for n in tensor.shape[1:])]
    return np.random.default_rng(number).integers(0, 2, shape).astype(dtype)


def _answers(model: Any, asked: list[np.ndarray]) -> list[np.ndarray]:
    import tensorflow as tf

    outputs = model(asked if len(asked) > 1 else asked[0], training=False)
    return [np.asarray(tf.cast(x, tf.float64)) for x in tf.nest.flatten(outputs)]


def _difference(have: list[np.ndarray], get: list[np.ndarray]) -> float:
    if [x.shape for x in have] != [x.shape for x in get]:
        return float("inf")
    rows = zip(have, get, strict=True)
    return max((float(np.max(np.abs(a - b)) / (np.max(np.abs(a)) + 1e-6)) for a, b in rows if a.size), default=0.0)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as system:  # no disk space for the results, which does not concern the model
        print(system, file=sys.stderr)
        sys.exit(FULL)
