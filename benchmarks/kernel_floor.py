"""What steps on TensorFlow's own kernels cannot be faster than, beside PyTorch's fused step.

    python benchmarks/kernel_floor.py resnet50

Times nothing but the calls of `ResourceApplyAdam` for the shards of a workload on two logical CPU devices, one thread
for each, without any DTensor, optimizer or checks around them: the fastest construction known that uses these kernels.
Prints milliseconds (medians of interleaved rounds) and the ratio.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.workloads import workload

DEVICES = ("CPU:0", "CPU:1")
ROUNDS = 15


def kernel_calls(sizes: list[int]) -> Callable[[], None]:
    """A function that updates the shards of variables of these sizes on both devices at once."""
    import tensorflow as tf

    from optim.executors.kernels import call_all

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * len(DEVICES))
    calls = {device: [] for device in DEVICES}
    state = []
    for device in DEVICES:
        with tf.device(device):
            scalars = [tf.constant(x) for x in (0.0, 0.0, 1e-3, 0.9, 0.999, 1e-7)]
            for size in sizes:
                part = [max(1, size // len(DEVICES))]
                variables = [tf.Variable(tf.zeros(part)) for _ in range(3)]
                state.append(variables)
                handles = [variable.handle for variable in variables]
                options = ("use_locking", False, "use_nesterov", False)
                calls[device].append(("ResourceApplyAdam", *handles, *scalars, tf.random.normal(part), *options))
    pool = ThreadPoolExecutor(len(DEVICES))

    def on(device: str) -> None:
        with tf.device(device):
            call_all(calls[device])

    def step() -> None:
        assert state  # or the handles would name nothing
        for done in [pool.submit(on, device) for device in DEVICES]:
            done.result()

    return step


def seconds(step: Callable[[], object]) -> float:
    """Of the second of two steps."""
    step()
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def serve_torch(pipe: Connection, sizes: list[int]) -> None:
    """In a process of its own, for torch and TensorFlow cannot both be in one: a time for each message."""
    import torch

    torch.set_num_threads(len(DEVICES))
    parameters = [torch.zeros(size, requires_grad=True) for size in sizes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    step = torch.optim.Adam(parameters, fused=True).step
    while pipe.recv():
        pipe.send(seconds(step))


def main(name: str) -> None:
    sizes = [math.prod(tensor.shape) for tensor in workload(name).tensors]
    spawn = get_context("spawn")
    pipe, end = spawn.Pipe()
    child = spawn.Process(target=serve_torch, args=(end, sizes), daemon=True)
    child.start()
    ours, rounds = kernel_calls(sizes), []
    for _ in range(ROUNDS):
        pipe.send(True)
        theirs = pipe.recv()
        rounds.append((seconds(ours), theirs))
    pipe.send(False)
    kernels, fused = (statistics.median(column) * 1e3 for column in zip(*rounds, strict=True))
    ratio = statistics.median(a / b for a, b in rounds)
    print(f"{name}: TensorFlow's kernels {kernels:.2f} ms, torch fused {fused:.2f} ms, ratio {ratio:.2f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "resnet50")
