"""Find how many steps a source has taken, and what is uncertain about it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from migrate.algorithms import addons, tf_train
from migrate.algorithms.configuration import Configuration
from migrate.bytes.arrays import LazyArray
from migrate.claims import DEFAULT, FILE, HINT, RELEASE, SET, Origin, Questions, asking, confirming
from migrate.errors import AmbiguousError, ContradictionError, DamagedFileError, MissingHintError
from migrate.facts import counter as facts
from migrate.matching.slot_table import COUNTERS, SlotTable
from migrate.releases.narrowing import candidates
from migrate.releases.table import Release
from migrate.releases.versions import THEANO
from migrate.state import GLOBAL_STEP, Stored
from optim.errors import HyperparameterError

FLOAT32_EXACT = 2**24
MAX_STEPS = 2**63 - 1
BIAS_IS_GONE = 20_000
"""Steps after which 0.999**steps is below float32's rounding of 1."""


def iterations(stored: Stored, table: SlotTable, configuration: Configuration) -> tuple[int | None, Origin]:
    """Return the steps taken, None if the source does not save them and nothing needs them.

    Raises:
      ContradictionError: the source counts other steps than a hint, or its powers of beta contradict its betas.
    """
    algorithm, origin = configuration.algorithm, configuration.origins.get("iterations")
    user_steps = None if origin is None else _as_count(configuration.config.get("iterations"))
    if origin is not None and origin.kind == SET:
        counters = [table.scalars.pop(name) for name in [*table.scalars] if name in COUNTERS]
        where = f"instead of {counters[0].stored_as}" if counters else origin.where
        return user_steps, replace(origin, value=user_steps, where=where)
    try:
        counted = _counted(stored, table, configuration)
    except AmbiguousError:
        if user_steps is None:
            raise
        counted = None
    if counted is not None:
        if user_steps is not None and user_steps != counted.steps:
            raise ContradictionError(
                f"iterations is {counted.steps} in the source ({counted.where}) and {user_steps} in --optimizer-config."
                f" Remove it there, or override with {confirming('iterations', user_steps)}"
            )
        return counted.steps, _origin_of(counted)
    if user_steps is not None:
        return user_steps, Origin("iterations", user_steps, HINT, "--optimizer-config")
    if not (table.pairs or stored.weights or stored.scalars) and stored.optimizer_config is not None:
        text = (
            f"the source holds no optimizer state, only the config of its {algorithm.name}: it was saved before the"
            " first step, or without its optimizer. If before the first step, add --set iterations=0"
        )
        raise asking(MissingHintError(text), Questions({"iterations": 0}, ()))
    if stored.generation in algorithm.counts and not stored.traits.shows_release_in_list:
        raise DamagedFileError(
            f"the source holds no step counter (iterations), and {algorithm.name} of generation {stored.generation}"
            " always saves one: it is incomplete, or of another generation. If it is complete, give the number of"
            " steps with --set iterations=N"
        )
    if algorithm.uses_count and stored.traits.counts_in_program and not stored.slots:
        raise MissingHintError(no_slots_and_no_steps(algorithm.name))
    if algorithm.uses_count:
        raise MissingHintError(
            f"the source does not contain how many steps {algorithm.name} has taken, and its update depends on that."
            " Set it with --set iterations=N"
        )
    where = f"not saved: {algorithm.name} of generation {stored.generation} keeps no iterations"
    return None, Origin("iterations", None, RELEASE, where)


def no_slots_and_no_steps(name: str) -> str:
    """Return the message for a source that has only variables."""
    return (
        f"the source holds no slots of {name} and no step count, as tf.train.Saver(tf.trainable_variables()) saves"
        f" it. Restart {name} with --set iterations=0, or migrate a checkpoint that has the optimizer, too"
    )


def _as_count(steps: Any) -> int:
    """Return the steps as an integer. Raises HyperparameterError for a value that is not a number of steps."""
    is_number = isinstance(steps, (int, float)) and not isinstance(steps, bool)
    if not is_number or not 0 <= steps <= MAX_STEPS or steps != int(steps):
        raise HyperparameterError(f"iterations must be a whole number of steps, at least 0, got {steps!r}")
    return int(steps)


