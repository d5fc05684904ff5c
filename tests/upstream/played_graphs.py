"""Tests that were written for TF1 graphs, played eagerly: an op that steps becomes a call, made where the op is run.

Within `with tf.Graph().as_default()` of a test, `apply_gradients` and `minimize` of OptimizerV2 make the slots and give
an op; `op.run()`, `session.run(op)` and `self.evaluate(op)` take the step. What the numbers have to be is upstream's.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

from optim.legacy import v2


class Later:
    """What an op or a tensor of a graph is: it is computed whenever it is asked for."""

    def __init__(self, compute: Callable[[], Any]):
        self.run = compute

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        return np.asarray(self.run(), *args)


class Graph:
    """What `tf.Graph` is in such a test."""

    @contextmanager
    def as_default(self) -> Iterator[Graph]:
        own = v2.Optimizer.apply_gradients, v2.Optimizer.minimize

        def now(optimizer: Any, pairs: list[Any]) -> None:
            own[0](optimizer, pairs)

        def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Later:
            pairs = list(grads_and_vars)
            self._create_all_weights([variable for _, variable in pairs])
            return Later(lambda: now(self, pairs))

        def minimize(self: Any, loss: Any, var_list: Any, *args: Any, **kwargs: Any) -> Later:
            variables = var_list() if callable(var_list) else list(var_list)
            self._create_all_weights(variables)
            return Later(lambda: now(self, self._compute_gradients(loss, variables, *args, **kwargs)))

        with mock.patch.multiple(v2.Optimizer, apply_gradients=apply_gradients, minimize=minimize):
            yield self


class Module:
    """A module, but for `changes`."""

    def __init__(self, module: Any, **changes: Any):
        self.__dict__.update(changes, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def play(module: Any, cases: Iterable[type[unittest.TestCase]]) -> None:
    """Let the tests of a file be played."""
    v1 = Module(module.tf.compat.v1, get_default_graph=Graph)
    module.tf = Module(module.tf, Graph=Graph, compat=Module(module.tf.compat, v1=v1))
    powers = getattr(module, "get_beta_accumulators", None)
    if powers is not None:  # in graphs, tensors of `iterations`
        module.get_beta_accumulators = lambda *given: _later(lambda: powers(*given))
    for case in cases:
        _evaluate_what_is_later(case)


def _later(compute: Callable[[], Any]) -> Any:
    """A tensor of a graph, or a tuple of them."""
    now = compute()
    return tuple(Later(lambda i=i: compute()[i]) for i in range(len(now))) if isinstance(now, tuple) else Later(compute)


def _evaluate_what_is_later(case: Any) -> None:
    theirs = case.evaluate

    def evaluate(self: Any, fetches: Any) -> Any:
        now = tf.nest.map_structure(lambda fetch: fetch.run() if isinstance(fetch, Later) else fetch, fetches)
        return None if now is None else theirs(self, now)

    case.evaluate = evaluate
