"""Prove that a slot-variable checkpoint equals its source: it is read array by array, and by TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from migrate.bytes import object_graph
from migrate.bytes.arrays import LazyArray
from migrate.bytes.messages import line
from migrate.claims import EXACT
from migrate.conversion.convert import Progress
from migrate.proof import documents, tensorflow
from migrate.proof.compare import Comparer
from migrate.state import OptimizerState
from optim import slot_layout
from optim.bytes.bundle import GRAPH_KEY, STRING, BundleReader, numpy_dtype

Row = tuple[str, tuple[int, ...], str, bool, bool]
"""A variable in the table: name, shape, dtype, whether it is trained, and whether its value is stored."""
COUNTER = slot_layout.scalar_key(slot_layout.ITERATIONS)
ITS_OWN = (slot_layout.METADATA_KEY, GRAPH_KEY)
"""Keys without a source."""
READ_BY_TENSORFLOW = 1 << 20
LARGE = 100 << 20
"""Bytes from which TensorFlow, which is needed next, is imported during the comparison."""


class Target:
    """A slot-variable checkpoint, without its metadata."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.bundle = BundleReader(slot_layout.current_prefix(folder))
        self.bundle.check_sizes()
        document = (
            self.bundle.load_bytes(slot_layout.METADATA_KEY) if slot_layout.METADATA_KEY in self.bundle else b"{}"
        )
        self.metadata = slot_layout.Metadata.from_json(document.decode("utf-8", "replace"), folder)

    def array(self, key: str) -> LazyArray:
        entry = self.bundle[key]
        return LazyArray(entry.shape, entry.dtype, partial(self.bundle.load, key), key, self.bundle.extent(key))


def _expected(state: OptimizerState) -> Iterator[tuple[str, LazyArray]]:
    for slot, owners in state.slots.items():
        yield from ((slot_layout.slot_key(slot, name), array) for name, array in owners.items())
    yield from ((slot_layout.variable_key(v.name), v.array) for v in state.variables if v.array is not None)
    yield from ((slot_layout.unmapped_key(name), array) for name, array in state.unmapped.items())


