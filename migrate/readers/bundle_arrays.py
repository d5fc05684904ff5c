"""The tensors of an open bundle as arrays, and its keys that have no numbers."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import partial

from migrate.bytes.arrays import LazyArray
from migrate.bytes.checkpoint_paths import find_prefix, looks_like_bundle
from migrate.bytes.messages import some
from migrate.claims import UNINTERPRETED, Origin
from optim.bytes.bundle import GRAPH_KEY, STRING, BundleReader, is_numeric
from optim.errors import CheckpointError


def keys_of(path: str) -> Collection[str] | None:
    """The keys of a bundle, None for other files. A damaged one counts as one of objects: reading reports it."""
    prefix = find_prefix(path)
    if prefix is None or not looks_like_bundle(prefix):
        return None
    try:
        return BundleReader(prefix).keys()
    except CheckpointError:
        return {GRAPH_KEY}


def lazy(bundle: BundleReader, key: str) -> LazyArray:
    """A tensor that is read when it is used."""
    entry = bundle[key]
    return LazyArray(entry.shape, entry.dtype, partial(bundle.load, key), key, bundle.extent(key))


ITERATOR = "/.ATTRIBUTES/ITERATOR_STATE"
"""Suffixes of the keys of tf.data's iterators."""
TEXT = re.compile(r"_CHECKPOINTABLE_OBJECT_GRAPH|.*(?:_serialized|[-_]keys|[-_]values|/OBJECT_CONFIG_JSON|/py_state)")
"""Keys of strings that TensorFlow writes: objects, tables and boosted trees."""


def not_numbers(bundle: BundleReader) -> list[str]:
    """Warn about the iterators of tf.data, which cannot be migrated; empty without them."""
    left = [name for key, name in _left(bundle) if key.endswith(ITERATOR)]
    if not left:
        return []
    return [f"state of tf.data iterators is not migrated and stays in the source: {some(left, 3)}"]


def doubts(bundle: BundleReader) -> tuple[Origin, ...]:
    """Warn about other tensors without numbers: one may be a slot whose dtype was altered."""
    left = [name for key, name in _left(bundle) if not key.endswith(ITERATOR)]
    text = f"these are no numbers, are not understood and stay in the source: {some(left, 3)}"
    return (Origin("left in the source", left, UNINTERPRETED, doubt=text),) if left else ()


def _left(bundle: BundleReader) -> list[tuple[str, str]]:
    """Key, and key with dtype, of tensors without numbers, except TensorFlow's own strings."""
    left = ((k, e) for k, e in bundle.items() if not is_numeric(e.dtype))
    return [(k, f"{k} ({e.dtype})") for k, e in left if e.dtype != STRING or not TEXT.fullmatch(k)]
