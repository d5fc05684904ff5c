"""Convert a state back to a `get_weights()` list: its arrays, its order, and what the list's reader would change.

The orders are those of `migrate.lists.orders`, read backwards. To compare the rule, `migrate.algorithms.keras_config`
reads the same config for the generation of the list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from migrate import algorithms, generations
from migrate.algorithms import nadam
from migrate.algorithms.spec import Algorithm, Block, FlatOrder
from migrate.bytes.arrays import LazyArray
from migrate.bytes.messages import some
from migrate.claims import Questions, asked_by, asking, doubts
from migrate.errors import AmbiguousError, MissingHintError
from migrate.generations import traits
from migrate.lists import orders
from migrate.rules import differences
from migrate.state import OptimizerState
from migrate.surfaces import ORDER
from optim import schedules, slot_layout
from optim.bytes.bundle import numpy_dtype
from optim.errors import HyperparameterError, UnsupportedError


@dataclass(frozen=True)
class Plan:
    """Arrays of a list in order, and the `reasons` why the generation will not continue the training exactly."""

    generation: str
    order: FlatOrder
    arrays: tuple[LazyArray, ...]
    reasons: tuple[str, ...]


def plan(state: OptimizerState, order: str | None) -> Plan:
    """Return the list of a state.

    Args:
      order: a generation, or `GENERATION:N` for the N-th of the orders that it has; None for the one that wrote the
        source.

    Raises:
      MissingHintError: no order, and the source does not show its own.
      AmbiguousError: the generation has written more than one order; the message numbers them.
      UnsupportedError: no list of that generation can hold the state.
    """
    if order is None and (state.source is None or state.source.generation is None):
        raise MissingHintError(
            f"for which generation is the list? add --order, one of: {', '.join(generations.GENERATIONS)}"
        )
    order_name = order if order is not None else str(state.source.generation if state.source else "")
    try:
        return _planned(state, order_name)
    except UnsupportedError as error:
        raise asking(UnsupportedError(f"{error.text}; {_instead(state)}"), asked_by(error)) from error


def _instead(state: OptimizerState) -> str:
    """Return what to type if a list of one generation cannot hold the state."""
    choices = [order for generation in generations.GENERATIONS for order in _working(state, generation)]
    return f"--order takes {' or '.join(choices)} here" if choices else "migrate to slots, as no list holds this state"


def _working(state: OptimizerState, generation: str) -> list[str]:
    """Return the orders of a generation whose list can hold the state."""
    tried, working = [generation], []
    for order in tried:
        try:
            _planned(state, order)
        except AmbiguousError:
            algorithm = algorithms.find(state.algorithm)
            count = len(_fitting(_with_unread(state, algorithm, generation), algorithm, generation))
            tried += [f"{generation}:{i}" for i in range(1, count + 1)]
        except (UnsupportedError, HyperparameterError):
            continue
        else:
            working.append(order)
    return working


def _planned(state: OptimizerState, order_name: str) -> Plan:
    name, _, number = order_name.partition(":")
    if not algorithms.is_known(state.algorithm):
        raise UnsupportedError(f"how {state.algorithm} orders its list is not known here")
    generation, algorithm = generations.check(name), algorithms.find(state.algorithm)
    has_list = traits(generation).lists_weights
    if not has_list or generation not in algorithm.generations:
        what = f"it has no {algorithm.name}" if has_list else "tf.train optimizers have no get_weights()"
        raise UnsupportedError(f"there is no list of generation {generation}: {what}")
    reasons = differences.differences(state, algorithm, generation)
    state = _with_unread(state, algorithm, generation)
    chosen = _chosen(_fitting(state, algorithm, generation), number, generation)
    arrays = [array for _, _, array in _entries(state, chosen, generation)]
    if any(a.dtype == "bfloat16" for a in arrays):
        raise UnsupportedError("the slots are bfloat16, which .npz files do not know")
    if orders.ITERATIONS not in chosen and state.iterations:
        reasons.append(
            f"the list has no place for the {state.iterations} steps taken: set optimizer.iterations to that yourself"
        )
    return Plan(generation, chosen, tuple(arrays), tuple(reasons))


def for_list(state: OptimizerState, order: str | None) -> OptimizerState:
    """Return the state with the reasons why its list would not be exact. Raises as `plan`."""
    list_plan = plan(state, order)
    origins = (*state.origins, *doubts("list", list_plan.reasons))
    text = orders.describe(list_plan.order)
    note = f"the list of generation {list_plan.generation}: {text}; it holds no variables of the model"
    return replace(state, origins=origins, warnings=(*state.warnings, note))


def _with_unread(state: OptimizerState, algorithm: Algorithm, generation: str) -> OptimizerState:
    """Return the state with zeros for slots that no step reads.

    An example is the momentum of SGD's older lists, which is there even if it is switched off.
    """
    kinds = {v.trainable for v in state.variables}
    is_off = state.algorithm == "SGD" and not state.slots and not state.hyperparameters.get("momentum")
    unread = ("m",) if is_off and traits(generation).keeps_idle_momentum else algorithm.unread
    if not unread or None in kinds:
        return state
    zeros = {
        v.name: LazyArray(v.shape, v.dtype, partial(np.zeros, v.shape, numpy_dtype(v.dtype)), "zeros")
        for v in state.variables
        if v.trainable
    }
    return replace(state, slots={**state.slots, **dict.fromkeys(unread, zeros)})


def _fitting(state: OptimizerState, algorithm: Algorithm, generation: str) -> list[FlatOrder]:
    """Return the generation's orders that hold just the slots of the state, without those that only a restore makes."""
    config = differences.config_for(state, algorithm, generation)
    possible = orders.candidates(algorithm, generation, config)
    direct = [order for order in possible if len(order) < 2 or order[-1] != orders.ITERATIONS]
    padded = [o for o in direct if any(isinstance(item, Block) and item.placeholder for item in o)]
    direct = padded if traits(generation).always_pads_amsgrad and padded else direct
    present = set(state.slots)
    fitting = []
    for order in direct:
        blocks = [item for item in order if isinstance(item, Block) and not item.placeholder]
        order_slots = {slot for block in blocks for slot in block.slots}
        free = {slot for block in blocks if block.factored for slot in block.slots}
        free |= {block.slots[-1] for block in blocks if block.last_of_some}
        if present <= order_slots and order_slots - present <= free:
            fitting.append(order)
    if not fitting:
        keeps = "; or ".join(orders.describe(order) for order in direct)
        has = f"the slots {', '.join(state.slots)}" if state.slots else "no slots"
        raise UnsupportedError(
            f"the state has {has}, and a list of {algorithm.name} in generation {generation} keeps: {keeps}"
        )
    return fitting


