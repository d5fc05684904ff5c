"""State of classes whose rule only their users know: carried on request, never exact, continued by that rule."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
import optim
from migrate.errors import StrictError
from optim.errors import CheckpointError, UnsupportedError
from optim.rules.adam import AdamRule
from tests.alterations.hdf5 import training_config
from tests.helpers import next_steps
from tests.places import CASE_FOLDER, CORPUS, WILD

CASE = WILD / "tf29-g-custom-subclass-adam-h5"
SOURCE = CASE / "source" / "model.h5"
OWN = {"own_rule": True}


@dataclass(frozen=True)
class CenteredRule(AdamRule):
    """Adam of gradients without their means, as the class in the fixture computed them."""

    @property
    def elementwise(self) -> bool:
        return False

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Any, c: Any) -> Any:
        gradient = gradient - xp.reduce_mean(gradient, axis=0, keepdims=True)
        return super().update(xp, variable, gradient, slots, c)


class CenteredGradAdam(optim.RuleOptimizer, rule=CenteredRule):
    """A user's own."""


def test_it_is_refused_unless_asked_for() -> None:
    with pytest.raises(UnsupportedError, match="--set own_rule=true"):
        migrate.read(SOURCE)


def test_the_users_own_rule_takes_the_next_steps(tmp_path: Path) -> None:
    import tensorflow as tf

    target, document, oracle = (
        tmp_path / "slots",
        json.loads((CASE / "case.json").read_text()),
        np.load(CASE / "oracle.npz"),
    )
    with pytest.raises(StrictError):
        migrate.migrate_checkpoint(SOURCE, target, overrides=OWN, strict=True)
    report = migrate.migrate_checkpoint(SOURCE, target, overrides=OWN)
    assert report.fidelity == "approximate"
    assert "dtopt does not know the rule of CenteredGradAdam" in report.reasons[0]
    names = [name.removesuffix(":0") for name in document["trainable"]]
    live = [tf.Variable(oracle[f"at_save/var/{i}"]) for i in range(len(names))]
    onto = dict(zip(names, live, strict=True))
    with pytest.raises(CheckpointError, match="custom_objects"):
        optim.load_checkpoint(target, onto, restore_variables=False)
    mine = {"CenteredGradAdam": CenteredGradAdam}
    optimizer = optim.load_checkpoint(target, onto, restore_variables=False, custom_objects=mine)
    assert next_steps.error(next_steps.applying(optimizer, live), live, oracle, document["n"]) < next_steps.NEAR


class PowerSignRule(optim.Rule):
    """Bello et al., "Neural Optimizer Search" (2017), as `powersign.py` of tf.contrib.opt has it."""

    learning_rate = optim.Hyperparameter(0.1, "the size of a step")
    base = optim.Hyperparameter(math.e, "to the power of 1 or -1", low=1.0)
    beta = optim.Hyperparameter(0.9, "decay rate of the mean of gradients", high=1.0)
    slots = (optim.Slot("PowerSignOptimizer", unit="gradient"),)

    def update(self, xp: Any, variable: Any, gradient: Any, slots: Any, c: Any) -> Any:
        mean = c["beta"] * slots["PowerSignOptimizer"] + (1.0 - c["beta"]) * gradient
        power = xp.exp(xp.log(c["base"]) * xp.sign(gradient) * xp.sign(mean))
        return -c["learning_rate"] * power * gradient, {"PowerSignOptimizer": mean}


class PowerSign(optim.RuleOptimizer, rule=PowerSignRule):
    """Of a program of one's own."""


