"""A user's own rule, of twenty lines, gets everything that the built-in ones get."""

from __future__ import annotations

import copy
import inspect
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import optim
from optim.arrays import ELEMENTWISE
from optim.errors import HyperparameterError, UnsupportedError
from optim.namespace import XP
from optim.native import generate
from tests.helpers.breadth import covering
from tests.helpers.dtensor_asserts import assert_dtensor_equal, layout_of
from tests.reference.common import Options, Training
from tests.test_optim.support import Place, executor_for, gradient_values, put_gradients, start_values, stepper


@dataclass(frozen=True)
class SoftSignRule(optim.Rule):
    """m ← β·m + (1−β)·g;  p ← p − lr · m / (|m| + ε)."""

    learning_rate = optim.Hyperparameter(0.05, "the size of a step")
    beta = optim.Hyperparameter(0.9, "decay rate of the mean of gradients", high=1.0)
    epsilon = optim.Hyperparameter(1e-3, "softens the sign", keyword=True)
    descends: bool = optim.choice(True, "False climbs")

    @property
    def slots(self) -> tuple[optim.Slot, ...]:
        return (optim.Slot("m", unit="gradient"),)

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Any, c: Any) -> Any:
        m = c["beta"] * slots["m"] + (1.0 - c["beta"]) * gradient
        step = c["learning_rate"] * m / (xp.abs(m) + c["epsilon"])
        return (-step if self.descends else step), {"m": m}


class SoftSign(optim.RuleOptimizer, rule=SoftSignRule):
    """Soft sign descent."""


class Reference:
    def slots(self, shape: tuple[int, ...]) -> dict[str, Any]:
        return {"m": np.zeros(shape)}

    def step(self, value: Any, gradient: Any, slots: dict[str, Any], rate: float, number: int) -> Any:
        slots["m"] = 0.8 * slots["m"] + 0.2 * gradient
        return value - rate * slots["m"] / (np.abs(slots["m"]) + 1e-3)


OPTIONS = {
    "clipvalue": 0.5,
    "weight_decay": 0.1,
    "use_ema": True,
    "ema_momentum": 0.7,
    "gradient_accumulation_steps": 2,
    "learning_rate_multipliers": {"^table$": 0.25},
}


@covering(1, mode=["function", "local", "portable"], placement=["zero1", "like_variable"], options=[OPTIONS, {}])
@pytest.mark.quick(1)
def test_every_way_of_stepping(mode: str, placement: str, options: Any, request: Any, tmp_path: Any) -> None:
    place = Place.named("mixed", request)
    variables = place.variables(start_values())
    reference = Training(Reference(), lambda _: 0.05, start_values(), Options(**options))
    optimizer = SoftSign(beta=0.8, slot_placement=placement, executor=executor_for(mode), **options)
    step = stepper(optimizer, mode)
    for call in range(4):
        step(put_gradients(gradient_values(call), variables))
        reference.apply(gradient_values(call))
    for name, variable in variables.items():
        assert_dtensor_equal(variable, reference.values[name], layout_of(variable), what=name, rtol=1e-12, atol=1e-14)

    optim.save_checkpoint(tmp_path / "c", optimizer, variables)
    others = Place.named("plain", request).variables(start_values(seed=9))
    resumed = optim.load_checkpoint(
        tmp_path / "c", others, custom_objects={"SoftSign": SoftSign}, slot_placement="like_variable"
    )
    assert resumed.beta == 0.8
    for call in range(4, 6):
        resumed.apply_gradients(put_gradients(gradient_values(call), others))
        reference.apply(gradient_values(call))
    for name, variable in others.items():
        np.testing.assert_allclose(variable.numpy(), reference.values[name], rtol=1e-12, atol=1e-14)


def test_signature_docstring_checks_and_config_come_from_the_rule() -> None:
    parameters = inspect.signature(SoftSign).parameters
    assert list(parameters)[:3] == ["learning_rate", "beta", "gradients_clip_option"]
    assert parameters["beta"].default == 0.9
    assert parameters["epsilon"].kind is parameters["descends"].kind is inspect.Parameter.KEYWORD_ONLY
    assert "decay rate of the mean of gradients, in [0, 1)" in str(SoftSign.__doc__)
    with pytest.raises(HyperparameterError, match="beta"):
        SoftSign(beta=1.0)
    with pytest.raises(TypeError, match="gamma"):
        SoftSign(gamma=1.0)
    optimizer = SoftSign(beta=0.5, descends=False)
    config = json.loads(json.dumps(optimizer.get_config()))
    assert SoftSign.from_config(config).get_config() == config
    with pytest.raises(UnsupportedError, match="descends"):
        optimizer.descends = True
    with pytest.raises(HyperparameterError, match="beta"):
        optimizer.beta = 2.0


