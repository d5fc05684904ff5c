"""`.keras` files of real releases, read bit for bit, and hostile ones, refused."""

from __future__ import annotations

import io
import json
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import migrate
from migrate.algorithms import find
from migrate.errors import AmbiguousError, DamagedFileError, UnknownFormatError
from migrate.readers import keras_zip
from migrate.readers.keras.layers import snake_case
from optim.bytes import checks
from optim.errors import UnsupportedError
from tests.helpers.keras_releases import needs_keras
from tests.places import CORPUS, FEATURES

CASES = {
    "keras38-adam-convbn": "keras3",
    "keras38-adadelta-mlp": "keras3",
    "tfk221-new-adam-clipnorm-nested": "optimizer",
    "extra-keras315-adam-lss-mixed-keras": "keras3",
    "extra-keras315-adam-twins-keras": "keras3",
    "extra-tfk221-new-adam-amsgrad-same-shapes-keras": "optimizer",
}
REAL = "keras38-adam-convbn"


def _source(name: str) -> str:
    return str(CORPUS / name / "source" / "model.keras")


@pytest.mark.parametrize("name", CASES)
def test_real_files_bit_for_bit(name: str) -> None:
    case = json.loads((CORPUS / name / "case.json").read_text())
    oracle = np.load(CORPUS / name / "oracle.npz")
    state = migrate.read(_source(name))
    assert state.source is not None
    assert (state.source.format, state.source.generation) == ("keras", CASES[name])
    assert (state.iterations, state.fidelity) == (int(oracle["iterations"]), "exact")
    trained = [v for v in state.variables if v.trainable]
    assert [v.shape for v in trained] == [tuple(v["shape"]) for v in case["trainable"]]
    algorithm, checked = find(state.algorithm), 0
    for i, variable in enumerate(trained):
        assert variable.array is not None
        assert variable.array.load().tobytes() == oracle[f"at_save/var/{i}"].tobytes()
    for key in oracle.files:
        if key.startswith("at_save/slot/"):
            _, _, slot, i = key.split("/")
            got = state.slots[algorithm.slot_of(slot) or ""][trained[int(i)].name].load()
            assert got.dtype == oracle[key].dtype
            assert got.tobytes() == oracle[key].tobytes(), key
            checked += 1
    assert checked == sum(len(owners) for owners in state.slots.values())


@pytest.mark.parametrize("name", ["keras38-adam-convbn", "tfk221-new-adam-clipnorm-nested"])
def test_names_are_those_of_the_framework(name: str) -> None:
    case = json.loads((CORPUS / name / "case.json").read_text())
    state = migrate.read(_source(name))
    assert [v.name for v in state.variables if v.trainable] == [v["name"].removesuffix(":0") for v in case["trainable"]]


def test_names_that_are_shared_tell_their_models() -> None:
    state = migrate.read(_source("extra-keras315-adam-twins-keras"))
    names = ["left/core/kernel", "left/core/bias", "right/core/kernel", "right/core/bias", "core/kernel", "core/bias"]
    assert [v.name for v in state.variables] == names


def test_frozen_layers_and_moving_averages_are_not_trained() -> None:
    flags = {v.name: v.trainable for v in migrate.read(_source(REAL)).variables}
    assert flags["sequential/dense/kernel"] is False
    assert flags["sequential/batch_normalization/moving_mean"] is False
    assert flags["sequential/batch_normalization/gamma"] is True


def test_what_a_batch_renormalization_measures_is_not_trained() -> None:
    state = migrate.read(FEATURES / "keras3.15.1-batch-renorm.keras")
    at = "batch_normalization/"
    measured = {v.name for v in state.variables if v.trainable is False}
    assert measured == {
        *(f"{at}moving_mean", f"{at}moving_variance", f"{at}moving_stddev"),
        *(f"{at}renorm_mean", f"{at}renorm_stddev"),
    }


def test_flags_that_were_turned_after_compile_are_never_exact(tmp_path: Path) -> None:
    """Keras 3 itself would give the slots of the last layer to the first."""
    import keras

    model = keras.Sequential([keras.Input((4,)), *(keras.layers.Dense(4, name=name) for name in "abc")])
    model.layers[0].trainable = False
    model.compile("adam", "mse")
    model.train_on_batch(np.ones((2, 4)), np.eye(4)[:2])
    model.save(tmp_path / "frozen.keras")
    frozen = migrate.read(tmp_path / "frozen.keras")
    path = model.name
    assert [r for r in frozen.reasons if f"the slots would fit {path}/a/kernel, {path}/a/bias, " in r]
    untrained = [f"{path}/a/kernel", f"{path}/a/bias"]
    assert migrate.read(tmp_path / "frozen.keras", overrides={"untrained": untrained}).fidelity == "exact"
    model.layers[0].trainable, model.layers[2].trainable = True, False
    model.save(tmp_path / "turned.keras")
    assert migrate.read(tmp_path / "turned.keras").fidelity == "approximate"


