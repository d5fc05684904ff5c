"""Where a source says one thing twice and otherwise: refused, with both values and what settles it."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import migrate
from migrate.errors import ContradictionError, DamagedFileError, MissingHintError
from migrate.rules.comparison import same
from optim.errors import HyperparameterError
from tests.alterations.arrays import arrays, unzipped, zipped
from tests.alterations.hdf5 import training_config
from tests.places import CORPUS, WILD
from tests.test_migrate.confirm import typed


def _altered(case: str, folder: Path, change: Callable[[h5py.File], None]) -> Path:
    path = folder / "model.h5"
    shutil.copy(CORPUS / case / "source" / "model.h5", path)
    with h5py.File(path, "r+") as file:
        change(file)
    return path


def _names(file: h5py.File) -> list[str]:
    return [np.asarray(n).astype(str).item() for n in file["optimizer_weights"].attrs["weight_names"]]


def _two_swapped(file: h5py.File) -> None:
    """Two slots of one shape, which nothing but their names tells apart."""
    names = _names(file)
    shapes = [file["optimizer_weights"][name].shape for name in names]
    twins = [(i, j) for j in range(max(4, len(names) // 3)) for i in range(1, j) if shapes[i] == shapes[j] != ()]
    i, j = twins[0]
    names[i], names[j] = names[j], names[i]
    file["optimizer_weights"].attrs["weight_names"] = [n.encode() for n in names]


@pytest.mark.parametrize(
    "case",
    ["extra-k231-adam-confusing-h5", "extra-k122-adam-same-shapes-h5"],
)
def test_numbered_names_in_another_order_are_refused(case: str, tmp_path: Path) -> None:
    migrate.read(CORPUS / case / "source" / "model.h5")
    with pytest.raises(ContradictionError, match="names and order contradict each other"):
        migrate.read(_altered(case, tmp_path, _two_swapped))


def test_chunks_that_were_never_written_are_no_zeros(tmp_path: Path) -> None:
    def change(file: h5py.File) -> None:
        group = file["optimizer_weights"]
        name = "Adam/conv2d/kernel/v:0"
        values = group[name][()]
        del group[name]
        dataset = group.create_dataset(name, values.shape, values.dtype, chunks=(1, *values.shape[1:]))
        dataset[0] = values[0]

    with pytest.raises(DamagedFileError, match="3 chunks, of which 1 were written"):
        migrate.read(_altered("tf24-adam-convbn", tmp_path, change))


RATE = 0.05


@pytest.fixture(scope="module")
def ftrl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that tf_keras has trained with Ftrl."""
    import tf_keras

    optimizer = tf_keras.optimizers.legacy.Ftrl(RATE, l1_regularization_strength=1e-3, l2_regularization_strength=1e-3)
    return _ftrl_saved(optimizer, tmp_path_factory.mktemp("ftrl"))


def test_ftrls_variables_follow_from_its_slots(ftrl: Path, tmp_path: Path) -> None:
    assert not migrate.read(ftrl).hyperparameters.get("learning_rate_in_linear")
    path = tmp_path / "model.h5"
    shutil.copy(ftrl, path)
    with training_config(path) as document:
        document["optimizer_config"]["config"]["learning_rate"] *= 2
    with pytest.raises(ContradictionError, match="make another variable") as refused:
        migrate.read(path)
    command = str(refused.value)[str(refused.value).index("--set ") :]
    assert migrate.read(path, overrides=typed(command)).hyperparameters["learning_rate"] == pytest.approx(2 * RATE)


def test_ftrls_regularization_is_asked_for_where_nobody_says_it() -> None:
    """The default was called that of the config, and a contradiction to what was said."""
    source = CORPUS / "extra-keras36-ftrl-mlp-ckpt" / "source" / "ckpt-1"
    overrides: dict[str, Any] = {"class_name": "Ftrl"}
    with pytest.raises(MissingHintError, match="--set l1_regularization_strength=VALUE --set l2"):
        migrate.read(source, overrides=overrides)
    overrides |= {"l1_regularization_strength": 0.001, "l2_regularization_strength": 0.0, "beta": 0.0}
    assert migrate.read(source, overrides=overrides).algorithm == "Ftrl"


