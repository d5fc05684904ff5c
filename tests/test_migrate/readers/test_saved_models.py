"""SavedModels whose files are of two models: TensorFlow numbers the objects in all three alike."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import migrate
from migrate.errors import DamagedFileError
from optim.bytes import protos
from optim.errors import UnsupportedError
from tests.places import CASE_FOLDER, CORPUS, WILD

MODELS = {
    name: CASE_FOLDER / place / name / "source" / "saved_model"
    for name, place in (
        ("tf20-adam-amsgrad-savedmodel-mlp", "corpus"),
        ("tf29-h-mirrored-sm", "wild"),
    )
}
OTHERS = {
    **MODELS,
    "tf29-j-untrained-table-ckpt": WILD / "tf29-j-untrained-table-ckpt" / "source",
    "tf24-sgd-momentum-ckpt-convbn": CORPUS / "tf24-sgd-momentum-ckpt-convbn" / "source",
}


def _with_variables(model: Path, other: Path, folder: Path) -> Path:
    """A copy of a SavedModel that has the variables of another checkpoint."""
    shutil.copytree(model, folder / "mixed")
    for path in (folder / "mixed" / "variables").iterdir():
        path.unlink()
    index = next(other.rglob("*.index"))
    for path in (index, *index.parent.glob(f"{index.stem}.data-*")):
        shutil.copy(path, folder / "mixed" / "variables" / path.name.replace(index.stem, "variables"))
    return folder / "mixed"


@pytest.mark.parametrize(("name", "other"), [(a, b) for a in MODELS for b in OTHERS if a != b])
def test_variables_of_another_model_are_refused(name: str, other: str, tmp_path: Path) -> None:
    """They were exact, up to 4e5 times what rounding explains off."""
    assert migrate.read(_with_variables(MODELS[name], MODELS[name], tmp_path / "sound")).fidelity == "exact"
    with pytest.raises(DamagedFileError, match="one is of another model; copy the whole folder again"):
        migrate.read(_with_variables(MODELS[name], OTHERS[other], tmp_path))


def test_parts_on_servers_are_refused_with_what_has_them_whole(tmp_path: Path) -> None:
    shutil.copytree(MODELS["tf29-h-mirrored-sm"], tmp_path / "parts")
    path = tmp_path / "parts" / "saved_model.pb"
    model = protos.SavedModel.FromString(path.read_bytes())
    node = next(n for n in model.meta_graphs[0].object_graph_def.nodes if n.HasField("variable"))
    node.user_object.identifier = "_tf_distribute_sharded_variable"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UnsupportedError, match=r"ParameterServerStrategy .* migrate a checkpoint of the same run"):
        migrate.read(tmp_path / "parts")


def test_a_model_that_lists_no_objects_is_not_called_another_one(tmp_path: Path) -> None:
    """As export_saved_model of TF 1.14 and 1.15 wrote it: "one is of another model; copy the whole folder again"."""
    shutil.copytree(MODELS["tf20-adam-amsgrad-savedmodel-mlp"], tmp_path / "exported")
    path = tmp_path / "exported" / "saved_model.pb"
    model = protos.SavedModel.FromString(path.read_bytes())
    model.meta_graphs[0].ClearField("object_graph_def")
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UnsupportedError, match="export_saved_model") as refused:
        migrate.read(tmp_path / "exported")
    named = str(refused.value).partition("migrate the checkpoint in it, ")[2].partition(",")[0]
    config = {"class_name": "Adam", "config": {"epsilon": 1e-7, "amsgrad": True}}
    assert migrate.read(named, optimizer_config=config).slots["m"]


def _numbered_otherwise(node: Any) -> None:
    node.node_id += 1


def _placed_otherwise(node: Any) -> None:
    node.node_path = node.node_path.replace("layer_with_weights-1", "layer_with_weights-9")


@pytest.mark.parametrize(
    ("change", "first"), [(_numbered_otherwise, "root"), (_placed_otherwise, "root.layer_with_weights-9")]
)
def test_metadata_of_another_model_are_refused(change: Callable[[Any], None], first: str, tmp_path: Path) -> None:
    """Those of a model with as many objects, and layers elsewhere, had their schedule taken for this one's."""
    shutil.copytree(MODELS["tf29-h-mirrored-sm"], tmp_path / "mixed")
    path = tmp_path / "mixed" / "keras_metadata.pb"
    metadata = protos.KerasMetadata()
    metadata.ParseFromString(path.read_bytes())
    for node in metadata.nodes:
        change(node)
    path.write_bytes(metadata.SerializeToString())
    has = f"keras_metadata.pb has '{first}' where saved_model.pb has another"
    with pytest.raises(DamagedFileError, match=re.escape(has)):
        migrate.read(tmp_path / "mixed")


@pytest.mark.parametrize("to", [".keras", ".h5"])
@pytest.mark.quick(1)
def test_layers_of_one_name_in_models_within_are_found(to: str, tmp_path: Path) -> None:
    """TF 2.11 to 2.15 store their variables in a list of the outermost model."""
    source = CORPUS / "extra-tf215-new-adam-twins-savedmodel" / "source" / "saved_model"
    confirmed = {"slot_order": "source"}
    report = migrate.migrate_checkpoint(source, tmp_path / f"new{to}", overrides=confirmed)
    assert report.fidelity == "exact"
    assert migrate.verify(source, tmp_path / f"new{to}", overrides=confirmed).ok
