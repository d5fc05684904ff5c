"""Reading a graph takes about as many calls for each of its variables, however many there are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import tensorflow as tf
import tf_keras

import migrate
from tests.helpers.timing import calls

v1 = tf.compat.v1


def _clipped(loss: tf.Tensor, variables: list[tf.Variable]) -> tf.Operation:
    gradients, _ = tf.clip_by_global_norm(v1.gradients(loss, variables), 1.0)
    step = v1.train.get_or_create_global_step()
    return v1.train.AdamOptimizer(0.01).apply_gradients(zip(gradients, variables, strict=True), global_step=step)


def _fed(loss: tf.Tensor, variables: list[tf.Variable]) -> tf.Operation:
    return v1.train.AdamOptimizer(v1.placeholder_with_default(0.01, [])).minimize(loss, var_list=variables)


def _keras(loss: tf.Tensor, variables: list[tf.Variable]) -> list[tf.Operation]:
    return tf_keras.optimizers.legacy.Adam(0.01, clipnorm=1.0).get_updates(loss, variables)


def _plain(loss: tf.Tensor, variables: list[tf.Variable]) -> tf.Operation:
    steps = []
    for gradient, variable in zip(v1.gradients(loss, variables), variables, strict=True):
        slot = v1.get_variable(f"{variable.op.name}_speed", initializer=tf.zeros((2, 2)), trainable=False)
        new = 0.9 * slot - 0.1 * gradient
        steps += [v1.assign(slot, new), v1.assign_add(variable, new)]
    return tf.group(*steps)


def _saved(folder: Path, count: int, stepping: Callable[..., object]) -> Path:
    """A Saver's checkpoint of so many variables, after one step."""
    with tf.Graph().as_default(), v1.Session() as session:
        variables = [v1.get_variable(f"layer_{i}/kernel", (2, 2)) for i in range(count)]
        step = stepping(tf.add_n([tf.reduce_sum(v * v) for v in variables]), variables)
        session.run(v1.global_variables_initializer())
        session.run(step)
        return Path(v1.train.Saver().save(session, str(folder / f"{count}" / "model.ckpt")))


@pytest.mark.breadth
@pytest.mark.parametrize("stepping", [_clipped, _fed, _keras, _plain])
def test_four_times_the_variables_take_four_times_the_calls(stepping: Callable[..., object], tmp_path: Path) -> None:
    """4,000 variables took 41 s of CPU, as each was compared with the updates of all; they take 12. A
    rate that is fed looked for all that changes anything, for each variable."""
    migrate.read(_saved(tmp_path, 2, stepping))  # which imports what it needs
    few, many = (calls(partial(migrate.read, _saved(tmp_path, count, stepping))) for count in (25, 100))
    assert many < 4.2 * few
