"""Checkpoints with several optimizers, as GANs have: the error lists them, and the one chosen goes on as it did."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import migrate
from dtopt_cli.app import app
from migrate.errors import AmbiguousError, MissingHintError
from optim.errors import HyperparameterError, UnsupportedError
from tests import adversary
from tests.helpers import next_steps
from tests.helpers.keras_releases import needs_keras
from tests.places import CORPUS, ESTIMATORS, GAN
from tests.test_migrate.confirm import confirmed

ARGUMENTS = {"generator": (0.02, 0.5), "discriminator": (0.01, 0.9)}
OBJECTS = {"generator": "generator_optimizer", "discriminator": "discriminator_optimizer"}
PATHS = {
    "tf24": OBJECTS,
    "tf215": OBJECTS,
    "keras3": OBJECTS,
    "tf115-saver": {"generator": "Adam", "discriminator": "Adam_1"},
    "tf115-shared-saver": {"generator": "Adam", "discriminator": "Adam_1"},
}
CASES = [(release, which) for release in PATHS for which in ARGUMENTS]
TOLERANCE = 2e-6
"""Absolute, of variables around 1 after six float32 steps; another optimizer's slots are off by 1e-2."""


def _source(release: str) -> str:
    return str(GAN / release / "source" / ("model" if release.endswith("saver") else "ckpt-1"))


def _config(release: str, which: str) -> dict[str, Any]:
    rate, beta = ARGUMENTS[which]
    epsilon = 1e-8 if release.endswith("saver") else 1e-7
    return {"class_name": "Adam", "config": {"learning_rate": rate, "beta_1": beta, "epsilon": epsilon}}


@pytest.mark.parametrize(("release", "which"), CASES)
@pytest.mark.quick(4)
def test_the_chosen_optimizer_goes_on_as_it_did(release: str, which: str, tmp_path: Path) -> None:
    import tensorflow as tf

    import optim

    oracle = np.load(GAN / release / "oracle.npz")
    hints = {"optimizer_config": _config(release, which), "optimizer_path": PATHS[release][which]}
    report = migrate.migrate_checkpoint(_source(release), tmp_path / "out", **hints)
    assert report.fidelity == ("exact" if release.endswith("saver") else "approximate"), report.reasons
    overrides = confirmed(_source(release), **hints)
    assert migrate.read(_source(release), overrides=overrides, **hints).fidelity == "exact"
    assert report.iterations == int(oracle[f"iterations/{which}"])
    assert migrate.verify(_source(release), tmp_path / "out", **hints).ok
    trained = [v.name for v in optim.describe_checkpoint(tmp_path / "out").variables if v.trainable]
    assert trained == [str(name) for name in oracle[f"names/{which}"]]
    live = {name: tf.Variable(oracle[f"{which}/at_save/{i}"]) for i, name in enumerate(trained)}
    optimizer = optim.load_checkpoint(tmp_path / "out", live, restore_variables=False)
    variables = list(live.values())
    apply = next_steps.applying(optimizer, variables)
    assert next_steps.error(apply, variables, oracle, 6, prefix=f"{which}/") < next_steps.NEAR


@pytest.mark.parametrize("release", PATHS)
def test_nothing_of_the_other_optimizer_is_dropped(release: str) -> None:
    state = migrate.read(
        _source(release),
        optimizer_config=_config(release, "generator"),
        optimizer_path=PATHS[release]["generator"],
    )
    keys = [a.stored_as for per in state.slots.values() for a in per.values()]
    keys += [v.array.stored_as for v in state.variables if v.array] + [a.stored_as for a in state.unmapped.values()]
    assert len(keys) == len(set(keys))
    other = migrate.read(
        _source(release),
        optimizer_config=_config(release, "discriminator"),
        optimizer_path=PATHS[release]["discriminator"],
    )
    theirs = [a.stored_as for per in other.slots.values() for a in per.values()]
    names = np.load(GAN / release / "oracle.npz")["names/discriminator"]
    assert len(theirs) == 2 * len(names)
    assert set(theirs) <= {a.stored_as for a in state.unmapped.values()}


@pytest.mark.parametrize("release", PATHS)
def test_without_a_choice_all_are_listed(release: str) -> None:
    listed = ", ".join(sorted(PATHS[release].values()))
    with pytest.raises(AmbiguousError, match=f"2 optimizers; choose one with --optimizer: {listed}"):
        migrate.read(_source(release), optimizer_config=_config(release, "generator"))
    with pytest.raises(HyperparameterError, match=f"no optimizer 'other'.*{listed}"):
        migrate.read(_source(release), optimizer_config=_config(release, "generator"), optimizer_path="other")


