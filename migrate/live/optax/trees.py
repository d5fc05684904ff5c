"""An optax transformation with its state and parameters, and which leaf of the state is which slot.

Source: the classes of state in `optax/_src/{transform,accumulation}.py` and `optax/schedules/_inject.py` 0.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from optim.errors import UnsupportedError

MOMENTS = {"m": "mu", "v": "nu", "vhat": "nu_max"}
FIELDS: Mapping[str, Mapping[str, str]] = {
    "SGD": {"m": "trace"},
    "RMSprop": {"velocity": "nu", "momentum": "trace", "average_gradient": "mu"},
    "Adagrad": {"accumulator": "sum_of_squares"},
    "Adadelta": {"accumulated_grad": "e_g", "accumulated_delta_var": "e_x"},
    "Adamax": {"m": "mu", "u": "nu"},
    "Lion": {"m": "mu"},
    **dict.fromkeys(("Adam", "AdamW", "Nadam", "RectifiedAdam", "AdaBelief", "Yogi"), MOMENTS),
}
"""Algorithm of `optim` -> slot -> the field of optax's state."""
KEPT = "hyperparams"
"""The field of `inject_hyperparams` with constant numbers."""
COUNT = "count"


class Optax:
    """An optax transformation, for `migrate.restore`, which puts new values into `state` and `params`.

    JAX's arrays cannot be assigned to, so continue with the attributes:

        training = migrate.Optax(tx, params)
        migrate.restore(source, training, {"dense/kernel": "Dense_0/kernel"}, restore_variables=True)
        params, state = training.params, training.state

    Args:
      tx: an `optax.GradientTransformation`; `restore` tests it, and reports it as exact only if the tests agree.
      params: the pytree of arrays that it updates.
      state: its state; None for `tx.init(params)`.
    """

    def __init__(self, tx: Any, params: Any, state: Any = None):
        self.tx = tx
        self.params = params
        self.state = tx.init(params) if state is None else state


@dataclass(frozen=True)
class Leaf:
    """One array of a state: `what` is a field of FIELDS, or `count`, or `hyperparams`; `name` a parameter's, or ""."""

    what: str
    name: str


def named(params: Any) -> dict[str, Any]:
    """The leaves of a pytree of parameters by their names: keys from the root, joined by slashes.

    Raises:
      UnsupportedError: two leaves have one name.
    """
    import jax

    by_name: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        if _name(path) in by_name:
            raise UnsupportedError(f"two parameters of the pytree are called {_name(path)!r}; rename one")
        by_name[_name(path)] = leaf
    return by_name


def _name(path: Any) -> str:
    import jax

    return str(jax.tree_util.keystr(path, simple=True, separator="/"))


def leaves(state: Any, params: Any) -> list[Leaf]:
    """What each array of a state is, in JAX's order of flattening.

    Raises:
      UnsupportedError: an array that no source has a value for.
    """
    import jax

    names = {tuple(path): _name(path) for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]}
    return [_leaf(path, names) for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]


def _leaf(path: Any, names: Mapping[Any, str]) -> Leaf:
    fields = {field for per in FIELDS.values() for field in per.values()}
    attributes = [getattr(key, "name", None) for key in path]
    for place, attribute in enumerate(attributes):
        if attribute in fields and tuple(path[place + 1 :]) in names:
            return Leaf(str(attribute), names[tuple(path[place + 1 :])])
    if KEPT in attributes:
        return Leaf(KEPT, "")
    if attributes and attributes[-1] == COUNT:
        return Leaf(COUNT, "")
    raise UnsupportedError(
        f"the optax state has {_name(path)}, and no source contains a value for it; restore into a transformation"
        " without it"
    )


def filled(state: Any, params: Any, value: Callable[[Leaf, Any], Any]) -> Any:
    """A state whose arrays are `value(leaf, old array)`."""
    import jax

    structure = jax.tree_util.tree_structure(state)
    old = jax.tree_util.tree_leaves(state)
    new = [value(what, leaf) for what, leaf in zip(leaves(state, params), old, strict=True)]
    return jax.tree_util.tree_unflatten(structure, new)


def like(array: np.ndarray, leaf: Any) -> Any:
    """An array with the dtype and device of a leaf."""
    import jax

    values = np.asarray(array).astype(leaf.dtype)
    return jax.device_put(values, leaf.sharding) if hasattr(leaf, "sharding") else jax.numpy.asarray(values)
