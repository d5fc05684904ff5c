"""The constructors of old classes, release by release. Expected are the published API pages of these releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.code import signatures
from migrate.code.findings import BY_HAND, REWRITTEN, UNSURE
from migrate.code.run import migrate_code

FIRST = [
    ("tensorflow.keras.optimizers", "1.13.1", "lr"),
    ("tensorflow.keras.optimizers", "1.13.2", "lr"),
    ("tensorflow.keras.optimizers", "1.14", "learning_rate"),
    ("tensorflow.keras.optimizers", "1.14.0", "learning_rate"),
    ("tensorflow.keras.optimizers", "2.0.0", "learning_rate"),
    ("keras.optimizers", "2.2.5", "lr"),
    ("keras.optimizers", "2.3.0", "learning_rate"),
]


@pytest.mark.parametrize(("module", "version", "name"), FIRST)
@pytest.mark.parametrize("cls", ["Adam", "SGD", "RMSprop", "Adadelta"])
def test_the_learning_rate_has_its_name_from_the_right_release_on(
    module: str, version: str, name: str, cls: str
) -> None:
    known = signatures.of(module, cls, version)
    assert known is not None
    assert known.names[0] == name


def test_defaults_change_within_a_minor_release() -> None:
    """Keras 2.1.3 made epsilon None and gave Adam amsgrad."""
    before, after = (signatures.of("keras.optimizers", "Adam", v) for v in ("2.1.2", "2.1.3"))
    assert before is not None
    assert after is not None
    assert (before.default("epsilon"), after.default("epsilon")) == (1e-8, None)
    assert (before.takes("amsgrad"), after.takes("amsgrad")) == (False, True)


def run(tmp_path: Path, line: str, source: str | None) -> tuple[str, str]:
    path = tmp_path / "program.py"
    path.write_text(f"import tensorflow as tf, tensorflow_addons as tfa\no = {line}\n")
    report = migrate_code([path], source=source, write=True)
    assert len(report.findings) == 1
    return report.findings[0].verdict, path.read_text().splitlines()[-1]


def test_tensorflow_1_14_takes_a_learning_rate(tmp_path: Path) -> None:
    line = "tf.keras.optimizers.RMSprop(learning_rate=0.1, momentum=0.5)"
    assert run(tmp_path, line, "tensorflow==1.14")[0] == REWRITTEN
    assert run(tmp_path, line, "tensorflow==1.13")[0] == BY_HAND


LAMB = "o = optim.for_keras(optim.Lamb(1e-3, weight_decay=0.01, epsilon=1e-06, decay_in_step=True))"


@pytest.mark.parametrize("source", ["tensorflow==2.1", "tensorflow==2.9", None])
@pytest.mark.parametrize("name", ["weight_decay_rate", "weight_decay"])
def test_addons_had_other_names_before(tmp_path: Path, source: str | None, name: str) -> None:
    """LAMB's argument was renamed in Addons 0.16, which only warned of the old name."""
    assert run(tmp_path, f"tfa.optimizers.LAMB(1e-3, {name}=0.01)", source) == (REWRITTEN, LAMB)


def test_an_addons_default_that_changed_is_asked_about(tmp_path: Path) -> None:
    """Yogi's accumulator starts at 1 in Addons 0.7 and 0.8; TensorFlow 2.1 ran with these and with 0.9."""
    assert run(tmp_path, "tfa.optimizers.Yogi()", "tensorflow==2.2")[1] == "o = optim.for_keras(optim.Yogi())"
    assert run(tmp_path, "tfa.optimizers.Yogi()", "tensorflow==2.1")[0] == UNSURE
