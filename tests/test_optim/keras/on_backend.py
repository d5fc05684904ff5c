"""Run by `test_backends.py` in a process of its own: rows of `cases.ROWS` on the backend that KERAS_BACKEND names.

Prints one JSON line for each row and way to step: the largest error of a variable, and of a slot, in units of what
rounding allows (`allowed`), or why there is none.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import replace
from typing import Any

import keras
import numpy as np

import optim
from optim.errors import UnsupportedError
from tests.test_optim.cases import RATE, ROWS, Case
from tests.test_optim.values import gradient_values, scaled_values, start_values

CONSTANT_SCALE = 64.0
KEPT = {"ema_start": "initial", "count_calls": False}
"""What `for_keras` would else set to what Keras does."""


def on_this_backend(case: Case) -> Case:
    """The row with a constant loss scale in place of a dynamic one, which is Keras's to do."""
    if case.loop.loss_scale != "dynamic":
        return case
    dynamic = ("loss_scale", "loss_scale_growth_steps")
    arguments = {k: v for k, v in case.arguments.items() if k not in dynamic}
    loop = replace(case.loop, loss_scale=CONSTANT_SCALE, loss_scale_growth_steps=2000)
    return replace(case, arguments={**arguments, "loss_scale": CONSTANT_SCALE}, loop=loop)


def stepper(optimizer: Any, variables: dict[str, Any], compiled: bool) -> Any:
    named = list(variables.values())
    if not compiled:
        return lambda grads: optimizer.apply(grads, named)
    import jax

    optimizer.build(named)
    function = jax.jit(optimizer.stateless_apply, donate_argnums=(0, 2))

    def step(grads: list[Any]) -> None:
        state, values = [v.value for v in optimizer.variables], [v.value for v in named]
        new_values, new_state = function(state, grads, values)
        for variable, value in zip([*named, *optimizer.variables], [*new_values, *new_state], strict=True):
            variable.assign(value)

    return step


def run(case: Case, compiled: bool) -> dict[str, float]:
    case = on_this_backend(case)
    dtype = keras.config.floatx()
    start = {name: value.astype(dtype) for name, value in start_values().items()}
    variables = {name: keras.Variable(value, name=name) for name, value in start.items()}
    reference = case.reference(start)
    optimizer = optim.for_keras(case.make(**{**KEPT, **case.arguments}))
    step = stepper(optimizer, variables, compiled)
    steps = case.loop.gradient_accumulation_steps
    for call in range(4 * steps + 2):
        values = gradient_values(call)
        if reference.scale is not None:
            values = scaled_values(values, reference.scale, call, steps)
        values = {name: None if value is None else value.astype(dtype) for name, value in values.items()}
        step([None if v is None else keras.ops.convert_to_tensor(v) for v in values.values()])
        reference.apply(values)
    assert reference.iterations >= 4
    assert int(optimizer.iterations) == reference.iterations
    return _errors(case, optimizer, variables, reference, start)


def _errors(case: Case, optimizer: Any, variables: Any, reference: Any, start: Any) -> dict[str, float]:
    """In units of what `test_conformance.py` allows: of float32 ten roundings of a variable and twenty of a slot."""
    epsilon = 5e-14 if keras.config.floatx() == "float64" else float(np.finfo(np.float32).eps)
    worst = {"variable": 0.0, "slot": 0.0}
    for name, variable in variables.items():
        expected = reference.values[name]
        moved = np.max(np.abs(expected - start[name]))
        allowed = 10 * epsilon * (np.max(np.abs(expected)) + moved)
        worst["variable"] = max(worst["variable"], float(np.max(np.abs(_array(variable) - expected)) / allowed))
        slots = dict(reference.slots[name])
        if case.loop.has_averages:
            slots["average"] = reference.averages[name]
        for slot, wanted in slots.items():
            found = _array(optimizer.get_slot(variable, slot))
            size = np.max(np.abs(wanted))
            if case.optimizer == "Ftrl" and slot == "linear":  # as in test_conformance.py
                rate = 1.0 if case.arguments.get("learning_rate_in_linear") else RATE
                root = np.max(reference.slots[name]["accumulator"]) ** 0.5
                size = max(size, root / rate * np.max(np.abs(start[name])))
            allowed = 20 * epsilon * (np.abs(wanted) + size) + np.finfo(np.float64).tiny
            worst["slot"] = max(worst["slot"], float(np.max(np.abs(found - wanted) / allowed)))
    return worst


def _array(variable: Any) -> Any:
    return np.asarray(keras.ops.convert_to_numpy(variable.value), np.float64)


def main(dtype: str, names: list[str]) -> None:
    keras.config.set_floatx(dtype)
    warnings.simplefilter("ignore", UserWarning)  # of gradients that are None
    is_jax = keras.backend.backend() == "jax"
    for case in ROWS:
        if names and case.name not in names:
            continue
        for way in ("eager", "compiled") if is_jax else ("eager", "without the kernel"):
            os.environ["DTOPT_KERNELS"] = "off" if way == "without the kernel" else "build"
            try:
                found: dict[str, Any] = run(case, way == "compiled")
            except UnsupportedError as error:
                found = {"refused": str(error)}
            print(json.dumps({"case": case.name, "way": way, **found}), flush=True)
    assert "tensorflow" not in sys.modules, "TensorFlow was imported"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
