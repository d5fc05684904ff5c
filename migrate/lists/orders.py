"""Flat `get_weights()` lists: which orders a generation may have written, and which of them a list fits.

The order is never guessed: a list must fit by length, shapes and integer step counter, and every sum of squares in it
must not be negative. If two orders fit, the signs may decide; else AmbiguousError. Orders: research of 27 releases,
`keras/optimizers.py` 1.2.2 - 2.3.1, `optimizer_v2.py` 2.9, `optimizers/optimizer.py` 2.15, `base_optimizer.py` 3.15.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    found = (order for average in averages for order in _with_shared(algorithm, generation, config, average))
    return list(dict.fromkeys(found))


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
    found = [_cut(order, weights, float_counter, owners) for order in possible]
    fitting = [resolved for resolved in found if resolved is not None]
    if not traits(generation).shows_release_in_list:
        return fitting
    return [replace(r, release=_release(r.order)) for r in fitting]


def _release(order: FlatOrder) -> str:
    """Return the release of an experimental list: 2.9 lists the learning rate, 2.10 no scalar, 2.11 the counter."""
    return "2.9" if LEARNING_RATE in order else "2.11" if ITERATIONS in order else "2.10"


def staged(possible: Sequence[FlatOrder], weights: Sequence[LazyArray]) -> list[Resolved]:
    """Return OptimizerV2 lists of variables that joined in two stages, as after unfreezing: slots are appended."""
    found = []
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
                found.append(Resolved(order, first.scalars, slots, [], (*first.stages, *second.stages)))
    return found


def _cut(
    order: FlatOrder, weights: Sequence[LazyArray], float_counter: bool, owners: Owners | None = None
) -> Resolved | None:
    last = order[-1] if order else None
    if isinstance(last, Block) and last.last_of_some:
        return None if owners is None else _cut_some(order, last, weights, float_counter, owners)
    if isinstance(last, Block) and last.factored:
        return _cut_factored(order, last, weights, float_counter)
    scalars_wanted = sum(isinstance(item, str) for item in order)
    per_variable = sum(len(item.slots) for item in order if isinstance(item, Block))
    rest = len(weights) - scalars_wanted
    if rest < 0 or (rest % per_variable if per_variable else rest):
        return None
    count = rest // per_variable if per_variable else 0
    scalars: dict[str, LazyArray] = {}
    slots: dict[str, list[LazyArray | None]] = {}
    placeholders: list[LazyArray] = []
    position = 0
    for item in order:
        if isinstance(item, str):
            scalars[item] = weights[position]
            position += 1
            continue
        width = len(item.slots)
        run = weights[position : position + width * count]
        position += width * count
        if item.placeholder:
            placeholders.extend(run)
        else:
            slots.update({slot: list(run[index::width]) for index, slot in enumerate(item.slots)})
    shapes = tuple(a.shape for a in next(iter(slots.values()), []) if a is not None)
    resolved = Resolved(order, scalars, slots, placeholders, (shapes,))
    return resolved if _consistent(resolved, float_counter) else None


def _consistent(resolved: Resolved, float_counter: bool) -> bool:
    counter = resolved.scalars.get(ITERATIONS)
    if any(a.shape != () for a in resolved.scalars.values()) or any(a.shape != (1,) for a in resolved.placeholders):
        return False
    if counter is not None and not counter.dtype.startswith(("int", "uint")) and not float_counter:
        return False
    return all(_shapes(arrays) == resolved.stages[0] for arrays in resolved.slots.values())


def _shapes(arrays: Sequence[LazyArray | None]) -> tuple[tuple[int, ...] | None, ...]:
    return tuple(None if a is None else a.shape for a in arrays)


def _cut_factored(order: FlatOrder, block: Block, weights: Sequence[LazyArray], float_counter: bool) -> Resolved | None:
    """Split Adafactor's lists from the end: each variable has its v, and the r and c before it follow from that."""
    head = [item for item in order[:-1] if isinstance(item, str)]
    before = [slot for item in order[:-1] if isinstance(item, Block) for slot in item.slots]
    triples: list[tuple[LazyArray | None, LazyArray | None, LazyArray]] = []
    end = len(weights)
    while end > len(head) + len(before) * len(triples):
        v = weights[end - 1]
        if len(v.shape) < 2 and block.factored == "gaps":
            triples.append((None, None, v))
            end -= 1
            continue
        if end < len(head) + 3:
            return None
        r, c = weights[end - 3 : end - 1]
        means = (v.shape[:-1], (*v.shape[:-2], v.shape[-1])) if len(v.shape) > 1 else ((), ())
        if (r.shape, c.shape) != means:
            return None
        triples.append((r, c, v) if len(v.shape) > 1 else (None, None, v))
        end -= 3
    triples.reverse()
    shapes = tuple(v.shape for _, _, v in triples)
    slots: dict[str, list[LazyArray | None]] = {}
    for i, slot in enumerate(before):
        start = len(head) + i * len(triples)
        slots[slot] = list(weights[start : start + len(triples)])
    if any(_shapes(arrays) != shapes for arrays in slots.values()) or end != len(head) + len(before) * len(triples):
        return None
    slots |= {"r": [t[0] for t in triples], "c": [t[1] for t in triples]}
    slots["v"] = [v if len(v.shape) < 2 else None for _, _, v in triples]
    unread = tuple((i, "v", v) for i, (_, _, v) in enumerate(triples) if len(v.shape) > 1)
    scalars = dict(zip(head, weights, strict=False))
    bare = Resolved(order, scalars, {}, [], ((),))
    return Resolved(order, scalars, slots, [], (shapes,), unread=unread) if _consistent(bare, float_counter) else None


def _cut_some(
    order: FlatOrder, block: Block, weights: Sequence[LazyArray], float_counter: bool, owners: Owners
) -> Resolved | None:
    """Split Muon's lists, in which only variables that Adam updates have v."""
    scalars = [item for item in order[:-1] if isinstance(item, str)]
    before = [slot for item in order[:-1] if isinstance(item, Block) for slot in item.slots]
    position = len(scalars)
    slots: dict[str, list[LazyArray | None]] = {}
    for slot in before:
        slots[slot] = list(weights[position : position + owners.count])
        position += owners.count
    slots |= {slot: [] for slot in block.slots}
    for i in range(owners.count):
        has = position < len(weights) and owners.has(i, weights[position].shape)
        run = weights[position : position + len(block.slots) - (not has)]
        position += len(block.slots) - (not has)
        for slot, array in zip(block.slots, [*run, *([] if has else [None])], strict=False):
            slots[slot].append(array)
    if position != len(weights):
        return None
    first, last = slots[block.slots[0]], slots[block.slots[-1]]
    shapes = tuple(array.shape for array in first if array is not None)
    every = [slots[slot] for slot in (*before, *block.slots[:-1])]
    if any(_shapes(arrays) != shapes for arrays in every) or any(
        array is not None and array.shape != shape for array, shape in zip(last, shapes, strict=True)
    ):
        return None
    named = dict(zip(scalars, weights, strict=False))
    bare = Resolved(order, named, {}, [], ((),))
    return Resolved(order, named, slots, [], (shapes,)) if _consistent(bare, float_counter) else None


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
