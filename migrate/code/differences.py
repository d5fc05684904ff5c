"""Explain how a target's steps differ from the old release's although no argument shows it, and how to make them equal.

Sources: `optim.keras_differences`, `migrate.algorithms.repeated_rows`; `optimizer_v2.py` of TF 2.4 (`_decayed_lr`
casts the step to the variables' dtype).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from migrate import algorithms
from migrate.algorithms import repeated_rows
from migrate.algorithms.clipping import LIMITS
from migrate.algorithms.spec import Algorithm
from migrate.code.meanings import Meaning, Value
from migrate.code.schedules import Schedule
from migrate.generations import traits
from migrate.releases import modules
from migrate.releases.versions import UNKNOWN, Versions
from optim import keras_differences


@dataclass(frozen=True)
class Source:
    """The old call: its meaning, the generation and versions of its release, and its context in the program."""

    meaning: Meaning
    generation: str
    versions: Versions
    schedule: Schedule | None
    has_embeddings: bool


def reasons(source: Source, module: str) -> list[str]:
    """Explain why the steps of the class in a target's module differ, and how to make them equal if possible; for
    `optim`, without what `keywords` handles."""
    return [
        *_averages(source, module),
        *_integer_steps(source, module),
        *(_row_differences(source, module) if source.has_embeddings else ()),
    ]


def keywords(source: Source) -> dict[str, Value]:
    """Arguments that make `optim` step like the old release, also in `for_keras`, whose defaults are those of the
    installed Keras."""
    arguments, algorithm = source.meaning.arguments, _algorithm(source.meaning)
    rate = arguments.get("learning_rate")
    may_be_schedule = source.schedule is not None or (rate is not None and not rate.known)
    values = {**_values(source), "learning_rate": {} if may_be_schedule else None}
    keras, version = traits(source.generation).known_to_optim, source.versions.keras_number or ()
    needed = (
        keras_differences.reproducing(keras, source.meaning.algorithm, values, backend="tensorflow", release=version)
        if keras
        else {}
    )
    needed = {key: value for key, value in needed.items() if key not in (repeated_rows.REPEATED, *LIMITS, *arguments)}
    if values.get("use_ema"):
        needed.setdefault("ema_start", "initial")
    if source.has_embeddings and algorithm is not None and repeated_rows.REPEATED not in arguments:
        before = _repeated(source, algorithm, source.generation)
        current = _repeated(source, algorithm, modules.GENERATION[modules.KERAS_3])
        if (before or current) and _can_be_reproduced(before, values):
            needed[repeated_rows.REPEATED] = list(before)
    return {key: Value.of(value) for key, value in needed.items()}


def _values(source: Source) -> dict[str, Any]:
    """The arguments' values; for expressions a positive number."""
    return {key: value.literal if value.known else 2.0 for key, value in source.meaning.arguments.items()}


def _can_be_reproduced(rows: Collection[str], values: Mapping[str, Any]) -> bool:
    """Whether `repeated_rows` can do it: Keras may compute the root of a negative number there."""
    return repeated_rows.SQUARE not in rows or not (values.get("centered") or values.get("epsilon") == 0)


def _averages(source: Source, module: str) -> Iterator[str]:
    """Averages begin with the first step's result in Keras 3, and with the initial values elsewhere."""
    before, now = (
        traits(generation).averages_start for generation in (source.generation, modules.BY_MODULE.get(module))
    )
    if _values(source).get("use_ema") and before != now and module != "optim":
        starts = {"first_step": "the first step's result", "initial": "the first values"}
        first, then = starts[before], starts[now]
        yield f"its averages began with {first}, and begin with {then} now"


def _integer_steps(source: Source, module: str) -> Iterator[str]:
    schedule = source.schedule
    if schedule is None or not _passes_floats(source.generation) or _passes_floats(modules.BY_MODULE.get(module)):
        return
    if schedule.needs_float:
        step = schedule.needs_float
        yield (
            f"{schedule.name} got the step as a float, and gets an integer now, which functions such as rsqrt refuse:"
            f" begin its __call__ with {step} = tf.cast({step}, tf.float32)"
        )


def _passes_floats(generation: str | None) -> bool:
    return traits(generation).passes_float_steps


def _row_differences(source: Source, module: str) -> Iterator[str]:
    meaning, target_generation = source.meaning, modules.BY_MODULE.get(module)
    algorithm = _algorithm(meaning)
    if algorithm is None:
        return
    values = _values(source)
    keeps = target_generation is not None and algorithm.lazy(values, target_generation) is not None
    if meaning.lazy and not keeps:
        yield (
            "rows of embeddings without a gradient did not change there, and change now: exact with optim's"
            " lazy_rows=[pattern of their names]"
        )
    elif keeps and not meaning.lazy:
        yield "rows of embeddings without a gradient changed there, and do not change now: exact with optim"
    before, now = (_repeated(source, algorithm, generation) for generation in (source.generation, target_generation))
    is_written = module == "optim" and _can_be_reproduced(before, values)
    if set(before) != set(now) and not is_written:
        then, there = (
            f"{repeated_rows.words(rows)} each of its gradients" if rows else "adds them up" for rows in (before, now)
        )
        where = "if a batch has a row of an embedding several times"
        yield f"{where}, the old release {then}, and {module} {there}"


def _repeated(source: Source, algorithm: Algorithm, generation: str | None) -> tuple[str, ...]:
    versions = source.versions if generation == source.generation else UNKNOWN
    return repeated_rows.done(generation, algorithm, _values(source), versions)


def _algorithm(meaning: Meaning) -> Algorithm | None:
    return next((algorithm for algorithm in algorithms.ALGORITHMS if algorithm.name == meaning.algorithm), None)