def test_the_rule_of_a_class_of_tf_contrib_that_optim_has_not_takes_the_next_steps(tmp_path: Path) -> None:
    import tensorflow as tf

    case = CORPUS / "extra-tf115-contrib-powersign-saver"
    document, oracle = json.loads((case / "case.json").read_text()), np.load(case / "oracle.npz")
    source, settings = case / "source" / "model.ckpt", {"learning_rate": 0.05, "clipnorm": None}
    with pytest.raises(UnsupportedError, match="--set own_rule=true"):
        migrate.read(source, overrides={"class_name": "PowerSignOptimizer", **settings})
    with pytest.raises(UnsupportedError, match=r"tf1 of Keras has no Lamb .* --set own_rule=true"):
        migrate.read(source, overrides={"class_name": "LAMB", **settings})
    as_another = {"class_name": "MomentumOptimizer", "momentum": 0.9, "nesterov": False, **settings}
    assert "ApplyPowerSign" in " ".join(migrate.read(source, overrides=as_another).reasons)
    mine = {"class_name": "PowerSign", **OWN, **settings}
    assert migrate.migrate_checkpoint(source, tmp_path / "slots", overrides=mine).fidelity == "approximate"
    live = [tf.Variable(oracle[f"at_save/var/{i}"]) for i in range(len(document["trainable"]))]
    onto = {v["name"].removesuffix(":0"): variable for v, variable in zip(document["trainable"], live, strict=True)}
    optimizer = optim.load_checkpoint(tmp_path / "slots", onto, custom_objects={"PowerSign": PowerSign})
    assert next_steps.error(next_steps.applying(optimizer, live), live, oracle, document["n"]) < next_steps.NEAR


@pytest.mark.parametrize(
    ("case", "name"),
    [("graphs/adagrad_da", "AdagradDAOptimizer"), ("corpus/extra-tf115-contrib-powersign-saver", "PowerSignOptimizer")],
)
def test_a_class_that_the_graph_shows_is_refused_before_anything_is_asked(case: str, name: str) -> None:
    source = CASE_FOLDER / case / "source" / "model.ckpt"
    with pytest.raises(UnsupportedError, match=f"this dtopt does not know the rule of '{name}'"):
        migrate.read(source)
    state = migrate.read(source, overrides={**OWN, "learning_rate": 0.05})
    assert (state.algorithm, state.fidelity) == (name, "approximate")
    assert "gradients were clipped" in " ".join(state.reasons)  # which nothing followed in the graph


@pytest.mark.parametrize(
    ("class_name", "algorithm"), [("Adam", "own>Adam"), ("Mine>Adam", "Mine>Adam"), ("Mine>Own", "Own")]
)
def test_it_is_never_called_as_one_of_ours(class_name: str, algorithm: str, tmp_path: Path) -> None:
    copy = tmp_path / "model.h5"
    shutil.copy(SOURCE, copy)
    with training_config(copy) as document:
        document["optimizer_config"]["class_name"] = class_name
    state = migrate.read(copy, overrides=OWN)
    assert (state.algorithm, state.fidelity) == (algorithm, "approximate")
    assert set(state.slots) == {"m", "v"}


def test_keras_has_no_class_for_it(tmp_path: Path) -> None:
    for name in ("model.keras", "model.h5"):
        with pytest.raises(UnsupportedError):
            migrate.migrate_checkpoint(SOURCE, tmp_path / name, overrides=OWN)


def test_messages_name_nothing_that_does_not_exist(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from dtopt_cli.commands.migrate import app

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, [*arguments, "--set", "own_rule=true"])

    target = str(tmp_path / "slots")
    result = run("checkpoint", str(SOURCE), target)
    assert result.exit_code == 0
    assert "optim.CenteredGradAdam" not in result.output
    assert run("verify", str(SOURCE), target).exit_code == 0  # as the report says
    assert "no step is compared" in " ".join(migrate.verify(SOURCE, target, overrides=OWN).notes)
    for name in ("model.keras", "model.h5"):
        with pytest.raises(UnsupportedError, match=r"has no CenteredGradAdam\. Migrate to slots"):
            migrate.migrate_checkpoint(SOURCE, tmp_path / name, overrides=OWN)
    with pytest.raises(UnsupportedError, match="migrate to slots"):
        migrate.migrate_checkpoint(SOURCE, tmp_path / "list.npz", to="list", overrides=OWN)


@pytest.mark.parametrize(
    ("class_name", "typed"),
    [("keras.optimizers.SGD", "SGD"), ("tf.keras.optimizers.legacy.SGD", "SGD"), ("my.SGD", "")],
)
def test_a_class_is_said_without_its_module(class_name: str, typed: str) -> None:
    source = CORPUS / "tf24-sgd-momentum-ckpt-convbn" / "source"
    with pytest.raises(UnsupportedError) as caught:
        migrate.read(source, overrides={"class_name": class_name})
    assert (f"without its module, as in --set class_name={typed}" in str(caught.value)) == bool(typed)
    if typed:
        migrate.read(source, overrides={"class_name": typed})
