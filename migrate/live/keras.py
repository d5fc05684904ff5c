"""Common parts of Keras 3's and tf_keras's optimizers, new and legacy: configs and names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from migrate import algorithms, claims
from migrate.algorithms import keras_config, lazy_rows, rates, repeated_rows
from migrate.algorithms.arguments import Arguments
from migrate.algorithms.spec import ACCUMULATED, AVERAGE, Algorithm
from migrate.live.base import replaced
from migrate.live.step_answers import Ask, exceptions, lazy, of_variables
from migrate.models.loss_scale import Scaling
from migrate.releases.versions import Versions
from migrate.rules import comparison
from migrate.rules import step_factors as factors
from optim.errors import UnsupportedError

PLACEHOLDER_RATE = 1.0
CONSTANT = 2**31 - 1
"""Steps until a loss scale of Keras 3 grows, if it never does."""


def algorithm_of(optimizer: Any, home: str) -> tuple[Algorithm, bool]:
    """Return the algorithm of an optimizer, and whether its class is the library's own; `home` is their module.

    Raises:
      UnsupportedError: neither its class nor a base class is a known one of the library.
    """
    for cls in type(optimizer).__mro__:
        if not cls.__module__.startswith(home):
            continue
        for algorithm in algorithms.ALGORITHMS:
            if algorithm.name == cls.__name__:
                return algorithm, cls is type(optimizer)
    known = ", ".join(a.name for a in algorithms.ALGORITHMS)
    raise UnsupportedError(
        f"{type(optimizer).__name__} is not an optimizer whose state dtopt restores, nor derived from one: {known}"
    )


def rule_of(
    optimizer: Any, algorithm: Algorithm, stock: bool, generation: str, version: str, dtypes: Sequence[str]
) -> comparison.Rule:
    """The rule of a library's optimizer, from its own `get_config()`."""
    rate = getattr(optimizer, "_hyper", {}).get("learning_rate", getattr(optimizer, "_learning_rate", None))
    unknown, config = None, _config(optimizer)
    if isinstance(config.get("learning_rate"), Mapping):
        config["learning_rate"] = _without_serialization(config["learning_rate"])
        if str(config["learning_rate"].get("class_name")) not in rates.SCHEDULES:
            unknown = f"the schedule {config['learning_rate'].get('class_name')}"
    elif callable(config.get("learning_rate")) or not isinstance(config.get("learning_rate"), (int, float)):
        unknown = f"a callable ({type(rate).__name__})"
    if unknown is not None:
        config["learning_rate"] = PLACEHOLDER_RATE
    full, _ = keras_config.completed(config, algorithm, generation)
    arguments = keras_config.arguments(full, {}, algorithm, generation, Versions(version), dtypes)
    own = (o for o in arguments.origins.values() if o.subject != keras_config.EXCLUDED)  # it is asked itself
    reasons = list(claims.reasons(own))
    reasons += [*replaced(optimizer), *_transformer_reasons(optimizer)]
    if not stock:
        reasons.append(f"{type(optimizer).__name__} is a class of your own: its rule was not compared")
    return comparison.Rule(
        algorithm.name,
        comparison.spelled_out(algorithm.name, arguments.values),
        unknown,
        tuple(reasons),
        tuple(arguments.warnings),
        _called(rate) if unknown is not None else None,
    )


def _transformer_reasons(optimizer: Any) -> Iterator[str]:
    if getattr(optimizer, "gradient_transformers", None):
        yield "the live optimizer has gradient_transformers, and what they do is not compared"
    aggregator = getattr(optimizer, "gradient_aggregator", None)
    if aggregator is not None and not str(getattr(aggregator, "__module__", "")).startswith("tf_keras."):
        yield "the live optimizer has a gradient_aggregator of your own, and what it does is not compared"


