"""`.weights.h5`: real ones, whole and in shards, where the order of layers must show in shapes, or is asked for."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import migrate
from migrate.algorithms import find
from migrate.errors import AmbiguousError, DamagedFileError, MissingHintError
from migrate.matching.layers import match
from migrate.readers import detect
from migrate.state import Layers, LayerVariable
from optim.errors import MismatchError, UnsupportedError
from tests.places import CORPUS

ADAMW = "keras38-adamw-convbn"


def _case(name: str) -> tuple[dict[str, Any], Any]:
    folder = CORPUS / name
    return json.loads((folder / "case.json").read_text()), np.load(folder / "oracle.npz")


def _config(case: dict[str, Any]) -> dict[str, Any]:
    return {"class_name": case["optimizer"]["class"], "config": case["optimizer"]["config"]}


def _weights_of(name: str, tmp_path: Path) -> Path:
    """The weights member of a `.keras` file, which is what save_weights writes of the same model."""
    path = tmp_path / "model.weights.h5"
    with zipfile.ZipFile(CORPUS / name / "source" / "model.keras") as archive:
        path.write_bytes(archive.read("model.weights.h5"))
    return path


def _check(state: migrate.OptimizerState, oracle: Any, case: dict[str, Any]) -> None:
    """Every slot bit for bit under the variable whose value is the oracle's; same order."""
    trained = [v for v in state.variables if v.trainable]
    assert len(trained) == len(case["trainable"])
    for i, variable in enumerate(trained):
        assert variable.array is not None
        assert variable.array.load().tobytes() == oracle[f"at_save/var/{i}"].tobytes()
    keys = [key for key in oracle.files if key.startswith("at_save/slot/")]
    assert len(keys) == sum(len(owners) for owners in state.slots.values())
    for key in keys:
        _, _, slot, i = key.split("/")
        got = state.slots[find(state.algorithm).slot_of(slot) or ""][trained[int(i)].name].load()
        assert got.tobytes() == oracle[key].tobytes(), key
    assert state.iterations == int(oracle["iterations"])


def test_layers_of_different_classes_are_put_in_order_by_shape() -> None:
    case, oracle = _case(ADAMW)
    source = CORPUS / ADAMW / "source" / "model.weights.h5"
    state = migrate.read(source, optimizer_config=_config(case))
    assert state.source is not None
    assert (state.source.format, state.source.generation) == ("weights_h5", "keras3")
    assert set(state.matched.values()) == {"shape"}
    _check(state, oracle, case)


@pytest.mark.parametrize("name", ["keras38-adadelta-mlp", "tfk221-new-adam-clipnorm-nested"])
def test_the_same_as_from_keras_files(name: str, tmp_path: Path) -> None:
    case, oracle = _case(name)
    state = migrate.read(_weights_of(name, tmp_path), optimizer_config=_config(case))
    _check(state, oracle, case)


def test_the_config_is_asked_for() -> None:
    with pytest.raises(MissingHintError, match="--optimizer-config"):
        migrate.read(CORPUS / ADAMW / "source" / "model.weights.h5")


def test_an_open_order_is_refused_and_variables_decide(tmp_path: Path) -> None:
    name = "extra-keras315-adam-twins-keras"
    case, oracle = _case(name)
    path = _weights_of(name, tmp_path)
    with pytest.raises(AmbiguousError, match=r"order of its layers.*--variables"):
        migrate.read(path, optimizer_config=_config(case))
    order = ["left/core/kernel", "left/core/bias", "right/core/kernel", "right/core/bias", "core/kernel", "core/bias"]
    shapes = [v["shape"] for v in case["trainable"]]
    variables = [{"name": n, "shape": s} for n, s in zip(order, shapes, strict=True)]
    _check(migrate.read(path, optimizer_config=_config(case), variables=variables), oracle, case)


