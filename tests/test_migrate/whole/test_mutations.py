"""Real checkpoints, damaged in every way that a seed can think of: a clear refusal, or the very same slots.

Formats with checksums (TensorFlow's, and every zip) must notice all that changes a number. HDF5, .npy and pickles
have none: there a change of raw numbers is carried as it is, and what is asserted is that nothing else changes, or that
the result does not call itself exact. A config that is JSON may come to name variables otherwise; then every slot must
still be with the values of its own variable.
"""

from __future__ import annotations

import io
import json
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import migrate
from migrate.bytes import hdf5
from migrate.bytes.hdf5_heaps import check_heaps
from migrate.conversion import error_boundary
from migrate.errors import DamagedFileError, TargetExistsError
from migrate.readers import weight_list
from optim.errors import DtoptError, UnsupportedError
from tests.helpers.breadth import broad
from tests.helpers.damages import BYTES, strange_json
from tests.mutations import Said
from tests.places import CORPUS, ROOT

SECONDS = 5.0  # of this process alone
MEMORY = 512 << 20
ROUNDS = int(os.environ.get("DTOPT_MUTATIONS", "40"))
"""Damages of each file: `DTOPT_MUTATIONS=1000 pytest tests/test_migrate/whole/test_mutations.py` makes a thousand."""
FIRST = int(os.environ.get("DTOPT_MUTATIONS_FROM", "0"))
"""The first seed."""
VERIFIED = 20
"""Of so many seeds one is verified too."""
Hints = dict[str, Any]
Slots = dict[tuple[str, str], tuple[tuple[int, ...], str, bytes]]


@dataclass(frozen=True)
class Subject:
    """One file of one real checkpoint. `source` is what is migrated, `file` what is damaged, both below `source/`."""

    case: str
    source: str
    file: str
    checksums: bool = True
    hints: tuple[str, ...] = ()
    generation: str | None = None

    def __str__(self) -> str:
        return f"{self.case}:{self.file}"

    def hint_values(self) -> Hints:
        document = json.loads((CORPUS / self.case / "case.json").read_text())
        optimizer = document["optimizer"]
        config = {"class_name": optimizer["class"], "config": optimizer.get("config") or optimizer["args"]}
        variables = [{"name": v["name"], "shape": v["shape"]} for v in document["trainable"]]
        known = {"optimizer_config": config, "variables": variables, "generation": self.generation}
        return {key: known[key] for key in self.hints}


CONFIG = ("optimizer_config",)
LIST = ("optimizer_config", "variables", "generation")
SUBJECTS = (
    Subject("extra-k122-adam-same-shapes-h5", "model.h5", "model.h5", False),
    Subject("keras224-nadam-mlp", "model.h5", "model.h5", False),
    Subject("extra-k231-adam-confusing-h5", "model.h5", "model.h5", False),
    Subject("tf115-rmsprop-mlp", "model.h5", "model.h5", False),
    Subject("tf24-adam-convbn", "model.h5", "model.h5", False),
    Subject("tfk221-new-adamw-convbn", "model.h5", "model.h5", False),
    Subject("keras38-adamw-convbn", "model.weights.h5", "model.weights.h5", False, CONFIG),
    Subject("keras38-nadam-mlp", "model.keras", "model.keras"),
    Subject("tfk221-new-adam-clipnorm-nested", "model.keras", "model.keras"),
    Subject("tf24-sgd-momentum-ckpt-convbn", "ckpt-1", "ckpt-1.index", True, CONFIG),
    Subject("tf24-sgd-momentum-ckpt-convbn", "ckpt-1", "ckpt-1.data-00000-of-00001", True, CONFIG),
    Subject("tf215-new-adafactor-mlp", "ckpt-1", "ckpt-1.index", True, CONFIG),
    Subject("tf29-dtensor-adam-mlp", "ckpt", "ckpt.data-00001-of-00002", True, CONFIG),
    Subject("tf115-train-momentum-nesterov-mlp", "ckpt", "ckpt.index", True, CONFIG),
    Subject("keras224-adam-saver-mlp", "ckpt", "ckpt.meta", True, CONFIG),
    Subject("tf20-adam-amsgrad-savedmodel-mlp", "saved_model", "saved_model/saved_model.pb"),
    Subject("extra-tf211-new-adam-same-shapes-npz", "weights.npz", "weights.npz", True, LIST, "optimizer"),
    Subject("tf24-adagrad-decay-iav-nested", "weights.npy", "weights.npy", False, LIST, "optimizer_v2"),
    Subject("extra-k224py27-adam-amsgrad-mlp-pkl", "weights.pkl", "weights.pkl", False, LIST, "keras2"),
)


