"""One worker of `test_replicas.py`: `two_workers.py FOLDER WHAT`, its place in the cluster in TF_CONFIG.

`loop` takes three steps, saves, loads into a new optimizer, takes two more; `options` takes steps with options beside
one another, where a worker overflows; `fit` trains a model of tf_keras by its own Adam and by ours. What comes out is
left in FOLDER/worker-N.npz.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import optim

START = np.array([[1.0, -2.0], [3.0, 0.5], [0.25, 4.0]], np.float32)


def step(strategy: Any, optimizer: Any, variable: Any, number: float) -> None:
    @tf.function
    def everywhere() -> None:
        def replica() -> None:
            rank = tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
            optimizer.apply_gradients([((rank + 1.0) * tf.cos(number + tf.constant(START)), variable)])

        strategy.run(replica)

    everywhere()


def loop(strategy: Any, rank: int, folder: Path) -> dict[str, Any]:
    with strategy.scope():
        variable = tf.Variable(START, name="w")
        optimizer = optim.Adam(0.1, global_clipnorm=0.5, use_ema=True)
    for number in range(3):
        step(strategy, optimizer, variable, float(number))
    saved = folder / f"saved-{rank}"  # each worker writes its own, all the same
    optim.save_checkpoint(saved, optimizer, {"w": variable})
    with strategy.scope():
        again = tf.Variable(tf.zeros_like(START), name="w")
        resumed = optim.load_checkpoint(saved, {"w": again})
    for number in range(3, 5):
        step(strategy, resumed, again, float(number))
    values = {"w": again.numpy(), "iterations": resumed.iterations.numpy()}
    return values | {name: resumed.get_slot(again, name).numpy() for name in resumed.slot_names}


def options(strategy: Any, rank: int, folder: Path) -> dict[str, Any]:
    """Six calls make three windows; in the second one worker has an infinite gradient, in all one has no row 0."""
    with strategy.scope():
        variable, table = tf.Variable(START, name="w"), tf.Variable(START, name="table")
        optimizer = optim.Adam(
            0.1, gradient_accumulation_steps=2, loss_scale="dynamic", global_clipnorm=0.5, weight_decay=0.1
        )

    @tf.function
    def everywhere(number: Any) -> None:
        def replica() -> None:
            dense = (rank + 1.0) * tf.cos(number + tf.constant(START))
            dense = tf.where(tf.logical_and(number == 2.0, rank == 1), np.inf, dense)
            dense = optimizer.scale_loss(dense)
            rows = tf.IndexedSlices(dense[rank:], tf.range(rank, 3), tf.constant([3, 2]))
            optimizer.apply_gradients([(dense, variable), (rows, table)])

        strategy.run(replica)

    with strategy.scope():
        optimizer.build([variable, table])
    for number in range(6):
        everywhere(tf.constant(float(number)))
    return {"w": variable.numpy(), "table": table.numpy(), "steps": optimizer.iterations.numpy()}


def fit(strategy: Any, rank: int, folder: Path) -> dict[str, Any]:
    import tf_keras

    tf_keras.backend.set_floatx("float64")
    x, y = np.random.default_rng(0).normal(size=(32, 4)), np.random.default_rng(1).normal(size=(32, 2))
    found = {}
    for name in ("theirs", "ours"):
        with strategy.scope():
            kernel = tf_keras.initializers.GlorotUniform(seed=1)
            model = tf_keras.Sequential(
                [tf_keras.layers.Input((4,)), tf_keras.layers.Dense(2, kernel_initializer=kernel, name="out")]
            )
            given: dict[str, Any] = {"learning_rate": 0.0625, "weight_decay": 0.125, "global_clipnorm": 0.5}
            given |= {"beta_1": 0.875, "beta_2": 0.9375}  # tf_keras rounds its constants to float32: these are exact
            theirs = tf_keras.optimizers.Adam(**given)
            model.compile(optim.for_keras(optim.Adam(**given), tf_keras) if name == "ours" else theirs, "mse")
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
        model.fit(data, epochs=2, verbose=0, shuffle=False)
        found |= {f"{name}.{v.name}": v.numpy() for v in model.trainable_variables}
    weights = {v.name: v for v in model.trainable_variables}
    optim.save_checkpoint(folder / f"fit-{rank}", model.optimizer, weights)
    with strategy.scope():
        copies = {name: tf.Variable(tf.zeros_like(v), name=name[:-2]) for name, v in weights.items()}
        resumed = optim.load_checkpoint(folder / f"fit-{rank}", copies)
    return found | {"steps": resumed.iterations.numpy()}


def main(folder: Path, what: str) -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else starts TensorFlow
    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    values = {"loop": loop, "options": options, "fit": fit}[what](strategy, rank, folder)
    np.savez(folder / f"worker-{rank}.npz", **values)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
