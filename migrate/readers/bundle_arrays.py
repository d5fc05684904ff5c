"""The tensors of an open bundle as arrays, and those of its keys that are none."""

from __future__ import annotations

import re
from functools import partial

from migrate.bytes.arrays import LazyArray
from migrate.bytes.messages import some
from migrate.claims import UNINTERPRETED, Origin
from optim.bytes.bundle import STRING, BundleReader, is_numeric


def lazy(bundle: BundleReader, key: str) -> LazyArray:
    """A tensor that stays in the file until it is asked for."""
    entry = bundle[key]
    return LazyArray(entry.shape, entry.dtype, partial(bundle.load, key), key, bundle.extent(key))


ITERATOR = "/.ATTRIBUTES/ITERATOR_STATE"
"""Ends keys of what tf.data keeps of an iterator."""
TEXT = re.compile(r"_CHECKPOINTABLE_OBJECT_GRAPH|.*(?:_serialized|[-_]keys|[-_]values|/OBJECT_CONFIG_JSON|/py_state)")
"""Keys of texts that TensorFlow writes: of objects, of tables and of boosted trees."""


def not_numbers(bundle: BundleReader) -> list[str]:
    """A warning of the iterators of tf.data, of which no state can be made; empty without them."""
    left = [name for key, name in _left(bundle) if key.endswith(ITERATOR)]
    if not left:
        return []
    return [
        f"no arrays of numbers, but what tf.data keeps of an iterator, so that they stay in the source: {some(left, 3)}"
    ]


def doubts(bundle: BundleReader) -> tuple[Origin, ...]:
    """A doubt of other tensors that are no numbers: one may be a slot whose dtype was altered."""
    left = [name for key, name in _left(bundle) if not key.endswith(ITERATOR)]
    text = f"no arrays of numbers, and not understood, so that they stay in the source: {some(left, 3)}"
    return (Origin("left in the source", left, UNINTERPRETED, doubt=text),) if left else ()


def _left(bundle: BundleReader) -> list[tuple[str, str]]:
    """Key, and key and dtype in words, of tensors that are no numbers, but for the texts that TensorFlow writes."""
    left = ((k, e) for k, e in bundle.items() if not is_numeric(e.dtype))
    return [(k, f"{k} ({e.dtype})") for k, e in left if e.dtype != STRING or not TEXT.fullmatch(k)]
