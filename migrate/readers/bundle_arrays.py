"""The tensors of an open bundle as arrays, and those of its keys that are none."""

from __future__ import annotations

from functools import partial

from migrate.bytes.arrays import LazyArray
from migrate.bytes.bundle import STRING, BundleReader, is_numeric
from migrate.bytes.messages import some


def lazy(bundle: BundleReader, key: str) -> LazyArray:
    """A tensor that stays in the file until it is asked for."""
    entry = bundle[key]
    return LazyArray(entry.shape, entry.dtype, partial(bundle.load, key), key, bundle.extent(key))


def not_numbers(bundle: BundleReader) -> list[str]:
    """A warning of the tensors that no state can be made of, as a saved data iterator is one; empty without them."""
    left = [f"{k} ({e.dtype})" for k, e in bundle.items() if not is_numeric(e.dtype) and e.dtype != STRING]
    if not left:
        return []
    return [
        f"no arrays of numbers, as what tf.data keeps of an iterator, so that they stay in the source: {some(left, 3)}"
    ]
