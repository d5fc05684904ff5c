"""State in few bits: steps on the device leave the bits of the CPU's kernel."""

from __future__ import annotations

import tensorflow as tf

import optim
from tests.test_optim.bits.few_bits_cases import OPTIONS, bits_of, train
from tools.gpu.device import Device

MODES = ("native", "native_function")


def check_few_bits(device: Device) -> tuple[bool, str]:
    """Run Adam with each way to store its slots and variables. Its operations round in the same way everywhere."""
    wrong = [
        f"{name}, {mode}: {problem}"
        for name in OPTIONS
        for mode in MODES
        if (problem := _problem_of(device, name, mode))
    ]
    count = len(OPTIONS) * len(MODES)
    text = f"{count - len(wrong)} of {count} runs agree bit for bit with the CPU"
    return not wrong, f"{text}; {wrong[0]}" if wrong else text


def _problem_of(device: Device, name: str, mode: str) -> str:
    """What is wrong with a run on the device; empty if nothing is."""
    options = dict(OPTIONS[name])
    dtype = options.pop("dtype", tf.float32)
    expected, ours = (optim.Adam(0.01, **options) for _ in range(2))
    with tf.device("CPU:0"):
        wanted = bits_of(expected, train(expected, mode, dtype))
    with device.launching(rules=[ours._algorithm.updating_rule]), tf.device(device.name):
        actual = bits_of(ours, train(ours, mode, dtype))
        if reason := device.why_not_used(ours):
            return f"not updated by the kernel: {reason}"
    differs = [key for key, value in wanted.items() if value.tobytes() != actual[key].tobytes()]
    return f"{', '.join(differs)} differ from the CPU" if differs else ""
