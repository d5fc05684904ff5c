"""Combine class and config of the optimizer from the file, its graph and the user.

A hint adds what the source does not show. A value in two of them must be the same in both: else one of them is wrong
and nothing shows which, and the error shows both values. Only `--set` overrides, on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from migrate import algorithms
from migrate.algorithms import addons, foreign, keras_config, keras_packages, patterns, tf_train, wrappers
from migrate.algorithms.clipping import LIMITS
from migrate.algorithms.configuration import Configuration
from migrate.algorithms.spec import Algorithm
from migrate.bytes.arrays import LazyArray
from migrate.bytes.messages import BRIEF, brief, some
from migrate.claims import DEFAULT, FILE, GRAPH, HINT, RELEASE, SET, UNINTERPRETED, Origin, confirming
from migrate.errors import ContradictionError
from migrate.evidence import builtin_classes
from migrate.evidence.user_input import exclusive
from migrate.generations import traits
from migrate.matching.slot_table import COUNTERS
from migrate.rules.comparison import same
from migrate.state import Stored
from optim.errors import HyperparameterError, UnsupportedError

CLASS, GENERATION = "class_name", "generation"
RATES = ("learning_rate", "_learning_rate", "lr")
"""Names of the variable that holds the learning rate."""
SCHEDULE = """--set 'learning_rate={"class_name": CLASS, "config": {...}}'"""
OPTIONS = {
    "clipnorm": "gradients were clipped",
    "decay": "the learning rate decayed",
    "weight_decay": "weights decayed",
    "use_ema": "averages of the weights were kept",
    "gradient_accumulation_steps": "gradients were accumulated",
}
PROVEN_BY_SLOTS = ("amsgrad", "centered")


@dataclass
class _Side:
    """What one side specifies: class, config under Keras's names, and the name of that side."""

    class_name: str
    called: str
    """The class name of that side: GradientDescentOptimizer and MomentumOptimizer are both SGD."""
    config: dict[str, Any]
    kind: str
    where: str
    raw: Mapping[str, Any]
    """The config in the form of that side."""
    doubt: str = ""
    """Warning: why the class may have another rule."""


def configure(stored: Stored, hint: Mapping[str, Any] | None, overrides: Mapping[str, Any]) -> Configuration:
    """Return class and config of a source whose generation is known.

    Raises:
      ContradictionError: two sides specify different values. UnsupportedError: a class that is not one of Keras.
    """
    assert stored.generation is not None
    own_rule = bool(overrides.get(foreign.OWN_RULE))
    user_class = str(overrides.get(CLASS) or "")
    sides = [side for side in _sides(stored, hint, user_class, own_rule) if side.class_name or side.config]
    class_name, origin = _class(stored, sides, overrides)
    config, origins = _merged(sides, [v.name for v in stored.variables])
    overrides = _as_stored(dict(overrides), class_name, stored.generation)
    if own_rule:
        algorithm = foreign.algorithm(class_name, {**config, **overrides}, stored)
        origin = replace(origin, doubt=foreign.doubt(algorithm.name), confirm="")
    else:
        algorithm = algorithms.find(class_name)
        origin = _checked(origin, sides, algorithm, stored.generation)
        for key, number in _kept(stored, algorithm, origin.value, config).items():
            config[key], origins[key] = number, Origin(key, number, FILE, f"the variable {key} of the optimizer")
    for key, value in overrides.items():
        if key not in (CLASS, GENERATION, foreign.OWN_RULE):
            value = wrappers.numbers(key, value) if key in wrappers.AROUND and value else value
            if key == "learning_rate" and value is None:
                raise HyperparameterError("learning_rate must be a number or a schedule, got None")
            config[key] = value
            origins[key] = Origin(key, value, SET, _contradiction(origins.get(key), value))
    config = {key: value for key, value in config.items() if key not in overrides or value is not None}
    exclusive.check_given(config, overrides, stored.generation)
    full, defaulted = keras_config.completed(config, algorithm, stored.generation)
    for key in (k for k in defaulted if k not in overrides or full[k] is not None):  # else the user set it to None
        origins[key] = _default(key, full, algorithm, stored, origin.value)
    if not full.get(addons.CORRECTED, True):
        algorithm = replace(algorithm, uses_count=False)
    document = stored.optimizer_config or hint
    for key, wrapper_origin in wrappers.origins(document, stored.optimizer_config is not None).items():
        if key not in overrides:
            full[key], origins[key] = wrapper_origin.value, wrapper_origin
    changes = isinstance(full["learning_rate"], Mapping) or bool(full.get("decay"))
    wrappers.check_nested(document, full, algorithm.uses_count or changes)
    open_options = [
        *_open(stored, sides, full, algorithm, origins),
        *_hidden(origin, stored.generation, {**full, **overrides}),
        *_unfound(stored, sides, overrides),
    ]
    changing = addons.rate_doubt(str(origin.value), full["learning_rate"])
    if changing and origins["learning_rate"].kind != SET:
        open_options.append(Origin("learning_rate", full["learning_rate"], DEFAULT, doubt=changing))
    open_options += [Origin(n, None, UNINTERPRETED, doubt=text) for n, text in wrappers.doubts(document).items()]
    wrapper_names = wrappers.unwrapped(document)[1]
    hinted = next((_typed(side, user_class, stored.generation) for side in sides if side.kind == HINT), {})
    notes = wrappers.idle_limits(document) if document is not None else ()
    stated = (origin, *open_options)
    return Configuration(algorithm, full, origins, wrapper_names, overrides, stated, hinted, tuple(notes))