def test_two_optimizers_of_graph_mode_keras() -> None:
    """The second `compile` made the one that trained last, which the case recorded."""
    folder = CORPUS / "extra-k231-sgd-same-shapes-saver"
    case, oracle = json.loads((folder / "case.json").read_text()), np.load(folder / "oracle.npz")
    source = str(folder / "source" / "ckpt")
    config = {"class_name": "SGD", "config": case["optimizer"]["config"]}
    state = migrate.read(source, optimizer_config=config, optimizer_path="SGD_1")
    assert state.iterations == int(oracle["iterations"])
    for i, variable in enumerate(case["trainable"]):
        got = state.slots["m"][variable["name"].removesuffix(":0")].load()
        assert got.tobytes() == oracle[f"at_save/slot/moments/{i}"].tobytes()
    first = migrate.read(source, optimizer_config=config, optimizer_path="SGD")
    assert all("training/SGD/" in array.stored_as for array in first.slots["m"].values())


def test_a_model_that_was_compiled_again_has_slots_of_each_time(tmp_path: Path) -> None:
    """The oracle has what the last `compile` made."""
    folder = CORPUS / "extra-k216-sgd-refrozen-saver"
    case, source = json.loads((folder / "case.json").read_text()), folder / "source"
    hints: dict[str, Any] = {"optimizer_config": {"class_name": "SGD", "config": case["optimizer"]["config"]}}
    with pytest.raises(AmbiguousError, match=r"compiled again the last .*--optimizer: training/SGD, training_1/SGD"):
        migrate.read(source / "ckpt", **hints)
    report = migrate.migrate_checkpoint(source / "ckpt", tmp_path / "x", optimizer_path="training_1/SGD", **hints)
    assert (report.fidelity, len(report.unmapped)) == ("exact", 4)
    assert adversary.error(folder, tmp_path / "x") < 1.2
    first = migrate.read(source / "ckpt", optimizer_path="training/SGD", **hints)
    assert "'training_1/SGD' is later than" in "".join(first.reasons)
    for copied in source.glob("ckpt.[!m]*"):
        shutil.copy(copied, tmp_path)
    names = [{"name": v["name"], "shape": v["shape"]} for v in case["trainable"]]
    hints |= {"generation": "keras2", "variables": names}
    without = migrate.read(tmp_path / "ckpt", optimizer_path="training_1/SGD", **hints)
    assert "ckpt.meta does not show which variables were trained with" in "".join(without.reasons)


def test_without_the_graph_keras_slots_belong_to_nobody(tmp_path: Path) -> None:
    folder = CORPUS / "extra-k231-sgd-same-shapes-saver" / "source"
    for path in folder.glob("ckpt.*"):
        if path.suffix != ".meta":
            shutil.copy(path, tmp_path)
    config = {"class_name": "SGD", "config": {"lr": 0.01, "momentum": 0.9}}
    with pytest.raises(UnsupportedError, match=r"which optimizer has the slot.*\.meta"):
        migrate.read(str(tmp_path / "ckpt"), optimizer_config=config, optimizer_path="SGD_1")


def test_a_source_with_one_optimizer_offers_no_choice() -> None:
    source = CORPUS / "tf24-adam-convbn" / "source" / "model.h5"
    with pytest.raises(HyperparameterError, match="one optimizer only; leave out --optimizer"):
        migrate.read(source, optimizer_path="optimizer")
    source = CORPUS / "extra-k204-sgd-frozen-saver" / "source" / "ckpt"
    with pytest.raises(HyperparameterError, match="one optimizer, which has no name; leave out --optimizer"):
        migrate.read(source, optimizer_path="SGD")