@dataclass(frozen=True)
class _Count:
    """Steps that the source counts, where, and a warning if the count is uncertain.

    Attributes:
      races: what reads the counter before or after it was raised, in unknown order; empty if nothing does.
      after: the options for users who know that it was read after; if empty, the option of the next step.
    """

    steps: int
    where: str
    doubt: str = ""
    races: str = ""
    after: tuple[str, ...] = ()


def _origin_of(counted: _Count) -> Origin:
    steps = counted.steps
    if counted.races:
        read = "decay" if len(counted.after) == 1 else "steps"
        doubt = (
            f"iterations is {steps}, and {counted.races}, as TensorFlow orders the ops: its {read} continued from"
            f" {steps} or from {steps + 1}"
        )
        after = counted.after or (confirming("iterations", steps + 1),)
        which = " or ".join((confirming("iterations", steps), *after))
        return Origin("iterations", steps, FILE, counted.where, doubt, which)
    confirm = confirming("iterations", steps) if counted.doubt else ""
    return Origin("iterations", steps, FILE, counted.where, counted.doubt, confirm)


def _counted(stored: Stored, table: SlotTable, configuration: Configuration) -> _Count | None:
    name = next((name for name in COUNTERS if name in table.scalars), None)
    if name is not None:
        count, where = _count(table.scalars.pop(name))
        doubt = ""
        if (
            stored.traits.has_keras1_layers
            and count == 0
            and not configuration.algorithm.uses_count
            and _decays(configuration.config)
        ):
            doubt = "iterations is 0, and Keras 1 counts steps only where decay is set"
        return _Count(
            count,
            where,
            doubt,
            "" if doubt else _raced(stored, configuration, count),
            _after(stored, configuration, count),
        )
    if not stored.traits.counts_in_program:
        return None
    powers = (
        tf_train.steps(table.scalars, configuration.config, configuration.algorithm.name)
        if configuration.algorithm.uses_count
        else None
    )
    if powers is not None and not (powers.is_least and GLOBAL_STEP in table.scalars):
        unknown = powers.is_least and _decays(configuration.config)
        doubt = f"iterations: {powers.where}, and the learning rate depends on the number of steps" if unknown else ""
        return _Count(powers.taken, powers.where, doubt)
    if GLOBAL_STEP not in table.scalars:
        return None
    count, where = _count(table.scalars.pop(GLOBAL_STEP))
    doubt, races = "", ""
    if powers is not None and count < powers.taken:  # the counter was reset, or counts something else
        doubt = f"iterations: {powers.where}, and global_step is {count}" if _decays(configuration.config) else ""
        return _Count(powers.taken, powers.where, doubt)
    if configuration.config.get(addons.CORRECTED) is False and _decays(configuration.config):
        races = "BERT's train_op reads it in each step before or after it raises it by one"
    if configuration.algorithm.uses_count and not tf_train.has_powers(table.scalars):
        doubt = f"iterations = {count} is what global_step counts, which need not be this optimizer's own steps"
    return _Count(count, where, doubt, races)


def _raced(stored: Stored, configuration: Configuration, count: int) -> str:
    """Return why the next step's count is uncertain, if a release reads its counter before or after raising it."""
    releases = _racing(stored, configuration, count)
    if not releases or _is_open(releases, configuration):
        return ""
    seen = " (after, with Keras 2.3 on TensorFlow 1.15)" if releases[0].traits.counts_always else ""
    return f"this release reads it before or after it raises it by one{seen}"


def note(stored: Stored, configuration: Configuration, counted: tuple[int | None, Origin]) -> tuple[str, ...]:
    """Return what a count of Keras 2 assumes if the source does not name its TensorFlow."""
    count, origin = counted
    if not count or origin.kind != FILE:
        return ()
    releases = _racing(stored, configuration, count)
    if not releases or not _is_open(releases, configuration):
        return ()
    later = confirming("iterations", count + 1)
    return (
        "Keras 2 on TensorFlow 1.13 and later may read iterations before or after it raises it; the source does not"
        f" name its TensorFlow, so dtopt assumes one before 1.13, which reads it first. For a later one use {later}",
    )


