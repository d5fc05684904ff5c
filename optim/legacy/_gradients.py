"""Gradients as the legacy interfaces take, give, clip and scatter them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from optim.clipping import clip
from optim.errors import NoGradientsError, UnsupportedError
from optim.executors.portable import TensorGradients
from optim.options import GradientsClipOption
from optim.placement import layout_of, relayout
from optim.state import State
from optim.variables import conform, plain_name, unwrap


def compute(loss: Any, var_list: Any, grad_loss: Any = None) -> list[tuple[Any, Any]]:
    """(gradient, variable) pairs; a gradient may be None.

    Args:
      loss: a callable without arguments; or, inside a `tf.function`, a tensor of it.
      var_list: variables in any nesting, or a callable that gives them, asked after `loss` was called.
      grad_loss: what the gradient of `loss` is taken to be, shaped like it; ones by default.

    Raises:
      UnsupportedError (a ValueError): `loss` is an eager tensor, of which nothing is recorded.
    """
    if not callable(loss):
        if tf.executing_eagerly():
            raise UnsupportedError(
                "loss is a tensor, and nobody recorded how it came about; pass a callable that computes it, or call"
                " this inside of the tf.function that computes it"
            )
        variables = tf.nest.flatten(var_list() if callable(var_list) else var_list)
        return list(zip(tf.gradients(loss, [unwrap(v) for v in variables], grad_loss), variables, strict=True))
    tape = tf.GradientTape()
    with tape:
        if not callable(var_list):
            tape.watch([unwrap(v) for v in tf.nest.flatten(var_list)])
        value = loss()
        variables = tf.nest.flatten(var_list() if callable(var_list) else var_list)
    if grad_loss is None and tf.executing_eagerly() and dtensor.is_dtensor(value):
        grad_loss = tf.ones_like(value)  # the tape would start from a plain 1, which does not meet DTensors
    gradients = tape.gradient(value, [unwrap(v) for v in variables], output_gradients=grad_loss)
    return list(zip(gradients, variables, strict=True))


def require_all(pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
    """The gradients alone. Raises NoGradientsError (a ValueError) if one is None."""
    for gradient, variable in pairs:
        if gradient is None:
            raise NoGradientsError(
                f"variable {plain_name(variable)!r} has None for gradient: the loss does not depend on it, or goes"
                " through an op that has no gradient (argmax, round, ...)"
            )
    return [gradient for gradient, _ in pairs]


def clipped(gradients: Sequence[Any], option: GradientsClipOption) -> list[Any]:
    """Gradients clipped as `option` says; of `IndexedSlices` the slices are, before those of one row are summed."""
    if not option.active:
        return list(gradients)
    dense = [g.values if isinstance(g, tf.IndexedSlices) else tf.convert_to_tensor(g) for g in gradients]
    result = clip(TensorGradients(dense), option)
    assert isinstance(result, TensorGradients)
    return [
        tf.IndexedSlices(new, old.indices, old.dense_shape) if isinstance(old, tf.IndexedSlices) else new
        for old, new in zip(gradients, result.tensors, strict=True)
    ]


@contextmanager
def other_rows_kept(state: State, pairs: Sequence[tuple[Any, Any]], slots: Sequence[str]) -> Iterator[None]:
    """A step in this context moves those rows only that `IndexedSlices` name, whether by zeros or not.

    Args:
      pairs: (gradient, variable) of the step; dense gradients go their way.
      slots: slots whose other rows keep their values, too; those of further slots do what a zero gradient does.
    """
    kept = []
    for gradient, variable in pairs:
        if isinstance(gradient, tf.IndexedSlices):
            item = state.tracked[variable]
            if getattr(item.given, "constraint", None) is not None:
                raise UnsupportedError(f"variable {item} has a constraint, which cannot be put on single rows of it")
            ones = tf.IndexedSlices(tf.ones_like(gradient.values), gradient.indices, gradient.dense_shape)
            named = tf.not_equal(relayout(conform(ones, item), item.layout), 0)
            owned = [item.variable, *state.slots.of(item, slots).values()]
            kept += [(owner, owner.read_value(), named) for owner in owned]
    yield
    for owner, old, named in kept:
        owner.assign(relayout(tf.where(named, owner.read_value(), old), layout_of(owner)))
