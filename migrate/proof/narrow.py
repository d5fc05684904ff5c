"""Keras 1's Convolution1D, whose kernels are (length, 1, inputs, filters), as every later Keras has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from migrate.bytes.arrays import LazyArray
from migrate.readers.keras.model import names_of_class
from migrate.state import OptimizerState


def without_widths(state: OptimizerState) -> OptimizerState:
    """The state with three dims in these kernels and their slots: the numbers are the same, in the same order."""
    source = state.source
    if source is None or source.generation != "keras1" or source.model is None or not source.model.groups:
        return state
    called = {f"{name}_W" for name in names_of_class(source.model.config, "Convolution1D")}
    stored = [each for own in source.model.groups.values() for each in own]
    kernels = {variable for weight, variable in stored if weight.removesuffix(":0") in called}
    return replace(
        state,
        variables=tuple(
            replace(v, shape=_narrow(v.array).shape, array=_narrow(v.array)) if v.array and v.name in kernels else v
            for v in state.variables
        ),
        slots={
            slot: {name: _narrow(array) if name in kernels else array for name, array in per.items()}
            for slot, per in state.slots.items()
        },
    )


def _narrow(array: LazyArray) -> LazyArray:
    length, _, inputs, filters = array.shape
    return replace(array, shape=(length, inputs, filters), load=_reshaped(array.load, (length, inputs, filters)))


def _reshaped(load: Callable[[], np.ndarray], shape: tuple[int, ...]) -> Callable[[], np.ndarray]:
    return lambda: load().reshape(shape)