def _racing(stored: Stored, configuration: Configuration, count: int) -> tuple[Release, ...]:
    """Return the releases that can have written a source, if the count matters and one of them reads it by chance."""
    algorithm, decays = configuration.algorithm, _decays(configuration.config)
    if not count or not (decays or (algorithm.uses_count and count < BIAS_IS_GONE)):
        return ()
    releases = candidates(stored.generation or "", stored.versions)
    return releases if facts.read(algorithm.name, decays).may_be(facts.BY_CHANCE, releases) else ()


def _is_open(releases: tuple[Release, ...], configuration: Configuration) -> bool:
    """Return whether it depends on the TensorFlow under Keras, which the source does not name.

    Theano would name itself.
    """
    read = facts.read(configuration.algorithm.name, _decays(configuration.config))
    on_tensorflow = [r for r in releases if r.backend != THEANO]
    return bool(on_tensorflow) and read.of(on_tensorflow) is None and on_tensorflow[0].is_standalone


def _after(stored: Stored, configuration: Configuration, count: int) -> tuple[str, ...]:
    """Return the options for a counter that was read after it was raised, if no later step has the same effect.

    If a release raises it before it corrects the moments, only `decay` may be read after. The rate that `decay` gives
    is then a step ahead.
    """
    decay, rate = configuration.config.get("decay"), configuration.config.get("learning_rate")
    if not decay or isinstance(rate, Mapping):
        return ()
    table = facts.raised(configuration.algorithm.name).among(candidates(stored.generation or "", stored.versions))
    if not table.keys() - {facts.LAST}:
        return ()
    ahead = {"iterations": count, "learning_rate": rate / (1.0 + decay), "decay": decay / (1.0 + decay)}
    alone = " ".join(confirming(*setting) for setting in ahead.items())
    return (alone,) if table.keys() == {facts.FIRST} else (confirming("iterations", count + 1), alone)


def _decays(config: Mapping[str, Any]) -> bool:
    return bool(config.get("decay")) or isinstance(config.get("learning_rate"), Mapping)


def _count(array: LazyArray) -> tuple[int, str]:
    value = np.asarray(array.load()).reshape(-1)
    if value.size != 1 or not math.isfinite(float(value[0])) or float(value[0]) != int(value[0]) or value[0] < 0:
        raise DamagedFileError(
            f"the step counter {array.stored_as} holds {value[:3].tolist()}, which is no number of steps"
        )
    count = int(value[0])
    if count > MAX_STEPS:
        raise DamagedFileError(f"the step counter {array.stored_as} holds {count}, more steps than int64 can count")
    if array.dtype.startswith("float") and count >= FLOAT32_EXACT:
        return count, f"{array.stored_as} (a float32, which stops counting at {FLOAT32_EXACT})"
    return count, array.stored_as


def steps(counted: tuple[int | None, Origin], values: Mapping[str, Any]) -> tuple[int, Origin, int | None]:
    """Return the steps taken, and how many batches of the next step are gathered."""
    iterations, origin = counted
    batches = values.get("gradient_accumulation_steps")
    if iterations is None:
        if "decay" in values or isinstance(values["learning_rate"], Mapping):
            doubt = (
                f"iterations: {origin.where}; the learning rate's decay starts again from step 0, as it did when Keras"
                " reloaded such a file"
            )
            return 0, replace(origin, kind=DEFAULT, value=0, doubt=doubt, confirm="--set iterations=N"), None
        return 0, replace(origin, value=0), None
    if not batches:
        return iterations, origin, None
    steps, gathered = divmod(iterations, batches)
    return steps, replace(origin, where=f"{origin.where} (counts batches; {batches} make a step)"), gathered
