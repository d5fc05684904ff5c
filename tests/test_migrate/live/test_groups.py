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
from optim.errors import CheckpointError, HyperparameterError, MismatchError, UnsupportedError

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
    for source_optimizer, variable, _ in parts.values():
        step(source_optimizer, [variable], range(3))
    named = {name: source_optimizer for name, (source_optimizer, _, _) in parts.items()}
    source = tf.train.Checkpoint(model=model, **named).write(str(tmp_path / "ckpt"))
    new = variables()
    optimizer = groups()
    optimizer.build(new)
    for name, (source_optimizer, _, config) in parts.items():
        live_variables = [new[name == "head"]]
        report = migrate.restore(
            source,
            optimizer.member_of(live_variables[0]),
            live_variables,
            restore_variables=True,
            optimizer_path=name,
            optimizer_config={"class_name": type(source_optimizer).__name__, "config": config},
            overrides={"clipnorm": None},
        )
        assert report.fidelity == "exact", report.reasons
    assert int(optimizer.iterations) == 3
    step(optimizer, new, range(3, 6))
    for source_optimizer, variable, _ in parts.values():
        step(source_optimizer, [variable], range(3, 6))
    for one, two in zip(old, new, strict=True):
        np.testing.assert_allclose(one.numpy(), two.numpy(), rtol=1e-6)


def test_groups_are_restored_into_groups_and_into_single_optimizers(tmp_path: Path) -> None:
    optimizer, of, source = saved(tmp_path / "groups")
    new, again = variables(), groups()
    again.build(new)
    for number in (0, 1):
        live_variables = [new[1 - number]]
        path = f"group_{number}"
        report = migrate.restore(
            source, again.members[number], live_variables, restore_variables=True, optimizer_path=path
        )
        assert (report.fidelity, report.iterations) == ("exact", 3)
    alone, kernel = optim.Adam(0.01), variables()[:1]
    assert migrate.restore(source, alone, kernel, restore_variables=True, optimizer_path="group_1").fidelity == "exact"
    step(optimizer, of, range(3, 6))
    step(again, new, range(3, 6))
    step(alone, kernel, range(3, 6))
    for one, two in zip(of, new, strict=True):
        np.testing.assert_array_equal(one.numpy(), two.numpy())
    np.testing.assert_array_equal(of[0].numpy(), kernel[0].numpy())


def _decayed(**options: Any) -> optim.Groups:
    """No decay for biases."""
    groups = [("bias", optim.AdamW(0.01, weight_decay=0.0)), (None, optim.AdamW(0.01, weight_decay=0.1))]
    return optim.Groups(groups, **options)


def _alone(**options: Any) -> optim.AdamW:
    """The same in one optimizer."""
    return optim.AdamW(0.01, weight_decay=0.1, weight_decay_exclude=["bias"], **options)


def _by_layer(**options: Any) -> optim.Groups:
    """The same in other groups."""
    groups = [("kernel", optim.AdamW(0.01, weight_decay=0.1)), (None, optim.AdamW(0.01, weight_decay=0.0))]
    return optim.Groups(groups, **options)


@pytest.mark.parametrize(
    ("source", "live"), [(_alone, _decayed), (_decayed, _alone), (_decayed, _by_layer), (_decayed, _decayed)]
)
def test_one_rule_and_groups_with_the_same_steps_continue_each_other(source: Any, live: Any, tmp_path: Path) -> None:
    """Clipped by the norm of all gradients: only the whole takes these steps."""
    optimizer, of = source(global_clipnorm=0.5), variables()
    step(optimizer, of, range(3))
    optim.save_checkpoint(tmp_path / "c", optimizer, of)
    again, new = live(global_clipnorm=0.5), variables()
    report = migrate.restore(tmp_path / "c", again, new, restore_variables=True, strict=True)
    assert (report.fidelity, report.iterations, report.slots) == ("exact", 3, 4)
    for live_optimizer, live_variables in ((optimizer, of), (again, new)):
        step(live_optimizer, live_variables, range(3, 6))
    for one, two in zip(of, new, strict=True):
        np.testing.assert_allclose(one.numpy(), two.numpy(), rtol=1e-6)


def test_groups_of_several_algorithms_are_restored_at_once(tmp_path: Path) -> None:
    def two_groups() -> optim.Groups:
        return optim.Groups([("bias", optim.SGD(0.1, momentum=0.9)), (None, optim.Nadam(0.01))])

    optimizer, of = two_groups(), variables()
    step(optimizer, of, range(3))
    optim.save_checkpoint(tmp_path / "c", optimizer, of)
    again, new = two_groups(), variables()
    report = migrate.restore(tmp_path / "c", again, new, restore_variables=True)
    assert (report.fidelity, report.optimizer) == ("exact", "SGD and Nadam")
    for live_optimizer, live_variables in ((optimizer, of), (again, new)):
        step(live_optimizer, live_variables, range(3, 6))
    for one, two in zip(of, new, strict=True):
        np.testing.assert_array_equal(one.numpy(), two.numpy())
    for live in (optim.Nadam(0.01), optim.Groups([("bias", optim.Nadam(0.01)), (None, optim.SGD(0.1, momentum=0.9))])):
        with pytest.raises(UnsupportedError, match="their slots hold different things"):
            migrate.restore(tmp_path / "c", live, variables())
    reset = migrate.restore(tmp_path / "c", two_groups(), variables(), weights_only=True)
    assert (reset.slots, reset.variables) == (0, 2)