def _json_in_h5(path: Path, rng: random.Random) -> bool:
    with h5py.File(path, "r+") as file:
        names = [name for name in ("training_config", "model_config") if name in file.attrs]
        if not names:
            return False
        name = rng.choice([*names, "training_config"])
        document = json.loads(file.attrs[name])
        text = json.dumps(strange_json(document, rng)) if rng.random() < 0.9 else '{"a":' * 5000
        del file.attrs[name]
        file.attrs[name] = text.encode()
    return True


def _json_in_keras(path: Path, rng: random.Random) -> bool:
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    name = rng.choice(("config.json", "config.json", "metadata.json"))
    text = json.dumps(strange_json(json.loads(members[name]), rng)) if rng.random() < 0.9 else "[" * 100_000
    members[name] = text.encode()
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return True


def damage(path: Path, hints: Hints, rng: random.Random) -> tuple[str, Hints]:
    """Change the file in place, or a hint; what was done, and the hints to give."""
    if rng.random() < 0.3:
        if "optimizer_config" in hints:
            return "hint", {**hints, "optimizer_config": strange_json(hints["optimizer_config"], rng)}
        inside = {".h5": _json_in_h5, ".keras": _json_in_keras}.get(path.suffix)
        if inside is not None and inside(path, rng):
            return "json", hints
    change = rng.choice(BYTES)
    path.write_bytes(change(path.read_bytes(), rng))
    return change.__name__, hints


def slots_of(state: migrate.OptimizerState) -> Slots:
    return {
        (slot, name): (array.shape, array.dtype, array.load().tobytes())
        for slot, owners in state.slots.items()
        for name, array in owners.items()
    }


def by_value(state: migrate.OptimizerState) -> set[tuple[str, bytes, bytes]]:
    """Slots with the values of their variables, whatever these are called, and what is unmapped."""
    values = {v.name: b"" if v.array is None else v.array.load().tobytes() for v in state.variables}
    return {(slot, values[name], data) for (slot, name), (_, _, data) in slots_of(state).items()}


def migrated(source: Path, dest: Path, hints: Hints) -> migrate.Report | DtoptError:
    """What a migration did, or its refusal."""
    try:
        return migrate.migrate_checkpoint(source, dest, **hints)
    except DtoptError as error:
        return error


