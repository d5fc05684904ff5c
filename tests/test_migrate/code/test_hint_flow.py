"""Programs whose optimizer is not what its call says: each value of a hint is one that the run had."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from migrate.code.hints import CodeHint, from_code, hints_in
from optim.errors import DtoptError, UnsupportedError
from tests.helpers.timing import calls

KERAS = "import keras\nfrom keras import backend as K\n"
MAKES = f"{KERAS}o = keras.optimizers.SGD(lr=0.1, momentum=0.9)\n"
OPTIMIZER_V2 = "import tensorflow as tf\no = tf.keras.optimizers.SGD(0.1, momentum=0.9)\n"
FITS = "import tensorflow as tf\nm.compile(tf.keras.optimizers.SGD(0.1, momentum=0.9))\n"

SET_LATER = [
    "other = o\nother.lr = 0.2\n",
    "a, *rest = [o, 3]\na.lr = 0.2\n",
    "o.lr, o.momentum = 0.2, 0.8\n",
    "for o.lr in rates:\n    m.fit(x)\n",
    "del o.lr\n",
    "o.__init__(lr=0.2)\n",
    "o.__dict__['lr'] = 0.2\n",
    "vars(o).update(lr=0.2)\n",
    "object.__setattr__(o, 'lr', 0.2)\n",
    "rate = o.lr\nK.set_value(rate, 0.2)\n",
    "K.set_value(getattr(m.optimizer, 'lr'), 0.2)\n",
    "K.batch_set_value([(o.lr, 0.2)])\n",
    "put = K.set_value\nput(o.lr, 0.2)\n",
    "o.lr.load(0.2, K.get_session())\n",
    "for each in [o]:\n    each.lr = 0.2\n",
    "held = {'a': o}\nfor key, each in held.items():\n    each.lr = 0.2\n",
    "def f(a, rate):\n    setattr(a, 'lr', rate)\nf(o, 0.2)\n",
    "f = lambda a: K.set_value(a.lr, 0.2)\nf(o)\n",
    "class A:\n def __init__(self, what):\n  self.what = what\n def f(self):\n  self.what.lr = 0.2\nA(o)\n",
    "def make():\n    return o\ncall = make\na = call()\na.lr = 0.2\n",
    "import contextlib\n@contextlib.contextmanager\ndef f():\n    yield o\nwith f() as a:\n    a.lr = 0.2\n",
    "from types import SimpleNamespace\na = SimpleNamespace(what=o)\na.what.lr = 0.2\n",
    "from copy import copy\na = copy(o)\na.lr = 0.2\n",
    "from utils import set_lr\nset_lr(m, 0.2)\n",
    "from theirs import OneCycle\nm.fit(x, callbacks=[OneCycle()])\n",
    "from theirs import Mine\nused = []\nused.append(Mine())\nm.fit(x, callbacks=used)\n",
    "from theirs import Base\nclass Mine(Base):\n    pass\nm.fit(x, **{'callbacks': [Mine()]})\n",
    "class Mine(keras.callbacks.LearningRateScheduler):\n    pass\nm.fit(x, callbacks=[Mine(f)])\n",
    "made = keras.callbacks.ReduceLROnPlateau\nm.fit(x, callbacks=[made()])\n",
]
SET_LATER_V2 = [
    "o._hyper['learning_rate'] = 0.2\n",
    "getattr(o, 'learning_rate').assign(0.2)\n",
    "rate = o._get_hyper('learning_rate')\nrate.assign(0.2)\n",
    "class A:\n    mine = tf.keras.optimizers.SGD(0.1, momentum=0.9)\na = A()\na.mine.learning_rate.assign(0.2)\n",
    "a = getattr(m, 'optimizer')\na.lr.assign(0.2)\n",
]
GRADIENTS = [
    "g = [each / 2 for each in tape.gradient(loss, v)]\no.apply_gradients(zip(g, v))\n",
    "g = tape.gradient(loss, v)\ng[0] = g[0] * 2\no.apply_gradients(zip(g, v))\n",
    "g = tape.gradient(loss, v)\ng += more\no.apply_gradients(zip(g, v))\n",
    "def fix(g):\n    return [2 * each for each in g]\no.apply_gradients(zip(fix(tape.gradient(loss, v)), v))\n",
    "from theirs import fix\no.apply_gradients(zip(fix(tape.gradient(loss, v)), v))\n",
    "o.apply_gradients([(g * 2, w) for g, w in zip(tape.gradient(loss, v), v)])\n",
    "import gradient_accumulator\nm = gradient_accumulator.GradientAccumulateModel(accum_steps=4)\nm.compile(o)\n",
]
CHANGED = "g = [2 * each for each in tape.gradient(loss, v)]\n"
APPLIED = [
    "ap = o.apply_gradients\nap(zip(g, v))\n",
    "getattr(o, 'apply_gradients')(zip(g, v))\n",
    "o.apply_gradients(name='x', grads_and_vars=zip(g, v))\n",
    "strategy.run(o.apply_gradients, args=(zip(g, v),))\n",
    "import functools\nf = functools.partial(o.apply_gradients, zip(g, v))\nf()\n",
    "def step(apply):\n    apply(zip(g, v))\nstep(o.apply_gradients)\n",
    "class A:\n    def f(self):\n        self.g = g\n        o.apply_gradients(zip(self.g, v))\n",
    "d = {'g': g}\no.apply_gradients(zip(d['g'], v))\n",
    "o.apply(g, v)\n",
]
BETWEEN_STEPS = [
    "for w in o.variables():\n    w.assign(0)\n",
    "tf.keras.backend.set_value(o.get_slot(v, 'momentum'), 0)\n",
    "o.iterations.assign(0)\n",
    "for w in m.trainable_variables:\n    w.assign_sub(0.1 * w)\n",
    "for w in m.trainable_variables:\n    w.assign(tf.clip_by_value(w, -1, 1))\n",
    "for w in m.trainable_weights:\n    tf.compat.v1.assign_sub(w, 0.1 * w)\n",
    "m.set_weights([0.9 * w for w in m.get_weights()])\n",
    "tf.keras.optimizers.Optimizer.get_gradients = mine\n",
    "tf.GradientTape.gradient = mine\n",
    "clip = tf.clip_by_global_norm\ng, n = clip(t.gradient(l, v), 1.0)\no.apply_gradients(zip(g, v))\n",
]
CALLBACK = (
    "import tensorflow as tf\nclass Mine(tf.keras.callbacks.Callback):\n    def on_epoch_end(self, e, logs=None):\n"
)
INSTEAD = [
    "if a:\n    o = build()\n",
    "o = 'adam'\n",
    "o = keras.optimizers.SGD(lr=rate)\n",
    "from theirs import wrapped\no = wrapped(o)\n",
    "if a:\n    from theirs import o\n",
    "def f():\n    o = build()\n",
]
OTHERS = [
    "m.compile(**{'optimizer': 'adam'})\n",
    "m.compile(build())\n",
    "import theirs\nm.compile(optimizer=theirs.make(), loss='mse')\n",
    "from theirs import optimizer\nm.compile(optimizer, 'mse')\n",
    "from theirs import Wrap\nz = Wrap(o)\nm.compile(z, 'mse')\n",
    "def f(z):\n    m.compile(optimizer=z, loss='mse')\nf(build())\n",
    "m.compile(args.optimizer, 'mse')\n",
    "m.optimizer = build()\n",
    "from theirs import Lookahead\nLookahead(k=5).inject(m)\n",
    "def train(opt='adam'):\n    m.compile(opt)\n",
    "z = keras.optimizers.SGD(lr=rate)\n",
    "m = keras.models.load_model('x.h5')\nm.fit(x)\n",
    "z = getattr(keras.optimizers, 'SGD')(lr=0.2)\n",
    "setattr(keras.optimizers, 'SGD', Mine)\n",
    "z = keras.optimizers.__dict__['SGD'](lr=0.2)\n",
    "z = eval('keras.optimizers.SGD(lr=0.2)')\n",
    "z = type(o).from_config(config)\n",
    "z = o.__class__(lr=0.2)\n",
    "z = o.from_config(config)\n",
    "globals()['o'] = build()\n",
    "import hydra\nz = hydra.utils.instantiate(config.optimizer)\n",
    "m.compile('sgd', 'mse')\nwith keras.utils.CustomObjectScope({'sgd': Mine}):\n    pass\n",
]
OTHER_CLASSES = [
    "try:\n    from theirs import SGD\nexcept ImportError:\n    from keras.optimizers import SGD\no = SGD(lr=0.1)\n",
    "from keras.optimizers import *\nfrom theirs import *\no = SGD(lr=0.1)\n",
    "import keras\no = keras.optimizers.SGD(lr=0.1) if a else build()\n",
    "import keras\nmade = {'a': keras.optimizers.SGD(lr=0.1), 'b': build()}\n",
    "import keras\ndef f(o=keras.optimizers.SGD(lr=0.1)):\n    m.compile(o)\n",
]
HARMLESS = [
    f"{MAKES}from utils import plot, data\nm.compile(o, 'mse')\nm.fit(*data())\nplot(m)\nprint(K.get_value(o.lr))\n",
    f"{MAKES}m.fit(x, callbacks=[keras.callbacks.EarlyStopping(), keras.callbacks.CSVLogger('x')])\n",
    f"{MAKES}import itertools\nfor b in itertools.cycle(batches):\n    m.train_on_batch(*b)\n",
    f"{MAKES}from functools import partial\nm.fit(x, callbacks=[partial(keras.callbacks.EarlyStopping, 'loss')()])\n",
    f"{MAKES}from wandb.keras import WandbCallback\nm.fit(x, callbacks=[WandbCallback()])\n",
    f"{MAKES}m.save('x.h5')\nz = keras.models.load_model('x.h5')\nz.predict(x)\n",
    f"{MAKES}def f(args):\n    args.lr = 3\n    args.update(momentum=3)\n",
    f"{MAKES}def build(optimizer):\n    m.compile(optimizer=optimizer, loss='mse')\nbuild(o)\n",
    f"{KERAS}o = None\nif train:\n    o = keras.optimizers.SGD(lr=0.1, momentum=0.9)\nm.compile(o, 'mse')\n",
    f"{OPTIMIZER_V2}def f():\n    return loss, t.gradient(l, v)\nloss, g = f()\no.apply_gradients(zip(g, v))\n",
    f"{MAKES}def f(n):\n    return f(n - 1) if n else o\nm.compile(f(3), 'mse')\n",
    f"{OPTIMIZER_V2}def f(n):\n    return f(n - 1) if n else t.gradient(l, v)\no.apply_gradients(zip(f(3), v))\n",
    f"{OPTIMIZER_V2}c = tf.train.Checkpoint(optimizer=o, model=m)\nfor w in m.weights:\n    w.assign(0)\n",
    f"{OPTIMIZER_V2}ap = o.apply_gradients\nap(zip(t.gradient(l, v), v))\n",
    f"{OPTIMIZER_V2}target.set_weights([0.9 * a + b for a, b in zip(target.get_weights(), m.get_weights())])\n",
    f"{OPTIMIZER_V2}for a, b in zip(target.weights, m.weights):\n    a.assign(0.9 * a + 0.1 * b)\n",
    f"{FITS}class M(tf.keras.Model):\n    def compile(self, optimizer):\n        self.optimizer = optimizer\n",
]


def hint_of(folder: Path, code: str, name: str = "") -> CodeHint:
    (folder / "train.py").write_text(code)
    (folder / "requirements.txt").write_text("tensorflow==2.4\n" if "tensorflow" in code else "keras==2.2.4\n")
    return from_code(str(folder / "train.py") + (f":{name}" if name else ""))


def refused_or_left_out(folder: Path, code: str, key: str) -> None:
    try:
        hint = hint_of(folder, code)
    except UnsupportedError as error:
        if "which is not read" not in str(error):
            raise
    else:
        assert key in hint.left_out
        assert key not in hint.optimizer_config["config"]


@pytest.mark.parametrize("code", [*(MAKES + line for line in SET_LATER), *(OPTIMIZER_V2 + e for e in SET_LATER_V2)])
def test_a_rate_that_is_set_by_another_way_is_not_taken(tmp_path: Path, code: str) -> None:
    refused_or_left_out(tmp_path, code, "learning_rate")


def test_an_epsilon_that_is_set_is_not_taken(tmp_path: Path) -> None:
    code = "import tensorflow as tf\no = tf.keras.optimizers.Adam(0.1)\no.epsilon = 1e-3\n"
    refused_or_left_out(tmp_path, code, "epsilon")


@pytest.mark.parametrize("more", GRADIENTS)
def test_gradients_that_are_changed_on_their_way_are_named(tmp_path: Path, more: str) -> None:
    with pytest.raises(DtoptError, match="which is not read"):
        hint_of(tmp_path, OPTIMIZER_V2 + more)


@pytest.mark.parametrize("more", [*(CHANGED + line for line in APPLIED), *BETWEEN_STEPS])
def test_what_is_done_besides_plain_steps_is_named(tmp_path: Path, more: str) -> None:
    with pytest.raises(UnsupportedError, match="which is not read"):
        hint_of(tmp_path, OPTIMIZER_V2 + more)


def test_gradients_that_are_fed_are_named_of_a_graph_too(tmp_path: Path) -> None:
    fed = "g = [tf.compat.v1.placeholder(tf.float32) for each in v]\no.apply_gradients(zip(g, v))\n"
    with pytest.raises(UnsupportedError, match="placeholder"):
        hint_of(tmp_path, f"import tensorflow as tf\no = tf.compat.v1.train.GradientDescentOptimizer(0.1)\n{fed}")


@pytest.mark.parametrize("line", ["from mine import Mine", "from mine import *", "from .mine import Mine"])
def test_files_beside_a_program_are_read_too(tmp_path: Path, line: str) -> None:
    code = f"{OPTIMIZER_V2}{line}\nm.fit(x, callbacks=[Mine()])\n"
    (tmp_path / "mine.py").write_text(f"{CALLBACK}        print(e)\n")
    assert not hint_of(tmp_path, code).left_out
    (tmp_path / "mine.py").write_text(f"{CALLBACK}        self.model.optimizer.lr = 0.5\n")
    assert list(hint_of(tmp_path, code).left_out.values()) == [f"{tmp_path / 'mine.py'}:4"]
    (tmp_path / "mine.py").write_text("from theirs import Base\nclass Mine(Base):\n    pass\n")
    assert "learning_rate" in hint_of(tmp_path, code).left_out


def test_files_that_import_each_other_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "__init__.py").write_text("from .b import f\n")
    (tmp_path / "a" / "b.py").write_text("import a, train\ndef f(m):\n    m.optimizer.momentum = 0.5\n")
    assert "momentum" in hint_of(tmp_path, f"{OPTIMIZER_V2}import a\na.f(m)\n").left_out
    (tmp_path / "a" / "b.py").write_text("print 'x'\n")
    with pytest.raises(UnsupportedError, match="Python 2"):
        hint_of(tmp_path, f"{OPTIMIZER_V2}import a\na.f(m)\n")


def test_a_callback_that_nobody_can_read_is_not_believed_for_its_name(tmp_path: Path) -> None:
    code = f"{OPTIMIZER_V2}from theirs import LogCallback\nm.fit(x, callbacks=[LogCallback()])\n"
    assert "learning_rate" in hint_of(tmp_path, code).left_out


@pytest.mark.parametrize("more", INSTEAD)
def test_another_value_of_the_name_is_no_less_likely(tmp_path: Path, more: str) -> None:
    with pytest.raises(DtoptError, match=r"which is not read|not a literal"):
        hint_of(tmp_path, MAKES + more, "o")


@pytest.mark.parametrize("code", [*(MAKES + line for line in OTHERS), *OTHER_CLASSES])
def test_another_optimizer_is_named(tmp_path: Path, code: str) -> None:
    with pytest.raises(DtoptError, match=r"which is not read|several optimizers"):
        hint_of(tmp_path, code)


@pytest.mark.parametrize("code", HARMLESS)
def test_what_leaves_an_optimizer_alone_is_passed_over(tmp_path: Path, code: str) -> None:
    hint = hint_of(tmp_path, code)
    assert not hint.left_out
    assert {hint.optimizer_config["config"][key] for key in ("learning_rate", "momentum")} == {0.1, 0.9}


def test_only_a_models_compile_takes_an_optimizer(tmp_path: Path) -> None:
    assert hint_of(tmp_path, f"{MAKES}import re\nre.compile('adam')\n").name == "o"


@pytest.mark.parametrize("path", ["train.py", "./train.py", ".//train.py"])
def test_a_line_is_found_however_the_path_is_written(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hint_of(tmp_path, MAKES)
    monkeypatch.chdir(tmp_path)
    assert from_code(f"{path}:3").name == "o"


def test_all_places_of_a_program_are_found_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time takes a print of the whole program: 60 s for one of 10,000 lines with 53 optimizers."""
    from migrate.code.tree import Tree

    asked = []
    places = Tree.places
    monkeypatch.setattr(Tree, "places", lambda tree, wanted: asked.append(1) or places(tree, wanted))
    with pytest.raises(DtoptError):
        hint_of(tmp_path, MAKES + "z = build(o)\nm.compile(z, 'mse')\nm.compile(make(), 'mse')\n" * 5)
    assert len(asked) == 1


def test_a_program_of_four_times_the_functions_takes_few_more_calls(tmp_path: Path) -> None:
    """28,000 lines took 141 s, as what each name is given was looked through for each call; they take 18."""
    counted = []
    for count in (2, 25, 100):  # the first imports what the others need
        functions = "".join(f"def part_{i}(g):\n    return other_{i}(g)\n" for i in range(count))
        used = "".join(f"g = part_{i}(g)\n" for i in range(count))
        script = tmp_path / f"{count}.py"
        script.write_text(f"{OPTIMIZER_V2}{functions}g = tape.gradient(loss, v)\n{used}o.apply_gradients(zip(g, v))\n")
        counted.append(calls(partial(hints_in, script, None)))
    assert counted[2] < 6 * counted[1]
