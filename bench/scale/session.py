"""The work of one DTensor client: parameters on the mesh, gradients reduced over the examples, one optimizer step.

TensorFlow is imported inside the functions. All numbers are constant over each tensor: parameters start at START, and
the gradients of the devices of the data axis add up to GRADIENT. So the sum is known, every element must end with the
same value on every mesh, and no arithmetic meets zeros or denormals.
"""

from __future__ import annotations

import time
from typing import Any

from bench.forecast.footprint import place
from bench.measuring.forking import imported_tensorflow
from bench.peers.tensorflow import barrier
from bench.scale.optimizers import make
from bench.scale.setup import Setup
from optim.layouts.sharding import UNSHARDED, local_shape

START = 0.05
GRADIENT = 0.1


def start(setup: Setup, several_clients: bool) -> Any:
    """Start TensorFlow with this client's devices, and return the mesh over all clients."""
    tf = imported_tensorflow()
    from tensorflow.experimental import dtensor

    tf.config.threading.set_intra_op_parallelism_threads(setup.threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, setup.threads))
    kind = setup.device.upper()
    if setup.device == "cpu":
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * setup.devices_per_client
        tf.config.set_logical_device_configuration(cpu, logical)
    axes = list(setup.mesh.axes)
    if several_clients or setup.device != "cpu":
        dtensor.initialize_accelerator_system(kind)
        # TPU meshes use every core; meshes of other devices use the first ones.
        mine = None if setup.device == "tpu" else [f"{kind}:{i}" for i in range(setup.devices_per_client)]
        return dtensor.create_distributed_mesh(axes, local_devices=mine, device_type=kind)
    return dtensor.create_mesh(axes, devices=[f"CPU:{i}" for i in range(setup.mesh.devices)])


class Session:
    """The model of a setup on its mesh, with the gradients of every device."""

    def __init__(self, setup: Setup, mesh: Any) -> None:
        from tensorflow.experimental import dtensor

        self.mesh = mesh
        self._axes = dict(setup.mesh.axes)
        self._data = setup.data[0] if setup.data and self._axes[setup.data[0]] > 1 else None
        placed = place(setup.tensors, setup.mesh, setup.layout, setup.placement, setup.training)
        self._layouts = [dtensor.Layout(list(one.specs), mesh) for one in placed]
        shapes = [one.tensor.shape for one in placed]
        self.variables = [
            dtensor.DVariable(self._filled(shape, one.specs, START), name=one.tensor.name.replace("/", "_"))
            for shape, one in zip(shapes, placed, strict=True)
        ]
        self._gradients = [self._of_devices(shape, one.specs) for shape, one in zip(shapes, placed, strict=True)]
        self._reduce = self._reduction()
        self.optimizer = make(setup.training, setup.placement, mesh)
        self.optimizer.build(self.variables)
        self._wait = barrier(mesh)

    def _filled(self, shape: Any, specs: Any, value: float) -> Any:
        import tensorflow as tf
        from tensorflow.experimental import dtensor

        parts = []
        for device in self.mesh.local_devices():
            with tf.device(device):
                parts.append(tf.fill(local_shape(shape, specs, self._axes), value))
        return dtensor.pack(parts, dtensor.Layout(list(specs), self.mesh))

    def _of_devices(self, shape: Any, specs: Any) -> Any:
        """Return gradients before their reduction: along a new first dim, one for each place on the data axis.

        Their weights differ, so that a sum over the wrong devices is wrong.
        """
        import tensorflow as tf
        from tensorflow.experimental import dtensor

        if self._data is None:
            return self._filled(shape, specs, GRADIENT)
        rest = [UNSHARDED if axis == self._data else axis for axis in specs]
        count = self._axes[self._data]
        parts = []
        for device, at in zip(self.mesh.local_devices(), self.mesh.local_device_locations(), strict=True):
            weight = 2 * (at[self._data] + 1) / (count * (count + 1))
            with tf.device(device):
                parts.append(tf.fill([1, *local_shape(shape, rest, self._axes)], GRADIENT * weight))
        return dtensor.pack(parts, dtensor.Layout([self._data, *rest], self.mesh))

    def _reduction(self) -> Any:
        import tensorflow as tf
        from tensorflow.experimental import dtensor

        if self._data is None:
            return lambda gradients: gradients

        @tf.function(autograph=False)
        def reduce(gradients: list[Any]) -> list[Any]:
            pairs = zip(gradients, self._layouts, strict=True)
            return [dtensor.relayout(tf.reduce_sum(gradient, axis=0), layout) for gradient, layout in pairs]

        return reduce

    def step(self) -> None:
        reduced = self._reduce(self._gradients)
        self.optimizer.apply_gradients(zip(reduced, self.variables, strict=True))

    def synchronise(self) -> None:
        self._wait()

    def time(self, steps: int) -> float:
        """Return the seconds per step of `steps` steps, and of the wait for this client's devices after the last."""
        self.synchronise()
        begun = time.perf_counter()
        for _ in range(steps):
            self.step()
        self.synchronise()
        return (time.perf_counter() - begun) / steps

    def reduced_gradient_error(self) -> float:
        """Return the largest relative error of the reduced gradients on this client's devices."""
        return max(self._range_error(gradient) for gradient in self._reduce(self._gradients))

    def _range_error(self, gradient: Any) -> float:
        from tensorflow.experimental import dtensor

        parts = [part.numpy() for part in dtensor.unpack(gradient)]
        return max(float(max(abs(p.max() - GRADIENT), abs(p.min() - GRADIENT))) / GRADIENT for p in parts)

    def movements(self) -> list[float]:
        """Return how far every parameter has moved; NaN if this client's devices disagree."""
        from tensorflow.experimental import dtensor

        moved = []
        for variable in self.variables:
            parts = [part.numpy() for part in dtensor.unpack(variable.read_value())]
            low, high = min(float(p.min()) for p in parts), max(float(p.max()) for p in parts)
            moved.append((low + high) / 2 - START if high - low <= 1e-6 * abs(high) else float("nan"))
        return moved

    def largest_of_all_clients(self, value: float) -> float:
        """Return the largest of the clients' numbers, found through the mesh itself."""
        import tensorflow as tf
        from tensorflow.experimental import dtensor

        names = list(self._axes)
        part = tf.reshape(tf.constant(value, tf.float64), [1] * len(names))
        packed = dtensor.pack([part] * len(self.mesh.local_devices()), dtensor.Layout(names, self.mesh))
        largest = tf.reduce_max(packed)
        return float(dtensor.unpack(largest)[0].numpy())

    def reported_bytes(self) -> dict[str, int]:
        """Return the bytes that the optimizer reports on one device, the largest."""
        report = self.optimizer.memory_report()
        return {"parameters": max(report.variables.values()), "slots": max(report.slot_bytes.values(), default=0)}
