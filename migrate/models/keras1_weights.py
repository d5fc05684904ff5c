"""Convert Keras 1's weights to Keras 2's shapes, and join gates.

Source: `keras/engine/saving.py::preprocess_weights_for_loading` 2.2.4.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from migrate.bytes.arrays import LazyArray
from migrate.bytes.messages import some
from migrate.models import normalized_config, weights
from migrate.models.layers import ADVICE
from migrate.state import OptimizerState, Stored, StoredModel, StoredVariable
from optim.errors import MismatchError, UnsupportedError

GATE = re.compile(r"(.+_[WUb]_)([ifcozrh])((?:_\d+)?(?::0)?)")
"""Name of one gate's weight: layer and weight; gate; TensorFlow's suffix."""
GATES = ("ifco", "zrh")
"""Gates of LSTM and GRU, in the order of Keras 2."""
ONE_BY_ONE = ("SGD", "RMSprop", "Adagrad", "Adadelta", "Adam", "Adamax", "Nadam")
"""Classes of Keras 1 whose steps work element by element."""


def modern(state: OptimizerState) -> OptimizerState:
    """Return a state with the variables and slots of Keras 2. Gates of an LSTM or GRU, which Keras 1 may store
    separately, become one; kernels of Convolution1D lose Keras 1's width of 1.

    Raises:
      UnsupportedError: a kernel has another layout, as before Keras 1.1, or gates differ in more than their numbers.
        Others as in `normalized_config.canonical` and `weights.assign`.
    """
    source = state.source
    if source is None or source.model is None or not source.traits.has_keras1_layers:
        return state
    document = normalized_config.canonical(source.model.config, source.generation)
    state = _joined(state, source, source.model)
    assert state.source is not None
    assert state.source.model is not None
    places = weights.assign(state.source, state.source.model, document)
    kernels = {places[leaf.path, "kernel"] for leaf in _with_convolutions(document)}
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


def _with_convolutions(document: normalized_config.Layer) -> Iterator[normalized_config.Leaf]:
    for leaf in normalized_config.leaves(document):
        if "Conv1D" in (leaf.class_name, leaf.config.get("layer", {}).get("class_name")):
            yield leaf


def _joined(state: OptimizerState, source: Stored, model: StoredModel) -> OptimizerState:
    """Join the gates of a layer into one variable, named after them: `lstm_1_W_ifco`."""
    gates: dict[str, tuple[str, ...]] = {}
    groups = {layer: _with_joined_gates(members, gates) for layer, members in (model.groups or {}).items()}
    if not gates:
        return state
    if state.algorithm not in ONE_BY_ONE or state.hyperparameters.get("clipnorm"):
        raise UnsupportedError(
            f"{some([*gates])}: the source trained each gate as a separate variable, and {state.algorithm}"
            f" steps differently with one variable for all; {ADVICE}"
        )
    firsts = {parts[0]: name for name, parts in gates.items()}
    inside = {part for parts in gates.values() for part in parts}
    by_name = {v.name: v for v in state.variables}
    kept = [v for v in state.variables if v.name not in inside or v.name in firsts]
    return replace(
        state,
        source=replace(source, model=replace(model, groups=groups)),
        variables=tuple(
            _variable(firsts[v.name], [by_name[part] for part in gates[firsts[v.name]]]) if v.name in firsts else v
            for v in kept
        ),
        slots={slot: _slots(slot, per, gates) for slot, per in state.slots.items()},
    )


def _with_joined_gates(
    members: Sequence[tuple[str, str]], gates: dict[str, tuple[str, ...]]
) -> tuple[tuple[str, str], ...]:
    gate_sets: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}
    for weight, variable in members:
        if match := GATE.fullmatch(weight):
            gate_sets.setdefault((match[1], match[3]), {})[match[2]] = weight, variable
    group = dict(members)
    for (start, end), parts in gate_sets.items():
        order = next((candidate for candidate in GATES if set(candidate) == set(parts)), None)
        if order is None:
            continue
        for weight, _ in parts.values():
            del group[weight]
        cut = len(end.removesuffix(":0")) + 1
        name = parts[order[0]][1][:-cut] + order + end.removesuffix(":0")
        gates[name] = tuple(parts[gate][1] for gate in order)
        group[start.removesuffix("_") + end] = name
    return tuple(group.items())


def _variable(name: str, parts: Sequence[StoredVariable]) -> StoredVariable:
    if len({part.trainable for part in parts}) > 1:
        raise UnsupportedError(
            f"{name} was trained only in part, which a Keras config cannot express: migrate to slots"
        )
    arrays = [part.array for part in parts if part.array is not None]
    if len(arrays) < len(parts):
        shape = (*parts[0].shape[:-1], sum(part.shape[-1] for part in parts))
        return replace(parts[0], name=name, shape=shape, array=None)
    array = _side_by_side(name, arrays)
    return replace(parts[0], name=name, shape=array.shape, array=array)


def _slots(slot: str, per: Mapping[str, LazyArray], gates: Mapping[str, tuple[str, ...]]) -> dict[str, LazyArray]:
    owner = {part: name for name, parts in gates.items() for part in parts}
    arrays = {name: array for name, array in per.items() if name not in owner}
    for name in dict.fromkeys(owner[part] for part in per if part in owner):
        lacking = [part for part in gates[name] if part not in per]
        if lacking:
            raise UnsupportedError(f"{some(lacking)}: slot {slot} is missing, and other gates have it; {ADVICE}")
        arrays[name] = _side_by_side(name, [per[part] for part in gates[name]])
    return arrays


def _side_by_side(name: str, parts: Sequence[LazyArray]) -> LazyArray:
    first = parts[0]
    if len({(part.shape, part.dtype) for part in parts}) > 1:
        raise MismatchError(f"{name}: its gates have the shapes {[list(part.shape) for part in parts]}")
    shape = (*first.shape[:-1], first.shape[-1] * len(parts))
    return LazyArray(
        shape,
        first.dtype,
        lambda: np.concatenate([part.load() for part in parts], axis=-1),
        ", ".join(part.stored_as for part in parts),
    )


def _shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) != 4 or shape[1] != 1:
        raise UnsupportedError(
            f"{name} has the shape {list(shape)}, not (length, 1, inputs, filters) as since Keras 1.1; {ADVICE}"
        )
    return (shape[0], *shape[2:])


def _narrow(name: str, array: LazyArray) -> LazyArray:
    shape = _shape(name, array.shape)
    return replace(array, shape=shape, load=_reshaped(array.load, shape))


def _reshaped(load: Callable[[], np.ndarray], shape: tuple[int, ...]) -> Callable[[], np.ndarray]:
    return lambda: load().reshape(shape)