def test_loss_scale_is_carried_among_the_unmapped() -> None:
    state = migrate.read(_source("extra-keras315-adam-lss-mixed-keras"))
    assert sorted(state.unmapped) == [f"optimizer/vars/{i}" for i in range(4)]


def test_a_legacy_optimizer_has_lost_its_state() -> None:
    with pytest.raises(UnsupportedError, match=r"no optimizer state.*legacy.*\.h5"):
        migrate.read(_source("extra-tfk221-legacy-adam-keras"))


@pytest.mark.parametrize(
    ("class_name", "expected"),
    [
        ("Conv2DTranspose", "conv2d_transpose"),
        ("LSTM", "lstm"),
        ("RandomNormal", "random_normal"),
        ("_Own", "private__own"),
    ],
)
def test_snake_case(class_name: str, expected: str) -> None:
    assert snake_case(class_name) == expected


def _members() -> dict[str, bytes]:
    with zipfile.ZipFile(_source(REAL)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _written(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> str:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return str(path)


def test_a_compressed_file_reads_the_same(tmp_path: Path) -> None:
    path = _written(tmp_path / "m.keras", _members(), zipfile.ZIP_DEFLATED)
    ours, theirs = migrate.read(path), migrate.read(_source(REAL))
    for slot, owners in theirs.slots.items():
        for name, array in owners.items():
            assert ours.slots[slot][name].load().tobytes() == array.load().tobytes()


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_vocabularies_go_along(tmp_path: Path, compression: int) -> None:
    assets = {"assets/layers/string_lookup/vocabulary.txt": b"cat\ndog", "assets/empty.txt": b""}
    path = _written(tmp_path / "m.keras", {**_members(), **assets}, compression)
    migrate.migrate_checkpoint(path, tmp_path / "target.keras", to="keras")
    with zipfile.ZipFile(tmp_path / "target.keras") as archive:
        vocabularies = {name: archive.read(name) for name in archive.namelist() if name.startswith("assets/")}
    assert vocabularies == assets


def test_a_vocabulary_that_leads_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    path = _written(tmp_path / "m.keras", {**_members(), "assets/../../escaped.txt": b"x"})
    with pytest.raises(DamagedFileError, match="leads out of its folder"):
        migrate.read(path)


def test_nothing_is_extracted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {"../escaped.txt": b"x", "/absolute": b"y", **_members()}
    path = _written(tmp_path / "folder.keras", members)
    monkeypatch.chdir(tmp_path)
    state = migrate.read(path)
    state.slots["m"]["sequential/conv2d/bias"].load()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder.keras"]
    assert not (tmp_path.parent / "escaped.txt").exists()
    assert any("2 members that Keras does not use" in warning for warning in state.warnings)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    members = _members()
    path = _written(tmp_path / "bomb.keras", members, zipfile.ZIP_DEFLATED)
    data = bytearray(Path(path).read_bytes())
    entry = data.rindex(b"PK\x01\x02", 0, data.rindex(b"model.weights.h5"))
    data[entry + 24 : entry + 28] = struct.pack("<I", 0xFFFFFF00)  # the size after unpacking
    Path(path).write_bytes(data)
    with pytest.raises(DamagedFileError, match="more than can be stored"):
        migrate.read(path)


def test_a_config_that_unpacks_to_much_is_refused(tmp_path: Path) -> None:
    big = b"[" + b" " * (keras_zip.MAX_JSON + 1) + b"]"
    path = _written(tmp_path / "big.keras", {**_members(), "config.json": big}, zipfile.ZIP_DEFLATED)
    with pytest.raises(DamagedFileError, match="more than any config"):
        migrate.read(path)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("config.json", b'{"config":' * 200_000, r"config\.json cannot be read"),
        ("config.json", b"[1, 2]", "no JSON object"),
        ("metadata.json", b"{}", "no keras_version"),
        ("model.weights.h5", b"no HDF5 at all", "damaged HDF5"),
    ],
)
def test_broken_members(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    with pytest.raises(DamagedFileError, match=message):
        migrate.read(_written(tmp_path / "m.keras", {**_members(), name: data}))


@pytest.mark.parametrize("name", ["config.json", "metadata.json"])
def test_missing_members(tmp_path: Path, name: str) -> None:
    members = {key: data for key, data in _members().items() if key != name}
    with pytest.raises(DamagedFileError, match=f"holds no {name}"):
        migrate.read(_written(tmp_path / "m.keras", members))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name(tmp_path: Path) -> None:
    path = _written(tmp_path / "m.keras", _members())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("config.json", b"{}")
    with pytest.raises(DamagedFileError, match="two members of one name"):
        migrate.read(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    data, path = Path(_source(REAL)).read_bytes(), tmp_path / "cut.keras"
    for size in (5, 100, len(data) // 2, len(data) - 30, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(DamagedFileError):
            migrate.read(path)


def _with_a_flipped_bit(tmp_path: Path) -> Path:
    data = bytearray(Path(_source(REAL)).read_bytes())
    slot = np.load(CORPUS / REAL / "oracle.npz")["at_save/slot/momentums/0"].tobytes()
    data[data.index(slot) + 3] ^= 1
    path = tmp_path / "flipped.keras"
    path.write_bytes(data)
    return path


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match=r"damaged.*checksum"):
        keras_zip.read(str(_with_a_flipped_bit(tmp_path)))


@pytest.mark.parametrize("dest", ["out", "out.npz"])
@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("joined", [False, True])
def test_a_flipped_bit_in_a_large_file_is_found_before_anything_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dest: str, dry_run: bool, joined: bool
) -> None:
    monkeypatch.setattr(keras_zip, "CHECKED_AT_ONCE", 0)
    monkeypatch.setattr(checks, "WORTH_JOINING", 0 if joined else 1 << 62)
    path = _with_a_flipped_bit(tmp_path)
    stored = keras_zip.read(str(path))  # so that inspect need not read all of it
    assert stored.weights is not None
    assert stored.weights[0][1].load().shape == ()
    with pytest.raises(DamagedFileError, match=r"damaged.*checksum"):
        stored.weights[-1][1].load()
    with pytest.raises(DamagedFileError, match=r"damaged.*checksum"):
        migrate.migrate_checkpoint(path, tmp_path / dest, dry_run=dry_run)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["flipped.keras"]


def test_inspect_says_that_a_large_file_was_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lion's list has one order, so that no slot had to be read to know it."""
    monkeypatch.setattr(keras_zip, "CHECKED_AT_ONCE", 0)
    path = CORPUS / "tf215-new-lion-embed" / "source" / "model.keras"
    assert "--stats" in migrate.inspect(path).warnings[-1]
    assert not any("--stats" in warning for warning in migrate.inspect(path, stats=True).warnings)


def _with_weights(tmp_path: Path, change: Any) -> str:
    """The real file with its HDF5 changed by `change(file)`."""
    members = _members()
    raw = io.BytesIO(members["model.weights.h5"])
    with h5py.File(raw, "r+") as file:
        change(file)
    return _written(tmp_path / "m.keras", {**members, "model.weights.h5": raw.getvalue()})


def _no_gap(file: h5py.File) -> None:
    del file["optimizer/vars/5"]


def _cycle(file: h5py.File) -> None:
    file["layers/conv2d/again"] = file["layers"]


def _external(file: h5py.File) -> None:
    del file["optimizer/vars/5"]
    file["optimizer/vars/5"] = h5py.ExternalLink("/etc/passwd", "x")


def _soft(file: h5py.File) -> None:
    file["layers/linked"] = h5py.SoftLink("/layers/conv2d")


def _huge(file: h5py.File) -> None:
    del file["optimizer/vars/5"]
    file.create_dataset("optimizer/vars/5", (1 << 40,), "f4", chunks=(1 << 20,), compression="gzip")


def _deep(file: h5py.File) -> None:
    file.create_group("/".join(["x"] * 100))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_no_gap, "vars/5 is missing"),
        (_cycle, "are one object"),
        (_external, "link that leaves the file"),
        (_soft, "link that leaves the file"),
        (_huge, "refused"),
        (_deep, "nested without end"),
    ],
)
def test_hostile_weights(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(DamagedFileError, match=message):
        migrate.read(_with_weights(tmp_path, change))


def _as_2_13(group: h5py.Group) -> None:
    """The layout of tf.keras 2.12 and 2.13: a layer with weights is counted twice, under another list."""
    for key in list(group):
        if isinstance(group[key], h5py.Group):
            _as_2_13(group[key])
    if "layers" in group:
        group.move("layers", "_layer_checkpoint_dependencies")
        layers = group["_layer_checkpoint_dependencies"]
        for key in sorted(layers, reverse=True):
            head, _, tail = key.rpartition("_")
            if tail.isdecimal():
                layers.move(key, f"{head}_{2 * int(tail)}")


@pytest.mark.parametrize("release", ["tf2.13.1", "tf2.14.1", "tf2.14.1windows"])
def test_variables_have_the_names_of_their_layers_whatever_the_layout(release: str) -> None:
    """tf.keras 2.13 counts layers twice, 2.14 once; on Windows a group is called `layers\\dense`."""
    source = FEATURES / f"{release}-model-within.keras"
    oracle = np.load(source.with_suffix(".npz"))
    variables = migrate.read(source).variables
    layers = ("dense", "dense_1", "dense_2", "dense_3", "dense_4")
    assert [v.name for v in variables] == [f"{layer}/{role}" for layer in layers for role in ("kernel", "bias")]
    for i, variable in enumerate(variables):
        assert variable.array is not None
        assert variable.array.load().tobytes() == oracle[f"at_save/{i}"].tobytes()


def test_the_layout_of_2_12_and_2_13(tmp_path: Path) -> None:
    source = _source("tfk221-new-adam-clipnorm-nested")
    with zipfile.ZipFile(source) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    raw = io.BytesIO(members["model.weights.h5"])
    with h5py.File(raw, "r+") as file:
        _as_2_13(file)
    members |= {"model.weights.h5": raw.getvalue(), "metadata.json": b'{"keras_version": "2.13.1"}'}
    old, new = migrate.read(_written(tmp_path / "m.keras", members)), migrate.read(source)
    assert [v.name for v in old.variables] == [v.name for v in new.variables]
    for slot, owners in new.slots.items():
        for name, array in owners.items():
            assert old.slots[slot][name].load().tobytes() == array.load().tobytes()


def test_layers_that_do_not_fit_the_config_leave_the_order_open(tmp_path: Path) -> None:
    name = "extra-tfk221-new-adam-amsgrad-same-shapes-keras"
    with zipfile.ZipFile(_source(name)) as archive:
        members = {key: archive.read(key) for key in archive.namelist()}
    config = json.loads(members["config.json"])
    kinds = [layer for layer in config["config"]["layers"] if layer["class_name"] == "Dense"]
    kinds[0]["class_name"] = "Other"
    raw = io.BytesIO(members["model.weights.h5"])
    with h5py.File(raw, "r+") as file:
        file.move("layers/dense", "layers/strange")
    members |= {"model.weights.h5": raw.getvalue(), "config.json": json.dumps(config).encode()}
    with pytest.raises(AmbiguousError, match=r"order of its layers.*--variables"):
        migrate.read(_written(tmp_path / "m.keras", members))


@needs_keras("3.14")
@pytest.mark.parametrize("stock", ["MultiHeadAttention", "GroupQueryAttention"])
@pytest.mark.quick(1)
def test_a_gate_of_attention_is_trained_between_key_and_value(stock: str, tmp_path: Path) -> None:
    import keras

    sizes = (2, 3) if stock == "MultiHeadAttention" else (3, 2, 2)
    entry = keras.Input((5, 4))
    layer = getattr(keras.layers, stock)(*sizes, use_gate=True)
    model = keras.Model(entry, layer(entry, entry))
    model.compile("adam", "mse")
    model.train_on_batch(np.random.default_rng(0).normal(size=(3, 5, 4)), np.ones((3, 5, 4)))
    model.save(tmp_path / "gated.keras")
    state = migrate.read(tmp_path / "gated.keras")
    slots = {v.path.partition("/")[2]: np.asarray(v) for v in model.optimizer.variables}
    assert state.fidelity == "exact"
    assert len(state.slots["m"]) == len(layer.trainable_variables) == 10
    for name, array in state.slots["m"].items():
        assert np.array_equal(array.load(), slots[name.replace("/", "_") + "_momentum"])


def test_what_stock_layers_do_not_train_is_not_doubted(tmp_path: Path) -> None:
    """SpectralNormalization saves the kernel of the layer in it a second time, and a vector; a lookup its weights."""
    import keras
    import tensorflow as tf

    words = keras.layers.StringLookup(vocabulary=["a", "b"], idf_weights=[0.3, 0.4], output_mode="tf_idf")
    entry = keras.Input((1,), dtype="string")
    model = keras.Model(entry, keras.layers.SpectralNormalization(keras.layers.Dense(3, name="inner"))(words(entry)))
    model.compile("adam", "mse")
    model.train_on_batch(tf.constant([["a"], ["b"]]), np.ones((2, 3)))
    model.save(tmp_path / "spectral.keras")
    state = migrate.read(tmp_path / "spectral.keras")
    assert state.fidelity == "exact"
    assert [name.rsplit("/", 2)[-2:] for name in state.slots["m"]] == [["inner", "kernel"], ["inner", "bias"]]


def test_slots_of_an_adapted_kernel_are_no_damage(tmp_path: Path) -> None:
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, lora_rank=2)])
    model.compile("adam", "mse")
    model.train_on_batch(np.ones((5, 4)), np.ones((5, 3)))
    model.save(tmp_path / "adapted.keras")
    with pytest.raises(UnsupportedError, match="saves the kernel with its LoRA factors"):
        migrate.read(tmp_path / "adapted.keras")


