"""Translate `tf.train.*Optimizer` of TensorFlow 1 to Keras's terms: classes, arguments, slots, step count.

A Saver names a slot `<variable>/<Optimizer>`, the next ones `<variable>/<Optimizer>_1`, `_2`. Only the class and its
arguments show which slot is which. Source: `tensorflow/python/training/*.py` 1.15.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from migrate.algorithms.addons import BERT, CORRECTED
from migrate.algorithms.spec import Algorithm
from migrate.bytes.arrays import LazyArray
from migrate.errors import AmbiguousError, ContradictionError
from migrate.state import Stored

_ACCUMULATED = "learning_rate initial_accumulator_value l1_regularization_strength l2_regularization_strength"
_MOMENTS = "learning_rate beta_1 beta_2 epsilon"
_OWN_ARGUMENTS = {
    "GradientDescentOptimizer": ("SGD", "learning_rate"),
    "MomentumOptimizer": ("SGD", "learning_rate momentum nesterov"),
    "RMSPropOptimizer": ("RMSprop", "learning_rate rho momentum epsilon centered"),
    "AdagradOptimizer": ("Adagrad", "learning_rate initial_accumulator_value"),
    "ProximalAdagradOptimizer": ("ProximalAdagrad", _ACCUMULATED),
    "AdadeltaOptimizer": ("Adadelta", "learning_rate rho epsilon"),
    "AdamOptimizer": ("Adam", _MOMENTS),
    "FtrlOptimizer": ("Ftrl", f"learning_rate_power {_ACCUMULATED} l2_shrinkage_regularization_strength"),
    "AdaMaxOptimizer": ("Adamax", _MOMENTS),
    "NadamOptimizer": ("Adam", _MOMENTS),
    "LARSOptimizer": ("LARS", "learning_rate momentum weight_decay eeta epsilon skip_list nesterov"),
    BERT: ("Adam", f"weight_decay_rate {_MOMENTS}"),
    "AdamWOptimizer": ("", f"weight_decay {_MOMENTS}"),
    "MomentumWOptimizer": ("", "weight_decay learning_rate momentum nesterov"),
    "LazyAdamOptimizer": ("", _MOMENTS),
}
"""Class -> its algorithm, empty if `addons` names it; arguments of its constructor, under Keras's names
(tensorflow/python/training/*.py 1.15)."""
CLASSES = {name: algorithm for name, (algorithm, _) in _OWN_ARGUMENTS.items() if algorithm}
ARGUMENTS = {name: tuple(arguments.split()) for name, (_, arguments) in _OWN_ARGUMENTS.items()}
RENAMED = {"beta1": "beta_1", "beta2": "beta_2", "use_nesterov": "nesterov"}
OWN = ("use_locking", "accum_name", "linear_name")
"""Arguments that do not affect how state is used."""
OBJECT_SLOTS = {
    "SGD": {"momentum": "m"},
    "RMSprop": {"rms": "velocity", "mg": "average_gradient", "momentum": "momentum"},
    "Adagrad": {"accumulator": "accumulator"},
    "ProximalAdagrad": {"accumulator": "accumulator"},
    "Adadelta": {"accum": "accumulated_grad", "accum_update": "accumulated_delta_var"},
    "Adamax": {"m": "m", "v": "u"},
    "Adam": {"m": "m", "v": "v", "adam_m": "m", "adam_v": "v"},
    "Ftrl": {"accum": "accumulator", "linear": "linear"},
}
"""Slots in object checkpoints, under the names that the classes give them; and the slots of BERT's class in a Saver."""
BERT_SLOTS = ("adam_m", "adam_v")
CENTERED = ("velocity", "average_gradient", "momentum")
SLOTS = {"LARS": ("m",)} | {
    name: tuple(slot for slot in dict.fromkeys(slots.values()) if slot != CENTERED[1])
    for name, slots in OBJECT_SLOTS.items()
}
"""Slots in a Saver, in the order of their creation."""
NAMED = {"Momentum": "SGD", "GradientDescent": "SGD", "RMSProp": "RMSprop"}
"""Default names of tf.train's optimizers whose Keras class has another name."""
POWERS = (("beta2_power", "beta_2"), ("beta1_power", "beta_1"))
"""The powers that AdamOptimizer keeps. The first one takes more steps to vanish.

AdaMaxOptimizer keeps both and updates the second.
"""
AVERAGES = "ExponentialMovingAverage"
"""Entries that tf.train.ExponentialMovingAverage keeps in addition to variables. They are not slots."""


def keras_style(class_name: str, config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return class and arguments of a `tf.train` optimizer under Keras's names."""
    plain = class_name.rsplit(".", 1)[-1]
    renamed = {RENAMED.get(key, key): value for key, value in config.items() if key not in OWN}
    if plain == "RMSPropOptimizer" and "decay" in renamed:
        renamed["rho"] = renamed.pop("decay")
    return CLASSES.get(plain, plain), renamed


def slot_names(stored: Stored, algorithm: Algorithm, config: Mapping[str, Any]) -> dict[str, str | None]:
    """Return `optim`'s slot for each name in the source, None for what is not this optimizer's.

    Raises:
      AmbiguousError: slots of more than one optimizer. ContradictionError: names that only another class gives.
    """
    if algorithm.is_foreign:
        return {name: name for name in stored.slots}
    own_names = {name for name in stored.slots if name in BERT_SLOTS}
    if stored.slots and bool(own_names) == bool(config.get(CORRECTED, True)):
        called = ", ".join(sorted(own_names or stored.slots))
        raise ContradictionError(
            f"the slots in the source are called {called}."
            f" {'Only' if own_names else 'None of them are slots of'} BERT's"
            f" {BERT}{' has these' if own_names else ', the given class'}. Their rules differ, so give the"
            " class that wrote them in --optimizer-config"
        )
    plain = OBJECT_SLOTS.get(algorithm.name, {})
    if own_names:  # next to `accum`, in which a program accumulates gradients
        return {name: plain.get(name) if name in own_names else None for name in stored.slots}
    if stored.slots and plain.keys() >= stored.slots.keys():
        return {name: plain[name] for name in stored.slots}
    if of_objects(stored):
        keeps = ", ".join(plain) or "none"
        raise ContradictionError(
            f"the slots in the source are called {', '.join(stored.slots)}, but tf.train's {algorithm.name}"
            f" calls its slots {keeps}: this is the state of another class. Name that class in"
            " --optimizer-config"
        )
    is_centered = algorithm.name == "RMSprop" and config.get("centered")
    wanted = CENTERED if is_centered else SLOTS.get(algorithm.name, ())
    numbered = [(name, re.fullmatch(r"(.+?)(?:_(\d+))?", name)) for name in stored.slots]
    bases = sorted({match.group(1) for _, match in numbered if match} - {AVERAGES})
    if len(bases) > 1:
        candidates = [base for base in bases if base == config.get("name")]
        if not candidates:
            raise AmbiguousError(
                f"the checkpoint contains slots of several optimizers, named {', '.join(bases)}. Choose one"
                " with --set name=NAME"
            )
        bases = candidates
    ranked = sorted((int(match.group(2) or 0), name) for name, match in numbered if match and match.group(1) in bases)
    if wanted and len(ranked) > len(wanted):
        raise AmbiguousError(
            f"the checkpoint contains slots {', '.join(name for _, name in ranked)}, but {algorithm.name} has"
            f" only {len(wanted)}: they belong to several optimizers of one name, or to another class. With"
            " several, put the graph (.meta) next to the checkpoint and choose with --optimizer"
        )
    slots: dict[str, str | None] = {name: None for name, _ in numbered}
    return slots | dict(zip((name for _, name in ranked), wanted, strict=False))


def has_kernel(algorithm: Algorithm, config: Mapping[str, Any]) -> bool:
    """Return whether tf.train's class steps with a kernel of TensorFlow. All do except LARS and BERT's class."""
    return algorithm.name in CLASSES.values() and algorithm.name != "LARS" and bool(config.get(CORRECTED, True))


def of_objects(stored: Stored) -> bool:
    """Return whether slots have the names of the classes themselves, and not the optimizer's name as in a Saver."""
    return "object graph" in stored.matched.values()


class Steps(NamedTuple):
    """Steps that an optimizer has taken, and where the source stores them. `is_least`: it may have taken more."""

    taken: int
    where: str
    is_least: bool = False


def steps(scalars: Mapping[str, LazyArray], config: Mapping[str, Any], algorithm: str) -> Steps | None:
    """Return the steps of AdamOptimizer or AdaMaxOptimizer that reproduce its power of beta bit for bit.

    After k steps a power is beta**(k + 1), with each product rounded. None if no power shows the steps. If all powers
    have vanished (0.999 in float32 after 87,000 steps), the correction stays 1. The result is then the fewest such
    steps, which have the same effect as any higher number.

    Raises:
      AmbiguousError: powers of several optimizers.
      ContradictionError: no number of steps gives a power, or the powers give different numbers, so that a beta is
        wrong.
    """
    count: Steps | None = None
    gone: list[tuple[int, str]] = []
    is_known = True
    for tail, key in POWERS[algorithm == "Adamax" :]:
        names = [n for n in scalars if re.fullmatch(rf"(?:.*/)?{tail}(?:_\d+)?", n)]
        if len({np.asarray(scalars[n].load()).tobytes() for n in names}) > 1:
            raise AmbiguousError(
                "the checkpoint contains several Adam optimizers after different numbers of steps"
                f" ({', '.join(names)}). Choose one with --set iterations=N, and its variables with --variables"
            )
        name = names[0] if names else None
        beta = config.get(key)
        if name is None or not isinstance(beta, (int, float)) or not 0.0 <= beta <= 1.0:
            is_known = False
            continue
        stored = np.asarray(scalars[name].load()).reshape(-1)[0]
        if not 0.0 <= stored <= 1.0:
            raise ContradictionError(
                f"{name} is {stored:.9g} in the source, which is not a power of {key}: the run diverged, or"
                " the file was altered. Migrate an earlier checkpoint, or give the steps with --set"
                " iterations=N"
            )
        factor = stored.dtype.type(beta)
        if factor in (0, 1):  # powers of 0 and 1 do not show the steps
            if stored != factor:
                raise _contradiction(name, key, beta, stored)
            is_known = is_known and factor == 0
            continue
        power, taken = factor, 0
        least = np.finfo(stored.dtype).tiny  # below it a product can equal its factor, or is flushed to 0
        while power > stored and power >= least:
            power, taken = power * factor, taken + 1
        if not stored >= least or power < least:
            gone.append((taken, name))
            continue
        if power != stored or (count is not None and count.taken != taken):
            others = f" (those of {count.where.partition(',')[0]} are {count.taken})" if count else ""
            raise _contradiction(name, key, beta, stored, others)
        count = count or Steps(taken, f"{name}, which is {key} to the power of steps + 1")
    if count is None and gone and is_known:
        fewest, name = max(gone)
        return Steps(
            fewest,
            f"{name}, which is too small to count from: from step {fewest} on the moments are not corrected",
            True,
        )
    return count


def _contradiction(name: str, key: str, beta: float, stored: np.generic, others: str = "") -> ContradictionError:
    return ContradictionError(
        f"{key} is {beta!r} and {name} is {stored:.9g} in the source, which fits no number of steps{others};"
        f" give the {key} of the training run"
    )


def of_several(scalars: Mapping[str, LazyArray]) -> list[str]:
    """Return the powers of one beta that several AdamOptimizers keep."""
    for tail, _ in POWERS:
        names = [name for name in scalars if re.fullmatch(rf"(?:.*/)?{tail}(?:_\d+)?", name)]
        if len(names) > 1:
            return names
    return []


def has_powers(scalars: Mapping[str, LazyArray]) -> bool:
    """Return whether the source keeps powers of beta, vanished or not."""
    return any(re.fullmatch(rf"(?:.*/)?{tail}(?:_\d+)?", name) for name in scalars for tail, _ in POWERS)
