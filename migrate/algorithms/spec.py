"""What `migrate` must know about one algorithm, as data: a new one is one file beside this and a line in
ALGORITHMS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Config = Mapping[str, Any]


@dataclass(frozen=True)
class SlotSpec:
    """One slot: `optim`'s name, the names it has in sources, and whether its numbers are sums of squares.

    The first alias is the attribute of Keras 2.9's experimental optimizers, by which their lists are sorted.
    """

    name: str
    aliases: tuple[str, ...]
    nonnegative: bool = False


@dataclass(frozen=True)
class Block:
    """A run of a flat list: for each variable in turn one array of each of these slots.

    `placeholder`: the arrays are zeros of shape (1,) that stand for a slot which is switched off.
    """

    slots: tuple[str, ...]
    placeholder: bool = False


FlatOrder = tuple["str | Block", ...]
"""Order of a `get_weights()` list: scalars by name, and blocks."""


@dataclass(frozen=True)
class Algorithm:
    """One algorithm of `optim`, as all generations know it.

    Attributes:
      name: class in `optim`, and the Keras class name.
      slots: in `optim`'s order.
      blocks: (generation, config) -> the possible sequences of slot blocks in that generation's flat list.
      arguments: (config, generation) -> keyword arguments of the class, its own only; config has the
        defaults in.
      defaults: generation -> the constructor's own defaults, for configs that do not spell them out.
      adjust: (arguments, names of the slots found) -> further arguments, and the slots that these arguments
        call for.
      counts: generations whose flat list holds iterations; others lose them.
      uses_count: whether the update itself depends on iterations, beside schedules.
      scalars: names of hyperparameters that TF2 object checkpoints keep as variables, beside learning_rate
        and decay.
      rounded: hyperparameters that every release casts to the variable's dtype before they act, so that in float32
        0.999 is 0.99900001287, and that matter to that precision.
    """

    name: str
    slots: tuple[SlotSpec, ...]
    blocks: Callable[[str, Config], tuple[tuple[Block, ...], ...]]
    arguments: Callable[[Config, str], dict[str, Any]]
    defaults: Callable[[str], dict[str, Any]]
    adjust: Callable[[Config, frozenset[str]], tuple[dict[str, Any], tuple[str, ...]]]
    counts: frozenset[str]
    scalars: tuple[str, ...] = ()
    rounded: tuple[str, ...] = ()
    uses_count: bool = False

    def slot(self, name: str) -> SlotSpec:
        return next(s for s in (*self.slots, AVERAGE) if s.name == name)

    def slot_of(self, source_name: str) -> str | None:
        """`optim`'s name of a slot that a source calls `source_name`, None if it has no such slot."""
        plain = source_name.lstrip("_")
        return next((s.name for s in (*self.slots, AVERAGE) if plain == s.name or plain in s.aliases), None)


AVERAGE = SlotSpec("average", ("model_variables_moving_average", "model_variables_moving_averages", "moving_average"))
"""The moving average of `use_ema`, which every algorithm may have."""

SLOT_MAJOR = frozenset({"keras1", "keras2", "keras2.3", "optimizer_v1", "optimizer_v2"})
ALWAYS_COUNTED = frozenset({"keras2.3", "optimizer_v2", "experimental", "optimizer", "keras3"})
"""Generations that store iterations for every algorithm."""
COUNTED = ALWAYS_COUNTED | {"keras1", "keras2", "optimizer_v1"}


def number(config: Config, key: str) -> float:
    """A hyperparameter as float. Raises UnsupportedError naming it if it is not a number."""
    from optim.errors import UnsupportedError

    value = config[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UnsupportedError(
            f"the optimizer's config has {key} = {value!r}, which is not a number; pass the value to use in"
            f' --optimizer-config, {{"class_name": ..., "config": {{"{key}": ...}}}}'
        )
    return float(value)


def epsilon(config: Config, generation: str) -> float:
    """Epsilon with the backend's default put in: None means 1e-7, and to OptimizerV2 zero means that, too."""
    value = config.get("epsilon")
    if value is None or (generation == "optimizer_v2" and value == 0):
        return 1e-7
    return number(config, "epsilon")
