"""Keras HDF5 files: broken and hostile ones, and the order of the trained variables read from JSON."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import migrate
from migrate.errors import AmbiguousError, ContradictionError, DamagedFileError, UnknownFormatError
from migrate.readers import keras_h5
from migrate.readers.keras.model import check_inputs, leaves, trainable_flags
from optim.errors import DtoptError, MismatchError, UnsupportedError
from tests.helpers import next_steps
from tests.places import CORPUS, KERAS

CONFUSING = CORPUS / "extra-tf24-adam-confusing-h5"
REAL = CORPUS / "keras224-sgd-momentum-convbn" / "source" / "model.h5"


def _write(
    path: Path,
    layers: list[tuple[str, bool, dict[str, np.ndarray]]],
    optimizer: list[tuple[str, np.ndarray]],
    version: str = "2.2.4",
    config: dict[str, Any] | None = None,
    class_name: str = "SGD",
) -> Path:
    """A file as `model.save` lays it out, with layers (name, trainable, weights)."""
    config = {"lr": 0.5, "momentum": 0.9, "decay": 0.0, "nesterov": False} if config is None else config
    with h5py.File(path, "w") as file:
        file.attrs["keras_version"] = version
        if not version.startswith("1."):
            file.attrs["backend"] = "tensorflow"
        model = {
            "class_name": "Sequential",
            "config": [{"class_name": "Dense", "config": {"name": n, "trainable": t}} for n, t, _ in layers],
        }
        file.attrs["model_config"] = json.dumps(model)
        file.attrs["training_config"] = json.dumps({"optimizer_config": {"class_name": class_name, "config": config}})
        group = file.create_group("model_weights")
        group.attrs["layer_names"] = [n.encode() for n, _, _ in layers]
        for name, _, weights in layers:
            node = group.create_group(name)
            node.attrs["weight_names"] = [w.encode() for w in weights]
            for weight, value in weights.items():
                node[weight] = value
        group = file.create_group("optimizer_weights")
        group.attrs["weight_names"] = [n.encode() for n, _ in optimizer]
        for name, value in optimizer:
            group[name] = value
    return path


def _dense(name: str, *shape: int, trainable: bool = True) -> tuple[str, bool, dict[str, np.ndarray]]:
    return name, trainable, {f"{name}/kernel:0": np.ones(shape, np.float32)}


def _moments(*arrays: np.ndarray) -> list[tuple[str, np.ndarray]]:
    names = ["training/SGD/Variable:0", *(f"training/SGD/Variable_{i}:0" for i in range(1, len(arrays)))]
    return [("SGD/iterations:0", np.array(3)), *zip(names, arrays, strict=True)]


def _value(i: int, *shape: int) -> np.ndarray:
    return np.full(shape, i, np.float32)


def _found(path: Path) -> dict[str, float]:
    """First number of each variable's slot m."""
    return {name: float(a.load().flat[0]) for name, a in migrate.read(path).slots["m"].items()}


def test_more_than_ten_weights_keep_their_order(tmp_path: Path) -> None:
    """HDF5 lists Variable_10 before Variable_2."""
    layers = [_dense(f"d{i}", 2, 2) for i in range(12)]
    path = _write(tmp_path / "x.h5", layers, _moments(*(_value(i, 2, 2) for i in range(12))))
    assert _found(path) == {f"d{i}/kernel": float(i) for i in range(12)}


def test_keras_1_orders_slots_by_name(tmp_path: Path) -> None:
    layers = [(n, True, {f"{n}_W:0": np.ones((2, 2), np.float32)}) for n in ("dense_2", "dense_10")]
    optimizer = [
        ("Variable:0", np.array(3.0, np.float32)),
        ("Variable_5:0", _value(10, 2, 2)),
        ("Variable_6:0", _value(2, 2, 2)),
    ]
    path = _write(tmp_path / "x.h5", layers, optimizer, version="1.2.2")
    assert _found(path) == {"dense_2_W": 2.0, "dense_10_W": 10.0}
    assert migrate.read(path).iterations == 3


def test_names_of_optimizer_v2_win_over_order(tmp_path: Path) -> None:
    layers = [_dense("a", 2, 2), _dense("b", 2, 2)]
    optimizer = [
        ("b/kernel/momentum:0", _value(2, 2, 2)),
        ("a/kernel/momentum:0", _value(1, 2, 2)),
        ("SGD/iter:0", np.array(3)),
    ]
    path = _write(tmp_path / "x.h5", layers, optimizer, "2.9.0", {"name": "SGD", "learning_rate": 0.5, "momentum": 0.9})
    state = migrate.read(path)
    assert _found(path) == {"a/kernel": 1.0, "b/kernel": 2.0}
    assert set(state.matched.values()) == {"name"}


