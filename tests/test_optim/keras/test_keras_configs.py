"""`from_config` of what Keras's optimizers say of themselves: the same steps, or an error that names the key."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import migrate
import optim
from optim.errors import HyperparameterError
from tests.helpers import next_steps
from tests.helpers.keras_releases import needs_keras
from tests.places import CORPUS

START = np.array([[1.0, -2.0], [3.0, 0.5], [0.25, 4.0]], np.float32)
MODULES = {"keras3": keras.optimizers, "tf_keras": tf_keras.optimizers, "legacy": tf_keras.optimizers.legacy}
OF_BOTH = ("SGD", "RMSprop", "Adagrad", "Adadelta", "Adam", "Adamax", "Nadam", "Ftrl")
NEW = (*OF_BOTH, "AdamW", "Lion", "Adafactor")
OPTIONS: dict[str, dict[str, Any]] = {
    "decayed": {"weight_decay": 0.1},
    "clipped": {"clipnorm": 0.5},
    "clipped together": {"global_clipnorm": 0.5},
    "not clipped": {"clipvalue": 0.0},
    "averaged": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
    "averaged at once": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 1},
}
CASES = [
    *[("keras3", name, {}) for name in (*NEW, "Lamb")],
    pytest.param("keras3", "Muon", {}, marks=needs_keras("3.13")),  # which asked a variable for its path before
    *[("tf_keras", name, {}) for name in NEW],
    *[("legacy", name, {}) for name in OF_BOTH],
    *[(module, "Adam", options) for options in OPTIONS.values() for module in ("keras3", "tf_keras")],
    *[(module, "RMSprop", {"momentum": 0.9, "centered": True}) for module in MODULES],
    *[(module, "SGD", {"momentum": 0.9, "nesterov": True}) for module in MODULES],
    *[(module, "Adam", {"amsgrad": True}) for module in MODULES],
    ("keras3", "SGD", {"gradient_accumulation_steps": 2, "weight_decay": 0.1, "clipnorm": 0.5}),
    *[
        ("keras3", "Adam", {"gradient_accumulation_steps": 2, "use_ema": True, "ema_momentum": 0.5, **more})
        for more in ({}, {"ema_overwrite_frequency": 2})
    ],
    ("keras3", "SGD", {"loss_scale_factor": 8.0}),
    ("tf_keras", "SGD", {"clipnorm": 0.5, "clipvalue": 0.1}),
    ("tf_keras", "SGD", {"jit_compile": True}),
    *[(module, name, {"epsilon": 0.1}) for module in MODULES for name in ("RMSprop", "Adagrad")],
    *[(module, "RMSprop", {"epsilon": 0.1, "momentum": 0.5}) for module in MODULES],
    ("legacy", "RMSprop", {"epsilon": 0.0}),
    ("legacy", "Adam", {"decay": 0.5}),
    ("legacy", "Ftrl", {"l1_regularization_strength": 0.1, "l2_shrinkage_regularization_strength": 0.1}),
    ("legacy", "SGD", {"clipvalue": 0.3}),
]


def trained(optimizer: Any, steps: int = 5, kind: Any = tf.Variable) -> np.ndarray:
    variable = kind(START, name="w")
    for number in range(steps):
        gradient = tf.cos(float(number) + tf.constant(START))
        scale = getattr(optimizer, "loss_scale_factor", None) or 1.0
        optimizer.apply_gradients([(gradient * scale, variable)])
    value: np.ndarray = variable.numpy()
    return value


def read(cls: Any, config: Mapping[str, Any]) -> Any:
    """As from a file: through JSON, as Keras writes numpy's numbers there."""
    return cls.from_config(json.loads(json.dumps(config, default=float)))


@pytest.mark.filterwarnings("ignore:decay is the old", "ignore:nesterov")
@pytest.mark.parametrize(("module", "name", "arguments"), CASES, ids=str)
@pytest.mark.quick(23)
def test_the_same_steps(module: str, name: str, arguments: Mapping[str, Any]) -> None:
    theirs = getattr(MODULES[module], name)(learning_rate=0.1, **arguments)
    config = theirs.get_config()
    before = dict(config)
    ours = read(getattr(optim, name), config)
    assert config == before
    kind = keras.Variable if module == "keras3" else tf.Variable
    np.testing.assert_allclose(trained(ours, kind=kind), trained(theirs, kind=kind), rtol=2e-5, atol=2e-6)


def test_xla_is_not_asked_for_by_a_config_from_a_gpu() -> None:
    """tf_keras writes True wherever it finds one; Adafactor's first step was refused."""
    config = {**tf_keras.optimizers.Adafactor(0.1).get_config(), "jit_compile": True}
    ours = read(optim.Adafactor, config)
    assert ours.get_config()["jit_compile"] is None
    trained(ours)


@needs_keras("3.15")
def test_schedule_free_decays_weights_as_keras_does() -> None:
    theirs = keras.optimizers.ScheduleFreeAdamW(learning_rate=0.1, weight_decay=0.3)
    ours = optim.ScheduleFreeAdamW.from_config({**theirs.get_config(), "late_z": True})
    np.testing.assert_allclose(trained(ours), trained(theirs, kind=keras.Variable), rtol=2e-5)


