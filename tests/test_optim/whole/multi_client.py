"""One client of `test_multi_client.py`: `multi_client.py CLIENT PORTS FOLDER`, on two devices of four.

Trains, saves, loads onto a mesh of another shape, trains on, and leaves the values in FOLDER/client-N.npz.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROWS, WIDTH, HIDDEN = 16, 8, 4
OPTIONS = {"learning_rate": 0.05, "global_clipnorm": 0.5, "weight_decay": 0.1, "use_ema": True}
EAGER, TRACED, RESUMED = 3, 2, 2


def data() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {"kernel": (WIDTH, HIDDEN), "bias": (HIDDEN,), "x": (ROWS, WIDTH), "y": (ROWS, HIDDEN)}
    return {name: random.normal(size=shape) for name, shape in shapes.items()}


def gradients(x: Any, y: Any, kernel: Any, bias: Any) -> Any:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(x @ kernel + bias - y))
    return tape.gradient(loss, [kernel, bias])


def laid_out(mesh: Any, axes: tuple[str, str]) -> tuple[dict[str, Any], Any, Any]:
    """The variables, and x and y, on a mesh."""
    from tensorflow.experimental import dtensor

    from optim.layouts import placement

    rows, columns = axes
    values = data()
    specs = {"kernel": [rows, columns], "bias": [columns], "x": [rows, "unsharded"], "y": [rows, columns]}
    put = {name: placement.from_host(values[name], dtensor.Layout(spec, mesh)) for name, spec in specs.items()}
    variables = {name: dtensor.DVariable(put[name], name=name) for name in ("kernel", "bias")}
    return variables, put["x"], put["y"]


def train(optimizer: Any, variables: dict[str, Any], x: Any, y: Any, eager: int, traced: int) -> None:
    import tensorflow as tf

    find = tf.function(lambda x, y: gradients(x, y, *variables.values()), autograph=False)
    for _ in range(eager):
        optimizer.apply_gradients(zip(find(x, y), variables.values(), strict=True))

    @tf.function(autograph=False)
    def step(x: Any, y: Any) -> None:
        optimizer.apply_gradients(zip(gradients(x, y, *variables.values()), variables.values(), strict=True))

    for _ in range(traced):
        step(x, y)


def main(client: int, ports: list[str], folder: Path) -> None:
    os.environ["DTENSOR_CLIENT_ID"] = str(client)
    os.environ["DTENSOR_NUM_CLIENTS"] = str(len(ports))
    os.environ["DTENSOR_JOB_NAME"] = "worker"
    os.environ["DTENSOR_JOBS"] = ",".join(f"localhost:{port}" for port in ports)
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    import optim
    from optim.layouts import placement

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    dtensor.initialize_accelerator_system("CPU")
    mesh = dtensor.create_distributed_mesh([("batch", 2), ("model", 2)], device_type="CPU")
    variables, x, y = laid_out(mesh, ("batch", "model"))
    optimizer = optim.Adam(mesh=mesh, slot_placement="zero1", **OPTIONS)
    train(optimizer, variables, x, y, EAGER, TRACED)
    prefix = optim.save_checkpoint(folder / "checkpoint", optimizer, variables)
    again = optim.save_checkpoint(folder / "checkpoint", optimizer, variables)
    assert prefix != again

    flat = dtensor.create_distributed_mesh([("rows", 4), ("columns", 1)], device_type="CPU")
    others, x, y = laid_out(flat, ("rows", "columns"))
    resumed = optim.load_checkpoint(folder / "checkpoint", others, mesh=flat)
    train(resumed, others, x, y, RESUMED, 0)
    values = {name: placement.to_host(variable) for name, variable in others.items()}
    slots = {f"m of {name}": placement.to_host(resumed.get_slot(v, "m")) for name, v in others.items()}
    config = resumed.get_config()
    assert optim.Adam.from_config(config).mesh == flat
    refusal = ""
    try:
        optim.save_checkpoint(folder / "taken", resumed, others)  # the test put something else there
    except optim.errors.CheckpointError as error:
        refusal = str(error)
    np.savez(folder / f"client-{client}.npz", prefix=again, refusal=refusal, **values, **slots)
    dtensor.barrier(flat)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2].split(","), Path(sys.argv[3]))
