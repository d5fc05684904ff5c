"""What is around constructors: callbacks, wrappers, classes under other names, and one optimizer for several models."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.code.findings import BY_HAND, DIFFERS, REWRITTEN, SAME, UNSURE
from migrate.code.run import CodeReport, migrate_code

TOP = """import functools
import keras
import tensorflow as tf
import tensorflow_addons as tfa
from keras import backend as K
from keras.callbacks import LearningRateScheduler, ReduceLROnPlateau
from keras.optimizers import SGD, Adam, RMSprop
model = keras.models.Sequential()
"""
LINES = TOP.count("\n")


def rewrite(
    tmp_path: Path, code: str, to: str = "optim", source: str = "keras==2.2.4"
) -> tuple[list[str], dict[int, list[str]]]:
    """The lines after TOP as they are now, and the verdicts of each; a second run must change nothing."""
    path = tmp_path / "program.py"
    path.write_text(TOP + code)
    report = migrate_code([path], to=to, source=source, write=True)
    new = path.read_text()
    migrate_code([path], to=to, source=source, write=True)
    assert path.read_text() == new, "a second run changes something"
    return new.splitlines()[-len(code.splitlines()) :], verdicts(report)


def verdicts(report: CodeReport) -> dict[int, list[str]]:
    by_line: dict[int, list[str]] = {}
    for finding in report.findings:
        if finding.line > LINES:  # before are imports, which tf-keras changes, too
            by_line.setdefault(finding.line - LINES, []).append(finding.verdict)
    return by_line


def test_a_plateau_keeps_its_epsilon(tmp_path: Path) -> None:
    """Keras 3 takes `epsilon` and ignores it."""
    new, by_line = rewrite(tmp_path, "a = ReduceLROnPlateau(epsilon=0.1, patience=2)\nb = LearningRateScheduler(f)\n")
    assert new == ["a = ReduceLROnPlateau(min_delta=0.1, patience=2)", "b = LearningRateScheduler(f)"]
    assert by_line == {1: [REWRITTEN], 2: [SAME]}


@pytest.mark.parametrize(("to", "key"), [("optim", "learning_rate"), ("keras", "learning_rate"), ("tf-keras", "lr")])
def test_the_logged_rate_has_its_new_key(tmp_path: Path, to: str, key: str) -> None:
    code = "h = model.fit(callbacks=[LearningRateScheduler(f)])\nprint(h.history['lr'], logs.get('lr'))\n"
    new, _ = rewrite(tmp_path, code, to)
    assert new[1] == f"print(h.history['{key}'], logs.get('{key}'))"


def test_a_key_that_the_program_writes_itself_stays(tmp_path: Path) -> None:
    code = "cb = [LearningRateScheduler(f)]\nlogs['lr'] = 1\nprint(h.history['lr'])\n"
    assert rewrite(tmp_path, code)[0] == code.splitlines()


def test_a_name_for_the_rate_is_followed(tmp_path: Path) -> None:
    new, by_line = rewrite(tmp_path, "lr = model.optimizer.lr\nprint(K.get_value(lr))\nK.set_value(lr, 0.1)\n")
    assert new[1] == "print(float(model.optimizer.learning_rate))"
    assert by_line[3] == [BY_HAND]


LOSS_SCALES = [
    ("tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.Adam(lr=1e-3))", "loss_scale='dynamic'"),
    (
        "tf.keras.mixed_precision.experimental.LossScaleOptimizer(tf.keras.optimizers.Adam(lr=1e-3), 128)",
        "loss_scale=128",
    ),
    (
        "tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.Adam(lr=1e-3), dynamic_growth_steps=5)",
        "loss_scale='dynamic', loss_scale_growth_steps=5",
    ),
    (
        "tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.Adam(lr=1e-3), False, initial_scale=8)",
        "loss_scale=8",
    ),
]


@pytest.mark.parametrize(("old", "scale"), LOSS_SCALES)
def test_loss_scaling_goes_into_the_optimizer(tmp_path: Path, old: str, scale: str) -> None:
    new, by_line = rewrite(tmp_path, f"o = {old}\n", source="tensorflow==2.9")
    assert new == [f"o = optim.for_keras(optim.Adam(learning_rate=1e-3, {scale}), tf.keras)"]
    assert by_line == {1: [REWRITTEN]}


def test_keras_3_keeps_the_wrapper(tmp_path: Path) -> None:
    old = "o = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.Adam(lr=x), dynamic=True)\n"
    new, _ = rewrite(tmp_path, old, "keras", "tensorflow==2.9")
    assert new == ["o = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.Adam(learning_rate=x))"]


def test_a_graph_rewrite_says_that_float16_is_elsewhere(tmp_path: Path) -> None:
    old = "o = tf.train.experimental.enable_mixed_precision_graph_rewrite(tf.keras.optimizers.Adam(lr=x))\n"
    new, by_line = rewrite(tmp_path, old, source="tensorflow==2.3")
    assert new == ["o = optim.for_keras(optim.Adam(learning_rate=x, loss_scale='dynamic'), tf.keras)"]
    assert by_line == {1: [DIFFERS]}


@pytest.mark.parametrize(
    "wrapper", ["tfa.optimizers.MovingAverage", "tfa.optimizers.SWA", "tf.contrib.tpu.CrossShardOptimizer"]
)
@pytest.mark.parametrize("named", [True, False])
def test_other_wrappers_and_what_is_in_them_are_left(tmp_path: Path, wrapper: str, named: bool) -> None:
    code = f"o = Adam(lr=1)\np = {wrapper}(o)\n" if named else f"o = {wrapper}(Adam(lr=1))\n"
    new, by_line = rewrite(tmp_path, code)
    assert new == code.splitlines()
    assert {v for vs in by_line.values() for v in vs} == {BY_HAND}


def test_classes_in_a_table_are_followed(tmp_path: Path) -> None:
    code = "table = {'a': Adam, 'r': RMSprop}\no = table[name](lr=x, decay=1e-4)\n"
    new, by_line = rewrite(tmp_path, code)
    assert new == [
        "table = {'a': optim.Adam, 'r': functools.partial(optim.RMSprop, epsilon_inside=False)}",
        "o = optim.for_keras(table[name](learning_rate=x, decay=1e-4))",
    ]
    assert by_line == {1: [REWRITTEN, REWRITTEN], 2: [REWRITTEN]}
    assert "keras.optimizers" not in (tmp_path / "program.py").read_text().replace(
        "from keras.optimizers import SGD", ""
    )


STAYING = [
    "cls = Adam\nuse(cls)\n",  # what is done with it is not seen
    "cls = Adam\ncls = mine\no = cls(lr=1)\n",  # it may be something else
    "table = {'a': Adam, 's': SGD}\no = table[k](0.1, 0.9)\n",  # the second is beta_1 of one and momentum of the other
    "table = {'a': Adam, 'b': mine}\no = table[k](lr=1)\n",
    "make = functools.partial(SGD, lr=0.1)\no = make(momentum=0.9)\n",
    "print(isinstance(model.optimizer, SGD))\n",
]


@pytest.mark.parametrize("code", STAYING)
def test_classes_that_go_elsewhere_are_left(tmp_path: Path, code: str) -> None:
    new, by_line = rewrite(tmp_path, code)
    assert new == code.splitlines()
    assert BY_HAND in {v for vs in by_line.values() for v in vs}


def test_a_partial_that_is_called_with_nothing_is_a_function(tmp_path: Path) -> None:
    new, _ = rewrite(tmp_path, "make = functools.partial(SGD, 0.1, momentum=0.9)\no = make()\n")
    assert new[0] == "make = lambda: optim.for_keras(optim.SGD(0.1, momentum=0.9))"


SHARED = [
    "o = Adam(lr=1)\na.compile(loss='mse', optimizer=o)\nb.compile(loss='mse', optimizer=o)\n",
    "o = Adam(lr=1)\nfor m in models:\n    m.compile(loss='mse', optimizer=o)\n",
]


@pytest.mark.parametrize("code", SHARED)
@pytest.mark.parametrize("to", ["optim", "keras"])
def test_one_optimizer_for_several_models_is_said(tmp_path: Path, code: str, to: str) -> None:
    """Old Keras made slots for each; now the second model's variables are unknown."""
    assert rewrite(tmp_path, code, to)[1][1] == [DIFFERS]


