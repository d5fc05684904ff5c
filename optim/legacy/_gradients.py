"""Compute, clip and scatter gradients for the legacy interfaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from optim.errors import NoGradientsError, UnsupportedError
from optim.layouts.placement import layout_of, relayout
from optim.state.state import State
from optim.state.tracked import plain_name, unwrap
from optim.step.gradients import conform


def compute(
    loss: Any,
    var_list: Any,
    grad_loss: Any = None,
    tape: tf.GradientTape | None = None,
    transform: Callable[[Any], Any] = lambda loss: loss,
    by: Callable[..., list[tuple[Any, Any]]] | None = None,
) -> list[tuple[Any, Any]]:
    """Return (gradient, variable) pairs; a gradient may be None.

    Args:
      loss: a callable without arguments; or a tensor, with its tape, or inside a `tf.function` that computes it.
      var_list: variables in any nesting, or a callable that returns them, called after `loss`.
      grad_loss: the gradient of `loss`, shaped like it; ones by default.
      tape: the tape that recorded `loss`, or will record it.
      transform: returns the value to differentiate in place of the loss.
      by: `differentiate`, or a replacement of it.

    Raises:
      UnsupportedError (a ValueError): `loss` is an eager tensor without a tape, so nothing was recorded.
    """
    if not callable(loss) and tape is None:
        if tf.executing_eagerly():
            raise UnsupportedError(
                "loss is a tensor, and no tape recorded its computation: `tape` is required; pass the GradientTape"
                " that recorded it, or a callable that computes the loss"
            )
        variables = tf.nest.flatten(var_list() if callable(var_list) else var_list)
        gradients = tf.gradients(transform(loss), [unwrap(v) for v in variables], grad_loss)
        return list(zip(gradients, variables, strict=True))
    tape = tape or tf.GradientTape()
    if callable(loss):
        with tape:
            if not callable(var_list):
                tape.watch([unwrap(v) for v in tf.nest.flatten(var_list)])
            loss = loss()
    with tape:
        loss = transform(loss)
    variables = tf.nest.flatten(var_list() if callable(var_list) else var_list)
    return (by or differentiate)(tape, loss, variables, grad_loss)


def differentiate(tape: tf.GradientTape, loss: Any, variables: Sequence[Any], grad_loss: Any) -> list[tuple[Any, Any]]:
    """Return (gradient, variable) pairs of a loss that `tape` recorded."""
    if grad_loss is None and tf.executing_eagerly() and dtensor.is_dtensor(loss):
        grad_loss = tf.ones_like(loss)  # the tape would start from a plain 1, which does not combine with DTensors
    gradients = tape.gradient(loss, [unwrap(v) for v in variables], output_gradients=grad_loss)
    return list(zip(gradients, variables, strict=True))


def require_all(pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
    """Return the gradients alone. Raises NoGradientsError (a ValueError) if one is None."""
    for gradient, variable in pairs:
        if gradient is None:
            raise NoGradientsError(
                f"variable {plain_name(variable)!r} has None for gradient: the loss does not depend on it, or goes"
                " through an op that has no gradient (argmax, round, ...)"
            )
    return [gradient for gradient, _ in pairs]


@contextmanager
def other_rows_kept(state: State, pairs: Sequence[tuple[Any, Any]], slots: Sequence[str]) -> Iterator[None]:
    """Let steps in this context move only the rows that `IndexedSlices` name, even if their gradient is zero.

    Args:
      pairs: (gradient, variable) of the step; dense gradients are treated as usual.
      slots: slots whose other rows keep their values, too; further slots change as with a zero gradient.
    """
    copies = []
    for gradient, variable in pairs:
        if isinstance(gradient, tf.IndexedSlices):
            item = state.tracked[variable]
            if getattr(item.user_variable, "constraint", None) is not None:
                raise UnsupportedError(f"variable {item} has a constraint, which cannot be put on single rows of it")
            ones = tf.IndexedSlices(tf.ones_like(gradient.values), gradient.indices, gradient.dense_shape)
            named = tf.not_equal(relayout(conform(ones, item), item.layout), 0)
            owned = [item.variable, *state.slots.of(item, slots).values()]
            copies += [(owner, owner.read_value(), named) for owner in owned]
    yield
    for owner, old, named in copies:
        owner.assign(relayout(tf.where(named, owner.read_value(), old), layout_of(owner)))