def test_commands_list_and_choose(tmp_path: Path) -> None:
    config = tmp_path / "adam.json"
    config.write_text(json.dumps(_config("tf24", "generator")))
    words = ["migrate", "inspect", _source("tf24"), "--optimizer-config", str(config)]
    run = CliRunner()
    refused = run.invoke(app, words)
    assert isinstance(refused.exception, AmbiguousError)
    shown = run.invoke(app, [*words, "--optimizer", "generator_optimizer"])
    assert shown.exit_code == 0
    assert "discriminator_optimizer, generator_optimizer" in shown.stdout
    document = json.loads(run.invoke(app, [*words, "--optimizer", "generator_optimizer", "--json"]).stdout)
    assert document["optimizers"] == ["discriminator_optimizer", "generator_optimizer"]
    words = ["migrate", "checkpoint", _source("tf24"), str(tmp_path / "out"), "--optimizer-config"]
    denied = run.invoke(app, [*words, str(config), "--optimizer", "discriminator_optimizer"])
    assert "learning_rate is 0.00999999978 in the checkpoint and 0.02" in str(denied.exception)
    words += [json.dumps(_config("tf24", "discriminator"))]
    assert run.invoke(app, [*words, "--optimizer", "discriminator_optimizer"]).exit_code == 0
    assert migrate.read(tmp_path / "out").iterations == 5


WIDE_AND_DEEP = ESTIMATORS / "wide_deep" / "model.ckpt-5"


@pytest.mark.parametrize("which", ["Adagrad", "Ftrl"])
def test_each_optimizer_of_a_wide_and_deep_estimator_takes_its_next_step(which: str, tmp_path: Path) -> None:
    import tensorflow as tf

    import optim

    hints = {
        "optimizer_config": {"class_name": which, "config": {}},
        "optimizer_path": f"training/{which}",
    }
    overrides = confirmed(WIDE_AND_DEEP, **hints)
    report = migrate.migrate_checkpoint(WIDE_AND_DEEP, tmp_path / "out", overrides=overrides, **hints)
    assert (report.fidelity, report.iterations) == ("exact", 5), report.reasons
    assert migrate.verify(WIDE_AND_DEEP, tmp_path / "out", overrides=overrides, **hints).ok
    infos = [v for v in optim.describe_checkpoint(tmp_path / "out").variables if v.trainable]
    assert {v.name.split("/")[0] for v in infos} == {"dnn" if which == "Adagrad" else "linear"}
    before, after = (tf.train.load_checkpoint(str(WIDE_AND_DEEP.with_name(f"model.ckpt-{n}"))) for n in (5, 6))
    live = {v.name: tf.Variable(before.get_tensor(v.name)) for v in infos}
    optimizer = optim.load_checkpoint(tmp_path / "out", live, restore_variables=False)

    def change(name: str) -> np.ndarray:
        return after.get_tensor(name).astype("float64") - before.get_tensor(name)

    gradients = []
    for name, variable in live.items():
        size = np.sqrt(change(f"training/{which}/{name}/accumulator"))
        gradients.append((tf.constant(-np.sign(change(name)) * size, tf.float32), variable))
    optimizer.apply_gradients(gradients)
    for name, variable in live.items():
        step = np.abs(change(name)).max()
        np.testing.assert_allclose(variable.numpy(), after.get_tensor(name), rtol=0, atol=1e-4 * step)


def test_of_several_optimizers_that_count_together_one_is_to_be_chosen() -> None:
    with pytest.raises(AmbiguousError, match="training/Ftrl, training/Adagrad"):
        migrate.inspect(WIDE_AND_DEEP)


def test_two_adams_without_their_graph_need_their_variables(tmp_path: Path) -> None:
    """Their powers say that there are two; with one's variables and its steps named, it goes on."""
    for path in (GAN / "tf115-saver" / "source").glob("model.[!m]*"):
        shutil.copy(path, tmp_path)
    hints: dict[str, Any] = {"optimizer_config": _config("tf115-saver", "generator"), "overrides": {"iterations": 3}}
    hints["overrides"] |= {"clipnorm": None, "beta_2": 0.999, "lazy_rows": []}
    state = migrate.read(tmp_path / "model", **hints)
    assert any("name the variables of the one meant in --variables" in reason for reason in state.reasons)
    oracle = np.load(GAN / "tf115-saver" / "oracle.npz")
    names = [str(name) for name in oracle["names/generator"]]
    shapes = [oracle[f"generator/at_save/{i}"].shape for i in range(len(names))]
    hints["variables"] = [{"name": n, "shape": list(s)} for n, s in zip(names, shapes, strict=True)]
    state = migrate.read(tmp_path / "model", **hints)
    assert (state.fidelity, [v.name for v in state.variables if v.trainable]) == ("exact", names), state.reasons
    assert set(state.slots["m"]) == set(names)