def _sharded(whole: Path, folder: Path) -> Path:
    """`whole` cut into three files and an index, a group at a time, and the optimizer's own group in two."""
    weight_map: dict[str, Any] = {}
    shards = [h5py.File(folder / f"model_{i:05}.weights.h5", "w") for i in range(3)]

    def put(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset):
            group, _, key = name.rpartition("/")
            split = group == "optimizer/vars" and int(key) % 2
            number = (
                2 if split else len(weight_map) % 2 if f"/{group}" not in weight_map else weight_map[f"/{group}"][0]
            )
            shards[number].require_group(group)[key] = node[()]
            members = weight_map.setdefault(f"/{group}", [number])
            members += [] if number in members else [number]

    with h5py.File(whole) as file:
        file.visititems(put)
    for shard in shards:
        shard.close()
    names = {key: [f"model_{i:05}.weights.h5" for i in numbers] for key, numbers in weight_map.items()}
    index = {"metadata": {}, "weight_map": {k: v[0] if len(v) == 1 else v for k, v in names.items()}}
    (folder / "model.weights.json").write_text(json.dumps(index))
    return folder / "model.weights.json"


def test_shards(tmp_path: Path) -> None:
    name = "keras38-adadelta-mlp"
    case, oracle = _case(name)
    index = _sharded(_weights_of(name, tmp_path), tmp_path)
    state = migrate.read(index, optimizer_config=_config(case), generation="keras3")
    _check(state, oracle, case)


@pytest.mark.parametrize("name", ["../model.weights.h5", "/etc/passwd", "absent.weights.h5"])
def test_shards_that_are_not_beside_the_index(name: str, tmp_path: Path) -> None:
    _weights_of("keras38-adadelta-mlp", tmp_path)
    (tmp_path / "sub").mkdir()
    index = tmp_path / "sub" / "model.weights.json"
    index.write_text(json.dumps({"weight_map": {"/vars": name}}))
    with pytest.raises(DamagedFileError, match="no HDF5 file of that name next to it"):
        migrate.read(index)


def test_a_missing_part_of_a_shard(tmp_path: Path) -> None:
    index = _sharded(_weights_of("keras38-adadelta-mlp", tmp_path), tmp_path)
    with h5py.File(tmp_path / "model_00002.weights.h5", "r+") as file:
        del file["optimizer/vars/3"]
    with pytest.raises(DamagedFileError, match="vars/3 is missing"):
        migrate.read(index)


def test_an_index_of_other_json_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"weight_map": 3}')
    with pytest.raises(migrate.UnknownFormatError):
        detect(str(tmp_path / "other.json"))


def test_without_optimizer(tmp_path: Path) -> None:
    path = _weights_of("keras38-adadelta-mlp", tmp_path)
    with h5py.File(path, "r+") as file:
        del file["optimizer"]
    with pytest.raises(UnsupportedError, match="no optimizer state"):
        migrate.read(path)


def test_truncated(tmp_path: Path) -> None:
    path = _weights_of("keras38-adadelta-mlp", tmp_path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DamagedFileError, match="damaged HDF5"):
        migrate.read(path)


def _layer(*shapes: tuple[int, ...], name: str, trainable: bool | None = None) -> Layers:
    return Layers(tuple(LayerVariable(f"{name}/{i}", shape, trainable) for i, shape in enumerate(shapes)))


def test_orders_are_shown_from_where_they_differ() -> None:
    alike = [_layer((2,), name=f"first_{i}") for i in range(4)]
    twins = ((_layer((3,), (3,), name="a"),), (_layer((3,), (3,), name="b"),))
    wanted = [(2,)] * 4 + [(3,)] * 4
    with pytest.raises(AmbiguousError) as raised:
        match(Layers((), ((*alike, Layers((), twins)),)), wanted, "x")
    ways = str(raised.value).split("order of its layers: ")[1].split(". Name")[0].split("; or ")
    assert sorted(ways) == ["..., a/0, a/1, b/0, b/1 (8 in all)", "..., b/0, b/1, a/0, a/1 (8 in all)"]


def test_orders_of_layers() -> None:
    first, second = _layer((2, 3), (3,), name="a"), _layer((3, 2), (2,), name="b")
    norm = _layer((3,), (3,), name="n")
    loose = Layers((), ((first, second), (norm,)))
    wanted = [(2, 3), (3,), (3,), (3,), (3, 2), (2,)]
    assert match(loose, wanted, "x") == ["a/0", "a/1", "n/0", "n/1", "b/0", "b/1"]
    assert match(loose, [(2, 3), (3,), (3, 2), (2,)], "x") == ["a/0", "a/1", "b/0", "b/1"]  # n is frozen
    with pytest.raises(MismatchError, match="do not belong together"):
        match(loose, [(9,)], "x")
    with pytest.raises(AmbiguousError, match="n/0, n/1; or o/0, o/1"):
        match(Layers((), ((norm,), (_layer((3,), (3,), name="o"),))), [(3,), (3,)], "x")


