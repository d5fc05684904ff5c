"""`optim.Groups` in migrations: each group is a source and a target by itself, and what is missing is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from typer.testing import CliRunner

import migrate
import optim
from dtopt_cli.app import app
from migrate.errors import AmbiguousError
from optim.errors import CheckpointError, HyperparameterError, UnsupportedError

START = {"dense/kernel": np.full((4, 3), 0.5, np.float32), "dense/bias": np.full(3, -0.5, np.float32)}
ADAM = {"learning_rate": 0.01, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}
SGD = {"learning_rate": 0.1, "momentum": 0.9, "nesterov": False}


def variables() -> list[tf.Variable]:
    """The kernel and the bias."""
    return [tf.Variable(value, name=name) for name, value in START.items()]


def groups() -> optim.Groups:
    return optim.Groups([("bias", optim.SGD(0.1, momentum=0.9)), (None, optim.Adam(0.01))])


def gradient(variable: tf.Variable, call: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(call).normal(size=variable.shape).astype(np.float32))


def step(optimizer: Any, of: Sequence[tf.Variable], calls: range) -> None:
    for call in calls:
        optimizer.apply_gradients([(gradient(v, call), v) for v in of])


def saved(folder: Path, calls: int = 3) -> tuple[optim.Groups, list[tf.Variable], str]:
    optimizer, of = groups(), variables()
    step(optimizer, of, range(calls))
    optim.save_checkpoint(folder, optimizer, of)
    return optimizer, of, str(folder)


def test_optimizers_that_were_saved_by_name_become_groups(tmp_path: Path) -> None:
    """As the refusal of a MultiOptimizer advises: each into the member of its group."""
    from tf_keras.optimizers import legacy

    kernel, bias = old = variables()
    model = tf.Module()
    model.kernel, model.bias = kernel, bias
    parts = {"base": (legacy.Adam(0.01), kernel, ADAM), "head": (legacy.SGD(0.1, momentum=0.9), bias, SGD)}
    for each, variable, _ in parts.values():
        step(each, [variable], range(3))
    named = {name: each for name, (each, _, _) in parts.items()}
    source = tf.train.Checkpoint(model=model, **named).write(str(tmp_path / "ckpt"))
    new = variables()
    optimizer = groups()
    optimizer.build(new)
    for name, (each, _, config) in parts.items():
        own = [new[name == "head"]]
        report = migrate.restore(
            source,
            optimizer.member_of(own[0]),
            own,
            restore_variables=True,
            optimizer_path=name,
            optimizer_config={"class_name": type(each).__name__, "config": config},
            overrides={"clipnorm": None},
        )
        assert report.fidelity == "exact", report.reasons
    assert int(optimizer.iterations) == 3
    step(optimizer, new, range(3, 6))
    for each, variable, _ in parts.values():
        step(each, [variable], range(3, 6))
    for one, two in zip(old, new, strict=True):
        np.testing.assert_allclose(one.numpy(), two.numpy(), rtol=1e-6)


def test_groups_are_restored_into_groups_and_into_single_optimizers(tmp_path: Path) -> None:
    optimizer, of, source = saved(tmp_path / "groups")
    new, again = variables(), groups()
    again.build(new)
    for number in (0, 1):
        own = [new[1 - number]]
        path = f"group_{number}"
        report = migrate.restore(source, again.members[number], own, restore_variables=True, optimizer_path=path)
        assert (report.fidelity, report.iterations) == ("exact", 3)
    alone, kernel = optim.Adam(0.01), variables()[:1]
    assert migrate.restore(source, alone, kernel, restore_variables=True, optimizer_path="group_1").fidelity == "exact"
    step(optimizer, of, range(3, 6))
    step(again, new, range(3, 6))
    step(alone, kernel, range(3, 6))
    for one, two in zip(of, new, strict=True):
        np.testing.assert_array_equal(one.numpy(), two.numpy())
    np.testing.assert_array_equal(of[0].numpy(), kernel[0].numpy())


def test_one_group_is_migrated_as_an_optimizer(tmp_path: Path) -> None:
    optimizer, of, source = saved(tmp_path / "groups")
    state = migrate.read(source, optimizer_path="group_0")
    assert (state.algorithm, state.fidelity, state.iterations) == ("SGD", "exact", 3)
    assert {slot: list(owners) for slot, owners in state.slots.items()} == {"m": ["dense/bias"]}
    dest = str(tmp_path / "adam")
    done = CliRunner().invoke(app, ["migrate", "checkpoint", source, dest, "--optimizer", "group_1", "--strict"])
    assert done.exit_code == 0, done.output
    (kernel,) = variables()[:1]
    resumed = optim.load_checkpoint(dest, [kernel])
    step(resumed, [kernel], range(3, 6))
    step(optimizer, of, range(3, 6))
    np.testing.assert_array_equal(kernel.numpy(), of[0].numpy())


def test_names_in_the_checkpoint_need_not_match_the_patterns(tmp_path: Path) -> None:
    optimizer, of = groups(), variables()
    step(optimizer, of, range(2))
    optim.save_checkpoint(tmp_path / "c", optimizer, {"a": of[0], "b": of[1]})
    assert [v.name for v in migrate.read(tmp_path / "c", optimizer_path="group_0").variables] == ["b"]


def test_what_is_ambiguous_is_refused(tmp_path: Path) -> None:
    _, of, source = saved(tmp_path / "groups")
    with pytest.raises(AmbiguousError, match="group_0, group_1"):
        migrate.read(source)
    with pytest.raises(HyperparameterError, match="group_0, group_1"):
        migrate.read(source, optimizer_path="head")
    whole = groups()
    whole.build(of)
    with pytest.raises(UnsupportedError, match=r"optimizer.members\[i\]"):
        migrate.restore(source, whole, of, optimizer_path="group_0")
    optim.save_checkpoint(tmp_path / "one", optim.SGD(), of)
    with pytest.raises(HyperparameterError, match="one optimizer only"):
        migrate.read(tmp_path / "one", optimizer_path="group_0")


def test_a_checkpoint_without_its_groups_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    from optim.slot_layout import GROUPS, Metadata

    text = Metadata.to_json
    monkeypatch.setattr(Metadata, "to_json", lambda self: text(self).replace(f'"{GROUPS}": {{', '"others": {'))
    _, _, source = saved(tmp_path / "groups")
    with pytest.raises(CheckpointError, match="does not contain its groups"):
        migrate.read(source, optimizer_path="group_0")
