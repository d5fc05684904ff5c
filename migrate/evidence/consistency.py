"""Find what the state proves or contradicts, from names, slots, and hyperparameters kept as variables."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from migrate.algorithms import ALGORITHMS, addons, keras_config, keras_packages, tf_train
from migrate.algorithms.clipping import LIMITS
from migrate.algorithms.configuration import Configuration
from migrate.algorithms.spec import Algorithm
from migrate.bytes.arrays import LazyArray
from migrate.bytes.messages import some
from migrate.claims import DEFAULT, FILE, GRAPH, HINT, RELEASE, SET, Origin, confirming
from migrate.errors import ContradictionError, MissingHintError
from migrate.evidence.configuration import CLASS, PROVEN_BY_SLOTS, SCHEDULE
from migrate.generations import ALWAYS, NEVER, traits
from migrate.matching.slot_table import SlotTable
from migrate.state import Stored, StoredVariable

SWITCHES = {"vhat": ("amsgrad", False), "average_gradient": ("centered", False), "average": ("use_ema", False)}
"""Slot -> the option that it depends on, and that option's value if the slot is missing."""
MOMENTUM = {"SGD": "m", "RMSprop": "momentum", "LARS": "m"}
HYPERPARAMETERS = {name for algorithm in ALGORITHMS for name in algorithm.scalars}
STATES = {alias for a in ALGORITHMS for name, aliases in a.state_scalars for alias in (name, *aliases)}


def check_config(stored: Stored, configuration: Configuration) -> None:
    """Compare the class with its config: names and arguments that only other classes have.

    Raises:
      ContradictionError: the config is that of another class.
    """
    generation = stored.generation or ""
    if not stored.traits.has_configs or CLASS in configuration.overrides or configuration.algorithm not in ALGORITHMS:
        return
    _check_release(stored, configuration)
    _check_limits(stored, configuration)
    mine, arguments = configuration.algorithm, set(configuration.algorithm.defaults(generation))
    others = [a for a in ALGORITHMS if a.name != mine.name and generation in a.generations]
    keys = [
        key
        for key, origin in configuration.origins.items()
        if origin.kind in (FILE, HINT) and key in configuration.config
    ]
    for key in keys:
        owners = [a.name for a in others if key in a.defaults(generation)]
        if owners and key not in arguments and key not in SHARED:
            origin = configuration.class_origin
            raise ContradictionError(
                f"{origin.where} specifies {origin.value} and has {key}, which {mine.name} does not have and"
                f" {', '.join(owners)} {'have' if len(owners) > 1 else 'has'}, so this looks like another class's"
                f" config. Remove {key}, or override with {confirming(CLASS, origin.value)}"
            )


OWN = ("SGD", "RMSprop", "Adagrad", "Adadelta", "Adam", "Adamax", "Nadam")
"""Classes that Keras has had in every generation."""


def _check_release(stored: Stored, configuration: Configuration) -> None:
    """Compare a file's config with its generation: a name and `learning_rate` came with OptimizerV2.

    Raises:
      ContradictionError: the config is that of another release's file.
    """
    document = stored.optimizer_config or {}
    class_name, config = document.get("class_name"), document.get("config")
    if class_name not in OWN or not isinstance(config, Mapping) or "generation" in configuration.overrides:
        return
    is_named, is_native = "name" in config, stored.traits.is_native
    if (is_named and is_native) or ("lr" in config and not is_named and not is_native):
        key = "name" if is_named else "lr"
        raise ContradictionError(
            f"the optimizer's config has {key}, which no {class_name} of generation {stored.generation} saves: it is"
            f" from another release. Copy the file again, or override with {confirming(CLASS, class_name)}"
        )


def _check_limits(stored: Stored, configuration: Configuration) -> None:
    """Compare gradient limits and averages in a hint with the source's own config.

    Before Keras 2.9, a whole config, with its wrappers, contains each limit that is set, and no other.

    Raises:
      ContradictionError: the source does not have the limit.
    """
    whole = (
        configuration.origins[key].kind in (FILE, RELEASE)
        for key in configuration.algorithm.defaults(stored.generation or "")
    )
    if stored.optimizer_config is None or stored.traits.has_averages or not all(whole):
        return
    for key in (*LIMITS, addons.AVERAGED):
        value = configuration.config.get(key)
        if value and (origin := configuration.origins[key]).kind == HINT:
            raise ContradictionError(
                f"{key} is {value!r} in {origin.where}, and the optimizer's config in the source does not have it,"
                f" although it would if it was set. Remove it, or override with {confirming(key, value)}"
            )


_SAID_APART = (
    *(keras_config.EXCLUDED, keras_config.LAZY_ROWS, keras_config.PER_STEP, keras_config.PER_RATE),
    *(keras_config.AVERAGED, keras_config.LAZY),
)
SHARED = frozenset({*keras_config.SHARED, *keras_config.NO_EFFECT, *_SAID_APART, "epsilon", "beta"})
"""Arguments that classes take in addition to their own."""


