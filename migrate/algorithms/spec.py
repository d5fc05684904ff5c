"""The data that `migrate` needs for one algorithm. To add an algorithm, write one file and a line in ALGORITHMS."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np

from migrate.bytes.arrays import LazyArray
from migrate.claims import Origin
from migrate.errors import DamagedFileError
from migrate.generations import ALWAYS, BY_SLOT, BY_VARIABLE, GENERATIONS, WITH_MOMENTUM, having, traits
from migrate.releases.table import Release
from migrate.releases.versions import Versions
from optim.rule import Rule, Slot, slot_dims
from optim.rules.powers import MULTIPLIED

Config = Mapping[str, Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class SlotSpec:
    """One slot of a rule of `optim`, and its names in sources.

    Attributes:
      slot: `optim`'s declaration.
      aliases: names in sources. The first alias is the attribute of Keras 2.9's experimental optimizers, which sort
        their lists by it.
      is_negated: whether sources keep the slot with the other sign.
      is_spread: whether sources keep one number in every element of an array with the variable's shape. `optim` keeps
        only the number.
    """

    slot: Slot
    aliases: tuple[str, ...]
    is_negated: bool = False
    is_spread: bool = False

    @property
    def name(self) -> str:
        return self.slot.name

    @property
    def nonnegative(self) -> bool:
        return self.slot.nonnegative

    def shape(self, variable: Shape) -> Shape | None:
        """Return the slot's shape for a variable of that shape, None if such a variable does not have it."""
        dims = slot_dims(self.slot.like, len(variable))
        return None if dims is None else tuple(variable[d] for d in dims)

    def for_optim(self, array: LazyArray) -> LazyArray:
        """Return what `optim` keeps for this array of a source."""
        if self.is_negated:
            return _negated(array)
        if self.is_spread:
            return LazyArray((), array.dtype, lambda: _one_number(array), f"{array.stored_as}, one element")
        return array

    def for_source(self, array: LazyArray, variable: tuple[int, ...]) -> LazyArray:
        """Return what sources keep for this array of `optim`, for a variable of that shape: undoes `for_optim`."""
        if self.is_negated:
            return _negated(array)
        if self.is_spread:
            return LazyArray(variable, array.dtype, lambda: np.full(variable, array.load()), array.stored_as)
        return array


def _negated(array: LazyArray) -> LazyArray:
    return LazyArray(array.shape, array.dtype, lambda: -array.load(), f"{array.stored_as} times -1")


def _one_number(array: LazyArray) -> np.ndarray:
    """Return the one value of all elements. Raises DamagedFileError if the elements differ."""
    values = np.asarray(array.load()).reshape(-1)
    if not values.size or np.any(values != values[0]):
        raise DamagedFileError(f"{array.stored_as} should hold one number in every element, and holds several")
    return values[0].reshape(())


def slots_of(rule: Rule, **aliases: tuple[str, ...]) -> tuple[SlotSpec, ...]:
    """Return all slots of a rule that has its options on, in its order."""
    slots = {slot.name: slot for slot in rule.slots}
    assert slots.keys() == aliases.keys(), f"{type(rule).__name__} has the slots {', '.join(slots)}"
    return tuple(SlotSpec(slot, aliases[name]) for name, slot in slots.items())


@dataclass(frozen=True)
class Block:
    """A run of a flat list: for each variable in turn, one array of each of these slots.

    Attributes:
      slots: names of the slots.
      placeholder: whether the arrays are zeros of shape (1,), which Keras stores for a slot that is switched off.
      factored: Adafactor's r, c, v. Variables below rank 2 have only v. In place of r and c they have nothing
        (`"gaps"`) or scalar zeros (`"zeros"`).
      last_of_some: whether only some variables have the last slot, see `Algorithm.has`.
    """

    slots: tuple[str, ...]
    placeholder: bool = False
    factored: str | None = None
    last_of_some: bool = False


