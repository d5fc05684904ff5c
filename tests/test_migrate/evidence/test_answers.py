"""What a report leaves open is answered by one call, and what is refused says so plainly."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import migrate
import optim
from migrate import surfaces
from migrate.bytes import messages
from migrate.errors import AmbiguousError, MissingHintError, StrictError
from optim.errors import HyperparameterError, UnsupportedError
from tests.places import CORPUS, WILD

SGD = str(CORPUS / "tf24-sgd-momentum-ckpt-convbn" / "source" / "ckpt-1")
GIVEN = {"class_name": "SGD", "momentum": 0.9}
COUNTED = str(CORPUS / "keras231-adam-amsgrad-mlp" / "source" / "model.h5")
ADAM = CORPUS / "tf24-adam-convbn" / "source" / "model.h5"


@pytest.fixture(autouse=True)
def in_python(as_typed: None) -> Iterator[None]:
    """Advice as Python is told it."""
    with surfaces.speaking(surfaces.PYTHON):
        yield


def _called(call: str, **names: Any) -> Any:
    return eval(call, {"migrate": migrate, **names})


def test_one_call_answers_all_that_has_one_answer(tmp_path: Path) -> None:
    report = migrate.migrate_checkpoint(SGD, tmp_path / "out", overrides=GIVEN)
    assert report.questions.answers == {"clipnorm": None, "nesterov": False}
    assert len(report.reasons) == 2
    assert all("overrides={" in reason and "--set" not in reason for reason in report.reasons)
    answered = _called(report.confirm_command)
    assert (answered.fidelity, answered.written, answered.confirm_command) == ("exact", True, "")


def test_each_answer_to_a_question_is_a_call(tmp_path: Path) -> None:
    report = migrate.migrate_checkpoint(COUNTED, tmp_path / "out", dry_run=True)
    assert (report.confirm_command, len(report.choice_commands)) == ("", 2)
    done = [_called(call) for call in report.choice_commands]
    assert [(state.iterations, state.fidelity, state.reasons) for state in done] == [(5, "exact", ()), (6, "exact", ())]


def test_a_strict_refusal_ends_with_the_call(tmp_path: Path) -> None:
    with pytest.raises(StrictError) as refused:
        migrate.migrate_checkpoint(SGD, tmp_path / "out", strict=True, overrides=GIVEN)
    _, call = str(refused.value).splitlines()
    assert _called(call).fidelity == "exact"


def test_inspect_ends_with_the_call() -> None:
    report = migrate.inspect(SGD, overrides=GIVEN)
    assert _called(report.confirm_command).fidelity == "exact"


def test_restore_ends_with_the_call() -> None:
    import tensorflow as tf

    state = migrate.read(SGD, overrides=GIVEN)
    variables = {v.name: tf.Variable(np.zeros(v.shape, v.dtype), name=v.name) for v in state.variables if v.trainable}
    rate = state.hyperparameters["learning_rate"]

    def live() -> Any:
        return optim.SGD(rate, momentum=0.9, jit_compile=False)

    report = migrate.restore(SGD, live(), variables, overrides=GIVEN)
    answered = _called(report.confirm_command, optimizer=live(), variables=variables)
    assert report.fidelity == "approximate"
    assert not answered.questions.answers
    with pytest.raises(StrictError) as refused:
        migrate.restore(SGD, live(), variables, overrides=GIVEN, strict=True)
    assert str(refused.value).splitlines()[1].startswith("migrate.restore(")


def test_of_long_texts_options_stay_whole() -> None:
    option = f"--set 'untrained={json.dumps([f'layer_{i}/kernel' for i in range(90)])}'"
    message = f"{'because ' * 100}. To confirm: {option}, or {'not ' * 100}--set a=1"
    shown = messages.line(message)
    assert option in shown
    assert shown.endswith("--set a=1")
    longest = messages.LONGEST + len(option) + len("--set a=1") + len(messages.END) + 1
    assert longest - 2 * len("because ") <= len(shown) <= longest, "words are whole"


@pytest.mark.parametrize(
    ("text", "ways"),
    [
        ("--set a=1", [{"a": 1}]),
        ("--set a=1 --set 'b=[\"x y\"]'", [{"a": 1, "b": ["x y"]}]),
        ("--set a=1 or --set a=none", [{"a": 1}, {"a": None}]),
        ("--set a=N or --set a=VALUE", [None, None]),
        ('--set \'rate={"class_name": CLASS, "config": {...}}\'', [None]),
        ("--set 'rows=[]', if they are dense", [{"rows": []}]),
        ("--variables '[\"a/b\"]' or --variables FILE", [{"--variables": ["a/b"]}]),
        ('--set \'untrained=["N/VALUE", "a..."]\'', [{"untrained": ["N/VALUE", "a..."]}]),
        ("nothing", []),
    ],
)
def test_options_are_found_in_a_text(text: str, ways: list[Any]) -> None:
    assert surfaces.ways(text) == ways


@pytest.mark.parametrize(
    ("dest", "target"), [("new.keras", "keras"), ("new.h5", "tf-keras"), ("new.npz", "list"), ("new", "slots")]
)
def test_the_ending_says_the_target(dest: str, target: str, tmp_path: Path) -> None:
    assert migrate.migrate_checkpoint(ADAM, tmp_path / dest, dry_run=True).target == target
    for other in {"slots", "keras", "tf-keras", "list"} - {target}:
        for dry_run in (False, True):
            with pytest.raises(HyperparameterError, match="leave to out"):
                migrate.migrate_checkpoint(ADAM, tmp_path / dest, to=other, dry_run=dry_run)
    with pytest.raises(HyperparameterError, match="leave to out"):
        migrate.write(migrate.read(ADAM), tmp_path / "x.npz", to="slots")
    migrate.write(migrate.read(ADAM), tmp_path / dest)
    assert (tmp_path / dest).is_file() == (target != "slots")


def test_a_weights_file_with_lora_has_no_training_to_continue(tmp_path: Path) -> None:
    """Its slots are of the two factors, which Keras 3 does not save (keras 3.15, `layers/core/dense.py`)."""
    import keras

    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, name="d1"), keras.layers.Dense(3, name="d2")])
    model.layers[0].enable_lora(2)
    model.compile("adam", "mse")
    model.train_on_batch(np.ones((2, 6)), np.ones((2, 3)))
    model.save_weights(tmp_path / "w.weights.h5")
    with pytest.raises(MissingHintError, match=r"its name may be adam.*\nmigrate\.inspect\(") as asked:
        migrate.inspect(tmp_path / "w.weights.h5")
    with pytest.raises(
        UnsupportedError, match=r"d1/kernel: .*lora_rank.*no training to continue; to take the model's weights alone"
    ):
        _called(str(asked.value).splitlines()[1])


def test_a_list_of_a_custom_rule_is_cut_into_slots(tmp_path: Path) -> None:
    """Keras 2.3.1 names them in no way that says slot and variable."""
    source = tmp_path / "model.h5"
    shutil.copy(COUNTED, source)
    with h5py.File(source, "r+") as file:
        document = json.loads(file.attrs["training_config"])
        document["optimizer_config"]["class_name"] = "MyAdam"
        file.attrs["training_config"] = json.dumps(document)
    known, state = migrate.read(COUNTED), migrate.read(source, overrides={"own_rule": True})
    assert (state.algorithm, state.fidelity, state.iterations) == ("MyAdam", "approximate", 5)
    for slot, theirs in zip(("slot_1", "slot_2", "slot_3"), ("m", "v", "vhat"), strict=True):
        for name, array in known.slots[theirs].items():
            np.testing.assert_array_equal(state.slots[slot][name].load(), array.load())
    with h5py.File(source, "r+") as file:
        group = file["optimizer_weights"]
        names = list(group.attrs["weight_names"])
        group.attrs["weight_names"] = names[:-1]
        del group[names[-1]]
    with pytest.raises(UnsupportedError, match="Start a new optimizer from the weights"):
        migrate.read(source, overrides={"own_rule": True})


def test_a_file_that_names_no_class_offers_those_it_fits(tmp_path: Path) -> None:
    source = CORPUS / "extra-keras312-torch-adam-embed-keras" / "source" / "model.keras"
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(tmp_path / "model.keras", "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "config.json":
                data = json.dumps({k: v for k, v in json.loads(data).items() if k != "compile_config"}).encode()
            new.writestr(name, data)
    with pytest.raises(MissingHintError, match=r"its list fits .*Adam") as asked:
        migrate.inspect(tmp_path / "model.keras")
    assert any("'class_name': 'Adam'" in call for call in asked.value.commands)


def test_variables_alone_hold_no_optimizer_state(tmp_path: Path) -> None:
    import tensorflow as tf

    path = tf.train.Checkpoint(w=tf.Variable([1.0, 2.0])).save(str(tmp_path / "ckpt"))
    with pytest.raises(UnsupportedError, match="has no optimizer state, only variables"):
        migrate.read(path)


def test_a_saved_model_before_its_first_step_asks_for_one_thing(tmp_path: Path) -> None:
    """An optimizer of OptimizerV2 has no variables then, and its config says of which generation it is."""
    import tf_keras

    model = tf_keras.Sequential([tf_keras.Input((4,)), tf_keras.layers.Dense(3)])
    model.compile(tf_keras.optimizers.legacy.Adam(0.01), "mse")
    model.save(tmp_path / "saved", save_format="tf")
    with pytest.raises(MissingHintError, match="holds no optimizer state, only the config of its Adam") as asked:
        migrate.inspect(tmp_path / "saved")
    state = _called(str(asked.value).splitlines()[1])
    assert (state.generation, state.iterations, state.fidelity) == ("optimizer_v2", 0, "exact")


@pytest.mark.parametrize(
    ("source", "argument"),
    [
        (WILD / "tf215-d-own-in-model-keras" / "source" / "model.keras", "variables"),
        (CORPUS / "extra-tf24-adam-two-optimizers-ckpt" / "source" / "ckpt-1", "optimizer_path"),
    ],
    ids=("variables", "optimizers"),
)
def test_choices_among_variables_and_optimizers_are_calls(source: Path, argument: str) -> None:
    with pytest.raises(AmbiguousError) as asked:
        migrate.inspect(source, overrides={"class_name": "Adam"})
    assert len(asked.value.commands) == 2
    for call in asked.value.commands:
        assert f"{argument}=" in call
        assert _called(call).optimizer == "Adam"


def test_a_list_that_lacks_slots_asks_what_was_not_trained(tmp_path: Path) -> None:
    """And names the orders that can hold the state."""
    source = tmp_path / "model.h5"
    shutil.copy(CORPUS / "keras224-adadelta-mlp" / "source" / "model.h5", source)
    with h5py.File(source, "r+") as file:  # without the slots of the first layer, as where it was frozen at compile
        group = file["optimizer_weights"]
        names = list(group.attrs["weight_names"])
        group.attrs["weight_names"] = [*names[2:4], *names[6:]]
        for name in (*names[:2], *names[4:6]):
            del group[name]
    with pytest.raises(UnsupportedError, match=r"no slots, and a list of .*; order takes optimizer_v2 here") as refused:
        migrate.migrate_checkpoint(source, tmp_path / "list.npz")
    (call,) = refused.value.commands
    assert "'untrained': ['dense_1/kernel', 'dense_1/bias']" in call
    assert _called(call).target == "list"