def _kept(stored: Stored, algorithm: Algorithm, called: str, config: Mapping[str, Any]) -> dict[str, float]:
    """Return hyperparameters that the source keeps as variables and that are in no config.

    Others may depend on them, as `nesterov` does on `momentum`.
    """
    decayed = {addons.PER_STEP: 0.0} if called.rpartition(">")[2] in addons.DECAYED else {}
    numbers: dict[str, float] = {}
    for name, array in (*stored.scalars.items(), *_beside_counter(stored)):
        key = "learning_rate" if name in RATES else addons.setting(name.lstrip("_"), {**config, **decayed})
        if array.shape == () and key not in config and key in keras_config.kept_as_variables(algorithm):
            numbers[key] = array.number()
    return numbers


def _beside_counter(stored: Stored) -> list[tuple[str, LazyArray]]:
    """Return a list's variables with names like its counter's, `training/SGD/iter`. They are not slots of scalars."""
    weights = {name.removesuffix(":0"): array for name, array in stored.weights or ()}
    counter = next((name for name in weights if name.rpartition("/")[2] in COUNTERS), "")
    scope = counter.rpartition("/")[0]
    return [(n.rpartition("/")[2], array) for n, array in weights.items() if scope and n.rpartition("/")[0] == scope]


def _sides(stored: Stored, hint: Mapping[str, Any] | None, user_class: str, own_rule: bool) -> list[_Side]:
    """Return the sides. `user_class`: the class that the user also specifies; a config without a class gets it."""
    named: tuple[tuple[Mapping[str, Any] | None, str, str], ...] = (
        (stored.optimizer_config, FILE, "the optimizer's config in the source"),
        (stored.graph_config, GRAPH, "the source's graph"),
        (hint, HINT, "--optimizer-config"),
        ({"config": {}} if user_class else None, SET, f"--set class_name={user_class}"),
    )
    sides, names = [], [v.name for v in stored.variables]
    for document, kind, where in named:
        if document is None:
            continue
        inner = addons.as_registered(wrappers.innermost(document))
        if kind in (FILE, HINT) and not own_rule:
            says_package = kind == FILE and stored.format in ("h5", "saved_model")  # .keras may contain only `adam`
            layers = wrappers.layers(document)
            for wrapper in layers[:-1]:
                if wrappers.plain(str(wrapper.get(CLASS))) in wrappers.LOSS_SCALE:  # no wrapper of Keras has a package
                    builtin_classes.check(wrapper, None)
            builtin_classes.check(inner, stored.generation if says_package else None)
            keras_packages.check_wrappers(layers)
        inner_config = inner.get("config")
        raw = inner_config if isinstance(inner_config, Mapping) else {}
        class_name, config = str(inner.get(CLASS) or ""), wrappers.with_limits(document, raw)
        called, generation, doubt = class_name.rpartition(".")[2], stored.generation or "", ""
        if not own_rule:
            doubt = keras_packages.doubt(called, config, generation)
            packaged = keras_packages.as_keras(called, config, generation, names)
            keras_class, config = packaged or addons.as_keras(
                class_name or user_class, config, generation, kind == FILE, user_class
            )
            if traits(generation).has_tf_train_names:
                keras_class, config = tf_train.keras_style(keras_class, config)
            class_name = keras_class if class_name else ""
        if "lr" in config:
            _check_one_rate(config, where)
            config.setdefault("learning_rate", config.pop("lr"))
        config = _as_stored(config, class_name, stored.generation)
        sides.append(_Side(class_name, called, config, kind, where, raw, doubt))
    return sides


