"""One variable whose slots, or which itself, are stored in fewer bits than a step computes in, in TensorFlow's ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from optim import slot_layout
from optim.bits import codes, noise
from optim.executors.work import Work
from optim.layouts.placement import layout_of, relayout
from optim.options.master_copies import target
from optim.precision import compute_dtype

CODES = (codes.SIGNED, codes.UNSIGNED)
Choose = Callable[[Any, Any], Any]
"""(new, old) -> what is to be kept."""


class Packed:
    """The arrays of variable number `i` as its step computes with them, and on their way back."""

    def __init__(self, work: Work, i: int, layout: Any):
        """Args: `layout`: in which the update is computed, None without a mesh."""
        self._work, self._tracked, self._layout = work, work.tracked[i], layout
        self._dtype = compute_dtype(target(work.slots, self._tracked).dtype)

    def variable(self, value: Any) -> Any:
        return tf.cast(value, self._dtype)

    def slot(self, name: str, value: Any) -> Any:
        """A slot as a step computes with it, of what is stored."""
        if value.dtype.name not in CODES:
            return tf.cast(value, self._dtype)
        if self._layout is None:
            return codes.decoded(value, self._scales(name).read_value())
        whole = relayout(tf.cast(value, tf.int32), self._replicated)  # DTensor gathers no 8-bit integers
        decoded = codes.decoded(tf.cast(whole, value.dtype), self._scales(name).read_value())
        return relayout(decoded, self._layout)

    def rounded(self, value: Any, dtype: tf.DType, name: str = "") -> Any:
        """The new value of a slot, or of the variable, in the dtype in which it is stored; not for codes."""
        if not self._work.slots.storage.rounds(dtype, is_slot=bool(name)):
            return tf.cast(value, dtype)
        key = self._work.key if tf.is_tensor(self._work.key) else tf.constant(self._work.key, tf.uint32)
        count = tf.range(value.shape.num_elements(), dtype=tf.int64)
        index = relayout(tf.reshape(tf.cast(count, tf.uint32), value.shape), self._layout)
        return noise.rounded(value, noise.array_key(key, self._tracked.index, name), index)

    def assign(self, slots: Mapping[str, Any], new: Mapping[str, Any], choose: Choose) -> None:
        """Store the slots in `new`, or leave them as `choose` has it."""
        for name, slot in slots.items():
            if slot.dtype.name not in CODES:
                value = self.rounded(new[name], slot.dtype, name)
                slot.assign(relayout(choose(value, slot.read_value()), layout_of(slot)))
                continue
            scale = self._scales(name)
            value, scales = codes.encoded(relayout(new[name], self._replicated), slot.dtype)
            slot.assign(choose(relayout(value, layout_of(slot)), slot.read_value()))
            scale.assign(choose(scales, scale.read_value()))

    @property
    def _replicated(self) -> Any:
        """The layout of a whole array on each device, which blocks of codes need; None without a mesh."""
        if self._layout is None:
            return None
        return dtensor.Layout.replicated(self._layout.mesh, self._layout.rank)

    def _scales(self, name: str) -> tf.Variable:
        return self._work.slots.get(slot_layout.scale_of(name), self._tracked)
