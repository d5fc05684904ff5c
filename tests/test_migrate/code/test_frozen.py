"""Models that are frozen after they are compiled: old Keras trains them, Keras 3 does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.code.findings import DIFFERS
from migrate.code.run import migrate_code

TOP = "import keras\nd = keras.models.Sequential()\nd.compile(loss='mse', optimizer='sgd')\n"
FREEZE = "d.trainable = False\n"
AROUND = "g = keras.models.Sequential([e, d])\ng.compile(loss='mse', optimizer='sgd')\n"
STEPS = "d.train_on_batch(a, b)\ng.train_on_batch(a, b)\n"


def differences(tmp_path: Path, code: str, source: str = "keras==2.2.4", to: str = "optim") -> list[str]:
    path = tmp_path / "program.py"
    path.write_text(TOP + code)
    return [f.message for f in migrate_code([path], to=to, source=source).findings if f.verdict == DIFFERS]


@pytest.mark.parametrize("to", ["optim", "keras"])
def test_a_model_frozen_after_its_compile_differs(tmp_path: Path, to: str) -> None:
    (message,) = differences(tmp_path, FREEZE + AROUND + STEPS, to=to)
    assert "Before each d.train_on_batch(...) set d.trainable = True" in message


@pytest.mark.parametrize(
    "code",
    [
        FREEZE + STEPS,  # no model around it
        AROUND + FREEZE + STEPS,
        FREEZE + AROUND + "g.fit(a, b)\n",  # not trained itself
        FREEZE + AROUND + "d.compile(loss='mse', optimizer='sgd')\n" + STEPS,
        FREEZE + AROUND + "d.trainable = True\n" + STEPS,
    ],
)
def test_other_frozen_models_are_the_same(tmp_path: Path, code: str) -> None:
    assert not differences(tmp_path, code)


def test_tf_keras_and_programs_of_keras_3_are_the_same(tmp_path: Path) -> None:
    assert not differences(tmp_path, FREEZE + AROUND + STEPS, to="tf-keras")
    assert not differences(tmp_path, FREEZE + AROUND + STEPS, source="keras==3.5.0")


@pytest.mark.parametrize("follows_advice", [False, True])
def test_keras_3_trains_what_is_trainable_in_the_first_step(follows_advice: bool) -> None:
    import keras
    import numpy as np

    d = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    d.compile(loss="mse", optimizer="sgd")
    d.trainable = False
    g = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(2), d])
    g.compile(loss="mse", optimizer="sgd")
    before = d.get_weights()[0]
    d.trainable = follows_advice
    d.train_on_batch(np.ones((1, 2)), np.ones((1, 1)))
    d.trainable = False
    middle = d.get_weights()[0]
    g.train_on_batch(np.ones((1, 2)), np.zeros((1, 1)))
    assert np.any(middle != before) == follows_advice
    np.testing.assert_array_equal(d.get_weights()[0], middle)
