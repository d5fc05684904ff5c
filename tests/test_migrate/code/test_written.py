"""What is written runs and means the same: imports, schedules, the rate's variable, strings, and optimizers of several
models."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.code import releases
from migrate.code.findings import BY_HAND, DIFFERS, REWRITTEN, SAME, UNREADABLE
from migrate.code.run import CodeReport, migrate_code

TF = "import tensorflow as tf\n"


def rewrite(tmp_path: Path, code: str, to: str, source: str = "tensorflow==2.3") -> tuple[str, CodeReport]:
    """The program afterwards, and the report; a second run must change nothing."""
    path = tmp_path / "program.py"
    path.write_text(code)
    report = migrate_code([path], to=to, source=source, write=True)
    new = path.read_text()
    migrate_code([path], to=to, source=source, write=True)
    assert path.read_text() == new, "a second run changes something"
    return new, report


INLINE = [
    "o = tf.keras.optimizers.Adam(learning_rate=tf.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))\n",
    "o = tf.keras.optimizers.Adam(tf.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))\n",
]


@pytest.mark.parametrize("code", INLINE)
def test_a_schedule_in_the_call_stays(tmp_path: Path, code: str) -> None:
    assert rewrite(tmp_path, TF + code, "keras")[0] == TF + code


def test_a_schedule_for_decay_stays_in_a_second_run(tmp_path: Path) -> None:
    new, _ = rewrite(tmp_path, TF + "o = tf.keras.optimizers.SGD(lr=2.0, decay=0.1)\no.lr = 1e-4\n", "keras")
    assert "=tf.keras.optimizers.schedules.InverseTimeDecay(2.0, decay_steps=1, decay_rate=0.1))" in new


READ_AGAIN = [
    ("tf.compat.v1.train.AdagradOptimizer(0.05)", "tf.keras.optimizers.Adagrad(0.05, epsilon=0.0)"),
    ("tf.keras.optimizers.RMSprop(0.1)", "tf.keras.optimizers.RMSprop(0.1, epsilon=1e-14)"),
    ("tf.keras.optimizers.RMSprop(epsilon=e)", "tf.keras.optimizers.RMSprop(epsilon=(e) ** 2)"),
]


@pytest.mark.parametrize(("old", "new"), READ_AGAIN)
def test_a_file_whose_new_calls_the_old_release_reads_otherwise_says_so(tmp_path: Path, old: str, new: str) -> None:
    code, _ = rewrite(tmp_path, f"{TF}model = tf.keras.Sequential()\nmodel.compile({old}, 'mse')\n", "keras")
    assert code.splitlines()[0] == releases.MARK
    assert code.splitlines()[-1] == f"model.compile({new}, 'mse')"


def test_only_such_a_file_says_so(tmp_path: Path) -> None:
    assert releases.MARK not in rewrite(tmp_path, TF + "o = tf.keras.optimizers.Adam(lr=0.1)\n", "keras")[0]


def test_the_mark_goes_below_a_first_line_for_the_shell(tmp_path: Path) -> None:
    code = '#!/usr/bin/env python\n"""A text."""\n' + TF + "o = tf.keras.optimizers.RMSprop(0.1)\n"
    lines = rewrite(tmp_path, code, "keras")[0].splitlines()
    assert lines[:3] == ["#!/usr/bin/env python", releases.MARK, '"""A text."""']


STRINGS = [("rmsprop", "tf_keras.optimizers.legacy.RMSprop()"), ("nadam", "tf_keras.optimizers.legacy.Nadam()")]


@pytest.mark.parametrize(("name", "new"), STRINGS)
def test_a_string_is_compared_with_the_class_that_it_stands_for(tmp_path: Path, name: str, new: str) -> None:
    code, _ = rewrite(tmp_path, f"{TF}model = tf.keras.Sequential()\nmodel.compile('{name}', 'mse')\n", "tf-keras")
    assert code.splitlines()[-1] == f"model.compile({new}, 'mse')"
    code, _ = rewrite(tmp_path, f"{TF}model = tf.keras.Sequential()\nmodel.compile('adam', 'mse')\n", "tf-keras")
    assert code.splitlines()[-1] == "model.compile('adam', 'mse')"


STEPPED = (
    "o = tf.keras.optimizers.Adam(1e-3)\n"
    "def step(a, b, g, h):\n"
    "    o.apply_gradients(zip(g, a.trainable_variables))\n"
    "    o.apply_gradients(zip(h, b.trainable_variables))\n"
)


@pytest.mark.parametrize(
    ("to", "verdicts"), [("optim", [DIFFERS] * 3), ("keras", [DIFFERS] * 3), ("tf-keras", [REWRITTEN, SAME, SAME])]
)
def test_one_optimizer_that_steps_two_models_differs(tmp_path: Path, to: str, verdicts: list[str]) -> None:
    _, report = rewrite(tmp_path, TF + STEPPED, to)
    assert [finding.verdict for finding in report.findings] == verdicts
    if to != "tf-keras":
        assert "o.build([*a.trainable_variables, *b.trainable_variables])" in report.findings[0].message
    one = TF + STEPPED.replace("b.trainable_variables", "a.trainable_weights")
    assert DIFFERS not in rewrite(tmp_path, one, to)[1].counts


SCHEDULE = """class Warm(tf.keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        {first}
        return tf.math.rsqrt(step)
rate = Warm()
o = tf.keras.optimizers.Adam(rate)
"""


@pytest.mark.parametrize("to", ["optim", "keras"])
def test_a_schedule_of_the_program_that_needs_floats_differs(tmp_path: Path, to: str) -> None:
    _, report = rewrite(tmp_path, TF + SCHEDULE.format(first="pass"), to)
    assert "begin its __call__ with step = tf.cast(step, tf.float32)" in report.findings[-1].message
    assert report.exit_code == 1
    _, report = rewrite(tmp_path, TF + SCHEDULE.format(first="step = tf.cast(step, tf.float32)"), to)
    assert report.exit_code == 0
    _, report = rewrite(tmp_path, TF + SCHEDULE.format(first="pass"), to, "tensorflow==2.15.1")
    assert report.exit_code == 0, "it got integers there, too"


def test_a_schedule_of_the_program_stays_under_legacy_classes(tmp_path: Path) -> None:
    assert rewrite(tmp_path, TF + SCHEDULE.format(first="pass"), "tf-keras")[1].exit_code == 0


ALIASES = """from keras.optimizers import adam, adadelta
from keras.optimizers import adam_v2
from keras.optimizer_v2.adam import Adam
from keras.optimizer_v2 import gradient_descent
from keras import optimizers as opts
a = adam(lr=0.1)
b = adam_v2.Adam(lr=0.1)
c = Adam(lr=0.1)
d = gradient_descent.SGD(lr=0.1)
f = opts.adamax(lr=0.1)
"""
PRIVATE = """from tensorflow.python.keras.optimizer_v2 import adam, learning_rate_schedule
from tensorflow.python.keras.optimizers import SGD
a = adam.Adam(lr=0.1, decay=1e-3)
b = SGD(lr=0.1)
class S(learning_rate_schedule.LearningRateSchedule): pass
"""


@pytest.mark.parametrize("to", ["optim", "keras", "tf-keras"])
@pytest.mark.parametrize("code", [ALIASES, PRIVATE])
def test_no_import_of_what_is_gone_stays(tmp_path: Path, code: str, to: str) -> None:
    new, report = rewrite(tmp_path, code, to, "tensorflow==2.6")
    assert report.exit_code == 0
    assert "optimizer_v2" not in new
    assert "tensorflow.python" not in new
    compile(new, "program.py", "exec")
    lines = [line for line in new.splitlines() if "import" in line]
    for line in lines:
        if "optim" not in line or "keras" in line:
            exec(line, {})


def test_an_import_of_what_is_gone_that_something_uses_is_said(tmp_path: Path) -> None:
    code = "from keras.optimizer_v2 import utils\nprint(utils.optimizer)\n"
    new, report = rewrite(tmp_path, code, "keras", "tensorflow==2.6")
    assert new == code
    assert [f.verdict for f in report.findings] == [BY_HAND]
    assert "current releases have no keras.optimizer_v2.utils" in report.findings[0].message


VARIABLES = [
    ("print(o.lr.read_value(), o.lr.value())", "print(float(o.learning_rate), float(o.learning_rate))"),
    ("print(float(o.lr.get_value()))", "print(float(o.learning_rate))"),
    ("x = o.learning_rate.value()", "x = float(o.learning_rate)"),
    ("o.lr.set_value(0.5 * o.lr.get_value())", "o.learning_rate = 0.5 * float(o.learning_rate)"),
    ("K.get_session().run(o.lr.assign(0.1))", "o.learning_rate = 0.1"),
    ("o.lr.assign(0.3)", "o.learning_rate.assign(0.3)"),
]


@pytest.mark.parametrize(("old", "new"), VARIABLES)
@pytest.mark.parametrize("to", ["optim", "keras", "tf-keras"])
def test_methods_of_the_old_variable_become_plain_code(tmp_path: Path, old: str, new: str, to: str) -> None:
    code = "from tensorflow import keras\nfrom tensorflow.keras import backend as K\no = keras.optimizers.SGD()\n"
    assert rewrite(tmp_path, code + old + "\n", to)[0].splitlines()[-1] == new


def test_an_assignment_of_the_old_variable_in_an_expression_is_left(tmp_path: Path) -> None:
    _, report = rewrite(tmp_path, f"{TF}o = tf.keras.optimizers.SGD()\nuse(o.lr.set_value(0.1))\n", "keras")
    assert report.findings[-1].verdict == BY_HAND


@pytest.mark.parametrize("line", ["try:\n    pass\nexcept Exception, e:\n    pass\n", "if 1 <> 2:\n    pass\n"])
def test_python_2_that_is_parsed_is_said(tmp_path: Path, line: str) -> None:
    code = f"from keras.optimizers import SGD\no = SGD(lr=0.1)\n{line}"
    new, report = rewrite(tmp_path, code, "keras", "keras==2.2.4")
    assert new == code
    assert [f.verdict for f in report.findings] == [UNREADABLE]
    assert "is Python 2" in report.findings[0].message


def test_two_classes_caught_without_brackets_are_python_314(tmp_path: Path) -> None:
    code = "from keras.optimizers import SGD\ntry:\n    o = SGD(lr=0.1)\nexcept ValueError, TypeError:\n    pass\n"
    assert rewrite(tmp_path, code, "keras", "keras==2.2.4")[1].exit_code == 0


def test_an_argument_that_the_old_class_ignored_is_left_out(tmp_path: Path) -> None:
    """OptimizerV2's Ftrl takes `lr` and keeps 0.001: run on TF 2.4 and 2.13."""
    new, report = rewrite(tmp_path, f"{TF}o = tf.keras.optimizers.Ftrl(lr=0.1)\n", "keras")
    assert new.splitlines()[-1] == "o = tf.keras.optimizers.Ftrl()"
    assert "lr=0.1 had no effect there" in report.findings[0].message


def test_keras_of_tensorflow_keeps_its_name(tmp_path: Path) -> None:
    """`import keras` after `from tensorflow import keras` would give the program another module under that name."""
    code = (
        "from tensorflow import keras\nfrom tensorflow.python.keras.optimizer_v2.adam import Adam\no = Adam(lr=0.1)\n"
    )
    new, _ = rewrite(tmp_path, code, "keras")
    assert new == "from tensorflow import keras\no = keras.optimizers.Adam(learning_rate=0.1)\n"