def test_a_bare_rule_steps_with_its_defaults_and_refuses_to_be_saved_without_it(tmp_path: Any) -> None:
    weights, others = tf.Variable([1.0, 2.0]), tf.Variable([1.0, 2.0])
    bare = optim.Optimizer(rule=SoftSignRule())
    bare.apply_gradients([(tf.constant([0.5, -0.5]), weights)])
    SoftSign().apply_gradients([(tf.constant([0.5, -0.5]), others)])
    np.testing.assert_array_equal(weights.numpy(), others.numpy())
    for use in (
        bare.get_config,
        lambda: copy.deepcopy(bare),
        lambda: optim.save_checkpoint(tmp_path / "c", bare, [weights]),
    ):
        with pytest.raises(UnsupportedError, match=r"class Mine\(optim.RuleOptimizer, rule=SoftSignRule\)"):
            use()
    assert not (tmp_path / "c").exists()
    assert "1 step," in repr(bare)


def test_rules_that_are_not_ready_say_what_is_missing() -> None:
    class Rateless(optim.Rule):
        pass

    class Undecorated(optim.Rule):
        learning_rate = optim.Hyperparameter(0.1, "the size of a step")
        descends: bool = optim.choice(True, "False climbs")

    for rule, match in (
        (Rateless, "learning_rate = "),
        (Undecorated, "dataclass"),
        (SoftSignRule(), "rule=MyRule"),
        (None, "rule="),
    ):
        with pytest.raises(HyperparameterError, match=match):
            type("Mine", (optim.RuleOptimizer,), {}, rule=rule)


def test_a_function_that_nothing_has_is_refused_where_the_class_is_made() -> None:
    class Misspelt(optim.Rule):
        learning_rate = optim.Hyperparameter(0.1, "the size of a step")

        def update(self, xp: Any, variable: Any, gradient: Any, slots: Any, c: Any) -> Any:
            return -c["learning_rate"] * xp.signum(gradient), {}

    with pytest.raises(HyperparameterError, match=r"xp\.signum.* abs .* sqrt "):
        type("Mine", (optim.RuleOptimizer,), {}, rule=Misspelt)
    weights = tf.Variable([1.0, 2.0])
    with pytest.raises(HyperparameterError, match=r"xp\.signum"):
        optim.Optimizer(rule=Misspelt()).apply_gradients([(tf.ones(2), weights)])
    np.testing.assert_array_equal(weights.numpy(), [1.0, 2.0])


def test_every_function_of_the_table_is_one_of_all_executors() -> None:
    x, y = np.array([0.25, 2.0]), np.array([0.5, 2.0])
    for name, op in ELEMENTWISE.items():
        assert op in {*generate.INFIX, *generate.CALLS, "where", "ones_like", "zeros_like"}
        mine, theirs = getattr(XP, name), getattr(np, name, None) or np.power
        if op == "where":
            given: tuple[Any, ...] = (x < y, x, y)
        elif op.startswith("logical"):
            given = (x < y,) if op == "logical_not" else (x < y, y > x)
        else:
            count = 2 if op in (*generate.INFIX, "pow", "maximum", "minimum") else 1
            given = (x, y)[:count]
        np.testing.assert_allclose(mine(*map(tf.constant, given)), theirs(*given), rtol=1e-15)


def test_a_function_without_a_kernel_runs_on_ops() -> None:
    class Rounded(optim.Rule):
        learning_rate = optim.Hyperparameter(0.5, "the size of a step")

        def update(self, xp: Any, variable: Any, gradient: Any, slots: Any, c: Any) -> Any:
            return -c["learning_rate"] * xp.round(gradient), {}

    made = type("Mine", (optim.RuleOptimizer,), {}, rule=Rounded)
    weights, optimizer = tf.Variable([1.0, 2.0]), made()
    optimizer.apply_gradients([(tf.constant([0.9, 1.2]), weights)])
    np.testing.assert_array_equal(weights.numpy(), [0.5, 1.5])
    assert "xp.round" in optimizer.executor_report().why_not_native