FlatOrder = tuple["str | Block", ...]
Blocks = tuple["str | Block", ...]
"""Order of a `get_weights()` list: scalars by name, and blocks."""


State = tuple[dict[str, float], tuple[Origin, ...]]
Releases = Sequence[Release]
Adjusted = tuple[dict[str, Any], tuple[str, ...]]
ByRelease = tuple[dict[str, Any], dict[str, str]]
"""Arguments, and argument -> why it may be wrong."""
ALWAYS_COUNTED = having(lambda generation: generation.counts_always)
"""Generations that store iterations for every algorithm."""
COUNTED = having(lambda generation: generation.lists_weights)
KEPT, STILL, NEARLY, APART = "kept", "still", "nearly still", "apart"


def _never(config: Config, generation: str) -> str | None:
    return None


def _all_have(config: Config, slot: str, shape: Shape, name: str) -> bool | None:
    return True


def _no_check(config: Config, generation: str, versions: Versions) -> str | None:
    return None


def _stateless(arguments: Config, scalars: Mapping[str, float], generation: str, iterations: int) -> State:
    return {}, ()


def _not_rounded(arguments: Config, generation: str) -> dict[str, Any]:
    return {}


def rounded(*names: str) -> Callable[[Config, str], dict[str, Any]]:
    """Return `in_float32` of algorithms that cast these hyperparameters to the variable's dtype wherever they act."""
    return lambda arguments, generation: {name: float(np.float32(arguments[name])) for name in names}


def rounded_if_cast(*names: str) -> Callable[[Config, str], dict[str, Any]]:
    """Return `rounded` for generations that cast hyperparameters, and no change for the others."""
    return lambda arguments, generation: (
        rounded(*names)(arguments, generation) if traits(generation).casts_hyperparameters else {}
    )


def rounded_betas(arguments: Config, generation: str) -> dict[str, Any]:
    """Return `in_float32` of Adam and related algorithms: every Keras computes the bias corrections' powers in float32.

    `optimizers/optimizer_experimental/adam.py` 2.9, `optimizers/adam.py` 2.15 and 3.15: `1 - self.beta_2` is a Python
    float, `beta_2_power` a float32 power. Earlier releases use a float32 hyperparameter for both. tf.train multiplies
    variables at each step.
    """
    betas = rounded_if_cast("beta_1", "beta_2")(arguments, generation)
    return {"float32_powers": MULTIPLIED if traits(generation).multiplies_powers else True, **betas}


def _same_in_all(config: Config, releases: Releases) -> ByRelease:
    return {}, {}


def in_list_orders(generation: str, *slots: str) -> tuple[Blocks, ...]:
    """Return the slots in each order that lists of a generation may have."""
    blocks = {BY_SLOT: tuple(Block((slot,)) for slot in slots), BY_VARIABLE: (Block(slots),)}
    return tuple(blocks[order] for order in traits(generation).list_orders)


def kept_with_momentum(config: Config, generation: str) -> str | None:
    """Return `lazy` of algorithms whose sparse kernels before 2.11 touch only the rows that have a gradient."""
    return kept(config, generation) if config.get("momentum") else None


def kept(config: Config, generation: str) -> str | None:
    """Return `lazy` as `kept_with_momentum` does, for any momentum."""
    return KEPT if traits(generation).has_sparse_kernels else None


def custom_rows(config: Config, generation: str) -> str | None:
    """Return `lazy` of algorithms that treat such rows by a custom rule, or by no rule, in every generation."""
    return APART


