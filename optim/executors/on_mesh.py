"""Eager steps on meshes in TensorFlow's ops: each variable's step as a function of the numbers of the step.

`optim/layouts/cached_functions.py` explains why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from optim.executors.work import Work
from optim.layouts.placement import from_host
from optim.precision import is_one_of_few

MOMENTUM = "the momentum of averages"
DECAY = "the factor of weight decay"
KEY = "the key of stochastic rounding"


Update = Callable[[Work, int, Any], None]
"""The update of one variable, from its number and gradient."""


def call(work: Work, i: int, gradient: Any, update: Update) -> None:
    """Call `update(work, i, gradient)`; eagerly on a mesh as a function that the slots keep."""
    layout = work.tracked[i].layout
    if not tf.executing_eagerly() or layout is None or work.needs_metadata(i):
        update(work, i, gradient)
        return
    step, numbers = traced(work, i, gradient.dtype, update)
    step(from_host(numbers, dtensor.Layout.replicated(layout.mesh, 1)), gradient)


def traced(work: Work, i: int, dtype: tf.DType, update: Update) -> tuple[Callable[[Any, Any], None], np.ndarray]:
    """Return `update` as a function of the changing numbers and the gradient, which the slots keep; and these
    numbers."""
    coefficients = work.scalars(i) if work.coefficients else {}
    key = None if work.key is None else float(work.key)
    numbers = {**coefficients, MOMENTUM: work.ema_momentum, DECAY: work.decay_factors[i], KEY: key}
    fixed = {name: value for name, value in numbers.items() if is_one_of_few(value)}
    changing = {name: value for name, value in numbers.items() if name not in fixed}
    step_of = (
        *(update, id(work.rules[i]), work.tracked[i].index, work.rate_factors[i], work.lazy[i], work.has_averages),
        *(work.overwrite, dtype, tuple(fixed.items())),
    )
    step = work.slots.traced(step_of, _step(replace(work.only([i]), gradients=()), fixed, tuple(changing), update))
    return step, np.array(list(changing.values()), np.float64)


def _step(work: Work, fixed: Mapping[str, Any], changing: Sequence[str], update: Update) -> Callable[[Any, Any], None]:
    """Return `update` of the one variable of `work`, as a function of the changing numbers and the gradient."""

    def step(numbers: Any, gradient: Any) -> None:
        scalars = {**fixed, **{name: numbers[place] for place, name in enumerate(changing)}}
        momentum, decay, key = scalars.pop(MOMENTUM), scalars.pop(DECAY), scalars.pop(KEY)
        new = {"coefficients": {work.rate_factors[0]: scalars}, "ema_momentum": momentum, "decay_factors": [decay]}
        new["key"] = None if key is None else tf.cast(tf.cast(key, tf.int64), tf.uint32)
        update(replace(work, **new), 0, gradient)

    return step
