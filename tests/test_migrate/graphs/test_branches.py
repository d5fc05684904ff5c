"""Optimizers that make their variables in a branch of `tf.cond`, and take a step only where a condition says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import migrate


@pytest.mark.parametrize(("legacy", "generation"), [(True, "optimizer_v2"), (False, "optimizer")])
@pytest.mark.parametrize("on_condition", [True, False])
def test_steps_that_a_loop_takes_on_a_condition_are_told(
    on_condition: bool, legacy: bool, generation: str, tmp_path: Path
) -> None:
    """As one that sums gradients up takes them: its optimizer makes its variables in the branch."""
    import tensorflow as tf
    import tf_keras

    variable, rounds = tf.Variable(tf.ones([3]), name="w"), tf.Variable(0)
    optimizer = (tf_keras.optimizers.legacy if legacy else tf_keras.optimizers).Adam(0.1)

    @tf.function
    def step() -> None:
        def taken() -> None:
            optimizer.apply_gradients([(tf.constant([0.5, -1.0, 2.0]), variable)])

        if on_condition:
            rounds.assign_add(1)
            tf.cond(rounds % 2 == 0, taken, lambda: None)
        else:
            taken()

    for _ in range(4):
        step()
    tf.train.Checkpoint(w=variable, optimizer=optimizer).write(str(tmp_path / "ckpt"))
    config = {"class_name": "Adam", "config": optimizer.get_config()}
    state = migrate.read(tmp_path / "ckpt", optimizer_config=config)
    assert state.source is not None
    assert state.source.generation == generation
    reasons = [reason for reason in state.reasons if "was created in a branch of tf.cond" in reason]
    assert (state.fidelity == "exact", bool(reasons)) == (not on_condition, on_condition)
    sure = migrate.read(tmp_path / "ckpt", optimizer_config=config, overrides={"gradients": "program"})
    assert sure.fidelity == "exact"


def test_a_scaled_loss_is_no_condition_of_a_loop(tmp_path: Path) -> None:
    """LossScaleOptimizer makes the slots of OptimizerV2 in a branch, too, and stands at the same node."""
    import tf_keras

    inner = tf_keras.optimizers.legacy.Adam(0.1)
    model = tf_keras.Sequential([tf_keras.layers.Dense(2, input_shape=(3,))])
    model.compile(tf_keras.mixed_precision.LossScaleOptimizer(inner), "mse")
    for _ in range(4):
        model.train_on_batch(np.ones([4, 3], "f4"), np.zeros([4, 2], "f4"))
    assert inner.get_slot(model.layers[0].kernel, "m").name.startswith("cond")
    model.save_weights(str(tmp_path / "weights"), save_format="tf")
    config = {"class_name": "Adam", "config": inner.get_config()}
    assert migrate.read(tmp_path / "weights", optimizer_config=config).fidelity == "exact"