def test_slots_of_a_kernel_that_was_quantized_later_are_no_question_of_order(tmp_path: Path) -> None:
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="a"), keras.layers.Dense(3, name="b")])
    model.compile("adam", "mse")
    model.train_on_batch(np.ones((5, 4)), np.ones((5, 3)))
    model.quantize("int8")
    model.save(tmp_path / "quantized.keras")
    with pytest.raises(UnsupportedError, match=r"a, b: quantized after training.*no training to continue"):
        migrate.read(tmp_path / "quantized.keras")


@pytest.mark.parametrize("name", ["gan.keras", "gan.weights.h5"])
@pytest.mark.parametrize(("momentum", "attribute"), [(0.0, "g_optimizer"), (0.9, "g_optimizer"), (0.9, "optimizers")])
def test_optimizers_of_a_model_of_ones_own_are_not_passed_over(
    momentum: float, attribute: str, name: str, tmp_path: Path
) -> None:
    """The GAN of Keras's examples: the optimizer of compile() is RMSprop, which takes no step."""
    import keras

    class GAN(keras.Model):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.generator = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
            generator_optimizer = keras.optimizers.SGD(0.1, momentum=momentum)
            setattr(self, attribute, [generator_optimizer] if attribute == "optimizers" else generator_optimizer)

        def call(self, entry: Any) -> Any:
            return self.generator(entry)

    gan = GAN()
    gan.compile()
    gan(np.ones((1, 2), np.float32))
    generator_optimizer = gan.optimizers[0] if attribute == "optimizers" else gan.g_optimizer
    generator_optimizer.apply([np.ones((2, 3), np.float32), np.ones(3, np.float32)], gan.generator.trainable_variables)
    (gan.save if name.endswith(".keras") else gan.save_weights)(tmp_path / name)
    with pytest.raises(UnsupportedError, match=rf"holds {attribute} as well as .*{attribute}=model.{attribute}"):
        migrate.read(tmp_path / name, optimizer_config={"class_name": "RMSprop", "config": {}})


