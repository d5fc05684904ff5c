"""No altered source and no wrong or missing hint may be called exact and then continue otherwise than its release did.

Each alteration leaves evidence: the source still says in another place what was altered, or no longer says it at all.
What is exact all the same is replayed against the release's own next steps.
"""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import migrate
from optim.errors import DtoptError
from tests.test_migrate import test_resume as cases

CORPUS = cases.CORPUS
REPRESENTATIVE = (
    "keras224-adam-eps-none-nested",
    "keras231-adam-amsgrad-mlp",
    "tf115-train-rmsprop-centered-convbn",
    "tf115-train-momentum-nesterov-mlp",
    "tf20-rmsprop-centered-momentum-embed",
    "tf24-sgd-momentum-ckpt-convbn",
    "tf29-adam-clipnorm-decay-nested",
    "tf29-exp-adam-clipnorm-nested",
    "tf215-new-rmsprop-mlp",
    "keras38-adam-convbn",
)
EVERY = sorted(p.name for p in CORPUS.iterdir() if (p / "oracle.npz").is_file())
CLASSES = ("SGD", "RMSprop", "Adagrad", "Adadelta", "Adam", "AdamW", "Adamax", "Nadam", "Ftrl", "Lion")
TRAIN = {"SGD": "MomentumOptimizer", "Adam": "AdamOptimizer", "RMSprop": "RMSPropOptimizer"}
ROUNDING = 4.0
"""Times what `test_resume` allows: some of these releases were not deterministic."""
LIMITS = ("clipnorm", "clipvalue", "global_clipnorm")
Altered = tuple[str, Callable[[Path, dict[str, Any]], None]]


def _config(hints: dict[str, Any]) -> dict[str, Any]:
    return hints["optimizer_config"]["config"]


def _of_hints(hints: dict[str, Any]) -> Iterator[Altered]:
    """Keys left out; options flipped and classes renamed that the slots or the names deny."""
    if "optimizer_config" not in hints:
        return
    for key in _config(hints):
        if key in LIMITS and "use_ema" not in _config(hints):
            continue
        yield f"without {key}", lambda _, h, key=key: _config(h).pop(key)
    yield "only the class", lambda _, h: h["optimizer_config"].update(config={})
    for key in ("amsgrad", "centered", "momentum"):
        if key in _config(hints):
            yield f"{key} flipped", lambda _, h, key=key: _config(h).update({key: _flipped(_config(h)[key])})
    for name in CLASSES if "variables" not in hints else ():  # of its class a list says nothing
        said = TRAIN.get(name, name) if hints["optimizer_config"]["class_name"].endswith("Optimizer") else name
        if said != hints["optimizer_config"]["class_name"]:
            yield f"class {said}", lambda _, h, said=said: h["optimizer_config"].update(class_name=said)


def _flipped(value: Any) -> Any:
    return not value if isinstance(value, bool) else 0.0 if value else 0.9


