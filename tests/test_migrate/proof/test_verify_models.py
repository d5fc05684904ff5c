"""`verify` of models: Keras loads them in a process of its own, and what differs is said, whatever wrote it."""

from __future__ import annotations

import ast
import io
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import migrate
from migrate import generations
from migrate.proof import loaded, loading, model_target
from optim.errors import CheckpointError
from tests.alterations.arrays import unzipped, zipped
from tests.places import CORPUS, FEATURES, ROOT

ADAM = CORPUS / "tf24-adam-convbn" / "source" / "model.h5"
SUFFIX = {"keras": ".keras", "tf-keras": ".h5"}


def _target(folder: Path, to: str) -> Path:
    dest = folder / f"model{SUFFIX[to]}"
    migrate.migrate_checkpoint(ADAM, dest, to=to, overwrite=True)
    return dest


@pytest.mark.parametrize("to", ["keras", pytest.param("tf-keras", marks=pytest.mark.breadth)])
def test_keras_loads_the_target_and_takes_a_step(to: str, tmp_path: Path) -> None:
    result = migrate.verify(ADAM, _target(tmp_path, to))
    assert result.ok, result.differences
    assert result.parity is not None
    assert "loaded it, in a separate process, and made a step" in result.notes[-2]
    assert result.notes[-1] == "it answers as the source does in tf_keras"


@pytest.mark.usefixtures("loaded_here")
def test_a_model_that_computes_otherwise_is_found(tmp_path: Path) -> None:
    """With every array, option and number of the optimizer as in the source."""
    dest = _target(tmp_path, "tf-keras")
    with h5py.File(dest, "r+") as file:
        document = json.loads(file.attrs["model_config"])
        document["config"]["layers"][-1]["config"]["activation"] = "tanh"
        file.attrs["model_config"] = json.dumps(document)
    differences = migrate.verify(ADAM, dest).differences
    assert len(differences) == 1
    assert "outputs differ from the source's in tf_keras" in differences[0]


@pytest.mark.breadth
def test_a_name_may_be_another_variable_of_the_target(tmp_path: Path) -> None:
    """tf.keras 1.7 and tf_keras number layers otherwise, so that dense_1 is one layer there and another here."""
    source = FEATURES / "tf1.7.1-called-twice.h5"
    assert migrate.migrate_checkpoint(source, tmp_path / "model.h5").fidelity == "exact"
    assert migrate.verify(source, tmp_path / "model.h5").differences == ()


@pytest.mark.parametrize(
    ("pairs", "swaps"),
    [
        ({"a": "a", "b": "b"}, {}),
        ({"a": "b", "b": "a"}, {"a": "b", "b": "a"}),
        ({"a": "b", "b": "c", "c": "a", "d": "d"}, {"a": "b", "b": "c", "c": "a"}),
        ({"left/core": "core", "right/core": "core_1", "core": "core_2"}, {}),
    ],
)
def test_only_names_of_both_sides_are_swapped(pairs: dict[str, str], swaps: dict[str, str]) -> None:
    assert model_target._swapped(pairs) == swaps


@pytest.mark.breadth
def test_answers_that_cannot_be_compared_are_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that Keras cannot load, and one at which the process ends."""
    dest, state = _target(tmp_path, "keras"), migrate.read(ADAM)
    target = migrate.proof.model_target.compared(state, migrate.read(dest), ()).renamed
    nothing = tmp_path / "nothing.h5"
    nothing.write_bytes(b"")
    _, otherwise, notes = loaded.compared(state, str(nothing), target, str(dest), "keras")
    assert otherwise == []
    assert notes[-1] == "answers were not compared: today's tf_keras does not run the source's model (OSError)"
    monkeypatch.setattr(
        loaded, "_run", lambda *words: loading.main(*words[:3]) or "the process ended with -11, saying nothing"
    )
    _, otherwise, notes = loaded.compared(state, str(ADAM), target, str(dest), "keras")
    assert otherwise == []
    assert notes[-1] == "answers were not compared: the process ended with -11, saying nothing"


def test_a_full_disk_is_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where the target is right: nothing is said of it."""
    dest = _target(tmp_path, "keras")
    done = subprocess.CompletedProcess[str]([], loading.FULL, "", "[Errno 28] No space left on device\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(CheckpointError, match="No space left on device: no disk space for Keras"):
        migrate.verify(ADAM, dest)


def test_it_says_where_keras_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded, "find_spec", lambda name: None)
    result = migrate.verify(ADAM, _target(tmp_path, "keras"))
    assert result.ok
    assert result.notes[-1] == "not loaded: keras is not installed (pip install keras tensorflow)"


def _config(change: Any) -> Any:
    def changed(file: h5py.File) -> None:
        document = json.loads(file.attrs["training_config"])
        change(document["optimizer_config"]["config"])
        file.attrs["training_config"] = json.dumps(document)

    return changed


def _swap(a: str, b: str) -> Any:
    def changed(file: h5py.File) -> None:
        one, other = file[a][()], file[b][()]
        file[a][...], file[b][...] = other, one

    return changed


