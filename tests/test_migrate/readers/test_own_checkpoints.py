"""What `optim.save_checkpoint` wrote is a source like any other, whatever its options keep in slots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import migrate
import optim
from migrate.errors import StrictError
from optim.bits import codes

OPTIONS: dict[str, dict[str, Any]] = {
    "accumulation": {"gradient_accumulation_steps": 2},
    "copies": {"master_copies": True},
    "accumulation in copies": {"master_copies": True, "gradient_accumulation_steps": 2},
    "loss scale": {"loss_scale": "dynamic"},
    "averages": {"use_ema": True},
    "lookahead": {"lookahead": optim.Lookahead(sync_period=2)},
    "cautious": {"cautious": True},
    "adaptive clipping": {"adaptive_grad_clip": optim.AdaptiveGradClip(exclude=("head",))},
}


def _step(optimizer: Any, variable: tf.Variable) -> None:
    optimizer.apply_gradients([(tf.constant([0.5, -1.0, 2.0], variable.dtype), variable)])


@pytest.mark.parametrize("name", OPTIONS)
def test_it_goes_on_with_the_same_bits(name: str, tmp_path: Path) -> None:
    dtype = tf.bfloat16 if "copies" in name else tf.float32
    variable = tf.Variable(tf.ones([3], dtype), name="w")
    optimizer = optim.Adam(0.1, **OPTIONS[name])
    for _ in range(3):
        _step(optimizer, variable)
    optim.save_checkpoint(tmp_path / "saved", optimizer, [variable])
    report = migrate.migrate_checkpoint(str(tmp_path / "saved"), str(tmp_path / "migrated"))
    assert (report.fidelity, report.reasons) == ("exact", ())
    other = tf.Variable(tf.zeros([3], dtype), name="w")
    resumed = optim.load_checkpoint(tmp_path / "migrated", [other])
    assert resumed.slot_names == optimizer.slot_names
    for _ in range(3):
        _step(optimizer, variable)
        _step(resumed, other)
    np.testing.assert_array_equal(variable.numpy(), other.numpy())


@pytest.mark.parametrize(
    ("hints", "option"),
    [
        ({"overrides": {"learning_rate": 0.5}}, "--set"),
        ({"optimizer_config": {"class_name": "SGD", "config": {}}}, "--optimizer-config"),
        ({"generation": "keras2", "variables": [{"name": "w", "shape": [2]}]}, "--variables, --generation"),
    ],
)
def test_hints_on_what_says_all_of_itself_are_refused(hints: dict[str, Any], option: str, tmp_path: Path) -> None:
    variable = tf.Variable([1.0, 2.0], name="w")
    optimizer = optim.Adam(0.1)
    optimizer.apply_gradients([(tf.constant([1.0, 1.0]), variable)])
    optim.save_checkpoint(tmp_path / "own", optimizer, {"w": variable})
    assert migrate.read(tmp_path / "own").fidelity == "exact"
    with pytest.raises(optim.errors.HyperparameterError, match=f"Remove {option}, and change"):
        migrate.read(tmp_path / "own", **hints)


FEW_BITS: dict[str, dict[str, Any]] = {"bfloat16": {"slot_dtype": "bfloat16"}, "int8": {"slot_dtype": "int8"}}


def _trained_in_few_bits(slot_dtype: str, folder: Path) -> tuple[Any, tf.Variable]:
    random = np.random.default_rng(1)
    variable = tf.Variable(random.normal(size=(50, 100)).astype(np.float32), name="w")
    optimizer = optim.Adam(0.1, slot_dtype=slot_dtype)
    for _ in range(3):
        optimizer.apply_gradients([(tf.constant(random.normal(size=(50, 100)), tf.float32), variable)])
    optim.save_checkpoint(folder, optimizer, [variable])
    return optimizer, variable


def _numbers(optimizer: Any, variable: tf.Variable, slot: str) -> np.ndarray:
    values = optimizer.get_slot(variable, slot)
    if values.dtype not in (tf.int8, tf.uint8):
        return tf.cast(values, tf.float32).numpy()
    return codes.decode(values.numpy(), optimizer.get_slot(variable, f"{slot}_scale").numpy())


@pytest.mark.parametrize("slot_dtype", FEW_BITS)
def test_slots_in_few_bits_are_migrated_as_float32(slot_dtype: str, tmp_path: Path) -> None:
    optimizer, variable = _trained_in_few_bits(slot_dtype, tmp_path / "saved")
    report = migrate.migrate_checkpoint(str(tmp_path / "saved"), str(tmp_path / "migrated"))
    assert report.fidelity == "approximate"
    assert f"stored as {slot_dtype}" in report.reasons[0]
    assert migrate.verify(str(tmp_path / "saved"), str(tmp_path / "migrated")).ok
    other = tf.Variable(tf.zeros([50, 100]), name="w")
    resumed = optim.load_checkpoint(tmp_path / "migrated", [other])
    assert resumed.slot_dtype is None
    for slot in ("m", "v"):
        np.testing.assert_array_equal(_numbers(resumed, other, slot), _numbers(optimizer, variable, slot))
    with pytest.raises(StrictError):
        migrate.migrate_checkpoint(str(tmp_path / "saved"), str(tmp_path / "strict"), strict=True)


@pytest.mark.parametrize("source", [None, "bfloat16", "int8"])
@pytest.mark.parametrize("target", [None, "bfloat16", "int8"])
def test_a_live_optimizer_takes_and_gives_few_bits(source: str | None, target: str | None, tmp_path: Path) -> None:
    optimizer, variable = _trained_in_few_bits(source, tmp_path / "saved")
    other = tf.Variable(tf.zeros([50, 100]), name="w")
    live = optim.Adam(0.1, slot_dtype=target)
    report = migrate.restore(str(tmp_path / "saved"), live, [other], restore_variables=True)
    assert report.fidelity == ("exact" if source is None and target is None else "approximate")
    for slot in ("m", "v"):
        goal = _numbers(optimizer, variable, slot)
        share = {None: 0.0, "bfloat16": 2**-8, "int8": 0.01}[target]
        assert np.abs(_numbers(live, other, slot) - goal).max() <= share * np.abs(goal).max()
    live.apply_gradients([(tf.ones([50, 100]), other)])


def test_stochastic_rounding_is_migrated_with_the_config(tmp_path: Path) -> None:
    variable = tf.Variable(tf.ones([3], tf.bfloat16), name="w")
    optimizer = optim.Adam(0.001, stochastic_rounding=True, rounding_seed=5)
    for _ in range(3):
        _step(optimizer, variable)
    optim.save_checkpoint(tmp_path / "saved", optimizer, [variable])
    report = migrate.migrate_checkpoint(str(tmp_path / "saved"), str(tmp_path / "migrated"))
    assert (report.fidelity, report.reasons) == ("exact", ())
    assert migrate.verify(str(tmp_path / "saved"), str(tmp_path / "migrated")).ok
    other = tf.Variable(tf.zeros([3], tf.bfloat16), name="w")
    resumed = optim.load_checkpoint(tmp_path / "migrated", [other])
    _step(optimizer, variable)
    _step(resumed, other)
    np.testing.assert_array_equal(variable.numpy(), other.numpy())
    plain = tf.Variable(tf.zeros([3], tf.bfloat16), name="w")
    report = migrate.restore(str(tmp_path / "saved"), optim.Adam(0.001), [plain], restore_variables=True)
    assert report.fidelity == "approximate"
    assert any("stochastic_rounding" in reason for reason in report.reasons)