def prepared(subject: Subject, folder: Path) -> tuple[Path, Path]:
    """A fresh copy: (what to migrate, what to damage)."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(CORPUS / subject.case / "source", folder)
    return folder / subject.source, folder / subject.file


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
@pytest.mark.quick(3)
def test_a_damaged_file_is_refused_or_carried_as_it_is(subject: Subject, tmp_path: Path) -> None:
    hints = subject.hint_values()
    want = migrate.read(CORPUS / subject.case / "source" / subject.source, **hints)
    memory, files = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, open_files()
    refusals = 0
    for seed in range(FIRST, FIRST + ROUNDS):
        source, file = prepared(subject, tmp_path / "source")
        dest = tmp_path / "out"
        done, damaged_hints = damage(file, hints, random.Random(seed))
        start = time.process_time()
        outcome = migrated(source, dest, damaged_hints)
        assert time.process_time() - start < SECONDS, (seed, done)
        if isinstance(outcome, DtoptError):
            check_refusal(outcome, dest, done)
            refusals += 1
        elif subject.checksums or outcome.fidelity == "exact":
            check_same(migrate.read(dest), want, subject, f"seed {seed}: {done}", done)
        check_others(source, dest, damaged_hints, f"seed {seed}: {done}", verified=seed % VERIFIED == 0)
        shutil.rmtree(dest, ignore_errors=True)
        assert {p.name for p in tmp_path.iterdir()} == {"source"}, (seed, done)
    assert refusals, "nothing was damaged"
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) * 1024 < MEMORY
    assert open_files() <= files


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0


def inspected(source: Path, hints: Hints) -> DtoptError | None:
    """Why `inspect` refuses, None where it does not."""
    try:
        migrate.inspect(source, stats=True, **hints)
    except DtoptError as error:
        return error
    return None


def check_others(source: Path, dest: Path, hints: Hints, what: str, *, verified: bool) -> None:
    """What `inspect` and `verify` do with a source that is damaged: an answer or a refusal, and never another one."""
    start = time.process_time()
    refused = inspected(source, hints)
    assert time.process_time() - start < SECONDS, what
    if refused is not None:
        assert str(refused).isprintable(), (what, refused)
        assert not dest.exists(), (what, "migrated, and not inspected", refused)
    if dest.exists() and verified:
        verification = migrate.verify(source, dest, **hints)
        assert verification.ok, (what, verification.differences)


def check_same(
    state: migrate.OptimizerState, original: migrate.OptimizerState, subject: Subject, what: str, done: str
) -> None:
    got, want = slots_of(state), slots_of(original)
    if done == "json":
        assert by_value(state) <= by_value(original), what
        assert len(got) == len(want), what
        return
    assert got.keys() == want.keys(), what
    for key, (shape, dtype, data) in want.items():
        assert got[key][:2] == (shape, dtype), (what, key)
        assert got[key][2] == data or (not subject.checksums and done != "hint"), (what, key)


def check_refusal(error: DtoptError, dest: Path, done: str) -> None:
    assert not dest.exists()
    assert error.exit_code == 3 or done == "hint", repr(error)
    assert str(error), repr(error)
    assert str(error).isprintable(), repr(error)
    assert [p.name for p in dest.parent.iterdir() if "dtopt" in p.name] == []


@pytest.mark.parametrize("case", ["keras38-nadam-mlp", broad("extra-tf"), broad("tf2"), broad("keras")])
@pytest.mark.breadth
def test_damage_that_knows_the_format_is_refused_or_carried_as_it_is(case: str) -> None:
    """In processes of their own, with right checksums around it: `python -m tests.mutations` does more of it."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.mutations", "--rounds", "8", "--match", case]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_what_a_state_says_otherwise_than_another_is_named() -> None:
    sound = Said({"counter": 4}, {("m", "a"): b"1", ("m", "b"): b"2"}, {"a": b"x", "b": b"y"}, frozenset("ab"))
    slots = {("m", "a"): b"2", ("m", "b"): b"1"}
    assert sound.beside(sound) == []
    assert replace(sound, options={"counter": 5}).beside(sound) == ["counter"]
    assert replace(sound, slots=slots).beside(sound) == ["slots exchanged"]
    assert replace(sound, slots={**slots, ("m", "a"): b"3"}).beside(sound) == ["numbers of slots"]
    assert replace(sound, trained=frozenset("a")).beside(sound) == ["trained"]
    renamed = Said(sound.options, {("m", "c"): b"1", ("m", "b"): b"2"}, {"c": b"x", "b": b"y"}, frozenset("bc"))
    assert renamed.beside(sound) == ["variables named otherwise"]


def test_an_hdf5_heap_that_sends_the_library_round_and_round(tmp_path: Path) -> None:
    _, file = prepared(SUBJECTS[1], tmp_path / "source")
    data = bytearray(file.read_bytes())
    heap = data.index(b"GCOL")
    data[heap + 16 : heap + 32] = bytes(16)  # a free object of no bytes, which is followed by itself
    file.write_bytes(data)
    error = migrated(file, tmp_path / "out", {})
    assert isinstance(error, DamagedFileError)
    assert "heap at byte" in str(error)


