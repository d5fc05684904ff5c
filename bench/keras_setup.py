"""Constructors of the Keras-style optimizers by the benchmark's names: tf_keras, its legacy ones, Keras 3 and
optim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.case import Case

CLASSES = {"adam": "Adam", "sgd": "SGD", "momentum": "SGD", "adadelta": "Adadelta"}


def make(optimizers: Any, case: Case, **options: Any) -> Any:
    """An optimizer of the case from a module that names its classes and arguments as Keras does."""
    return getattr(optimizers, CLASSES[case.optimizer])(**case.algorithm.hyperparameters, **options)
