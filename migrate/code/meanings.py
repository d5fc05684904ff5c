"""Translate a constructor call of an old release into keyword arguments of `optim`, with the tables for checkpoints.

An argument may be any expression. A number represents such a value in `migrate.algorithms.keras_config`, and is found
again in the result. If the result depends on the value itself, both cases are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from migrate import algorithms, claims
from migrate.algorithms import keras_config, tf_train
from migrate.algorithms.clipping import LIMITS
from migrate.algorithms.spec import Algorithm
from migrate.code import signatures
from migrate.code.releases import Release
from migrate.errors import MissingHintError
from migrate.generations import WITH_MOMENTUM, traits
from migrate.releases.table import RELEASES
from migrate.releases.versions import UNKNOWN, Versions
from optim.errors import DtoptError, UnsupportedError

OPAQUE = object()
"""The value of an expression that is not a literal."""
FLAGS = ("nesterov", "centered", "amsgrad", "use_ema")
ACCUMULATED = "gradient_accumulation_steps"
EARLY_ACCUMULATION = "counted every batch as a step and clipped each gradient separately"
FIRST_STAND_IN, STAND_IN_STEP = 0.31415926, 1e-7


@dataclass(frozen=True)
class Value:
    """An argument's source text, and its value if it is a literal."""

    text: str
    literal: Any = OPAQUE

    @property
    def known(self) -> bool:
        return self.literal is not OPAQUE

    @staticmethod
    def of(literal: Any) -> Value:
        return Value(repr(literal), literal)


@dataclass(frozen=True)
class Old:
    """An old optimizer class: its key in the signatures, its algorithm, and the package whose release counts.

    `generation`: for classes whose rule does not depend on the release, such as those of `tf.train`.
    """

    module: str
    name: str
    algorithm: str
    package: str
    generation: str | None = None

    @property
    def is_tf_train(self) -> bool:
        return traits(self.generation).has_tf_train_names


@dataclass(frozen=True)
class Meaning:
    """`arguments` are those of the class `algorithm` of `optim`, with defaults of the old release written out.

    `origin`: argument -> its name in the program. `reasons`: why it may not be exact. `notes`: further remarks.
    """

    algorithm: str
    arguments: Mapping[str, Value]
    origin: Mapping[str, str]
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lazy: bool = False
    """Whether the old class does not change rows without a gradient."""


@dataclass
class _Config:
    """The arguments by Keras's names. `names`: those names -> the program's. `ignored`: arguments without effect."""

    values: dict[str, Value] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)


def of(old: Old, arguments: Mapping[str, Value], release: Release) -> Meaning:
    """Return the meaning of a call.

    Args:
      arguments: by their old names.

    Raises:
      DtoptError: the target lacks it; the message explains why in the program's terms.
    """
    generation = old.generation or release.generation
    algorithm = algorithms.find(old.algorithm)
    if generation not in algorithm.generations:
        raise UnsupportedError(f"{release} has no {old.algorithm}")
    config = _config(old, arguments, generation)
    for key in [k for k, v in config.values.items() if k in FLAGS and not v.known]:
        _same_both_ways(config, key, (True, False), algorithm, generation, old, release)
    momentum = config.values.get("momentum")
    decides_epsilon = old.algorithm == "RMSprop" and traits(generation).rmsprop_epsilon_inside == WITH_MOMENTUM
    if momentum is not None and not momentum.known and decides_epsilon:
        _same_both_ways(config, "momentum", (0.0, FIRST_STAND_IN), algorithm, generation, old, release)
    values, reasons, notes, lazy = _evaluated(config, algorithm, generation, old, release)
    origin = {key: config.names[_source_key(key, config.names)] for key in values if _source_key(key, config.names)}
    notes += [f"{name}={arguments[name].text} had no effect there and is removed" for name in config.ignored]
    return Meaning(algorithm.name, values, origin, tuple(reasons), tuple(notes), lazy)


def _config(old: Old, arguments: Mapping[str, Value], generation: str) -> _Config:
    config = _Config()
    for name, value in arguments.items():
        key = name
        if _is_ignored(name, old.algorithm, generation):
            config.ignored.append(name)
            continue
        if old.is_tf_train:
            _, renamed = tf_train.keras_style(old.name, {name: None})
            if not renamed:
                continue  # no effect on the result
            key = next(iter(renamed))
        elif name == "lr":
            key = "learning_rate"
        elif name == "schedule_decay":
            key = traits(generation).schedule_decay_key
        if key in config.values:
            raise UnsupportedError(f"{config.names[key]} and {name} are both given, which are one argument")
        config.values[key], config.names[key] = value, name
    return config


def _is_ignored(name: str, algorithm: str, generation: str) -> bool:
    """Whether a class takes an argument without effect."""
    ignored = {("amsgrad", "SGD"), *traits(generation).ignored}
    return not ignored.isdisjoint({(name, algorithm), (name, "")})


def _source_key(key: str, names: Mapping[str, str]) -> str:
    for candidate in (key, {"global_clipnorm": "clipnorm", "schedule_decay": "decay"}.get(key, key)):
        if candidate in names:
            return candidate
    return ""