def _chosen(fitting: Sequence[FlatOrder], number: str, generation: str) -> FlatOrder:
    if not number and len(fitting) == 1:
        return fitting[0]
    listed = "; ".join(f"{generation}:{i} is {_described(order)}" for i, order in enumerate(fitting, 1))
    if not number:
        text = f"releases of generation {generation} wrote different lists; choose one by --order: {listed}"
        choices = tuple({ORDER: f"{generation}:{i}"} for i in range(1, len(fitting) + 1))
        raise asking(AmbiguousError(text), Questions({}, choices))
    if not number.isdecimal() or not 1 <= int(number) <= len(fitting):
        raise HyperparameterError(f"there is no order {generation}:{number}; {listed}")
    return fitting[int(number) - 1]


Entry = tuple[str, str | None, LazyArray]
"""A slot and its variable, or a scalar and None; and the array."""


def newest(state: OptimizerState, generation: str, is_wrapped: bool) -> tuple[Entry, ...]:
    """Return the list that the newest release of Keras 3 or tf_keras keeps for a state in that generation's terms.

    `is_wrapped`: within a LossScaleOptimizer, which does not keep the zeros that Keras 3's Adafactor makes.

    Raises:
      UnsupportedError: no list of that generation can hold the state.
    """
    fitting = _fitting(state, algorithms.find(state.algorithm), generation)
    fitting = [order for order in fitting if not (is_wrapped and _has_zeros(order))]
    return tuple(_entries(state, fitting[-1 if traits(generation).has_release_orders else 0], generation))


