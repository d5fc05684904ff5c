"""Convert Keras 1's weights to the shapes of later Keras: kernels of Convolution1D, which are (length, 1, inputs,
filters), and the gates of LSTM and GRU, which are separate variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from migrate.bytes.arrays import LazyArray
from migrate.readers.keras.model import names_of_class
from migrate.state import OptimizerState, StoredModel, StoredVariable

GATES = {"LSTM": "ifco", "GRU": "zrh"}


def as_later(state: OptimizerState) -> OptimizerState:
    """The state with the same numbers, in variables and slots of the later shapes."""
    source = state.source
    if source is None or not source.traits.has_keras1_layers or source.model is None or not source.model.groups:
        return state
    return _with_gates(_without_widths(state, source.model), source.model)


def _with_gates(state: OptimizerState, model: StoredModel) -> OptimizerState:
    variables = {v.name: v for v in state.variables}
    slots = {slot: dict(per) for slot, per in state.slots.items()}
    listed = [pair for pairs in (model.groups or {}).values() for pair in pairs]
    for kind, order in GATES.items():
        names = names_of_class(model.config, kind)  # Keras before 1.2 calls one in a wrapper forward_...
        for name in sorted({*names, *(layer.removeprefix("forward_") for layer in names)}):
            for start in (f"{part}{name}_{letter}" for part in ("", "forward_", "backward_") for letter in "WUb"):
                gates = [[v for weight, v in listed if weight.removesuffix(":0") == f"{start}_{g}"] for g in order]
                for parts in zip(*gates, strict=True):  # of several layers of a name, in turn
                    _concatenate(variables, parts)
                    for per in slots.values():
                        _concatenate(per, parts)
    return replace(state, variables=tuple(variables.values()), slots=slots)


def _concatenate(by_name: dict[str, Any], parts: Sequence[str]) -> None:
    if not by_name.keys() >= set(parts):
        return
    pieces = [by_name.pop(part) for part in parts]
    arrays: list[Any] = [piece.array if isinstance(piece, StoredVariable) else piece for piece in pieces]
    numbers = np.concatenate([array.load() for array in arrays], axis=-1)
    array = LazyArray(numbers.shape, arrays[0].dtype, lambda: numbers, arrays[0].stored_as)
    whole = replace(pieces[0], shape=array.shape, array=array) if isinstance(pieces[0], StoredVariable) else array
    by_name[parts[0]] = whole


def _without_widths(state: OptimizerState, model: StoredModel) -> OptimizerState:
    called = {f"{name}_W" for name in names_of_class(model.config, "Convolution1D")}
    stored = [pair for pairs in (model.groups or {}).values() for pair in pairs]
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
