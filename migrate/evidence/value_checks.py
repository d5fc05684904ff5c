"""Check whether a state can be continued: hyperparameters in range, dtypes that fit, no NaN.

`optim`'s rules declare ranges and slots. `migrate` refuses what no optimizer could continue before it writes anything.
Numbers that a run has spoiled, or that no run can leave (`slot_bounds`), are migrated unchanged. The result then has a
reason why it is not exact.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from migrate.bytes.arrays import LazyArray, loaded_dtype, widened
from migrate.bytes.messages import some
from migrate.claims import UNINTERPRETED, Origin, confirming
from migrate.evidence import slot_bounds
from migrate.evidence.user_input import exclusive
from migrate.readers.keras.model import ROLES
from migrate.state import OptimizerState
from optim import rules, slot_layout
from optim.arguments import CLIP_ORDERS, Choice, Hyperparameter, count, flag, one_of, optional_flag, patterns
from optim.errors import HyperparameterError, UnsupportedError
from optim.rule import Rule, Slot, arguments

FLOATS = ("float16", "bfloat16", "float32", "float64")
COUNTED = ("bool", "int16", "int32", "int64", "uint16", "uint32", "uint64")
"""Dtypes that weights never have. Kernels of quantized models are int8, which is therefore not among them."""
OPTIONS: dict[str, Any] = {
    "learning_rate": Hyperparameter(None, "step size"),
    "decay": Hyperparameter(None, "inverse time decay"),
    "weight_decay": Hyperparameter(None, "decoupled weight decay"),
    "clipnorm": Hyperparameter(None, "limit of a gradient's norm"),
    "clipvalue": Hyperparameter(None, "limit of a gradient's elements"),
    "global_clipnorm": Hyperparameter(None, "limit of the norm of all gradients"),
    "ema_momentum": Hyperparameter(None, "weight of the old average", high=1.0, closed=True),
    "ema_overwrite_frequency": Choice(None, "steps between overwrites", count, True),
    "clip_order": Choice("value_first", "what happens first", one_of(*CLIP_ORDERS), True),
    "lazy_rows": Choice((), "tables", patterns, True),
    "weight_decay_exclude": Choice((), "variables that do not decay", patterns, True),
}
"""Options of every optimizer."""
SHOWN = 4
AT_ONCE = 1 << 16
"""Numbers of each array that are checked at a time.

They stay in the processor's cache, and their computation takes no memory that the system would fetch again each time.
"""
SIDE_BY_SIDE = 2
"""Variables whose arrays are checked at the same time, each in a thread.

