"""Steps of a strategy's replicas, and of variables on several devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.test_optim.cases import FEW, FIRST, Case
from tests.test_optim.support import Trained, start_values
from tools.gpu.device import Device, named
from tools.gpu.runs import calls_of, rounded


def check_replicas(device: Device) -> tuple[bool, str]:
    """A strategy, whose replicas launch kernels."""
    strategy = tf.distribute.MirroredStrategy([device.name])
    wrong, cases = [], [case for case in FIRST.values() if case.optimizer in FEW]
    for case in cases:
        calls, reference = calls_of(case, "float32")
        with device.launching(case), strategy.scope():
            result = _in_replicas(case, strategy, rounded(start_values(), "float32"), calls)
            if reason := device.why_not_used(result.optimizer):
                wrong.append(f"{case.name} is not updated by the kernel: {reason}")
        off = max(
            float(np.max(np.abs(np.asarray(value, np.float64) - reference.values[name]), initial=0))
            for name, value in result.variables.items()
        )
        if not off <= 2e-5:
            wrong.append(f"{case.name}: {off:.3g} from the reference")
    return not wrong, wrong[0] if wrong else f"{len(cases)} optimizers under a strategy"


def _in_replicas(
    case: Case, strategy: Any, start: dict[str, np.ndarray], calls: Iterable[dict[str, np.ndarray]]
) -> Trained:
    variables = {name: tf.Variable(tf.constant(value, tf.float32), name=name) for name, value in start.items()}
    optimizer = case.make()
    optimizer.build(list(variables.values()))
    for call in calls:
        gradients = {name: tf.constant(value, tf.float32) for name, value in call.items()}

        def step(gradients: Any) -> None:
            optimizer.apply_gradients([(gradients[name], variable) for name, variable in variables.items()])

        strategy.run(step, args=(gradients,))
    return Trained({name: variable.numpy() for name, variable in variables.items()}, optimizer)


def check_devices(device: Device) -> tuple[bool, str]:
    """One optimizer of variables on the device and on a CPU: bit for bit as on CPUs alone."""
    adam = named("adam")
    for in_function in (False, True):
        expected, _ = _on_devices(adam, ("CPU:0", "CPU:0"), in_function)
        with device.launching(adam):
            results, optimizer = _on_devices(adam, (device.name, "CPU:0"), in_function)
            reason = device.why_not_used(optimizer)
        how = "in a function" if in_function else "eagerly"
        if reason:
            return False, f"{how} not updated by the kernel: {reason}"
        if [value.tobytes() for value in results] != [value.tobytes() for value in expected]:
            return False, f"{how} they differ from those on CPUs alone"
    return True, "variables on the device and on a CPU step as on CPUs alone"


def _on_devices(case: Case, places: Sequence[str], in_function: bool) -> tuple[list[np.ndarray], Any]:
    start = np.linspace(-1, 1, 600, dtype=np.float32)
    optimizer, variables, gradients = case.make(), [], []
    for place in places:
        with tf.device(place):
            variables.append(tf.Variable(start))
            gradients.append(tf.constant(np.cos(start)))
    optimizer.build(variables)

    def step() -> None:
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

    run = tf.function(step) if in_function else step
    for _ in range(3):
        run()
    return [variable.numpy() for variable in variables], optimizer