@needs_keras("3.15")
def test_schedule_free_steps_are_those_of_the_paper() -> None:
    """On TensorFlow Keras 3.15's own are not: `momentum.value` is the variable, so that z has moved when it is read."""
    theirs = keras.optimizers.ScheduleFreeAdamW(learning_rate=0.1)
    ours = read(optim.ScheduleFreeAdamW, theirs.get_config())
    ends = {}
    for z_is_read_late in (False, True):
        y = z = START.astype(np.float64)
        v = np.zeros_like(y)
        for step in range(1, 6):
            gradient = np.cos(step - 1 + START.astype(np.float64))
            v = 0.999 * v + 0.001 * gradient**2
            before, z = z, z - 0.1 * gradient / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
            x = (y - 0.1 * (z if z_is_read_late else before)) / 0.9
            x = x + (z - x) / step
            y = 0.1 * z + 0.9 * x
        ends[z_is_read_late] = y
    np.testing.assert_allclose(trained(ours), ends[False], rtol=2e-5)
    np.testing.assert_allclose(trained(theirs, kind=keras.Variable), ends[True], rtol=2e-5)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("schedule", ["ExponentialDecay", "CosineDecayRestarts", "PiecewiseConstantDecay"])
def test_schedules(module: str, schedule: str) -> None:
    home = keras if module == "keras3" else tf_keras
    arguments: dict[str, tuple[Any, ...]] = {"ExponentialDecay": (0.1, 3, 0.5), "CosineDecayRestarts": (0.1, 7)}
    given = arguments.get(schedule, ([2, 3], [0.1, 0.2, 0.05]))
    theirs = MODULES[module].SGD(getattr(home.optimizers.schedules, schedule)(*given))
    ours = read(optim.SGD, theirs.get_config())
    np.testing.assert_allclose(trained(ours), trained(theirs), rtol=2e-5)


def test_a_schedule_under_accumulation() -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    theirs = keras.optimizers.Adam(schedule, gradient_accumulation_steps=2)
    np.testing.assert_allclose(trained(read(optim.Adam, theirs.get_config())), trained(theirs), rtol=2e-5)


def test_the_averages_start_where_keras_starts_them() -> None:
    for module, start in (("keras3", "first_step"), ("tf_keras", "initial")):
        theirs = MODULES[module].SGD(0.1, use_ema=True, ema_momentum=0.5)
        ours = read(optim.SGD, theirs.get_config())
        assert ours.ema_start == start
        ends = []
        for optimizer in (ours, theirs):
            variable = tf.Variable(START)
            for _ in range(3):
                optimizer.apply_gradients([(tf.constant(START), variable)])
            optimizer.finalize_variable_values([variable])
            ends.append(variable.numpy())
        np.testing.assert_allclose(*ends, rtol=1e-6)


@pytest.mark.parametrize(
    ("cls", "config", "same"),
    [
        (optim.RMSprop, {"rho": 0.8, "epsilon": 0.01}, {"rho": 0.8, "epsilon": 0.01, "epsilon_inside": False}),
        (optim.Adagrad, {"epsilon": None}, {"initial_accumulator_value": 0.0, "epsilon_inside": False}),
        (optim.Adam, {"beta_1": 0.8, "beta_2": 0.9, "epsilon": None, "amsgrad": False}, {"beta_1": 0.8, "beta_2": 0.9}),
        (
            optim.Nadam,
            {"beta_1": 0.8, "beta_2": 0.9, "epsilon": 1e-7, "schedule_decay": 0.1},
            {"beta_1": 0.8, "beta_2": 0.9, "schedule_decay": 0.1},
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:lr is the old name", "ignore:decay is the old")
def test_configs_of_keras_before_optimizer_v2(cls: Any, config: dict[str, Any], same: dict[str, Any]) -> None:
    """Keras 2.2 wrote `lr`, Keras 2.3 `learning_rate`, neither a name."""
    decay = {} if cls is optim.Nadam else {"decay": 0.1}
    expected = trained(cls(learning_rate=0.1, **same, **decay))
    for rate in ("lr", "learning_rate"):
        np.testing.assert_array_equal(trained(cls.from_config({rate: 0.1, **decay, **config})), expected)


@pytest.mark.parametrize("case", ["extra-keras312-muon-text-keras", "extra-keras313-muon-text-keras"])
def test_the_muon_of_each_release_takes_that_releases_steps(case: str) -> None:
    """Keras 3.10 to 3.12 have another rule under the name, and write no `rms_rate`."""
    folder = CORPUS / case
    with zipfile.ZipFile(folder / "source" / "model.keras") as file:
        theirs = json.loads(file.read("config.json"))["compile_config"]["optimizer"]["config"]
    document, oracle = json.loads((folder / "case.json").read_text()), np.load(folder / "oracle.npz")
    names = [v["name"] for v in document["trainable"]]
    live = [tf.Variable(oracle[f"at_save/var/{i}"], name=name) for i, name in enumerate(names)]
    ours = optim.Muon.from_config(theirs)
    migrate.restore(folder / "source" / "model.keras", ours, dict(zip(names, live, strict=True)))
    assert next_steps.error(next_steps.applying(ours, live), live, oracle, 3) < 1


def test_our_own_configs_mean_what_they_say() -> None:
    for cls in (optim.RMSprop, optim.Adagrad, optim.Nadam):
        config = cls(0.1).get_config()
        assert cls.from_config(config).get_config() == config
    for start in ("initial", "first_step"):
        made = optim.SGD.from_config({**optim.SGD(use_ema=True, ema_start=start).get_config()})
        assert made.ema_start == start


@keras.saving.register_keras_serializable("of_ones_own", "Cosine")
class CosineDecay(keras.optimizers.schedules.CosineDecay):
    """Called like a stock one."""

    def __call__(self, step: Any) -> Any:
        return 2.0 * super().__call__(step)


def test_a_schedule_that_has_another_meaning_is_refused() -> None:
    config = keras.optimizers.SGD(CosineDecay(0.1, 10)).get_config()
    with pytest.raises(HyperparameterError, match="learning_rate"):
        optim.SGD.from_config(config)