def _typed(side: _Side, user_class: str, generation: str) -> dict[str, Any]:
    """Return what a side specifies, without the options that its class implies."""
    added = addons.implied(side.called or user_class, side.class_name == user_class, generation)
    return {key: value for key, value in side.config.items() if key not in added}


def _as_stored(config: dict[str, Any], class_name: str, generation: str | None) -> dict[str, Any]:
    """Return the config with Nadam's `schedule_decay` as `decay`, its name in OptimizerV2's config and variable."""
    key = traits(generation).schedule_decay_key
    if key in ("schedule_decay", None) or "schedule_decay" not in config or _plain(class_name) != "Nadam":
        return config
    if not same(config["schedule_decay"], config.get("decay", config["schedule_decay"])):
        raise ContradictionError(
            f"schedule_decay is {config['schedule_decay']!r} and decay is {config['decay']!r}, which are the same"
            " setting in Nadam of these releases. Remove the wrong one"
        )
    rest = {key: value for key, value in config.items() if key != "schedule_decay"}
    return {**rest, "decay": config["schedule_decay"]}


def _check_one_rate(config: Mapping[str, Any], where: str) -> None:
    """Refuse a config with both `lr` and `learning_rate`.

    Keras called the learning rate `lr` before 2.3; no release writes both names.
    """
    if not same(config["lr"], config.get("learning_rate", config["lr"])):
        raise ContradictionError(
            f"lr is {config['lr']!r} and learning_rate is {config['learning_rate']!r} in {where}; remove the wrong"
            " one, or save the source again if it has both"
        )


def _class(stored: Stored, sides: list[_Side], overrides: Mapping[str, Any]) -> tuple[str, Origin]:
    if CLASS in overrides:
        called = str(overrides[CLASS])
        generation = stored.generation or ""
        name = keras_packages.inner(called, generation) or addons.as_keras(called, {}, generation)[0]
        if stored.traits.has_tf_train_names:
            name, _ = tf_train.keras_style(name, {})
        if not overrides.get(foreign.OWN_RULE):
            _check_known(sides, name, called)
        others = ", ".join(f"{side.where} has {side.class_name}" for side in sides if side.class_name)
        return name, Origin("optimizer", called, SET, others)
    class_sides = [side for side in sides if side.class_name]
    first = class_sides[0]
    doubt, confirm = addons.doubt(first.called, stored.generation or "", first.kind == FILE, first.class_name)
    if first.doubt:
        doubt, confirm = first.doubt, confirming(CLASS, first.called)
    for other in class_sides[1:]:
        own_rule = {addons.BERT} & {first.called, other.called}  # Keras's Adam has this name, and another rule
        if _plain(first.class_name) != _plain(other.class_name) or (own_rule and first.called != other.called):
            names = (first.called, other.called) if own_rule else (first.class_name, other.class_name)
            raise ContradictionError(
                f"{first.where} specifies {names[0]}, and {other.where} specifies {names[1]}. Remove the wrong one,"
                f" or override with {confirming(CLASS, names[0] if own_rule else _plain(names[0]))}; for a new"
                " optimizer add --weights-only"
            )
    if first.kind == GRAPH and stored.traits.has_keras1_layers and len(class_sides) == 1:
        doubt = f"updates in the graph read the same variables as {first.called}, which a custom class may do, too"
        confirm = confirming(CLASS, first.called)
    return first.class_name, Origin("optimizer", first.called, first.kind, first.where, doubt, confirm)


