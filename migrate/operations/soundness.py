"""Whether a state can be continued at all: hyperparameters in their ranges, dtypes that fit, numbers that are numbers.

Ranges and slots are those that `optim`'s rules declare. What no optimizer could go on with is refused before anything
is written; numbers that a run has spoiled are carried as they are, said, and never called exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from migrate.bytes.arrays import LazyArray
from migrate.evidence import UNINTERPRETED, Origin
from migrate.state import OptimizerState
from optim import slot_layout
from optim.arguments import Hyperparameter
from optim.errors import HyperparameterError, UnsupportedError
from optim.rule import Rule, Slot

FLOATS = ("float16", "bfloat16", "float32", "float64")
OPTIONS = {
    "learning_rate": Hyperparameter(None, "step size"),
    "decay": Hyperparameter(None, "inverse time decay"),
    "weight_decay": Hyperparameter(None, "decoupled weight decay"),
    "clipnorm": Hyperparameter(None, "limit of a gradient's norm"),
    "clipvalue": Hyperparameter(None, "limit of a gradient's elements"),
    "global_clipnorm": Hyperparameter(None, "limit of the norm of all gradients"),
    "ema_momentum": Hyperparameter(None, "weight of the old average", high=1.0, closed=True),
}
"""Options of every optimizer that are numbers."""
HOMES = {"AdamW": "adam", "RectifiedAdam": "rectified_adam"}
"""Algorithms whose rule is another's."""
SHOWN = 4


def checked(state: OptimizerState, *, with_values: bool = True) -> OptimizerState:
    """The state with an origin for each slot whose numbers are spoiled.

    Args:
      with_values: whether to read all slots and the variables that they belong to.

    Raises:
      UnsupportedError: a hyperparameter out of its range, or a dtype that no optimizer takes.
    """
    rule = rule_of(state.algorithm)
    _check_hyperparameters(state, rule)
    _check_dtypes(state)
    if not with_values:
        return state
    return replace(state, origins=(*state.origins, *_spoiled(state, rule)))


def rule_of(algorithm: str) -> type[Rule] | None:
    """The class of an algorithm's rule; None where `optim` has none."""
    try:
        module = import_module(f"optim.rules.{HOMES.get(algorithm, algorithm.lower())}")
    except ModuleNotFoundError:
        return None
    own = (each for each in vars(module).values() if isinstance(each, type) and issubclass(each, Rule))
    return next((each for each in own if each.__module__ == module.__name__), None)


def _check_hyperparameters(state: OptimizerState, rule: type[Rule] | None) -> None:
    declared: Mapping[str, Any] = OPTIONS | {
        key: value for key, value in vars(rule or Rule).items() if isinstance(value, Hyperparameter)
    }
    for key, value in state.hyperparameters.items():
        if key not in declared or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        try:
            declared[key].check(key, float(value))
        except HyperparameterError as error:
            raise UnsupportedError(
                f"{error}: no {state.algorithm} takes that, so the source, or the hint, is wrong; if it is the source,"
                f" give the right value with --set {key}=VALUE"
            ) from error


def _check_dtypes(state: OptimizerState) -> None:
    dtypes = {v.name: v.dtype for v in state.variables if v.array is not None}
    dtypes |= {name: copy.dtype for name, copy in state.slots.get(slot_layout.MASTER, {}).items()}
    for slot, owners in state.slots.items():
        for name, array in owners.items():
            wanted = dtypes.get(name, array.dtype)
            if slot == slot_layout.GATHERED and array.dtype == slot_layout.GATHERED_DTYPE:
                continue
            if array.dtype not in FLOATS or array.dtype != wanted:
                raise UnsupportedError(
                    f"slot {slot} of {name} ({array.stored_as}) is {array.dtype} and the variable is {wanted}: an"
                    f" optimizer keeps its slots in the dtype of the variable, one of {', '.join(FLOATS)}"
                )


def _slots(state: OptimizerState, rule: type[Rule] | None) -> dict[str, Slot]:
    """What the rule declares of the slots that there are."""
    if rule is None:
        return {}
    made = rule()
    switches = {"vhat": "amsgrad", "average_gradient": "centered"}
    on = {option: True for slot, option in switches.items() if slot in state.slots and hasattr(made, option)}
    return {slot.name: slot for slot in replace(made, **on).slots}


def _spoiled(state: OptimizerState, rule: type[Rule] | None) -> Iterator[Origin]:
    """NaN and infinities, squares below zero, a largest value that is not the largest, and variables half trained."""
    declared = _slots(state, rule)
    found: dict[str, list[str]] = {}
    for slot, owners in state.slots.items():
        known = declared.get(slot)
        for name, array in owners.items():
            values = _numbers(array)
            if not np.all(np.isfinite(values)):
                found.setdefault(f"slot {slot} holds NaN or infinity", []).append(name)
            elif known is not None and known.nonnegative and values.size and values.min() < 0:
                found.setdefault(f"slot {slot} is a sum of squares and holds negative numbers", []).append(name)
            least = state.slots.get(known.at_least, {}).get(name) if known is not None and known.at_least else None
            if known is not None and least is not None and _lies_below(values, _numbers(least)):
                text = f"slot {slot} is the largest {known.at_least} so far and lies below it"
                found.setdefault(text, []).append(name)
    owned = {name for owners in state.slots.values() for name in owners}
    for variable in state.variables:
        if variable.name in owned and variable.array is not None and not np.all(np.isfinite(_numbers(variable.array))):
            found.setdefault("the variable holds NaN or infinity", []).append(variable.name)
    for text, names in found.items():
        shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        yield Origin(text.partition(" holds")[0], names, UNINTERPRETED, doubt=f"{shown}: {text}")


def _numbers(array: LazyArray) -> np.ndarray:
    values = np.asarray(array.load())
    if array.dtype == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values


def _lies_below(values: np.ndarray, least: np.ndarray) -> bool:
    with np.errstate(all="ignore"):  # NaN and infinities are said on their own
        return bool(np.any(least > values * (1 + 1e-6)))
