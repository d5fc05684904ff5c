"""What no argument of a call shows: that it is said, that it is true, and that what the message advises makes the steps
Keras 3's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from migrate.code.findings import DIFFERS, REWRITTEN, SAME, Finding
from migrate.code.run import migrate_code

EMBEDDED = "import keras\nmodel = keras.Sequential([keras.layers.Embedding(9, 4)])\n"


def finding(tmp_path: Path, code: str, to: str = "optim", source: str = "keras==3.15.1") -> Finding:
    path = tmp_path / "program.py"
    path.write_text(code)
    return migrate_code([path], to=to, source=source).findings[-1]


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


def test_repeated_rows_of_embeddings_are_named(tmp_path: Path) -> None:
    import keras

    import optim

    said = finding(tmp_path, EMBEDDED + "model.compile(keras.optimizers.RMSprop(0.05, clipvalue=5.0), 'mse')\n")
    assert said.verdict == DIFFERS
    assert "exact with repeated_rows=['clip', 'square']" in said.message
    own = trained(keras.optimizers.RMSprop(0.05, clipvalue=5.0))
    exact = optim.RMSprop(0.05, clipvalue=5.0, repeated_rows=["clip", "square"])
    np.testing.assert_allclose(trained(optim.for_keras(exact, keras)), own, rtol=2e-5)
    other = trained(optim.for_keras(optim.RMSprop(0.05, clipvalue=5.0), keras))
    assert np.max(np.abs(other - own)) > 1e-3


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


def test_accumulation_with_a_schedule_is_named(tmp_path: Path) -> None:
    import keras

    import optim

    lines = (
        "import keras\nrate = keras.optimizers.schedules.CosineDecay(0.05, 12)\n"
        "o = keras.optimizers.Adam(rate, gradient_accumulation_steps=3)\n"
    )
    said = finding(tmp_path, lines)
    assert said.verdict == DIFFERS
    assert "exact with a schedule that returns CosineDecay at step * 3 + 3 - 1" in said.message
    assert finding(tmp_path, lines.replace("(rate,", "(0.1,")).verdict == REWRITTEN

    cosine = keras.optimizers.schedules.CosineDecay(0.05, 12)

    class OfSteps(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            return cosine(step * 3 + 3 - 1)

    own = trained(keras.optimizers.Adam(cosine, gradient_accumulation_steps=3), calls=9)
    ours = trained(optim.for_keras(optim.Adam(OfSteps(), gradient_accumulation_steps=3), keras), calls=9)
    np.testing.assert_allclose(ours, own, rtol=2e-5)
    as_written = trained(optim.for_keras(optim.Adam(cosine, gradient_accumulation_steps=3), keras), calls=9)
    assert np.max(np.abs(as_written - own)) > 1e-3


def test_accumulation_stays_in_keras_3(tmp_path: Path) -> None:
    code = "import keras\no = keras.optimizers.Adam(1e-3, gradient_accumulation_steps=3)\n"
    assert finding(tmp_path, code, "keras").verdict == SAME
