"""get_weights() lists: every way in which Python has written them, and pickles that want to run something."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from migrate.bytes import safe_pickle
from migrate.errors import DamagedFileError, MissingHintError
from migrate.readers import weight_list
from optim.errors import DtoptError, UnsupportedError

WEIGHTS = [
    np.array(5, np.int64),
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.asfortranarray(np.arange(6.0).reshape(3, 2)),
    np.array([1.5], ">f4"),
    np.zeros((0, 3), np.float16),
]


def _same(path: Path, weights: list[Any] = WEIGHTS) -> None:
    assert weight_list.sniff(str(path))
    stored = weight_list.read(str(path))
    assert stored.weights is not None
    assert len(stored.weights) == len(weights)
    for (_, array), want in zip(stored.weights, weights, strict=True):
        got = array.load()
        assert array.shape == np.shape(want)
        assert array.dtype == got.dtype.name
        assert np.array_equal(got, want)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_every_protocol(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "weights.pkl"
    path.write_bytes(pickle.dumps(WEIGHTS, protocol))
    _same(path)
    path.write_bytes(pickle.dumps((np.int64(5), 0.5, 7, *WEIGHTS), protocol))
    _same(path, [5, 0.5, 7, *WEIGHTS])
    path.write_bytes(pickle.dumps({"epoch": 3, "optimizer_state": WEIGHTS, "best": None}, protocol))
    _same(path)


@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_numpy_1_and_2_name_their_modules_differently(module: bytes, tmp_path: Path) -> None:
    data = pickle.dumps(WEIGHTS, 2)
    for name in (b"numpy._core.multiarray", b"numpy.core.multiarray"):
        data = data.replace(name, module)
    path = tmp_path / "weights.pkl"
    path.write_bytes(data)
    _same(path)


def test_object_arrays_and_archives(tmp_path: Path) -> None:
    objects = np.empty(len(WEIGHTS), object)
    objects[:] = WEIGHTS
    np.save(tmp_path / "w.npy", objects, allow_pickle=True)
    _same(tmp_path / "w.npy")
    np.savez(tmp_path / "w.npz", *WEIGHTS)
    _same(tmp_path / "w.npz")
    np.savez_compressed(tmp_path / "c.npz", *WEIGHTS)
    _same(tmp_path / "c.npz")
    np.savez(tmp_path / "o.npz", objects)
    _same(tmp_path / "o.npz")


def test_archives_with_more_than_ten_members_are_in_order(tmp_path: Path) -> None:
    many = [np.full(2, i, np.float32) for i in range(12)]
    np.savez(tmp_path / "w.npz", **{f"arr_{i}": many[i] for i in (11, 3, 0, 1, 2, 10, 4, 5, 6, 7, 8, 9)})
    _same(tmp_path / "w.npz", many)


PYTHON_2 = ("extra-k224py27-adam-amsgrad-mlp-pkl", "extra-k224py27-sgd-protocol0-pkl")


@pytest.mark.parametrize("name", PYTHON_2)
def test_a_python_2_pickle(name: str, load_case: Any) -> None:
    case = load_case(name)
    assert weight_list.sniff(case.source)
    stored = weight_list.read(case.source)
    assert stored.weights is not None
    for j, (_, array) in enumerate(stored.weights):
        assert np.array_equal(array.load(), case.oracle[f"at_save/opt/{j}"])


def test_the_config_that_python_2_pickled(load_case: Any) -> None:
    case = load_case(PYTHON_2[1])
    data = (Path(case.source).parent / "config.pkl").read_bytes()
    assert safe_pickle.is_pickle(data)
    assert safe_pickle.loads_config(data, "here") == case.document["optimizer"]["config"]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_config_is_words_and_numbers_and_nothing_is_run(protocol: int, tmp_path: Path) -> None:
    config = {"lr": 0.5, "clipnorm": np.float32(2), "name": "Adam", "nesterov": False, "epsilon": None, "steps": [1, 2]}
    data = pickle.dumps(config, protocol)
    assert safe_pickle.is_pickle(data)
    assert safe_pickle.loads_config(data, "here") == {**config, "clipnorm": 2.0}
    recursive: dict[str, Any] = {}
    recursive["own"] = recursive
    for content in ({"lr": _Runs(os.mkdir, str(tmp_path / "ran"))}, {1: 2}, {"a": np.ones(2)}, [1], recursive):
        with pytest.raises(UnsupportedError, match="is a pickle that is refused"):
            safe_pickle.loads_config(pickle.dumps(content, protocol), "here")
    assert not (tmp_path / "ran").exists()


def test_the_name_in_a_pickled_config_is_a_candidate_for_the_class(tmp_path: Path) -> None:
    source = tmp_path / "saved.pkl"
    source.write_bytes(pickle.dumps({"weights": [np.array(3), np.ones(2)], "config": {"name": "Adam", "lr": 0.1}}))
    with pytest.raises(MissingHintError, match="its name may be Adam"):
        migrate.read(source)


class _Runs:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: [np.ones(2), x]])
def test_nothing_in_a_pickle_is_run(protocol: int, wrap: Any, tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    for evil in (_Runs(os.mkdir, str(trap)), _Runs(eval, "1"), _Runs(getattr, 1, "real"), _Runs(np.load, "x")):
        path = tmp_path / "weights.pkl"
        path.write_bytes(pickle.dumps(wrap(evil), protocol))
        with pytest.raises(UnsupportedError, match=r"weights\.pkl is a pickle that is refused: it calls"):
            weight_list.read(str(path))
    assert not trap.exists()


def test_an_object_array_that_wants_to_run_something(tmp_path: Path) -> None:
    objects = np.empty(1, object)
    objects[0] = _Runs(os.mkdir, str(tmp_path / "ran"))
    np.save(tmp_path / "w.npy", objects, allow_pickle=True)
    with pytest.raises(UnsupportedError, match="refused"):
        weight_list.read(str(tmp_path / "w.npy"))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "content",
    [
        [{"a": 1}],
        ["text"],
        [None],
        [True],
        {"model": [np.ones(2)]},
        {},
        {"epoch": 3},
        {"a": [np.ones(2)], "b": [np.ones(2)]},
        ([np.ones(2)], [np.ones(2)]),
        {"optimizer": [np.ones(2)], "other_optimizer": [np.ones(2)]},
        [np.array(["a"])],
        [np.zeros(2, "f4,f4")],
        {1: np.ones(2)},
    ],
)
def test_other_contents_are_refused(content: Any, tmp_path: Path) -> None:
    (tmp_path / "w.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(DtoptError):
        weight_list.read(str(tmp_path / "w.pkl"))


MODEL = [np.ones((3, 2), np.float32), np.ones(2, np.float32)]
CONFIG = {"name": "Adam", "learning_rate": 0.5}


@pytest.mark.parametrize(
    "content",
    [
        (MODEL, WEIGHTS),
        [WEIGHTS, MODEL],
        {"weights": MODEL, "optimizer_weights": WEIGHTS},
        {"epoch": 1, "optimizer": WEIGHTS, "model": MODEL, "best": {"loss": 0.5}},
        {"optimizer": {"weights": WEIGHTS, "config": CONFIG}, "model": MODEL},
        {"weights": WEIGHTS, "config": CONFIG},
        (WEIGHTS, {"class_name": "Adam", "config": CONFIG}),
    ],
    ids=lambda content: str(list(content)) if isinstance(content, dict) else f"{len(content)} items",
)
def test_the_optimizers_list_among_other_things(content: Any, tmp_path: Path) -> None:
    (tmp_path / "w.pkl").write_bytes(pickle.dumps(content))
    _same(tmp_path / "w.pkl")
    stored = weight_list.read(str(tmp_path / "w.pkl"))
    if stored.optimizer_config is not None:
        assert stored.optimizer_config["config"] == CONFIG
    objects = np.empty((), object)
    objects[()] = content
    np.save(tmp_path / "w.npy", objects, allow_pickle=True)
    _same(tmp_path / "w.npy")


def test_names_in_a_mapping_are_kept(tmp_path: Path) -> None:
    named = {f"Adam/dense_{i}/kernel/m:0": weight for i, weight in enumerate(WEIGHTS)}
    (tmp_path / "w.pkl").write_bytes(pickle.dumps(named))
    stored = weight_list.read(str(tmp_path / "w.pkl"))
    assert stored.weights is not None
    assert [name for name, _ in stored.weights] == list(named)
    _same(tmp_path / "w.pkl")


def test_a_pickle_whose_lists_hold_each_other_ends_soon(tmp_path: Path) -> None:
    content: list[Any] = [np.ones(1)]
    for _ in range(60):
        content = [content, content]
    (tmp_path / "w.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(UnsupportedError, match="without a list of arrays"):
        weight_list.read(str(tmp_path / "w.pkl"))


def test_a_forged_array_of_objects_from_raw_memory_is_refused() -> None:
    forged = (
        b"\x80\x02]cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x01\x85cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R\x89U\x08AAAAAAAAtba."
    )
    with pytest.raises(UnsupportedError, match="raw memory"):
        safe_pickle.loads(forged, "here")


def test_truncated_and_altered_files_are_damaged_or_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", *WEIGHTS)
    objects = np.empty(len(WEIGHTS), object)
    objects[:] = WEIGHTS
    np.save(tmp_path / "w.npy", objects, allow_pickle=True)
    (tmp_path / "w.pkl").write_bytes(pickle.dumps(WEIGHTS, 2))
    rng = np.random.default_rng(0)
    for name in ("w.npz", "w.npy", "w.pkl"):
        data = (tmp_path / name).read_bytes()
        for i in range(40):
            broken = bytearray(data)
            if i % 2:
                broken = broken[: int(rng.integers(8, len(data)))]
            else:
                broken[int(rng.integers(8, len(data)))] ^= int(rng.integers(1, 256))
            path = tmp_path / ("broken_" + name)
            path.write_bytes(broken)
            with contextlib.suppress(DtoptError):  # any other exception fails the test
                stored = weight_list.read(str(path))
                for _, array in stored.weights or ():
                    array.load()


def test_a_member_that_declares_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)})
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
        archive.writestr("arr_0.npy", header.getvalue() + b"\x00" * 16)
    with pytest.raises(DamagedFileError, match="declares"):
        weight_list.read(str(tmp_path / "w.npz"))


def test_the_message_shows_what_to_pass(load_case: Any) -> None:
    import migrate

    with pytest.raises(MissingHintError) as error:
        migrate.inspect(load_case("tf215-new-sgd-gclip-weights-mlp").source)
    for part in ("--optimizer-config", '{"class_name"', "--generation", "optimizer_v2", "--variables", '{"name"'):
        assert part in str(error.value)
