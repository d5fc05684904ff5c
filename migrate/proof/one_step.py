"""Compare one step with a pseudo-random gradient: by `optim`, which loads the slot-variable checkpoint, and by the
formula of the source's generation."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from migrate.bytes.messages import some
from migrate.proof import by_rule, parity, parity_sample, stepping, tensorflow
from migrate.readers.slots import read as read_slots
from migrate.state import OptimizerState, StoredVariable
from migrate.writers.slots import write as write_slots
from optim.errors import UnsupportedError

GRADIENT_SCALE = 1.0
NO_FORMULA = {"cautious": "cautious updates", "adaptive_grad_clip": "adaptive gradient clipping"}
Made = Mapping[str, Callable[[], np.ndarray]]
"""Arrays by the names of variables, each created when it is used: all in float64 need much memory."""


def worst_error(state: OptimizerState, folder: str) -> tuple[float, str]:
    """Worst difference of one step on as much as memory allows, and a note on what is left out."""
    if not parity.has_formula(state.algorithm):
        raise UnsupportedError(f"no formula of {state.algorithm} is known here, so no step is compared; its arrays are")
    chosen, left_out = parity_sample.sample(state)
    owners = {name for per in state.slots.values() for name in per}
    slotless = [v.name for v in state.variables if owners and v.trainable and v.name not in owners]
    if slotless:
        chosen = {name: pieces for name, pieces in chosen.items() if name in owners}
        text = f"no step was compared of {some(slotless)}, which can be trained and have no slots"
        left_out = f"{left_out}; {text}" if left_out else text
    if not left_out:
        return _worst_difference(state, folder), left_out
    with tempfile.TemporaryDirectory() as scratch:
        part = os.path.join(scratch, "sample")
        write_slots(parity_sample.reduced(read_slots(folder), chosen), part)
        return _worst_difference(parity_sample.reduced(state, chosen), part), left_out


def _worst_difference(state: OptimizerState, folder: str) -> float:
    if state.hyperparameters.get("gradient_accumulation_steps"):
        raise UnsupportedError("gradients are accumulated over several batches, so no single step is compared")
    ahead = state.hyperparameters.get("lookahead")
    if ahead and (state.iterations + 1) % ahead["sync_period"] == 0:
        raise UnsupportedError("the next step is one of Lookahead's slow weights, which no formula here has")
    for option, what in NO_FORMULA.items():
        if state.hyperparameters.get(option):
            raise UnsupportedError(f"the source has {what} ({option}), which no formula here has")
    source = stepping.parity_source(state)
    parity.rate(source)  # raises UnsupportedError for a schedule whose formula is not known
    names = list(dict.fromkeys(name for owners in state.slots.values() for name in owners))
    chosen = [v for v in state.variables if v.name in names] or [v for v in state.variables if v.trainable]
    shapes = {v.name: (v.shape, v.dtype) for v in chosen}
    gradients = {n: partial(stepping.random, n, *s, GRADIENT_SCALE) for n, s in shapes.items()}
    start = {v.name: partial(_value_or_random, v) for v in chosen}
    if tensorflow.is_installed():
        fresh = [v for v in state.variables if v.name in state.parts.fresh and v.name not in shapes]
        after = _by_optim(folder, {n: dtype for n, (_, dtype) in shapes.items()}, start, gradients, fresh)
    else:
        start_values, gradient_values = ({name: load() for name, load in loads.items()} for loads in (start, gradients))
        after = by_rule.after(folder, start_values, gradient_values).__getitem__
    clip = parity.gradient_scale(source, gradients)
    worst = 0.0
    for name, (_, dtype) in shapes.items():
        slots = {s: stepping.numbers(o[name]) for s, o in state.slots.items() if name in o}
        this = replace(source, variable=name)
        want, magnitude = parity.step(this, start[name](), clip(gradients[name]()), slots)
        worst = max(worst, stepping.error(after(name), want, magnitude, dtype))
    return worst


def _value_or_random(variable: StoredVariable) -> np.ndarray:
    if variable.array is None:
        return stepping.random(variable.name + "/value", variable.shape, variable.dtype, 1.0)
    return stepping.numbers(variable.array)


def _by_optim(
    folder: str, dtypes: Mapping[str, str], start: Made, gradients: Made, fresh: Sequence[StoredVariable]
) -> Callable[[str], np.ndarray]:
    """Each variable after a step of `optim` from the target, in float64; `fresh` ones are not stepped."""
    import tensorflow as tf

    import optim

    live = {name: tf.Variable(tf.cast(start[name](), dtype)) for name, dtype in dtypes.items()}
    others = {v.name: tf.Variable(tf.zeros(v.shape, v.dtype)) for v in fresh}
    optimizer = optim.load_checkpoint(folder, {**live, **others}, mesh=None, restore_variables=False)
    optimizer.apply_gradients([(tf.cast(gradients[n](), dtype), live[n]) for n, dtype in dtypes.items()])
    return lambda name: tf.cast(live[name].read_value(), "float64").numpy()