@pytest.mark.parametrize(
    "code",
    [
        "def f():\n    o = Adam(lr=1)\n    a.compile(loss='mse', optimizer=o)\n"
        "def g():\n    o = Adam(lr=1)\n    b.compile(loss='mse', optimizer=o)\n",
        "for k in r:\n    o = Adam(lr=1)\n    a.compile(loss='mse', optimizer=o)\n",
        "o = Adam(lr=1)\na.compile(loss='mse', optimizer=o)\no = SGD(lr=1)\nb.compile(loss='mse', optimizer=o)\n",
    ],
)
def test_one_for_each_model_is_not(tmp_path: Path, code: str) -> None:
    assert {v for vs in rewrite(tmp_path, code)[1].values() for v in vs} == {REWRITTEN}


ADDONS = [
    ("tfa.optimizers.RectifiedAdam(lr=x, total_steps=9)", "optim.RectifiedAdam(learning_rate=x, total_steps=9)"),
    ("tfa.optimizers.Yogi(beta1=0.8)", "optim.Yogi(beta_1=0.8)"),
    ("tfa.optimizers.AdaBelief(x, decay=0.1)", "optim.AdaBelief(x, decay=0.1)"),
    ("tfa.optimizers.NovoGrad(weight_decay=0.1)", "optim.NovoGrad(weight_decay=0.1)"),
    ("tfa.optimizers.LAMB(weight_decay=0.1)", "optim.Lamb(weight_decay=0.1, epsilon=1e-06, decay_in_step=True)"),
]