def _check_known(sides: Sequence[_Side], name: str, called: str) -> None:
    """Refuse to read slots of one class with a known rule as those of another, whose slots have another meaning."""
    known_sides = (
        side for side in sides if side.kind in (FILE, GRAPH) and algorithms.is_known(_plain(side.class_name))
    )
    first = next(known_sides, None)
    if first is not None and algorithms.is_known(_plain(name)) and _plain(name) != _plain(first.class_name):
        raise ContradictionError(
            f"{first.where} specifies {first.called}, and {confirming(CLASS, called)} is another class, whose slots"
            " hold other values. Remove it, or reset the optimizer with --weights-only"
        )


def _checked(origin: Origin, sides: Sequence[_Side], algorithm: Algorithm, generation: str) -> Origin:
    """Return the class's origin, with a warning if its config has what no Keras class of that name ever saved."""
    if origin.kind != FILE or origin.doubt:
        return origin
    strange = keras_config.unheard_of(sides[0].raw, sides[0].config, algorithm, generation)
    if not strange:
        return origin
    doubt = (
        f"the config has {some(strange)}, which {origin.value} has in no release: it may be another class of that name"
    )
    return replace(origin, doubt=doubt, confirm=confirming(CLASS, str(origin.value)))


def _plain(class_name: str) -> str:
    """Return the class name without its package; `algorithms.find` knows the rest."""
    plain = class_name.rpartition(">")[2]
    try:
        return algorithms.find(plain).name
    except UnsupportedError:
        return plain


def _merged(sides: list[_Side], names: list[str]) -> tuple[dict[str, Any], dict[str, Origin]]:
    """Return all settings of all sides, the file's own first. `names` are those of the variables."""
    config: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for side in sides:
        for key, value in side.config.items():
            if key not in config:
                config[key], origins[key] = value, Origin(key, value, side.kind, side.where)
            elif key == addons.EXCLUDED and patterns.choose_alike(config[key], value, names):
                continue
            elif key == "epsilon" and value is None and origins[key].kind == GRAPH:
                continue  # None means the backend's default, and the graph has its number
            elif key not in keras_config.NO_EFFECT and not _agree(config[key], value):
                decide = confirming(key, config[key])
                raise ContradictionError(
                    f"{key} is {brief(config[key])} in {origins[key].where} and {brief(value)} in {side.where}."
                    " Remove the wrong one, or override with"
                    f" {decide if len(decide) < BRIEF else f'--set {key}=VALUE'}"
                )
    return config, origins


def _agree(one: Any, other: Any) -> bool:
    """Return whether two sides agree. A number may be what a schedule begins with."""
    for schedule, number in ((one, other), (other, one)):
        if isinstance(schedule, Mapping) and isinstance(number, (int, float)):
            inner = schedule.get("config")
            return isinstance(inner, Mapping) and same(inner.get("initial_learning_rate"), number)
    return same(one, other)


def _contradiction(origin: Origin | None, value: Any) -> str:
    """Return a text on what was overridden."""
    if origin is None or same(origin.value, value):
        return ""
    return f"overrides {origin.value!r} of {origin.where}"


def _default(key: str, config: Mapping[str, Any], algorithm: Algorithm, stored: Stored, class_name: str) -> Origin:
    value, generation = config[key], stored.generation or ""
    why = keras_config.only_value(key, algorithm, generation, class_name, config)
    if why:
        return Origin(key, value, RELEASE, why)
    where = f"the default of {algorithm.name} in generation {generation}"
    if key in stored.effects.settings:
        doubt = f"{key}: {stored.effects.settings[key]}, which dtopt does not understand; it assumes {value!r}, {where}"
        return Origin(key, value, DEFAULT, where, doubt=doubt, confirm=confirms(key, key in stored.effects.moving))
    return Origin(key, value, DEFAULT, where, confirm=confirming(key, value))


