"""A user's rule has a kernel like the built-in ones, and does without where it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import optim
from optim.native import generate, trace
from optim.rule import Arrays, Rule, Scalars, Slot


@dataclass(frozen=True)
class Five(Rule):
    """More slots than any built-in rule, and every operation that a trace knows."""

    shifted: bool = False

    @property
    def slots(self) -> tuple[Slot, ...]:
        return tuple(Slot(name, unit="1", initial=0.5) for name in ("a", "b", "c", "d", "e"))

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        return {"lr": hyper["learning_rate"], "step": step}

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        rising = (gradient > slots["a"]) & ~(gradient >= 2.0) | (slots["b"] < -1.0)
        a = xp.where(rising, gradient, slots["a"] / 2)
        b = xp.minimum(slots["b"], xp.abs(gradient)) - xp.sign(gradient)
        d = xp.sqrt(xp.maximum(slots["d"], 0.0)) + xp.square(slots["c"])
        c_new = 0.25 * slots["c"] + 1.0 / (1.0 + xp.square(gradient))
        new = {"a": a, "b": b, "c": c_new, "d": d, "e": slots["e"]}
        move = a + b * c["step"] - (d if self.shifted else -d)
        return -c["lr"] * move * xp.ones_like(variable), new


@dataclass(frozen=True)
class Branching(Rule):
    @property
    def slots(self) -> tuple[Slot, ...]:
        return ()

    def coefficients(self, xp: Any, hyper: Scalars, step: Any) -> dict[str, Any]:
        return {"lr": hyper["learning_rate"]}

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Arrays, c: Scalars) -> tuple[Any, Arrays]:
        return -c["lr"] * gradient if c["lr"] > 0 else gradient, {}


def steps(rule: Any, **more: Any) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(0)
    weights = tf.Variable(random.normal(size=1000).astype(np.float32))
    optimizer = optim.Optimizer(rule=rule, learning_rate=0.1, **more)
    for _ in range(3):
        optimizer.apply_gradients([(random.normal(size=1000).astype(np.float32), weights)])
    return optimizer, weights, [optimizer.get_slot(weights, slot.name).numpy() for slot in rule.slots]


@pytest.mark.parametrize("mode", ["native"])
@pytest.mark.parametrize("shifted", [False, True])
def test_a_rule_with_five_slots(shifted: bool, mode: str) -> None:
    one, mine, slots = steps(Five(shifted))
    _, theirs, others = steps(Five(shifted), executor="portable")
    assert set(one.executor_report().kernels.values()) == {"native"}
    np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-6, atol=1e-7)
    for slot, other in zip(slots, others, strict=True):
        np.testing.assert_allclose(slot, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("mode", ["native"])
def test_a_rule_that_branches_on_a_number_runs_on_ops(mode: str) -> None:
    optimizer, _, _ = steps(Branching())
    assert set(optimizer.executor_report().kernels.values()) == {"ops"}
    assert "branches on the value" in optimizer.executor_report().why_not_native


def test_variants_are_programs_of_their_own() -> None:
    names = {generate.program_for(Five(shifted)).name for shifted in (False, True)}  # type: ignore[union-attr]
    assert len(names) == 2
    assert generate.program_for(Five()).scalars == ("step", "lr")  # type: ignore[union-attr]


def test_what_zero_changes_is_read_off_the_rule() -> None:
    from optim.rules.adagrad import AdagradRule
    from optim.rules.adam import AdamRule
    from optim.rules.sgd import SGDRule

    assert trace.trace(SGDRule()).is_identity_at_zero
    assert not trace.trace(SGDRule(momentum_slot=True)).is_identity_at_zero
    assert trace.trace(AdagradRule()).is_identity_at_zero
    assert not trace.trace(AdamRule()).is_identity_at_zero
