"""What becomes of single places, for each target."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.code.findings import REWRITTEN, UNSURE
from migrate.code.run import CodeReport, migrate_code


def rewrite(
    tmp_path: Path, code: str, *, to: str = "optim", source: str | None = "keras==2.2.4"
) -> tuple[str, CodeReport]:
    """The program afterwards, and the report; a second run must change nothing."""
    path = tmp_path / "program.py"
    path.write_bytes(code.encode())
    report = migrate_code([path], to=to, source=source, write=True)
    new = path.read_bytes().decode()
    migrate_code([path], to=to, source=source, write=True)
    assert path.read_bytes().decode() == new, "a second run changes something"
    return new, report


KERAS = "import keras\nfrom keras import backend as K\nmodel = keras.models.Sequential()\n"

CALLS = [
    ("keras==2.2.4", "keras.optimizers.SGD(lr=0.1)", "optim", "optim.SGD(learning_rate=0.1)"),
    ("keras==2.2.4", "keras.optimizers.SGD(0.1, 0.9)", "optim", "optim.SGD(0.1, momentum=0.9)"),
    ("keras==2.2.4", "keras.optimizers.sgd(lr=r)", "optim", "optim.SGD(learning_rate=r)"),
    ("keras==2.2.4", "keras.optimizers.SGD(decay=d / 2)", "optim", "optim.SGD(decay=d / 2)"),
    ("keras==2.2.4", "keras.optimizers.RMSprop()", "optim", "optim.RMSprop(epsilon_inside=False)"),
    (
        "keras==2.0.8",
        "keras.optimizers.RMSprop(lr=x)",
        "optim",
        "optim.RMSprop(learning_rate=x, epsilon=1e-08, epsilon_inside=False)",
    ),
    (
        "keras==2.2.4",
        "keras.optimizers.Adagrad()",
        "optim",
        "optim.Adagrad(learning_rate=0.01, initial_accumulator_value=0.0, epsilon_inside=False)",
    ),
    ("keras==2.3.1", "keras.optimizers.Adadelta()", "optim", "optim.Adadelta(learning_rate=1.0)"),
    ("keras==2.2.4", "keras.optimizers.Adam(clipnorm=c)", "optim", "optim.Adam(global_clipnorm=c)"),
    ("keras==2.2.4", "keras.optimizers.Nadam()", "optim", "optim.Nadam(learning_rate=0.002, schedule_decay=0.004)"),
    (
        "keras==2.2.4",
        "keras.optimizers.Adam(clipnorm=1.0, clipvalue=0.5)",
        "optim",
        "optim.Adam(global_clipnorm=1.0, clipvalue=0.5, clip_order='norm_first')",
    ),
    (
        "keras==2.2.4",
        "keras.optimizers.Adam(lr=a, epsilon=None)",
        "keras",
        "keras.optimizers.Adam(learning_rate=a, epsilon=1e-07)",
    ),
    (
        "keras==2.2.4",
        "keras.optimizers.SGD(lr=0.1, decay=1e-4)",
        "keras",
        "keras.optimizers.SGD("
        "learning_rate=keras.optimizers.schedules.InverseTimeDecay(0.1, decay_steps=1, decay_rate=1e-4))",
    ),
    (
        "keras==2.2.4",
        "keras.optimizers.Adadelta(rho=0.9)",
        "keras",
        "keras.optimizers.Adadelta(rho=0.9, learning_rate=1.0)",
    ),
    (
        "keras==2.2.4",
        "keras.optimizers.Adagrad(lr=0.1)",
        "tf-keras",
        "tf_keras.optimizers.legacy.Adagrad(learning_rate=0.1, initial_accumulator_value=0.0)",
    ),
    (
        "keras==2.2.4",
        "keras.optimizers.SGD(lr=0.1, decay=1e-4)",
        "tf-keras",
        "tf_keras.optimizers.legacy.SGD(learning_rate=0.1, decay=1e-4)",
    ),
    ("keras==2.2.4", "keras.optimizers.Nadam()", "tf-keras", "tf_keras.optimizers.legacy.Nadam(learning_rate=0.002)"),
]


@pytest.mark.parametrize(("release", "old", "to", "new"), CALLS)
def test_a_call_becomes_the_same_rule(tmp_path: Path, release: str, old: str, to: str, new: str) -> None:
    code, _ = rewrite(tmp_path, f"{KERAS}o = {old}\n", to=to, source=release)
    last = code.splitlines()[-1].removeprefix("o = ")
    assert last == (f"optim.for_keras({new})" if to == "optim" else new)


READINGS = [
    ("K.get_value(model.optimizer.lr)", "float(model.optimizer.learning_rate)"),
    ("float(K.get_value(model.optimizer.lr))", "float(model.optimizer.learning_rate)"),
    ("K.eval(model.optimizer.lr)", "float(model.optimizer.learning_rate)"),
    ("K.get_value(model.optimizer.iterations)", "int(model.optimizer.iterations)"),
    ("K.set_value(model.optimizer.lr, 0.5 * x)", "model.optimizer.learning_rate = 0.5 * x"),
    ("model.optimizer.lr.assign(x)", "model.optimizer.learning_rate.assign(x)"),
    ("model.optimizer.lr = x", "model.optimizer.learning_rate = x"),
    ("hasattr(model.optimizer, 'lr')", "hasattr(model.optimizer, 'learning_rate')"),
]


@pytest.mark.parametrize(("old", "new"), READINGS)
@pytest.mark.parametrize("to", ["optim", "keras", "tf-keras"])
def test_the_learning_rate_has_its_new_name(tmp_path: Path, old: str, new: str, to: str) -> None:
    code, report = rewrite(tmp_path, f"{KERAS}{old}\n", to=to)
    top = KERAS.replace("import keras", "import tf_keras as keras").replace("from keras", "from tf_keras")
    assert code == f"{top if to == 'tf-keras' else KERAS}{new}\n"
    assert report.exit_code == 0


def test_strings_stay_where_they_mean_the_same(tmp_path: Path) -> None:
    code, report = rewrite(
        tmp_path, f"{KERAS}model.compile('adam', loss='mse')\nmodel.compile(optimizer='sgd', loss='mse')\n"
    )
    assert "'adam'" in code
    assert "'sgd'" in code
    assert report.counts == {"same as before": 2}


def test_strings_whose_default_changed_are_spelled_out(tmp_path: Path) -> None:
    code, _ = rewrite(tmp_path, f"{KERAS}model.compile(optimizer='adadelta', loss='mse')\n")
    assert "optimizer=optim.for_keras(optim.Adadelta(learning_rate=1.0))" in code


def test_what_every_release_means_is_printed_and_the_rest_is_unsure(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(f"{KERAS}o = keras.optimizers.Adam(lr=0.1)\np = keras.optimizers.SGD(lr=0.1)\n")
    report = migrate_code([path], write=True)
    unsure, same = report.findings
    assert (unsure.line, unsure.verdict) == (4, UNSURE)
    assert "2.1.2: optim.Adam(learning_rate=0.1, epsilon=1e-08)" in unsure.message
    assert "keras==2.1.6, 2.2.4, 2.2.5, 2.3.1: optim.Adam(learning_rate=0.1)" in unsure.message
    assert (same.verdict, same.new) == (REWRITTEN, "optim.for_keras(optim.SGD(learning_rate=0.1))")
    assert report.exit_code == 2
    assert "+p = optim.for_keras(" in report.changes[0].diff
    assert "lr=0.1" in path.read_text()


PINNED = [
    ("keras2", "keras==2.2.4", "", "learning_rate=0.1)"),
    ("keras2", "keras==2.0.8", "", "learning_rate=0.1, epsilon=1e-08)"),
    ("keras2", "keras==1.2.2", "keras==1.2.2 is pinned, and --from keras2 names another", "epsilon=1e-08)"),
    ("keras==2.2.4", "keras==2.0.8", "reads the program as keras==2.2.4", "learning_rate=0.1)"),
    ("keras==2.2", "keras==2.2.4", "", "learning_rate=0.1)"),
]


@pytest.mark.parametrize(("source", "pin", "contradiction", "new"), PINNED)
def test_a_pin_is_more_than_a_generation_and_a_contradiction_is_named(
    tmp_path: Path, source: str, pin: str, contradiction: str, new: str
) -> None:
    (tmp_path / "requirements.txt").write_text(f"{pin}\n")
    path = tmp_path / "program.py"
    path.write_text(f"{KERAS}o = keras.optimizers.Adam(lr=0.1)\n")
    report = migrate_code([path], source=source)
    assert len(report.contradictions) == bool(contradiction)
    assert contradiction in "".join(report.contradictions)
    assert new in report.findings[0].new


def test_a_pin_answers(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy\nkeras==2.2.4  # old\n")
    code, _ = rewrite(tmp_path, f"{KERAS}o = keras.optimizers.Adam(lr=0.1)\n", source=None)
    assert "optim.Adam(learning_rate=0.1)" in code


def test_one_call_rules_a_release_out_for_the_whole_file(tmp_path: Path) -> None:
    program = f"{KERAS}a = keras.optimizers.Adam(amsgrad=True, lr=1e-3)\nb = keras.optimizers.Adam()\n"
    (tmp_path / "requirements.txt").write_text("keras<2.3\n")
    code, _ = rewrite(tmp_path, program, source=None)
    assert code.splitlines()[-1] == "b = optim.for_keras(optim.Adam())"
