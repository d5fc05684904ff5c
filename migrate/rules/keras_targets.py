"""Choose the optimizer class of Keras 3 or tf_keras that continues a state, its config, and the numbers in its slots.

What can be expressed exactly in another way is converted: inverse time decay becomes a schedule, a learning rate
outside of a slot is multiplied into it. `differences` finds what still differs. It becomes a reason why the class
continues the training only approximately. Formulas by release: `migrate/algorithms`, `optim/rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from migrate import algorithms
from migrate.algorithms import nadam, rates, repeated_rows
from migrate.algorithms.clipping import LIMITS
from migrate.algorithms.spec import Algorithm, epsilon_inside
from migrate.bytes.arrays import LazyArray
from migrate.claims import Origin, doubts
from migrate.generations import NEVER, traits
from migrate.releases.modules import GENERATION, MODULE, TF_KERAS, TF_KERAS_LEGACY
from migrate.rules import comparison, differences
from migrate.state import OptimizerState
from optim.errors import UnsupportedError


@dataclass(frozen=True)
class LiveClass:
    """An optimizer class and what to construct it from.

    Attributes:
      family: one of GENERATION; the class is `MODULE[family] + "." + class_name`.
      config: its constructor's arguments as JSON; a schedule is `{"class_name", "config"}` of a stock one.
      state: the state with the numbers that this class keeps in its slots, under `optim`'s slot names, and with the
        hyperparameters of `optim` that describe it. Its `reasons` are those of the source and of this conversion.
      reasons: why this class does not continue the training exactly; empty if it does.
      notes: what was converted, for the user.
    """

    family: str
    class_name: str
    config: Mapping[str, Any]
    state: OptimizerState
    reasons: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass
class _Change:
    """A state while it is converted to another class's terms."""

    state: OptimizerState
    values: dict[str, Any]
    generation: str
    reasons: list[str]
    notes: list[str]

    @property
    def rate(self) -> float | None:
        """The learning rate, None if it changes by itself."""
        rate = self.values["learning_rate"]
        return None if isinstance(rate, Mapping) or self.values.get("decay") else float(rate)

    def scale(self, slot: str, factor: float) -> None:
        owners = {name: _scaled(array, factor) for name, array in self.state.slots.get(slot, {}).items()}
        self.state = replace(self.state, slots={**self.state.slots, slot: owners} if owners else self.state.slots)

    def drop(self, slot: str, why: str) -> None:
        if slot in self.state.slots:
            self.state = replace(self.state, slots={k: v for k, v in self.state.slots.items() if k != slot})
            self.notes.append(f"slot {slot}: removed, {why}")


def has(family: str, name: str) -> bool:
    """Return whether a family has a class with an algorithm's name."""
    if not algorithms.is_known(name):
        return False
    algorithm = algorithms.find(name)
    return GENERATION[family] in algorithm.generations - algorithm.elsewhere


def live_class(state: OptimizerState, family: str) -> LiveClass:
    """Return how a class of this family continues a state.

    Raises:
      UnsupportedError: the family does not have the algorithm, or its class cannot hold the state.
    """
    if not has(family, state.algorithm):
        raise UnsupportedError(f"{MODULE[family]} has no {state.algorithm}")
    algorithm, generation = algorithms.find(state.algorithm), GENERATION[family]
    change = _Change(state, dict(state.hyperparameters), generation, [], [])
    for convert in (_slots_with_rate, _warm_up, _time_decay, _limits, _epsilon, _nadam, _idle_slots, _options):
        convert(change, algorithm)
    config = _config(change.values, algorithm, generation)
    changed = replace(change.state, hyperparameters=change.values)
    rule_reasons = differences.differences(changed, algorithm, generation, config)
    reasons = (*change.reasons, *rule_reasons, *_defects(changed, algorithm, family))
    changed = replace(
        changed, origins=(*_origins(state, algorithm, family), *doubts(f"rule of {MODULE[family]}", reasons))
    )
    return LiveClass(family, algorithm.name, config, changed, reasons, tuple(change.notes))


def best(state: OptimizerState, families: Sequence[str]) -> LiveClass:
    """Return the class that continues a state most exactly; if several are equal, that of the first family.

    Raises:
      UnsupportedError: no family can; the message has each one's reason.
    """
    live_classes, problems = [], []
    for family in families:
        try:
            live_classes.append(live_class(state, family))
        except UnsupportedError as error:
            problems.append(str(error))
    if not live_classes:
        raise UnsupportedError("; ".join(dict.fromkeys(problems)))
    return min(live_classes, key=lambda live: len(live.reasons))


def initial_value(state: OptimizerState, slot: str) -> float:
    """Return the initial value of a slot. Not for `average`: that starts as the variable."""
    values = state.hyperparameters
    if slot == "accumulator":
        return float(values.get("initial_accumulator_value") or 0.0)
    if slot == "velocity":
        return float(values.get("initial_velocity") or 0.0)
    return 0.0


