"""What of an eager step on a mesh is the kernel, and what is Python around it.

    python docs/benchmarks/eager_floor.py [OPTIMIZER] [WORKLOAD]

Prints medians of a few hundred steps on two CPU devices, in ms: of a whole step; of reading the gradients and of the
kernel, timed in the same steps; and of the rest. After the kernel has moved tens of megabytes through the caches Python
runs from memory, and takes several times as long as on variables of a few elements, which come last.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from bench.cases.workloads import workload
from optim.native import direct

STEPS, WARM_UP = 300, 20
PARTS = {"hold": "reading the gradients", "update": "the kernel"}


def mesh() -> dtensor.Mesh:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return dtensor.create_mesh([("batch", 2)], devices=["CPU:0", "CPU:1"])


def step_on(mesh: dtensor.Mesh, name: str, shapes: Sequence[Sequence[int]]) -> Callable[[], None]:
    """A step on variables of these shapes, divided along their first dim."""

    def ones(shape: Sequence[int]) -> Any:
        layout = dtensor.Layout.batch_sharded(mesh, "batch", len(shape))
        return dtensor.call_with_layout(tf.ones, layout, shape)

    variables = [dtensor.DVariable(ones(shape), name=f"w{i}") for i, shape in enumerate(shapes)]
    gradients = [ones(shape) for shape in shapes]
    optimizer = getattr(optim, name)(0.01, mesh=mesh)
    return lambda: optimizer.apply_gradients(zip(gradients, variables, strict=True))


def timed(run: Callable[..., Any], into: list[float]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        start = time.perf_counter()
        found = run(*arguments)
        into.append(time.perf_counter() - start)
        return found

    return call


def measure(step: Callable[[], None]) -> dict[str, float]:
    for _ in range(WARM_UP):
        step()
    loaded, times = direct._loaded[0], {part: list[float]() for part in ("step", *PARTS)}
    known = {part: getattr(loaded, part) for part in PARTS}
    for part, function in known.items():
        setattr(loaded, part, timed(function, times[part]))
    whole = timed(step, times["step"])
    for _ in range(STEPS):
        whole()
    for part, function in known.items():
        setattr(loaded, part, function)
    return {part: statistics.median(each) * 1e3 for part, each in times.items()}


def main(name: str, on: str) -> None:
    devices = mesh()
    optim.build_kernels()
    shapes = [tensor.shape for tensor in workload(on).tensors]
    for title, sizes in ((on, shapes), (f"as many variables of 2 elements as {on} has", [(2,)] * len(shapes))):
        found = measure(step_on(devices, name, sizes))
        print(f"{name}, {title}: {found['step']:.3f}")
        for part, what in PARTS.items():
            print(f"  {what:30}{found[part]:8.3f}  {found[part] / found['step']:4.0%}")
        rest = found["step"] - sum(found[part] for part in PARTS)
        print(f"  {'Python around them':30}{rest:8.3f}  {rest / found['step']:4.0%}")


if __name__ == "__main__":
    given = sys.argv[1:]
    main(given[0] if given else "SGD", given[1] if len(given) > 1 else "gpt2:layer")
