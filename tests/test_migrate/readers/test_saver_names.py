"""tf.train.Saver checkpoints made here, for what names alone can and cannot say."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import migrate
import optim
from migrate.errors import AmbiguousError, ContradictionError, DamagedFileError, MissingHintError
from migrate.graphs import saver
from migrate.readers import tf1_saver
from optim.errors import UnsupportedError
from tests.helpers.bundles import written
from tests.places import CORPUS
from tests.test_migrate.confirm import confirmed


def _float(*shape: int) -> np.ndarray:
    return np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape)


def test_slots_by_longest_variable_and_averages_aside(tmp_path: Path) -> None:
    tensors = {
        name: _float(2, 2)
        for name in (
            "net/m",
            "net/m/Adam",
            "net/m/Adam_1",
            "net/m/kernel",
            "net/m/kernel/Adam",
            "net/m/kernel/Adam_1",
            "net/m/ExponentialMovingAverage",
        )
    }
    tensors |= {"train/beta1_power": np.array(0.9, np.float32), "train/beta2_power": np.array(0.999, np.float32)}
    stored = tf1_saver.read(written(tmp_path / "made", {k: np.asarray(v) for k, v in tensors.items()}))
    assert {slot: set(per) for slot, per in stored.slots.items()} == {
        "Adam": {"net/m", "net/m/kernel"},
        "Adam_1": {"net/m", "net/m/kernel"},
    }
    assert [v.name for v in stored.variables] == ["net/m", "net/m/kernel"]
    assert set(stored.scalars) == {"train/beta1_power", "train/beta2_power"}
    assert set(stored.unmapped) == {"net/m/ExponentialMovingAverage"}
    assert any("moving averages" in w for w in stored.warnings)


@pytest.mark.parametrize("other", [None, np.ones((4, 2), np.float32)])
def test_slots_of_a_variable_that_is_not_there_are_no_variables(other: np.ndarray | None, tmp_path: Path) -> None:
    """Damage to one entry of the index makes a text of a variable; its slots would have been variables, untrained."""
    tensors = {f"{name}{slot}": _float(2, 4) for name in ("a/w", "b/w") for slot in ("", "/Momentum")}
    tensors |= {"a/w/ExponentialMovingAverage": _float(2, 4), "c/w/ExponentialMovingAverage": _float(2, 4)}
    assert tf1_saver.read(written(tmp_path / "made", tensors)).slots["Momentum"].keys() == {"a/w", "b/w"}
    del tensors["a/w"], tensors["a/w/ExponentialMovingAverage"]
    lacking = written(tmp_path / "lacking", tensors | ({} if other is None else {"a/w": other}))
    expected, text = (
        (DamagedFileError, "save both") if other is None else (UnsupportedError, "Adafactor of Tensor2Tensor")
    )
    with pytest.raises(expected, match=f"'a/w/Momentum' is called as a slot of 'a/w', .*{text}"):
        tf1_saver.read(lacking)


def test_factors_of_grovers_adafactor_are_no_variables(tmp_path: Path) -> None:
    """`adafactor_vr` and `adafactor_vc` of a matrix, `adafactor_v` of what is none (`lm/optimization_adafactor.py`)."""
    tensors = {"net/w": _float(3, 4), "net/w/adafactor_vr": _float(3), "net/w/adafactor_vc": _float(4)}
    tensors |= {"net/b": _float(4), "net/b/adafactor_v": _float(4)}
    with pytest.raises(UnsupportedError, match=r"'net/w/adafactor_vc' is called as a slot of 'net/w', .* of Grover"):
        tf1_saver.read(written(tmp_path / "made", tensors))


def test_slots_that_no_class_here_has_are_not_said_to_be_ones(tmp_path: Path) -> None:
    """As LAMBOptimizer of ALBERT calls them, and BERT's AdamWeightDecayOptimizer, whose rule is another."""
    prefix = written(tmp_path / "made", {name: _float(3) for name in ("w", "w/adam_m", "w/adam_v")})
    with pytest.raises(MissingHintError, match=r"class \(its slots are called adam_m, adam_v\), or"):
        migrate.read(prefix)
    prefix = written(tmp_path / "lars", {name: _float(3) for name in ("w", "w/LARSOptimizer")})
    with pytest.raises(MissingHintError, match=r"class \(its slots are called LARSOptimizer\), or"):
        migrate.read(prefix)


