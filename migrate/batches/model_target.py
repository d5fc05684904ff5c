"""Whether a target for Keras equals a new migration of its source: each tensor in its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import ModuleType

import numpy as np

from migrate.bytes.arrays import LazyArray
from migrate.models.plan import ModelPlan
from migrate.rules.comparison import same
from migrate.rules.differences import APART
from migrate.state import OptimizerState

RULE_IN_CONFIG = ("learning_rate_in_momentum", "learning_rate_in_linear", "momentum_slot", "initial_velocity")


def writer_of(format_name: str) -> ModuleType:
    from migrate.writers import keras_h5, keras_zip

    return keras_zip if format_name == "keras" else keras_h5


def differences(state: OptimizerState, target: OptimizerState, writer: ModuleType) -> Iterator[str]:
    """Yield the differences between a target and its source.

    Args:
      state: of the source. target: of the written file, by its reader.
      writer: the module that wrote it.
    """
    _, plan = writer.converted(state)
    places: dict[str, str] = writer.locations(plan)
    yield from _variables(plan, target, places)
    yield from _slots(plan, target, places)
    wanted = plan.live.state
    if target.algorithm != wanted.algorithm:
        yield f"the target's optimizer is {target.algorithm}, the source's {wanted.algorithm}"
    if target.iterations != wanted.iterations:
        yield f"iterations is {target.iterations}, not {wanted.iterations} (source: {wanted.iterations_source})"
    yield from _hyperparameters(wanted.hyperparameters, target.hyperparameters)


def _place(array: LazyArray | None) -> str:
    return array.stored_as.strip("/") if array is not None else ""


def _variables(plan: ModelPlan, target: OptimizerState, places: Mapping[str, str]) -> Iterator[str]:
    arrays = {_place(v.array): v.array for v in target.variables}
    twins = {name: [p for p in places if places[p] == name] for name in places.values()}
    for place, name in places.items():
        array = arrays.get(place) or next((arrays[p] for p in twins[name] if p in arrays), None)
        problem = "is missing" if array is None else difference(plan.array(name), array)
        if problem:
            yield f"{place} {problem} (source: {name})"
    yield from (f"{place} is in no source" for place in arrays if place and place not in places)


def _slots(plan: ModelPlan, target: OptimizerState, places: Mapping[str, str]) -> Iterator[str]:
    names = {v.name: places.get(_place(v.array), "") for v in target.variables}
    got = {(s, names[v]): a for s, owners in target.slots.items() for v, a in owners.items()}
    wanted = {(s, v): a for s, owners in plan.live.state.slots.items() for v, a in owners.items()}
    for (slot, name), array in wanted.items():
        there = got.get((slot, name))
        problem = "is missing" if there is None else difference(array, there)
        if problem:
            yield f"slot {slot} of {name} {problem} (source: {array.stored_as})"
    yield from (f"slot {slot} of {name} is in no source" for slot, name in got if (slot, name) not in wanted)


def difference(array: LazyArray, other: LazyArray) -> str:
    """Describe how two arrays differ in shape, dtype or any bit; empty if they do not."""
    if (array.shape, array.dtype) != (other.shape, other.dtype):
        return f"is {other.dtype}{list(other.shape)}, not {array.dtype}{list(array.shape)}"
    want, got = (np.ascontiguousarray(a.load()) for a in (array, other))
    if want.tobytes() == got.tobytes():
        return ""
    return f"differs in {int(np.sum(want != got))} of {array.size} numbers"


def _hyperparameters(wanted: Mapping[str, object], got: Mapping[str, object]) -> Iterator[str]:
    for key, value in wanted.items():
        if key in APART or key in RULE_IN_CONFIG or key == "clip_order":
            continue
        other = got.get(key)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            value, other = (_settings(x) for x in (value, other))
        if not same(other, value):
            yield f"the target has {key} = {other!r}, the source {value!r}"


def _settings(schedule: Mapping[str, object]) -> dict[str, object]:
    """A schedule without its name, which does not matter."""
    config = schedule.get("config")
    kept = {k: v for k, v in config.items() if k != "name"} if isinstance(config, Mapping) else {}
    return {"class_name": schedule.get("class_name"), "config": kept}
