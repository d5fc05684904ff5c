"""What can be done to a real checkpoint, or to the hints for it, so that it says something else than its release wrote.

Each `Alteration` changes a copy. Numbers are altered alike in all formats: `Arrays` opens what holds them. What is
about names, classes and configs is of one format each.
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

import migrate
from migrate.bytes import protos
from migrate.bytes.bundle import GRAPH_KEY, STRING, BundleReader, BundleWriter, is_numeric
from migrate.generations import NATIVE
from migrate.operations import bounds

Hints = dict[str, Any]
Change = Callable[[Path, Hints], object]
CLASSES = ("SGD", "RMSprop", "Adagrad", "Adadelta", "Adam", "AdamW", "Adamax", "Nadam", "Ftrl", "Lion")
TRAIN = {"SGD": "MomentumOptimizer", "Adam": "AdamOptimizer", "RMSprop": "RMSPropOptimizer"}
LIMITS = ("clipnorm", "clipvalue", "global_clipnorm")
LEGAL_NONE = ("weight_decay", "epsilon", "ema_overwrite_frequency")
"""Options that may be None, and whose older value leaves no trace."""
SWITCHES = ("amsgrad", "centered", "nesterov", "use_ema", "momentum")
RELEASES = ("1.2.2", "2.1.6-tf", "2.2.4", "2.3.1", "2.4.0", "2.9.0", "2.13.1", "3.0.5", "3.3.3", "3.15.0", "9.9")
INNER = "model.weights.h5"


@dataclass(frozen=True)
class Alteration:
    """`told`: whether what is left still tells that it was altered. `kind` groups them, `what` names this one."""

    kind: str
    what: str
    alter: Change
    told: bool = True


@dataclass(frozen=True)
class Case:
    """A checkpoint in `folder`: what is migrated, below it, and the hints that it needs."""

    folder: Path
    source: str
    hints: Hints

    def alterations(self) -> Iterator[Alteration]:
        """Every alteration that there is for it."""
        state = migrate.read(self.folder / self.source, **self.hints)
        yield from _of_hints(self.hints)
        yield from _of_numbers(self, state)
        suffix = Path(self.source).suffix
        if (self.folder / self.source).is_file() and suffix in OF_FORMAT:
            yield from OF_FORMAT[suffix](self.folder / self.source)
        elif _prefix(self.folder, self.source) is not None:
            yield from _of_bundles(self.folder, self.source)


# Numbers, in any format


@contextlib.contextmanager
def arrays(folder: Path, source: str) -> Iterator[MutableMapping[str, Any]]:
    """Every array of a source by the name that `stored_as` has for it; what is changed is written back."""
    path = folder / source
    prefix = _prefix(folder, source)
    opened = _in_bundle(prefix) if prefix is not None else FILES[path.suffix](path)
    with opened as found:
        yield found


def _prefix(folder: Path, source: str) -> Path | None:
    for prefix in (folder / source, folder / source / "variables" / "variables"):
        if Path(f"{prefix}.index").is_file():
            return prefix
    return None


@contextlib.contextmanager
def _in_bundle(prefix: Path) -> Iterator[MutableMapping[str, Any]]:
    bundle = BundleReader(str(prefix))
    texts = {key: bundle.load_bytes(key) for key, e in bundle.items() if e.dtype == STRING and e.shape == ()}
    found: dict[str, Any] = {k: bundle.load(k) for k, e in bundle.items() if k not in texts and is_numeric(e.dtype)}
    dtypes = {key: entry.dtype for key, entry in bundle.items()}
    yield found
    for old in prefix.parent.glob(f"{prefix.name}.data-*"):
        old.unlink()
    Path(f"{prefix}.index").unlink()
    with BundleWriter(str(prefix)) as writer:
        for key in sorted({*found, *texts}):
            if key in texts:
                writer.add_string(key, texts[key])
            else:
                same = dtypes.get(key) == "bfloat16" and found[key].dtype == np.uint16
                writer.add(key, found[key], "bfloat16" if same else None)


class _Datasets(dict[str, Any]):
    """Datasets of an HDF5 file."""

    def __init__(self, file: h5py.File) -> None:
        super().__init__()
        self.file = file
        self.read: dict[str, np.ndarray] = {}
        file.visititems(lambda _, node: self.read.update({node.name: node[()]} if _is_array(node) else {}))
        self.update({name: np.array(value) for name, value in self.read.items()})

    def write(self) -> None:
        for name, value in self.items():
            if name in self.read and _same(value, self.read[name]):
                continue
            attributes = dict(self.file[name].attrs) if name in self.read else {}
            if name in self.read:
                del self.file[name]
            self.file[name] = value
            self.file[name].attrs.update(attributes)
        for name in self.read.keys() - self.keys():
            del self.file[name]


def _is_array(node: Any) -> bool:
    return isinstance(node, h5py.Dataset) and node.dtype.kind in "biufV"


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    one, other = np.asarray(one), np.asarray(other)
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@contextlib.contextmanager
def _in_h5(path: Path) -> Iterator[MutableMapping[str, Any]]:
    with h5py.File(path, "r+") as file:
        found = _Datasets(file)
        yield found
        found.write()


@contextlib.contextmanager
def _in_keras(path: Path) -> Iterator[MutableMapping[str, Any]]:
    members = unzipped(path)
    with h5py.File(io.BytesIO(members[INNER]), "r+") as file:
        found = _Datasets(file)
        yield found
        found.write()
        file.flush()
        members[INNER] = file.id.get_file_image()
    zipped(path, members)


@contextlib.contextmanager
def _in_list(path: Path) -> Iterator[MutableMapping[str, Any]]:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=True) as file:
            values = [file[name] for name in file.files]
    elif path.suffix == ".npy":
        values = list(np.load(path, allow_pickle=True))
    else:
        values = list(pickle.loads(path.read_bytes(), encoding="latin1"))
    found = {f"weights[{i}]": np.asarray(value) for i, value in enumerate(values)}
    yield found
    kept = [found[name] for name in sorted(found, key=lambda name: float(name[8:-1]))]
    if path.suffix == ".npz":
        np.savez(path, *kept)
    elif path.suffix == ".npy":
        whole = np.empty(len(kept), object)
        whole[:] = kept
        np.save(path, whole)
    else:
        path.write_bytes(pickle.dumps(kept, protocol=2))


FILES: dict[str, Callable[[Path], Any]] = {
    ".h5": _in_h5,
    ".keras": _in_keras,
    ".npz": _in_list,
    ".npy": _in_list,
    ".pkl": _in_list,
}


def unzipped(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def _of_numbers(case: Case, state: migrate.OptimizerState) -> Iterator[Alteration]:
    """Slots, variables and counters with other values, and of other shapes and dtypes."""

    def change(edit: Callable[[MutableMapping[str, Any]], object]) -> Change:
        def alter(folder: Path, _: Hints) -> None:
            with arrays(folder, case.source) as found:
                edit(found)

        return alter

    slots = {
        s: {n: re.split(" times |, one element", a.stored_as)[0] for n, a in o.items()} for s, o in state.slots.items()
    }
    yield from (Alteration("slots", what, change(edit), told) for what, edit, told in _of_slots(slots, state))
    with _copied(case) as copy, arrays(copy, case.source) as found:
        counters = [k for k, v in found.items() if np.asarray(v).size == 1 and k not in _keys(slots)]
    for key in counters:
        for value in (-1.0, 0.5, 1e30, float("nan"), 0.0):
            yield Alteration("scalars", f"{key} is {value}", change(lambda f, k=key, v=value: _set(f, k, v)), False)
        for plus in (1, -1, 1000):
            yield Alteration("scalars", f"{key} {plus:+}", change(lambda f, k=key, p=plus: _add(f, k, p)), False)
        yield Alteration("scalars", f"{key} halved", change(lambda f, k=key: _scale(f, [k], 0.5)), False)
        yield Alteration("scalars", f"without {key}", change(lambda f, k=key: f.pop(k)), False)


@contextlib.contextmanager
def _copied(case: Case) -> Iterator[Path]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(case.folder, copy)
        yield copy


START = (*bounds.FROM_ZERO, *bounds.SQUARES)
"""Slots that steps move away from zero, for good."""


def _keys(slots: dict[str, dict[str, str]]) -> set[str]:
    return {key for owners in slots.values() for key in owners.values()}


Edit = Callable[[MutableMapping[str, Any]], object]


def _of_slots(slots: dict[str, dict[str, str]], state: migrate.OptimizerState) -> Iterator[tuple[str, Edit, bool]]:
    arrays_ = {slot: {n: a.load() for n, a in owners.items()} for slot, owners in state.slots.items()}
    adam = {"m", "v"} <= slots.keys() and state.algorithm in bounds.MOMENTS
    for slot, owners in slots.items():
        keys = list(owners.values())
        moved = any(np.any(a) for a in arrays_[slot].values())
        yield f"{slot} zeroed", lambda f, k=keys: _scale(f, k, 0.0), moved and slot in START and bool(state.iterations)
        for factor in (2.0, 1e-6, 1e6, -1.0):
            told = (adam and slot == "v" and factor == 1e-6) or (
                slot in ("v", "u", "velocity") and factor < 0 and moved
            )
            yield f"{slot} times {factor:g}", lambda f, k=keys, x=factor: _scale(f, k, x), told
        for value in (np.nan, np.inf):
            yield f"{value} in {slot}", lambda f, k=keys, x=value: _put(f, k[-1], x), True
        for dtype in ("float64", "float16", "int32"):
            yield f"{slot} of {dtype}", lambda f, k=keys, d=dtype: _cast(f, k, d), True
        big = next((k for n, k in owners.items() if arrays_[slot][n].ndim == 2), None)
        if big is not None:
            shape = next(arrays_[slot][n].shape for n, k in owners.items() if k == big)
            yield f"{slot} transposed", lambda f, k=big: f.update({k: f[k].T}), shape[0] != shape[1]
            yield f"{slot} flat", lambda f, k=big: f.update({k: f[k].reshape(-1)}), True
        half = keys[len(keys) // 2 :]
        apart = state.source is not None and state.source.format == "tf_dtensor_names" and len(slots) == 1
        yield f"half of {slot} gone", lambda f, k=half: [f.pop(each) for each in k], not apart
        twins = _twins(arrays_[slot])
        if twins is not None:
            a, b = (owners[name] for name in twins)
            yield f"{slot} of {' and '.join(twins)} swapped", lambda f, a=a, b=b: _swap(f, a, b), False
    names = list(slots)
    for one, other in ((a, b) for i, a in enumerate(names) for b in names[i + 1 :]):
        pairs = [(slots[one][n], slots[other][n]) for n in slots[one] if n in slots[other]]
        signed = any(np.any(a < 0) for a in arrays_[one].values()) if other in ("v", "u", "velocity") else False
        yield f"{one} and {other} swapped", lambda f, p=pairs: [_swap(f, a, b) for a, b in p], signed
    everything = [key for owners in slots.values() for key in owners.values()]
    if everything:
        yield "all slots zeroed", lambda f: _scale(f, everything, 0.0), bool(state.iterations)
        yield "all slots of another run", lambda f: _shuffle(f, everything), False


def _twins(values: dict[str, np.ndarray]) -> tuple[str, str] | None:
    names = list(values)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            if values[a].shape == values[b].shape and not np.array_equal(values[a], values[b]):
                return a, b
    return None


def _set(found: MutableMapping[str, Any], key: str, value: float) -> None:
    old = np.asarray(found[key])
    with np.errstate(all="ignore"):
        kept = old.dtype.kind == "f" or (value == int(value) if np.isfinite(value) else False)
        kept = kept and (old.dtype.kind == "f" or abs(value) < 2**62)
        found[key] = np.full(old.shape, value, old.dtype if kept else np.float32)


def _add(found: MutableMapping[str, Any], key: str, plus: int) -> None:
    old = np.asarray(found[key])
    found[key] = (old + np.asarray(plus, old.dtype)).astype(old.dtype)


def _scale(found: MutableMapping[str, Any], keys: list[str], factor: float) -> None:
    for key in keys:
        found[key] = (np.asarray(found[key]) * factor).astype(np.asarray(found[key]).dtype)


def _put(found: MutableMapping[str, Any], key: str, value: float) -> None:
    array = np.array(found[key])
    array.flat[0] = value
    found[key] = array


def _cast(found: MutableMapping[str, Any], keys: list[str], dtype: str) -> None:
    for key in keys:
        found[key] = np.asarray(found[key]).astype(dtype)


def _swap(found: MutableMapping[str, Any], a: str, b: str) -> None:
    found[a], found[b] = np.array(found[b]), np.array(found[a])


def _shuffle(found: MutableMapping[str, Any], keys: list[str]) -> None:
    random = np.random.default_rng(0)
    for key in keys:
        found[key] = random.permutation(np.asarray(found[key]).reshape(-1)).reshape(np.asarray(found[key]).shape)


# Hints


def config_of(hints: Hints) -> dict[str, Any]:
    return hints["optimizer_config"]["config"]


def _of_hints(hints: Hints) -> Iterator[Alteration]:
    """Keys left out; options flipped and classes renamed that the slots or the names deny; other lists of variables."""
    if "optimizer_config" not in hints:
        return
    config = config_of(hints)
    for key in config:
        told = key not in LIMITS or "use_ema" in config
        yield Alteration("hints", f"without {key}", lambda _, h, key=key: config_of(h).pop(key), told)
        yield Alteration("hints", f"misspelt {key}", lambda _, h, key=key: _rename(config_of(h), key), told)
        if isinstance(config[key], float) and config[key]:
            twice = config[key] * 2 if key.startswith(("l", "e", "i", "c")) else config[key] / 2
            change = lambda _, h, key=key, x=twice: config_of(h).update({key: x})  # noqa: E731
            yield Alteration("hints", f"another {key}", change, False)
    yield Alteration("hints", "only the class", lambda _, h: h["optimizer_config"].update(config={}))
    for key in ("amsgrad", "centered", "momentum"):
        if key in config:
            change = lambda _, h, key=key: config_of(h).update({key: _flipped(config_of(h)[key])})  # noqa: E731
            # Slots of momentum are there without it in SGD of these generations, and in RMSProp of tf.train.
            kept = str(hints.get("generation")) in NATIVE or hints["optimizer_config"]["class_name"] in TRAIN.values()
            yield Alteration("hints", f"{key} flipped", change, not (kept and key == "momentum"))
    for name in CLASSES if "variables" not in hints else ():  # of its class a list says nothing
        said = TRAIN.get(name, name) if hints["optimizer_config"]["class_name"].endswith("Optimizer") else name
        if said != hints["optimizer_config"]["class_name"]:
            change = lambda _, h, said=said: h["optimizer_config"].update(class_name=said)  # noqa: E731
            yield Alteration("hints", f"class {said}", change)
    yield from _of_variables(hints)


def _of_variables(hints: Hints) -> Iterator[Alteration]:
    if "variables" not in hints:
        return
    count = len(hints["variables"])
    yield Alteration("hints", "one variable less", lambda _, h: h["variables"].pop())
    yield Alteration("hints", "one variable more", lambda _, h: h["variables"].append({"name": "x", "shape": [3]}))
    yield Alteration("hints", "variables reversed", lambda _, h: h["variables"].reverse(), False)
    if count > 1:
        yield Alteration("hints", "one variable twice", lambda _, h: h["variables"].append(h["variables"][0]))


def _rename(config: dict[str, Any], key: str) -> None:
    config[f"{key}_"] = config.pop(key)


def _flipped(value: Any) -> Any:
    return not value if isinstance(value, bool) else 0.0 if value else 0.9


# Configs of Keras, in HDF5 and in zips


def _of_configs(
    optimizer: dict[str, Any], old: bool, change: Callable[[Callable[[dict[str, Any]], object]], Change]
) -> Iterator[Alteration]:
    """`old`: a config of before 2.11, which has no limits where there are none."""
    config = optimizer["config"]
    for key in config:
        told = not (key in LIMITS and old)
        yield Alteration("config", f"without {key}", change(lambda o, k=key: o["config"].pop(k)), told)
        yield Alteration("config", f"misspelt {key}", change(lambda o, k=key: _rename(o["config"], k)), told)
        if isinstance(config[key], (int, float)) and not isinstance(config[key], bool):
            yield Alteration("config", f"{key} is text", change(lambda o, k=key: o["config"].update({k: "0.1"})))
            none = change(lambda o, k=key: o["config"].update({k: None}))
            yield Alteration("config", f"{key} is none", none, key not in (*LIMITS, *LEGAL_NONE))
    for key in SWITCHES:
        if key in config:
            told = key in ("amsgrad", "centered") or (key == "use_ema" and bool(config[key]))
            flip = change(lambda o, k=key: o["config"].update({k: _flipped(o["config"][k])}))
            yield Alteration("config", f"another {key}", flip, told)
    for key, other in (("learning_rate", "lr"), ("lr", "learning_rate")):
        if key in config:
            both = change(lambda o, k=key, n=other: o["config"].update({n: 0.77}))
            yield Alteration("config", f"{other} beside {key}", both)
    for name in CLASSES:
        if name != optimizer["class_name"].rpartition(">")[2]:
            yield Alteration("config", f"class {name}", change(lambda o, n=name: o.update(class_name=n)))
    for package in ("Mine", "Addons"):
        own = change(lambda o, p=package: o.update(class_name=f"{p}>{o['class_name'].rpartition('>')[2]}"))
        yield Alteration("config", f"class of {package}", own)
    yield Alteration("config", "another name", change(lambda o: o["config"].update(name="other")), False)
    wrap = change(lambda o: _wrapped(o, "LossScaleOptimizer"))
    yield Alteration("config", "in a LossScaleOptimizer", wrap, False)
    yield Alteration("config", "in a wrapper of somebody's", change(lambda o: _wrapped(o, "Mine>Lookahead")))


def _wrapped(optimizer: dict[str, Any], name: str) -> None:
    inner = json.loads(json.dumps(optimizer))
    optimizer.update(class_name=name, config={"inner_optimizer": inner})


def _of_h5(path: Path) -> Iterator[Alteration]:
    with h5py.File(path) as file:
        if "training_config" not in file.attrs:
            return
        training = json.loads(file.attrs["training_config"])
        weights = file.get("optimizer_weights")
        names = [] if weights is None else [_text(n) for n in weights.attrs.get("weight_names", ())]
    if "optimizer_config" not in training:
        return
    old = training["optimizer_config"]["config"].get("is_legacy_optimizer") is not False

    def change(edit: Callable[[dict[str, Any]], object]) -> Change:
        return lambda folder, _: _training(folder / path.name, edit)

    yield from _of_configs(training["optimizer_config"], old, change)

    def on(edit: Callable[[h5py.File], object]) -> Change:
        return lambda folder, _: _edited(folder / path.name, edit)

    yield Alteration("config", "learning_rate said twice", on(_said_twice))
    for attribute in ("keras_version", "backend"):
        yield Alteration("attributes", f"without {attribute}", on(lambda f, a=attribute: f.attrs.pop(a, None)))
    for release in RELEASES:
        edit = on(lambda f, r=release: f.attrs.update(keras_version=r))
        yield Alteration("attributes", f"of {release}", edit, False)  # nothing else tells of releases
    for name, encode in ENCODINGS.items():
        yield Alteration("attributes", f"{name} texts", on(lambda f, e=encode: _encode(f, e)))
    if names:
        yield from _of_names(names, lambda kept: on(lambda f: _weights(f, kept)))


def _of_names(names: list[str], listed: Callable[[list[str]], Change]) -> Iterator[Alteration]:
    """The list of weights in the file, which says the order."""
    yield Alteration("names", "the first half of the slots", listed(names[: len(names) // 2]))
    yield Alteration("names", "one slot less", listed(names[:-1]))
    yield Alteration("names", "without the step counter", listed(names[1:]))
    yield Alteration("names", "one slot twice", listed([*names, names[-1]]))
    yield Alteration("names", "the last two swapped", listed([*names[:-2], *names[:-3:-1]]), False)
    yield Alteration("names", "reversed", listed(names[::-1]), False)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _edited(path: Path, edit: Callable[[h5py.File], object]) -> None:
    with h5py.File(path, "r+") as file:
        edit(file)


def _training(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    with h5py.File(path, "r+") as file:
        document = json.loads(file.attrs["training_config"])
        edit(document["optimizer_config"])
        file.attrs["training_config"] = json.dumps(document)


def _said_twice(file: h5py.File) -> None:
    text = _text(file.attrs["training_config"])
    file.attrs["training_config"] = re.sub(r'("(?:lr|learning_rate)": )', r"\g<1>0.77, \g<1>", text, count=1)


def _weights(file: h5py.File, names: list[str]) -> None:
    file["optimizer_weights"].attrs["weight_names"] = [name.encode() for name in names]


ENCODINGS: dict[str, Callable[[str], Any]] = {
    "bytes": lambda text: np.bytes_(text.encode()),
    "variable": str,
    "array": lambda text: np.array([text.encode()]),
    "utf-16": lambda text: np.void(text.encode("utf-16")),
}


def _encode(file: h5py.File, encode: Callable[[str], Any]) -> None:
    for name in ("training_config", "keras_version", "backend"):
        if name in file.attrs:
            text = _text(file.attrs[name])
            if len(text) < 60_000:
                del file.attrs[name]
                file.attrs[name] = encode(text)


def _of_keras(path: Path) -> Iterator[Alteration]:
    members = unzipped(path)
    optimizer = (json.loads(members["config.json"]).get("compile_config") or {}).get("optimizer")

    def document(member: str, edit: Callable[[Any], object]) -> Change:
        def alter(folder: Path, _: Hints) -> None:
            held = unzipped(folder / path.name)
            read = json.loads(held[member])
            edit(read)
            zipped(folder / path.name, {**held, member: json.dumps(read).encode()})

        return alter

    def change(edit: Callable[[dict[str, Any]], object]) -> Change:
        return document("config.json", lambda d: edit(d["compile_config"]["optimizer"]))

    if isinstance(optimizer, dict):
        yield from _of_configs(optimizer, False, change)
        for other in ({"registered_name": "Mine>Adam"}, {"module": "mine.optimizers"}, {"module": None}):
            yield Alteration("config", f"class with {other}", change(lambda o, x=other: o.update(x)))
    for key in json.loads(members["metadata.json"]):
        yield Alteration("metadata", f"without {key}", document("metadata.json", lambda d, k=key: d.pop(k)))
    for release in RELEASES:
        edit = document("metadata.json", lambda d, r=release: d.update(keras_version=r))
        yield Alteration("metadata", f"of {release}", edit, False)
    yield from _of_members(path, members)


def _of_members(path: Path, members: dict[str, bytes]) -> Iterator[Alteration]:
    def inside(edit: Callable[[h5py.File], object]) -> Change:
        def alter(folder: Path, _: Hints) -> None:
            held = unzipped(folder / path.name)
            with h5py.File(io.BytesIO(held[INNER]), "r+") as file:
                edit(file)
                file.flush()
                held[INNER] = file.id.get_file_image()
            zipped(folder / path.name, held)

        return alter

    with h5py.File(io.BytesIO(members[INNER])) as file:
        listed = "optimizer" in file
    for what in ("first", "second", "last") if listed else ():
        yield Alteration("list", f"without the {what} of the list", inside(lambda f, w=what: _without(f, w)))
    if listed:
        yield Alteration("list", "without the list", inside(lambda f: f.pop("optimizer")))
        yield Alteration("list", "the last two swapped", inside(_two_swapped), False)
    for name in members:
        yield Alteration("members", f"without {name}", lambda f, _, n=name: _unlisted(f / path.name, n))
        yield Alteration("members", f"{name} twice", lambda f, _, n=name: _twice(f / path.name, n))


def _unlisted(path: Path, name: str) -> None:
    members = unzipped(path)
    members.pop(name)
    zipped(path, members)


def _twice(path: Path, name: str) -> None:
    """A second member of that name with another learning rate in it, which readers that take the last one see."""
    members = unzipped(path)
    with zipfile.ZipFile(path, "w") as archive:
        for each, data in members.items():
            archive.writestr(each, data)
        other = re.sub(rb'("learning_rate": )[\d.e-]+', rb"\g<1>0.77", members[name])
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            archive.writestr(name, other)


def _vars(file: h5py.File) -> h5py.Group:
    group = file["optimizer"]
    return group["vars"] if len(group.get("vars", ())) else group["inner_optimizer/vars"]


def _without(file: h5py.File, what: str) -> None:
    group = _vars(file)
    names = sorted(group, key=int)
    gone = {"first": 0, "second": 1, "last": len(names) - 1}[what]
    del group[names[gone]]
    for name in names[gone + 1 :]:
        group.move(name, str(int(name) - 1))


def _two_swapped(file: h5py.File) -> None:
    group = _vars(file)
    a, b = sorted(group, key=int)[-2:]
    group.move(a, "x")
    group.move(b, a)
    group.move("x", b)


OF_FORMAT: dict[str, Callable[[Path], Iterator[Alteration]]] = {".h5": _of_h5, ".keras": _of_keras}


# TensorFlow's checkpoints


def _of_bundles(folder: Path, source: str) -> Iterator[Alteration]:
    prefix = _prefix(folder, source)
    assert prefix is not None
    for meta in (path for path in (Path(f"{prefix}.meta"), folder / source / "saved_model.pb") if path.is_file()):
        name = meta.relative_to(folder)
        graph = "graph" if meta.suffix == ".meta" else "SavedModel"
        yield Alteration("graph", f"{graph} gone", lambda f, _, n=name: (f / n).unlink())
        for part in (2, 3, 10):
            cut = lambda f, _, n=name, p=part: _shorten(f / n, p)  # noqa: E731
            yield Alteration("graph", f"a {part}th of the {graph}", cut)
    for data in sorted(prefix.parent.glob(f"{prefix.name}.data-*")):
        name = data.relative_to(folder)
        yield Alteration("shards", f"without {data.name}", lambda f, _, n=name: (f / n).unlink())
        yield Alteration("shards", f"half of {data.name}", lambda f, _, n=name: _shorten(f / n, 2))
    bundle = BundleReader(str(prefix))
    if GRAPH_KEY in bundle:
        yield from _of_graphs(bundle, source)


def _of_graphs(bundle: BundleReader, source: str) -> Iterator[Alteration]:
    """The object graph, which says whose slot each tensor is."""
    graph = protos.ObjectGraph()
    graph.ParseFromString(bundle.load_bytes(GRAPH_KEY))

    def change(edit: Callable[[Any], object]) -> Change:
        return lambda folder, _: _regraphed(folder, source, edit)

    tables = [i for i, node in enumerate(graph.nodes) if len(node.slot_variables) > 1]
    for i in tables:
        yield Alteration("object graph", "slots renamed", change(lambda g, i=i: _renamed(g.nodes[i])))
        yield Alteration("object graph", "owners swapped", change(lambda g, i=i: _owners(g.nodes[i])))
        yield Alteration("object graph", "a slot less", change(lambda g, i=i: g.nodes[i].slot_variables.pop()))
    lists = [i for i, n in enumerate(graph.nodes) if {"0", "1"} <= {c.local_name for c in n.children}]
    for i in lists:
        yield Alteration("object graph", f"list {i} reversed", change(lambda g, i=i: _reversed(g.nodes[i])), False)
    yield Alteration("object graph", "without names", change(_unnamed), False)
    yield Alteration("object graph", "keys swapped", change(_keys_swapped), False)


def _regraphed(folder: Path, source: str, edit: Callable[[Any], object]) -> None:
    prefix = _prefix(folder, source)
    assert prefix is not None
    bundle = BundleReader(str(prefix))
    graph = protos.ObjectGraph()
    graph.ParseFromString(bundle.load_bytes(GRAPH_KEY))
    edit(graph)
    text = graph.SerializeToString(deterministic=True)
    kept = {key: (bundle.load(key), e.dtype) for key, e in bundle.items() if is_numeric(e.dtype)}
    texts = {key: bundle.load_bytes(key) for key, e in bundle.items() if e.dtype == STRING and e.shape == ()}
    for old in prefix.parent.glob(f"{prefix.name}.data-*"):
        old.unlink()
    Path(f"{prefix}.index").unlink()
    with BundleWriter(str(prefix)) as writer:
        for key in sorted({*kept, *texts}):
            if key in texts:
                writer.add_string(key, text if key == GRAPH_KEY else texts[key])
            else:
                writer.add(key, kept[key][0], kept[key][1])


def _renamed(node: Any) -> None:
    """The first slot's name for all of the second's, and the other way round."""
    names = list(dict.fromkeys(slot.slot_name for slot in node.slot_variables))
    other = dict(zip(names, [*names[1:], names[0]], strict=True)) if len(names) > 1 else {names[0]: "other"}
    for slot in node.slot_variables:
        slot.slot_name = other[slot.slot_name]


def _owners(node: Any) -> None:
    a, b = (
        node.slot_variables[0],
        next(
            s
            for s in node.slot_variables
            if s.original_variable_node_id != node.slot_variables[0].original_variable_node_id
        ),
    )
    one, other = a.original_variable_node_id, b.original_variable_node_id
    for slot in node.slot_variables:
        turn = {one: other, other: one}
        slot.original_variable_node_id = turn.get(slot.original_variable_node_id, slot.original_variable_node_id)


def _reversed(node: Any) -> None:
    numbered = [child for child in node.children if child.local_name.isdecimal()]
    for child, name in zip(numbered, [c.local_name for c in reversed(numbered)], strict=True):
        child.local_name = name


def _unnamed(graph: Any) -> None:
    for node in graph.nodes:
        for attribute in node.attributes:
            attribute.full_name = ""


def _keys_swapped(graph: Any) -> None:
    """The keys of the first and the last tensor of the object graph."""
    held = [a for node in graph.nodes for a in node.attributes if "OPTIMIZER" in a.checkpoint_key] or [
        a for node in graph.nodes for a in node.attributes
    ]
    a, b = held[0], held[-1]
    a.checkpoint_key, b.checkpoint_key = str(b.checkpoint_key), str(a.checkpoint_key)


def _shorten(path: Path, part: int) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // part])
