"""How many steps a source has taken, where it says so, and what is doubtful about it."""

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
from migrate.generations import KERAS2_3
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


def iterations(stored: Stored, found: SlotTable, made: Configuration) -> tuple[int | None, Origin]:
    """Steps taken; None where they are not saved and do not have to be known.

    Raises:
      ContradictionError: the source counts other steps than a hint says, or its powers of beta deny its betas.
    """
    algorithm, told = made.algorithm, made.origins.get("iterations")
    given = None if told is None else _told(made.config.get("iterations"))
    if told is not None and told.kind == SET:
        counters = [found.scalars.pop(name) for name in [*found.scalars] if name in COUNTERS]
        where = f"instead of {counters[0].stored_as}" if counters else told.where
        return given, replace(told, value=given, where=where)
    try:
        counted = _counted(stored, found, made)
    except AmbiguousError:
        if given is None:
            raise
        counted = None
    if counted is not None:
        if given is not None and given != counted.steps:
            raise ContradictionError(
                f"iterations is {counted.steps} in the source ({counted.where}) and {given} in --optimizer-config;"
                f" leave it out there, or decide with {confirming('iterations', given)}"
            )
        return counted.steps, _origin_of(counted)
    if given is not None:
        return given, Origin("iterations", given, HINT, "--optimizer-config")
    if not (found.pairs or stored.weights or stored.scalars) and stored.optimizer_config is not None:
        text = (
            f"the source holds no optimizer state, only the config of its {algorithm.name}: it was saved before the"
            " first step, or without its optimizer; if before the first step, say so with --set iterations=0"
        )
        raise asking(MissingHintError(text), Questions({"iterations": 0}, ()))
    if stored.generation in algorithm.counts and stored.generation != "experimental":
        raise DamagedFileError(
            f"the source holds no step counter (iterations), and {algorithm.name} of generation"
            f" {stored.generation} always saves one: it is incomplete, or of another generation; if it is"
            " neither, say how many steps it took with --set iterations=N"
        )
    if algorithm.uses_count and stored.generation == "tf1" and not stored.slots:
        raise MissingHintError(begins_anew(algorithm.name))
    if algorithm.uses_count:
        raise MissingHintError(
            f"the source does not say how many steps {algorithm.name} has taken, and its update depends on that;"
            " say it with --set iterations=N"
        )
    where = f"not saved: {algorithm.name} of generation {stored.generation} keeps no iterations"
    return None, Origin("iterations", None, RELEASE, where)


def begins_anew(name: str) -> str:
    """What to say of variables alone."""
    return (
        f"the source holds no slots of {name} and does not say how many steps it has taken, as"
        f" tf.train.Saver(tf.trainable_variables()) saves it: from there {name} begins anew; carry it so"
        " with --set iterations=0, or migrate a checkpoint that has the optimizer, too"
    )


def _told(steps: Any) -> int:
    """Raises HyperparameterError for what is no number of steps."""
    is_number = isinstance(steps, (int, float)) and not isinstance(steps, bool)
    if not is_number or not 0 <= steps <= MAX_STEPS or steps != int(steps):
        raise HyperparameterError(f"iterations must be a whole number of steps, at least 0, got {steps!r}")
    return int(steps)


