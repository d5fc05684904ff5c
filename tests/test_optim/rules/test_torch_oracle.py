"""torch as an oracle: its optimizers over its own table of configurations, in float64, plain and sharded.

The numbers are in tests/fixtures/goldens/torch_goldens.npz, and torch_goldens.py there recorded them. Every
configuration is either followed by an optimizer of ours with explicit keywords, or named in `DIFFERENT` with the
reason. Two things are the caller's in Keras and here: `maximize` negates gradients, and `weight_decay`, where torch
adds it to the gradient (an L2 penalty and no decoupled decay), is added by the test.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import optim
from tests import places
from tests.helpers.breadth import broad
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.support import Place, put_gradients

Config = Mapping[str, Any]
GOLDENS = np.load(places.GOLDENS / "torch_goldens.npz")
ABOUT = json.loads(str(GOLDENS["about"]))
NAMES = ("kernel", "bias", "scale")
TOLERANCE = {"rtol": 1e-12, "atol": 1e-14}

# By optimizer, or by optimizer and torch's description.
DIFFERENT: Mapping[tuple[str, ...], str] = {
    ("ASGD",): "averaged SGD with a decaying rate is no algorithm of ours",
    ("LBFGS",): "calls the loss again and again within a step",
    ("RAdam",): "followed by test_rule_goldens.py",
    ("Rprop",): "no algorithm of ours",
    ("SparseAdam",): "leaves the rows without gradients alone; torch takes sparse gradients only",
    ("Muon",): "iterates in bfloat16, whatever the dtype of the parameter",
    ("SGD", "dampening"): "torch leaves it out of the first step, so no factor on gradients gives the same",
    ("Adafactor", "nonzero weight_decay"): "torch measures the parameter before it decays, Keras and this after",
    ("Adafactor", "maximize"): "it has weight decay, too: see above",
}


def _reason(config: Config) -> str | None:
    kind, description = config["optimizer"], config["description"]
    return DIFFERENT.get((kind,)) or DIFFERENT.get((kind, description))


def _adam_epsilon(config: Config, step: int) -> float:
    """torch adds ε to √(v/(1−β₂ᵗ)), Keras to √v: the same where Keras's is √(1−β₂ᵗ) times torch's."""
    return float(config["eps"] * math.sqrt(1.0 - config["betas"][1] ** step))


def _adam(config: Config, kind: str = "Adam", **more: Any) -> Any:
    beta_1, beta_2 = config["betas"]
    keywords = {"learning_rate": config["lr"], "beta_1": beta_1, "beta_2": beta_2, "amsgrad": config["amsgrad"]}
    optimizer = getattr(optim, kind)(**keywords, **more)
    optimizer.epsilon = lambda: _adam_epsilon(config, int(optimizer.iterations.numpy()) + 1)
    return optimizer


def _adamw(config: Config) -> Any:
    return _adam(config, "AdamW", weight_decay=config["weight_decay"])


def _nadam(config: Config) -> Any:
    return optim.Nadam(
        learning_rate=config["lr"],
        beta_1=config["betas"][0],
        beta_2=config["betas"][1],
        epsilon=config["eps"],
        schedule_decay=config["momentum_decay"],
        weight_decay=config["weight_decay"] if config["decoupled_weight_decay"] else None,
    )


def _adamax(config: Config) -> Any:
    beta_1, beta_2 = config["betas"]
    return optim.Adamax(learning_rate=config["lr"], beta_1=beta_1, beta_2=beta_2, epsilon=config["eps"])


def _adafactor(config: Config) -> Any:
    return optim.Adafactor(
        learning_rate=config["lr"],
        beta_2_decay=config["beta2_decay"],
        epsilon_1=0.0,  # torch only bounds the second moment from below, by 5e-32 here, which is never reached
        epsilon_2=config["eps"][1],
        clip_threshold=config["d"],
    )


def _adadelta(config: Config) -> Any:
    return optim.Adadelta(learning_rate=config["lr"], rho=config["rho"], epsilon=config["eps"])


def _adagrad(config: Config) -> Any:
    return optim.Adagrad(
        learning_rate=config["lr"],
        initial_accumulator_value=config["initial_accumulator_value"],
        epsilon=config["eps"],
        epsilon_inside=False,
        decay=config["lr_decay"],
    )


def _rmsprop(config: Config) -> Any:
    return optim.RMSprop(
        learning_rate=config["lr"],
        rho=config["alpha"],
        momentum=config["momentum"],
        epsilon=config["eps"],
        centered=config["centered"],
        epsilon_inside=False,
        learning_rate_in_momentum=False,
    )


def _sgd(config: Config) -> Any:
    return optim.SGD(
        learning_rate=config["lr"],
        momentum=config["momentum"],
        nesterov=config["nesterov"],
        learning_rate_in_momentum=False,
    )


OURS: Mapping[str, Callable[[Config], Any]] = {
    "Adadelta": _adadelta,
    "Adafactor": _adafactor,
    "Adagrad": _adagrad,
    "Adam": _adam,
    "AdamW": _adamw,
    "Adamax": _adamax,
    "NAdam": _nadam,
    "RMSprop": _rmsprop,
    "SGD": _sgd,
}
COMPARED = [index for index, config in enumerate(ABOUT["configurations"]) if _reason(config) is None]


def test_every_configuration_is_compared_or_named() -> None:
    configurations = ABOUT["configurations"]
    assert {configurations[index]["optimizer"] for index in COMPARED} == set(OURS)
    for index in COMPARED:
        assert GOLDENS[f"{index}/kernel"].shape == (ABOUT["steps"], 6, 4)
    keys = {(c["optimizer"],) for c in configurations} | {(c["optimizer"], c["description"]) for c in configurations}
    assert set(DIFFERENT) <= keys, "a reason for a configuration that torch does not have"


def _decay_in_gradients(kind: str, config: Config) -> float:
    if kind in ("AdamW", "Adafactor") or config.get("decoupled_weight_decay"):
        return 0.0
    return float(config["weight_decay"])


def _id(index: int) -> str:
    config = ABOUT["configurations"][index]
    return f"{config['optimizer']}-{config['description']}".replace(" ", "_")


@pytest.mark.filterwarnings("ignore:decay is the old inverse time decay:DeprecationWarning")
@pytest.mark.parametrize("layout", ["plain", broad("mixed")])
@pytest.mark.parametrize("index", COMPARED, ids=_id)
@pytest.mark.quick(15)
def test_same_as_torch(index: int, layout: str, request: pytest.FixtureRequest) -> None:
    entry = ABOUT["configurations"][index]
    kind, config = entry["optimizer"], entry["all"]
    place = Place.named(layout, request)
    variables = place.variables({name: GOLDENS[f"start/{name}"] for name in NAMES})
    optimizer = OURS[kind](config)
    sign = -1.0 if config["maximize"] else 1.0
    decay = _decay_in_gradients(kind, config)
    for step in range(ABOUT["steps"]):
        values = {
            name: sign * GOLDENS[f"gradient/{step}/{name}"] + decay * value_of(variable)
            for name, variable in variables.items()
        }
        optimizer.apply_gradients(put_gradients(values, variables))
        for name, variable in variables.items():
            expected = GOLDENS[f"{index}/{name}"][step]
            np.testing.assert_allclose(value_of(variable), expected, err_msg=f"{name}, step {step}", **TOLERANCE)
