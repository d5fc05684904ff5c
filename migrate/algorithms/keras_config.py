"""Convert a config of any generation to the `optim` class and arguments that continue the same training.

This module has what every algorithm shares: learning rate and its decay, clipping, averaging, weight decay. What only
one algorithm has is in `algorithms/`. Rules by release: TF 1.4 - 2.21 and Keras 1.2.2 - 3.15, each run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from migrate.algorithms import clipping, rates, tf_train
from migrate.algorithms.addons import AVERAGED, CORRECTED, EXCLUDED, LAZY, NESTEROV, PER_RATE, PER_STEP
from migrate.algorithms.arguments import Arguments
from migrate.algorithms.spec import Algorithm, Releases, number, whole
from migrate.algorithms.wrappers import AROUND, plain
from migrate.claims import COMPUTED, DEFAULT, FILE, HINT, RELEASE, SET, UNINTERPRETED, Origin, confirming
from migrate.errors import ContradictionError, MissingHintError
from migrate.facts.clipping import IGNORES, OF_DTENSOR
from migrate.facts.steps import ACCUMULATION, BATCHES
from migrate.generations import GENERATIONS, having, traits
from migrate.releases.narrowing import candidates
from migrate.releases.versions import Versions
from optim.arguments import patterns
from optim.errors import UnsupportedError

NO_EFFECT = {"name", "iterations", "jit_compile", "is_legacy_optimizer", "loss_scale_factor", "foreach", "fused"}
"""Config keys that do not change how state is used."""
LAZY_ROWS = "lazy_rows"
"""A key of `optim` that --optimizer-config may have if a source cannot contain it."""
OWN = ("repeated_rows", LAZY_ROWS, EXCLUDED, PER_STEP, PER_RATE, AVERAGED, LAZY)
"""Such keys, and those that `addons` uses for settings with another name in other projects."""
SHARED = {
    "learning_rate",
    "lr",
    "decay",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
    "weight_decay",
    "gradient_accumulation_steps",
}
MAY_BE_OFF = ("decay", "weight_decay", "ema_overwrite_frequency", "gradient_accumulation_steps", PER_STEP, PER_RATE)
SWITCHES = ("use_ema", LAZY, CORRECTED, NESTEROV, "learning_rate_in_linear", "new_delta_in_step")
"""Options that are true or false, in addition to the boolean ones among an algorithm's defaults."""
HAVE = {
    **dict.fromkeys(
        ("use_ema", "ema_momentum", "ema_overwrite_frequency", "weight_decay"), having(lambda g: g.has_averages)
    ),
    "gradient_accumulation_steps": having(lambda g: g.accumulates_gradients),
    "decay": having(lambda g: g.ignores_decay),
}
"""SHARED options -> the generations that understand them even if `migrate` does not convert them there."""


def completed(config: Mapping[str, Any], algorithm: Algorithm, generation: str) -> tuple[dict[str, Any], list[str]]:
    """Return a config with `lr` renamed and the generation's constructor defaults added, and the names of these."""
    full = {key: value for key, value in config.items() if key != "lr"}
    if "lr" in config:
        full.setdefault("learning_rate", config["lr"])
    defaults = algorithm.defaults(generation)
    defaults |= {} if config.get(CORRECTED, True) else {"epsilon": 1e-6}  # BERT's default
    if full.get("use_ema") and full.get("ema_momentum") is None:
        full.pop("ema_momentum", None)
        defaults |= {"ema_momentum": 0.99}  # the default of every release that has averages
    if full.get("use_ema") and traits(generation).has_averages:
        defaults |= {"ema_overwrite_frequency": None}
    added = [key for key in defaults if key not in full]
    full = {**{key: defaults[key] for key in added}, **full}
    if "learning_rate" not in full:
        raise MissingHintError(
            f"the source does not contain the learning rate, and {algorithm.name} of generation {generation}"
            " has no default. Give it with --set learning_rate=VALUE"
        )
    if traits(generation).epsilon is None and "epsilon" not in full and any(s.nonnegative for s in algorithm.slots):
        raise MissingHintError(
            "the optimizer config has no 'epsilon', and the default changed from 1e-8 to 1e-7 in Keras 2.1.3."
            " Choose with --set epsilon=1e-08 or --set epsilon=1e-07"
        )
    return full, added


PROGRAMS_OWN = ("epsilon_inside", "learning_rate_in_momentum")
"""Variants of rules that no Keras config contains. A graph shows them if a program wrote its own optimizer."""