def test_own_variables_stand_before_or_behind_what_is_in_a_layer() -> None:
    within, (outer,) = _layer((3,), (2,), name="in"), _layer((4,), name="own").own_variables
    first, last, either = (Layers((outer,), ((within,),), place) for place in (False, True, None))
    assert match(first, [(4,), (3,), (2,)], "x") == match(either, [(4,), (3,), (2,)], "x") == ["own/0", "in/0", "in/1"]
    assert match(last, [(3,), (2,), (4,)], "x") == match(either, [(3,), (2,), (4,)], "x") == ["in/0", "in/1", "own/0"]
    assert [layers.ordered() for layers in (first, last, either)] == [True, True, False]
    assert [v.name for v in last.variables()] == ["in/0", "in/1", "own/0"]
    with pytest.raises(MismatchError):
        match(last, [(4,), (3,), (2,)], "x")


def test_layers_known_to_be_trained_are_all_matched() -> None:
    layers = Layers((), ((_layer((2,), name="a", trainable=True),), (_layer((3,), name="b", trainable=True),)))
    assert match(layers, [(3,), (2,)], "x") == ["b/0", "a/0"]
    with pytest.raises(MismatchError):
        match(layers, [(3,)], "x")


@pytest.mark.breadth
def test_too_many_orders_are_not_tried() -> None:
    chains = tuple(tuple(_layer((2,), name=f"{c}{i}") for i in range(12)) for c in "abcdef")
    with pytest.raises(AmbiguousError, match="--variables"):
        match(Layers((), chains), [(2,)] * 40 + [(3,)], "x")


def test_the_order_of_layers_in_a_list_or_dict_is_an_assumption() -> None:
    """A real file, whose slots come out exchanged in the order of the file: tf_keras trained the dict by its keys."""
    folder = CORPUS / "extra-tfk221-new-adam-dict-held-weights"
    oracle, source = np.load(folder / "oracle.npz"), folder / "source" / "model.weights.h5"
    hint = {"class_name": "Adam", "config": {"learning_rate": 0.004, "epsilon": 1e-7}}

    def trained_as(state: migrate.OptimizerState) -> dict[str, int]:
        """Which of the optimizer's variables has the slot that each one got, by its value and by the slot's."""
        values = {v.name: v.array.load().tobytes() for v in state.variables if v.array is not None}
        slots = {name: array.load().tobytes() for name, array in state.slots["m"].items()}
        known = {f"{oracle[f'at_save/var/{i}'].tobytes()!r}": i for i in range(4)}
        indices = {name: known[f"{values[name]!r}"] for name in slots}
        right = {name: slots[name] == oracle[f"at_save/slot/momentums/{i}"].tobytes() for name, i in indices.items()}
        return {name: i for name, i in indices.items() if right[name]}

    state = migrate.read(source, optimizer_config=hint, generation="optimizer")
    assert trained_as(state) == {}  # which nothing in the file tells
    doubt = next(o for o in state.origins if o.subject == "order of variables")
    assert (doubt.certain, doubt.confirm) == (False, "--set slot_order=source")
    names = [v.name for v in state.variables]
    assert all(name in doubt.reason for name in names)
    order = [{"name": name, "shape": list(state.slots["m"][name].shape)} for name in (*names[2:], *names[:2])]
    ordered_state = migrate.read(source, optimizer_config=hint, generation="optimizer", variables=order)
    assert set(trained_as(ordered_state)) == set(names)
    assert all(o.subject != "order of variables" for o in ordered_state.origins)


def test_averages_that_a_class_alone_does_not_have_are_named(tmp_path: Path) -> None:
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True), "mse")
    model.train_on_batch(np.ones((2, 4)), np.ones((2, 3)))
    model.save_weights(tmp_path / "model.weights.h5")
    with pytest.raises(MismatchError, match="--set momentum=VALUE --set use_ema=true"):
        migrate.read(tmp_path / "model.weights.h5", overrides={"class_name": "SGD"})
    settings = {"class_name": "SGD", "momentum": 0.9, "use_ema": True}
    slots = migrate.read(tmp_path / "model.weights.h5", overrides=settings).slots
    assert {slot: len(owners) for slot, owners in slots.items()} == {"m": 2, "average": 2}
