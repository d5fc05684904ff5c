"""Checkpoints that real releases wrote, migrated and trained on: every step must be the one that the release took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from migrate.errors import AmbiguousError, TargetExistsError
from optim.errors import UnsupportedError
from tests.helpers import next_steps
from tests.places import CORPUS

LISTS = ("weights.npz", "weights.npy", "weights.pkl")
SAYS_ALL = ("h5", "keras", "saved_model")
CASES = {
    # Case -> generation that the hints of a list name, None for formats that say it.
    "tf115-sgd-nesterov-checkpoint-embed": None,
    "tf24-sgd-clipboth-mlp": None,
    "extra-tf24-adam-twins-ckpt": None,
    "extra-tf215-new-adam-twins-ckpt": None,
    "extra-tf215-new-adam-twins-savedmodel": None,
    "extra-tf215-new-adam-own-weight-ckpt": None,
    "extra-tf215-new-adam-lss-mixed-ckpt": None,
    "extra-tf212-new-adam-lss-mixed-ckpt": None,
    "extra-tfk221-new-adam-amsgrad-restored-ckpt": None,
    "extra-tfk221-new-adam-lss-mixed-restored-ckpt": None,
    "extra-tf211-new-adam-same-shapes-npz": "experimental",
    "extra-keras315-adam-accumulation-keras": None,
    "extra-keras312-adam-accumulation-keras": None,
    "extra-keras39-sgd-accumulation-ema-keras": None,
    "extra-keras315-adam-accumulation-schedule-keras": None,
    "extra-keras31-adam-ema-keras": None,
    "keras224-nadam-mlp": "keras2",
    "keras231-nadam-eps-convbn": "keras2.3",
    "tf215-legacy-nadam-ckpt-embed": None,
    "keras38-nadam-mlp": None,
    "extra-keras38-adamax-convbn-ckpt": None,
    "extra-keras36-ftrl-mlp-ckpt": None,
    "extra-tf215-new-nadam-fit-birnn-ckpt": None,
    "tf20-rmsprop-centered-momentum-embed": "optimizer_v2",
    "tf115-rmsprop-mlp": None,
    "tf29-exp-rmsprop-mlp": None,
    "tf215-new-rmsprop-mlp": None,
    "keras231-adagrad-decay-eps-nested": "keras2.3",
    "tf24-adagrad-decay-iav-nested": "optimizer_v2",
    "tf29-dtensor-adagrad-named-embed": None,
    "tf20-ftrl-mlp": "optimizer_v2",
    "extra-tf211-legacy-ftrl-mlp-ckpt": None,
    "tf115-adamax-mlp": None,
    "tf215-new-lion-embed": None,
    "tfk221-new-adamw-convbn": "optimizer",
    "tf215-new-adafactor-mlp": None,
    "tf115-train-momentum-nesterov-mlp": None,
    "extra-tf24-train-rmsprop-objects": None,
    "extra-tf24-train-adam-in-keras": None,
    "extra-tf215-adam-alone": None,
    "extra-tf29-exp-sgd-alone": None,
    "extra-tf112-momentum-cosine-savedmodel": None,
    "extra-tf115-adam-clip-savedmodel": None,
    "extra-tf10-adam-polynomial-saver": None,
    "extra-tf14-adadelta-saver": None,
    "extra-tf15-adadelta-saver": None,
    "extra-k122-adam-clip-saver": None,
    "extra-k122-nadam-saver": None,
    "extra-k122-sgd-nesterov-same-saver": None,
    "extra-k108-rmsprop-same-saver": None,
    "extra-k204-sgd-frozen-saver": None,
    "extra-k224py27-sgd-protocol0-pkl": "keras2",
    "extra-tf115-proximal-adagrad-saver": None,
    "extra-tf115-contrib-adamax-saver": None,
    "extra-tf115-contrib-lars-saver": None,
    "extra-tf115-contrib-nadam-saver": None,
    "extra-tfa19-lookahead-adam-ckpt": None,
    "extra-tfa19-nested-rmsprop-ckpt": None,
    "extra-tfa19-extended-rmsprop-h5": None,
    "extra-tfa19-extended-adamax-ckpt": None,
    "extra-tfa19-extended-nadam-h5": None,
    "extra-tfa19-extended-ftrl-h5": None,
    "extra-tfa19-radam-mlp-h5": None,
    "extra-tfa19-radam-late-amsgrad-ckpt": None,
    "extra-tfa19-adabelief-mlp-h5": None,
    "extra-tfa19-yogi-proximal-ckpt": None,
    "extra-tfa19-novograd-mlp-h5": None,
    "extra-tfa19-novograd-amsgrad-ckpt": None,
    "extra-tfa19-novograd-amsgrad-h5": None,
    "extra-tfa19-proximal-adagrad-h5": None,
    "extra-tfa19-cocob-h5": None,
    "extra-tfa19-cocob-ckpt": None,
    "extra-tf19-adam-clipnorm-h5": None,
    "extra-tf112-adam-clipnorm-h5": None,
    "extra-tfa19-conditional-gradient-h5": None,
    "extra-tfa19-conditional-gradient-nuclear-ckpt": None,
    "extra-tfm29-lars-h5": None,
    "extra-tfm29-lars-nesterov-ckpt": None,
    "extra-tfa19-lamb-decay-ckpt": None,
    "extra-tfa19-lamb-decay-h5": None,
}
APPROXIMATE = {
    "tf24-sgd-clipboth-mlp": "TF 2.3 clipped the norm first, TF 2.4 clipped the value first",
    "keras224-nadam-mlp": "u_product",
    "extra-keras38-adamax-convbn-ckpt": "exclude_from_weight_decay",
    "tf215-new-lion-embed": "exclude_from_weight_decay",
    "tfk221-new-adamw-convbn": "exclude_from_weight_decay",
    "extra-tf115-contrib-lars-saver": "--set clipnorm=none",
    "extra-tf24-train-rmsprop-objects": "--set clipnorm=none",
    "extra-tf24-train-adam-in-keras": "--set clipnorm=none",
    "extra-tf215-adam-alone": "--set clipnorm=none",
    "extra-tf29-exp-sgd-alone": "--set clipnorm=none",
    "extra-tfa19-extended-rmsprop-h5": "--set class_name=RMSprop",
    "extra-tfa19-extended-adamax-ckpt": "--set class_name=Adamax",
    "extra-tfa19-extended-nadam-h5": "--set class_name=Nadam",
    "extra-tfa19-extended-ftrl-h5": "--set class_name=Ftrl",
    "extra-tfa19-novograd-mlp-h5": "--set decay=none",  # which its config never names
    "extra-tfa19-novograd-amsgrad-h5": "--set decay=none",
    "extra-tfa19-proximal-adagrad-h5": "--set decay=none",
}
ORDER = {"extra-tf215-new-adam-own-weight-ckpt": ("w", "first.w", "last.w")}
"""Variables that their slots do not name, in the order in which they were trained."""
TOLD: dict[str, dict[str, Any]] = {
    "extra-tf19-adam-clipnorm-h5": {"global_clipnorm": 0.1},
    "extra-tf215-new-adam-twins-ckpt": {"slot_order": "source"},
    "extra-tf215-new-adam-twins-savedmodel": {"slot_order": "source"},
    # What the config of LARS does not say.
    "extra-tfm29-lars-h5": {
        "class_name": "LARS", "clipnorm": None, "weight_decay_exclude": ["bias"], "exclude_from_layer_adaptation": None
    },
    "extra-tfm29-lars-nesterov-ckpt": {
        "clipnorm": None, "weight_decay_exclude": None, "exclude_from_layer_adaptation": None
    },
}  # fmt: skip


def _document(name: str) -> dict[str, Any]:
    return json.loads((CORPUS / name / "case.json").read_text())


def _source(name: str) -> str:
    document, folder = _document(name), CORPUS / name / "source"
    if document["format"] in (*LISTS, "saved_model"):
        return str(folder / document["format"])
    file_name = next(f for f in document["source"] if f.endswith((".index", ".h5", ".keras")))
    return str(folder / file_name.removesuffix(".index"))


def _hints(name: str) -> dict[str, Any]:
    document = _document(name)
    optimizer = document["optimizer"]
    answers: dict[str, Any] = {"overrides": TOLD[name]} if name in TOLD else {}
    if document["format"] in SAYS_ALL:
        return answers
    if name in ORDER:
        answers["variables"] = [{"name": f"model.layer_with_weights-0.{n}", "shape": [4, 4]} for n in ORDER[name]]
    hints: dict[str, Any] = {
        **answers,
        "optimizer_config": {"class_name": optimizer["class"], "config": optimizer.get("config") or optimizer["args"]},
    }
    if document["format"] in LISTS:
        hints["variables"] = [{"name": v["name"], "shape": v["shape"]} for v in document["trainable"]]
        hints["generation"] = CASES.get(name) or "optimizer_v2"
    return hints


@pytest.mark.parametrize("name", CASES)
@pytest.mark.quick(20)
def test_the_next_six_steps_are_those_of_the_release(name: str, tmp_path: Path) -> None:

    import optim

    oracle, target = np.load(CORPUS / name / "oracle.npz"), str(tmp_path / "out")
    report = migrate.migrate_checkpoint(_source(name), target, **_hints(name))
    raced = any(release in name for release in ("231", "tf112")) and any(
        "before or after it raises it" in reason for reason in report.reasons
    )
    assert report.fidelity == ("approximate" if name in APPROXIMATE or raced else "exact"), report.reasons
    assert APPROXIMATE.get(name, "") in "".join(report.reasons)
    trained = [v.name for v in optim.describe_checkpoint(target).variables if v.trainable]
    assert next_steps.of_slots(target, oracle, _document(name)["n"], trained, mesh=None) <= 1


@pytest.mark.parametrize("name", [name for name in CASES if "accumulation" not in name])
@pytest.mark.quick(10)
def test_verify_compares_a_step_by_the_formula_of_the_release(name: str, tmp_path: Path) -> None:
    migrate.migrate_checkpoint(_source(name), tmp_path / "out", **_hints(name))
    result = migrate.verify(_source(name), tmp_path / "out", **_hints(name))
    assert result.ok, result.differences
    assert result.parity is not None
    assert result.parity <= 1


def test_accumulated_gradients_are_state() -> None:
    name = "extra-keras315-adam-accumulation-keras"
    state, oracle = migrate.read(_source(name)), np.load(CORPUS / name / "oracle.npz")
    assert (state.iterations, state.scalars["accumulated_steps"]) == (2, 1)  # five batches, two to a step
    sums = list(state.slots["accumulated_gradient"].values())
    assert len(sums) == len(_document(name)["trainable"])
    for i, array in enumerate(sums):
        assert array.load().tobytes() == oracle[f"at_save/slot/accumulated_gradients/{i}"].tobytes()


def test_the_defective_centered_rmsprop_is_refused() -> None:
    name = "tf29-exp-rmsprop-centered-momentum-embed"
    with pytest.raises(UnsupportedError, match="averaged squared gradients"):
        migrate.read(_source(name), **_hints(name))


def test_an_unfrozen_layer_is_named_as_the_cause() -> None:
    name = "extra-tf24-adam-unfrozen-later-npz"
    with pytest.raises(AmbiguousError, match="was unfrozen"):
        migrate.read(_source(name), **_hints(name))


@pytest.mark.parametrize("name", ["tf115-sgd-nesterov-checkpoint-embed", "tf215-legacy-nadam-ckpt-embed"])
def test_the_readers_own_matching_is_reported(name: str) -> None:
    state = migrate.read(_source(name), **_hints(name))
    assert set(state.matched.values()) == {"object graph"}
    assert any(key.startswith("save_counter") for key in state.unmapped)


def test_slots_of_dtensor_are_matched_as_the_reader_did() -> None:
    state = migrate.read(_source("tf29-dtensor-adam-mlp"), **_hints("tf29-dtensor-adam-mlp"))
    assert set(state.matched.values()) == {"shape"}


@pytest.mark.parametrize("place", ["", "variables", "variables/new", ".."])
def test_a_target_in_or_around_the_source_is_refused(place: str, tmp_path: Path) -> None:
    import shutil

    source = tmp_path / "a" / "saved_model"
    shutil.copytree(CORPUS / "tf20-adam-amsgrad-savedmodel-mlp" / "source" / "saved_model", source)
    for overwrite in (False, True):
        with pytest.raises(TargetExistsError, match="source"):
            migrate.migrate_checkpoint(source, source / place, overwrite=overwrite)
    assert not (source / "variables" / "new").exists()


@pytest.mark.parametrize(
    ("name", "backend", "refused"),
    [
        ("keras224-sgd-momentum-convbn", "theano", True),
        ("keras224-sgd-momentum-convbn", "cntk", False),
        ("keras224-adam-eps-none-nested", "theano", False),
    ],
)
def test_kernels_that_theano_keeps_flipped_are_refused(name: str, backend: str, refused: bool, tmp_path: Path) -> None:
    """A real file under another backend's name; only convolutions differ between backends."""
    import shutil

    import h5py

    path = tmp_path / "model.h5"
    shutil.copy(CORPUS / name / "source" / "model.h5", path)
    with h5py.File(path, "r+") as file:
        file.attrs["backend"] = backend
    if refused:
        with pytest.raises(UnsupportedError, match="flipped"):
            migrate.read(path)
    else:
        assert migrate.read(path).fidelity == "exact"