@pytest.mark.parametrize("how", [{}, {"userblock_size": 512}, {"libver": "latest"}, {"track_order": True}], ids=str)
def test_an_attribute_that_claims_to_be_gigabytes_is_refused_before_they_are_allocated(
    how: dict[str, Any], tmp_path: Path
) -> None:
    """The length is damaged together with the address behind it, so that no look into the heap would tell."""
    path = tmp_path / "model.h5"
    with h5py.File(path, "w", **how) as file:
        file.create_group("model_weights").attrs["text"] = "x" * 77
        for i in range(6):
            file["model_weights"].attrs[f"more_{i}"] = i
    data = bytearray(path.read_bytes())
    at = data.index(struct.pack("<I", 77) + struct.pack("<Q", data.index(b"GCOL") - how.get("userblock_size", 0)))
    data[at : at + 8] = b"\xff\xff\xff\x7f" * 2
    raw = io.BytesIO(data)
    with h5py.File(path) as file:  # whole: newer headers have a checksum, which a malicious file would have right
        assert check_heaps(file, io.BytesIO(path.read_bytes()), len(data), "model.h5") is None
        with pytest.raises(DamagedFileError, match="a text in it is longer"):
            check_heaps(file, raw, len(data), "model.h5")


@pytest.mark.parametrize("kind", [0, 2, 5])
def test_values_of_variable_length_that_are_no_texts_are_refused_before_the_library_crashes(
    kind: int, tmp_path: Path
) -> None:
    path = tmp_path / "model.h5"
    with h5py.File(path, "w") as file:
        file.create_group("model_weights").attrs["weight_names"] = np.array([b"kernel:0", b"bias:0"])
    data = bytearray(path.read_bytes())
    at = data.index(b"weight_names") + 16  # the type stands behind the name, which is filled up to eights
    assert data[at] == 0x13
    data[at : at + 2] = bytes([0x19, kind])
    path.write_bytes(data)
    with (
        pytest.raises(DamagedFileError, match="in a way that Keras never uses"),
        hdf5.opened(str(path), attributes=True),
    ):
        pass


@pytest.mark.breadth
def test_a_damaged_length_costs_no_memory(tmp_path: Path) -> None:
    """Seed 40 of both files made the HDF5 library allocate 4 GB."""
    for subject in SUBJECTS[1], SUBJECTS[3]:
        source, file = prepared(subject, tmp_path / "source")
        damage(file, {}, random.Random(40))
        result = limited(source, tmp_path / "out", memory=1 << 30)
        assert result.returncode == 3, result
        assert "longer than the file" in result.stdout


def limited(source: Path, dest: Path, memory: int) -> subprocess.CompletedProcess[str]:
    """A migration in a process that may take so much memory more than it needs to start."""
    code = (
        "import resource, sys, h5py, numpy, google_crc32c, migrate, migrate.readers.keras_h5, migrate.writers.slots\n"
        "from optim.errors import DtoptError\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[3]),) * 2)\n"
        "try: migrate.migrate_checkpoint(*sys.argv[1:3])\n"
        "except DtoptError as error: print(error); sys.exit(error.exit_code)"
    )
    command = [sys.executable, "-c", code, str(source), str(dest), str(memory)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_a_pickle_whose_memo_would_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "weights.pkl"
    path.write_bytes(b"\x80\x02]r\xff\xff\xff\x7f.")
    error = migrated(path, tmp_path / "out", SUBJECTS[-1].hint_values())
    assert isinstance(error, DamagedFileError)
    assert "memo" in str(error)


def test_a_pickle_that_calls_a_name_with_control_characters_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "weights.pkl"
    path.write_bytes(b"\x80\x04\x8c\x02o\x1b\x8c\x03s\ny\x93.")
    error = migrated(path, tmp_path / "out", SUBJECTS[-1].hint_values())
    assert isinstance(error, UnsupportedError)
    assert str(error).isprintable()


@pytest.mark.parametrize("error", [OSError("no object \x7f\x1b[31m"), DamagedFileError("no object \x7f\x1b[31m\udc80")])
def test_control_characters_in_a_message_are_escaped(error: Exception) -> None:
    with pytest.raises(DamagedFileError) as raised, error_boundary.reading("model.h5"):
        raise error
    assert str(raised.value).isprintable()
    assert r"no object \x7f\x1b[31m" in str(raised.value)


def test_an_npz_with_a_bomb_of_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_list, "MAX_UNPACKED", 1 << 20)
    path = tmp_path / "weights.npz"
    np.savez_compressed(path, np.array([np.zeros(1 << 20)], object))
    error = migrated(path, tmp_path / "out", SUBJECTS[-1].hint_values())
    assert isinstance(error, DamagedFileError)
    assert "unpacks to" in str(error)