def test_a_folder_of_keras_3_is_named_with_what_makes_a_file_of_it(tmp_path: Path) -> None:
    import keras

    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    model.train_on_batch(np.ones((4, 3)), np.ones((4, 2)))
    folder = tmp_path / "its model"
    model.save(folder, zipped=False)
    model.save(tmp_path / "packed.keras")
    with pytest.raises(UnknownFormatError) as refused:
        migrate.read(folder)
    command = re.search(r"python (-m zipfile -c model\.keras .*/\*), and", str(refused.value))
    assert command is not None
    subprocess.run(f"{sys.executable} {command[1]}", shell=True, cwd=tmp_path, check=True)
    assert (
        migrate.read(tmp_path / "model.keras").fidelity == migrate.read(tmp_path / "packed.keras").fidelity == "exact"
    )


def test_an_optimizer_given_by_name_leaves_only_its_learning_rate_open(tmp_path: Path) -> None:
    """tf.keras stores `compile("adam")` as that name: its arguments are left out, but a program may set the rate."""
    import tf_keras

    model = tf_keras.Sequential([tf_keras.Input((4,)), tf_keras.layers.Dense(3)])
    model.compile("adam", "mse")
    model.train_on_batch(np.ones((2, 4)), np.ones((2, 3)))
    model.save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        assert json.loads(archive.read("config.json"))["compile_config"]["optimizer"] == "adam"
    (reason,) = migrate.read(tmp_path / "model.keras").reasons
    assert reason.startswith("learning_rate = 0.001 is not in the source")
    state = migrate.read(tmp_path / "model.keras", overrides={"learning_rate": 0.001})
    assert state.fidelity == "exact"
    config = model.optimizer.get_config()
    assert {key: config[key] for key in ("beta_1", "beta_2", "epsilon")}.items() <= state.hyperparameters.items()