def _of_files(source: Path) -> Iterator[Altered]:
    graph = next((p for kind in ("*.meta", "*/saved_model.pb") for p in source.glob(kind)), None)
    if graph is not None:
        place = graph.relative_to(source)
        yield "graph gone", lambda folder, _: (folder / place).unlink()
        for part in (2, 3, 10):
            yield f"a {part}th of the graph", lambda folder, _, part=part: _shorten(folder / place, part)
    if (source / "model.keras").is_file():
        yield from _of_zips(source / "model.keras")
    h5 = source / "model.h5"
    if not h5.is_file():
        return
    with h5py.File(h5) as file:
        training = json.loads(file.attrs["training_config"])["optimizer_config"]
        names = [str(np.asarray(n).astype(str)) for n in file["optimizer_weights"].attrs.get("weight_names", ())]
    for key in training["config"]:
        if key in LIMITS and training["config"].get("is_legacy_optimizer") is not False:
            continue  # a config of before 2.11 says so that there is none
        yield f"config without {key}", lambda folder, _, key=key: _training(folder, lambda o: o["config"].pop(key))
    for key in ("amsgrad", "centered"):
        if key in training["config"]:
            yield (
                f"config with another {key}",
                lambda folder, _, key=key: _training(folder, lambda o: o["config"].update({key: not o["config"][key]})),
            )
    for name in CLASSES if any("/" in name for name in names) else ():
        if name != training["class_name"].rpartition(">")[2]:
            yield (
                f"config of {name}",
                lambda folder, _, name=name: _training(folder, lambda o: o.update(class_name=name)),
            )
    for package in ("Mine", "Addons"):
        yield (
            f"class of {package}",
            lambda folder, _, package=package: _training(
                folder, lambda o: o.update(class_name=f"{package}>{o['class_name'].rpartition('>')[2]}")
            ),
        )
    if not names:
        return
    for start, what in ((len(names) // 2, "the first half of the slots"), (len(names) - 1, "one slot less")):
        yield what, lambda folder, _, start=start: _weights(folder, names[:start])
    yield "without the step counter", lambda folder, _: _weights(folder, names[1:])
    yield "slots of float64", lambda folder, _: _widen(folder, names)
    yield "NaN in a slot", lambda folder, _: _spoil(folder, names[-1], np.nan)
    for attribute in ("keras_version", "backend"):
        yield f"without {attribute}", lambda folder, _, attribute=attribute: _drop(folder, attribute)


def _of_zips(source: Path) -> Iterator[Altered]:
    """A `.keras` file: config, metadata, and the optimizer's own list in the HDF5 file inside."""
    with zipfile.ZipFile(source) as archive:
        optimizer = json.loads(archive.read("config.json"))["compile_config"]["optimizer"]
        inside = json.loads(archive.read("metadata.json"))
        with h5py.File(io.BytesIO(archive.read(WEIGHTS))) as file:
            listed = "optimizer" in file
    config = optimizer["config"]
    for key in config:
        yield f"config without {key}", _zip("config.json", lambda d, key=key: _optimizer(d)["config"].pop(key))
    for key in ("amsgrad", "centered", "use_ema", "nesterov"):
        if key in config:
            flip = lambda d, key=key: _optimizer(d)["config"].update({key: not config[key]})  # noqa: E731
            yield f"config with another {key}", _zip("config.json", flip)
    for name in CLASSES:
        if name != optimizer["class_name"]:
            yield (
                f"config of {name}",
                _zip("config.json", lambda d, name=name: _optimizer(d).update(class_name=name)),
            )
    for other in ({"registered_name": "Mine>Adam"}, {"module": "mine.optimizers"}, {"module": None}):
        yield f"class with {other}", _zip("config.json", lambda d, other=other: _optimizer(d).update(other))
    for key in inside:
        yield f"metadata without {key}", _zip("metadata.json", lambda d, key=key: d.pop(key))
    for version in ("2.13.1", "3.0.5", "3.3.3", "3.15.0", "9.9"):
        yield (
            f"metadata of {version}",
            _zip("metadata.json", lambda d, version=version: d.update(keras_version=version)),
        )
    for what in ("first", "second", "last") if listed else ():
        yield f"without the {what} of the list", _zip(WEIGHTS, lambda file, what=what: _without(file, what))
    if not listed:
        return
    yield "without the list", _zip(WEIGHTS, lambda file: file.pop("optimizer"))
    yield "NaN in a slot", _zip(WEIGHTS, lambda file: _last(file).__setitem__(..., np.nan))


WEIGHTS = "model.weights.h5"


def _optimizer(document: dict[str, Any]) -> Any:
    return document["compile_config"]["optimizer"]


def _vars(file: h5py.File) -> h5py.Group:
    group = file["optimizer"]
    return group["vars"] if len(group.get("vars", ())) else group["inner_optimizer/vars"]


def _last(file: h5py.File) -> h5py.Dataset:
    group = _vars(file)
    return group[max(group, key=int)]


def _without(file: h5py.File, what: str) -> None:
    group = _vars(file)
    names = sorted(group, key=int)
    gone = {"first": 0, "second": 1, "last": len(names) - 1}[what]
    del group[names[gone]]
    for name in names[gone + 1 :]:
        group.move(name, str(int(name) - 1))


def _zip(member: str, change: Callable[[Any], Any]) -> Callable[[Path, dict[str, Any]], None]:
    """Change one member of the archive, JSON or HDF5."""

    def alter(folder: Path, _: dict[str, Any]) -> None:
        path = folder / "model.keras"
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        if member == WEIGHTS:
            with h5py.File(io.BytesIO(members[member]), "r+") as file:
                change(file)
                file.flush()
                members[member] = file.id.get_file_image()
        else:
            document = json.loads(members[member])
            change(document)
            members[member] = json.dumps(document).encode()
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)

    return alter


def _shorten(path: Path, part: int) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // part])


def _training(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    with h5py.File(folder / "model.h5", "r+") as file:
        document = json.loads(file.attrs["training_config"])
        change(document["optimizer_config"])
        file.attrs["training_config"] = json.dumps(document)


def _weights(folder: Path, names: list[str]) -> None:
    with h5py.File(folder / "model.h5", "r+") as file:
        file["optimizer_weights"].attrs["weight_names"] = [name.encode() for name in names]


def _widen(folder: Path, names: list[str]) -> None:
    with h5py.File(folder / "model.h5", "r+") as file:
        group = file["optimizer_weights"]
        for name in names:
            value = group[name][()]
            if value.dtype == np.float32 and value.ndim:
                del group[name]
                group[name] = value.astype(np.float64)


def _spoil(folder: Path, name: str, value: float) -> None:
    with h5py.File(folder / "model.h5", "r+") as file:
        array = np.array(file["optimizer_weights"][name][()], np.float64)
        array.flat[0] = value
        file["optimizer_weights"][name][...] = array


def _drop(folder: Path, attribute: str) -> None:
    with h5py.File(folder / "model.h5", "r+") as file:
        if attribute in file.attrs:
            del file.attrs[attribute]


def _trained(name: str, target: Path) -> list[str]:
    """Names of the trained variables in the order of the oracle if they are the same, else in that of the target."""
    import optim

    found = [v.name for v in optim.describe_checkpoint(target).variables if v.trainable]
    named = [v["name"].removesuffix(":0") for v in cases._document(name)["trainable"]]
    return named if set(named) == set(found) else found


def _error(name: str, target: Path) -> float:
    """The worst error of the next steps, in units of what rounding explains."""
    import tensorflow as tf

    import optim

    oracle = np.load(CORPUS / name / "oracle.npz")
    trained = _trained(name, target)
    wanted = len(cases._document(name)["trainable"])
    if len(trained) != wanted:
        return float("inf")
    live = [tf.Variable(oracle[f"at_save/var/{i}"]) for i in range(wanted)]
    optimizer = optim.load_checkpoint(target, dict(zip(trained, live, strict=True)), restore_variables=False)
    worst = 0.0
    for step in range(cases._document(name)["n"]):
        optimizer.apply_gradients([(tf.constant(oracle[f"grad/{step}/{i}"]), live[i]) for i in range(wanted)])
        for i, variable in enumerate(live):
            want = oracle[f"var/{step}/{i}"].astype(np.float64)
            moved = np.linalg.norm(want - oracle[f"at_save/var/{i}"])
            limit = max(cases.ROUNDING_OF_MOVEMENT * moved, cases.ROUNDING_OF_VALUE * np.linalg.norm(want))
            worst = max(worst, float(np.linalg.norm(variable.numpy() - want)) / limit)
    return worst if np.isfinite(worst) else float("inf")


def _false_exact(name: str, folder: Path) -> list[str]:
    """Alterations of a case that are called exact and go on otherwise."""
    original = CORPUS / name / "source"
    hints = cases._hints(name)
    found = []
    for number, (what, alter) in enumerate([*_of_hints(hints), *_of_files(original)]):
        copy, target = folder / f"{number}", folder / f"{number}-out"
        shutil.copytree(original, copy)
        given = json.loads(json.dumps(hints))
        alter(copy, given)
        source = copy / Path(cases._source(name)).relative_to(original)
        try:
            report = migrate.migrate_checkpoint(source, target, **given)
        except DtoptError:
            continue
        if report.fidelity == "exact" and _error(name, target) > ROUNDING:
            found.append(what)
    return found


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_nothing_altered_is_exact_and_wrong(name: str, tmp_path: Path) -> None:
    assert _false_exact(name, tmp_path) == []


@pytest.mark.breadth
@pytest.mark.parametrize("name", [name for name in EVERY if name not in REPRESENTATIVE])
def test_nothing_else_altered_is_exact_and_wrong(name: str, tmp_path: Path) -> None:
    assert _false_exact(name, tmp_path) == []