def test_adam_counts_its_steps_by_its_powers(tmp_path: Path) -> None:
    power1, power2 = np.float32(0.9), np.float32(0.999)
    for _ in range(1000):
        power1, power2 = power1 * np.float32(0.9), power2 * np.float32(0.999)
    tensors = {
        "w": _float(3),
        "w/Adam": _float(3),
        "w/Adam_1": _float(3),
        "beta1_power": power1,
        "beta2_power": power2,
        "global_step": np.int64(7),
    }
    prefix = written(tmp_path / "made", {k: np.asarray(v) for k, v in tensors.items()})
    config = {"class_name": "AdamOptimizer", "config": {"learning_rate": 0.01}}
    state = migrate.read(prefix, optimizer_config=config)
    assert state.iterations == 1000
    assert "beta2_power" in state.iterations_source
    assert state.slots["m"]["w"].stored_as == "w/Adam"
    assert state.slots["v"]["w"].stored_as == "w/Adam_1"


def _after_underflow(**tensors: np.ndarray) -> dict[str, np.ndarray]:
    """What Adam stores some 90,000 steps on, when TensorFlow has flushed both powers to 0."""
    powers = dict.fromkeys(("beta1_power", "beta2_power"), np.zeros((), np.float32))
    return {name: _float(3) for name in ("w", "w/Adam", "w/Adam_1")} | powers | tensors


ADAM = {"class_name": "AdamOptimizer", "config": {"learning_rate": 0.01}}


@pytest.mark.parametrize("tensors", [{}, {"global_step": np.array(7)}], ids=["alone", "global_step set back"])
def test_powers_that_have_vanished_need_no_number_of_steps(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    prefix, target = written(tmp_path / "made", _after_underflow(**tensors)), tmp_path / "slots"
    report = migrate.migrate_checkpoint(prefix, target, optimizer_config=ADAM)
    assert not [o for o in report.origins if o.subject == "iterations" and not o.certain]
    variable, gradient = tf.Variable(np.zeros(3, np.float32), name="w"), np.array([0.5, -1.0, 2.0])
    optim.load_checkpoint(str(target), {"w": variable}).apply_gradients([(tf.constant(gradient, tf.float32), variable)])
    value, m, v = (tensor.astype(np.float64) for tensor in (_float(3),) * 3)
    m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
    np.testing.assert_allclose(variable.numpy(), value - 0.01 * m / (np.sqrt(v) + 1e-8), rtol=2e-7)


def test_a_global_step_after_the_powers_vanished_counts_the_steps(tmp_path: Path) -> None:
    prefix = written(tmp_path / "made", _after_underflow(global_step=np.array(200_000)))
    assert migrate.read(prefix, optimizer_config=ADAM).iterations == 200_000


def test_a_schedule_needs_the_number_of_steps_all_the_same(tmp_path: Path) -> None:
    prefix = written(tmp_path / "made", _after_underflow())
    settings = {"initial_learning_rate": 0.1, "decay_steps": 10, "decay_rate": 0.5}
    rate = {"class_name": "ExponentialDecay", "config": settings}
    state = migrate.read(prefix, optimizer_config=ADAM, overrides={"learning_rate": rate})
    assert [o for o in state.origins if o.subject == "iterations" and not o.certain]


def _two_adams(slots_of_second: str) -> dict[str, np.ndarray]:
    """After 5 and 3 steps."""
    powers = [np.multiply.accumulate(np.full(n, 0.999, np.float32))[-1] for n in (6, 4)]
    tensors = {name: _float(2) for name in ("d", "d/Adam", "d/Adam_1", "g")}
    tensors |= {name: _float(2) for name in slots_of_second.split()}
    return tensors | {"beta2_power": np.asarray(powers[0]), "beta2_power_1": np.asarray(powers[1])}


def test_two_adams_of_tf_train_are_asked_about(tmp_path: Path) -> None:
    prefix = written(tmp_path / "made", _two_adams("g/Adam g/Adam_1"))
    config = {"class_name": "AdamOptimizer", "config": {"learning_rate": 0.01}}
    with pytest.raises(AmbiguousError, match=r"several Adam optimizers.*beta2_power, beta2_power_1.*iterations"):
        migrate.read(prefix, optimizer_config=config)
    hint = {**config, "config": {"learning_rate": 0.01, "iterations": 3}}
    assert migrate.read(prefix, optimizer_config=hint).iterations == 3


def test_two_adams_on_one_variable_are_refused(tmp_path: Path) -> None:
    prefix = written(tmp_path / "made", _two_adams("d/Adam_2 d/Adam_3"))
    config = {"class_name": "AdamOptimizer", "config": {"learning_rate": 0.01}}
    with pytest.raises(AmbiguousError, match=r"Adam, Adam_1, Adam_2, Adam_3, but Adam has only 2"):
        migrate.read(prefix, optimizer_config=config)


def test_slots_of_a_graph_that_was_built_again(tmp_path: Path) -> None:
    prefix = written(
        tmp_path / "made", {"w": _float(2), "w/Adam_2": _float(2), "w/Adam_3": _float(2), "global_step": np.array(4)}
    )
    state = migrate.read(prefix, optimizer_config={"class_name": "AdamOptimizer", "config": {"learning_rate": 0.01}})
    assert (state.slots["m"]["w"].stored_as, state.slots["v"]["w"].stored_as) == ("w/Adam_2", "w/Adam_3")
    assert (state.iterations, state.iterations_source) == (4, "global_step")


def test_a_partitioned_variable_is_trained_if_its_parts_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"e": _float(4), "e/Adam": _float(4), "e/Adam_1": _float(4), "frozen": _float(3)}
    prefix = written(tmp_path / "made", tensors)
    graph = saver.SaverGraph("1.15.0", ("e/part_0", "e/part_1"))
    monkeypatch.setattr(saver, "read", lambda _: graph)
    assert {v.name: v.trainable for v in tf1_saver.read(prefix).variables} == {"e": True, "frozen": False}


