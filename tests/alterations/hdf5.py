"""Names, attributes and configs of Keras's `.h5`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tests.alterations.alteration import RELEASES, Alteration, Change
from tests.alterations.configs import of_configs


def of_h5(path: Path) -> Iterator[Alteration]:
    with h5py.File(path) as file:
        if "training_config" not in file.attrs:
            return
        training = json.loads(file.attrs["training_config"])
        weights = file.get("optimizer_weights")
        names = [] if weights is None else [_text(n) for n in weights.attrs.get("weight_names", ())]
        order = [_text(n) for n in file["model_weights"].attrs["layer_names"]]
        held = {n: [_text(w) for w in file["model_weights"][n].attrs["weight_names"]] for n in order}
    if "optimizer_config" not in training:
        return
    old = training["optimizer_config"]["config"].get("is_legacy_optimizer") is not False

    def change(edit: Callable[[dict[str, Any]], object]) -> Change:
        return lambda folder, _: _training(folder / path.name, edit)

    yield from of_configs(training["optimizer_config"], old, change)

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
    yield from _of_layers(order, held, lambda where, kept: on(lambda f: _listed(f, where, kept)))


def _of_names(names: list[str], listed: Callable[[list[str]], Change]) -> Iterator[Alteration]:
    """The list of weights in the file, which says the order."""
    yield Alteration("names", "the first half of the slots", listed(names[: len(names) // 2]))
    yield Alteration("names", "one slot less", listed(names[:-1]))
    yield Alteration("names", "without the step counter", listed(names[1:]))
    yield Alteration("names", "one slot twice", listed([*names, names[-1]]))
    yield Alteration("names", "the last two swapped", listed([*names[:-2], *names[:-3:-1]]), False)
    yield Alteration("names", "reversed", listed(names[::-1]), False)


def _of_layers(
    order: list[str], held: dict[str, list[str]], listed: Callable[[str, list[str]], Change]
) -> Iterator[Alteration]:
    """The lists of layers, and of the weights of each."""
    with_weights = [name for name in order if held[name]]
    yield Alteration("layers", "reversed", listed("", order[::-1]))
    for name in with_weights:
        last_first = [*held[name][1:], held[name][0]]
        if len(last_first) > 1:
            yield Alteration("layers", f"weights of {name} in another order", listed(name, last_first))


def _listed(file: h5py.File, layer: str, names: list[str]) -> None:
    group = file["model_weights"][layer] if layer else file["model_weights"]
    group.attrs["weight_names" if layer else "layer_names"] = [name.encode() for name in names]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _edited(path: Path, edit: Callable[[h5py.File], object]) -> None:
    with h5py.File(path, "r+") as file:
        edit(file)


@contextmanager
def training_config(path: Path) -> Iterator[dict[str, Any]]:
    """What the model was compiled with, to be changed."""
    with h5py.File(path, "r+") as file:
        document = json.loads(file.attrs["training_config"])
        yield document
        file.attrs["training_config"] = json.dumps(document)


def _training(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    with training_config(path) as document:
        edit(document["optimizer_config"])


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
