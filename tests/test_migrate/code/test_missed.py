"""Places that are easily missed: each gets a finding, rewritten if the rule is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.code.findings import BY_HAND, DIFFERS, REWRITTEN, SAME, UNSURE
from migrate.code.run import migrate_code

TF, KERAS, TF1 = "tensorflow==2.3", "keras==2.2.4", "tensorflow==1.15"
TOP = {
    TF: "import tensorflow as tf\nimport tensorflow_addons as tfa\no = tf.keras.optimizers.Adam(lr=0.1)\n",
    KERAS: "import keras\nfrom keras import backend as K, optimizers\nmodel = keras.models.Sequential()\n",
    TF1: "import tensorflow as tf\n",
}


def run(tmp_path: Path, code: str, source: str, to: str = "optim") -> tuple[list[str], list[tuple[str, str]]]:
    """The new lines after the first ones, and the verdict and message of each finding in them."""
    path = tmp_path / "program.py"
    path.write_text(TOP[source] + code)
    report = migrate_code([path], to=to, source=source, write=True)
    text = path.read_text()
    again = migrate_code([path], to=to, source=source, write=True)
    assert path.read_text() == text, "a second run changes something"
    assert again.files == 1
    first = TOP[source].count("\n")
    new = text.splitlines()[-code.count("\n") :]
    return new, [(f.verdict, f.message) for f in report.findings if f.line > first]


FOUND = [
    (
        TF,
        "from tensorflow.python.keras.optimizer_v2.optimizer_v2 import OptimizerV2\nclass A(OptimizerV2):\n    a = 1\n",
    ),
    (TF, "from keras.optimizers.optimizer_experimental.optimizer import Optimizer\nclass A(Optimizer):\n    a = 1\n"),
    (TF, "from tensorflow.python.training import optimizer\nclass A(optimizer.Optimizer):\n    a = 1\n"),
    (KERAS, "from keras_adamw import AdamW\np = AdamW(lr=1e-3, total_iterations=100)\n"),
    (KERAS, "from keras_radam import RAdam\np = RAdam(total_steps=10, min_lr=1e-5)\n"),
    (KERAS, "from adabelief_tf import AdaBeliefOptimizer\np = AdaBeliefOptimizer(learning_rate=1e-3)\n"),
    (KERAS, "p = getattr(keras.optimizers, name)(lr=0.1)\n"),
    (KERAS, "p = vars(optimizers)[name](lr=0.1)\n"),
    (KERAS, "p = optimizers.__dict__[name](lr=0.1)\n"),
    (KERAS, "self.make = keras.optimizers\n"),
    (KERAS, "p = eval('optimizers.' + name)(lr=0.1)\n"),
    (KERAS, "K.set_value(model.optimizer.decay, 0.1)\n"),
    (TF, "tf.keras.experimental.LinearCosineDecay(0.1, 1000)\n"),
    (TF, "print(o._decayed_lr('float32'))\n"),
    (TF, "print(o._hyper['learning_rate'])\n"),
    (TF, "print(o.get_slot_names())\n"),
    (TF, "print(o.variables())\n"),
    (TF, "g = o._compute_gradients(lambda: v * v, var_list=[v])\n"),
    (TF, "tfa.optimizers.CyclicalLearningRate(1e-4, 1e-2, step_size=100, scale_fn=f)\n"),
    (TF, "tfa.optimizers.TriangularCyclicalLearningRate(1e-4, 1e-2, 100)\n"),
    (TF1, "e = tf.estimator.DNNClassifier(hidden_units=[3], feature_columns=[], optimizer='Adagrad')\n"),
    (TF1, "e = tf.estimator.DNNLinearCombinedClassifier(dnn_optimizer='Adagrad')\n"),
    (TF1, "op = tf.contrib.layers.optimize_loss(loss, None, learning_rate=0.1, optimizer='Adam')\n"),
]


@pytest.mark.parametrize("to", ["optim", "keras"])
@pytest.mark.parametrize(("source", "code"), FOUND)
def test_it_is_left_to_a_person(tmp_path: Path, source: str, code: str, to: str) -> None:
    new, findings = run(tmp_path, code, source, to)
    assert new == code.splitlines()
    assert [verdict for verdict, _ in findings] == [BY_HAND]


UNKNOWN = [
    "from mine import RAdam\np = RAdam(lr=1)\n",
    "import swa_module\nSWA = swa_module.SWA\np = SWA()\n",
    "from keras.wrappers.scikit_learn import Regressor\nfrom b import f\nf(optimizer='rmsprop')\n",
]


@pytest.mark.parametrize("code", UNKNOWN)
def test_what_may_be_an_optimizer_is_asked_about(tmp_path: Path, code: str) -> None:
    new, findings = run(tmp_path, code, KERAS)
    assert new == code.splitlines()
    assert [verdict for verdict, _ in findings] == [UNSURE]


def test_what_is_the_programs_own_or_of_another_framework_is_not(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    for package in ("mine", ".mine", "torch.optim", "optax"):
        assert run(tmp_path, f"from {package} import RAdam\np = RAdam(lr=1)\n", KERAS)[1] == []


REWRITES = [
    (KERAS, "p = getattr(keras.optimizers, 'SGD')(lr=0.1)", "p = optim.for_keras(optim.SGD(learning_rate=0.1))"),
    (KERAS, "K.set_value(model.optimizer.momentum, 0.9)", "model.optimizer.momentum = 0.9"),
    (KERAS, "print(K.get_value(model.optimizer.momentum))", "print(float(model.optimizer.momentum))"),
    (TF, "o._set_hyper('learning_rate', x)", "o.learning_rate = x"),
    (TF, "o._set_hyper('beta_1', x)", "o.beta_1 = x"),
    (TF, "print(o._get_hyper('lr'))", "print(o.learning_rate)"),
    (TF, "print(o.beta_1.numpy())", "print(float(o.beta_1))"),
    (TF, "s = tf.keras.experimental.CosineDecay(0.1, 9)", "s = tf.keras.optimizers.schedules.CosineDecay(0.1, 9)"),
    (KERAS, "model.compile(loss='mse', optimizer='adam' if x else 'sgd')", None),
    (
        KERAS,
        "model.compile(loss='mse', optimizer=('adadelta' if x else 'sgd'))",
        "model.compile(loss='mse', optimizer=(optim.for_keras(optim.Adadelta(learning_rate=1.0)) if x else 'sgd'))",
    ),
    (
        KERAS,
        "model.compile(loss='mse', optimizer=dict(class_name='sgd', config=dict(lr=0.1)))",
        "model.compile(loss='mse', optimizer=optim.for_keras(optim.SGD(learning_rate=0.1)))",
    ),
    (
        KERAS,
        "model.compile(loss='mse', optimizer={'class_name': 'sgd', 'config': {'lr': 0.1}})",
        "model.compile(loss='mse', optimizer=optim.for_keras(optim.SGD(learning_rate=0.1)))",
    ),
]


@pytest.mark.parametrize(("source", "old", "new"), REWRITES)
def test_it_is_rewritten(tmp_path: Path, source: str, old: str, new: str | None) -> None:
    lines, findings = run(tmp_path, f"{old}\n", source)
    assert lines == [new or old]
    assert {verdict for verdict, _ in findings} <= {REWRITTEN, SAME}
    assert findings


@pytest.mark.parametrize("line", ["K.set_value(model.optimizer.beta_1, 0.5)", "model.optimizer.beta_1 = 0.5"])
def test_a_number_that_a_trace_keeps_is_left_with_keras_3(tmp_path: Path, line: str) -> None:
    """With optim, setting it between two calls of fit acts; with Keras 3 it does not."""
    assert run(tmp_path, f"{line}\n", KERAS, "keras") == ([line], [(BY_HAND, found_message(tmp_path, line))])
    assert run(tmp_path, f"{line}\n", KERAS, "tf-keras")[1][0][0] == SAME


def found_message(tmp_path: Path, line: str) -> str:
    message = run(tmp_path, f"{line}\n", KERAS, "keras")[1][0][1]
    assert "compile again" in message
    return message


DECAYS = [
    ("exponential_decay(0.1, gs, 9, 0.96, staircase=True)", "ExponentialDecay(0.1, 9, 0.96, staircase=True)"),
    ("polynomial_decay(learning_rate=a, global_step=gs, decay_steps=9)", None),
    ("piecewise_constant(gs, [100], [0.1, 0.01])", "PiecewiseConstantDecay([100], [0.1, 0.01])"),
    ("cosine_decay_restarts(0.1, gs, 9, alpha=0.1)", "CosineDecayRestarts(0.1, 9, alpha=0.1)"),
]


@pytest.mark.parametrize(("old", "new"), DECAYS)
@pytest.mark.parametrize("top", ["tf.train", "tf.compat.v1.train"])
def test_a_decay_of_the_global_step_has_its_schedule_named(tmp_path: Path, top: str, old: str, new: str | None) -> None:
    _, ((verdict, message),) = run(tmp_path, f"rate = {top}.{old}\n", TF1)
    assert verdict == BY_HAND
    assert (new or "PolynomialDecay(initial_learning_rate=a, decay_steps=9)") in message


def test_the_default_of_compile_is_rmsprop(tmp_path: Path) -> None:
    code = "m = tf.keras.Sequential()\nm.compile(loss='mse')\n"
    new, ((verdict, message),) = run(tmp_path, code, TF)
    assert new[1] == "m.compile(optimizer=optim.for_keras(optim.RMSprop(epsilon_inside=False)), loss='mse')"
    assert (verdict, message) == (REWRITTEN, "its default is RMSprop")
    assert run(tmp_path, code, TF, "keras")[1][0][0] == DIFFERS
    assert run(tmp_path, "model.compile(loss='mse')\n", KERAS)[1] == []  # an error there


def test_a_class_with_decoupled_decay_is_named(tmp_path: Path) -> None:
    code = "f = tfa.optimizers.extend_with_decoupled_weight_decay(tf.keras.optimizers.Adam)\n"
    code += "p = f(weight_decay=1e-3, lr=x)\n"
    new, findings = run(tmp_path, code, TF)
    assert new == code.splitlines()
    assert "optim.AdamW(learning_rate=x, weight_decay=1e-3, learning_rate_in_weight_decay=False)" in findings[-1][1]


@pytest.mark.parametrize("module", ["bert4keras.backend", ".backend"])
def test_a_keras_that_another_module_hands_on_is_followed(tmp_path: Path, module: str) -> None:
    path = tmp_path / "program.py"
    code = f"from {module} import keras, K\no = keras.optimizers.SGD(lr=0.1)\nK.set_value(o.lr, 1)\n"
    for source in (KERAS, TF):
        path.write_text(code)
        assert migrate_code([path], source=source, write=True).counts == {REWRITTEN: 2}
        assert path.read_text().splitlines()[2:] == [
            "o = optim.for_keras(optim.SGD(learning_rate=0.1))",
            "o.learning_rate = 1",
        ]


def test_a_wrapper_under_another_name_is_one(tmp_path: Path) -> None:
    new, findings = run(tmp_path, "SWA = tfa.optimizers.SWA\np = SWA(tf.keras.optimizers.SGD(lr=0.1))\n", TF)
    assert new[1] == "p = SWA(tf.keras.optimizers.SGD(lr=0.1))"
    assert {verdict for verdict, _ in findings} == {BY_HAND}


SAME_MODEL = [
    "m.compile(loss='mse', optimizer=p)\nm.compile(loss='mae', optimizer=p)\n",
    "for i in range(3):\n    m.compile(loss='mse', optimizer=p)\n",
]
SEVERAL = [
    "m.compile(loss='mse', optimizer=p)\nn.compile(loss='mae', optimizer=p)\n",
    "for m in models:\n    m.compile(loss='mse', optimizer=p)\n",
    "for i in range(3):\n    m = make()\n    m.compile(loss='mse', optimizer=p)\n",
    "for i in range(3):\n    models[i].compile(loss='mse', optimizer=p)\n",
]


@pytest.mark.parametrize("code", SAME_MODEL + SEVERAL)
def test_one_model_that_is_compiled_twice_is_not_several(tmp_path: Path, code: str) -> None:
    line = "p = keras.optimizers.Adam(lr=0.1)\n"
    _, findings = run(tmp_path, f"m = keras.models.Sequential()\n{line}{code}", KERAS)
    assert findings[0][0] == (REWRITTEN if code in SAME_MODEL else DIFFERS)


@pytest.mark.parametrize("kinds", ["keras.optimizers.Optimizer", "(str, keras.optimizers.Optimizer)"])
def test_a_question_of_class_is_no_class_that_is_handed_on(tmp_path: Path, kinds: str) -> None:
    code = f"print(isinstance(o, {kinds}))\n"
    assert run(tmp_path, code, KERAS)[1] == [(SAME, "")]
    _, ((verdict, message),) = run(tmp_path, code, KERAS, "tf-keras")
    assert verdict == BY_HAND
    assert message.startswith("test for the target's Optimizer")


def test_an_optimizer_that_is_handed_to_a_library_is_no_step_of_a_graph(tmp_path: Path) -> None:
    _, findings = run(tmp_path, "agent = Agent(optimizer=tf.compat.v1.train.AdamOptimizer(1e-3))\n", TF)
    assert "not visible here" in findings[0][1]
    _, findings = run(tmp_path, "p = tf.compat.v1.train.AdamOptimizer(1e-3)\np.minimize(loss)\n", TF)
    assert findings[0][1].startswith("a step of a graph")


EXECUTED = [
    # with momentum 0.9 the second step would be 0.95
    (KERAS, "o = keras.optimizers.SGD(lr=0.5, momentum=0.9)\nK.set_value(o.momentum, 0.0)\n", 0.0),
    (TF, "o = tf.keras.optimizers.SGD(0.5, momentum=0.9)\no._set_hyper('momentum', 0.0)\n", 0.0),
    (TF, "o = tf.keras.optimizers.SGD(0.5)\no._set_hyper('learning_rate', 0.25)\n", 0.5),
    # half a cosine of 2 steps: 0.5, then 0.25
    (TF, "o = tf.keras.optimizers.SGD(tf.keras.experimental.CosineDecay(0.5, 2))\n", 0.25),
]


@pytest.mark.parametrize(("source", "code", "value"), EXECUTED)
def test_what_is_written_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, code: str, value: float
) -> None:
    """Two steps with a gradient of 1, from 1. In this process, other tests may have imported tf_keras."""
    import keras
    import tensorflow as tf

    import optim

    for_keras = optim.for_keras
    monkeypatch.setattr(optim, "for_keras", lambda optimizer, *_: for_keras(optimizer, keras))
    run(tmp_path, code, source)
    program = (tmp_path / "program.py").read_text().replace("import tensorflow_addons as tfa\n", "")
    namespace: dict[str, object] = {}
    exec(compile(program, "program", "exec"), namespace)
    variable, optimizer = tf.Variable([1.0]), namespace["o"]
    for _ in range(2):
        optimizer.apply_gradients([(tf.constant([1.0]), variable)])  # type: ignore[attr-defined]
    assert variable.numpy().tolist() == pytest.approx([value], abs=1e-6)


def test_a_name_for_an_unknown_model_is_a_question_only_if_it_matters(tmp_path: Path) -> None:
    code = "from models import DeepFM\nm = DeepFM()\nm.compile({}, 'mse', metrics=['mse'])\n"
    path = tmp_path / "program.py"
    path.write_text(code.format("'adam'"))
    assert migrate_code([path], source=TF).counts == {SAME: 1}
    path.write_text(code.format("'adagrad'"))
    (finding,) = migrate_code([path], source=TF).findings
    assert finding.verdict == UNSURE
    assert finding.message == "is this a Keras model? then: optim.for_keras(optim.Adagrad(epsilon_inside=False))"
    assert migrate_code([path]).findings[0].message.endswith("give it an optimizer instead of a name")


def test_the_optimizer_of_the_compiled_model_is_an_object(tmp_path: Path) -> None:
    assert run(tmp_path, "model.compile(optimizer=model.optimizer, loss='mse')\n", KERAS)[1] == []


def test_a_question_for_a_wrapper_names_no_class_that_is_missing(tmp_path: Path) -> None:
    code = "print(isinstance(o, tf.keras.mixed_precision.LossScaleOptimizer))\n"
    _, ((verdict, message),) = run(tmp_path, code, TF)
    assert verdict == BY_HAND
    assert message.startswith("optim has no LossScaleOptimizer")