def test_a_class_that_is_set_does_not_settle_a_name_that_is_another_class_s(tmp_path: Path) -> None:
    """PowerSignOptimizer keeps one slot, as MomentumOptimizer does; without a graph the name alone tells them apart."""
    source = CORPUS / "extra-tf115-contrib-powersign-saver" / "source"
    for part in source.iterdir():
        if part.suffix != ".meta":
            shutil.copy(part, tmp_path)
    overrides = {"class_name": "MomentumOptimizer", "learning_rate": 0.01, "momentum": 0.9, "nesterov": False}
    state = migrate.read(tmp_path, overrides=overrides | {"clipnorm": None, "gradients": "program"})
    assert [reason for reason in state.reasons if "PowerSignOptimizer/..., which is not the name of SGD" in reason]
    assert confirmed(tmp_path, overrides=overrides)["name"] == "PowerSignOptimizer"


@pytest.mark.parametrize("name", ["AdamW", "LazyAdam", "RAdamOptimizer", "LAMBOptimizer", "AdamWeightDecay", "Yogi"])
@pytest.mark.parametrize("own_name", [False, True])
def test_slots_called_after_another_class_are_not_adams(name: str, own_name: bool, tmp_path: Path) -> None:
    """Those of tf.contrib.opt's AdamW were taken for Adam's without a word, others where the hint had that name."""
    tensors = {"w": np.ones((2, 3), np.float32), "beta1_power": np.float32(0.9), "beta2_power": np.float32(0.999)}
    tensors |= {f"w/{name}{end}": np.full((2, 3), 1e-3, np.float32) for end in ("", "_1")}
    prefix = written(tmp_path / "model.ckpt", tensors)
    numbers = {"learning_rate": 0.01, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
    hint = {"class_name": "AdamOptimizer", "config": {**numbers, **({"name": name} if own_name else {})}}
    with pytest.raises(ContradictionError, match=rf"variables are named {name}.* are, and --opt"):
        migrate.read(prefix, optimizer_config=hint)
    decided = migrate.read(prefix, optimizer_config=hint, overrides={"class_name": "AdamOptimizer"})
    assert any("overrides that" in warning for warning in decided.warnings)