def arguments(
    config: Mapping[str, Any],
    scalars: Mapping[str, float],
    algorithm: Algorithm,
    generation: str,
    versions: Versions,
    dtypes: Collection[str],
    origins: Mapping[str, Origin] | None = None,
) -> Arguments:
    """Return the keyword arguments for `optim`'s class of this algorithm.

    Args:
      config: as `completed` returns it.
      scalars: hyperparameters that the source keeps as variables. They are newer than the config and win.
      versions: of the software that wrote the source, as far as known; `keras` decides about clipping.
      dtypes: of the slots, or of the trained variables if there are no slots.
      origins: where each value of `config` comes from; None if all of it is in the source.
    """
    out = Arguments(origins=dict(origins or {}))
    current, of = _with_scalars(config, scalars, algorithm, out), traits(generation)
    _check_switches(current, algorithm, generation)
    out.values["name"] = str(config.get("name") or algorithm.name)
    _rate(current["learning_rate"], generation, out)
    out.values.update(algorithm.arguments(current, generation))
    out.values.update({key: current[key] for key in PROGRAMS_OWN if key in current})
    releases = candidates(generation, versions)
    more, doubts = algorithm.by_release(current, releases)
    out.values.update(more)
    for subject, text in doubts.items():
        confirm = confirming(subject, out.values.get(subject) or False)
        out.doubt(subject, text, confirm=confirm)
    if not algorithm.time_decay:
        pass
    elif of.has_time_decay:
        if number(current, "decay") if "decay" in current else 0.0:
            out.values["decay"] = number(current, "decay")
    elif current.get("decay") and of.ignores_decay:
        out.warnings.append("decay is set, which Keras 3 accepts and ignores: removed, because it had no effect")
    if OF_DTENSOR.may_be(IGNORES, releases):
        current = clipping.as_dtensor(current, OF_DTENSOR.of(releases) == IGNORES, out)
    clipping.put_in(current, releases, out)
    if of.has_averages:
        _averaging(current, out, versions.backend)
    elif current.get(AVERAGED):
        out.values |= {"use_ema": True, "ema_momentum": number(current, AVERAGED)}
    out.values |= {key: current[key] for key in AROUND if current.get(key)}
    _check_decay(current)
    if any(number(current, key) for key in (PER_RATE, PER_STEP) if key in current):
        _foreign_decay(current, generation, out)
    if of.accumulates_gradients:
        _accumulation(current, releases, out)
    if set(dtypes) == {"float32"}:
        out.values.update(algorithm.in_float32(out.values, generation))
    _say_what_is_left(current, algorithm, generation, out)
    _name_the_rest(current, generation, out)
    return out


def only_value(key: str, algorithm: Algorithm, generation: str, class_name: str, config: Mapping[str, Any]) -> str:
    """Return why a config without a key leaves nothing open; empty if another value is possible.

    Args:
      class_name: the class name in the source.
    """
    if key == "initial_accumulator_value":
        return "only slots that do not exist yet start with it"
    if key == "nesterov" and not config.get("momentum"):
        return "it has no effect without momentum"
    if traits(generation).has_tf_train_names and key not in tf_train.ARGUMENTS.get(class_name, ()):
        return f"{algorithm.name} of tf.train does not have this argument" if class_name in tf_train.ARGUMENTS else ""
    if key == "schedule_decay" and "decay" in config:
        return "its config calls it decay"
    lacking = key == "relative_step" or key in traits(generation).unsaved or lacks(key, algorithm, generation)
    return f"{algorithm.name} of that release does not have this argument" if lacking else ""


def lacks(key: str, algorithm: Algorithm, generation: str) -> bool:
    """Return whether no release of a generation has an argument that `optim` has with its own default."""
    of, is_rmsprop = traits(generation), algorithm.name == "RMSprop"
    lacking = {
        "learning_rate": algorithm.name == "COCOB",
        "amsgrad": not of.has_amsgrad,
        "momentum": is_rmsprop and not of.rmsprop_has_momentum,
        NESTEROV: algorithm.name == "Adam" and not of.has_tf_train_names,
        "centered": not of.rmsprop_has_momentum,
    }
    return generation in GENERATIONS and lacking.get(key, False)


def always_says_decay(algorithm: Algorithm, generation: str) -> bool:
    """Return whether `get_config` of that class names `decay` even if it is 0."""
    return algorithm.time_decay and not traits(generation).has_averages


def _name_the_rest(config: Mapping[str, Any], generation: str, out: Arguments) -> None:
    """Add an origin for each value: that of its config key, else the generation's own rule."""
    source_keys = {"global_clipnorm": "clipnorm", "schedule_decay": "decay"}
    for key, value in out.values.items():
        if key == "name" or (key in out.origins and out.origins[key].doubt):
            continue
        other = source_keys.get(key, "")
        origin = out.origins.get(key) or out.origins.get(other)
        if origin is not None and origin.kind == DEFAULT and other == "decay" and other in config:
            origin = out.origins.get(other)  # Nadam of OptimizerV2 uses this name, and keeps it as a variable
        kind, where = (FILE, "its config") if key in config else (RELEASE, f"the rule of generation {generation}")
        out.origins[key] = replace(origin, subject=key, value=value) if origin else Origin(key, value, kind, where)


