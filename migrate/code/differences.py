"""How a target's steps differ from the old release's where no argument of a call shows it, and what makes them equal.

Sources: `migrate.algorithms.repeated_rows`; Keras 3.15 `optimizers/base_optimizer.py` (a schedule is given the number
of calls); `optimizer_v2.py` of TF 2.4 (`_decayed_lr` casts the step to the variables' dtype).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from migrate import algorithms
from migrate.algorithms import repeated_rows
from migrate.algorithms.spec import Algorithm
from migrate.code.meanings import Meaning
from migrate.code.schedules import Schedule

GENERATIONS = {
    "optim": None,
    "keras.optimizers": "keras3",
    "tf_keras.optimizers": "optimizer",
    "tf_keras.optimizers.legacy": "optimizer_v2",
}
"""Modules of the targets -> the generation whose steps they take; None: `optim`'s own."""


@dataclass(frozen=True)
class Source:
    """The old call: its meaning, the generation and versions of its release, and what the program does around it."""

    meaning: Meaning
    generation: str
    versions: Mapping[str, str]
    schedule: Schedule | None
    has_embeddings: bool


def reasons(source: Source, module: str) -> list[str]:
    """Why the steps of the class in a target's module differ, with the keyword or line that makes them the same."""
    return [
        *_averages(source, module),
        *_accumulation(source, module),
        *_integer_steps(source, module),
        *(_rows(source, module) if source.has_embeddings else ()),
    ]


def _is_on(source: Source, key: str) -> bool:
    value = source.meaning.arguments.get(key)
    return value is not None and (not value.known or bool(value.literal))


def _averages(source: Source, module: str) -> Iterator[str]:
    """Keras 3 begins its averages with the first step's result, and all others with the first values."""
    before, now = source.generation == "keras3", module == "keras.optimizers"
    if _is_on(source, "use_ema") and before != now:
        first, then = ("the first step's result", "the first values")[:: 1 if before else -1]
        exact = "; exact: ema_start='first_step'" if before and module == "optim" else ""
        yield f"its averages began with {first}, and begin with {then} now{exact}"


def _accumulation(source: Source, module: str) -> Iterator[str]:
    steps = source.meaning.arguments.get("gradient_accumulation_steps")
    if steps is None or source.generation != "keras3" or module != "optim":
        return
    if source.schedule is not None:
        n = steps.text
        yield (
            "with gradient_accumulation_steps Keras 3 gives the schedule the number of calls, and optim the number of"
            f" steps; exact with a schedule that returns {source.schedule.name} at step * {n} + {n} - 1"
        )


def _integer_steps(source: Source, module: str) -> Iterator[str]:
    schedule = source.schedule
    if schedule is None or source.generation != "optimizer_v2" or GENERATIONS[module] == "optimizer_v2":
        return
    if schedule.needs_float:
        step = schedule.needs_float
        yield (
            f"{schedule.name} got the step as a float, and gets an integer now, which functions such as rsqrt refuse:"
            f" begin its __call__ with {step} = tf.cast({step}, tf.float32)"
        )


def _rows(source: Source, module: str) -> Iterator[str]:
    """Rows of tables: those without a gradient, and those that a batch has several times."""
    meaning, generation = source.meaning, GENERATIONS[module]
    algorithm = _algorithm(meaning)
    if algorithm is None:
        return
    values = {key: value.literal if value.known else 1.0 for key, value in meaning.arguments.items()}
    keeps = generation is not None and algorithm.lazy(values, generation) is not None
    if meaning.lazy and not keeps:
        yield (
            "rows of embeddings without a gradient stayed as they were there, and move now: exact with optim's"
            " lazy_rows=[pattern of their names]"
        )
    elif keeps and not meaning.lazy:
        yield "rows of embeddings without a gradient moved there, and stay as they are now: exact with optim"
    before = repeated_rows.done(source.generation, algorithm, values, source.versions)
    now = repeated_rows.done(generation, algorithm, values, {})
    if set(before) != set(now):
        then, there = (
            f"{repeated_rows.words(each)} each of its gradients" if each else "takes their sum"
            for each in (before, now)
        )
        exact = f"; exact with repeated_rows={list(before)}" if module == "optim" else ""
        where = "where a batch has a row of an embedding several times"
        yield f"{where}, the old release {then}, and {module} {there}{exact}"


def _algorithm(meaning: Meaning) -> Algorithm | None:
    return next((each for each in algorithms.ALGORITHMS if each.name == meaning.algorithm), None)