def with_slots(stored: Stored, configuration: Configuration, table: SlotTable) -> Configuration:
    """Resolve from the slots what the source does not show.

    Raises:
      ContradictionError: momentum is 0, and there are slots of it.
    """
    present, is_native = {slot for slot, _ in table.pairs}, stored.traits.is_native
    for slot, (option, off) in SWITCHES.items():
        if slot not in present and (present or not configuration.algorithm.slots):
            configuration = _resolved(configuration, option, off, f"the source keeps no slot {slot}")
        elif slot in present and not is_native and option in PROVEN_BY_SLOTS and _is_assumed(configuration, option):
            configuration = configuration.with_origin(Origin(option, True, FILE, f"the source keeps the slot {slot}"))
    if present and "accumulated_gradient" not in present:
        why = "the source keeps no sums of gradients"
        configuration = _resolved(configuration, "gradient_accumulation_steps", None, why)
    momentum = MOMENTUM.get(configuration.algorithm.name)
    if momentum is None:
        return configuration
    if momentum not in present and stored.variables and not is_native:
        configuration = _resolved(configuration, "momentum", 0.0, "the source keeps no slot of momentum")
        configuration = _resolved(configuration, "nesterov", False, "without momentum it does nothing")
    if momentum in present and not configuration.config.get("momentum"):
        return _idle(stored, configuration, [array for (name, _), array in table.pairs.items() if name == momentum])
    return configuration


def check_slow(
    slow: Mapping[str, LazyArray], variables: Sequence[StoredVariable], ahead: Mapping[str, Any] | None, steps: int
) -> None:
    """Compare Lookahead's period with its slow weights, which equal the variables right after a synchronization.

    Raises:
      ContradictionError: they are equal when they should not be, or differ when they should be equal.
    """
    if not ahead or not slow or not steps:
        return
    owners = {v.name: v.array for v in variables}
    arrays = [(array, owners.get(name)) for name, array in slow.items()]
    along = all(variable is not None and np.array_equal(array.load(), variable.load()) for array, variable in arrays)
    due = steps % ahead["sync_period"] == 0
    if along != due and all(variable is not None for _, variable in arrays):
        raise ContradictionError(
            f"sync_period of Lookahead is {ahead['sync_period']}, and after {steps} steps the slow weights"
            f" {'are' if along else 'are not'} the variables, which they would {'be' if due else 'not be'}; one of"
            " the two numbers is wrong"
        )


def _is_assumed(configuration: Configuration, option: str) -> bool:
    known = configuration.origins.get(option)
    return known is not None and known.kind == DEFAULT


def _resolved(configuration: Configuration, option: str, off: Any, why: str) -> Configuration:
    """Return the configuration with an assumption that the source proves."""

    def proven(origin: Origin) -> Origin:
        return replace(origin, kind=FILE, where=why, doubt="", confirm="")

    origins = dict(configuration.origins)
    known = origins.get(option)
    if known is not None and known.kind == DEFAULT and not configuration.config.get(option):
        origins[option] = proven(known)
    claims = (proven(o) if o.subject == option and o.kind == DEFAULT else o for o in configuration.claims)
    return replace(configuration, origins=origins, claims=tuple(claims))


def _idle(stored: Stored, configuration: Configuration, arrays: Sequence[LazyArray]) -> Configuration:
    """Check slots of momentum that no step reads: some releases keep them anyway.

    From 2.11 on, SGD of Keras 2 creates and updates them whatever `momentum` is (`optimizers/sgd.py` 2.11, `build`; not
    2.9 and 2.10). They therefore do not contradict a hint, and the source's own config holds. A graph shows the kernel
    of MomentumOptimizer, which updates them even with a momentum of 0.
    """
    of, name = stored.traits, configuration.algorithm.name
    is_kept = of.keeps_idle_momentum or (of.rmsprop_keeps_momentum and name == "RMSprop")
    known = configuration.origins["momentum"]
    moved = name == "SGD" and of.sgd_momentum != NEVER
    if is_kept or known.kind in (SET, GRAPH) or (moved and of.sgd_momentum == ALWAYS and known.kind == FILE):
        return configuration
    if of.builds_for_all and not any(np.any(a.load()) for a in arrays):
        return configuration
    if moved and known.kind == HINT:
        doubt = "momentum is 0 in the hint, and the source has slots of momentum, as TF 2.11 and later always have"
        return configuration.with_origin(replace(known, doubt=doubt, confirm=confirming("momentum", 0.0)))
    unknown = stored.effects.settings.get("momentum")
    if known.kind == DEFAULT:
        keeps = ", as that release does also without momentum, and" if moved else ", and"
        why = f"{unknown}, which dtopt does not understand" if unknown else "nothing shows how much momentum there is"
        raise MissingHintError(
            f"the source keeps slots of momentum ({arrays[0].stored_as}, ...){keeps} {why}. Set it with --set"
            " momentum=VALUE"
        )
    raise ContradictionError(
        f"momentum is 0 ({known.where}), and the source keeps slots of momentum ({arrays[0].stored_as}, ...): it was"
        " changed later, or one of the two is from another run. Set the momentum to continue with: --set"
        " momentum=VALUE, which may be 0"
    )