def test_a_layer_frozen_after_compile_is_found_by_shape(tmp_path: Path) -> None:
    layers = [_dense("a", 2, 2), _dense("b", 3, 3, trainable=False), _dense("c", 2, 2)]
    path = _write(tmp_path / "x.h5", layers, _moments(_value(1, 2, 2), _value(2, 3, 3), _value(3, 2, 2)))
    state = migrate.read(path)
    assert _found(path) == {"a/kernel": 1.0, "b/kernel": 2.0, "c/kernel": 3.0}
    assert set(state.matched.values()) == {"shape"}
    assert any("by their shapes they are" in w for w in state.warnings)


def _v2(path: Path, layers: Any, names: str) -> migrate.OptimizerState:
    optimizer = [
        ("SGD/iter:0", np.array(3)),
        *((f"SGD/{n}/kernel/momentum:0", _value(i, 2, 2)) for i, n in enumerate(names)),
    ]
    return migrate.read(
        _write(path, layers, optimizer, "2.9.0", {"name": "SGD", "learning_rate": 0.5, "momentum": 0.9})
    )


def test_slots_of_a_layer_frozen_later_are_kept_unmapped_in_optimizer_v2(tmp_path: Path) -> None:
    """OptimizerV2 trains what is trainable at each step; the slots of the others wait."""
    state = _v2(tmp_path / "x.h5", [_dense("a", 2, 2), _dense("b", 2, 2, trainable=False)], "ab")
    assert (list(state.slots["m"]), list(state.unmapped)) == (["a/kernel"], ["m/b/kernel"])
    assert {v.name: v.trainable for v in state.variables} == {"a/kernel": True, "b/kernel": False}
    assert any("b/kernel" in w for w in state.warnings)


def test_a_model_frozen_as_a_whole_was_trained_by_its_optimizer(tmp_path: Path) -> None:
    state = _v2(tmp_path / "x.h5", [_dense(n, 2, 2, trainable=False) for n in "ab"], "ab")
    assert list(state.slots["m"]) == ["a/kernel", "b/kernel"]
    assert all(v.trainable for v in state.variables)


def _hint(*names: str) -> list[dict[str, Any]]:
    return [{"name": f"{name}/kernel", "shape": [4, 4]} for name in names]


def test_hints_that_the_model_denies_are_refused(tmp_path: Path) -> None:
    """Its order is that of the slots; what it calls trainable and has slots of was trained."""
    slots = _moments(*(_value(i, 4, 4) for i in (1, 2, 3)))
    path = _write(tmp_path / "x.h5", [_dense(name, 4, 4, trainable=name != "a") for name in "abc"], slots)
    for named in ("bc", "abc"):  # with what is frozen by now, or without
        state = migrate.read(path, variables=_hint(*named))
        assert {n: float(a.load().flat[0]) for n, a in state.slots["m"].items()} == {
            "a/kernel": 1,
            "b/kernel": 2,
            "c/kernel": 3,
        }
    with pytest.raises(ContradictionError, match="--variables names c/kernel before b/kernel"):
        migrate.read(path, variables=_hint("a", "c", "b"))
    with pytest.raises(ContradictionError, match="--variables leaves out b/kernel"):
        migrate.read(path, variables=_hint("a", "c"))


def test_which_layer_was_frozen_cannot_be_known_from_equal_shapes(tmp_path: Path) -> None:
    layers = [_dense(n, 2, 2) for n in "abc"]
    path = _write(tmp_path / "x.h5", layers, _moments(_value(1, 2, 2), _value(2, 2, 2)))
    with pytest.raises(AmbiguousError, match="a/kernel, b/kernel; or a/kernel, c/kernel"):
        migrate.read(path)
    names = [{"name": "a/kernel", "shape": [2, 2]}, {"name": "c/kernel", "shape": [2, 2]}]
    state = migrate.read(path, variables=names)
    assert {n: float(a.load().flat[0]) for n, a in state.slots["m"].items()} == {"a/kernel": 1.0, "c/kernel": 2.0}


