"""Keras 1's weights in Keras 2's shapes. Source: `keras/engine/saving.py::preprocess_weights_for_loading` 2.2.4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from migrate.bytes.arrays import LazyArray
from migrate.models import canonical, weights
from migrate.models.layers import ADVICE
from migrate.state import OptimizerState
from optim.errors import UnsupportedError


def modern(state: OptimizerState) -> OptimizerState:
    """A state whose kernels of Convolution1D have three dims, and so their slots, where Keras 1 has a width of 1.

    Raises:
      UnsupportedError: a kernel lies otherwise, as before Keras 1.1. Others as `canonical` and `weights.assign`.
    """
    source = state.source
    if source is None or source.model is None or source.generation != "keras1":
        return state
    document = canonical.canonical(source.model.config, source.generation)
    places = weights.assign(source, source.model, document)
    kernels = {places[leaf.path, "kernel"] for leaf in canonical.leaves(document) if leaf.class_name == "Conv1D"}
    return replace(
        state,
        variables=tuple(
            replace(v, shape=_shape(v.name, v.shape), array=v.array and _narrow(v.name, v.array))
            if v.name in kernels
            else v
            for v in state.variables
        ),
        slots={
            slot: {name: _narrow(name, array) if name in kernels else array for name, array in per.items()}
            for slot, per in state.slots.items()
        },
    )


def _shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) != 4 or shape[1] != 1:
        raise UnsupportedError(
            f"{name} has the shape {list(shape)}, and not (length, 1, inputs, filters) as since Keras 1.1; {ADVICE}"
        )
    return (shape[0], *shape[2:])


def _narrow(name: str, array: LazyArray) -> LazyArray:
    shape = _shape(name, array.shape)
    return replace(array, shape=shape, load=_reshaped(array.load, shape))


def _reshaped(load: Callable[[], np.ndarray], shape: tuple[int, ...]) -> Callable[[], np.ndarray]:
    return lambda: load().reshape(shape)