W = "model_weights/batch_normalization/batch_normalization/{}:0"
V = "optimizer_weights/Adam/{}/v:0"


def _layers(change: Any) -> Any:
    def changed(file: h5py.File) -> None:
        document = json.loads(file.attrs["model_config"])
        next(
            change(layer["config"])
            for layer in document["config"]["layers"]
            if layer["class_name"] == "BatchNormalization"
        )
        file.attrs["model_config"] = json.dumps(document)

    return changed


def _loss(file: h5py.File) -> None:
    file.attrs["training_config"] = json.dumps({**json.loads(file.attrs["training_config"]), "loss": "mae"})


def _last_bit(file: h5py.File) -> None:
    values = file["optimizer_weights/Adam/conv2d/kernel/m:0"][()]
    values.flat[0] = np.nextafter(values.flat[0], np.float32(9))
    file["optimizer_weights/Adam/conv2d/kernel/m:0"][...] = values


def _scaled(file: h5py.File) -> None:
    """Of a bias before a BatchNormalization, so small that no step shows it."""
    file["optimizer_weights/Adam/conv2d/bias/m:0"][...] *= np.float32(-1)


def _turned(file: h5py.File) -> None:
    """Keras takes slots by their places, whatever they are called."""
    names = file["optimizer_weights"].attrs["weight_names"]
    file["optimizer_weights"].attrs["weight_names"] = names[::-1]


CHANGES = {
    "one slot of many times a factor": _scaled,
    "the order of slots": _turned,
    "the release": lambda file: file.attrs.update(keras_version="2.4.0"),
    "what acts in training alone": _layers(lambda config: config.update(momentum=0.5)),
    "a clipping that does not act yet": _config(lambda config: config.update(clipnorm=1e6)),
    "a loss": _loss,
    "the last bit of a slot": _last_bit,
    "beta": _config(lambda config: config.update(beta_2=0.99)),
    "rate": _config(lambda config: config.update(learning_rate=config["learning_rate"] * 1.01)),
    "clipping": _config(lambda config: config.update(clipnorm=1.0)),
    "m and v": _swap("optimizer_weights/Adam/conv2d/kernel/m:0", V.format("conv2d/kernel")),
    "slots of two variables": _swap(V.format("conv2d/bias"), V.format("batch_normalization/gamma")),
    "weights": _swap(W.format("gamma"), W.format("beta")),
    "weights that are not trained": _swap(W.format("moving_mean"), W.format("moving_variance")),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_was_changed_is_found_without_keras(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded, "find_spec", lambda name: None)
    dest = _target(tmp_path, "tf-keras")
    with h5py.File(dest, "r+") as file:
        CHANGES[what](file)
    assert not migrate.verify(ADAM, dest).ok


def _without_doubts(dest: Path) -> None:
    if dest.suffix == ".h5":
        with h5py.File(dest, "r+") as file:
            del file.attrs["dtopt_doubts"]
        return
    members = unzipped(dest)
    metadata = json.loads(members["metadata.json"])
    del metadata["dtopt_doubts"]
    zipped(dest, {**members, "metadata.json": json.dumps(metadata).encode()})


@pytest.mark.parametrize("to", SUFFIX)
def test_why_it_is_not_exact_may_not_be_forgotten(to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded, "find_spec", lambda name: None)
    source, dest = CORPUS / "tf24-sgd-clipboth-mlp" / "source" / "model.h5", tmp_path / f"x{SUFFIX[to]}"
    assert migrate.migrate_checkpoint(source, dest, to=to).fidelity == "approximate"
    assert migrate.verify(source, dest).ok
    _without_doubts(dest)
    assert "does not contain why it is not exact" in migrate.verify(source, dest).differences[0]


def _number(dest: Path, place: str, change: Any) -> None:
    members = unzipped(dest)
    with h5py.File(io.BytesIO(members["model.weights.h5"]), "r+") as file:
        file[place][...] = change(file[place][()])
        file.flush()
        members["model.weights.h5"] = file.id.get_file_image()
    zipped(dest, members)


@pytest.mark.parametrize(
    ("case", "place", "change"),
    [
        ("extra-tf215-new-adam-lss-mixed-h5", "optimizer/vars/3", lambda scale: scale * 0),
        ("extra-tf215-new-adam-lss-mixed-h5", "optimizer/vars/2", lambda steps: steps + 1),
        ("tf24-adam-convbn", "optimizer/vars/1", lambda rate: np.nextafter(rate, np.float32(1))),
        ("keras224-nadam-mlp", "optimizer/vars/10", lambda product: product * np.float32(1.01)),
    ],
)
def test_a_number_of_the_whole_optimizer_is_compared(
    case: str, place: str, change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scale of 0 makes every gradient NaN, and no step of a formula shows it."""
    monkeypatch.setattr(loaded, "find_spec", lambda name: None)
    source, dest = CORPUS / case / "source" / "model.h5", tmp_path / "model.keras"
    migrate.migrate_checkpoint(source, dest, to="keras")
    assert migrate.verify(source, dest).ok
    _number(dest, place, change)
    assert any("from the source it should be" in difference for difference in migrate.verify(source, dest).differences)


@pytest.mark.parametrize(
    "source",
    ["extra-keras36-adam-lss-mixed-h5/source/model.h5", "extra-keras315-adam-lss-mixed-keras/source/model.keras"],
)
def test_the_scale_that_keras_3_has_come_to_is_carried(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both had an initial scale of 1024, which was doubled."""
    monkeypatch.setattr(loaded, "find_spec", lambda name: None)
    dest = tmp_path / "model.keras"
    migrate.migrate_checkpoint(CORPUS / source, dest, to="keras")
    assert migrate.read(dest).unmapped["optimizer/vars/3"].load() == 2048
    assert migrate.verify(CORPUS / source, dest).ok


def test_what_keras_does_otherwise_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this package believes of the file: Keras's own answers decide."""
    dest = _target(tmp_path, "keras")

    known = tmp_path / "known"
    known.mkdir()
    loading.main(str(known), str(dest), "keras")
    seen = json.loads((known / "seen.json").read_text())

    def answers(**other: Any) -> Any:
        def run(out: str, *_: str) -> str:
            shutil.copytree(known, out, dirs_exist_ok=True)
            Path(out, "seen.json").write_text(json.dumps({**seen, **other}))
            return "the process ended with 0, saying nothing"

        return run

    for other, message in (
        ({"iterations": 7}, "counts 7 steps"),
        ({"weights": []}, "no weight of the model is"),
        ({"kept": []}, "no slot of the optimizer is m of"),
        ({"problem": "ValueError: no such layer"}, "keras cannot use it: ValueError: no such layer"),
    ):
        monkeypatch.setattr(loaded, "_run", answers(**other))
        result = migrate.verify(ADAM, dest)
        assert message in result.differences[0]

    monkeypatch.setattr(loaded, "_run", answers())
    assert migrate.verify(ADAM, dest).ok
    with np.load(known / "after.npz") as file:
        np.savez(known / "after.npz", **{name: file[name] * np.float32(1.001) for name in file.files})
    assert "a step of keras differs" in migrate.verify(ADAM, dest).differences[0]
    shutil.rmtree(known)
    known.mkdir()
    monkeypatch.setattr(loaded, "_run", lambda *_: "the process ended with -9, saying nothing")
    assert "keras cannot use it: the process ended with -9" in migrate.verify(ADAM, dest).differences[0]


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"class_name": "Lambda", "config": {"name": "twice"}}, "a Lambda layer, which is code"),
        ({"module": "os", "class_name": "system", "config": {}}, "Python code (os.system)"),
        (
            {"class_name": "Dense", "config": {"activation": {"class_name": "function", "config": "exec"}}},
            "Python code (builtins.exec)",
        ),
    ],
)
def test_code_is_not_loaded(layer: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded, "_run", lambda *_: pytest.fail("a file with code was loaded"))
    state = migrate.read(ADAM)
    target = migrate.read(_target(tmp_path, "tf-keras"))
    assert target.source is not None
    assert target.source.model is not None
    layers: list[Any] = target.source.model.config["config"]["layers"]
    layers.append(layer)
    differences, otherwise, (note,) = loaded.compared(state, str(ADAM), target, "", "tf_keras")
    assert differences == otherwise == []
    assert note.startswith("not loaded: ")
    assert message in note