def array_differences(state: OptimizerState, target: Target, progress: Progress | None) -> Iterator[str]:
    wanted, done = dict(_expected(state)), 0
    total = sum(_bytes(array) for array in wanted.values())
    if total > LARGE:
        tensorflow.import_ahead()

    def report(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    comparer = Comparer(report)
    for key, array in wanted.items():
        problem = comparer.difference(array, target.array(key)) if key in target.bundle else "is missing"
        if problem:
            yield f"{key} {problem} (source: {array.stored_as})"
    state.finish_checks()
    numbers = dict(_numbers(state))
    known = {*wanted, *numbers, *ITS_OWN}
    yield from (f"{key} is in no source" for key in sorted(target.bundle) if key not in known)
    for key, (value, dtype) in numbers.items():
        got = target.array(key) if key in target.bundle else None
        if got is None or (got.shape, got.dtype) != ((), dtype) or got.load().item() != value:
            from_ = f" (source: {state.iterations_source})" if key == COUNTER else ""
            yield f"{key} is not {dtype} {value}{from_}"


def _numbers(state: OptimizerState) -> Iterator[tuple[str, tuple[float, str]]]:
    """Key -> value and dtype of optimizer-wide numbers, and of the save counter."""
    yield COUNTER, (state.iterations, "int64")
    yield slot_layout.SAVE_COUNTER_KEY, (1, "int64")
    rate = state.hyperparameters.get(slot_layout.LEARNING_RATE)
    if isinstance(rate, (int, float)) and not isinstance(rate, bool):
        yield slot_layout.scalar_key(slot_layout.LEARNING_RATE), (rate, "float64")
    for name, value in state.scalars.items():
        yield slot_layout.scalar_key(name), (value, slot_layout.scalar_dtype(name))


def _bytes(array: LazyArray) -> int:
    return 0 if array.dtype == STRING else array.size * numpy_dtype(array.dtype).itemsize


def tensorflow_differences(target: Target) -> Iterator[str]:
    """Compare keys, shapes, dtypes and small tensors with those that TensorFlow's own reader sees."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(target.bundle.prefix)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    yield from (f"TensorFlow alone, or dtopt alone, sees {key}" for key in sorted(shapes.keys() ^ target.bundle.keys()))
    for key in sorted(shapes.keys() & target.bundle.keys()):
        array = target.array(key)
        seen = f"{dtypes[key].name}{shapes[key]}"
        if seen != f"{array.dtype}{list(array.shape)}":
            yield f"{key} is {seen} to TensorFlow, not {array.dtype}{list(array.shape)}"
        elif array.dtype != STRING and _bytes(array) <= READ_BY_TENSORFLOW:
            try:
                value = np.asarray(reader.get_tensor(key))
            except tf.errors.OpError as error:
                yield f"{key} cannot be read by TensorFlow ({line(str(error))})"
                continue
            if value.tobytes() != array.load().tobytes():
                yield f"{key} has other bits when TensorFlow reads it"


def metadata_differences(state: OptimizerState, target: Target) -> Iterator[str]:
    """Compare the target's table with its source.

    Raises:
      DamagedFileError, ContradictionError: its object graph, with which TensorFlow restores, does not match its keys.
    """
    if GRAPH_KEY in target.bundle:
        object_graph.ObjectGraph(target.bundle)
    else:
        yield "it has no object graph, with which TensorFlow restores it"
    metadata = target.metadata
    if not documents.names_state(target.folder, target.bundle.prefix):
        yield f"its file {slot_layout.POINTER_NAME}, with which TensorFlow finds the newest state, was altered"
    if metadata.class_name != state.algorithm:
        yield f"the target's optimizer is {metadata.class_name}, the source's {state.algorithm}"
    for key, value in state.hyperparameters.items():
        if key != "name" and metadata.config.get(key) != value:
            yield f"the target has {key} = {metadata.config.get(key)!r}, the source {value!r}"
    for key, value in metadata.config.items():
        if key != "name" and key not in state.hyperparameters:
            yield f"the target has {key} = {value!r}, which the source does not have"
    stored = [(v.name, v.shape, v.dtype, v.trainable, v.stored) for v in metadata.variables]
    expected = [(v.name, v.shape, v.dtype, bool(v.trainable), v.array is not None) for v in state.variables]
    yield from (f"the target's table has {_row(a)}, the source {_row(b)}" for a, b in _unlike(stored, expected))
    for mark, names in ((slot_layout.WHOLE, state.parts.fresh), (slot_layout.ADDED, state.parts.grown)):
        marked = {v.name for v in metadata.variables if v.fresh == mark}
        yield from (f"the target's table does not mark {n} as {mark}" for n in sorted(marked ^ set(names)))
    tables = {slot: sorted(owners) for slot, owners in metadata.slots.items()}
    if tables != {slot: sorted(owners) for slot, owners in state.slots.items()}:
        yield "the target's table lists slots that are not those of the source, or not all"
    yield from _provenance_differences(state, metadata.provenance)


def _provenance_differences(state: OptimizerState, stored: Mapping[str, Any]) -> Iterator[str]:
    expected: dict[str, Any] = {"iterations_from": state.iterations_source}
    if state.source is not None:
        source = state.source
        expected |= {"format": source.format, "generation": source.generation, "versions": source.versions.to_dict()}
    for key, value in expected.items():
        if stored.get(key) != value:
            yield f"{key} is {stored.get(key)!r} in the target, and in the source it is {value!r}"
    reasons = stored.get("reasons")
    kept = [str(reason) for reason in reasons] if isinstance(reasons, list) else []
    yield from (
        f"the target does not contain why it is not exact: {reason}"
        for reason in state.kept_reasons
        if reason not in kept
    )
    if not isinstance(reasons, list) or (stored.get("fidelity") == EXACT) == bool(kept):
        yield f"the target calls itself {stored.get('fidelity')!r} for {len(kept)} reasons"


def _unlike(stored: Sequence[Row], expected: Sequence[Row]) -> Iterator[tuple[Row | None, Row | None]]:
    return ((a, b) for a, b in zip_longest(stored, expected) if a != b)


def _row(row: Row | None) -> str:
    if row is None:
        return "no further variable"
    name, shape, dtype, trainable, stored = row
    return f"{name} {dtype}{list(shape)}, {'' if trainable else 'not '}trained{'' if stored else ', without a value'}"
