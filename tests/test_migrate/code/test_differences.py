"""What no argument of a call shows, and other Kerases do differently: what is written takes the old release's steps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from migrate.code.findings import BY_HAND, DIFFERS, REWRITTEN, SAME, Finding
from migrate.code.run import migrate_code

EMBEDDED = "import keras\nmodel = keras.Sequential([keras.layers.Embedding(9, 4)])\n"


@pytest.fixture(autouse=True)
def _one_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the programs here, which import Keras 3 alone."""
    monkeypatch.delitem(sys.modules, "tf_keras", raising=False)


def finding(tmp_path: Path, code: str, to: str = "optim", source: str = "keras==3.15.1") -> Finding:
    path = tmp_path / "program.py"
    path.write_text(code)
    return migrate_code([path], to=to, source=source).findings[-1]


def optimizer_of(call: str) -> Any:
    """The optimizer of a call."""
    import keras

    import optim

    return eval(call, {"keras": keras, "optim": optim})


def trained(optimizer: Any, calls: int = 7) -> np.ndarray:
    """A table's rows after some calls, of which each has one row several times."""
    import keras
    import tensorflow as tf

    table = keras.Variable(np.cos(np.arange(20.0)).reshape(5, 4).astype("float32"), name="table")
    for call in range(calls):
        with tf.GradientTape() as tape:
            rows = tf.gather(table.value, [0, call % 5, 0, 3])
            loss = tf.reduce_sum(rows**2 * (call + 1.0))
        optimizer.apply([tape.gradient(loss, table.value)], [table])
    return np.asarray(table)


def test_repeated_rows_of_embeddings_are_treated_as_before(tmp_path: Path) -> None:
    call = "keras.optimizers.RMSprop(0.05, clipvalue=5.0)"
    change = finding(tmp_path, f"{EMBEDDED}model.compile({call}, 'mse')\n")
    assert change.verdict == REWRITTEN
    reference = trained(optimizer_of(call))
    np.testing.assert_allclose(trained(optimizer_of(change.new)), reference, rtol=2e-5)
    without = change.new.replace(", repeated_rows=['clip', 'square']", ", repeated_rows=[]")
    assert without != change.new
    assert np.max(np.abs(trained(optimizer_of(without)) - reference)) > 1e-3


def test_rows_of_old_releases_are_summed_in_for_keras_too(tmp_path: Path) -> None:
    """Its defaults are those of the Keras that is installed."""
    change = finding(
        tmp_path, EMBEDDED + "model.compile(keras.optimizers.Adam(lr=0.05), 'mse')\n", source="keras==2.2.4"
    )
    assert change.new == "optim.for_keras(optim.Adam(learning_rate=0.05, repeated_rows=[]))"


@pytest.mark.parametrize(
    ("code", "to", "source", "verdict"),
    [
        ("keras.optimizers.SGD(0.05)", "optim", "keras==3.15.1", REWRITTEN),  # linear in the gradient
        ("keras.optimizers.Adam(0.05)", "keras", "keras==3.15.1", SAME),
        ("keras.optimizers.Adam(lr=0.05)", "optim", "keras==2.2.4", REWRITTEN),
        ("keras.optimizers.Adam(lr=0.05)", "keras", "keras==2.2.4", DIFFERS),
    ],
)
def test_rows_are_compared_with_what_the_target_does(
    tmp_path: Path, code: str, to: str, source: str, verdict: str
) -> None:
    assert finding(tmp_path, f"{EMBEDDED}model.compile({code}, 'mse')\n", to, source).verdict == verdict


def test_the_family_of_tf_keras_that_treats_rows_the_same_is_taken(tmp_path: Path) -> None:
    """Its legacy SGD leaves rows without a gradient alone, and the newer one does not, as Keras 2.2.4."""
    code = EMBEDDED + "model.compile(keras.optimizers.SGD(0.05, momentum=0.9), 'mse')\n"
    assert finding(tmp_path, code, "tf-keras", "keras==2.2.4").new == "tf_keras.optimizers.SGD(0.05, momentum=0.9)"


ACCUMULATED = "keras.optimizers.Adam({rate}, gradient_accumulation_steps=3{more})"


@pytest.mark.parametrize("more", ["", ", use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2"])
def test_accumulation_with_a_schedule_counts_calls(tmp_path: Path, more: str) -> None:
    call = ACCUMULATED.format(rate="keras.optimizers.schedules.CosineDecay(0.05, 12)", more=more)
    change = finding(tmp_path, f"import keras\no = {call}\n")
    assert change.verdict == REWRITTEN
    reference = trained(optimizer_of(call), calls=9)
    # atol: three steps of up to 0.05; until the kernel is built, TensorFlow's Adam op takes them and rounds 6.7e-6
    np.testing.assert_allclose(
        trained(optimizer_of(change.new), calls=9), reference, rtol=2e-5, atol=1e-6 + 3 * 0.05 * 6.7e-6
    )
    without = change.new.replace("count_calls=True", "count_calls=False")
    assert without != change.new
    assert np.max(np.abs(trained(optimizer_of(without), calls=9) - reference)) > 1e-3


def test_accumulation_with_a_number_needs_no_more(tmp_path: Path) -> None:
    change = finding(tmp_path, f"import keras\no = {ACCUMULATED.format(rate='0.1', more='')}\n")
    assert change.new == "optim.for_keras(optim.Adam(0.1, gradient_accumulation_steps=3))"
    code = "import keras\no = keras.optimizers.Adam(rate, gradient_accumulation_steps=n)\n"
    change = finding(tmp_path, code)
    assert change.new == "optim.for_keras(optim.Adam(rate, gradient_accumulation_steps=n, count_calls=True))"
    assert finding(tmp_path, code, source="keras==3.4.1").verdict == BY_HAND


def test_accumulation_stays_in_keras_3(tmp_path: Path) -> None:
    code = "import keras\no = keras.optimizers.Adam(1e-3, gradient_accumulation_steps=3)\n"
    assert finding(tmp_path, code, "keras").verdict == SAME
