"""Configs, metadata and members of `.keras`."""

from __future__ import annotations

import io
import json
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py

from tests.alterations.alteration import RELEASES, Alteration, Change, Hints
from tests.alterations.arrays import INNER, unzipped, zipped
from tests.alterations.configs import of_configs, of_models


def of_keras(path: Path) -> Iterator[Alteration]:
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

    if json.loads(members["config.json"])["class_name"] == "Functional":
        yield from of_models(lambda edit: document("config.json", edit))
    if isinstance(optimizer, dict):
        yield from of_configs(optimizer, False, change)
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
