"""A step for which the GPU has no memory: an error, and everything as it was."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tools.gpu.device import Device, NothingToCheckError, first_line, named

MIB = 1024**2
LIMIT = 512
"""MiB of the logical GPU of this check."""
ELEMENTS, PIECE = 8 * MIB, 512 * 1024
"""Of the variable, 32 MiB of float32, and of what fills the memory, 2 MiB each."""


def limit() -> None:
    """Give this process a small part of the first GPU, before TensorFlow begins."""
    for gpu in tf.config.list_physical_devices("GPU")[:1]:
        tf.config.set_logical_device_configuration(gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=LIMIT)])


def check_full_memory(device: Device) -> tuple[bool, str]:
    """A variable whose value somebody holds is copied before it is updated. Without room for that nothing changes."""
    if device.emulated:
        raise NothingToCheckError("TensorFlow does not limit the memory of CPUs")
    with tf.device(device.name):
        variable, optimizer = tf.Variable(tf.zeros([ELEMENTS])), named("adam").make()
        gradient = tf.ones([ELEMENTS])
        optimizer.apply_gradients([(gradient, variable)])
        value, slots = variable.read_value(), [slot.numpy() for slot in _slots(optimizer, variable)]
        before = value.numpy()
        fill = _filled()
        try:
            optimizer.apply_gradients([(gradient, variable)])
            error = ""
        except Exception as raised:  # TensorFlow's or Python's, whatever it is
            error = first_line(raised)
        fill.clear()
        if not error:
            return False, "a step that has no room for a copy raised nothing"
        now = [variable.numpy(), *(slot.numpy() for slot in _slots(optimizer, variable))]
        same = all(a.tobytes() == b.tobytes() for a, b in zip(now, [before, *slots], strict=True))
        if not same or int(optimizer.iterations.numpy()) != 1:
            return False, f"the step that failed has changed something: {error}"
        optimizer.apply_gradients([(gradient, variable)])
        if not float(variable[0]) < float(value[0]):
            return False, f"the step after the one that failed did nothing: {error}"
    return "has no" in error, error


def _slots(optimizer: Any, variable: Any) -> list[Any]:
    return [optimizer.get_slot(variable, name) for name in ("m", "v")]


def _filled() -> list[Any]:
    """Tensors that leave no room on the GPU."""
    blocks: list[Any] = []
    try:
        while True:
            blocks.append(tf.zeros([PIECE]))
    except tf.errors.ResourceExhaustedError:
        return blocks