def _scaled(array: LazyArray, factor: float) -> LazyArray:
    if array.dtype == "bfloat16":
        raise UnsupportedError("slots in bfloat16 cannot be multiplied by the learning rate without loss")

    def load() -> np.ndarray:
        return (array.load().astype(np.float64) * factor).astype(array.dtype)

    return LazyArray(array.shape, array.dtype, load, f"{array.stored_as} times {factor:.9g}")


def _slots_with_rate(change: _Change, algorithm: Algorithm) -> None:
    """Convert slots that differ by the learning rate.

    tf.train's momentum and RMSprop of 2.9 keep it out of the slot, TF 2.4's Ftrl with shrinkage keeps it in. Other
    slots do not differ.
    """
    if change.values.get("learning_rate_in_momentum") is False:
        slot, sign = comparison.MOMENTA[algorithm.name]
        if slot in change.state.slots and change.values.get("momentum"):
            _multiply(change, slot, lambda rate: sign * rate)
        change.values["learning_rate_in_momentum"] = True
    if change.values.get("learning_rate_in_linear"):
        _multiply(change, "linear", lambda rate: 1.0 / rate)
        change.values["learning_rate_in_linear"] = False


def _multiply(change: _Change, slot: str, factor: Callable[[float], float]) -> None:
    if change.rate is None:
        raise UnsupportedError(
            f"the slot {slot} relates to the learning rate in another way in the target, and the rate changes"
            " from step to step, so no slot of the target continues it. Give a constant rate with --set"
            " learning_rate=VALUE, or migrate to slots"
        )
    if change.rate == 0.0:
        raise UnsupportedError(f"the slot {slot} would have to be converted by the learning rate, which is 0")
    change.scale(slot, factor(change.rate))
    change.notes.append(
        f"slot {slot}: multiplied by {factor(change.rate):.9g}, because the target applies the learning rate"
        f" ({change.rate:.9g}) at another place; right as long as you do not change that rate"
    )


def _warm_up(change: _Change, algorithm: Algorithm) -> None:
    """Make a warm-up before CosineDecay one of its arguments."""
    rate = change.values.get("learning_rate")
    keras_rate = rates.in_keras(rate)
    if keras_rate is not rate:
        change.values["learning_rate"] = keras_rate
        change.notes.append(
            "LinearWarmup around CosineDecay: written as CosineDecay with warmup_steps, which is the same"
        )


def _time_decay(change: _Change, algorithm: Algorithm) -> None:
    """Convert lr / (1 + decay * iterations) to InverseTimeDecay with decay_steps=1, for classes without `decay`."""
    decay = change.values.get("decay")
    if not decay or traits(change.generation).has_time_decay or not algorithm.time_decay:
        return
    rate = change.values["learning_rate"]
    if isinstance(rate, Mapping):
        raise UnsupportedError("it has a learning rate schedule and decay, and classes from 2.11 on have no decay")
    change.values["learning_rate"] = comparison.time_decay(rate, decay)
    change.values["decay"] = None
    change.notes.append(f"decay {decay:.9g}: migrated as the schedule InverseTimeDecay, which is the same")


def _limits(change: _Change, algorithm: Algorithm) -> None:
    """Convert gradient limits: classes from 2.11 on clip in only one way, legacy classes take one limit of the norm."""
    limits = [key for key in LIMITS if change.values.get(key)]
    left_out = (
        limits[1:]
        if traits(change.generation).has_averages
        else limits[:2][1:]
        if {"clipnorm", "global_clipnorm"} <= set(limits)
        else []
    )
    for key in left_out:
        change.reasons.append(f"{key} and {limits[0]} are both set, and the class accepts only one: {key} is removed")
        change.values[key] = None


def _epsilon(change: _Change, algorithm: Algorithm) -> None:
    """Move epsilon to the side of the root that the class has.

    sqrt(a) + e and sqrt(a + e) are different rules except for e = 0; e squared keeps the least denominator.
    """
    inside = change.values.get("epsilon_inside")
    epsilon = change.values.get("epsilon")
    if inside is None or epsilon is None:
        return
    there = _inside(change, algorithm)
    if inside == there:
        return
    if epsilon:
        converted = comparison.nearest_epsilon(epsilon, inside=bool(inside))
        how = ("sqrt(a) + epsilon", "sqrt(a + epsilon)")
        change.reasons.append(
            f"epsilon: the source divides by {how[bool(inside)]}, the class by {how[there]}; epsilon {converted:.3g}"
            f" for {epsilon:.3g} keeps the smallest denominator, and steps differ by up to a factor of 1.42 where the"
            " root is about as small as epsilon"
        )
        change.values["epsilon"] = converted
    change.values["epsilon_inside"] = there


def _inside(change: _Change, algorithm: Algorithm) -> bool:
    """Return whether the class has epsilon inside the root."""
    return epsilon_inside(algorithm.name, change.generation, change.values.get("momentum"))


