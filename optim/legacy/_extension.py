"""Steps of users' subclasses of `legacy.v2` that have their own `_resource_apply_dense` and related methods."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from optim.errors import UnsupportedError
from optim.executors.work import updated
from optim.legacy._gradients import other_rows_kept
from optim.namespace import XP
from optim.optimizer import Optimizer as ModernOptimizer
from optim.state.tracked import unwrap
from optim.step.gradients import densify

HOOKS = (
    "_resource_apply_dense",
    "_resource_apply_sparse",
    "_resource_apply_sparse_duplicate_indices",
    "_prepare",
    "_prepare_local",
    "_decayed_lr",
    "_get_hyper",
    "_fallback_apply_state",
)

State = Mapping[tuple[str, tf.DType], Mapping[str, Any]]
"""The result of `_prepare`: coefficients of a step by device and dtype."""


def is_extended(cls: type) -> bool:
    """Whether a class has its own steps, or scalars of a step, instead of those of `optim`."""
    return any(not getattr(cls, hook).__module__.startswith("optim.") for hook in HOOKS)


def step(optimizer: Any, pairs: Sequence[tuple[Any, Any]], state: State) -> None:
    """Apply each gradient by the `_resource_apply_...` of a `legacy.v2.Optimizer`, as OptimizerV2 did."""
    for gradient, variable in pairs:
        if isinstance(gradient, tf.IndexedSlices):
            check_unconstrained(variable)
            options = _with_state(optimizer._resource_apply_sparse, state)
            optimizer._resource_apply_sparse_duplicate_indices(gradient.values, variable, gradient.indices, **options)
            continue
        options = _with_state(optimizer._resource_apply_dense, state)
        done = optimizer._resource_apply_dense(gradient, variable, **options)
        constraint = getattr(variable, "constraint", None)
        if constraint is not None:
            with tf.control_dependencies(_operations(done)):
                variable.assign(constraint(variable))


def check_unconstrained(variable: Any) -> None:
    if getattr(variable, "constraint", None) is not None:
        raise UnsupportedError(
            f"variable {variable.name!r} has a constraint, which cannot be put on single rows of it (IndexedSlices)"
        )


def _with_state(method: Any, state: State) -> dict[str, Any]:
    """Return the argument `apply_state`, for a method that takes it; methods written for TF 2.0 do not."""
    return {"apply_state": state} if "apply_state" in inspect.signature(method).parameters else {}


@contextmanager
def undone_on_error(variables: Sequence[Any]) -> Iterator[None]:
    """Restore variables if a subclass's step raises half way, which is possible eagerly."""
    before = [(v, v.read_value()) for v in map(unwrap, variables)] if tf.executing_eagerly() else []
    try:
        yield
    except BaseException:
        for variable, value in before:
            variable.assign(value)
        raise


def _operations(done: Any) -> list[Any]:
    return [] if done is None or tf.executing_eagerly() else [done]


def summed(values: Any, indices: Any) -> tuple[Any, Any]:
    """Add up slices of the same row. Returns (values, indices), each index once, in order of appearance."""
    unique, positions = tf.unique(indices)
    return tf.math.unsorted_segment_sum(values, positions, tf.shape(unique)[0]), unique


# Steps of one variable by the rule of a built-in class, for those that extend it and call `super()`.


def apply_dense(modern: ModernOptimizer, hyper: Mapping[str, Any], gradient: Any, variable: Any) -> None:
    """Update a variable and its slots.

    Args:
      hyper: the hyperparameters of the rule and `learning_rate`; tensors of any float dtype.
    """
    rule, state = modern._rule, modern._state
    if rule is None:
        raise NotImplementedError("_resource_apply_dense must be implemented in subclasses")
    coefficients = _coefficients(modern, hyper)
    slots = state.slots.of(state.tracked[variable], [slot.name for slot in rule.slots])
    old = {name: slot.read_value() for name, slot in slots.items()}
    value, new = updated(rule, variable.read_value(), gradient, old, coefficients, None)
    variable.assign(value)
    for name, slot in slots.items():
        slot.assign(new[name])


def apply_sparse(
    modern: ModernOptimizer,
    hyper: Mapping[str, Any],
    gradient: tf.IndexedSlices,
    variable: Any,
    kept_rows: Sequence[str] | None,
) -> None:
    """Apply `IndexedSlices` as `apply_dense` does; for `kept_rows` see `LegacyOptimizer`."""
    if modern._rule is None:
        raise NotImplementedError("_resource_apply_sparse must be implemented in subclasses")
    dense = densify(gradient, modern._state.tracked[variable])
    if kept_rows is None:
        apply_dense(modern, hyper, dense, variable)
        return
    with other_rows_kept(modern._state, [(gradient, variable)], kept_rows):
        apply_dense(modern, hyper, dense, variable)


def _coefficients(modern: ModernOptimizer, hyper: Mapping[str, Any]) -> Mapping[str, Any]:
    assert modern._rule is not None
    scalars = {name: modern._state.scalars[name].read_value() for name in modern._rule.scalars}
    wide = {name: tf.cast(value, tf.float64) for name, value in hyper.items()}
    return modern._rule.coefficients(XP, {**wide, **scalars}, tf.cast(modern.iterations.read_value() + 1, tf.float64))


def finish(modern: ModernOptimizer, hyper: Callable[[], Mapping[str, Any]]) -> None:
    """Count a step, and update the rule's scalars for all variables (Nadam's product)."""
    if modern._rule is not None and modern._rule.scalars:
        new = _coefficients(modern, hyper())
        for name in modern._rule.scalars:
            modern._state.scalars[name].assign(new[name])
    modern.iterations.assign_add(1)
