"""A part of a source written to a target, loaded and verified: `--fresh`, `--grown`, `--weights-only`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

import migrate
import optim
from dtopt_cli.app import app
from migrate.conversion import shards
from optim import slot_layout
from optim.errors import CheckpointError, HyperparameterError, MismatchError, UnsupportedError
from tests.helpers import next_steps
from tests.places import CORPUS

CASE = CORPUS / "keras224-adadelta-mlp"
SOURCE = str(CASE / "source" / "model.h5")
KERNEL, BIAS = "dense_1/kernel", "dense_1/bias"
HEAD = ["dense_2/kernel", "dense_2/bias"]
NEW = [
    {"name": KERNEL, "shape": [5, 7]},
    {"name": BIAS, "shape": [7]},
    {"name": "head/kernel", "shape": [7, 9]},
    {"name": "norm/moving_mean", "shape": [9], "trainable": False},
]


def _oracle() -> dict[str, np.ndarray]:
    return dict(np.load(CASE / "oracle.npz"))


def _live(**others: np.ndarray) -> dict[str, Any]:
    import tensorflow as tf

    oracle = _oracle()
    arrays = {name: np.zeros_like(oracle[f"at_save/var/{i}"]) for i, name in enumerate([KERNEL, BIAS, *HEAD])}
    arrays |= {name.replace("__", "/"): array for name, array in others.items()}
    return {name: tf.Variable(array, name=name) for name, array in arrays.items()}


def _first_layer_goes_on(optimizer: Any, live: dict[str, Any]) -> None:
    kept, oracle = [live[KERNEL], live[BIAS]], _oracle()
    assert next_steps.error(next_steps.applying(optimizer, kept), kept, oracle, 6) <= 1


def test_fresh_variables_keep_the_live_values_in_whatever_shape(tmp_path: Path) -> None:
    report = migrate.migrate_checkpoint(SOURCE, tmp_path / "out", fresh=["dense_2/"])
    assert (report.fidelity, list(report.fresh), report.dropped) == ("approximate", HEAD, ())
    live = _live(dense_2__kernel=np.full((7, 9), 0.5, np.float32), dense_2__bias=np.full(9, 0.25, np.float32))
    optimizer = optim.load_checkpoint(tmp_path / "out", live)
    assert (live[HEAD[0]].numpy() == 0.5).all()
    assert not optimizer.get_slot(live[HEAD[0]], "accumulated_grad").numpy().any()
    with h5py.File(SOURCE) as file:
        stored = np.asarray(file["optimizer_weights/training/Adadelta/Variable:0"])
    np.testing.assert_array_equal(optimizer.get_slot(live[KERNEL], "accumulated_grad"), stored)
    _first_layer_goes_on(optimizer, live)
    verification = migrate.verify(SOURCE, tmp_path / "out", fresh=["dense_2/"])
    assert verification.ok, verification.differences
    assert verification.notes[0].startswith("dense_2/kernel, dense_2/bias: fresh")
    assert not migrate.verify(SOURCE, tmp_path / "out").ok
    assert not migrate.verify(SOURCE, tmp_path / "out", fresh=["dense_2/kernel"]).ok


def test_the_variables_of_a_new_model(tmp_path: Path) -> None:
    hints = {"fresh": ["head/", "norm/"], "variables": NEW}
    report = migrate.migrate_checkpoint(SOURCE, tmp_path / "out", **hints)
    assert (list(report.fresh), list(report.dropped)) == (["head/kernel", "norm/moving_mean"], HEAD)
    live = _live(head__kernel=np.ones((7, 9), np.float32), norm__moving_mean=np.ones(9, np.float32))
    live = {name: live[name] for name in (KERNEL, BIAS, "head/kernel", "norm/moving_mean")}
    optimizer = optim.load_checkpoint(tmp_path / "out", live)
    assert [t.name for t in optimizer._state.tracked] == [KERNEL, BIAS, "head/kernel"]
    _first_layer_goes_on(optimizer, live)
    assert migrate.verify(SOURCE, tmp_path / "out", **hints).ok
    with pytest.raises(MismatchError, match=r"has no head/kernel.*add --fresh 'head/'$"):
        migrate.migrate_checkpoint(SOURCE, tmp_path / "no", fresh=["norm/"], variables=NEW)
    wider = [{"name": KERNEL, "shape": [5, 8]}, *NEW[1:]]
    with pytest.raises(MismatchError, match=rf"\[5, 8\], in the source \[5, 7\]; add --grown '{KERNEL}\$'$"):
        migrate.migrate_checkpoint(SOURCE, tmp_path / "no", fresh=["head/", "norm/"], variables=wider)


def test_a_grown_table_in_a_file(tmp_path: Path) -> None:
    migrate.migrate_checkpoint(SOURCE, tmp_path / "out", grown=["dense_2/"])
    live = _live(dense_2__kernel=np.full((7, 5), 0.5, np.float32), dense_2__bias=np.full(5, 0.25, np.float32))
    optimizer = optim.load_checkpoint(tmp_path / "out", live)
    oracle = _oracle()
    np.testing.assert_array_equal(live[HEAD[0]][:, :3], oracle["at_save/var/2"])
    assert (live[HEAD[0]].numpy()[:, 3:] == 0.5).all()
    slot = optimizer.get_slot(live[HEAD[0]], "accumulated_grad").numpy()
    with h5py.File(SOURCE) as file:
        np.testing.assert_array_equal(slot[:, :3], file["optimizer_weights/training/Adadelta/Variable_2:0"])
    assert not slot[:, 3:].any()
    _first_layer_goes_on(optimizer, live)
    assert migrate.verify(SOURCE, tmp_path / "out", grown="dense_2/").ok
    with pytest.raises(CheckpointError, match="has shape"):  # smaller than what is stored
        optim.load_checkpoint(tmp_path / "out", _live(dense_2__kernel=np.ones((7, 2), np.float32)))


def test_marks_stay_with_the_checkpoint(tmp_path: Path) -> None:
    """It is a source like any other, and says itself what starts fresh."""
    migrate.migrate_checkpoint(SOURCE, tmp_path / "a", fresh=["dense_2/bias"], grown=["dense_2/kernel"])
    migrate.migrate_checkpoint(tmp_path / "a", tmp_path / "b")
    marks = {v.name: v.fresh for v in optim.describe_checkpoint(tmp_path / "b").variables}
    assert marks == {KERNEL: "", BIAS: "", HEAD[0]: slot_layout.ADDED, HEAD[1]: slot_layout.WHOLE}
    report = migrate.migrate_checkpoint(tmp_path / "b", tmp_path / "c", fresh=["dense_2/kernel"])
    assert list(report.fresh) == HEAD
    live = _live(dense_2__kernel=np.full((7, 5), 0.5, np.float32), dense_2__bias=np.full(5, 0.25, np.float32))
    optimizer = optim.Adadelta.from_config(migrate.read(tmp_path / "b").hyperparameters)
    report = migrate.restore(tmp_path / "b", optimizer, live, restore_variables=True)
    assert (report.fresh, report.grown) == ((HEAD[1],), (HEAD[0],))
    _first_layer_goes_on(optimizer, live)


@pytest.mark.parametrize("change", [{"fresh": "all"}, {"fresh": 1}, {"fresh": "whole"}])
def test_a_mark_that_is_none_is_damage(change: dict[str, Any]) -> None:
    entry = {"name": "a", "shape": [2], "dtype": "float32", "trainable": True, "stored": True, **change}
    with pytest.raises(TypeError):
        slot_layout.VariableEntry.from_json(entry)


@pytest.mark.breadth
@pytest.mark.parametrize(("to", "name"), [("keras", "out.keras"), ("tf-keras", "out.h5"), ("list", "out.npz")])
def test_other_targets_have_initial_slots(to: str, name: str, tmp_path: Path) -> None:
    migrate.migrate_checkpoint(SOURCE, tmp_path / name, to=to, fresh=["dense_2/"])
    verification = migrate.verify(SOURCE, tmp_path / name, fresh=["dense_2/"])
    assert verification.ok, verification.differences
    assert not migrate.verify(SOURCE, tmp_path / name).ok
    if to != "list":
        state = migrate.read(tmp_path / name)
        for slot in state.slots.values():
            assert [bool(np.any(array.load())) for array in slot.values()] == [True, True, False, False]
    for wrong in ({"grown": ["dense_2/"]}, {"fresh": ["head/", "norm/"], "variables": NEW}):
        with pytest.raises(UnsupportedError, match=r"migrate\.restore\("):
            migrate.migrate_checkpoint(SOURCE, tmp_path / f"other-{name}", to=to, **wrong)


@pytest.mark.breadth
@pytest.mark.parametrize(
    ("to", "name", "class_name"),
    [
        ("slots", "out", None),
        ("slots", "out", "Lion"),
        ("keras", "out.keras", None),
        ("keras", "out.keras", "Lion"),
        ("tf-keras", "out.h5", "Lion"),
    ],
)
def test_weights_alone_in_a_target(to: str, name: str, class_name: str | None, tmp_path: Path) -> None:
    hints: dict[str, Any] = {"weights_only": True, "overrides": {"class_name": class_name} if class_name else None}
    report = migrate.migrate_checkpoint(SOURCE, tmp_path / name, to=to, **hints)
    assert (report.iterations, report.optimizer) == (0, class_name or "Adadelta")
    assert report.reasons[0].startswith("weights only: the optimizer is reset on purpose")
    verification = migrate.verify(SOURCE, tmp_path / name, **hints)
    assert verification.ok, verification.differences
    if to == "slots":
        live = _live()
        optimizer = optim.load_checkpoint(tmp_path / name, live)
        assert type(optimizer).__name__ == (class_name or "Adadelta")
        for i, variable in enumerate(live.values()):
            np.testing.assert_array_equal(variable, _oracle()[f"at_save/var/{i}"])


def test_weights_alone_are_no_list(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="migrate to slots"):
        migrate.migrate_checkpoint(SOURCE, tmp_path / "a.npz", to="list", weights_only=True)


def test_weights_of_files_without_an_optimizer(tmp_path: Path) -> None:
    """By each library, in each of its formats, into a model with other names of layers."""
    import keras
    import tf_keras

    def model(library: Any, *names: str) -> Any:
        layers = library.layers
        network = library.Sequential([layers.Dense(5, name=names[0]), layers.BatchNormalization(name=names[1])])
        network.build((None, 4))
        for i, weight in enumerate(network.weights):
            weight.assign(np.random.default_rng(i).normal(size=weight.shape))
        return network

    old, new = model(tf_keras, "a", "b"), model(keras, "a", "b")
    old.save_weights(tmp_path / "old_weights.h5")
    old.save(tmp_path / "old.h5", include_optimizer=False)
    old.save(tmp_path / "old.keras")
    old.save_weights(tmp_path / "old.weights.h5")
    old.save_weights(tmp_path / "checkpoint" / "old")
    new.save(tmp_path / "new.keras")
    new.save_weights(tmp_path / "new.weights.h5")
    sources = ["old_weights.h5", "old.h5", "old.keras", "old.weights.h5", "checkpoint/old", "new.keras"]
    unordered = {  # layer -> its name in a file that does not tell the order of layers
        "old.weights.h5": {"c": "dense", "d": "batch_normalization"},
        "new.weights.h5": {"c": "sequential/a", "d": "sequential/b"},
    }
    for name in (*sources, "new.weights.h5"):
        live = model(keras, "c", "d")
        for weight in live.weights:
            weight.assign(np.zeros(weight.shape))
        onto: Any = live.weights
        if name in unordered:
            with pytest.raises(migrate.AmbiguousError, match="Give a mapping"):
                migrate.restore(tmp_path / name, keras.optimizers.Lion(), onto, weights_only=True)
            ends = (w.path.split("/")[-2:] for w in onto)
            onto = {f"{unordered[name][layer]}/{end}": w for (layer, end), w in zip(ends, onto, strict=True)}
        report = migrate.restore(tmp_path / name, keras.optimizers.Lion(), onto, weights_only=True)
        assert report.variables == 6
        for i, weight in enumerate(live.weights):
            want = np.random.default_rng(i).normal(size=weight.shape).astype(np.float32)
            np.testing.assert_array_equal(np.asarray(weight), want, err_msg=name)
        if not name.startswith("checkpoint"):
            with pytest.raises(UnsupportedError, match=r"holds no optimizer state.*--weights-only"):
                migrate.read(tmp_path / name)


def test_what_nothing_would_use_is_refused(tmp_path: Path) -> None:
    live, lion = _live(), {"class_name": "Lion", "config": {}}
    with pytest.raises(HyperparameterError, match="leave out optimizer_config"):
        migrate.restore(SOURCE, optim.Lion(), live, weights_only=True, optimizer_config=lion)
    migrate.migrate_checkpoint(SOURCE, tmp_path / "a")
    with pytest.raises(HyperparameterError, match="Remove --set"):
        migrate.migrate_checkpoint(tmp_path / "a", tmp_path / "b", weights_only=True, overrides={"rho": 0.5})
    migrate.migrate_checkpoint(tmp_path / "a", tmp_path / "b", weights_only=True, optimizer_config=lion)
    assert optim.describe_checkpoint(tmp_path / "b").algorithm == "Lion"


def test_weights_alone_beside_a_schedule_of_ones_own() -> None:
    live = _live()
    optimizer = optim.Adam(lambda: 0.1)
    migrate.restore(SOURCE, optimizer, live, weights_only=True)
    np.testing.assert_array_equal(live[BIAS], _oracle()["at_save/var/1"])


def test_fresh_ones_among_weights_alone(tmp_path: Path) -> None:
    hints: dict[str, Any] = {"weights_only": True, "fresh": ["dense_2/"]}
    for to, name in (("slots", "out"), ("keras", "out.keras")):
        report = migrate.migrate_checkpoint(SOURCE, tmp_path / name, to=to, **hints)
        assert (report.iterations, list(report.fresh)) == (0, HEAD)
        verification = migrate.verify(SOURCE, tmp_path / name, **hints)
        assert verification.ok, verification.differences


def test_the_statistics_of_a_dropped_layer_go_with_it(tmp_path: Path) -> None:
    """Those of a layer of which something is kept stay."""
    import tensorflow as tf

    names = ("a/gamma", "b/gamma")
    trained = [tf.Variable(tf.ones(2), name=name) for name in names]
    frozen = [tf.Variable(tf.ones(2), name=name.replace("gamma", "mean"), trainable=False) for name in names]
    optimizer = optim.Adam(0.1)
    optimizer.apply_gradients([(tf.ones(2), v) for v in trained])
    optim.save_checkpoint(tmp_path / "saved", optimizer, [*trained, *frozen])
    model = [{"name": "a/gamma", "shape": [2]}, {"name": "c/gamma", "shape": [3]}]
    report = migrate.migrate_checkpoint(tmp_path / "saved", tmp_path / "out", fresh="c/", variables=model)
    assert report.dropped == ("b/gamma", "b/mean")
    assert [v.name for v in optim.describe_checkpoint(tmp_path / "out").variables] == ["a/gamma", "c/gamma", "a/mean"]


def test_what_the_new_model_freezes_or_trains(tmp_path: Path) -> None:
    model = [{"name": KERNEL, "shape": [5, 7]}, {"name": BIAS, "shape": [7], "trainable": False}]
    model.append({"name": "head/kernel", "shape": [7, 2]})
    report = migrate.migrate_checkpoint(SOURCE, tmp_path / "a", fresh="head/", variables=model)
    assert any(reason.startswith(f"{BIAS}: trained in only one") for reason in report.reasons)
    live = {**_live(head__kernel=np.ones((7, 2), np.float32))}
    live = {name: live[name] for name in (KERNEL, BIAS, "head/kernel")}
    optimizer = optim.load_checkpoint(tmp_path / "a", live)
    assert [t.name for t in optimizer._state.tracked] == [KERNEL, "head/kernel"]
    np.testing.assert_array_equal(live[BIAS], _oracle()["at_save/var/1"])
    model[1]["trainable"] = True
    migrate.migrate_checkpoint(tmp_path / "a", tmp_path / "b", fresh="head/", variables=model)
    optimizer = optim.load_checkpoint(tmp_path / "b", live)
    assert [t.name for t in optimizer._state.tracked] == [KERNEL, BIAS, "head/kernel"]
    assert not optimizer.get_slot(live[BIAS], "accumulated_grad").numpy().any()


def _run(*words: str) -> Any:
    return CliRunner().invoke(app, ["migrate", *words])


def test_the_command_line(tmp_path: Path) -> None:
    into, new = str(tmp_path / "out"), tmp_path / "new.json"
    new.write_text(json.dumps(NEW))
    options = ["--variables", str(new), "--fresh", "head/", "--fresh", "norm/"]
    done = _run("checkpoint", SOURCE, into, *options)
    assert done.exit_code == 0, done.output
    for line in ("fresh: head/kernel, norm/moving_mean", "dropped: dense_2/kernel, dense_2/bias"):
        assert f"\n  {line}\n" in done.stdout
    advised = next(line for line in done.stdout.splitlines() if "migrate verify" in line).partition("dtopt migrate ")[2]
    assert _run(*advised.split()).exit_code == 0
    assert _run("checkpoint", SOURCE, into, *options, "--overwrite", "--strict").exit_code == 1
    refused = _run("checkpoint", SOURCE, into, "--fresh", "haed", "--overwrite")
    assert isinstance(refused.exception, HyperparameterError)
    assert "dense_1/bias, dense_1/kernel" in str(refused.exception)
    done = _run("checkpoint", SOURCE, into, "--weights-only", "--overwrite", "--json")
    assert json.loads(done.stdout)["iterations"] == 0


def test_a_batch_and_its_resumption(tmp_path: Path) -> None:
    for options, name in ((["--fresh", "dense_2/"], "a"), (["--grown", "dense_2/"], "b"), (["--weights-only"], "c")):
        into = str(tmp_path / name)
        assert "migrated" in _run("batch", SOURCE, "--into", into, *options).stdout
        assert "skipped" in _run("batch", SOURCE, "--into", into, "--resume", *options).stdout
        again = _run("batch", SOURCE, "--into", into, "--resume", "--overwrite")
        assert "skipped" not in again.stdout, again.stdout


def test_a_list_has_no_names_of_its_own(tmp_path: Path) -> None:
    hints = {"optimizer_config": {"class_name": "Adadelta", "config": {}}, "generation": "keras2"}
    with pytest.raises(migrate.MissingHintError, match="migrate all of it to slots first"):
        migrate.migrate_checkpoint(
            CASE.parent / "extra-k224-adadelta-decay-mlp-npz" / "source" / "weights.npz",
            tmp_path / "out",
            fresh=["head/"],
            variables=NEW,
            **hints,
        )


def _table(*parts: int) -> dict[str, np.ndarray]:
    """The rows of one table in parts of so many rows."""
    rows = np.arange(2.0 * sum(parts), dtype=np.float32).reshape(-1, 2)
    if len(parts) == 1:
        return {"t": rows}
    ends = np.cumsum(parts)
    return {f"t/part_{i}": rows[end - n : end] for i, (n, end) in enumerate(zip(parts, ends, strict=True))}


@pytest.mark.parametrize(
    ("parts", "wanted"), [((6, 4), (10,)), ((10,), (3, 3, 4)), ((5, 5), (4, 6)), ((3,) * 12, (18, 18))]
)
def test_parts_of_tables_are_joined_and_split(parts: tuple[int, ...], wanted: tuple[int, ...], tmp_path: Path) -> None:
    import tensorflow as tf

    source = optim.SGD(0.1, momentum=0.9, lazy_rows=["t"])
    live = [tf.Variable(rows, name=name) for name, rows in _table(*parts).items()]
    source.apply_gradients([(-10.0 * v, v) for v in live])
    optim.save_checkpoint(tmp_path / "saved", source, live)
    new = {name: tf.Variable(tf.zeros(rows.shape)) for name, rows in _table(*wanted).items()}
    report = migrate.restore(tmp_path / "saved", optim.SGD(0.1, 0.9), new, restore_variables=True)
    for name, rows in _table(*wanted).items():
        np.testing.assert_allclose(new[name], 2 * rows, rtol=1e-6)
    assert any("re-sharded" in reason for reason in report.reasons)
    hints = {"grown": ["^t"], "variables": [{"name": name, "shape": list(v.shape)} for name, v in new.items()]}
    report = migrate.migrate_checkpoint(tmp_path / "saved", tmp_path / "out", **hints)
    assert (report.grown, report.dropped) == ((), ())
    assert migrate.verify(tmp_path / "saved", tmp_path / "out", **hints).ok
    loaded = optim.load_checkpoint(tmp_path / "out", new)
    slots = np.concatenate([loaded.get_slot(v, "m").numpy() for v in new.values()])
    np.testing.assert_allclose(slots, np.concatenate([*_table(*wanted).values()]), rtol=1e-6)


def test_a_table_in_parts_that_has_grown(tmp_path: Path) -> None:
    import tensorflow as tf

    source, live = optim.SGD(0.1, momentum=0.9), [tf.Variable(_table(5)["t"], name="t")]
    source.apply_gradients([(-10.0 * v, v) for v in live])
    optim.save_checkpoint(tmp_path / "saved", source, live)
    new = {f"t/part_{i}": tf.Variable(tf.fill((3, 2), -1.0)) for i in range(3)}
    optimizer = optim.SGD(0.1, momentum=0.9)
    report = migrate.restore(tmp_path / "saved", optimizer, new, grown="^t/", restore_variables=True)
    assert report.grown == ("t/part_1", "t/part_2")
    values = np.concatenate([v.numpy() for v in new.values()])
    np.testing.assert_allclose(values[:5], 2 * _table(5)["t"], rtol=1e-6)
    assert (values[5:] == -1.0).all()
    assert not optimizer.get_slot(new["t/part_2"], "m").numpy().any()


def test_parts_of_factors_are_not_joined(tmp_path: Path) -> None:
    import tensorflow as tf

    source = optim.Adafactor(0.1)
    live = [tf.Variable(rows, name=name) for name, rows in _table(4, 4).items()]
    source.apply_gradients([(tf.ones_like(v), v) for v in live])
    optim.save_checkpoint(tmp_path / "saved", source, live)
    with pytest.raises(UnsupportedError, match="cannot be joined"):
        migrate.restore(tmp_path / "saved", optim.Adafactor(0.1), {"t": tf.Variable(tf.zeros((8, 2)))})


def test_patterns_choose_the_parts_that_they_chose_whole() -> None:
    values = {"lazy_rows": ["^table$"], "weight_decay_exclude": ["bias"]}
    verification = shards._following(values, ["table"], ["table/part_0", "table/part_1"])
    for name in ("table/part_0", "table/part_1"):
        assert any(re.search(pattern, name) for pattern in verification["lazy_rows"])
    assert verification["weight_decay_exclude"] == ["bias"]