PROVEN = ("writers", "models", "rules", "lists", "live", "algorithms", "matching", "batches", "code")
"""Rooms whose work `proof` checks; it may lend nothing from them, but for these."""
LENT = {
    "list_target.py": {"migrate.lists"},  # the order of a list is what its generation's table says
    "one_step.py": {"migrate.writers.slots"},  # a sample of a large target, written to be loaded
    "verification.py": {"migrate.lists"},
}


def test_what_proves_shares_no_code_with_what_it_proves() -> None:
    for path in sorted((ROOT / "migrate" / "proof").glob("*.py")):
        modules = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules |= {f"{node.module}.{alias.name}" for alias in node.names}
        ours = {m for m in modules if m.startswith("migrate.") and m.split(".")[1] in PROVEN}
        lent = {m for m in ours if any(m.startswith(prefix) for prefix in LENT.get(path.name, ()))}
        assert ours == lent, f"{path.name} imports {sorted(ours - lent)}"
        if path.name in ("parity.py", "parity_addons.py", "parity_source.py"):
            known = {m for m in modules if m.startswith(("migrate", "optim")) and "proof.parity_" not in m}
            named = {
                f"migrate.generations.{name}"
                for name in vars(generations)
                if isinstance(getattr(generations, name), str)
            }
            assert known <= {"optim.errors.UnsupportedError", *named}  # names alone, and no fact about them
        if path.name == "loading.py":
            assert not any(m.startswith(("migrate", "optim")) for m in modules)
