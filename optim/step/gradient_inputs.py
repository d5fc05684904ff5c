"""Conversion of gradients to the form of a step: that of their variables; `IndexedSlices` by row, if the kernel takes
rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.ops import EagerTensor

from optim.algorithm import Algorithm
from optim.executors import native, portable
from optim.executors.gradient_metadata import UNCHANGED, GradientMetadata, Slices
from optim.executors.rows import row_gradient, squared_rows
from optim.options.settings import Settings
from optim.state.row_gradient import RowGradient
from optim.state.state import State
from optim.state.tracked import Tracked, TrackedList
from optim.step import replicas
from optim.step.execution import Execution
from optim.step.gradients import conform, conform_all


class GradientInputs:
    """Converts the gradients of a call before its step, or before they are added to a sum."""

    def __init__(self, algorithm: Algorithm, state: State, settings: Settings, execution: Execution):
        self._algorithm = algorithm
        self._state = state
        self._settings = settings
        self._execution = execution

    def conformed(
        self, gradients: Sequence[Any], tracked: TrackedList, executor: str
    ) -> tuple[list[Any], GradientMetadata]:
        """Return the gradients in the form of their variables; `IndexedSlices` stay, if the kernel takes them.

        `executor`: of an eager step outside replicas; else an empty string.
        """
        settings, by_kernel = self._settings, bool(executor) and self._execution.has_kernel
        is_float32 = settings.masters.master_copies or settings.accumulation.is_used
        slices = []
        if set(map(type, gradients)) != {EagerTensor}:  # isinstance of an abstract class is slow
            slices = [i for i, gradient in enumerate(gradients) if isinstance(gradient, tf.IndexedSlices)]
        if not slices:
            conformed, handles = conform_all(gradients, tracked, is_float32, by_kernel)
            return conformed, GradientMetadata(held_tensors=handles)
        metadata = UNCHANGED
        if settings.repeated_rows.acts(settings.clipping.option):
            gradients, metadata = self._clipped_before_sums(gradients, tracked, slices, is_float32)
            is_float32 = True
        by_row = {i for i in slices if self.takes_rows(tracked[i])}
        named = self._named(gradients, tracked, [i for i in slices if i not in by_row])
        rest = [i for i in range(len(gradients)) if i not in by_row]
        others = TrackedList(tracked[i] for i in rest)
        dense, _ = conform_all([gradients[i] for i in rest], others, is_float32, by_kernel) if rest else ([], None)
        by_position = dict(zip(rest, dense, strict=True))
        by_position |= {i: self._by_row(gradients[i], tracked[i], executor, metadata) for i in by_row}
        return [by_position[i] for i in range(len(gradients))], replace(metadata, named=named)

    def _by_row(
        self, gradient: tf.IndexedSlices, tracked: Tracked, executor: str, metadata: GradientMetadata
    ) -> RowGradient:
        accumulates = self._settings.accumulation.is_used
        sorts = (executor == "local" or not tf.executing_eagerly()) and not accumulates
        slices = metadata.slices.get(tracked.index)
        if slices is None:
            now = self._settings.looks_at_sums and not accumulates
            return row_gradient(gradient, tracked, looks_at_sums=now, sorts=sorts)
        program = native.program_of(self._algorithm.updating_rule_of(tracked), tracked, self._state.slots, is_sum=True)
        has_all = native.on_gpu(tracked) and not self._execution.keeps_rows(tracked)
        return squared_rows(slices, tracked, program, sorts=sorts, has_all=has_all)

    def _clipped_before_sums(
        self, gradients: Sequence[Any], tracked: Sequence[Tracked], slices: Sequence[int], keeps_float32: bool
    ) -> tuple[list[Any], GradientMetadata]:
        """Return the gradients of a step, some of which have slices, after the operations that come before these are
        summed."""
        settings = self._settings
        conformed = [g if i in slices else conform(g, tracked[i], keeps_float32) for i, g in enumerate(gradients)]
        conformed = portable.unscaled_and_clipped(conformed, settings.clipping.option, settings.loss_scale.now())
        squares = slices if settings.repeated_rows.squares else ()
        return conformed, GradientMetadata(True, {tracked[i].index: Slices.of(conformed[i]) for i in squares})

    def _named(self, gradients: Sequence[Any], tracked: Sequence[Tracked], made_dense: Sequence[int]) -> dict[int, Any]:
        """Return the rows of `IndexedSlices` that are made dense, by index of the variable, if other rows must not
        change."""
        if self._settings.accumulation.is_used:
            return {}
        lazy = [i for i in made_dense if self._settings.lazy_rows.applies_to(tracked[i])]
        return {tracked[i].index: tf.cast(gradients[i].indices, tf.int64) for i in lazy}

    def takes_rows(self, tracked: Tracked) -> bool:
        is_eager = tf.executing_eagerly() and not replicas.in_copy()
        return self._settings.accumulation.takes_rows(tracked) and self._execution.takes_rows(tracked, is_eager)