@dataclass(frozen=True)
class _Count:
    """Steps that the source counts, where, and what is doubtful about it.

    `races`: what reads its counter before or after it was raised, as nobody knows; empty if nothing does.
    `after`: the options for who knows that it was read after; that of the next step, if empty.
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
            f"iterations is {steps}, and {counted.races}, as TensorFlow orders the ops: its {read} went on from {steps}"
            f" or from {steps + 1}"
        )
        after = counted.after or (confirming("iterations", steps + 1),)
        which = " or ".join((confirming("iterations", steps), *after))
        return Origin("iterations", steps, FILE, counted.where, doubt, which)
    confirm = confirming("iterations", steps) if counted.doubt else ""
    return Origin("iterations", steps, FILE, counted.where, counted.doubt, confirm)


def _counted(stored: Stored, found: SlotTable, made: Configuration) -> _Count | None:
    name = next((name for name in COUNTERS if name in found.scalars), None)
    if name is not None:
        count, where = _count(found.scalars.pop(name))
        doubt = ""
        if stored.generation == "keras1" and count == 0 and not made.algorithm.uses_count and _decays(made.config):
            doubt = "iterations is 0, and Keras 1 counts steps only where decay is set"
        return _Count(count, where, doubt, "" if doubt else _raced(stored, made, count), _after(stored, made, count))
    if stored.generation != "tf1":
        return None
    powers = tf_train.steps(found.scalars, made.config, made.algorithm.name) if made.algorithm.uses_count else None
    if powers is not None and not (powers.is_least and GLOBAL_STEP in found.scalars):
        unknown = powers.is_least and _decays(made.config)
        doubt = f"iterations: {powers.where}, and the learning rate depends on the number of steps" if unknown else ""
        return _Count(powers.taken, powers.where, doubt)
    if GLOBAL_STEP not in found.scalars:
        return None
    count, where = _count(found.scalars.pop(GLOBAL_STEP))
    doubt, races = "", ""
    if powers is not None and count < powers.taken:  # it was set back, or counts something else
        doubt = f"iterations: {powers.where}, and global_step is {count}" if _decays(made.config) else ""
        return _Count(powers.taken, powers.where, doubt)
    if made.config.get(addons.CORRECTED) is False and _decays(made.config):
        races = "BERT's train_op reads it in each step before or after it raises it by one"
    if made.algorithm.uses_count and not tf_train.has_powers(found.scalars):
        doubt = f"iterations = {count} is what global_step counts, which need not be this optimizer's own steps"
    return _Count(count, where, doubt, races)


def _raced(stored: Stored, made: Configuration, count: int) -> str:
    """Why the next step's count is uncertain, if a release reads its counter before or after it was raised."""
    releases = _racing(stored, made, count)
    if not releases or _is_open(releases, made):
        return ""
    seen = " (after, with Keras 2.3 on TensorFlow 1.15)" if releases[0].generation == KERAS2_3 else ""
    return f"this release reads it before or after it raises it by one{seen}"


def note(stored: Stored, made: Configuration, counted: tuple[int | None, Origin]) -> tuple[str, ...]:
    """What a count of Keras 2 assumes where the source does not name its TensorFlow."""
    count, origin = counted
    if not count or origin.kind != FILE:
        return ()
    releases = _racing(stored, made, count)
    if not releases or not _is_open(releases, made):
        return ()
    later = confirming("iterations", count + 1)
    return (
        "Keras 2 on TensorFlow 1.13 and later reads iterations before or after it raises it, by chance; the source"
        f" does not name its TensorFlow, and is taken for one before, which reads it first, and not for {later}",
    )


def _racing(stored: Stored, made: Configuration, count: int) -> tuple[Release, ...]:
    """The releases that can have written a source, if the count matters and one of them reads it by chance."""
    algorithm, decays = made.algorithm, _decays(made.config)
    if not count or not (decays or (algorithm.uses_count and count < BIAS_IS_GONE)):
        return ()
    releases = candidates(stored.generation or "", stored.versions)
    return releases if facts.read(algorithm.name, decays).may_be(facts.BY_CHANCE, releases) else ()


def _is_open(releases: tuple[Release, ...], made: Configuration) -> bool:
    """Whether it depends on the TensorFlow under Keras, which the source does not name. Theano would name itself."""
    read = facts.read(made.algorithm.name, _decays(made.config))
    on_tensorflow = [r for r in releases if r.backend != THEANO]
    return bool(on_tensorflow) and read.of(on_tensorflow) is None and on_tensorflow[0].is_standalone


def _after(stored: Stored, made: Configuration, count: int) -> tuple[str, ...]:
    """The options for a counter that was read after it was raised, where no later step is what they say.

    If a release raises it before it corrects the moments, only `decay` may be read after, and what it makes of the rate
    is a step ahead.
    """
    decay, rate = made.config.get("decay"), made.config.get("learning_rate")
    if not decay or isinstance(rate, Mapping):
        return ()
    found = facts.raised(made.algorithm.name).among(candidates(stored.generation or "", stored.versions))
    if not found.keys() - {facts.LAST}:
        return ()
    ahead = {"iterations": count, "learning_rate": rate / (1.0 + decay), "decay": decay / (1.0 + decay)}
    alone = " ".join(confirming(*each) for each in ahead.items())
    return (alone,) if found.keys() == {facts.FIRST} else (confirming("iterations", count + 1), alone)


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


def steps(told: tuple[int | None, Origin], values: Mapping[str, Any]) -> tuple[int, Origin, int | None]:
    """Steps taken, and how many batches of the next one are gathered."""
    iterations, origin = told
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
