"""Slots, variables and counters with other values, shapes and dtypes, in any format."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import numpy as np

import migrate
from migrate.evidence import slot_bounds
from tests.alterations.alteration import Alteration, Change, Hints
from tests.alterations.arrays import arrays

Edit = Callable[[MutableMapping[str, Any]], object]
START = (*slot_bounds.FROM_ZERO, *slot_bounds.SQUARES)
"""Slots that steps move away from zero, for good."""


def of_numbers(case: Path, source: str, state: migrate.OptimizerState) -> Iterator[Alteration]:
    """Slots, variables and counters with other values, and of other shapes and dtypes."""

    def change(edit: Callable[[MutableMapping[str, Any]], object]) -> Change:
        def alter(folder: Path, _: Hints) -> None:
            with arrays(folder, source) as found:
                edit(found)

        return alter

    slots = {
        s: {n: re.split(" times |, one element", a.stored_as)[0] for n, a in o.items()} for s, o in state.slots.items()
    }
    yield from (Alteration("slots", what, change(edit), told) for what, edit, told in _of_slots(slots, state))
    with _copied(case) as copy, arrays(copy, source) as found:
        counters = [k for k, v in found.items() if np.asarray(v).size == 1 and k not in _keys(slots)]
    for key in counters:
        for value in (-1.0, 0.5, 1e30, float("nan"), 0.0):
            yield Alteration("scalars", f"{key} is {value}", change(lambda f, k=key, v=value: _set(f, k, v)), False)
        for plus in (1, -1, 1000):
            yield Alteration("scalars", f"{key} {plus:+}", change(lambda f, k=key, p=plus: _add(f, k, p)), False)
        yield Alteration("scalars", f"{key} halved", change(lambda f, k=key: _scale(f, [k], 0.5)), False)
        yield Alteration("scalars", f"without {key}", change(lambda f, k=key: f.pop(k)), False)


@contextlib.contextmanager
def _copied(case: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(case, copy)
        yield copy


def _keys(slots: dict[str, dict[str, str]]) -> set[str]:
    return {key for owners in slots.values() for key in owners.values()}


def _of_slots(slots: dict[str, dict[str, str]], state: migrate.OptimizerState) -> Iterator[tuple[str, Edit, bool]]:
    arrays_ = {slot: {n: a.load() for n, a in owners.items()} for slot, owners in state.slots.items()}
    adam = {"m", "v"} <= slots.keys() and state.algorithm in slot_bounds.MOMENTS
    for slot, owners in slots.items():
        keys = list(owners.values())
        moved = any(np.any(a) for a in arrays_[slot].values())
        yield f"{slot} zeroed", lambda f, k=keys: _scale(f, k, 0.0), moved and slot in START and bool(state.iterations)
        for factor in (2.0, 1e-6, 1e6, -1.0):
            told = (adam and slot == "v" and factor == 1e-6) or (
                slot in ("v", "u", "velocity") and factor < 0 and moved
            )
            yield f"{slot} times {factor:g}", lambda f, k=keys, x=factor: _scale(f, k, x), told
        for value in (np.nan, np.inf):
            yield f"{value} in {slot}", lambda f, k=keys, x=value: _put(f, k[-1], x), True
        for dtype in ("float64", "float16", "int32"):
            yield f"{slot} of {dtype}", lambda f, k=keys, d=dtype: _cast(f, k, d), True
        big = next((k for n, k in owners.items() if arrays_[slot][n].ndim == 2), None)
        if big is not None:
            shape = next(arrays_[slot][n].shape for n, k in owners.items() if k == big)
            yield f"{slot} transposed", lambda f, k=big: f.update({k: f[k].T}), shape[0] != shape[1]
            yield f"{slot} flat", lambda f, k=big: f.update({k: f[k].reshape(-1)}), True
        half = keys[len(keys) // 2 :]
        rest = any(np.any(arrays_[slot][n]) for n, k in owners.items() if k not in half)
        gone = rest and slot in START
        yield f"half of {slot} zeroed", lambda f, k=half: _scale(f, k, 0.0), gone
        apart = state.source is not None and state.source.format == "tf_dtensor_names" and len(slots) == 1
        yield f"half of {slot} gone", lambda f, k=half: [f.pop(each) for each in k], not apart
        twins = _twins(arrays_[slot])
        if twins is not None:
            a, b = (owners[name] for name in twins)
            yield f"{slot} of {' and '.join(twins)} swapped", lambda f, a=a, b=b: _swap(f, a, b), False
    names = list(slots)
    for one, other in ((a, b) for i, a in enumerate(names) for b in names[i + 1 :]):
        pairs = [(slots[one][n], slots[other][n]) for n in slots[one] if n in slots[other]]
        signed = any(np.any(a < 0) for a in arrays_[one].values()) if other in ("v", "u", "velocity") else False
        yield f"{one} and {other} swapped", lambda f, p=pairs: [_swap(f, a, b) for a, b in p], signed
    everything = [key for owners in slots.values() for key in owners.values()]
    if everything:
        yield "all slots zeroed", lambda f: _scale(f, everything, 0.0), bool(state.iterations)
        half = [key for owners in slots.values() for key in list(owners.values())[len(owners) // 2 :]]
        some = any(np.any(a) for o in arrays_.values() for a in list(o.values())[: len(o) // 2])
        told = some and any(slot in START for slot in slots)
        yield "half of all slots zeroed", lambda f: _scale(f, half, 0.0), told
        yield "all slots of another run", lambda f: _shuffle(f, everything), False


def _twins(values: dict[str, np.ndarray]) -> tuple[str, str] | None:
    names = list(values)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            if values[a].shape == values[b].shape and not np.array_equal(values[a], values[b]):
                return a, b
    return None


def _set(found: MutableMapping[str, Any], key: str, value: float) -> None:
    old = np.asarray(found[key])
    with np.errstate(all="ignore"):
        kept = old.dtype.kind == "f" or (value == int(value) if np.isfinite(value) else False)
        kept = kept and (old.dtype.kind == "f" or abs(value) < 2**62)
        found[key] = np.full(old.shape, value, old.dtype if kept else np.float32)


def _add(found: MutableMapping[str, Any], key: str, plus: int) -> None:
    old = np.asarray(found[key])
    found[key] = (old + np.asarray(plus, old.dtype)).astype(old.dtype)


def _scale(found: MutableMapping[str, Any], keys: list[str], factor: float) -> None:
    for key in keys:
        found[key] = (np.asarray(found[key]) * factor).astype(np.asarray(found[key]).dtype)


def _put(found: MutableMapping[str, Any], key: str, value: float) -> None:
    array = np.array(found[key])
    array.flat[0] = value
    found[key] = array


def _cast(found: MutableMapping[str, Any], keys: list[str], dtype: str) -> None:
    for key in keys:
        found[key] = np.asarray(found[key]).astype(dtype)


def _swap(found: MutableMapping[str, Any], a: str, b: str) -> None:
    found[a], found[b] = np.array(found[b]), np.array(found[a])


def _shuffle(found: MutableMapping[str, Any], keys: list[str]) -> None:
    random = np.random.default_rng(0)
    for key in keys:
        found[key] = random.permutation(np.asarray(found[key]).reshape(-1)).reshape(np.asarray(found[key]).shape)
