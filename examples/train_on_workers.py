"""Data parallel training with MultiWorkerMirroredStrategy: one program, many processes; `TF_CONFIG` names this one.

    python examples/train_on_workers.py FOLDER

Without `TF_CONFIG` it trains in one process. Each worker saves into FOLDER/worker-N; what they save is the same.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

import optim

STEPS, BATCH = 20, 32


def main(folder: str) -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else starts TensorFlow
    worker = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)
    with strategy.scope():
        kernel = tf.Variable(tf.zeros([4, 1]), name="kernel")
        optimizer = optim.Adam(learning_rate=0.1, global_clipnorm=1.0)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        def on_a_replica() -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((x @ kernel - y) ** 2) / BATCH  # of the whole batch: gradients are summed
            optimizer.apply_gradients([(tape.gradient(loss, kernel), kernel)])
            return loss

        return strategy.reduce("sum", strategy.run(on_a_replica), axis=None)

    random = np.random.default_rng(0)
    share = BATCH // strategy.num_replicas_in_sync
    for _ in range(STEPS):
        x = random.normal(size=(BATCH, 4)).astype("float32")[worker * share : (worker + 1) * share]
        loss = step(tf.constant(x), tf.constant(x @ np.float32([[1.0], [-2.0], [0.5], [3.0]])))
    optim.save_checkpoint(Path(folder) / f"worker-{worker}", optimizer, {"kernel": kernel})
    print(f"loss {float(loss):.4f} after {int(optimizer.iterations.numpy())} steps")


if __name__ == "__main__":
    main(sys.argv[1])