def test_shapes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = _write(tmp_path / "x.h5", [_dense("a", 2, 2)], _moments(_value(1, 2, 3)))
    with pytest.raises(MismatchError, match=r"\[2, 3\].*a/kernel\[2, 2\]"):
        migrate.read(path)


def test_a_slot_whose_name_fits_and_shape_does_not_is_refused(tmp_path: Path) -> None:
    optimizer = [("SGD/iter:0", np.array(3)), ("SGD/a/kernel/momentum:0", _value(1, 3, 3))]
    path = _write(tmp_path / "x.h5", [_dense("a", 2, 2)], optimizer, "2.9.0", {"name": "SGD", "momentum": 0.9})
    with pytest.raises(MismatchError, match="do not belong together"):
        migrate.read(path)


def test_a_shared_layer_counts_once_and_its_twin_twice(tmp_path: Path) -> None:
    shared, other = {"core/kernel:0": _value(1, 2, 2)}, {"core/kernel:0": _value(2, 2, 2)}
    path = _write(tmp_path / "s.h5", [("m1", True, shared), ("m2", True, dict(shared))], _moments(_value(5, 2, 2)))
    assert _found(path) == {"core/kernel": 5.0}
    path = _write(
        tmp_path / "t.h5", [("m1", True, shared), ("m2", True, other)], _moments(_value(5, 2, 2), _value(6, 2, 2))
    )
    assert _found(path) == {"m1/core/kernel": 5.0, "m2/core/kernel": 6.0}


def test_flags_of_nested_models_wrappers_and_statistics() -> None:
    def dense(name: str, trainable: bool = True) -> dict[str, Any]:
        return {"class_name": "Dense", "config": {"name": name, "trainable": trainable}}

    nested = {"class_name": "Model", "name": "inner", "config": {"layers": [dense("a"), dense("b", False)]}}
    assert trainable_flags(nested, ["a/kernel:0", "b/kernel:0", "inner/a/bias:0", "zzz:0"]) == [True, False, True, None]
    frozen = {"class_name": "Sequential", "config": {"name": "inner", "trainable": False, "layers": [dense("a")]}}
    assert trainable_flags(frozen, ["a/kernel:0"]) == [False]
    wrapped = {
        "class_name": "Bidirectional",
        "config": {"name": "bi", "trainable": True, "layer": dense("lstm", False)},
    }
    assert trainable_flags(wrapped, ["bi/forward_lstm/kernel:0"]) == [False]
    timed = {"class_name": "TimeDistributed", "config": {"name": "td", "trainable": True, "layer": nested}}
    assert [leaf.name for leaf in leaves(timed)] == ["a", "b"]
    norm = {"class_name": "BatchNormalization", "config": {"name": "bn", "trainable": True}}
    assert trainable_flags(norm, ["bn/gamma:0", "bn/moving_mean:0", "bn_running_std:0"]) == [True, False, False]
    slashed = {"class_name": "Functional", "config": {"layers": [dense("conv1/bn", False), dense("bn")]}}  # DenseNet
    assert trainable_flags(slashed, ["conv1/bn/gamma:0", "bn/gamma:0"]) == [False, True]


def test_long_name_lists_in_chunks_are_joined(tmp_path: Path) -> None:
    path = _write(tmp_path / "x.h5", [_dense("a", 2, 2), _dense("b", 2, 2)], _moments(_value(1, 2, 2), _value(2, 2, 2)))
    with h5py.File(path, "a") as file:
        group = file["optimizer_weights"]
        names = list(group.attrs["weight_names"])
        del group.attrs["weight_names"]
        group.attrs["weight_names0"], group.attrs["weight_names1"] = names[:2], names[2:]
    assert _found(path) == {"a/kernel": 1.0, "b/kernel": 2.0}