def kept_as_variables(algorithm: Algorithm) -> tuple[str, ...]:
    """Return config keys that TF2 object checkpoints may also hold as variables."""
    return ("learning_rate", "decay", PER_STEP, PER_RATE, *algorithm.scalars)


def _with_scalars(
    config: Mapping[str, Any], scalars: Mapping[str, float], algorithm: Algorithm, out: Arguments
) -> dict[str, Any]:
    current = dict(config)
    for key in kept_as_variables(algorithm):
        if key not in scalars or (key == "learning_rate" and isinstance(config.get(key), Mapping)):
            continue
        stored, config_value = scalars[key], config.get(key)
        current[key] = stored
        origin = out.origins.get(key)
        if origin is not None and origin.kind == SET:
            current[key] = config_value
            continue
        if origin is not None and origin.kind in (HINT, FILE) and not same_number(config_value, stored):
            left, other = "the release writes both at once, so ", ""
            if key == "decay":  # `_decayed_lr` of `optimizer_v2.py`; both are equal until a program sets it
                left, other = "TF 2.5 and later use the value of get_config(), so ", f" or {confirming(key, stored)}"
            elif origin.kind == HINT:
                left = "remove it there, or "
            raise ContradictionError(
                f"{key} is {stored:.9g} in the checkpoint and {config_value!r} in {origin.where}; {left}override with"
                f" {confirming(key, config_value)}{other}"
            )
        out.origins[key] = Origin(key, stored, FILE, f"the variable {key} of the optimizer")
    return current


def same_number(a: Any, b: Any) -> bool:
    """Return whether two hyperparameters are equal in float32."""
    if not all(isinstance(x, (int, float)) for x in (a, b)):
        return False
    return bool(abs(a - b) <= 1e-6 * max(abs(a), abs(b)))


def _rate(value: Any, generation: str, out: Arguments) -> None:
    rate, assumed = rates.read(value, generation)
    out.values["learning_rate"] = rate
    if assumed:
        out.doubt("learning_rate", assumed, confirm=confirming("learning_rate", rate))
    if isinstance(rate, dict) and rates.is_own(rate):
        name = plain(str(rate["class_name"]))
        out.warnings.append(
            f"the learning rate is {name}, a custom schedule, and the source contains only its arguments. Pass"
            f" the object when you load: optim.load_checkpoint(..., learning_rate={name}(...))"
        )


def _check_switches(config: Mapping[str, Any], algorithm: Algorithm, generation: str) -> None:
    """Refuse values that are neither true nor false: Python would read any text as true."""
    switches = [*SWITCHES, *(key for key, value in algorithm.defaults(generation).items() if isinstance(value, bool))]
    for key in switches:
        if config.get(key) not in (None, False, True):
            raise UnsupportedError(
                f"the optimizer has {key} = {config[key]!r}, which is neither true nor false. Choose with"
                f" --set {key}=true or --set {key}=false"
            )
    for key in (*clipping.LIMITS, *MAY_BE_OFF):
        if not config.get(key) and config.get(key) not in (None, False):
            number(config, key)  # an empty text or object is not a valid "off"


def _averaging(config: Mapping[str, Any], out: Arguments, backend: str | None) -> None:
    """Add EMA and weight decay, which 2.9 and later have. `backend`: of Keras 3."""
    if config.get("use_ema"):
        out.values["use_ema"] = True
        out.values["ema_momentum"] = number(config, "ema_momentum")
        if config.get("ema_overwrite_frequency"):
            out.values["ema_overwrite_frequency"] = whole(config, "ema_overwrite_frequency")
        elif config.get("ema_overwrite_frequency") == 0 and "jax" in (backend or ""):
            every_step, never = (confirming("ema_overwrite_frequency", frequency) for frequency in (1, None))
            text = (
                "ema_overwrite_frequency is 0: on JAX, Keras then replaces the weights by their averages at"
                " each step, on other backends never"
            )
            out.doubt("ema_overwrite_frequency", text, confirm=f"{every_step} or, on PyTorch, {never}")
    if config.get("weight_decay"):
        out.values["weight_decay"] = number(config, "weight_decay")
    if config.get("weight_decay") or out.values.get("adam_weight_decay"):
        _exclusions(config, out)


def _check_decay(config: Mapping[str, Any]) -> None:
    """Refuse a schedule of weight decay: no single number continues it."""
    decay = config.get(PER_STEP)
    if isinstance(decay, Mapping):
        raise UnsupportedError(
            f"weight decay follows a schedule, {decay.get('class_name')}, and optim's weight_decay is a"
            f" number. If the schedule has reached its last value, give it with --set {PER_STEP}=VALUE; if not,"
            " migrate the state for a custom rule with --set own_rule=true"
        )