@pytest.mark.parametrize(("old", "new"), ADDONS)
def test_addons_that_are_rules_of_optim(tmp_path: Path, old: str, new: str) -> None:
    assert rewrite(tmp_path, f"o = {old}\n", source="tensorflow==2.9")[0] == [f"o = optim.for_keras({new})"]
    assert rewrite(tmp_path, f"o = {old}\n", "keras", "tensorflow==2.9")[1][1] != [REWRITTEN]


@pytest.mark.parametrize("to", ["keras", "tf-keras"])
def test_what_a_target_cannot_say_is_no_rewriting(tmp_path: Path, to: str) -> None:
    """Lazy rows and exclusions are more than arguments that may be dropped."""
    code = "o = tfa.optimizers.LazyAdam(1e-3)\n"
    assert rewrite(tmp_path, code, to, "tensorflow==2.9")[1] == {1: [DIFFERS]}


def test_state_by_name_needs_an_optimizer_of_optim(tmp_path: Path) -> None:
    """`'sgd'` would stay Keras's own, which `optim.save_checkpoint` refuses."""
    code = "import numpy as np\nmodel.compile('sgd', 'mse')\nnp.save('o.npy', model.optimizer.get_weights())\n"
    new, _ = rewrite(tmp_path, code)
    assert new[1:] == [
        "model.compile(optim.for_keras(optim.SGD()), 'mse')",
        "optim.save_checkpoint('o.slots', model.optimizer, model.trainable_variables)",
    ]


def test_the_model_of_a_named_optimizer_is_found(tmp_path: Path) -> None:
    code = "import numpy as np\no = Adam(lr=1)\nm.compile(o, 'mse')\no.set_weights(np.load('o.npy'))\n"
    assert rewrite(tmp_path, code)[0][-1] == "migrate.restore('o.slots', o, m.trainable_variables)"


def test_optimizers_of_meshes_keep_their_mesh(tmp_path: Path) -> None:
    code = "o = tf.keras.dtensor.experimental.optimizers.Adam(0.1, mesh=mesh)\n"
    assert rewrite(tmp_path, code, source="tensorflow==2.9.3")[0] == ["o = optim.Adam(0.1, mesh=mesh)"]
    assert rewrite(tmp_path, code, "keras", source="tensorflow==2.9.3")[1] == {1: [BY_HAND]}