Reading and numpy leave Python to the other thread.
"""
WORTH_THREADS = 1 << 22
"""Numbers in all slots from which on the threads save more than they cost."""
Part = Mapping[str, np.ndarray]


class Seen(NamedTuple):
    """What is wrong with the arrays of a variable, and the largest absolute value of each slot."""

    wrong: tuple[str, ...]
    largest: dict[str, float]


def checked(state: OptimizerState) -> OptimizerState:
    """Read all slots and their variables, and add an origin to the state for each slot with wrong numbers.

    Raises:
      UnsupportedError: as `check_settings`.
    """
    check_settings(state)
    return replace(state, origins=(*state.origins, *_spoiled(state, rules.of(state.algorithm))))


def check_settings(state: OptimizerState) -> None:
    """Refuse what no optimizer could load. No slot is read.

    Raises:
      UnsupportedError: a hyperparameter out of its range, or a dtype that no optimizer takes.
    """
    _check_hyperparameters(state, rules.of(state.algorithm))
    _check_dtypes(state)


def _check_hyperparameters(state: OptimizerState, rule: type[Rule] | None) -> None:
    declared: Mapping[str, Any] = OPTIONS | arguments(rule or Rule)
    for key, value in state.hyperparameters.items():
        check = declared.get(key)
        try:
            if isinstance(check, Choice) and (value is not None or check.default == ()):
                _check_choice(key, value, check)
            elif isinstance(check, Hyperparameter) and not _may_be_else(key, value):
                check.check(key, _number(key, value))
        except HyperparameterError as error:
            raise UnsupportedError(
                f"{error}: no {state.algorithm} takes that, so the source, or the hint, is wrong; if it is the source,"
                f" give the right value with --set {key}=VALUE"
            ) from error
    exclusive.check_state(state.algorithm, state.hyperparameters, rule)


def _may_be_else(key: str, value: Any) -> bool:
    """Return whether an option may be something other than a number: options may be off, a rate may be a schedule."""
    return key in OPTIONS and (value is None or (key == "learning_rate" and isinstance(value, Mapping)))


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise HyperparameterError(f"{key} must be a number, got {value!r}")
    return float(value)


def _check_choice(key: str, value: Any, declared: Choice) -> None:
    if declared.check in (flag, optional_flag) and value not in (False, True):
        raise HyperparameterError(f"{key} must be true or false, got {value!r}")
    declared.check(key, value)


def _check_dtypes(state: OptimizerState) -> None:
    for v in state.variables:
        if v.dtype in COUNTED and v.name.rpartition("/")[2] in ROLES:
            raise UnsupportedError(
                f"{v.name} is {v.dtype}, and layer weights are never integers: the file was altered. Copy it again"
            )
        if v.dtype.startswith("complex") and v.trainable:
            raise UnsupportedError(
                f"{v.name} is {v.dtype}, and optimizers use real numbers, one of {', '.join(FLOATS)}. If it was not"
                f" trained, add {confirming('untrained', [v.name])}"
            )
    dtypes = {v.name: v.dtype for v in state.variables}
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
    """Return the rule's declarations of the state's slots."""
    if rule is None:
        return {}
    instance = rule()
    switches = {"vhat": "amsgrad", "average_gradient": "centered"}
    on = {option: True for slot, option in switches.items() if slot in state.slots and hasattr(instance, option)}
    return {slot.name: slot for slot in replace(instance, **on).slots}


def _spoiled(state: OptimizerState, rule: type[Rule] | None) -> Iterator[Origin]:
    """Yield NaN and infinities, squares below zero, largest values that are not, and what `slot_bounds` refutes."""
    names_by_text: dict[str, list[str]] = {}
    moved: dict[str, dict[str, float]] = {}
    for name, (texts, largest) in _looked_at(state, _slots(state, rule)).items():
        moved[name] = largest
        for text in texts:
            names_by_text.setdefault(text, []).append(name)
    for text, names in names_by_text.items():
        yield Origin(text.partition(" holds")[0], names, UNINTERPRETED, doubt=f"{some(names, SHOWN)}: {text}")
    yield from slot_bounds.of_whole(
        state, {name: sizes for name, sizes in moved.items() if name not in state.parts.fresh}
    )


def _looked_at(state: OptimizerState, declared: Mapping[str, Slot]) -> dict[str, Seen]:
    """Return variable -> what its arrays show.

    Two variables are checked at the same time. Whole arrays are loaded one after the other: the largest array bounds
    the memory.
    """
    limits, alone = slot_bounds.of(state), threading.Lock()
    values = {v.name: v.array for v in state.variables}

    def look(name: str) -> Seen:
        arrays = {slot: owners[name] for slot, owners in state.slots.items() if name in owners}
        variable = values.get(name)
        if variable is not None:
            arrays[slot_bounds.VARIABLE] = variable
        streamed = all(array.extent is not None for array in arrays.values())
        with nullcontext() if streamed else alone:
            return _of_one(arrays, declared, [] if slot_bounds.is_apart(state, name) else limits)

    names = list(dict.fromkeys(name for owners in state.slots.values() for name in owners))
    if sum(array.size for owners in state.slots.values() for array in owners.values()) < WORTH_THREADS:
        return {name: look(name) for name in names}
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        try:
            return dict(zip(names, pool.map(look, names), strict=True))
        finally:
            pool.shutdown(cancel_futures=True)


def _of_one(arrays: Mapping[str, LazyArray], declared: Mapping[str, Slot], limits: Sequence[slot_bounds.Limit]) -> Seen:
    texts: dict[str, None] = {}
    moved: dict[str, float] = {}
    for shape in dict.fromkeys(array.shape for array in arrays.values()):
        for part in _parts({slot: array for slot, array in arrays.items() if array.shape == shape}):
            for slot, values in part.items():
                least, most = float(values.min()), float(values.max())
                largest = max(abs(least), abs(most))
                moved[slot] = max(moved.get(slot, 0.0), largest if np.isfinite(largest) else np.inf)
                for text in _of_values(slot, least, most, declared.get(slot)):
                    texts[text] = None
            for limit in (*limits, *_at_least(declared)):
                if {limit.slot, limit.by} <= part.keys() and limit.is_broken(part[limit.slot], part[limit.by]):
                    texts[limit.text] = None
    return Seen(tuple(texts), moved)


def _of_values(slot: str, least: float, most: float, known: Slot | None) -> Iterator[str]:
    if not np.isfinite(least) or not np.isfinite(most):  # NaN is both the least and the most
        yield (
            f"slot {slot} holds NaN or infinity"
            if slot != slot_bounds.VARIABLE
            else "the variable holds NaN or infinity"
        )
    elif known is not None and known.nonnegative and least < 0:
        yield f"slot {slot} is a sum of squares and holds negative numbers"


def _at_least(declared: Mapping[str, Slot]) -> Iterator[slot_bounds.Limit]:
    for slot in declared.values():
        if slot.at_least:
            text = f"slot {slot.name} is the largest {slot.at_least} so far and is below it"
            yield slot_bounds.Limit(slot.name, slot.at_least, text, _lies_below)


def _parts(arrays: Mapping[str, LazyArray]) -> Iterator[Part]:
    """Yield arrays of one shape together, flat and a part at a time: they need not fit into memory.

    Raises:
      DamagedFileError: at the end, if an array's checksum differs from the one that its source stores.
    """
    sides = [_flat(array) for array in arrays.values()]
    for parts in zip(*sides, strict=True):
        yield dict(zip(arrays, parts, strict=True))


def _flat(array: LazyArray) -> Iterator[np.ndarray]:
    dtype = loaded_dtype(array.dtype)
    if array.extent is not None:
        buffer = np.empty(min(AT_ONCE, array.size) * dtype.itemsize, np.uint8)
        for chunk in array.extent.chunks(buffer):
            yield widened_if_needed(chunk.view(dtype), array.dtype)
        return
    whole = widened_if_needed(array.load(), array.dtype)
    for start in range(0, array.size, AT_ONCE):
        yield whole[start : start + AT_ONCE]


def widened_if_needed(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return the values flat, and in a dtype that numpy computes in."""
    flat = np.ravel(values)
    return flat if dtype in ("float32", "float64") else widened(flat, dtype)


def _lies_below(values: np.ndarray, least: np.ndarray) -> bool:
    with np.errstate(all="ignore"):  # other checks report NaN and infinities
        return bool(np.any(least > values * (1 + 1e-6)))
