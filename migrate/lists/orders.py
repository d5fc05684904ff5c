"""Flat `get_weights()` lists: which orders a generation may have written, and which of them a list fits.

The order is never guessed: a list must fit by length, shapes and integer step counter, and every sum of squares in it
must not be negative. If two orders fit, the signs may decide; else AmbiguousError. Orders: research of 27 releases,
`keras/optimizers.py` 1.2.2 - 2.3.1, `optimizer_v2.py` 2.9, `optimizers/optimizer.py` 2.15, `base_optimizer.py` 3.15.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from migrate.algorithms.spec import ACCUMULATED, AVERAGE, Algorithm, Block, Config, FlatOrder
from migrate.bytes.arrays import LazyArray, loaded_dtype, widened
from migrate.generations import FLOAT, traits

ITERATIONS = "iterations"
LEARNING_RATE = "learning_rate"
BY_VARIABLE = Block((AVERAGE.name, ACCUMULATED.name))
"""Both slots of each variable, as Keras 3.5 to 3.9 wrote them: `build` of `keras/src/optimizers/base_optimizer.py`."""
BEGINNING = 1 << 18
"""How many bytes of an array show whether its slot has signs."""


@dataclass(frozen=True)
class Owners:
    """The variables of a list in which only some have the last slot.

    Their number, and (which of them, its shape) -> whether it has the slot.
    """

    count: int
    has: Callable[[int, tuple[int, ...]], bool]


@dataclass(frozen=True)
class Resolved:
    """A list split by one order: scalars by name, and for each slot one array per variable, in order.

    An array is None if a variable of that shape does not have the slot.

    Attributes:
      stages: shapes of the variables, split where variables joined the optimizer later than others (usually one stage).
    """

    order: FlatOrder
    scalars: dict[str, LazyArray]
    slots: dict[str, list[LazyArray | None]]
    placeholders: list[LazyArray]
    stages: tuple[tuple[tuple[int, ...], ...], ...] = ((),)
    release: str = ""
    """The TensorFlow release that writes this order, if only one of its generation does."""
    unread: tuple[tuple[int, str, LazyArray], ...] = ()
    """(variable, slot, array) of what no step reads: Adafactor's product of its means."""

    @property
    def restored(self) -> bool:
        """Whether it is OptimizerV2's order after tf.train.Checkpoint.restore: variables as they were restored."""
        return len(self.order) > 1 and self.order[-1] == ITERATIONS

    def describe(self) -> str:
        later = f", then the same for {len(self.stages[1])} variables more" if len(self.stages) > 1 else ""
        return describe(self.order) + later


def candidates(algorithm: Algorithm, generation: str, config: Config) -> list[FlatOrder]:
    """Return every order in which this generation can have written this optimizer."""
    averages = [(Block((AVERAGE.name,)),) if config.get("use_ema") else ()]
    if traits(generation).accumulates_gradients and config.get("gradient_accumulation_steps") not in (None, 0, 1):
        averages = [*([(BY_VARIABLE,)] if averages[0] else []), (*averages[0], Block((ACCUMULATED.name,)))]
    orders = (order for average in averages for order in _with_shared(algorithm, generation, config, average))
    return list(dict.fromkeys(orders))


def of_release(possible: Sequence[FlatOrder], release: tuple[int, ...]) -> list[FlatOrder]:
    """Return the orders that a release of Keras 3 writes; all of them if the release is unknown."""
    if not release:
        return list(possible)
    is_old = release < (3, 10)
    others = {Block((ACCUMULATED.name,)), Block((AVERAGE.name,))} if is_old else {BY_VARIABLE}
    return [order for order in possible if not others <= set(order)]


def _with_shared(algorithm: Algorithm, generation: str, config: Config, average: tuple[Block, ...]) -> list[FlatOrder]:
    """Return the orders with the slots that every algorithm may have."""
    counter: tuple[str, ...] = (ITERATIONS,) if generation in algorithm.counts else ()
    orders: list[FlatOrder] = []
    of = traits(generation)
    for blocks in algorithm.orders(generation, config):
        if of.shows_release_in_list:
            orders.append((*average, *blocks))  # 2.10: slots only
            orders.append((*counter, *average, *blocks))  # 2.11 and 2.12, whose modules have this name, too
            orders.append(_alphabetical(algorithm, (*average, *blocks), config))
        elif of.lists_rate and not isinstance(config.get(LEARNING_RATE), dict):
            orders.append((*counter, LEARNING_RATE, *average, *blocks))
        else:
            orders.append((*counter, *average, *blocks))
        if of.changes_order_at_restore:
            # After tf.train.Checkpoint.restore the list is variable-major, with the counter last.
            merged = Block(tuple(slot for block in blocks if isinstance(block, Block) for slot in block.slots))
            if not any(isinstance(block, str) for block in blocks):
                orders.append((merged, ITERATIONS) if merged.slots else (ITERATIONS,))
    return orders