def _called(rate: Any) -> Callable[[int], float] | None:
    """A custom schedule as its library calls it; None for a callable without a step argument."""
    homes = {c.__module__.partition(".")[0] for c in type(rate).__mro__ if c.__name__ == "LearningRateSchedule"}
    return (lambda step: float(rate(step))) if homes & {"keras", "tf_keras"} else None


def _config(optimizer: Any) -> dict[str, Any]:
    config = dict(optimizer.get_config())
    return {k: (v.item() if hasattr(v, "item") and getattr(v, "ndim", 1) == 0 else v) for k, v in config.items()}


def _without_serialization(schedule: Mapping[str, Any]) -> dict[str, Any]:
    name = str(schedule.get("class_name", "")).rsplit(">", 1)[-1]
    return {"class_name": name, "config": dict(schedule.get("config", {}))}


def lazy_by_convention(algorithm: Algorithm, values: Mapping[str, Any], generation: str, name: str) -> str:
    """How rows that a sparse gradient leaves out are handled for a variable of that name, see `step_answers.lazy`."""
    arguments = Arguments()
    lazy_rows.put_in(
        arguments, {k: v for k, v in values.items() if k != keras_config.LAZY_ROWS}, algorithm, generation, [name]
    )
    return lazy(arguments.values, name)


def asks(algorithm: Algorithm, generation: str, values: Callable[[], Mapping[str, Any]]) -> dict[str, Ask]:
    """An optimizer's answers for one variable, without weight decay. `values`: of its rule."""
    from optim.state.tracked import plain_name

    return {
        **of_variables(),
        factors.EXCEPTED: lambda row: exceptions(values(), plain_name(row.variable)),
        factors.LAZY: lambda row: lazy_by_convention(algorithm, values(), generation, row.stored.name),
    }


def scaling(wrapper: Any) -> Scaling | None:
    """The loss scale of a LossScaleOptimizer of Keras 3 or tf_keras; None without one."""
    if wrapper is None:
        return None
    growth, now = getattr(wrapper, "dynamic_growth_steps", None), getattr(wrapper, "dynamic_scale", None)
    if hasattr(wrapper, "loss_scale"):  # of tf_keras
        growth, now = (growth if wrapper.dynamic else None), wrapper.loss_scale
    elif now is None:  # of Keras 3, before it is built
        now = getattr(wrapper, "initial_scale", None)
    steps = CONSTANT if growth is None else int(growth)
    return Scaling(steps if steps < CONSTANT else None, None if now is None else float(now))


def lazy_reasons(algorithm: Algorithm, values: Mapping[str, Any], generation: str, names: Sequence[str]) -> list[str]:
    """Explain why the library's handling of sparse gradients is unknown to `optim`; empty if it is known."""
    arguments = Arguments()
    lazy_rows.put_in(
        arguments, {k: v for k, v in values.items() if k != keras_config.LAZY_ROWS}, algorithm, generation, names
    )
    return list(claims.reasons(o for o in arguments.origins.values() if o.subject != repeated_rows.REPEATED))


def by_attribute(optimizer: Any, algorithm: Algorithm) -> dict[str, Sequence[Any]]:
    """Lists of slot variables by `optim`'s slot name, found under the library's attributes."""
    shared = {AVERAGE: "_model_variables_moving_average", ACCUMULATED: "_accumulated_gradients"}
    found: dict[str, Sequence[Any]] = {}
    for slot in (*algorithm.slots, *shared):
        names = [shared[slot]] if slot in shared else [f"{u}{n}" for n in (*slot.aliases, slot.name) for u in ("_", "")]
        for name in names:
            value = getattr(optimizer, name, None)
            if isinstance(value, (list, tuple)) and len(value):
                found[slot.name] = value
                break
    return found


def start_of(slot: str, values: Mapping[str, Any]) -> float | None:
    """The initial value of a library's new slot; None for the value of its variable."""
    if slot == AVERAGE.name:
        return None
    return float(values.get("initial_accumulator_value") or 0.0) if slot == "accumulator" else 0.0