def _trained_by_sgd(optimizer: Any) -> Any:
    import tensorflow as tf

    variable = tf.Variable([1.0, 2.0], name="w")
    optimizer.apply_gradients([(tf.constant([0.5, 0.25]), variable)])
    model = tf.Module()
    model.w = variable
    return model


SGD = {"class_name": "SGD", "config": {"learning_rate": 0.1, "momentum": 0.9, "nesterov": False, "decay": 0.0}}


def test_a_program_that_counts_is_no_optimizer(tmp_path: Path) -> None:
    import tensorflow as tf
    from tf_keras.optimizers import legacy

    optimizer = legacy.SGD(0.1, momentum=0.9)
    parts = {"model": _trained_by_sgd(optimizer), "optimizer": optimizer, "iter": tf.Variable(7, dtype=tf.int64)}
    source = tf.train.Checkpoint(**parts).write(str(tmp_path / "ckpt"))
    state = migrate.read(source, optimizer_config=SGD, overrides={"lazy_rows": []})
    assert state.iterations == 1
    assert state.fidelity == "exact", state.reasons
    assert {name: array.load() for name, array in state.unmapped.items()} == {"iter": 7}


def test_averages_around_an_optimizer_are_no_optimizer_of_their_own(tmp_path: Path) -> None:
    """As the ExponentialMovingAverage of tf-models saves them: slots of its own, and an optimizer that counts."""
    import tensorflow as tf
    from tf_keras.optimizers import legacy

    inner, outer = legacy.SGD(0.1, momentum=0.9), legacy.SGD(0.1)
    model = _trained_by_sgd(inner)
    outer.add_slot(model.w, "average", initializer="zeros")
    outer._track_trackable(inner, "base_optimizer")
    source = tf.train.Checkpoint(model=model, optimizer=outer).write(str(tmp_path / "ckpt"))
    for hints in ({}, {"optimizer_path": "optimizer.base_optimizer"}):
        with pytest.raises(MissingHintError, match=r"keeps the slot average .*dynamic_decay.*--optimizer-config"):
            migrate.read(source, optimizer_config=SGD, **hints)
    wrapper = {"class_name": "ExponentialMovingAverage", "config": {"optimizer": SGD, "average_decay": 0.9}}
    state = migrate.read(source, optimizer_config=wrapper, overrides={"lazy_rows": []})
    assert state.fidelity == "approximate"
    assert "ExponentialMovingAverage averages in a way that optim does not" in state.reasons[0]
    assert list(state.slots) == ["m"]
    assert "average/w" in state.unmapped


@needs_keras("3.15")
def test_the_optimizers_of_keras_3s_multioptimizer_are_saved_by_name_as_the_refusal_says(tmp_path: Path) -> None:
    import keras
    import tensorflow as tf

    layers = keras.layers
    model = keras.Sequential([layers.Input((4,)), layers.Dense(3, name="base"), layers.Dense(2, name="head")])
    parts = keras.optimizers.OptimizerMap(keras.optimizers.Adam(0.01))
    parts[".*base/.*"] = keras.optimizers.SGD(0.05, momentum=0.9)
    model.compile(keras.optimizers.MultiOptimizer(parts), "mse")
    model.fit(np.ones((4, 4)), np.ones((4, 2)), epochs=3, verbose=0)
    model.save(tmp_path / "model.keras")
    with pytest.raises(UnsupportedError, match=r"first=optimizer.optimizers\[0\].*--optimizer first") as refused:
        migrate.read(tmp_path / "model.keras")
    assert "own_rule" not in str(refused.value)
    optimizer = keras.saving.load_model(tmp_path / "model.keras").optimizer
    named = dict(zip(("first", "second"), optimizer.optimizers, strict=True))
    tf.train.Checkpoint(model=model, **named).write(str(tmp_path / "parts"))
    for name, one in named.items():
        config = keras.saving.serialize_keras_object(one)
        state = migrate.read(tmp_path / "parts", optimizer_path=name, optimizer_config=config)
        assert (state.fidelity, state.iterations) == ("exact", 3)
        for slot, slot_arrays in state.slots.items():
            assert set(slot_arrays) == {v.path for v in one._trainable_variables}, slot
        trained = model.optimizer.optimizers[list(named).index(name)]
        stored = [array.load() for slot_arrays in state.slots.values() for array in slot_arrays.values()]
        slots = [np.asarray(v) for v in trained.variables[2:]]
        assert len(stored) == len(slots)
        assert all(any(np.array_equal(a, b) for b in slots) for a in stored)
