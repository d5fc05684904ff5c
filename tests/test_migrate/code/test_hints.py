"""The optimizer that a program makes, as a hint: what it does besides the call is never passed over."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import migrate
from migrate.code.hints import from_code
from migrate.errors import AmbiguousError, MissingHintError
from optim.errors import UnsupportedError
from tests.places import STORIES

STORY = STORIES / "keras22"
MAKES = "import keras\nfrom keras import backend as K\no = keras.optimizers.SGD(lr=0.1, momentum=0.9)\n"
WRAPPED = "import tensorflow as tf\nimport tensorflow_addons as tfa\no = tf.keras.optimizers.SGD(0.1)\n"


def hint_of(folder: Path, code: str, name: str = "", pins: str = "keras==2.2.4\ntensorflow==1.12") -> object:
    (folder / "train.py").write_text(code)
    (folder / "requirements.txt").write_text(f"{pins}\n")
    return from_code(str(folder / "train.py") + (f":{name}" if name else ""))


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ("o.lr = 0.2\n", "learning_rate"),
        ("m.compile(o, 'mse')\nm.optimizer.lr *= 0.1\n", "learning_rate"),
        ("K.set_value(o.lr, 0.2)\n", "learning_rate"),
        ("def halve(model):\n    K.set_value(model.optimizer.lr, 0.2)\n", "learning_rate"),
        ("def halve(opt):\n    opt.lr = 0.2\n", "learning_rate"),
        ("o.learning_rate.assign(0.2)\n", "learning_rate"),
        ("from keras.callbacks import ReduceLROnPlateau as R\nm.fit(x, callbacks=[R()])\n", "learning_rate"),
        ("m.fit(x, callbacks=[keras.callbacks.LearningRateScheduler(f)])\n", "learning_rate"),
        ("o.momentum = 0.5\n", "momentum"),
    ],
)
def test_what_is_set_later_is_left_out(tmp_path: Path, more: str, key: str) -> None:
    hint = hint_of(tmp_path, MAKES + more)
    assert key not in hint.optimizer_config["config"]  # type: ignore[attr-defined]
    assert f"{key} is left out, as {tmp_path}/train.py:" in str(hint)


@pytest.mark.parametrize(
    "code",
    [
        MAKES + "setattr(o, 'lr', 0.2)\n",
        MAKES + "o.clipnorm = 0.5\n",
        MAKES + "o.get_gradients = mine\n",
        MAKES + "z = keras.optimizers.SGD.from_config(c)\n",
        MAKES + "class Mine(keras.optimizers.SGD):\n    pass\n",
        MAKES + "import horovod.keras as hvd\no = hvd.DistributedOptimizer(o, backward_passes_per_step=4)\n",
        WRAPPED + "o = tfa.optimizers.Lookahead(o)\n",
        WRAPPED + "o = tf.keras.mixed_precision.LossScaleOptimizer(o)\n",
        WRAPPED + "grads = [tf.clip_by_norm(g, 2.0) for g in tape.gradient(loss, v)]\n",
    ],
)
def test_what_is_not_read_is_named_with_what_to_give(tmp_path: Path, code: str) -> None:
    pins = "tensorflow==2.4" if "tensorflow" in code else "keras==2.2.4\ntensorflow==1.12"
    with pytest.raises(UnsupportedError, match=r"train\.py:\d+ has .*, which is not read") as raised:
        hint_of(tmp_path, code, pins=pins)
    words = shlex.split(str(raised.value))
    hint = json.loads(words[words.index("--optimizer-config") + 1])
    assert hint["class_name"] == "SGD"
    assert hint["config"]["learning_rate"] == 0.1
    assert len(str(raised.value)) - len(str(tmp_path)) * 2 < 500


@pytest.mark.parametrize(
    "more",
    [
        "import horovod.keras as hvd\no = hvd.DistributedOptimizer(o)\n",
        "K.set_epsilon(1e-3)\n",
        "args = parse()\nargs.lr = 3\nself.lr = 3\noptions = parse()\noptions.lr = 3\n",
        "def f(o: keras.optimizers.SGD):\n    assert isinstance(o, keras.optimizers.SGD)\n",
        "p = tf.clip_by_value(p, 1e-7, 1.0)\n",
        "m.optimizer.set_weights(state)\nprint(o.lr)\n",
    ],
)
def test_what_changes_nothing_is_passed_over(tmp_path: Path, more: str) -> None:
    hint = hint_of(tmp_path, MAKES + more)
    config = {"learning_rate": 0.1, "momentum": 0.9, "nesterov": False}
    assert hint.optimizer_config == {"class_name": "SGD", "config": config}  # type: ignore[attr-defined]


@pytest.mark.parametrize("by_name", ["m.compile('rmsprop', 'mse')", "m.compile(loss='mse', optimizer='RMSprop')"])
def test_a_string_is_the_class_with_its_defaults(tmp_path: Path, by_name: str) -> None:
    hint = hint_of(tmp_path, f"import keras\n{by_name}\n")
    assert hint == hint_of(tmp_path, "import keras\nm.compile(keras.optimizers.RMSprop(), 'mse')\n")
    assert hint == hint_of(tmp_path, "import keras\nm.compile(keras.optimizers.get('rmsprop'), 'mse')\n")


def test_one_of_several_is_chosen_by_its_line(tmp_path: Path) -> None:
    code = MAKES + "m.compile('rmsprop', 'mse')\n"
    with pytest.raises(AmbiguousError) as raised:
        hint_of(tmp_path, code)
    places = re.findall(r"train\.py:(\d+):.*?\"class_name\": \"(\w+)\"", str(raised.value))
    assert places == [("3", "SGD"), ("4", "RMSprop")]
    for line, cls in places:
        assert hint_of(tmp_path, code, line).optimizer_config["class_name"] == cls  # type: ignore[attr-defined]
    with pytest.raises(MissingHintError, match="makes no optimizer at 5"):
        hint_of(tmp_path, code, "5")


def test_who_names_the_optimizer_means_no_other(tmp_path: Path) -> None:
    assert hint_of(tmp_path, MAKES + "m.compile('adam', 'mse')\n", "o").name == "o"  # type: ignore[attr-defined]


@pytest.mark.parametrize("rate", ["1j", "(-8) ** 0.5", "(9 ** 99) ** 99", "1e999"])
def test_no_rate_is_taken_for_what_is_no_number(tmp_path: Path, rate: str) -> None:
    with pytest.raises(UnsupportedError, match="is not a literal"):
        hint_of(tmp_path, f"import keras\no = keras.optimizers.SGD({rate})\n")


def test_a_rate_that_a_program_sets_is_asked_for(tmp_path: Path) -> None:
    code = (STORY / "train.py").read_text() + "keras.backend.set_value(model.optimizer.lr, 0.2)\n"
    hint = hint_of(tmp_path, code)
    hints = {
        "optimizer_config": hint.optimizer_config,  # type: ignore[attr-defined]
        "generation": hint.generation,  # type: ignore[attr-defined]
        "variables": json.loads((STORY / "variables.json").read_text()),
    }
    report = migrate.migrate_checkpoint(STORY / "optimizer.pkl", tmp_path / "slots", dry_run=True, **hints)
    assert report.fidelity == "approximate"
    assert any("--set learning_rate=" in reason for reason in report.reasons)