def _has_zeros(order: FlatOrder) -> bool:
    return any(isinstance(item, Block) and item.factored == "zeros" for item in order)


def _described(order: FlatOrder) -> str:
    return orders.describe(order) + (", with zeros for r and c below rank 2" if _has_zeros(order) else "")


def _entries(state: OptimizerState, order: FlatOrder, generation: str) -> list[Entry]:
    owners = {name for per in state.slots.values() for name in per}
    without = [v.name for v in state.variables if v.trainable and v.name not in owners]
    if owners and without and not traits(generation).lists_updated_only:
        text = (
            f"{some(without)} can be trained and have no slots, and a list of generation {generation} has some"
            " of every trainable variable"
        )
        raise asking(UnsupportedError(text), state.questions)  # these may ask whether they are trained
    names = [v.name for v in state.variables if v.name in owners]
    shapes = {v.name: v.shape for v in state.variables}
    entries: list[Entry] = []
    algorithm = algorithms.find(state.algorithm)
    for item in order:
        if isinstance(item, str):
            entries.append((item, None, _scalar(state, item, generation)))
        elif item.placeholder:
            entries += [(item.slots[0], name, _constant(np.zeros(1, np.float32))) for name in names]
        elif item.factored:
            for name in names:
                factors = _factored(state, name, len(shapes[name]) > 1, item.factored)
                entries += [
                    (slot, name, array) for slot, array in zip(item.slots[-len(factors) :], factors, strict=True)
                ]
        else:
            entries += [
                (slot, name, algorithm.slot(slot).for_source(state.slots[slot][name], shapes[name]))
                for name in names
                for slot in item.slots
                if not item.last_of_some or name in state.slots.get(slot, {})
            ]
    return entries


def _factored(state: OptimizerState, name: str, is_factored: bool, kind: str) -> list[LazyArray]:
    """Return Adafactor's r, c, v. A factored variable overwrites v before reading it, so zeros replace a lost v."""
    zero = _constant(np.zeros((), np.float32))
    if not is_factored:
        v = state.slots["v"][name]
        return [v] if kind == "gaps" else [zero, zero, v]
    shape = next(v.shape for v in state.variables if v.name == name)
    product = state.unmapped.get(f"v/{name}") or _constant(np.zeros(shape, np.float32))
    return [state.slots["r"][name], state.slots["c"][name], product]


def _scalar(state: OptimizerState, name: str, generation: str) -> LazyArray:
    if name == orders.ITERATIONS:
        batches = int(state.hyperparameters.get("gradient_accumulation_steps") or 1)
        gathered = int(state.scalars.get(slot_layout.ACCUMULATED_STEPS, 0))
        of = traits(generation)
        count = state.iterations * batches + gathered if of.accumulates_gradients else state.iterations
        return _constant(np.array(count, numpy_dtype(of.counter_dtypes[0])))
    if name == orders.LEARNING_RATE:
        rate = state.hyperparameters["learning_rate"]
        now = schedules.from_config(rate).at(state.iterations) if isinstance(rate, Mapping) else rate
        return _constant(np.array(now, np.float32))
    assert name == nadam.PRODUCT
    known = state.hyperparameters
    computed = nadam.product(known["beta_1"], known.get("schedule_decay", 1.0), state.iterations)
    return _constant(np.array(state.scalars.get(name, computed), np.float32))


def _constant(array: np.ndarray) -> LazyArray:
    return LazyArray(array.shape, array.dtype.name, lambda: array, "")