def _nadam(change: _Change, algorithm: Algorithm) -> None:
    """Set schedule_decay to 1, as Nadam has it from 2.11 on; the product of momenta follows from it."""
    if algorithm.name != "Nadam":
        return
    if traits(change.generation).has_schedule_decay:
        if isinstance(change.values["learning_rate"], Mapping):
            raise UnsupportedError(f"{MODULE[TF_KERAS_LEGACY]}.Nadam does not accept a learning rate schedule")
        return
    decay = float(change.values.get("schedule_decay", 1.0))
    if decay == 1.0:
        return
    steps, beta = change.state.iterations, change.values["beta_1"]
    now, there = (1 - 0.5 * 0.96 ** (d * (steps + 1)) for d in (decay, 1.0))
    change.reasons.append(
        f"the momentum schedule of Nadam has schedule_decay {decay:g} in the source and 1 in the class: the next step's"
        f" momentum is {beta * now:.4f} in the source and {beta * there:.4f} there"
    )
    change.values["schedule_decay"] = 1.0
    product = nadam.product(beta, 1.0, steps)
    change.state = replace(change.state, scalars={**change.state.scalars, nadam.PRODUCT: product})


def _idle_slots(change: _Change, algorithm: Algorithm) -> None:
    """Remove slots that are kept although momentum is 0: no later step depends on them."""
    if change.values.get("momentum"):
        return
    if algorithm.name == "SGD" and traits(change.generation).sgd_momentum == NEVER:
        change.drop("m", "as momentum is 0 and no step reads it")
    if algorithm.name == "RMSprop":
        change.drop("momentum", "as momentum is 0 and no step reads it")


def _options(change: _Change, algorithm: Algorithm) -> None:
    """Convert options that not every family has."""
    values, generation = change.values, change.generation
    if values.get("stacks"):
        raise UnsupportedError(
            "Keras 3.13 and later have another Muon, with another rule and other slots than 3.10 to 3.12"
        )
    for option, slot in (("lookahead", "slow"), ("stochastic_average", "average")):
        if values.get(option):
            change.drop(slot, f"because no class there has {option}")
    if values.get("weight_decay") and values.get("learning_rate_in_weight_decay") is False:
        raise UnsupportedError(
            "weight decay does not scale with the learning rate, and the rate changes from step to step."
            " Classes of the target multiply weight_decay by the rate, so no number of it is the same"
        )
    if comparison.counts_steps(values):
        raise UnsupportedError(
            "with gradient_accumulation_steps the schedule or the averages count real steps here, and calls in Keras 3"
        )
    if values.get("gradient_accumulation_steps") and not traits(generation).accumulates_gradients:
        raise UnsupportedError("it accumulates gradients over several batches, which tf_keras cannot do")
    if traits(generation).has_averages:
        return
    if algorithm.name == "Adagrad" and isinstance(values["learning_rate"], Mapping):
        raise UnsupportedError(f"{MODULE[TF_KERAS_LEGACY]}.Adagrad does not read a schedule from a file")
    lacking = [key for key in ("use_ema", "weight_decay") if values.get(key)]
    if lacking:
        raise UnsupportedError(f"{MODULE[TF_KERAS_LEGACY]} does not have {' and '.join(lacking)}")


def _config(values: Mapping[str, Any], algorithm: Algorithm, generation: str) -> dict[str, Any]:
    """Return the constructor's arguments of a class of that generation."""
    defaults = algorithm.defaults(generation)
    config = {key: values.get(key, default) for key, default in defaults.items()}
    config |= {key: values[key] for key in LIMITS if values.get(key)}
    config |= {key: values.get(key) for key in algorithm.later}
    if traits(generation).has_time_decay:
        config["decay"] = values.get("decay") or 0.0
        if algorithm.name == "Nadam":  # its config contains `decay`, and its constructor reads only `schedule_decay`
            config["decay"] = config["schedule_decay"]
        return config
    config["weight_decay"] = values.get("weight_decay")
    if values.get("use_ema"):
        keys = ("use_ema", "ema_momentum", "ema_overwrite_frequency")
        config |= {key: values[key] for key in keys if values.get(key) is not None}
    if traits(generation).accumulates_gradients and values.get("gradient_accumulation_steps"):
        config["gradient_accumulation_steps"] = int(values["gradient_accumulation_steps"])
    return config


def _defects(state: OptimizerState, algorithm: Algorithm, family: str) -> list[str]:
    """Return what a class does differently from its own documentation."""
    if algorithm.name == "Nadam" and family == TF_KERAS:
        return [
            "tf_keras.optimizers.Nadam multiplies its momentum product once per variable inside fit, and does not save"
            " it"
        ]
    if algorithm.name == "ScheduleFreeAdamW":
        return [
            "keras.optimizers.ScheduleFreeAdamW averages the new z on TensorFlow and PyTorch and the old one"
            " on JAX, so the target continues the same on one of them only"
        ]
    return []


def _origins(state: OptimizerState, algorithm: Algorithm, family: str) -> list[Origin]:
    """Return the source's origins, without warnings about repeated rows that the class treats the same."""
    generation = GENERATION[family]
    theirs = repeated_rows.done(generation, algorithm, state.hyperparameters, differences.versions(state, generation))
    alike = repeated_rows.is_alike(state, algorithm, theirs)
    return [o for o in state.origins if not (alike and o.subject == repeated_rows.REPEATED and not o.certain)]