def _alphabetical(algorithm: Algorithm, blocks: Sequence[str | Block], config: Config) -> FlatOrder:
    """Return the order of TF 2.9's experimental optimizers, which list their attributes by name."""
    attributes: dict[str, str | Block] = {"_iterations": ITERATIONS}
    attributes |= {f"_{name}": name for name in blocks if isinstance(name, str)}
    attributes["_current_learning_rate" if isinstance(config.get(LEARNING_RATE), dict) else "_learning_rate"] = (
        LEARNING_RATE
    )
    for block in blocks:
        for slot in block.slots if isinstance(block, Block) else ():
            attributes["_" + algorithm.slot(slot).aliases[0]] = Block((slot,))
    return tuple(attributes[name] for name in sorted(attributes))


def cuts(
    possible: Sequence[FlatOrder], weights: Sequence[LazyArray], generation: str, owners: Owners | None = None
) -> list[Resolved]:
    """Return the list split by each order that fits by length, shapes and step counter.

    Args:
      owners: for orders in which only some variables have the last slot; without it, these orders do not fit.
    """
    float_counter = FLOAT in traits(generation).counter_dtypes  # int64 since Keras 2.0.8
    splits = [_cut(order, weights, float_counter, owners) for order in possible]
    fitting = [resolved for resolved in splits if resolved is not None]
    if not traits(generation).shows_release_in_list:
        return fitting
    return [replace(r, release=_release(r.order)) for r in fitting]


def _release(order: FlatOrder) -> str:
    """Return the release of an experimental list: 2.9 lists the learning rate, 2.10 no scalar, 2.11 the counter."""
    return "2.9" if LEARNING_RATE in order else "2.11" if ITERATIONS in order else "2.10"


def staged(possible: Sequence[FlatOrder], weights: Sequence[LazyArray]) -> list[Resolved]:
    """Return OptimizerV2 lists of variables that joined in two stages, as after unfreezing: slots are appended."""
    splits = []
    for order in possible:
        scalars = [item for item in order if isinstance(item, str)]
        blocks = [item for item in order if isinstance(item, Block)]
        width = sum(len(block.slots) for block in blocks)
        if not width or list(order[: len(scalars)]) != scalars:
            continue
        start = len(scalars)
        for end in range(start + width, len(weights), width):
            first = _cut(order, weights[:end], False)
            second = _cut(tuple(blocks), weights[end:], False)
            if first is not None and second is not None:
                slots = {slot: [*first.slots[slot], *second.slots[slot]] for slot in first.slots}
                splits.append(Resolved(order, first.scalars, slots, [], (*first.stages, *second.stages)))
    return splits


def _cut(
    order: FlatOrder, weights: Sequence[LazyArray], float_counter: bool, owners: Owners | None = None
) -> Resolved | None:
    last = order[-1] if order else None
    uneven = last if isinstance(last, Block) and (last.factored or last.last_of_some) else None
    even = order[:-1] if uneven is not None else order
    head = sum(isinstance(item, str) for item in even)
    width = sum(len(item.slots) for item in even if isinstance(item, Block))
    rest = len(weights) - head
    rows: Rows | None = []
    if uneven is not None and uneven.factored:
        rows = _factored(uneven, weights, head, width)
    elif uneven is not None:
        rows = None if owners is None else _of_some(uneven, weights, head + width * owners.count, owners)
    elif rest < 0 or (rest % width if width else rest):
        return None
    if rows is None:
        return None
    count = len(rows) if uneven is not None else rest // width if width else 0
    scalars: dict[str, LazyArray] = {}
    slots: dict[str, list[LazyArray | None]] = {}
    placeholders: list[LazyArray] = []
    position = 0
    for item in even:
        length = 1 if isinstance(item, str) else len(item.slots) * count
        run = weights[position : position + length]
        position += length
        if isinstance(item, str):
            scalars[item] = run[0]
        elif item.placeholder:
            placeholders.extend(run)
        else:
            slots.update({slot: list(run[index :: len(item.slots)]) for index, slot in enumerate(item.slots)})
    whole = -1 if uneven is not None and uneven.factored else 0  # the slot with the shape of the variable
    first = [row[whole] for row in rows] or next(iter(slots.values()), [])
    shapes = tuple(a.shape for a in first if a is not None)
    if not _are_consistent(scalars, placeholders, float_counter) or any(_shapes(s) != shapes for s in slots.values()):
        return None
    unread = []
    for index, slot in enumerate(uneven.slots if uneven is not None else ()):
        slots[slot] = [row[index] for row in rows]
        if uneven is not None and uneven.factored and index == 2:
            unread = [(i, slot, v) for i, v in enumerate(slots[slot]) if v is not None and len(v.shape) > 1]
            slots[slot] = [None if v is None or len(v.shape) > 1 else v for v in slots[slot]]
    return Resolved(order, scalars, slots, placeholders, (shapes,), unread=tuple(unread))


