"""Options drawn at random, together: any of them, on any layout and executor, saved and loaded half way.

Every draw is compared with the float64 reference, which knows nothing of `optim`. What a seed draws is in its id.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import optim
from tests.dtensor_asserts import value_of
from tests.reference.common import Options
from tests.test_optim.cases import VARIANTS, Case
from tests.test_optim.support import (
    LAYOUTS,
    Place,
    executor_for,
    gradient_values,
    put_gradients,
    scaled_values,
    start_values,
    stepper,
)

SEEDS = 60
QUICK = 3
OWN_DECAY = ("LARS", "NovoGrad", "ScheduleFreeAdamW")
CASES = [case for case in VARIANTS if case.loop == Options() or case.optimizer == "AdamW"]


@dataclass(frozen=True)
class Draw:
    case: Case
    layout: str
    mode: str
    placement: str
    saved_onto: str

    def __str__(self) -> str:
        names = ",".join(sorted(self.case.arguments))
        return f"{self.case.name}-{self.layout}-{self.mode}-{self.placement}-{self.saved_onto}-{names}"


def _draw(seed: int) -> Draw:
    random = np.random.default_rng(seed)
    case = CASES[random.integers(len(CASES))]

    def sometimes(share: float = 0.4) -> bool:
        return bool(random.random() < share)

    options: dict[str, Any] = {}
    if sometimes():
        options["clipvalue"] = 0.5
    if sometimes():
        options[str(random.choice(["clipnorm", "global_clipnorm"]))] = 0.8
        options["clip_order"] = str(random.choice(["value_first", "norm_first"]))
    if sometimes() and case.optimizer not in OWN_DECAY and case.optimizer != "AdamW":
        options["weight_decay"] = 0.1
        if sometimes(0.6):
            options[str(random.choice(["decoupled_weight_decay", "learning_rate_in_weight_decay"]))] = False
    if sometimes():
        options |= {"use_ema": True, "ema_momentum": 0.7}
        if sometimes():
            options["ema_overwrite_frequency"] = 2
    elif sometimes():
        start = int(random.integers(3))
        options["stochastic_average"] = {"start_averaging": start, "average_period": int(random.integers(1, 3))}
    if sometimes():
        options["gradient_accumulation_steps"] = int(random.integers(2, 4))
    if sometimes():
        options["loss_scale"] = [64.0, "dynamic"][random.integers(2)]
        if options["loss_scale"] == "dynamic":
            options["loss_scale_growth_steps"] = 2
    if sometimes():
        options["decay"] = 0.25
    if sometimes() and case.name != "schedule-free-all":  # whose reference has one sum of weights for all variables
        options["learning_rate_multipliers"] = {"^table$": 0.25, "^(bias|odd)$": 1.5}
    if sometimes():
        options["lookahead"] = {"sync_period": int(random.integers(1, 4)), "slow_step_size": 0.4}
    arguments = {**case.arguments, **options}
    if sometimes():
        arguments["master_copies"] = True  # of which float64 variables have none
    layout, saved_onto = (str(random.choice(list(LAYOUTS))) for _ in range(2))
    mode = str(random.choice([mode for mode in case.modes if mode != "native"]))
    placement = str(random.choice(["like_variable", "zero1"]))
    loop = replace(case.loop, **options)
    return Draw(replace(case, arguments=arguments, loop=loop), layout, mode, placement, saved_onto)


DRAWS = [_draw(seed) for seed in range(SEEDS)]


def _train(optimizer: Any, mode: str, variables: dict[str, Any], reference: Any, calls: range) -> None:
    step = stepper(optimizer, mode)
    for call in calls:
        values = gradient_values(call)
        if reference.scale is not None:
            values = scaled_values(values, reference.scale, call, reference.options.gradient_accumulation_steps)
        step(put_gradients(values, variables))
        reference.apply(values)


def _check(optimizer: Any, variables: dict[str, Any], reference: Any, when: str) -> None:
    for name, variable in variables.items():
        expected = {"": reference.values[name], **reference.slots[name]}
        if reference.options.has_averages:
            expected["average"] = reference.averages[name]
        for slot, want in expected.items():
            found = value_of(optimizer.get_slot(variable, slot) if slot else variable)
            np.testing.assert_allclose(found, want, rtol=1e-9, atol=1e-11, err_msg=f"{slot} of {name} {when}")
    assert int(optimizer.iterations.numpy()) == reference.iterations
    assert optimizer.current_loss_scale == reference.scale


@pytest.mark.filterwarnings("ignore:decay is the old", "ignore:no gradients for")
@pytest.mark.parametrize(
    "draw",
    [pytest.param(d, id=f"{i}-{d}", marks=[] if i < QUICK else [pytest.mark.breadth]) for i, d in enumerate(DRAWS)],
)
def test_options_together(draw: Draw, request: Any, tmp_path: Any) -> None:
    reference = draw.case.reference(start_values())
    variables = Place.named(draw.layout, request).variables(start_values())
    optimizer = draw.case.make(executor=executor_for(draw.mode) if draw.mode != "local" else "auto")
    optimizer = type(optimizer).from_config({**optimizer.get_config(), "slot_placement": draw.placement})
    middle = 2 * draw.case.loop.gradient_accumulation_steps + 1
    _train(optimizer, draw.mode, variables, reference, range(middle))
    _check(optimizer, variables, reference, "before it is saved")
    optim.save_checkpoint(tmp_path / "c", optimizer, variables)
    variables = Place.named(draw.saved_onto, request).variables(start_values(5))
    optimizer = optim.load_checkpoint(tmp_path / "c", variables)
    _train(optimizer, draw.mode, variables, reference, range(middle, 2 * middle))
    _check(optimizer, variables, reference, "after it was loaded")