SCOPES = [
    ("def f(SGD):\n    return SGD(0.1)\n", 0),
    ("f = lambda SGD: SGD(0.1)\n", 0),
    ("o = [SGD(0.1) for SGD in mine]\n", 0),
    ("class A:\n    SGD = mine\n    def f(self):\n        return SGD(0.1)\n", 1),
    ("class A:\n    SGD = mine\n    o = SGD(0.1)\n", 0),
    ("def f(o=SGD(0.1)):\n    SGD = mine\n    return SGD(0.1)\n", 1),
    ("def f():\n    global SGD\n    SGD = mine\no = SGD(0.1)\n", 0),
    ("def f():\n    from keras.optimizers import SGD as Short\n    return lambda: Short(0.1)\no = Short(0.1)\n", 1),
]


@pytest.mark.parametrize("stars", [False, True])
@pytest.mark.parametrize(("code", "rewritten"), SCOPES)
def test_names_are_those_of_their_scope(tmp_path: Path, code: str, rewritten: int, stars: bool) -> None:
    path = tmp_path / "program.py"
    line = "from keras.optimizers import *\n" if stars else "from keras.optimizers import SGD\n"
    path.write_text(line + code)
    report = migrate_code([path], source="keras==2.2.4", write=True)
    assert report.counts.get(REWRITTEN, 0) == rewritten
    assert path.read_text().count("optim.SGD(") == rewritten


def test_lookahead_goes_into_the_optimizer(tmp_path: Path) -> None:
    new, by_line = rewrite(
        tmp_path, "o = tfa.optimizers.Lookahead(tf.keras.optimizers.Adam(lr=x), 3)\n", source="tensorflow==2.9"
    )
    option = "lookahead={'sync_period': 3, 'slow_step_size': 0.5}"
    assert new == [f"o = optim.for_keras(optim.Adam(learning_rate=x, {option}), tf.keras)"]
    assert by_line == {1: [REWRITTEN]}


@pytest.mark.parametrize("rate", ["x", "0.1, decay=0.2"])
def test_decay_without_the_rate_is_carried_whatever_the_rate(tmp_path: Path, rate: str) -> None:
    code = f"o = tfa.optimizers.SGDW(weight_decay=w, learning_rate={rate})\n"
    new, by_line = rewrite(tmp_path, code, source="tensorflow==2.9")
    assert "weight_decay=w" in new[0]
    assert "learning_rate_in_weight_decay=False" in new[0]
    assert by_line == {1: [REWRITTEN]}
    assert rewrite(tmp_path, code, "keras", "tensorflow==2.9")[1] == {1: [BY_HAND]}


@pytest.mark.parametrize(
    ("to", "source", "verdict"),
    [
        ("keras", "tensorflow==2.15.1", DIFFERS),
        ("optim", "tensorflow==2.15.1", REWRITTEN),
        ("tf-keras", "tensorflow==2.15.1", REWRITTEN),
        ("optim", "tensorflow==2.21.0", REWRITTEN),
        ("keras", "tensorflow==2.21.0", SAME),
    ],
)
def test_averages_begin_otherwise_in_keras_3(tmp_path: Path, to: str, source: str, verdict: str) -> None:
    code = "o = tf.keras.optimizers.SGD(0.1, use_ema=True)\n"
    assert rewrite(tmp_path, code, to, source)[1] == {1: [verdict]}


def test_a_list_pickled_into_a_file_opened_on_the_way_is_saved_by_name(tmp_path: Path) -> None:
    lines, _ = rewrite(
        tmp_path,
        "import pickle\n"
        'model.compile(loss="mse", optimizer=SGD(lr=0.05))\n'
        'pickle.dump(model.optimizer.get_weights(), open("optimizer.pkl", "wb"))\n'
        'model.optimizer.set_weights(pickle.load(open("optimizer.pkl", "rb")))\n',
    )
    assert 'optim.save_checkpoint("optimizer.slots", model.optimizer, model.trainable_variables)' in lines
    assert 'migrate.restore("optimizer.slots", model.optimizer, model.trainable_variables)' in lines


