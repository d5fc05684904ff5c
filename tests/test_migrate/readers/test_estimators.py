"""Checkpoints of Estimators, canned and with a model_fn of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from optim.bytes.bundle import BundleReader
from optim.errors import UnsupportedError
from tests.helpers.bundles import written
from tests.places import ESTIMATORS


def test_a_canned_estimator_with_partitioned_variables_takes_its_next_step(tmp_path: Path) -> None:
    """Keys of its slots are cut (`kernel/t_0/Momentum`), and its table has sparse gradients."""
    import tensorflow as tf

    import optim

    source = ESTIMATORS / "canned_dnn" / "model.ckpt-5"
    before, after = migrate.read(source), BundleReader(str(source.with_name("model.ckpt-6")))
    report = migrate.migrate_checkpoint(source, tmp_path / "out")
    assert (report.fidelity, report.optimizer, report.iterations) == ("exact", "SGD", 5)
    values = {v.name: v.array.load() for v in before.variables if v.array is not None}
    assert {name.rpartition("/")[2] for name in values} == {"kernel", "bias", "embedding_weights"}
    live = {name: tf.Variable(value) for name, value in values.items()}
    optimizer = optim.load_checkpoint(tmp_path / "out", live, restore_variables=False)
    pairs = []
    for name, variable in live.items():
        old, new = before.slots["m"][name].load(), after.load(f"{name}/t_0/Momentum")
        gradient = new - np.float32(0.9) * old
        if name.endswith("embedding_weights"):
            rows = np.flatnonzero(np.any(new != old, axis=1))
            assert 0 < len(rows) < len(old)
            gradient = tf.IndexedSlices(tf.constant(gradient[rows]), tf.constant(rows), tf.constant(old.shape))
        pairs.append((gradient, variable))
    optimizer.apply_gradients(pairs)
    for name, variable in live.items():
        np.testing.assert_allclose(variable.numpy(), after.load(name), rtol=0, atol=1e-7)


def test_an_estimators_keras_optimizer_with_a_schedule_counts_in_global_step(tmp_path: Path) -> None:
    """As DNNClassifier(optimizer=Adam(ExponentialDecay(...))) of TensorFlow 2.4 saves: a schedule is no variable."""
    ones = np.ones((2, 3), np.float32)
    values: dict[str, Any] = {"dense/kernel": ones, "global_step": np.int64(5)}
    values |= {f"training/Adam/dense/kernel/{slot}": ones * 0.1 for slot in "mv"}
    hyper = {"beta_1": 0.9, "beta_2": 0.999, "decay": 0.0}
    values |= {f"training/Adam/{name}": np.float32(value) for name, value in hyper.items()}
    written(tmp_path / "model.ckpt-5", {name: np.asarray(values[name]) for name in sorted(values)})
    decay = {"initial_learning_rate": 0.01, "decay_steps": 10, "decay_rate": 0.5}
    rate = {"class_name": "ExponentialDecay", "config": decay}
    config = {"class_name": "Adam", "config": {"learning_rate": rate, "epsilon": 1e-7}}
    state = migrate.read(tmp_path / "model.ckpt-5", optimizer_config=config)
    assert (state.source.generation if state.source else None, state.iterations) == ("optimizer_v2", 5)
    assert {slot: list(owners) for slot, owners in state.slots.items()} == {slot: ["dense/kernel"] for slot in "mv"}


@pytest.mark.parametrize(
    ("kind", "names"),
    [("linear", ("x/weights", "bias_weights")), ("nadam", ("kernel", "bias")), ("native", ("kernel", "bias"))],
)
@pytest.mark.quick(1)
def test_estimators_take_their_next_step(kind: str, names: tuple[str, str], tmp_path: Path) -> None:
    """A canned one with Ftrl, a model_fn of one's own with Nadam and a limit, and `model_to_estimator` of TensorFlow
    1.10 with Adam and its decay, on a batch that tells gradients."""
    import tensorflow as tf

    import optim

    source = ESTIMATORS / kind / "model.ckpt-5"
    report = migrate.migrate_checkpoint(source, tmp_path / "out")
    assert (report.fidelity, report.iterations) == ("exact", 5)
    values = {v.name: v.array.load() for v in migrate.read(source).variables if v.array is not None}
    kernel, bias = (next(v for n, v in values.items() if n.endswith(end)) for end in names)
    random = np.random.RandomState(0)
    x, y = random.randn(8, 3).astype("float32"), random.randn(8, 1).astype("float32")  # as `make_case/estimators.py`
    off = 2 / len(x) * (x @ kernel + bias - y)
    live = {name: tf.Variable(value) for name, value in values.items()}
    gradients = [(x.T @ off if v.shape == kernel.shape else off.sum(0), v) for v in live.values()]
    optim.load_checkpoint(tmp_path / "out", live, restore_variables=False).apply_gradients(gradients)
    after = BundleReader(str(source.with_name("model.ckpt-6")))
    for name, variable in live.items():
        np.testing.assert_allclose(variable.numpy(), after.load(name), rtol=0, atol=2e-7)


def test_trees_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"an ensemble of trees.*BoostedTrees"):
        migrate.inspect(ESTIMATORS / "trees" / "model.ckpt-6")
