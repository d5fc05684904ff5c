"""Training on a mesh that several processes share: DTensor clients. The same program in every process.

    DTENSOR_JOBS=host0:10000,host1:10000 DTENSOR_NUM_CLIENTS=2 DTENSOR_CLIENT_ID=0 \\
        python examples/train_on_clients.py FOLDER

Without these variables it trains in one process. All processes must see FOLDER, which the first client writes.
"""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim

STEPS, DEVICES = 20, 2


def main(folder: str) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * DEVICES)
    dtensor.initialize_accelerator_system("CPU")
    mesh = dtensor.create_distributed_mesh([("batch", DEVICES * dtensor.num_clients())], device_type="CPU")

    def on_mesh(value: np.ndarray, *axes: str) -> tf.Tensor:
        whole = dtensor.copy_to_mesh(tf.constant(value), dtensor.Layout.replicated(mesh, value.ndim))
        return dtensor.relayout(whole, dtensor.Layout(axes, mesh))

    kernel = dtensor.DVariable(on_mesh(np.zeros([4, 1], "float32"), "unsharded", "unsharded"), name="kernel")
    optimizer = optim.Adam(learning_rate=0.1, global_clipnorm=1.0, slot_placement="zero1", mesh=mesh)

    @tf.function
    def loss_and_gradient(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ kernel - y) ** 2)
        return loss, tape.gradient(loss, kernel)

    random = np.random.default_rng(0)
    for _ in range(STEPS):
        x = random.normal(size=(32, 4)).astype("float32")
        y = x @ np.float32([[1.0], [-2.0], [0.5], [3.0]])
        loss, gradient = loss_and_gradient(on_mesh(x, "batch", "unsharded"), on_mesh(y, "batch", "unsharded"))
        optimizer.apply_gradients([(gradient, kernel)])
    optim.save_checkpoint(folder, optimizer, {"kernel": kernel})  # by all clients
    print(f"loss {float(loss.numpy()):.4f} after {int(optimizer.iterations.numpy())} steps on {mesh.size} devices")
    dtensor.barrier(mesh)


if __name__ == "__main__":
    main(sys.argv[1])
