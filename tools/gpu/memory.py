"""Device memory: buffers that a step must leave alone, and no growth over many steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tools.gpu.device import Device, NothingToCheckError, named

MANY_STEPS, FREED_STEPS = 2000, 1000


def check_buffers(device: Device) -> tuple[bool, str]:
    """A value that was read stays; what is assigned counts; a gradient may be freed once the call has returned."""
    adam, size = named("adam"), [device.elements]
    steps = FREED_STEPS
    reference = adam.reference({"w": np.zeros(1)})
    with device.launching(adam), tf.device(device.name):
        variable, optimizer = tf.Variable(tf.zeros(size)), adam.make()
        for k in range(steps):
            if k == 1:
                before = variable.read_value()
                value = before.numpy()
            optimizer.apply_gradients([(tf.fill(size, float(k % 7 + 1)), variable)])  # freed right after
            tf.fill(size, float("nan"))  # may get its memory
            reference.apply({"w": np.full(1, k % 7 + 1)})
        if before.numpy().tobytes() != value.tobytes():
            return False, "a value that was read before a step has changed"
        spread = float(tf.reduce_max(variable) - tf.reduce_min(variable))
        off = abs(float(variable[0]) - float(reference.values["w"][0]))
        if not (spread == 0.0 and off <= 1e-4 * abs(float(reference.values["w"][0]))):
            return (
                False,
                f"after {steps} steps elements differ by {spread} and are {off} off: a gradient was overwritten",
            )
        if reason := device.why_not_used(optimizer):
            return False, f"not updated by the kernel: {reason}"
        variable.assign(tf.fill(size, 5.0))
        optimizer.apply_gradients([(tf.zeros(size), variable)])
        now = float(variable[0])
    if not 4.0 < now < 5.0 + 1e-6:
        return False, f"after an assignment of 5 a step gave {now}"
    return True, f"{steps} steps with gradients freed at once; a value that was read stays; assignments count"


def check_memory(device: Device) -> tuple[bool, str]:
    """No growth of device memory over many steps, eagerly and in a function."""
    if device.emulated:
        raise NothingToCheckError("TensorFlow does not count the memory of CPUs")
    adam, grown = named("adam"), []
    for in_function in (False, True):
        with device.launching(adam), tf.device(device.name):
            variables = [tf.Variable(tf.zeros([512, 64])) for _ in range(20)]
            gradients = [tf.ones([512, 64]) for _ in variables]
            optimizer = adam.make(global_clipnorm=1.0)
            optimizer.build(variables)

            def step(variables: Any = variables, gradients: Any = gradients, optimizer: Any = optimizer) -> None:
                optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

            run = tf.function(step) if in_function else step

            def used(count: int, run: Any = run, variables: Any = variables) -> int:
                for _ in range(count):
                    run()
                variables[0].numpy()
                return int(tf.config.experimental.get_memory_info(device.name)["current"])

            before = used(10)
            grown.append(used(MANY_STEPS) - before)
    peak = tf.config.experimental.get_memory_info(device.name)["peak"]
    text = f"{grown[0]} and {grown[1]} bytes more after {MANY_STEPS} steps, eagerly and in a function; peak {peak}"
    return max(grown) < MANY_STEPS, text
