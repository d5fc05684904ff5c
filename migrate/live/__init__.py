"""Live optimizers that `migrate.restore` fills: one file per kind, all through `base.Live`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from migrate.errors import ArgumentError
from migrate.live.base import Live
from migrate.releases.versions import Versions
from migrate.rules import step_factors as factors
from optim.checkpoints.live import has_slots_of_keras
from optim.errors import UnsupportedError
from optim.lazy import uses_tensorflow

KERAS3, TF_KERAS = "keras.src.optimizers.", "tf_keras.src.optimizers."
OF_BACKENDS = "keras.src.backend."
"""Where Keras 3 has the classes that step on PyTorch, derived from those of `KERAS3`."""


def adapt(optimizer: Any) -> tuple[Live, str]:
    """Adapt the optimizer for restoring; also return a note about its wrapper (may be empty).

    Raises:
      UnsupportedError: dtopt does not restore into its library, or its algorithm is unknown.
    """
    inner, wrapper = _unwrapped(optimizer)
    live = _adapted(optimizer, inner)
    if wrapper is None:
        return live, ""
    from migrate.live import keras

    live.scaling = keras.scaling(wrapper)
    return live, f"{type(wrapper).__name__} wraps the live optimizer: its loss scale is left as it is"


def _adapted(optimizer: Any, inner: Any) -> Live:
    homes = [cls.__module__ for cls in type(inner).__mro__]
    if any(home.startswith("optim.") for home in homes) and _is_ours(inner):
        from migrate.live import ours

        return ours.adapted(inner)
    if kind := next((row for row in _of_keras() if any(home.startswith(row[1]) for home in homes)), None):
        return kind[0](inner, *kind[2:])
    if any(home.startswith("optax.") for home in homes) or isinstance(inner, tuple):
        raise UnsupportedError(
            "of optax give migrate.Optax(tx, params), or migrate.Optax(tx, params, state), whose params and state are"
            " replaced"
        )
    if isinstance(optimizer, type):
        raise ArgumentError(f"optimizer is the class {optimizer.__name__}; give an instance of it")
    if hasattr(optimizer, "trainable_variables"):
        raise ArgumentError(f"optimizer is a model ({type(optimizer).__name__}); give model.optimizer")
    raise UnsupportedError(
        f"{type(optimizer).__module__}.{type(optimizer).__name__} is not an optimizer of optim, Keras 3, tf_keras,"
        " torch.optim or optax; restore into one of these, or migrate to a checkpoint or a list"
    )


def _is_ours(optimizer: Any) -> bool:
    import optim

    is_plain = isinstance(optimizer, optim.Optimizer)
    if is_plain and not uses_tensorflow():
        raise UnsupportedError(f"{type(optimizer).__name__} has no state here; give what optim.for_keras made of it")
    return is_plain or has_slots_of_keras(optimizer)


def _unwrapped(optimizer: Any) -> tuple[Any, Any]:
    """The optimizer inside a LossScaleOptimizer or `for_keras`, and the former, None without one."""
    is_scaled = type(optimizer).__name__.startswith("LossScaleOptimizer")
    inner = optimizer.inner_optimizer if is_scaled else optimizer
    if has_slots_of_keras(inner):
        return inner, optimizer if is_scaled else None
    if type(inner).__module__.startswith("optim.keras."):
        inner = inner.inner
    return inner, optimizer if is_scaled else None


def _of_keras() -> Iterator[tuple[Any, ...]]:
    """Yield for each kind of Keras's optimizers its adapter, the module that shows it, and the adapter's arguments."""
    from migrate.live import keras

    legacy = f"{TF_KERAS}legacy."
    tf_keras = Versions(_version("tf-keras"))
    yield keras.Legacy, legacy, factors.LEGACY, (legacy,), "tf_keras.optimizers.legacy", tf_keras
    yield keras.Indexed, TF_KERAS, factors.TF_KERAS, (TF_KERAS,), "tf_keras.optimizers", tf_keras
    backend = sys.modules["keras"].config.backend() if "keras" in sys.modules else ""
    versions = Versions(_version("keras"), backend)
    yield keras.Indexed, KERAS3, factors.KERAS3, (KERAS3, OF_BACKENDS), "keras.optimizers", versions


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
