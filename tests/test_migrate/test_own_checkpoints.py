"""What `optim.save_checkpoint` wrote is a source like any other, whatever its options keep in slots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import migrate
import optim

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
