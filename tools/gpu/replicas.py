"""Steps of a strategy's replicas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.test_optim.cases import FEW, FIRST, Case
from tests.test_optim.support import Trained, start_values
from tools.gpu.device import Device
from tools.gpu.runs import calls_of, rounded


def check_replicas(device: Device) -> tuple[bool, str]:
    """A strategy, whose replicas launch kernels."""
    strategy = tf.distribute.MirroredStrategy([device.name])
    wrong, cases = [], [case for case in FIRST.values() if case.optimizer in FEW]
    for case in cases:
        calls, reference = calls_of(case, "float32")
        with device.launching(case), strategy.scope():
            found = _in_replicas(case, strategy, rounded(start_values(), "float32"), calls)
            if reason := device.why_not_used(found.optimizer):
                wrong.append(f"{case.name} is not updated by the kernel: {reason}")
        off = max(
            float(np.max(np.abs(np.asarray(value, np.float64) - reference.values[name]), initial=0))
            for name, value in found.variables.items()
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
        given = {name: tf.constant(value, tf.float32) for name, value in call.items()}

        def step(given: Any) -> None:
            optimizer.apply_gradients([(given[name], variable) for name, variable in variables.items()])

        strategy.run(step, args=(given,))
    return Trained({name: variable.numpy() for name, variable in variables.items()}, optimizer)