@dataclass(frozen=True)
class Algorithm:
    """One algorithm of `optim`, and how every generation implements it.

    Attributes:
      name: class in `optim`, and the Keras class name.
      slots: in `optim`'s order.
      unread: slots that sources keep and no step reads. `optim` does not have these.
      blocks: (generation, config) -> the possible sequences of slot blocks and scalars in that generation's flat list.
        None if the list has all slots in each order of the generation.
      arguments: (config, generation) -> keyword arguments of the class, without those that all classes share. The
        config includes the defaults.
      defaults: generation -> the constructor's own defaults, for configs that do not contain them.
      adjust: (arguments, names of the slots found) -> further arguments, and the slots that these arguments require.
        None if these are always all slots that a step reads.
      counts: generations whose flat list holds iterations; other generations lose them.
      uses_count: whether the update itself depends on iterations, in addition to schedules.
      scalars: hyperparameters that TF2 object checkpoints keep as variables, without learning_rate and decay.
      in_float32: (arguments, generation) -> the arguments that differ for float32 variables. The generation rounds
        0.999 to 0.99900001287 before using it, in some places or in all.
      is_foreign: whether `migrate` knows only the state, and no rule.
      state_scalars: (`optim`'s name, names in sources) of state of the whole optimizer, without iterations.
      state: (arguments, state scalars found, generation, iterations) -> the optimizer's scalars, and where they
        came from.
      time_decay: whether the hyperparameter `decay` of generations before 2.11 is inverse time decay.
      lazy: (config, generation) -> what the generation does with rows that a sparse gradient leaves out.
        `"kept"`: the rows and their slots keep their values.
        `"still"`: the rows keep their values, and their slots change.
        `"nearly still"`: as `"still"`, but the slots change in a custom way.
        `"apart"`: something for which `optim` has no option.
        None: the same as for a dense gradient of zeros.
      has: (config or arguments, slot, shape and name of a variable) -> whether that variable has the slot, as far as
        its shape leaves that open; None if it is unknown.
      later: config keys of Keras 3 that its first releases with this class did not have.
      keras3_since: the first release of Keras 3 whose class of this name has the rule that targets are written for;
        empty if every release has it.
      check: (config, generation, versions) -> why the state of some release cannot be continued, else None.
      by_release: (config, releases that can have written the source) -> arguments that depend on the release, and
        argument -> why it may be wrong.
    """

    name: str
    slots: tuple[SlotSpec, ...]
    arguments: Callable[[Config, str], dict[str, Any]]
    defaults: Callable[[str], dict[str, Any]]
    blocks: Callable[[str, Config], tuple[Blocks, ...]] | None = None
    adjust: Callable[[Config, frozenset[str]], Adjusted] | None = None
    counts: frozenset[str] = ALWAYS_COUNTED
    scalars: tuple[str, ...] = ()
    in_float32: Callable[[Config, str], dict[str, Any]] = _not_rounded
    uses_count: bool = False
    is_foreign: bool = False
    unread: tuple[str, ...] = ()
    state_scalars: tuple[tuple[str, tuple[str, ...]], ...] = ()
    state: Callable[[Config, Mapping[str, float], str, int], State] = _stateless
    time_decay: bool = True
    lazy: Callable[[Config, str], str | None] = _never
    has: Callable[[Config, str, Shape, str], bool | None] = _all_have
    later: tuple[str, ...] = ()
    keras3_since: str = ""
    check: Callable[[Config, str, Versions], str | None] = _no_check
    by_release: Callable[[Config, Releases], ByRelease] = _same_in_all

    def orders(self, generation: str, config: Config) -> tuple[Blocks, ...]:
        """See `blocks`."""
        if self.blocks is not None:
            return self.blocks(generation, config)
        return in_list_orders(generation, *(slot.name for slot in self.slots))

    def wanted(self, arguments: Config, present: frozenset[str] = frozenset()) -> Adjusted:
        """See `adjust`."""
        if self.adjust is not None:
            return self.adjust(arguments, present)
        return {}, tuple(slot.name for slot in self.slots if slot.name not in self.unread)

    @cached_property
    def generations(self) -> frozenset[str]:
        """Generations that have this algorithm."""
        if self.is_foreign:
            return frozenset(GENERATIONS)
        return having(lambda generation: self.name in generation.classes | generation.others)

    @cached_property
    def elsewhere(self) -> frozenset[str]:
        """Generations in which other projects have this algorithm, and Keras itself does not."""
        return having(lambda generation: self.name in generation.others)

    def slot(self, name: str) -> SlotSpec:
        return next(s for s in (*self.slots, *SHARED_SLOTS) if s.name == name)

    def shape_of(self, slot: str, config: Config, variable: Shape, name: str) -> Shape | None:
        """Return the slot's shape for that variable; None if the variable does not have it, or if that is unknown."""
        return self.slot(slot).shape(variable) if self.has(config, slot, variable, name) else None

    def slot_of(self, source_name: str) -> str | None:
        """Return `optim`'s name of the slot called `source_name` in sources, None if no slot has that name."""
        plain = source_name.lstrip("_")
        return next((s.name for s in (*self.slots, *SHARED_SLOTS) if plain == s.name or plain in s.aliases), None)


