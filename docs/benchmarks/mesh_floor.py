"""What DTensor itself takes of a step on many small variables: each step compared with a bare loop of the calls that it
needs.

    python docs/benchmarks/mesh_floor.py [VARIABLES]

Prints the medians of interleaved rounds, in ms, on two CPU devices. In a function: `optim`, tf_keras with `mesh=`, and
functions that are given the same arguments and do nothing. Eagerly: `optim`; nothing but FetchLayout and Unpack of
DTensor for the gradients, called from C++; and nothing but how `optim` reads them instead.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras
from tensorflow.experimental import dtensor

import optim
from optim.native import direct, library

ROUNDS, CALLS, SIZE = 15, 3, 64


class Bench:
    def __init__(self, count: int):
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        self.mesh = dtensor.create_mesh([("batch", 2)], devices=["CPU:0", "CPU:1"])
        self.count = count
        self.gradients = [self.value(1) for _ in range(count)]
        self.scalar = dtensor.DVariable(self.value(0))

    def value(self, rank: int) -> Any:
        return dtensor.copy_to_mesh(tf.zeros([SIZE] * rank), dtensor.Layout.replicated(self.mesh, rank))

    def variables(self) -> list[Any]:
        return [dtensor.DVariable(self.value(1), name=f"w{i}") for i in range(self.count)]

    def wait(self) -> None:
        for part in dtensor.unpack(self.scalar.read_value()):
            part.numpy()

    def optim(self, wrap: Callable[[Any], Any]) -> Callable[[], Any]:
        variables, optimizer = self.variables(), optim.Adam(mesh=self.mesh)
        optimizer.build(variables)
        step = wrap(lambda g: optimizer.apply_gradients(zip(g, variables, strict=True)))
        return lambda: step(self.gradients)

    def tf_keras(self) -> Callable[[], Any]:
        variables, optimizer = self.variables(), tf_keras.optimizers.Adam(mesh=self.mesh)
        optimizer.build(variables)

        @tf.function
        def step(gradients: list[Any]) -> None:
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

        return lambda: step(self.gradients)

    def nothing(self, handles: int) -> Callable[[], Any]:
        """A function with the gradients and so many handles for each as arguments."""
        variables = [item for _ in range(handles) for item in self.variables()]

        @tf.function
        def step(gradients: list[Any]) -> None:
            for item in variables:
                tf.compat.v1.get_default_graph().capture(item.handle)
            self.scalar.assign_add(1.0)

        return lambda: step(self.gradients)

    def reading(self, looks_inside: bool) -> Callable[[], Any]:
        direct.load(library.status().path, looks_inside)
        how = direct._loaded[:]
        layout, dtype = dtensor.fetch_layout(self.gradients[0]).to_string(), tf.float32.as_datatype_enum
        wanted = direct.AllExpected([direct.expected(layout, dtype, [SIZE])] * self.count)

        def read() -> None:
            known, direct._loaded[:] = direct._loaded[:], how
            assert isinstance(direct.hold_if(self.gradients, wanted), direct.Held)
            direct._loaded[:] = known

        return read


def main(count: int) -> None:
    bench = Bench(count)
    optim.build_kernels()
    steps = {
        "function: optim": bench.optim(tf.function),
        "function: nothing, a variable and its gradient": bench.nothing(1),
        "function: nothing, a variable, two slots and a gradient": bench.nothing(3),
        "function: tf_keras mesh=": bench.tf_keras(),
        "eager: optim": bench.optim(lambda step: step),
        "eager: FetchLayout and Unpack": bench.reading(looks_inside=False),
        "eager: reading gradients": bench.reading(looks_inside=True),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(ROUNDS + 2):  # the first two trace, compile and warm up
        for name, step in steps.items():
            bench.wait()
            start = time.perf_counter()
            for _ in range(CALLS):
                step()
            bench.wait()
            if turn >= 2:
                times[name].append((time.perf_counter() - start) / CALLS * 1e3)
    for name, found in times.items():
        print(f"{name:60}{statistics.median(found):8.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
