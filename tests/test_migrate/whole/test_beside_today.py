"""What today's Keras makes of old optimizer state, beside what dtopt makes of it: six further steps of the same run.

The loaders are those of tf_keras and Keras 3 as they are installed. Each of these files loads there, mostly without a
word, and training goes on from something else than what was saved.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import migrate
import optim
from tests.helpers import next_steps
from tests.places import CORPUS
from tests.test_migrate.confirm import confirmed

EXACT, LOST = 1.0, 1000.0
"""Distance from the run's own next six steps, in units of what float32 rounding explains."""
H5 = {
    "keras224-nadam-mlp": "the list has no step count of Nadam's own, and set_weights refuses it",
    "extra-k224-sgd-clipboth-frozen-h5": "clipnorm is the norm of all gradients there, and of each gradient here",
    "extra-tf22-sgd-clipboth-order-trap-h5": "the norm was limited before the values, and is so afterwards here",
    "extra-tf24-adam-unfrozen-later-h5": "slots of a layer that was unfrozen stand at the end of the list",
    "extra-tf215-new-adam-lss-mixed-h5": "the loss-scaled optimizer is made without its state",
    "extra-tf29-sgd-restored-nested-h5": "after Checkpoint.restore the list has another order",
}
Step = Callable[[list[Any]], None]


class Run:
    """A recorded run: its variables at the save, and what became of them."""

    def __init__(self, name: str):
        self.name = name
        self.source = CORPUS / name / "source"
        self.document = json.loads((CORPUS / name / "case.json").read_text())
        self.oracle = np.load(CORPUS / name / "oracle.npz")
        self.count = range(len(self.document["trainable"]))

    def start(self, i: int) -> np.ndarray:
        return self.oracle[f"at_save/var/{i}"]

    def distance(self, variables: Sequence[Any], step: Step) -> float:
        """The worst over steps and variables, after training with the recorded gradients."""
        return next_steps.error(step, variables, self.oracle, self.document["n"])

    def with_dtopt(self, folder: Path, source: Path, **hints: Any) -> float:
        overrides = confirmed(source, **hints)
        migrate.migrate_checkpoint(source, folder / "migrated", strict=True, overrides=overrides, **hints)
        names = [v.name for v in optim.describe_checkpoint(folder / "migrated").variables if v.trainable]
        live = {name: tf.Variable(self.start(i)) for i, name in enumerate(names)}
        optimizer = optim.load_checkpoint(folder / "migrated", live, restore_variables=False)
        variables = list(live.values())
        return self.distance(variables, next_steps.applying(optimizer, variables))


@pytest.mark.parametrize("name", H5)
@pytest.mark.quick(2)
def test_h5_files_that_tf_keras_loads_and_continues_otherwise(name: str, tmp_path: Path) -> None:
    run = Run(name)
    model = tf_keras.models.load_model(run.source / "model.h5")
    variables = model.trainable_variables
    for i in run.count:
        np.testing.assert_array_equal(variables[i].numpy(), run.start(i))
    theirs = run.distance(variables, next_steps.applying(model.optimizer, variables))
    assert theirs > LOST
    assert run.with_dtopt(tmp_path, run.source / "model.h5") <= EXACT


@pytest.mark.parametrize("name", ["extra-tf211-new-adam-wd-ema-h5", "extra-tf24-adam-long-names-h5"])
def test_h5_files_whose_slots_keras_3_drops(name: str, tmp_path: Path) -> None:
    """It loads the model and the step count; the optimizer does not know one variable, nor train any."""
    run = Run(name)
    model = keras.saving.load_model(run.source / "model.h5")
    np.testing.assert_array_equal(model.trainable_variables[0].numpy(), run.start(0))
    assert int(model.optimizer.iterations) == run.document["k"]
    with pytest.raises(ValueError, match="Unknown variable"):
        model.optimizer.apply([tf.zeros(v.shape) for v in model.trainable_variables], model.trainable_variables)
    assert run.with_dtopt(tmp_path, run.source / "model.h5") <= EXACT


def test_a_checkpoint_of_tf_2_4_that_a_new_optimizer_restores_as_nothing(tmp_path: Path) -> None:
    """`expect_partial`, as everyone calls it, hides that no slot and no step count was restored."""
    run = Run("extra-tf24-adam-twins-ckpt")
    prefix = run.source / next(f for f in run.document["source"] if f.endswith(".index")).removesuffix(".index")
    variables = [tf.Variable(run.start(i)) for i in run.count]
    optimizer = tf_keras.optimizers.Adam(**run.document["optimizer"]["args"])
    optimizer.build(variables)
    tf.train.Checkpoint(optimizer=optimizer).restore(str(prefix)).expect_partial()
    assert int(optimizer.iterations) == 0
    theirs = run.distance(variables, next_steps.applying(optimizer, variables))
    assert theirs > LOST
    config = {"class_name": "Adam", "config": run.document["optimizer"]["args"]}
    assert run.with_dtopt(tmp_path, prefix, optimizer_config=config) <= EXACT