@pytest.mark.parametrize("version", [b"\x94\x00", b"\xff\xff"])
def test_a_zip_of_a_version_that_zipfile_does_not_know(version: bytes, tmp_path: Path) -> None:
    _, file = prepared(SUBJECTS[-3], tmp_path / "source")
    data = bytearray(file.read_bytes())
    central = data.index(b"PK\x01\x02")
    data[central + 6 : central + 8] = version
    file.write_bytes(data)
    error = migrated(file, tmp_path / "out", SUBJECTS[-3].hint_values())
    assert isinstance(error, DamagedFileError)


def test_an_npy_header_that_is_no_python(tmp_path: Path) -> None:
    path = tmp_path / "weights.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00\x10\x00" + b"{'descr': ('|O',".ljust(15) + b"\n" + b"x" * 40)
    assert isinstance(migrated(path, tmp_path / "out", SUBJECTS[-2].hint_values()), DamagedFileError)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("learning_rate", 10**400),
        ("beta_1", float("nan")),
        ("gradient_accumulation_steps", [[1]]),
        ("gradient_accumulation_steps", 2.5),
        ("gradient_accumulation_steps", float("nan")),
        ("ema_momentum", "x"),
    ],
)
def test_a_hyperparameter_that_is_no_number(key: str, value: Any, tmp_path: Path) -> None:
    subject = SUBJECTS[6]
    hints = subject.hint_values()
    hints["optimizer_config"]["config"] |= {"use_ema": key == "ema_momentum", key: value}
    error = migrated(CORPUS / subject.case / "source" / subject.source, tmp_path / "out", hints)
    assert isinstance(error, DtoptError)
    assert error.exit_code == 3
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["slots", "keras", "tf-keras", "list"])
@pytest.mark.parametrize("room", [700, pytest.param(1500, marks=pytest.mark.breadth)])
@pytest.mark.quick(1)
def test_a_full_disk_leaves_nothing(to: str, room: int, tmp_path: Path) -> None:
    """RLIMIT_FSIZE refuses to let a file grow, as a full disk does, and here also as root."""
    subject = SUBJECTS[4]
    source = CORPUS / subject.case / "source" / subject.source
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f" resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}));"
        " import migrate; from optim.errors import DtoptError\n"
        "try: migrate.migrate_checkpoint(*sys.argv[1:3], to=sys.argv[3])\n"
        "except DtoptError as error: print(error); sys.exit(error.exit_code)"
    )
    suffix = {"slots": "", "keras": ".keras", "tf-keras": ".h5", "list": ".npz"}[to]
    alone = [sys.executable, "-B", "-c", code]  # the limit would cut what it caches of modules, too
    command = [*alone, str(source), str(tmp_path / f"out{suffix}"), to]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (result.returncode, result.stderr) == (3, "")
    assert "File too large" in result.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", ["slots", "keras", "tf-keras", "list"])
def test_a_pipe_in_the_place_of_a_target_is_left_alone(to: str, tmp_path: Path) -> None:
    subject = SUBJECTS[4]
    source = CORPUS / subject.case / "source" / subject.source
    dest = tmp_path / f"out{ {'slots': '', 'keras': '.keras', 'tf-keras': '.h5', 'list': '.npz'}[to] }"
    os.mkfifo(dest)
    with pytest.raises(TargetExistsError):
        migrate.migrate_checkpoint(source, dest, to=to, overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == [dest.name]


def test_a_target_where_no_folder_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    subject = SUBJECTS[4]
    source = CORPUS / subject.case / "source" / subject.source
    error = migrated(source, tmp_path / "file" / "out", {})
    assert isinstance(error, DtoptError)
    assert error.exit_code == 3
    assert (tmp_path / "file").read_text() == "kept"
    if Path("/proc/self").exists():  # which even root cannot write to
        assert isinstance(migrated(source, Path("/proc/out"), {}), DtoptError)