def test_a_difference_names_the_variables_of_its_group(tmp_path: Path) -> None:
    optimizer, of = _alone(), variables()
    step(optimizer, of, range(2))
    optim.save_checkpoint(tmp_path / "c", optimizer, of)
    groups = [("bias", optim.AdamW(0.02, weight_decay=0.0)), (None, optim.AdamW(0.01, weight_decay=0.1))]
    report = migrate.restore(tmp_path / "c", optim.Groups(groups, clipnorm=1.0), variables())
    assert report.reasons == (
        "clipnorm is None in the source and 1 in the live optimizer, which is kept",
        "dense/bias: learning_rate is 0.01 in the source and 0.02 in the live optimizer, which is kept",
    )


def test_a_group_alone_does_not_have_the_norm_of_all(tmp_path: Path) -> None:
    optimizer, of = _decayed(global_clipnorm=0.5), variables()
    step(optimizer, of, range(2))
    optim.save_checkpoint(tmp_path / "c", optimizer, of)
    state = migrate.read(tmp_path / "c", optimizer_path="group_0")
    assert state.reasons == (
        "global_clipnorm = 0.5 limits the norm of the gradients of all groups, and this is one of them",
    )


@pytest.mark.breadth
def test_groups_become_groups_of_parameters_in_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed (pip install torch)")
    optimizer, of = _sgd(), variables()
    step(optimizer, of, range(3))
    optim.save_checkpoint(tmp_path / "c", optimizer, of)
    kernel, bias = (torch.nn.Parameter(torch.zeros(v.shape.as_list())) for v in of)
    onto = {"dense/kernel": (kernel, (0, 1)), "dense/bias": bias}
    for rate, expected in ((0.1, ()), (0.2, ("dense/bias: learning_rate is 0.1 in the source and 0.2 in the live",))):
        groups = [{"params": [kernel], "lr": 0.01}, {"params": [bias], "lr": rate}]
        live = torch.optim.SGD(groups, momentum=0.9)
        report = migrate.restore(tmp_path / "c", live, onto, restore_variables=True)
        assert [r[: len(e)] for r, e in zip(report.reasons, expected, strict=True)] == list(expected)
        if not expected:
            for call in range(3, 6):
                kernel.grad, bias.grad = (torch.from_numpy(gradient(v, call).numpy()) for v in of)
                live.step()
            step(optimizer, of, range(3, 6))
            for one, two in zip(of, (kernel, bias), strict=True):
                np.testing.assert_allclose(one.numpy(), two.detach().numpy(), rtol=1e-5)


def _sgd() -> optim.Groups:
    parts = [optim.SGD(rate, momentum=0.9, learning_rate_in_momentum=False) for rate in (0.1, 0.01)]
    return optim.Groups(list(zip(("bias", None), parts, strict=True)))


@pytest.mark.breadth
def test_groups_become_a_multi_transform_in_optax(tmp_path: Path) -> None:
    """Of two algorithms, clipped by one norm: each leaf gets the slots of its group."""
    import optax

    groups = [("bias", optim.SGD(0.1, momentum=0.9)), (None, optim.Adagrad(0.05, epsilon=1e-7))]
    optimizer, of = optim.Groups(groups, global_clipnorm=0.5), variables()
    step(optimizer, of, range(3))
    optim.save_checkpoint(tmp_path / "c", optimizer, of)
    for rate, is_same in ((0.1, True), (0.2, False)):
        transforms = {"b": optax.sgd(rate, 0.9), "k": optax.chain(optax.scale_by_rss(0.1, 1e-7), optax.scale(-0.05))}
        tx = optax.chain(
            optax.clip_by_global_norm(0.5), optax.multi_transform(transforms, {"bias": "b", "kernel": "k"})
        )
        training = migrate.Optax(tx, {"kernel": np.zeros((4, 3), np.float32), "bias": np.zeros(3, np.float32)})
        onto = {"dense/kernel": ("kernel", (0, 1)), "dense/bias": "bias"}
        report = migrate.restore(tmp_path / "c", training, onto, restore_variables=True)
        assert (report.fidelity == "exact") is is_same, report.reasons
        if not is_same:
            assert "of dense/bias is 2 times as large" in report.reasons[0]
            continue
        params, state = training.params, training.state
        for call in range(3, 6):
            gradients = {v.name.split("/")[1].split(":")[0]: gradient(v, call).numpy() for v in of}
            updates, state = tx.update(gradients, state, params)
            params = optax.apply_updates(params, updates)
        again, new = optim.Groups(groups, global_clipnorm=0.5), variables()
        migrate.restore(tmp_path / "c", again, new, restore_variables=True)
        step(again, new, range(3, 6))
        np.testing.assert_allclose(params["kernel"], new[0].numpy(), rtol=1e-5)
        np.testing.assert_allclose(params["bias"], new[1].numpy(), rtol=1e-5)


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
    with pytest.raises(MismatchError, match=r"left over are dense/kernel\[4, 3\] live"):
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
