"""State as programs written for Keras look for it: the order of `variables`, their paths, and lists by attribute.

Sources: `build` of each class in `keras/src/optimizers` 3.15 and `tf_keras/src/optimizers` 2.21.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from optim import slot_layout

if TYPE_CHECKING:
    import tensorflow as tf

    from optim.optimizer import Optimizer

BEFORE = (slot_layout.AVERAGE, slot_layout.ACCUMULATED_GRADIENT)
"""Slots that Keras makes before those of the algorithm, each for all variables."""
BY_ITSELF = ("vhat", "velocity", "momentum", "average_gradient")
"""Slots of an algorithm that Keras makes for all variables at once; it makes the others variable by variable."""
NAMES = {
    "m": "momentum",
    "v": "velocity",
    "vhat": "velocity_hat",
    "u": "norm",
    "z": "momentum",
    slot_layout.ACCUMULATED_GRADIENT: "gradient_accumulator",
}
"""Keras 3's names of slots, if other than ours."""
ATTRIBUTES = {
    "_momentums": ("m", "momentum", "z"),
    "momentums": ("m",),
    "_velocities": ("v", "velocity"),
    "_velocity_hats": ("vhat",),
    "_average_gradients": ("average_gradient",),
    "_accumulators": ("accumulator",),
    "_linears": ("linear",),
    "_accumulated_grads": ("accumulated_grad",),
    "_accumulated_delta_vars": ("accumulated_delta_var",),
    "_m": ("m",),
    "_u": ("u",),
    "_r": ("r",),
    "_c": ("c",),
    "_v": ("v",),
    "_accumulated_gradients": (slot_layout.ACCUMULATED_GRADIENT,),
    "_model_variables_moving_average": (slot_layout.AVERAGE,),
}
"""Attributes of Keras's classes, and the slots that they may be of."""


def variables(engine: Optimizer, *, with_rate: bool) -> list[tf.Variable]:
    """All state in Keras's order; what Keras lacks comes last.

    Args:
      with_rate: whether a constant learning rate is among them, as in Keras 3.
    """
    scalars = dict(engine._state.scalars)
    first = [scalars.pop(slot_layout.ITERATIONS)]
    rate = scalars.pop(slot_layout.LEARNING_RATE, None)
    if with_rate and rate is not None:
        first.append(engine.learning_rate)
    return [*first, *_slots(engine), *scalars.values()]


def _slots(engine: Optimizer) -> Iterator[tf.Variable]:
    slots, tracked = engine._state.slots, list(engine._state.tracked)
    for group in order(slots.names, [slot.name for slot in engine._algorithm.slots]):
        for variable in tracked:
            yield from slots.of(variable, group).values()


def order(names: Sequence[str], of_algorithm: Sequence[str]) -> list[tuple[str, ...]]:
    """The slots of these names in groups, each of which Keras makes variable by variable."""
    slot_names = [name for name in dict.fromkeys(of_algorithm) if name in names]
    before = [(name,) for name in BEFORE if name in names]
    together = tuple(name for name in slot_names if name not in BY_ITSELF)
    others = [(name,) for name in names if name not in (*slot_names, *BEFORE)]
    return [*before, together, *((name,) for name in slot_names if name in BY_ITSELF), *others]


def path(engine: Optimizer, key: str, variable: tf.Variable) -> str:
    """What Keras 3 calls a variable of an optimizer; `key` is `learning_rate`, `m.0`, ..."""
    slot, _, index = key.partition(".")
    if not index:
        return f"{engine.name}/{variable.name.split(':')[0]}"
    owner = engine._state.tracked.at(int(index))
    called = str(getattr(owner.user_variable, "path", owner.variable.name.split(":")[0])).replace("/", "_")
    return f"{engine.name}/{called}_{NAMES.get(slot, slot)}"


def by_attribute(engine: Optimizer, name: str) -> list[Any] | None:
    """The slots that Keras's class has as an attribute of this name, in build order, None if a variable lacks it;
    None for another name."""
    slots = engine._state.slots
    slot = next((slot for slot in ATTRIBUTES.get(name, ()) if slot in slots.names), None)
    return None if slot is None else [slots.find(slot, tracked) for tracked in engine._state.tracked]
