"""Live optimizers that `migrate.restore` fills: one file per kind, all through `base.Live`."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from migrate.errors import ArgumentError
from migrate.live.base import Live
from migrate.rules import step_factors as factors
from optim.checkpoints.live import has_slots_of_keras
from optim.errors import UnsupportedError
from optim.lazy import uses_tensorflow

KERAS3, TF_KERAS = "keras.src.optimizers.", "tf_keras.src.optimizers."


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
        from migrate.live.ours import Ours

        return Ours(inner)
    if any(h.startswith((KERAS3, TF_KERAS)) for h in homes) and find_spec("tensorflow") is None:
        raise UnsupportedError(
            f"{type(inner).__name__} is of Keras, into whose live optimizers restoring needs TensorFlow (pip install"
            " tensorflow); dtopt migrate checkpoint --to keras writes a file that Keras loads on JAX and PyTorch too"
        )
    if any(home.startswith(f"{TF_KERAS}legacy.") for home in homes):
        from migrate.live.legacy import Legacy

        return Legacy(inner, f"{TF_KERAS}legacy.", _version("tf_keras"))
    for library, home, generation in (("keras", KERAS3, factors.KERAS3), ("tf_keras", TF_KERAS, factors.TF_KERAS)):
        if any(h.startswith(home) for h in homes):
            from migrate.live.indexed import Indexed

            return Indexed(inner, library, generation, home, _version(library))
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
    found = optimizer.inner_optimizer if is_scaled else optimizer
    if has_slots_of_keras(found):
        return found, optimizer if is_scaled else None
    if type(found).__module__.startswith("optim.keras."):
        found = found.inner
    return found, optimizer if is_scaled else None


def _version(distribution: str) -> str:
    try:
        return version(distribution.replace("_", "-"))
    except PackageNotFoundError:
        return "of unknown release"