@pytest.mark.parametrize("fraction", [0.05, 0.3, 0.6, 0.9, 0.999])
def test_truncated(fraction: float, tmp_path: Path) -> None:
    data = REAL.read_bytes()
    path = tmp_path / "cut.h5"
    path.write_bytes(data[: int(len(data) * fraction)])
    with pytest.raises(DamagedFileError) as error:
        migrate.migrate_checkpoint(path, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_file_with_flipped_bytes_is_read_or_refused_but_never_crashes(tmp_path: Path) -> None:
    data = bytearray(REAL.read_bytes())
    rng = np.random.default_rng(0)
    for round_number in range(60):
        broken = bytearray(data)
        for at in rng.integers(8, len(data), 20):
            broken[at] ^= int(rng.integers(1, 256))
        path = tmp_path / f"{round_number}.h5"
        path.write_bytes(broken)
        with contextlib.suppress(DtoptError):  # any other exception fails the test
            migrate.inspect(path, stats=True)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x00" * 4096, b"PK\x03\x04 no zip"])
def test_other_files(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.h5"
    path.write_bytes(content)
    with pytest.raises((UnknownFormatError, DamagedFileError)):
        migrate.inspect(path)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormatError, match=r"nowhere\.h5 does not exist"):
        migrate.inspect(tmp_path / "nowhere.h5")


def _hostile(path: Path, change: Any) -> Path:
    _write(path, [_dense("a", 2, 2)], _moments(_value(1, 2, 2)))
    with h5py.File(path, "a") as file:
        group = file["optimizer_weights/training/SGD"]
        del group["Variable:0"]
        change(group)
    return path


def test_links_out_of_the_file_are_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["x"] = np.ones((2, 2), np.float32)
    external = _hostile(tmp_path / "a.h5", lambda g: g.__setitem__("Variable:0", h5py.ExternalLink(str(secret), "/x")))
    soft = _hostile(
        tmp_path / "b.h5", lambda g: g.__setitem__("Variable:0", h5py.SoftLink("/model_weights/a/a/kernel:0"))
    )
    stored = _hostile(
        tmp_path / "c.h5",
        lambda g: g.create_dataset("Variable:0", (2, 2), "f4", external=[(str(secret), 0, h5py.h5f.UNLIMITED)]),
    )
    for path in (external, soft, stored):
        with pytest.raises(DamagedFileError, match="refused"):
            migrate.inspect(path)


def test_objects_texts_and_absurd_sizes_are_refused_unread(tmp_path: Path) -> None:
    text = h5py.string_dtype()
    objects = _hostile(tmp_path / "a.h5", lambda g: g.create_dataset("Variable:0", (2, 2), text))
    huge = _hostile(
        tmp_path / "b.h5", lambda g: g.create_dataset("Variable:0", (1 << 20, 1 << 20), "f4", chunks=(1024, 1024))
    )
    packed = _hostile(
        tmp_path / "c.h5",
        lambda g: g.create_dataset("Variable:0", (1 << 30,), "f4", chunks=(1024,), compression="gzip"),
    )
    for path in (objects, huge, packed):
        with pytest.raises(DamagedFileError):
            migrate.inspect(path, stats=True)


def test_a_listed_weight_that_is_absent_is_said(tmp_path: Path) -> None:
    path = _hostile(tmp_path / "a.h5", lambda g: None)
    with pytest.raises(DamagedFileError, match="incomplete"):
        migrate.inspect(path)


def test_without_optimizer_state(tmp_path: Path) -> None:
    path = _write(tmp_path / "x.h5", [_dense("a", 2, 2)], _moments(_value(1, 2, 2)))
    with h5py.File(path, "a") as file:
        del file["optimizer_weights"]
    with pytest.raises(UnsupportedError, match="include_optimizer"):
        migrate.inspect(path)
    weights = CORPUS / "tf215-new-sgd-gclip-weights-mlp" / "source" / "model_weights.h5"
    with pytest.raises(UnsupportedError, match="save_weights"):
        migrate.inspect(weights)


def test_a_loss_scale_optimizer_is_opened(tmp_path: Path) -> None:
    inner = {"class_name": "SGD", "config": {"name": "SGD", "learning_rate": 0.5, "momentum": 0.9}}
    optimizer = [("cond_1/SGD/iter:0", np.array(3)), ("cond_1/SGD/a/kernel/momentum:0", _value(4, 2, 2))]
    config = {"inner_optimizer": inner, "dynamic": True}
    path = _write(tmp_path / "x.h5", [_dense("a", 2, 2)], optimizer, "2.9.0", config, "LossScaleOptimizer")
    assert _found(path) == {"a/kernel": 4.0}
    assert any("loss scale" in w for w in migrate.read(path).warnings)


def test_inspect_does_not_import_tensorflow() -> None:
    code = (
        "import sys, migrate; r = migrate.inspect(sys.argv[1], stats=True); assert r.slots;"
        " bad = {'tensorflow', 'keras', 'tf_keras', 'scipy', 'google.protobuf'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code, str(REAL)], check=True)


def test_the_source_is_not_changed(tmp_path: Path) -> None:
    before = REAL.read_bytes(), REAL.stat().st_mtime_ns
    migrate.migrate_checkpoint(REAL, tmp_path / "out")
    assert (REAL.read_bytes(), REAL.stat().st_mtime_ns) == before


def test_a_reader_names_itself_as_the_table_does() -> None:
    from migrate.readers import READERS

    assert [r.name for r in READERS] == [r.load().NAME for r in READERS]
    assert keras_h5.NAME in {r.name for r in READERS}


def test_slots_of_what_is_frozen_by_now_are_doubted(tmp_path: Path) -> None:
    """`fit` goes on training a layer that was frozen after the last compile, and no file says when it was frozen."""
    source = tmp_path / "model.h5"
    source.write_bytes((CONFUSING / "source" / "model.h5").read_bytes())
    with h5py.File(source, "r+") as file:
        config = json.loads(file.attrs["model_config"])
        layer = next(entry for entry in config["config"]["layers"] if entry["config"]["name"] == "block/a")
        layer["config"]["trainable"] = False
        file.attrs["model_config"] = json.dumps(config)
    state = migrate.read(source)
    assert state.fidelity == "approximate"
    assert any("block/a/kernel" in reason and "fit continues to train" in reason for reason in state.reasons)
    trained = [
        {"name": v.name, "shape": list(v.shape)} for v in migrate.read(CONFUSING / "source" / "model.h5").variables
    ]
    still = [row for row in trained if row["name"] not in ("block/a/kernel", "block/a/bias")]
    for named in (trained, still):
        named_state = migrate.read(source, variables=named)
        assert named_state.fidelity == "exact"
        assert sorted(named_state.slots["m"]) == sorted(str(row["name"]) for row in named)


@pytest.mark.parametrize(
    ("group", "attribute"),
    [
        ("model_weights", "layer_names"),
        ("model_weights/dense_1", "weight_names"),
        ("optimizer_weights", "weight_names"),
    ],
)
def test_an_array_that_its_list_has_lost_is_missed(group: str, attribute: str, tmp_path: Path) -> None:
    """A layer that `layer_names` lacked was left out of the model, and was trained no more: exact."""
    path = tmp_path / "model.h5"
    path.write_bytes((CORPUS / "tf24-sgd-clipboth-mlp" / "source" / "model.h5").read_bytes())
    with h5py.File(path, "r+") as file:
        names = file[group].attrs[attribute]
        file[group].attrs[attribute] = names[:-1]
    with pytest.raises(DamagedFileError, match="which its lists of names do not name"):
        migrate.read(path)


def test_two_names_of_one_array_are_damage(tmp_path: Path) -> None:
    """As a damaged link makes them: the array that the second name was of is lost."""
    path = tmp_path / "model.h5"
    shutil.copy(CORPUS / "tf24-adam-convbn" / "source" / "model.h5", path)
    with h5py.File(path, "r+") as file:
        group = file["optimizer_weights/Adam/conv2d/kernel"]
        del group["v:0"]
        group["v:0"] = group["m:0"]
    with pytest.raises(DamagedFileError, match=r"v:0.* are one object"):
        migrate.read(path)


def test_keras_2_0_on_theano_keeps_its_counter_at_the_root(tmp_path: Path) -> None:
    """It lists `/iterations`, which HDF5 takes for a path from the root; the next steps are those that Keras took."""
    folder = KERAS / "theano"
    report = migrate.migrate_checkpoint(folder / "sgd.h5", tmp_path / "out")
    assert (report.fidelity, report.iterations) == ("exact", 6)
    assert next_steps.of_slots(tmp_path / "out", np.load(folder / "sgd.npz"), 4, saved="at_save/") < next_steps.NEAR


@pytest.mark.parametrize("kind", ["keras", "tf_keras"])
def test_a_layer_that_stands_before_its_input_is_refused(kind: str) -> None:
    """`model.layers` is sorted by depth in each release, and the slots in a list follow it."""
    keras = pytest.importorskip(kind)
    first, other = keras.layers.Input((4,)), keras.layers.Input((4,))
    shared, last = keras.layers.Dense(4, name="shared"), keras.layers.Dense(4, name="last")
    deep = shared(last(shared(first)))  # called again on what stands behind it
    model = keras.Model([first, other], keras.layers.Concatenate()([deep, shared(other)]))
    document = json.loads(model.to_json())
    check_inputs(document, "x")
    layers = document["config"]["layers"]
    places = {layer["config"]["name"]: i for i, layer in enumerate(layers)}
    layers[places["shared"]], layers[places["last"]] = layers[places["last"]], layers[places["shared"]]
    with pytest.raises(DamagedFileError, match="lists the layer 'last' before its input 'shared'"):
        check_inputs(document, "x")


EMBED = CORPUS / "tf20-rmsprop-centered-momentum-embed" / "source" / "model.h5"


def _of(path: Path, version: str, order: tuple[str, ...] | None = None, **changes: Any) -> Path:
    """A file of TF 2.0 whose Keras calls itself otherwise, with what `compile` took in that order."""
    shutil.copy(EMBED, path)
    with h5py.File(path, "r+") as file:
        training = json.loads(file.attrs["training_config"])
        training["optimizer_config"] = changes.get("optimizer_config", training["optimizer_config"])
        training["optimizer_config"]["config"] |= changes.get("config", {})
        file.attrs["keras_version"] = version
        file.attrs["training_config"] = json.dumps({key: training[key] for key in order or training})
    return path


def _optimizer() -> dict[str, Any]:
    with h5py.File(EMBED) as file:
        return dict(json.loads(file.attrs["training_config"])["optimizer_config"])


TOOK = ("loss", "metrics", "weighted_metrics", "sample_weight_mode", "loss_weights", "optimizer_config")
IN_2_2 = ("loss", "metrics", "weighted_metrics", "loss_weights", "sample_weight_mode", "optimizer_config")


@pytest.mark.parametrize(
    ("version", "order", "clips"),
    [("2.2.4-tf", TOOK, False), ("2.3.0-tf", TOOK, False), ("2.3.0-tf", IN_2_2, True), ("2.9.0", TOOK, True)],
)
def test_fit_of_tf_2_0_and_2_1_does_not_clip(tmp_path: Path, version: str, order: tuple[str, ...], clips: bool) -> None:
    """Run: `compile(SGD(1.0, clipnorm=0.01))` and `fit` in TF 2.0.4, 2.1.4, 2.2.3 and 2.3.4."""
    state = migrate.read(_of(tmp_path / "model.h5", version, order, config={"clipnorm": 0.5}))
    assert state.hyperparameters["clipnorm"] == 0.5
    doubts = [
        reason for reason in state.reasons if reason.startswith("clipnorm is set, but the source does not show whether")
    ]
    assert bool(doubts) is not clips


@pytest.mark.parametrize(("version", "dense"), [("2.2.4-tf", True), ("2.3.0-tf", True), ("2.4.0", False)])
def test_a_loss_scale_made_gradients_dense_before_tf_2_3(tmp_path: Path, version: str, dense: bool) -> None:
    """Run: rows of a table that a batch leaves out moved in TF 2.0.4, 2.1.4 and 2.2.3, and stayed in 2.3.4."""
    scale = {"class_name": "FixedLossScale", "config": {"loss_scale_value": 128.0}}
    wrapper = {"class_name": "LossScaleOptimizer", "config": {"optimizer": _optimizer(), "loss_scale": scale}}
    assert migrate.read(EMBED).hyperparameters["lazy_rows"] == ["^embedding/embeddings$"]
    state = migrate.read(_of(tmp_path / "model.h5", version, optimizer_config=wrapper))
    assert state.hyperparameters.get("lazy_rows", []) == ([] if dense else ["^embedding/embeddings$"])
    assert state.fidelity == "exact", state.reasons


def test_a_model_of_a_class_of_its_own_may_change_gradients(tmp_path: Path) -> None:
    """As DPSequential of tensorflow-privacy, which clips the gradients of each example and adds noise to them."""
    source = tmp_path / "model.h5"
    source.write_bytes((CONFUSING / "source" / "model.h5").read_bytes())
    assert migrate.read(source).fidelity == "exact"
    with h5py.File(source, "r+") as file:
        config = json.loads(file.attrs["model_config"])
        file.attrs["model_config"] = json.dumps({**config, "class_name": "DPModelClass"})
    state = migrate.read(source)
    assert state.fidelity == "approximate"
    assert any("train_step of the model's class 'DPModelClass'" in reason for reason in state.reasons)
    goes_on = {"gradients": "program"}
    assert migrate.read(source, overrides=goes_on).fidelity == "exact"
    report = migrate.migrate_checkpoint(source, tmp_path / "new.h5", to="tf-keras", overrides=goes_on)
    assert report.fidelity == "approximate"  # nothing here can load it back
    assert any(reason.startswith("DPModelClass: not Keras's own") for reason in report.reasons)