def _evaluated(
    config: _Config, algorithm: Algorithm, generation: str, old: Old, release: Release
) -> tuple[dict[str, Value], list[str], list[str], bool]:
    plain, stand_ins = _plain(config)
    _fill_epsilon(plain, algorithm, generation, old, release)
    full, _ = keras_config.completed(plain, algorithm, generation)
    versions = release.versions if old.generation is None or _has(release, old.generation) else UNKNOWN
    problem = algorithm.check(full, generation, versions)
    if problem:
        raise UnsupportedError(problem)
    accumulated = _accumulated(full, config, versions)
    translation = keras_config.arguments(full, {}, algorithm, generation, versions, ())
    values = {}
    for key, number in translation.values.items():
        if key == "name" and "name" not in plain:
            continue
        source = _source_key(key, config.names)
        argument = config.values.get(source)
        if isinstance(number, float) and number in stand_ins:
            values[key] = config.values[stand_ins[number]]
        elif argument is not None and _is_given_as_text(argument, key, number):
            values[key] = argument
        else:
            values[key] = Value.of(number)
    doubts = []
    if accumulated is not None:
        values[ACCUMULATED] = accumulated
        doubts = [] if versions.keras else [f"if it ran with Keras before 3.5, that {EARLY_ACCUMULATION}"]
    lazy = algorithm.lazy(full, generation) is not None
    shown = (o for o in translation.origins.values() if o.subject not in (keras_config.EXCLUDED, *LIMITS))
    idle = [o.doubt for o in translation.origins.values() if o.subject in LIMITS and o.doubt]
    return values, [*claims.reasons(shown), *doubts], [*translation.warnings, *idle], lazy


def _has(release: Release, generation: str) -> bool:
    """Whether a TensorFlow has the optimizers of a generation. A rewritten file may name older ones too."""
    number = release.versions.tensorflow_number
    return number is not None and any(r.generation == generation and r.tensorflow == number[:2] for r in RELEASES)


def _accumulated(full: dict[str, Any], config: _Config, versions: Versions) -> Value | None:
    """Take the number of calls per step out of the config: unlike a checkpoint, a new start can do it."""
    steps = config.values.get(ACCUMULATED)
    if steps is None or (steps.known and (steps.literal or 1) <= 1):
        return None
    if (versions.keras_number or (3, 5)) < (3, 5):
        raise UnsupportedError(f"with {ACCUMULATED} Keras before 3.5 {EARLY_ACCUMULATION}, and optim counts real steps")
    full.pop(ACCUMULATED)
    return steps


def _is_given_as_text(argument: Value, key: str, result: Any) -> bool:
    if not argument.known:
        return key in FLAGS
    return argument.literal is not None and bool(argument.literal == result)


def _plain(config: _Config) -> tuple[dict[str, Any], dict[float, str]]:
    """The config as JSON values, and which number represents which key."""
    plain, stand_ins = {}, {}
    for index, (key, value) in enumerate(config.values.items()):
        if value.known:
            plain[key] = value.literal
        elif key in FLAGS:
            plain[key] = True
        elif key != "name":
            plain[key] = FIRST_STAND_IN + index * STAND_IN_STEP
            stand_ins[plain[key]] = key
        else:
            plain[key] = key
    if config.values.get("name") and not config.values["name"].known:
        plain.pop("name")
    return plain, stand_ins


def _fill_epsilon(plain: dict[str, Any], algorithm: Algorithm, generation: str, old: Old, release: Release) -> None:
    if not traits(generation).epsilon_changed or "epsilon" in plain:
        return
    if not any(s.nonnegative for s in algorithm.slots):
        return
    signature = signatures.of(old.module, old.name, release.version, generation)
    default = signatures.NOTHING if signature is None else signature.default("epsilon")
    if default is signatures.NOTHING:
        raise MissingHintError(f"the default of epsilon in {release} is not known: give epsilon in the call")
    plain["epsilon"] = default


def _same_both_ways(
    config: _Config, key: str, cases: tuple[Any, Any], algorithm: Algorithm, generation: str, old: Old, release: Release
) -> None:
    results = []
    for case in cases:
        values = {**config.values, key: Value(config.values[key].text, case)}
        new_values, *_ = _evaluated(_Config(values, config.names), algorithm, generation, old, release)
        results.append({k: v.text for k, v in new_values.items() if k != key})
    if results[0] != results[1]:
        changed = sorted(k for k in {*results[0], *results[1]} if results[0].get(k) != results[1].get(k))
        raise UnsupportedError(
            f"what it computes depends on the value of {key} ({config.values[key].text}): {', '.join(changed)} differ;"
            f" write {key} as a literal, or write a call for each case"
        )


def old_config(old: Old, arguments: Mapping[str, Value], release: Release) -> dict[str, Any]:
    """Return the optimizer's config as its release would have stored it, with defaults written out.

    Raises UnsupportedError if an argument is not a literal.
    """
    generation = old.generation or release.generation
    algorithm = algorithms.find(old.algorithm)
    config = _config(old, arguments, generation)
    open_ends = [f"{config.names[k]}={v.text}" for k, v in config.values.items() if not v.known and k != "name"]
    if open_ends:
        raise UnsupportedError(
            f"{', '.join(open_ends)} is not a literal, so its value is not in the code: give --optimizer-config"
        )
    plain, _ = _plain(config)
    _fill_epsilon(plain, algorithm, generation, old, release)
    return keras_config.completed(plain, algorithm, generation)[0]


def combined(
    meaning: Meaning, algorithm: str, extra_arguments: Mapping[str, Value], origin: Mapping[str, str]
) -> Meaning:
    """Return the meaning with another class and further arguments."""
    return replace(
        meaning,
        algorithm=algorithm,
        arguments={**meaning.arguments, **extra_arguments},
        origin={**meaning.origin, **origin},
    )


__all__ = ["OPAQUE", "DtoptError", "Meaning", "Old", "Value", "combined", "of"]