def _foreign_decay(config: Mapping[str, Any], generation: str, out: Arguments) -> None:
    """Add the weight decay of classes that are not Keras's own, see `addons`."""
    rate, decay = out.values["learning_rate"], config.get(PER_STEP)
    if not decay:
        out.values["weight_decay"] = number(config, PER_RATE)
    elif isinstance(rate, Mapping) or out.values.get("decay") or not rate:
        out.values |= {"weight_decay": number(config, PER_STEP), "learning_rate_in_weight_decay": False}
    else:
        out.values["weight_decay"] = number(config, PER_STEP) / float(rate)
        out.warnings.append(
            "weight decay does not scale with the learning rate: migrated as weight_decay divided by the"
            " rate, because optim multiplies by the rate. If you change the rate, change both"
        )
    _exclusions(config, out)
    if traits(generation).counts_in_program and config.get(CORRECTED, True):
        text = "weights decay while gradients are computed, and the order of ops decides whether the gradients see it"
        out.doubt("weight_decay", f"tf.contrib.opt: {text}", COMPUTED)


def _exclusions(config: Mapping[str, Any], out: Arguments) -> None:
    """Add the exclusions from weight decay. No release saves the arguments of exclude_from_weight_decay."""
    if EXCLUDED not in config:
        out.doubt(
            EXCLUDED,
            "weight_decay is set, but files do not contain the variables given to exclude_from_weight_decay:"
            " the target applies it to all variables",
            confirm=confirming(EXCLUDED, []),
        )
        return
    out.values[EXCLUDED] = list(patterns(EXCLUDED, config[EXCLUDED]))


def check_accumulation(config: Mapping[str, Any], releases: Releases) -> int | None:
    """Return how many batches make a step of Keras 3, None if each does. 3.5 and later clip the mean.

    Raises:
      UnsupportedError: a release before 3.5, whose steps `optim` does not implement.
    """
    if not config.get("gradient_accumulation_steps"):
        return None
    steps = whole(config, "gradient_accumulation_steps")
    if steps <= 1:
        return None
    if ACCUMULATION.of(releases) == BATCHES:
        raise UnsupportedError(
            f"gradient_accumulation_steps is {steps}: Keras before 3.5 counts every batch as a step and clips each"
            " gradient alone. Save right after an update, with gradient_accumulation_steps=None"
        )
    return steps


def _accumulation(config: Mapping[str, Any], releases: Releases, out: Arguments) -> None:
    steps = check_accumulation(config, releases)
    if steps is None:
        return
    out.values["gradient_accumulation_steps"] = steps
    if isinstance(config.get("learning_rate"), Mapping) or config.get("use_ema"):
        out.values["count_calls"] = True  # Keras passes this count to schedules, and moves averages by it
    out.doubt_fact(ACCUMULATION, releases, f"{ACCUMULATION.subject} is set", steps)


def _known(algorithm: Algorithm, generation: str) -> set[str]:
    """Return config keys that `migrate` converts, or that change nothing."""
    known = SHARED - {name for name, had in HAVE.items() if generation not in had}
    known |= (
        set() if algorithm.time_decay or traits(generation).has_averages else {"decay"}
    )  # another decay, or without effect
    known |= NO_EFFECT | set(algorithm.defaults(generation)) | set(algorithm.scalars) | {"epsilon", *OWN}
    return known | {name for name, _ in algorithm.state_scalars}


def unheard_of(
    stored: Mapping[str, Any], config: Mapping[str, Any], algorithm: Algorithm, generation: str
) -> list[str]:
    """Return options that no class of that name ever saved and that a source has off, or that only `optim` has.

    Args:
      stored: as the source has it. config: under Keras's names.
    """
    heard = _known(algorithm, generation) | SHARED | {"adam_weight_decay"}
    off = [key for key, value in config.items() if key not in heard and value in (None, False, 0, 0.0)]
    return off + [key for key in (*OWN, CORRECTED) if key in stored and key not in off]


def _say_what_is_left(config: Mapping[str, Any], algorithm: Algorithm, generation: str, out: Arguments) -> None:
    known = _known(algorithm, generation)
    for key, value in config.items():
        origin = out.origins.get(key)
        if origin is not None and origin.kind == SET:
            continue  # `user_input.used` checks those
        lacking = origin is not None and origin.kind == FILE and lacks(key, algorithm, generation)
        had = (key in known or key in out.values) and not lacking
        if had or value in (None, False, 0, 0.0) or (origin is not None and origin.doubt):
            continue
        does = "of that release does not have" if lacking else "does not migrate"
        text = f"the config has an option that {algorithm.name} {does}: {key} = {value!r}"
        out.doubt(key, text, UNINTERPRETED)
