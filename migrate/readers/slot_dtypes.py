"""Slots in fewer bits than their variables, as numbers that any target can hold: docs/memory.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from migrate.bytes.arrays import LazyArray, widened
from migrate.bytes.messages import some
from migrate.claims import UNINTERPRETED, Origin
from optim import slot_layout
from optim.bits import codes

CODES = (codes.SIGNED, codes.UNSIGNED)
Slots = dict[str, dict[str, LazyArray]]
OPTION, SEED = "slot_dtype", "rounding_seed"


def in_float32(slots: Slots) -> Slots:
    """Slots of codes, or of bfloat16, in float32; without the scales of codes."""
    float32_slots = {slot: dict(owners) for slot, owners in slots.items()}
    for slot, owners in slots.items():
        scales = float32_slots.get(slot_layout.scale_of(slot), {})
        for name, array in owners.items():
            if array.dtype in CODES and name in scales:
                float32_slots[slot][name] = _decoded(array, scales.pop(name))
            elif array.dtype == "bfloat16":
                float32_slots[slot][name] = _widened(array)
    return {slot: owners for slot, owners in float32_slots.items() if owners or not slots[slot]}


def _decoded(array: LazyArray, scales: LazyArray) -> LazyArray:
    return replace(array, dtype="float32", load=lambda: codes.decode(array.load(), scales.load()), extent=None)


def _widened(array: LazyArray) -> LazyArray:
    def load() -> Any:
        return widened(array.load(), array.dtype).astype("float32").reshape(array.shape)

    return replace(array, dtype="float32", load=load, extent=None)


def without(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config of an optimizer that has its slots in float32."""
    kept = {key: value for key, value in config.items() if key != OPTION}
    if not kept.get("stochastic_rounding"):
        kept.pop(SEED, None)
    return kept


def doubt(dtype: str, slots: Mapping[str, Any]) -> Origin:
    """The warning that the source rounded slots after each step, which a target does not."""
    text = (
        f"slots {some(list(slots))} are stored as {dtype} and read as float32, in which the target continues; to store"
        f" them so again: optim.load_checkpoint(..., slot_dtype={dtype!r})"
    )
    return Origin("slots in fewer bits", dtype, UNINTERPRETED, doubt=text)