@pytest.mark.parametrize("other", ["Adam", "my>Adam", "Nadam"])
@pytest.mark.parametrize(
    "place", ["tf115-adamax-mlp/source/model.h5", "extra-tf115-adamax-table-saver/source/model.ckpt"]
)
@pytest.mark.quick(2)
def test_slots_of_a_known_class_are_not_those_of_another(place: str, other: str) -> None:
    """An Adamax that somebody called Adam was exact: m and u were taken for m and v."""
    source = CORPUS / place
    with pytest.raises(ContradictionError, match=f"specifies Adamax, and --set '?class_name={other}"):
        migrate.read(source, overrides={"class_name": other})
    assert migrate.read(source, overrides={"class_name": "Adamax"}).fidelity == migrate.read(source).fidelity
    state = migrate.read(source, overrides={"class_name": other, "own_rule": True, "learning_rate": 0.01})
    assert state.fidelity == "approximate"


def _ftrl_saved(optimizer: Any, folder: Path, *, fit: bool = False, constraint: Any = None) -> Path:
    import tf_keras

    tf_keras.utils.set_random_seed(0)
    first = tf_keras.layers.Dense(3, input_shape=(4,), kernel_constraint=constraint)
    model = tf_keras.Sequential([first, tf_keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    random = np.random.default_rng(0)
    x, y = random.normal(size=(40, 4)), random.normal(size=(40, 2))
    if fit:
        model.fit(x, y, batch_size=8, verbose=0)
    else:
        for i in range(5):
            model.train_on_batch(x[8 * i : 8 * i + 8], y[8 * i : 8 * i + 8])
    model.save(folder / "model.h5")
    return folder / "model.h5"


@pytest.mark.usefixtures("loaded_here")
def test_a_constraint_changes_what_follows_from_ftrls_slots(tmp_path: Path) -> None:
    import tf_keras

    bound = tf_keras.constraints.NonNeg()
    legacy = tf_keras.optimizers.legacy.Ftrl
    path = _ftrl_saved(legacy(RATE, l1_regularization_strength=1e-3), tmp_path, constraint=bound)
    assert migrate.migrate_checkpoint(path, tmp_path / "out.h5", to="tf-keras").fidelity == "exact"
    assert migrate.verify(path, tmp_path / "out.h5").ok
    weights = tf_keras.models.load_model(path)
    weights.save_weights(tmp_path / "ck")
    config = {"learning_rate": RATE, "l1_regularization_strength": 1e-3, "clipnorm": None}
    hint = {"class_name": "Ftrl", "config": config}
    report = migrate.migrate_checkpoint(tmp_path / "ck", tmp_path / "slots", optimizer_config=hint)
    assert any("or a constraint changed the variable" in reason for reason in report.reasons)
    wrong = {"l1_regularization_strength": 0.5}
    with pytest.raises(ContradictionError, match="make another variable"):
        migrate.read(tmp_path / "ck", optimizer_config=hint, overrides=wrong)


def test_ftrls_variables_follow_from_the_decayed_rate_of_the_last_step(tmp_path: Path) -> None:
    import tf_keras

    path = _ftrl_saved(tf_keras.optimizers.legacy.Ftrl(RATE, decay=0.1), tmp_path)
    assert migrate.read(path).hyperparameters["decay"] == pytest.approx(0.1)
    with training_config(path) as document:
        document["optimizer_config"]["config"]["decay"] = 0.2
    with pytest.raises(ContradictionError, match="make another variable"):
        migrate.read(path)


def test_variables_that_fit_made_their_averages_do_not_follow_from_ftrls_slots(tmp_path: Path) -> None:
    import tf_keras

    state = migrate.read(_ftrl_saved(tf_keras.optimizers.Ftrl(RATE, use_ema=True), tmp_path, fit=True))
    assert state.hyperparameters["use_ema"]


def test_ftrls_slots_show_whether_linear_holds_the_learning_rate(ftrl: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.h5"
    shutil.copy(ftrl, path)
    with h5py.File(path, "r+") as file:
        group = file["optimizer_weights"]
        for name in _names(file):
            if name.endswith("/linear:0"):
                group[name][...] = group[name][()] * np.float32(RATE)
    assert migrate.read(path).hyperparameters["learning_rate_in_linear"] is True


def test_a_config_of_another_class_is_refused(tmp_path: Path) -> None:
    """Adamax has as many slots as Adam, and in a `.keras` file they have no names."""
    path = _of_class("keras38-adam-convbn", "Adamax", tmp_path)
    with pytest.raises(ContradictionError, match="specifies Adamax and has amsgrad") as refused:
        migrate.read(path)
    command = str(refused.value)[str(refused.value).index("--set ") :]
    assert migrate.read(path, overrides=typed(command)).algorithm == "Adamax"


def test_a_keras_file_names_its_optimizer_and_not_the_variables(tmp_path: Path) -> None:
    path = _of_class("keras38-nadam-mlp", "Adam", tmp_path)
    with pytest.raises(ContradictionError, match="its optimizer is named nadam, as those of Nadam are, and the opt"):
        migrate.read(path)


def test_a_config_that_says_one_thing_twice_is_refused(tmp_path: Path) -> None:
    """Python takes the last value of a key, and other readers the first."""
    path = _altered("keras224-adam-eps-none-nested", tmp_path, _with_two_rates)
    with pytest.raises(DamagedFileError, match=r"lr is there twice, as 0\.\d+ and 0\.5; leave the wrong one out"):
        migrate.read(path)


def _with_two_rates(file: h5py.File) -> None:
    text = np.asarray(file.attrs["training_config"]).astype(str).item()
    file.attrs["training_config"] = re.sub(r'("lr": [^,}]+)', r'\1, "lr": 0.5', text, count=1)


@pytest.mark.parametrize("wrong", ["bias", ["[a"], {"value": ["bias"]}, [3]])
def test_patterns_that_are_none_are_refused(wrong: Any, tmp_path: Path) -> None:
    def change(file: h5py.File) -> None:
        document = json.loads(file.attrs["training_config"])
        document["optimizer_config"]["config"]["exclude_from_weight_decay"] = wrong
        file.attrs["training_config"] = json.dumps(document)

    path = _altered("extra-tfa19-lamb-decay-h5", tmp_path, change)
    with pytest.raises(HyperparameterError, match=r"weight_decay_exclude.*regular expression"):
        migrate.read(path)


def _of_class(case: str, name: str, folder: Path) -> Path:
    """A `.keras` file whose config says another class."""
    source, path = CORPUS / case / "source" / "model.keras", folder / "model.keras"
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(path, "w") as target:
        for member in archive.namelist():
            data = archive.read(member)
            if member == "config.json":
                document = json.loads(data)
                document["compile_config"]["optimizer"]["class_name"] = name
                data = json.dumps(document).encode()
            target.writestr(member, data)
    return path


@pytest.mark.parametrize("case", ["extra-keras315-adam-accumulation-keras", "extra-keras312-adam-accumulation-keras"])
def test_gathered_gradients_and_the_counter_say_alike_whether_a_step_was_just_taken(case: str, tmp_path: Path) -> None:
    """Two batches make a step of these, and five were taken: Keras empties its accumulators at every step."""
    shutil.copy(CORPUS / case / "source" / "model.keras", tmp_path)
    path, target = tmp_path / "model.keras", tmp_path / "out"
    assert migrate.migrate_checkpoint(path, target, dry_run=True).fidelity == "exact"
    with arrays(tmp_path, path.name) as contents:
        contents["/optimizer/vars/0"] = np.asarray(contents["/optimizer/vars/0"]) + 1
    report = migrate.migrate_checkpoint(path, target, dry_run=True)
    assert report.fidelity == "approximate"
    assert "iterations is 6, 0 batches after a step, and gradients are gathered" in report.reasons[0]
    confirmed = typed(report.reasons[0].partition("To confirm: ")[2])
    assert confirmed == {"iterations": 6}
    assert migrate.migrate_checkpoint(path, target, dry_run=True, overrides=confirmed).fidelity == "exact"


def test_numbers_that_no_float_holds_can_be_shown(tmp_path: Path) -> None:
    """`inspect` compared them with those in use, and failed where `checkpoint` did not."""
    path = tmp_path / "model.keras"
    members = unzipped(CORPUS / "extra-keras315-adam-twins-keras" / "source" / "model.keras")
    document = json.loads(members["config.json"])
    document["compile_config"]["optimizer"]["config"]["ema_overwrite_frequency"] = 10**400
    zipped(path, {**members, "config.json": json.dumps(document).encode()})
    assert not same(10**400, 0.5)
    assert migrate.inspect(path).fidelity == migrate.read(path).fidelity


def test_a_generation_that_the_file_denies_is_refused_and_taken_where_it_is_set() -> None:
    """Keras 2 clips each gradient by its own norm; this was read so, and called exact, for an .h5 of TF 2.9."""
    source = CORPUS / "tf29-adam-clipnorm-decay-nested" / "source" / "model.h5"
    for name in ("keras1", "keras2", "optimizer_v1", "keras3"):
        with pytest.raises(ContradictionError, match=rf"of generation optimizer_v2 .*--generation is {name}"):
            migrate.read(source, generation=name)
    assert migrate.read(source, generation="optimizer_v2").fidelity == "exact"
    state = migrate.read(source, overrides={"generation": "keras2", "iterations": 4})
    assert state.fidelity == "exact", state.reasons
    assert [o.value for o in state.origins if o.kind == "set"] == ["keras2", 4, 4]  # the counter and iterations


@pytest.mark.parametrize("case", ["extra-k224-sgd-same-saver", "extra-k122-sgd-nesterov-same-saver"])
def test_an_order_of_variables_that_a_graph_denies_is_refused(case: str) -> None:
    """Three of one shape: in another order the slots went to others, and that was called exact."""
    folder = CORPUS / case
    document = json.loads((folder / "case.json").read_text())
    config = {"class_name": document["optimizer"]["class"], "config": document["optimizer"]["config"]}
    named = [{"name": v["name"].removesuffix(":0"), "shape": v["shape"]} for v in document["trainable"]]
    source = folder / "source" / "ckpt"
    read = partial(migrate.read, source, optimizer_config=config)
    assert read(variables=named).matched == read().matched
    for other in (named[::-1], named[1:] + named[:1]):
        with pytest.raises(ContradictionError, match="got them in the other order"):
            read(variables=other)


@pytest.mark.parametrize("case", ["keras224-adam-eps-none-nested", "tf115-rmsprop-mlp"])
def test_a_limit_that_its_release_did_not_have_is_not_exact(case: str, tmp_path: Path) -> None:
    """The release's own next steps are 1e5 times what rounding explains from steps with that limit."""
    source = tmp_path / "model.h5"
    shutil.copy(CORPUS / case / "source" / "model.h5", source)
    assert migrate.read(source).fidelity == "exact"
    with training_config(source) as document:
        document["optimizer_config"]["config"]["global_clipnorm"] = 0.05
    assert "it is new in TF 2.4" in " ".join(migrate.read(source).reasons)
    for limit in (0.05, None):
        assert migrate.read(source, overrides={"global_clipnorm": limit}).fidelity == "exact"


def test_a_model_without_the_layers_of_the_weights_is_refused(tmp_path: Path) -> None:
    """Config and hyperparameters of another file: it was exact, 3e4 times what rounding explains off."""
    other = CORPUS / "extra-k224-adam-nested-flipped-h5" / "source" / "model.h5"

    def change(file: h5py.File) -> None:
        with h5py.File(other) as donor:
            for name in ("model_config", "training_config"):
                file.attrs[name] = donor.attrs[name]

    with pytest.raises(
        DamagedFileError, match="has weights of a layer 'conv2d', and its model has no layer of that name"
    ):
        migrate.read(_altered("tf24-adam-convbn", tmp_path, change))


@pytest.mark.parametrize(
    ("case", "other", "key"),
    [
        ("keras224-sgd-momentum-convbn", "tf215-legacy-sgd-mlp", "name"),
        ("extra-k231-adam-confusing-h5", "tf24-adam-convbn", "name"),
        ("tf20-sgd-nesterov-decay-nested", "keras224-sgd-momentum-convbn", "lr"),
    ],
)
def test_a_config_of_another_release_is_refused(case: str, other: str, key: str, tmp_path: Path) -> None:
    """Hyperparameters of another run: it was exact, up to 6e4 times what rounding explains off."""

    def change(file: h5py.File) -> None:
        with h5py.File(CORPUS / other / "source" / "model.h5") as donor:
            file.attrs["training_config"] = donor.attrs["training_config"]

    with pytest.raises(
        ContradictionError, match=f"config has {key}, which no .* saves: it is from another release"
    ) as e:
        migrate.read(_altered(case, tmp_path, change))
    overrides = typed(str(e.value).rpartition("override with ")[2])
    assert migrate.read(tmp_path / "model.h5", overrides=overrides)


@pytest.mark.parametrize("limit", ["clipnorm", "clipvalue", "global_clipnorm"])
@pytest.mark.parametrize("case", ["keras224-adam-eps-none-nested", "tf24-adam-convbn"])
def test_a_limit_that_a_whole_config_lacks_is_no_hint_to_believe(case: str, limit: str) -> None:
    """These configs have limits where they are set, so that a file without one denies it."""
    source = CORPUS / case / "source" / "model.h5"
    hint = {"class_name": "Adam", "config": {limit: 1.0}}
    with pytest.raises(ContradictionError, match=f"{limit} is 1.0 in --optimizer-config") as caught:
        migrate.read(source, optimizer_config=hint)
    decided = migrate.read(
        source, optimizer_config=hint, overrides=typed(str(caught.value).rpartition("override with ")[2])
    )
    assert 1.0 in (decided.hyperparameters.get(limit), decided.hyperparameters.get("global_clipnorm"))
    assert migrate.read(source, optimizer_config={**hint, "config": {limit: None}}).fidelity == "exact"


def test_averages_that_a_whole_config_lacks_are_no_hint_to_believe() -> None:
    source = CORPUS / "extra-tf24-adam-untrained-h5" / "source" / "model.h5"  # where no slot denies them
    with pytest.raises(ContradictionError, match=r"average_decay is 0.9 in --optimizer-config"):
        migrate.read(source, optimizer_config={"class_name": "Adam", "config": {"average_decay": 0.9}})


SCHEDULE = {
    "class_name": "ExponentialDecay",
    "config": {"initial_learning_rate": 0.1, "decay_steps": 3, "decay_rate": 0.5, "staircase": False},
}


def _adam(rate: Any) -> dict[str, Any]:
    config = {"learning_rate": rate, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "amsgrad": False}
    return {"class_name": "Adam", "config": {**config, "clipnorm": None, "clipvalue": None}}


@pytest.mark.parametrize("hints", [{"optimizer_config": _adam(0.004)}, {"overrides": {"class_name": "Adam"}}])
def test_a_constant_rate_is_doubted_where_the_checkpoint_keeps_none(hints: dict[str, Any]) -> None:
    """As one config for all checkpoints of a project would have it: it was exact."""
    source = WILD / "tf29-d-manager-schedule-subclass" / "source" / "training_checkpoints"
    betas = {"beta_1": 0.9, "beta_2": 0.98}
    state = migrate.read(source, **{**hints, "overrides": {**hints.get("overrides", {}), **betas}})
    [reason] = [text for text in state.reasons if "schedule" in text]
    assert "and no learning rate, so it was a schedule" in reason
    rate = {"learning_rate": state.hyperparameters["learning_rate"]}
    state_with_rate = migrate.read(source, **{**hints, "overrides": {**hints.get("overrides", {}), **betas, **rate}})
    assert not any("schedule" in text for text in state_with_rate.reasons)


def test_a_schedule_is_denied_by_a_rate_in_the_checkpoint() -> None:
    source = CORPUS / "extra-tf24-adam-twins-ckpt" / "source" / "ckpt-1"
    with pytest.raises(
        ContradictionError, match=r"learning_rate is the number 0\.00\d+ in the checkpoint, so it was not"
    ):
        migrate.read(source, optimizer_config=_adam(SCHEDULE))
    assert migrate.read(source, optimizer_config=_adam(SCHEDULE), overrides={"learning_rate": SCHEDULE})


def test_a_schedule_that_a_program_set_later_is_what_acts(tmp_path: Path) -> None:
    """The variable of the rate stays in the checkpoint: to leave the schedule out is right only where none was set."""
    import tensorflow as tf
    import tf_keras

    weight = tf.Variable([1.0, 2.0], name="w")
    optimizer = tf_keras.optimizers.legacy.SGD(0.5)
    step = [(tf.constant([1.0, 1.0]), weight)]
    optimizer.apply_gradients(step)
    optimizer.learning_rate = tf_keras.optimizers.schedules.ExponentialDecay(0.25, 1, 0.5)
    tf.train.Checkpoint(w=weight, optimizer=optimizer).write(str(tmp_path / "ck"))
    config = json.loads(json.dumps(optimizer.get_config() | {"clipnorm": None}, default=float))
    hint = {"class_name": "SGD", "config": config}
    with pytest.raises(ContradictionError, match="if a program set it later, give --set 'learning_rate="):
        migrate.read(tmp_path / "ck", optimizer_config=hint)
    before = weight.numpy()
    optimizer.apply_gradients(step)
    assert before - weight.numpy() == pytest.approx(0.125)
    overrides = {"learning_rate": config["learning_rate"]}
    assert migrate.read(tmp_path / "ck", optimizer_config=hint, overrides=overrides).fidelity == "exact"


@pytest.mark.parametrize(
    ("steps", "stateful", "fidelity"),
    [(1, False, "exact"), (2, False, "exact"), pytest.param(1, True, "approximate", marks=pytest.mark.breadth)],
)
def test_a_recurrent_kernel_without_gradients_is_no_lost_one(
    steps: int, stateful: bool, fidelity: str, tmp_path: Path
) -> None:
    """The state before the first step is zero, so a sequence of one step gives its recurrent kernel no gradient."""
    import tf_keras

    recurrent = tf_keras.layers.LSTM(3, stateful=stateful)
    model = tf_keras.Sequential([tf_keras.Input((steps, 2), batch_size=4), recurrent, tf_keras.layers.Dense(1)])
    model.compile("adam", "mse")
    for _ in range(3):
        model.train_on_batch(np.ones((4, steps, 2)), np.ones((4, 1)))
        model.reset_states()
    model.save(tmp_path / "model.h5")
    assert _fidelity(tmp_path) == fidelity
    with h5py.File(tmp_path / "model.h5", "r+") as file:
        names: list[str] = []
        file["optimizer_weights"].visit(names.append)
        slots = [name for name in names if name.endswith("recurrent_kernel:0")]
        assert len(slots) == 2
        assert all(np.any(file["optimizer_weights"][name][()]) == (steps > 1) for name in slots)
        for name in slots:
            file["optimizer_weights"][name][...] = 0
    assert _fidelity(tmp_path) == (fidelity if steps == 1 else "approximate")


def _fidelity(folder: Path) -> str:
    return migrate.migrate_checkpoint(folder / "model.h5", folder / "new.h5", to="tf-keras", dry_run=True).fidelity
