"""Compute one step of a target by its rule alone, in float64 on numpy: `verify` without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from migrate.proof.stepping import numbers
from migrate.readers.slots import read
from optim import rules
from optim.errors import UnsupportedError
from optim.rule import AS_VARIABLE, Rule, Slot, arguments, made_from

HARMLESS = {"name", "jit_compile"}
"""Options that do not affect the numbers."""
ABSENT: tuple[Any, ...] = (None, False, 0, [])
"""Values with which an option has no effect."""


def after(folder: str, start: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the variables named in `start` after the next step of a slot checkpoint.

    Raises:
      UnsupportedError: that step involves more than the rule.
    """
    target = read(folder)
    rule, hyper = _rule(target.algorithm, target.hyperparameters)
    hyper |= target.scalars
    values = {}
    for name, value in start.items():
        stored = {slot: numbers(owners[name]) for slot, owners in target.slots.items() if name in owners}
        slots = {slot.name: stored.get(slot.name, new_slot(slot, value)) for slot in rule.slots}
        hyperparameters = {**hyper, **rule.constants(value.shape, (name,))}
        with np.errstate(all="ignore"):
            c = rule.coefficients(np, hyperparameters, np.float64(target.iterations + 1))
            change, _ = rule.update(np, value, gradients[name], slots, c)
            values[name] = value + change
    return values


def new_slot(slot: Slot, variable: np.ndarray) -> np.ndarray:
    """The initial slot of an elementwise rule, if the target does not have it yet."""
    return variable.copy() if slot.initial == AS_VARIABLE else np.full(variable.shape, slot.initial)


def _rule(algorithm: str, config: Mapping[str, Any]) -> tuple[Rule, dict[str, Any]]:
    cls = rules.of(algorithm)
    if cls is None:
        raise _needs_tensorflow(algorithm)
    rule_arguments = arguments(cls)
    options = {n: v for n, v in config.items() if n not in rule_arguments and n not in HARMLESS and v not in ABSENT}
    if algorithm == "AdamW":
        options.setdefault("weight_decay", "its default")
    rule, hyper = made_from(cls, config)
    options |= {n: v for n, v in hyper.items() if isinstance(v, bool) or not isinstance(v, (int, float))}
    if options:
        raise _needs_tensorflow(", ".join(sorted(options)))
    if not rule.elementwise or rule.places_weight_decay:
        raise _needs_tensorflow(algorithm)
    hyper = {n: np.float64(v) for n, v in hyper.items()}
    return rule, hyper | {"base_learning_rate": hyper["learning_rate"]}


def _needs_tensorflow(what: str) -> UnsupportedError:
    return UnsupportedError(f"no step was taken: one with {what} needs TensorFlow (pip install tensorflow)")