def check_foreign(stored: Stored, key: str, name: str, algorithm: Algorithm) -> None:
    """Refuse a class that lacks a hyperparameter or a state in the source."""
    if key in HYPERPARAMETERS or name in STATES:
        owners = [a.name for a in ALGORITHMS if key in a.scalars or any(name in (n, *x) for n, x in a.state_scalars)]
        decayed = name == "weight_decay" and stored.traits.is_extended_by_addons
        owners += [c for c in addons.DECAYED if c not in tf_train.ARGUMENTS] if decayed else []
        raise ContradictionError(
            f"the source keeps {name}, which {algorithm.name} does not have; {', '.join(owners)}"
            f" {'have' if len(owners) > 1 else 'has'} it, so the class is wrong"
        )


def check_kept(stored: Stored, configuration: Configuration, kept: Collection[str]) -> None:
    """Compare the class with the hyperparameters that OptimizerV2 keeps as variables: all of its class, or nothing.

    Raises:
      ContradictionError: only those of another class are there.
    """
    called, generation = configuration.called, stored.generation or ""
    if (
        not traits(generation).registers_addons
        or not kept
        or configuration.algorithm.is_foreign
        or keras_packages.inner(called, generation)
    ):
        return
    decayed = [addons.PER_STEP] if called.rpartition(">")[2] in (*addons.DECAYED, addons.EXTENDED) else []
    known_settings = {
        *kept,
        "beta",
        *(key for key, origin in configuration.origins.items() if origin.kind not in (HINT, DEFAULT)),
    }
    lacking = [
        key for key in (*configuration.algorithm.scalars, *decayed) if key not in known_settings
    ]  # beta came with TF 2.5
    if lacking:
        raise ContradictionError(
            f"the source keeps {some(sorted(kept))} as variables, and no {some(lacking)}, as {called} of generation"
            f" {generation} does with them: the class is wrong. If it is right, add --set {lacking[0]}=VALUE"
        )


CURRENT = "_current_learning_rate"
"""The variable in which optimizers from TF 2.9 on keep the current value of a schedule."""


def with_rate(stored: Stored, configuration: Configuration, kept: Mapping[str, float]) -> Configuration:
    """Compare the user's rate, or the default, with the variable that shows whether it was a schedule.

    OptimizerV2 keeps each hyperparameter that is a number as a variable. Optimizers of TF 2.9 and later keep the
    current rate of a schedule under another name (`_create_hypers` of `optimizer_v2.py`, `_build_learning_rate` of
    `optimizer.py`).

    Args:
      kept: hyperparameters that the source keeps as variables.

    Raises:
      ContradictionError: the user gives a schedule, and it was a number.
    """
    known = configuration.origins["learning_rate"]
    if known.kind not in (HINT, DEFAULT):
        return configuration
    of = stored.traits
    if isinstance(known.value, Mapping):
        if stored.format == "tf_object" and of.keeps_rate and "learning_rate" in kept:
            raise ContradictionError(
                f"learning_rate is the number {kept['learning_rate']:.9g} in the checkpoint, so it was not a"
                f" schedule, and {known.value.get('class_name')} in {known.where}. Remove it there, or, if a program"
                f" set it later, give {SCHEDULE}"
            )
        return configuration
    if CURRENT in stored.scalars:
        shows = f"the source keeps {CURRENT}"
    elif of.keeps_rate and not of.has_averages and kept and "learning_rate" not in kept:
        shows = f"the source keeps {some(sorted(kept))} as variables, and no learning rate"
    else:
        return configuration
    doubt = f"{shows}, so it was a schedule, which you give with {SCHEDULE}; dtopt assumes {known.value!r}"
    return configuration.with_origin(replace(known, doubt=doubt, confirm=confirming("learning_rate", known.value)))


def of_slots(slots: Mapping[str, Mapping[str, LazyArray]], matched: Mapping[str, str]) -> list[Origin]:
    """Return one origin for each slot and each way in which its variables were found."""
    origins = []
    for slot, owners in slots.items():
        ways: dict[str, int] = {}
        for variable in owners:
            how = matched.get(f"{slot}/{variable}", "name")
            ways[how] = ways.get(how, 0) + 1
        for how, count in ways.items():
            origins.append(Origin(f"slot {slot}", f"{count} variables", FILE, f"matched by {how}"))
    return origins