STEPS = [
    ("def f(opt):\n    opt.apply_gradients(zip(g, v))\n", "optim", SAME, ""),
    ("def f(opt):\n    opt.apply_gradients(*pairs)\n", "optim", UNSURE, "is opt an optimizer? then: give apply"),
    ("tf.gradients(a, b)\nopt.apply_gradients(pairs)\n", "optim", UNSURE, "then: compute the gradients in a tf.Grad"),
    ("o = Adam()\no.apply_gradients(zip(g, v), name='a')\n", "keras", BY_HAND, "give apply_gradients only the pairs"),
    ("o = Adam()\no.apply_gradients(zip(g, v), name='a')\n", "tf-keras", SAME, ""),
    ("o = Adam()\no.apply_gradients(zip(g, v), global_step=n)\n", "optim", BY_HAND, "count the steps separately"),
]


@pytest.mark.parametrize(("code", "to", "verdict", "message"), STEPS)
def test_a_step_of_an_unknown_optimizer_is_a_question_only_if_it_matters(
    tmp_path: Path, code: str, to: str, verdict: str, message: str
) -> None:
    path = tmp_path / "program.py"
    path.write_text(TOP + code)
    finding = migrate_code([path], to=to, source="keras==2.2.4").findings[-1]
    assert finding.verdict == verdict
    assert message in finding.message


def test_the_log_of_a_callback_of_the_program_is_its_own(tmp_path: Path) -> None:
    new, by_line = rewrite(tmp_path, "clr = CyclicLR()\nprint(clr.history['lr'])\n")
    assert new[1] == "print(clr.history['lr'])"
    assert by_line == {}
    assert rewrite(tmp_path, "h = train()\nprint(h.history['lr'])\n")[1] == {2: [UNSURE]}


def test_a_checkpoint_of_an_eager_optimizer_does_not_hide_its_steps(tmp_path: Path) -> None:
    code = "tf.enable_eager_execution()\no = tf.train.AdamOptimizer()\nc = tf.train.Checkpoint(optimizer=o)\n"
    new, _ = rewrite(tmp_path, code + "o.apply_gradients(zip(g, v), n)\n", source="tensorflow==1.15")
    assert new[1:] == [
        "o = optim.Adam(epsilon=1e-08)",
        "c = tf.train.Checkpoint(optimizer=o)",
        "o.apply_gradients(zip(g, v))",
    ]


ALIASES = [
    ("k = tf.keras", "k.optimizers.SGD(lr=0.1)"),
    ("k = tf.keras\no = k.optimizers", "o.SGD(lr=0.1)"),
    ("def f():\n    k = tf.keras\n    return k", "tf.keras.optimizers.SGD(lr=0.1)"),
    ("if old:\n    tf = tf.compat.v1\nk = tf.keras", "k.optimizers.SGD(lr=0.1)"),
]


@pytest.mark.parametrize(("names", "call"), ALIASES)
def test_a_module_is_followed_under_a_name_that_it_is_assigned_to(tmp_path: Path, names: str, call: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(f"import tensorflow as tf\n{names}\np = {call}\n")
    (finding,) = migrate_code([path], source="tensorflow==2.4", write=True).findings
    assert finding.verdict == REWRITTEN
    assert "optim.SGD(learning_rate=0.1)" in path.read_text()


@pytest.mark.parametrize("line", ["k = None", "k = other.keras", "k = tf.keras.Model"])
def test_a_name_of_something_else_is_not_followed(tmp_path: Path, line: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(f"import tensorflow as tf\nk = tf.keras\n{line}\np = k.optimizers.SGD(lr=0.1)\n")
    assert REWRITTEN not in migrate_code([path], source="tensorflow==2.4").counts


@pytest.mark.parametrize(
    ("code", "count"),
    [("tf.train.AdamOptimizer().minimize(a)\n", 1), ("o = tf.train.AdamOptimizer()\no.minimize(a)\n", 2)],
)
def test_a_step_in_one_expression_has_one_finding(tmp_path: Path, code: str, count: int) -> None:
    _, by_line = rewrite(tmp_path, code, source="tensorflow==1.12")
    assert [verdict for line in by_line.values() for verdict in line] == [BY_HAND] * count
