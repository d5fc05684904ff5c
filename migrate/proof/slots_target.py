"""Proof that a slot-variable checkpoint holds what its source does: it is read array by array, and by TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from migrate.bytes.arrays import LazyArray
from migrate.bytes.bundle import STRING, BundleReader, numpy_dtype
from migrate.operations.convert import Progress
from migrate.proof import tensorflow
from migrate.proof.compare import Comparer
from migrate.state import OptimizerState
from optim import slot_layout

READ_BY_TENSORFLOW = 1 << 20
LARGE = 100 << 20
"""Bytes that take so long to be compared that TensorFlow, which is needed next, is better imported meanwhile."""


class Target:
    """A slot-variable checkpoint, without what the metadata says of it."""

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

    for check in state.checks():
        check.start()
    comparer = Comparer(report)
    for key, array in wanted.items():
        problem = comparer.difference(array, target.array(key)) if key in target.bundle else "is missing"
        if problem:
            yield f"{key} {problem} (source: {array.stored_as})"
    state.finish_checks()
    prefixes = ("optimizer/slots/", "variables/", "unmapped/")
    yield from (
        f"{key} is in no source" for key in sorted(target.bundle) if key.startswith(prefixes) and key not in wanted
    )
    counter = slot_layout.scalar_key(slot_layout.ITERATIONS)
    if counter not in target.bundle or int(target.array(counter).load()) != state.iterations:
        yield f"{counter} is not {state.iterations} (source: {state.iterations_source})"


def _bytes(array: LazyArray) -> int:
    return 0 if array.dtype == STRING else array.size * numpy_dtype(array.dtype).itemsize


def tensorflow_differences(target: Target) -> Iterator[str]:
    """Where TensorFlow's own reader sees other keys, shapes, dtypes or, of tensors that are not large, other values."""
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
            value = np.asarray(reader.get_tensor(key))
            if value.tobytes() != array.load().tobytes():
                yield f"{key} has other bits when TensorFlow reads it"


def metadata_differences(state: OptimizerState, target: Target) -> Iterator[str]:
    metadata = target.metadata
    if metadata.class_name != state.algorithm:
        yield f"the target's optimizer is {metadata.class_name}, the source's {state.algorithm}"
    for key, value in state.hyperparameters.items():
        if key != "name" and metadata.config.get(key) != value:
            yield f"the target has {key} = {metadata.config.get(key)!r}, the source {value!r}"