AVERAGE = SlotSpec(
    Slot("average", unit="variable"),
    ("model_variables_moving_average", "model_variables_moving_averages", "moving_average"),
)
"""The moving average of `use_ema`, which every algorithm may have."""
ACCUMULATED = SlotSpec(Slot("accumulated_gradient", unit="gradient"), ("accumulated_gradients", "gradient_accumulator"))
"""The sum of gradients that `gradient_accumulation_steps` gathers."""
SLOW = SlotSpec(Slot("slow", unit="variable"), ("slow",))
"""The slow weights of Lookahead."""
SHARED_SLOTS = (AVERAGE, ACCUMULATED, SLOW)
LARGEST = float(np.finfo(np.float32).max)
"""The largest float32."""


def number(config: Config, key: str) -> float:
    """Return a hyperparameter as a float. Raises UnsupportedError with its name if float32 cannot hold it."""
    from optim.errors import UnsupportedError

    value = config[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UnsupportedError(
            f"the optimizer has {key} = {value!r}, which is not a number; give the value to use with --set {key}=VALUE"
        )
    if abs(value) > LARGEST and value not in (np.inf, -np.inf):
        raise UnsupportedError(
            f"the optimizer has {key} = {Decimal(value):.3g}, which float32 cannot hold; give the value to use"
            f" with --set {key}=VALUE"
        )
    return float(value)


def whole(config: Config, key: str) -> int:
    """Return a hyperparameter as an integer. Raises UnsupportedError with its name if it is not an integer."""
    from optim.errors import UnsupportedError

    value = number(config, key)
    if not value.is_integer():
        raise UnsupportedError(f"the optimizer has {key} = {value!r}, which is no whole number")
    return int(value)


def numbers(*keys: str) -> Callable[[Config, str], dict[str, Any]]:
    """Return `arguments` of algorithms that have these numbers; `epsilon` gets the backend's default."""

    def read(config: Config, generation: str) -> dict[str, Any]:
        return {key: epsilon(config, generation) if key == "epsilon" else number(config, key) for key in keys}

    return read


def constants(**values: Any) -> Callable[[str], dict[str, Any]]:
    """Return `defaults` of algorithms whose defaults are the same in every generation."""
    return lambda generation: dict(values)


def default_epsilon(generation: str) -> dict[str, float]:
    """Return the constructor's epsilon; empty for Keras 2, which changed it from 1e-8 to 1e-7 in 2.1.3."""
    value = traits(generation).epsilon
    return {} if value is None else {"epsilon": value}


def epsilon_inside(algorithm: str, generation: str, momentum: Any) -> bool:
    """Return whether RMSprop or another class adds epsilon inside the root, as the generation's Adagrad does."""
    when = traits(generation).rmsprop_epsilon_inside
    if algorithm != "RMSprop":
        return traits(generation).adagrad_epsilon_inside
    return when == ALWAYS or (when == WITH_MOMENTUM and bool(momentum))


def epsilon(config: Config, generation: str) -> float:
    """Return epsilon with the backend's default: None means 1e-7; to OptimizerV2, zero means that, too."""
    value = config.get("epsilon")
    if value is None or (traits(generation).zero_epsilon_is_default and value == 0):
        return 1e-7
    return number(config, "epsilon")
