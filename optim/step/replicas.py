"""Steps inside `tf.distribute.Strategy.run`: gradients are summed over the replicas, and every replica makes the same
step.

The state of an optimizer made in `strategy.scope()` consists of MirroredVariables, one copy per replica. A step leaves
the replicas (`merge_call`), sums the gradients, and is then made once for each copy of the state: in the context of
`strategy.extended.update` TensorFlow reads and assigns the copy of one replica. Clipping, averages, accumulation and
loss scaling use the sum, as in tf.keras (OptimizerV2; `aggregate_gradients` of 2.11+). Keras 3 clips and accumulates
each replica's gradients, and sums the results (`backend/tensorflow/optimizer.py` 3.15).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops

from optim.errors import UnsupportedError
from optim.state.tracked import plain_name, unwrap

Pairs = Sequence[tuple[Any, Any]]

_stepping: ContextVar[bool] = ContextVar("stepping", default=False)

KNOWN = (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy, tf.distribute.OneDeviceStrategy)


def needed() -> bool:
    """Whether a step must use `step`: in a strategy, and not already for one copy of the state."""
    is_in_any = bool(ops.get_default_graph()._distribution_strategy_stack)  # has_strategy() takes some 20 us
    return is_in_any and tf.distribute.has_strategy() and not _stepping.get()


def in_copy() -> bool:
    """Whether the current step is for one replica's copy of the state."""
    return _stepping.get()


def check(what: str) -> None:
    """Refuse unknown strategies, and steps outside of `Strategy.run`. Raises UnsupportedError."""
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, KNOWN):
        raise UnsupportedError(
            f"{what} in a {type(strategy).__name__}: optim steps in MirroredStrategy, MultiWorkerMirroredStrategy and"
            " OneDeviceStrategy; use one of these, or lay the model out on a DTensor mesh (docs/models.md)"
        )
    if tf.distribute.in_cross_replica_context():
        raise UnsupportedError(f"{what} outside of the replicas; call it in a function that Strategy.run runs")


def summed(pairs: Pairs) -> list[tuple[Any, Any]]:
    """Return each gradient summed over the replicas, in a replica; return it unchanged without a strategy."""
    if not tf.distribute.has_strategy():
        return list(pairs)
    context = tf.distribute.get_replica_context()
    gradients = [gradient for gradient, _ in pairs if gradient is not None]
    sums = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, gradients) if gradients else ())
    return [(None if gradient is None else next(sums), variable) for gradient, variable in pairs]


NONE, DENSE, SPARSE = 0, 1, 2


def alike(pairs: Pairs) -> list[tuple[Any, Any]]:
    """Return the pairs with gradients of one form in all replicas of this process, because sums pair them by position.

    A gradient that is None here and not elsewhere becomes zeros; one that is dense somewhere becomes dense. Other
    processes cannot be asked: there, all workers must have gradients for the same variables.
    """

    def forms(strategy: Any, *forms_here: Any) -> list[int]:
        forms_of = [set(strategy.experimental_local_results(result)) for result in forms_here]
        return [result.pop() if len(result) == 1 else DENSE for result in forms_of]

    forms_here = [NONE if g is None else SPARSE if isinstance(g, tf.IndexedSlices) else DENSE for g, _ in pairs]
    target_forms = tf.distribute.get_replica_context().merge_call(forms, args=tuple(forms_here))
    return [
        (g if have == want else _dense(g, v), v)
        for (g, v), have, want in zip(pairs, forms_here, target_forms, strict=True)
    ]


def _dense(gradient: Any, variable: Any) -> Any:
    return tf.zeros_like(unwrap(variable)) if gradient is None else tf.convert_to_tensor(gradient)


def step(
    pairs: Pairs,
    *,
    aggregate: bool,
    build: Callable[[], object],
    anchor: tf.Variable,
    one: Callable[[list[tuple[Any, Any]]], object],
) -> None:
    """Take a step in every replica.

    Args:
      pairs: (gradient, variable) of this replica.
      aggregate: whether gradients are summed; if not, each replica uses its own.
      build: makes the optimizer's state for these variables, if it does not exist yet.
      anchor: one of the optimizer's variables.
      one: called with the pairs once for each copy of the state.

    Raises:
      UnsupportedError: variables or the optimizer were made outside of the strategy's scope.
    """
    variables = [variable for _, variable in pairs]

    def across(strategy: Any, gradients: Sequence[Any]) -> None:
        _check_made_in_scope(strategy, [*variables, anchor])
        with tf.init_scope(), strategy.scope():
            build()

        def update(_: Any, *gradients_: Any) -> None:
            with _in_copy():
                one(list(zip(gradients_, variables, strict=True)))

        strategy.extended.update(anchor, update, args=tuple(gradients), group=False)

    if aggregate:
        pairs = summed(pairs)
    tf.distribute.get_replica_context().merge_call(across, args=([gradient for gradient, _ in pairs],))


@contextmanager
def _in_copy() -> Iterator[None]:
    token = _stepping.set(True)
    try:
        yield
    finally:
        _stepping.reset(token)


def _check_made_in_scope(strategy: Any, variables: Sequence[Any]) -> None:
    for variable in variables:
        if not strategy.extended.variable_created_in_scope(unwrap(variable)):
            raise UnsupportedError(
                f"variable {plain_name(variable)!r} was not made in the scope of the strategy; make model and optimizer"
                " in `with strategy.scope():`"
            )


def check_alone(variables: Sequence[Any]) -> None:
    """Refuse a step outside of the strategy on variables with a copy per replica: it would move only one copy."""
    for variable in variables:
        if isinstance(variable, tf.distribute.DistributedValues):
            raise UnsupportedError(
                f"variable {plain_name(variable)!r} has a copy in each replica of a tf.distribute.Strategy; step in a"
                " function that strategy.run runs"
            )


def check_not_on_servers(variables: Sequence[Any]) -> None:
    """Refuse variables of a ParameterServerStrategy: TensorFlow's kernels cannot update state on other machines."""
    for variable in variables:
        if "/job:ps" in (variable.device or ""):
            raise UnsupportedError(
                f"variable {plain_name(variable)!r} is on a parameter server ({variable.device}), where optim cannot"
                " step; use MirroredStrategy or MultiWorkerMirroredStrategy, or lay the model out on a DTensor mesh"
                " (docs/models.md)"
            )
