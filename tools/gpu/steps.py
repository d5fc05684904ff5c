"""Steps that are skipped, and steps of some rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tools.gpu.device import Device, named


def check_loss_scale(device: Device) -> tuple[bool, str]:
    """A step with gradients that are not finite changes only the scale, and later steps continue."""
    adam = named("adam")
    with device.launching(adam), tf.device(device.name):
        for in_function in (False, True):
            variables = [tf.Variable(tf.ones([300], tf.float16)), tf.Variable(tf.ones([7, 5], tf.float16))]
            optimizer = adam.make(loss_scale="dynamic", master_copies=True)

            def step(value: Any, variables: Any = variables, optimizer: Any = optimizer) -> None:
                optimizer.apply_gradients([(tf.cast(tf.fill(v.shape, value), v.dtype), v) for v in variables])

            run = tf.function(step) if in_function else step
            seen = []
            for value in (2.0**10, float("inf"), float("nan"), 2.0**10):
                run(tf.constant(value))
                seen.append((variables[1].numpy().tobytes(), int(optimizer.iterations.numpy())))
            if not (seen[0] == seen[1] == seen[2] and seen[3][1] == 2 and seen[3][0] != seen[2][0]):
                return (
                    False,
                    f"{'in a function' if in_function else 'eagerly'} a step was not skipped, or the next one was",
                )
            if reason := device.why_not_used(optimizer):
                return False, f"not updated by the kernel: {reason}"
            if float(optimizer.current_loss_scale) != 2.0**13:
                return False, f"the scale is {float(optimizer.current_loss_scale)}, not a quarter of 32768"
    return True, "steps that are not finite change nothing, eagerly and in a function"


def check_rows(device: Device) -> tuple[bool, str]:
    """Gradients of some rows of a table, with and without `lazy_rows` and `repeated_rows`, against the CPU."""
    adam, wrong = named("adam"), []
    start = np.linspace(-1, 1, 60, dtype=np.float32).reshape(20, 3)
    lazy, squared = {"lazy_rows": ["^table$"]}, {"repeated_rows": ["clip", "square"]}
    every: Sequence[dict[str, Any]] = ({}, lazy, squared, {**lazy, **squared})
    for options, in_function in itertools.product(every, (False, True)):
        results = []
        for place in ("CPU:0", device.name):
            with device.launching(adam), tf.device(place):
                table, optimizer = tf.Variable(start, name="table"), adam.make(**options)
                optimizer.build([table])

                def step(values: Any, rows: Any, table: Any = table, optimizer: Any = optimizer) -> None:
                    optimizer.apply_gradients([(tf.IndexedSlices(values, rows, tf.constant([20, 3])), table)])

                run = tf.function(step) if in_function else step
                for k in range(3):
                    run(tf.fill([4, 3], 0.5 + k), tf.constant([3, 3, 11, 7 + k]))
                results.append(table.numpy())
        off = float(np.max(np.abs(results[0] - results[1])))
        if not off <= 2e-6 or results[1].tobytes() == start.tobytes():
            how = "in a function" if in_function else "eagerly"
            wrong.append(f"{options or 'no option'}, {how}: {off:.3g} from the CPU")
    return not wrong, wrong[0] if wrong else "tables with some rows step as on the CPU"