def _are_consistent(scalars: Mapping[str, LazyArray], placeholders: Sequence[LazyArray], float_counter: bool) -> bool:
    counter = scalars.get(ITERATIONS)
    if any(a.shape != () for a in scalars.values()) or any(a.shape != (1,) for a in placeholders):
        return False
    return counter is None or counter.dtype.startswith(("int", "uint")) or float_counter


def _shapes(arrays: Sequence[LazyArray | None]) -> tuple[tuple[int, ...] | None, ...]:
    return tuple(None if a is None else a.shape for a in arrays)


Rows = list[tuple["LazyArray | None", ...]]
"""For each variable its arrays of a block's slots, None for a slot that it does not have."""


def _factored(block: Block, weights: Sequence[LazyArray], head: int, width: int) -> Rows | None:
    """Split Adafactor's lists from the end: each variable has its v, and the r and c before it follow from that."""
    rows: Rows = []
    end = len(weights)
    while end > head + width * len(rows):
        v = weights[end - 1]
        if len(v.shape) < 2 and block.factored == "gaps":
            rows.append((None, None, v))
            end -= 1
            continue
        if end < head + 3:
            return None
        r, c = weights[end - 3 : end - 1]
        means = (v.shape[:-1], (*v.shape[:-2], v.shape[-1])) if len(v.shape) > 1 else ((), ())
        if (r.shape, c.shape) != means:
            return None
        rows.append((r, c, v) if len(v.shape) > 1 else (None, None, v))
        end -= 3
    return rows[::-1] if end == head + width * len(rows) else None


def _of_some(block: Block, weights: Sequence[LazyArray], start: int, owners: Owners) -> Rows | None:
    """Split Muon's lists, in which only variables that Adam updates have v."""
    rows: Rows = []
    for i in range(owners.count):
        has = start < len(weights) and owners.has(i, weights[start].shape)
        run = weights[start : start + len(block.slots) - (not has)]
        start += len(block.slots) - (not has)
        rows.append((*run, *(() if has else (None,))))
    is_even = all(len({a.shape for a in row if a is not None}) == 1 for row in rows)
    return rows if start == len(weights) and is_even else None


def plausible(resolved: Resolved, algorithm: Algorithm, *, whole: bool) -> bool:
    """Return whether every sum of squares is free of negative numbers (NaN is migrated as it is).

    Args:
      whole: whether to check all of each array; the beginnings of another slot's arrays show as much.
    """
    for slot, arrays in resolved.slots.items():
        if algorithm.slot(slot).nonnegative and any(a is not None and _has_negative(a, whole) for a in arrays):
            return False
    return not any(np.any(a.load() != 0) for a in resolved.placeholders)


def _has_negative(array: LazyArray, whole: bool) -> bool:
    if whole or array.extent is None:
        values = array.load()
    else:
        beginning = array.extent.part(0, min(array.extent.size, BEGINNING))
        values = beginning.read().view(loaded_dtype(array.dtype))
    if array.dtype == "bfloat16":
        values = widened(values, array.dtype)
    return bool(np.any(values < 0))


def describe(order: FlatOrder) -> str:
    """Return an order in words, for messages."""
    parts = []
    for item in order:
        if isinstance(item, str):
            parts.append(item)
        elif item.placeholder:
            parts.append(f"placeholders of {item.slots[0]}")
        else:
            parts.append(
                f"({', '.join(item.slots)}) of each variable" if len(item.slots) > 1 else f"all {item.slots[0]}"
            )
    return ", ".join(parts) or "nothing"