def confirms(key: str, moving: bool) -> str:
    """Return how to set a hyperparameter that the graph computes. If steps change it, no number is right."""
    return f"--set {key}=VALUE" if not moving else SCHEDULE if key == "learning_rate" else ""


def _open(
    stored: Stored, sides: list[_Side], config: Mapping[str, Any], algorithm: Algorithm, origins: Mapping[str, Origin]
) -> list[Origin]:
    """Return the options that no side names: off if a whole config would name them, else assumed to be off."""
    generation = stored.generation or ""
    keys = {*config, *origins}
    every = all if traits(generation).has_averages else any  # configs from 2.9 on name all three
    named = (keys - set(LIMITS)) | ({LIMITS[0]} if every(k in keys for k in LIMITS) or _decided(origins) else set())
    named |= {LIMITS[0]} if stored.effects.clipping or stored.effects.gradients else set()  # another warning covers it
    options = [n for n in traits(generation).options if n != "decay" or algorithm.time_decay]
    missing = [name for name in options if name not in named]
    whole = next((s for s in sides if s.kind != GRAPH and _is_whole(s, algorithm, generation, config)), None)
    if traits(generation).counts_in_program and stored.graph_seen:
        return [Origin(n, None, GRAPH, "the graph has nothing before the optimizer") for n in missing]
    if whole is not None and traits(generation).omits_unused_limits:
        missing = ["decay"] if "decay" in missing and keras_config.always_says_decay(algorithm, generation) else []
        named_elsewhere = [name for name in options if name not in named and name not in missing]
        off = [Origin(name, None, whole.kind, f"{whole.where} names it where it is used") for name in named_elsewhere]
        return [*off, *(_unsaid(name) for name in missing)]
    return [_unsaid(name) for name in missing]


def _decided(origins: Mapping[str, Origin]) -> bool:
    """Return whether the user or the graph specifies how gradients are clipped."""
    return any(key in origins and origins[key].kind in (SET, GRAPH) for key in LIMITS)


def _unsaid(name: str) -> Origin:
    text = f"the source does not show whether {OPTIONS[name]}; dtopt assumes not"
    return Origin(name, None, DEFAULT, doubt=text, confirm=confirming(name, None))


def _hidden(origin: Origin, generation: str, config: Mapping[str, Any]) -> list[Origin]:
    """Return options of a class that no source of it holds."""
    texts = addons.hidden(str(origin.value), generation).items()
    open_ones = {n: text for n, text in texts if not {n, *(LIMITS if n in LIMITS else ())} & config.keys()}
    return [Origin(n, None, DEFAULT, doubt=text, confirm=confirming(n, None)) for n, text in open_ones.items()]


def _unfound(stored: Stored, sides: Sequence[_Side], overrides: Mapping[str, Any]) -> list[Origin]:
    """Return weights that a config lets decay by name, and that have another name in the source."""
    variables = [v.name for v in stored.variables]
    names = list(dict.fromkeys(name for side in sides for name in keras_packages.unfound(side.raw, variables)))
    if not names or keras_config.EXCLUDED in overrides:
        return []
    text = f"weight_decays names {some(names)}, and no variable is called so"
    confirm = confirming(keras_config.EXCLUDED, [])
    return [Origin(keras_config.EXCLUDED, None, UNINTERPRETED, doubt=text, confirm=confirm)]


def _is_whole(side: _Side, algorithm: Algorithm, generation: str, config: Mapping[str, Any]) -> bool:
    """Return whether a side has a whole `get_config()`, and not only a part of it."""
    wanted = [
        key
        for key in algorithm.defaults(generation)
        if key not in PROVEN_BY_SLOTS and not keras_config.only_value(key, algorithm, generation, side.called, config)
    ]
    return bool(side.config) and all(key in side.config for key in wanted)
