"""Options drawn at random, together: any of them, on any layout and executor, saved and loaded half way.

Every draw is compared with the float64 reference, which knows nothing of `optim`. What a seed draws is in its id.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import optim
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.draws import Draw, draw, seeds
from tests.test_optim.support import (
    Place,
    executor_for,
    gradient_values,
    put_gradients,
    scaled_values,
    start_values,
    stepper,
)

QUICK = 3
DRAWS = {seed: draw(np.random.default_rng(seed)) for seed in seeds(60)}


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


@pytest.mark.breadth
@pytest.mark.filterwarnings("ignore:decay is the old", "ignore:no gradients for")
@pytest.mark.parametrize(
    "draw",
    [pytest.param(d, id=f"{i}-{d}", marks=[] if i < QUICK else [pytest.mark.breadth]) for i, d in DRAWS.items()],
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
