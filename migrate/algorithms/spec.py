"""What `migrate` must know about one algorithm, as data: a new one is one file beside this and a line in
ALGORITHMS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from migrate.generations import NATIVE, NEW
from optim.rule import VARIABLE, slot_dims

Config = Mapping[str, Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class SlotSpec:
    """One slot: `optim`'s name, the names it has in sources, and whether its numbers are sums of squares.

    The first alias is the attribute of Keras 2.9's experimental optimizers, by which their lists are sorted.
    `like` says the slot's shape, see `optim.rule.slot_dims`.
    """

    name: str
    aliases: tuple[str, ...]
    nonnegative: bool = False
    like: str = VARIABLE

    def shape(self, variable: Shape) -> Shape | None:
        """Shape of the slot of a variable of that shape, None where such a variable has none."""
        dims = slot_dims(self.like, len(variable))
        return None if dims is None else tuple(variable[d] for d in dims)


@dataclass(frozen=True)
class Block:
    """A run of a flat list: for each variable in turn one array of each of these slots.

    `placeholder`: the arrays are zeros of shape (1,) that stand for a slot which is switched off.
    `factored`: Adafactor's r, c, v, of which variables below rank 2 have v alone, with nothing (`"gaps"`) or with
    scalar zeros (`"zeros"`) where r and c would be.
    """

    slots: tuple[str, ...]
    placeholder: bool = False
    factored: str | None = None


FlatOrder = tuple["str | Block", ...]
Blocks = tuple["str | Block", ...]
"""Order of a `get_weights()` list: scalars by name, and blocks."""


Versions = Mapping[str, str]
SLOT_MAJOR = NATIVE | {"optimizer_v2"}
ALWAYS_COUNTED = frozenset({"keras2.3", "optimizer_v2"}) | NEW
"""Generations that store iterations for every algorithm."""
COUNTED = ALWAYS_COUNTED | NATIVE
KERAS = NATIVE | {"optimizer_v2"} | NEW
EVERY = KERAS | {"tf1"}
KEPT, STILL = "kept", "still"


def _never(config: Config, generation: str) -> str | None:
    return None


def _no_check(config: Config, generation: str, versions: Versions) -> str | None:
    return None


def _stateless(
    arguments: Config, found: Mapping[str, float], generation: str, iterations: int
) -> tuple[dict[str, float], list[str]]:
    return {}, []


def _same_in_all(config: Config, generation: str, versions: Versions) -> tuple[dict[str, Any], tuple[str, ...]]:
    return {}, ()


def kept_with_momentum(config: Config, generation: str) -> str | None:
    """`lazy` of algorithms whose sparse kernels before 2.11 touch only the rows that have a gradient."""
    return KEPT if generation in ("optimizer_v2", "tf1") and config.get("momentum") else None


def kept(config: Config, generation: str) -> str | None:
    """As `kept_with_momentum`, whatever the momentum."""
    return KEPT if generation in ("optimizer_v2", "tf1") else None


@dataclass(frozen=True)
class Algorithm:
    """One algorithm of `optim`, as all generations know it.

    Attributes:
      name: class in `optim`, and the Keras class name.
      slots: in `optim`'s order.
      blocks: (generation, config) -> the possible sequences of slot blocks in that generation's flat list, and of
        scalars that stand among them.
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
      generations: those that have this algorithm.
      state_scalars: (`optim`'s name, names in sources) of state of the whole optimizer beside iterations.
      state: (arguments, state scalars found, generation, iterations) -> the optimizer's scalars, and notes on them.
      time_decay: whether the hyperparameter `decay` of generations before 2.11 is inverse time decay.
      lazy: (config, generation) -> what became of the rows that a sparse gradient leaves out: `"kept"`, with their
        slots, `"still"`, while their slots went on, or None, where they did what a dense gradient of zeros does.
      check: (config, generation, versions) -> why the state of some release cannot be continued, else None.
      by_release: (config, generation, versions) -> arguments that depend on the release, and the reasons why they need
        not be right.
    """

    name: str
    slots: tuple[SlotSpec, ...]
    blocks: Callable[[str, Config], tuple[Blocks, ...]]
    arguments: Callable[[Config, str], dict[str, Any]]
    defaults: Callable[[str], dict[str, Any]]
    adjust: Callable[[Config, frozenset[str]], tuple[dict[str, Any], tuple[str, ...]]]
    counts: frozenset[str]
    scalars: tuple[str, ...] = ()
    rounded: tuple[str, ...] = ()
    uses_count: bool = False
    generations: frozenset[str] = EVERY
    state_scalars: tuple[tuple[str, tuple[str, ...]], ...] = ()
    state: Callable[[Config, Mapping[str, float], str, int], tuple[dict[str, float], list[str]]] = _stateless
    time_decay: bool = True
    lazy: Callable[[Config, str], str | None] = _never
    check: Callable[[Config, str, Versions], str | None] = _no_check
    by_release: Callable[[Config, str, Versions], tuple[dict[str, Any], tuple[str, ...]]] = _same_in_all

    def slot(self, name: str) -> SlotSpec:
        return next(s for s in (*self.slots, *SHARED_SLOTS) if s.name == name)

    def slot_of(self, source_name: str) -> str | None:
        """`optim`'s name of a slot that a source calls `source_name`, None if it has no such slot."""
        plain = source_name.lstrip("_")
        return next((s.name for s in (*self.slots, *SHARED_SLOTS) if plain == s.name or plain in s.aliases), None)


AVERAGE = SlotSpec("average", ("model_variables_moving_average", "model_variables_moving_averages", "moving_average"))
"""The moving average of `use_ema`, which every algorithm may have."""
ACCUMULATED = SlotSpec("accumulated_gradient", ("accumulated_gradients", "gradient_accumulator"))
"""The sum of gradients that `gradient_accumulation_steps` gathers."""
SHARED_SLOTS = (AVERAGE, ACCUMULATED)


def number(config: Config, key: str) -> float:
    """A hyperparameter as float. Raises UnsupportedError naming it if it is not a number."""
    from optim.errors import UnsupportedError

    value = config[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UnsupportedError(
            f"the optimizer's config has {key} = {value!r}, which is not a number; pass the value to use in"
            f' --optimizer-config, {{"class_name": ..., "config": {{"{key}": ...}}}}'
        )
    try:
        return float(value)
    except OverflowError as error:
        raise UnsupportedError(f"the optimizer's config has {key} = an integer of more than 300 digits") from error


def epsilon(config: Config, generation: str) -> float:
    """Epsilon with the backend's default put in: None means 1e-7, and to OptimizerV2 zero means that, too."""
    value = config.get("epsilon")
    if value is None or (generation == "optimizer_v2" and value == 0):
        return 1e-7
    return number(config, "epsilon")
