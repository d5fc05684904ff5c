"""The rules alone, in float64 NumPy, without TensorFlow: many steps of every variant against its reference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from optim.rule import AS_VARIABLE
from tests.test_optim.cases import VARIANTS, Case
from tests.test_optim.support import SHAPES, start_values


def _reduction(function: Any) -> Any:
    return lambda x, axis=None, keepdims=False: function(x, axis=axis, keepdims=keepdims)


def _while_loop(condition: Any, body: Any, values: Any) -> Any:
    while condition(*values):
        values = body(*values)
    return values


SHARED = ["sqrt", "square", "abs", "sign", "tanh", "maximum", "minimum", "where"]
SHARED += [
    "ones_like",
    "zeros_like",
    "expand_dims",
    "matmul",
    "transpose",
    "reshape",
    "concat",
    "equal",
    "logical_or",
    "logical_and",
]
"""What NumPy and TensorFlow spell alike, and a rule may therefore use."""
XP = SimpleNamespace(
    **{name: getattr(np, name) for name in SHARED},
    reduce_sum=_reduction(np.sum),
    reduce_mean=_reduction(np.mean),
    reduce_max=np.max,
    cast=np.asarray,
    qr=np.linalg.qr,
    cond=lambda condition, yes, no: yes() if condition else no(),
    while_loop=_while_loop,
)


class _Alone:
    """An optimizer's rule and hyperparameters, stepped by hand on one variable."""

    def __init__(self, case: Case, name: str):
        self.optimizer = case.make()
        self.rule = self.optimizer._rule
        self.scalars = dict(self.rule.scalars)
        wanted = case.algorithm.slots(SHAPES[name])
        self.slots = {s.name: self._new(s, name) for s in self.rule.slots if s.name in wanted}
        self.decay = case.loop.weight_decay

    def _new(self, slot: Any, name: str) -> Any:
        if slot.initial == AS_VARIABLE:
            return start_values()[name]
        return np.full(self._shape(slot, name), slot.initial)

    def _shape(self, slot: Any, name: str) -> tuple[int, ...]:
        dims = self.rule.slot_dims(slot, SHAPES[name], [name])
        assert dims is not None
        return tuple(SHAPES[name][d] for d in dims)

    def step(self, value: Any, gradient: Any, rate: float, number: int) -> Any:
        hyper = self.optimizer._hyper.current()
        given = {**hyper, **self.scalars, "learning_rate": rate, "weight_decay": self.optimizer.weight_decay or 0.0}
        c = self.rule.coefficients(XP, given, float(number))
        self.scalars = {key: float(c[key]) for key in self.scalars}
        value = value * (1 - self.decay * rate)
        change, self.slots = self.rule.update(XP, value, gradient, self.slots, c)
        return value + change


@pytest.mark.parametrize("name", list(SHAPES))
@pytest.mark.parametrize("case", VARIANTS, ids=str)
def test_thirty_steps_equal_the_reference(case: Case, name: str) -> None:
    """With a rate that changes, gradients of many sizes, and one that is zero."""
    random = np.random.default_rng(5)
    value = start_values()[name]
    alone = _Alone(case, name)
    reference = case.reference({name: value})
    for number in range(1, 31):
        rate = 0.1 / number**0.5
        gradient = np.asarray(random.normal(size=SHAPES[name])) * 10.0 ** random.integers(-4, 3)
        if number == 3:
            gradient = np.zeros(SHAPES[name])
        reference.rate = lambda _, rate=rate: rate
        reference.apply({name: gradient})
        value = alone.step(value, gradient, rate, number)
        np.testing.assert_allclose(value, reference.values[name], rtol=1e-10, atol=1e-12)
    assert set(alone.slots) == set(reference.slots[name])
    for slot, expected in reference.slots[name].items():
        np.testing.assert_allclose(alone.slots[slot], expected, rtol=1e-10, atol=1e-12, err_msg=slot)
    assert not np.array_equal(value, start_values()[name])


@pytest.mark.parametrize("case", VARIANTS, ids=str)
def test_what_a_rule_says_of_itself(case: Case) -> None:
    rule = case.make()._rule
    assert rule.elementwise == ("local" in case.modes)
    assert all(slot.unit for slot in rule.slots)
    assert len({slot.name for slot in rule.slots}) == len(rule.slots)
