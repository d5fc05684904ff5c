"""What releases of Keras do otherwise with the same model while it trains: run, and said by `migrate`."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import migrate
from migrate import algorithms
from migrate.algorithms import repeated_rows
from migrate.bytes.arrays import LazyArray, narrowed
from migrate.models import keras1, keras1_weights, training
from migrate.state import OptimizerState, Stored, StoredModel
from optim.errors import UnsupportedError
from tests.helpers.breadth import broad
from tests.helpers.keras_releases import needs_keras
from tests.places import FEATURES

SOURCES = {path.stem: path for path in sorted(FEATURES.glob("*")) if path.suffix in (".h5", ".keras")}
CASES = [*SOURCES]
SUFFIX = {"keras": ".keras", "tf-keras": ".h5"}
LIBRARY = {"keras": "keras", "tf-keras": "tf_keras"}
MASKS = ("masked-output", "masked-attention", "masked-batch-norm")
OTHERWISE = {
    "keras1.2.2": dict.fromkeys(SUFFIX, ()),
    "keras2.0.8": dict.fromkeys(SUFFIX, ("called-twice",)),
    "tf1.4.1": dict.fromkeys(SUFFIX, ("called-twice",)),
    "tf1.7.1": dict.fromkeys(SUFFIX, ()),
    "keras2.2.4": dict.fromkeys(SUFFIX, ()),
    "keras2.2.5": dict.fromkeys(SUFFIX, ()),
    "keras2.3.1": dict.fromkeys(
        SUFFIX,
        (
            *("masked-output", "frozen-batch-norm", "activity"),
            *("softmax-binary", "sigmoid-categorical", "softmax-logits"),
        ),
    ),
    "keras3.15.1jax": dict.fromkeys(SUFFIX, ("softmax-binary", "spectral")),
    "keras3.15.1torch": dict.fromkeys(SUFFIX, ("pooled",)),
    "keras3.0.5": dict.fromkeys(SUFFIX, ("frozen",)),
    "keras3.5.0": dict.fromkeys(SUFFIX, ()),
    "keras3.2.1": {"keras": ("masked-residual", "masked-softmax"), "tf-keras": ("masked-residual",)},
    "keras3.10.0": dict.fromkeys(SUFFIX, ("weight-by-name",)),
    "tf2.13.1": dict.fromkeys(SUFFIX, ()),
    "tf2.14.1": dict.fromkeys(SUFFIX, ()),
    "tf2.14.1windows": dict.fromkeys(SUFFIX, ()),
    "tf2.12.1": dict.fromkeys(SUFFIX, ("plain-softmax",)),
    "keras3.9.2": {"keras": (), "tf-keras": ("masked-multiply",)},
    "keras3.13.2": {
        "keras": ("huber",),
        "tf-keras": ("huber", "masked-attention", "masked-merge", "masked-concatenate"),
    },
    "keras3.15.1": {"keras": ("frozen-attention",), "tf-keras": ("frozen-attention", "float16")},
    "keras3.6.0": {"keras": ("activity", "masked-attention"), "tf-keras": ("activity", "masked-attention")},
    "tf1.2.1": dict.fromkeys(SUFFIX, ()),
    "tf1.10.1": {"keras": ("activity", "hinge"), "tf-keras": ("activity", "hinge", "rows-clipped")},
    "tf1.15.5": dict.fromkeys(SUFFIX, ("frozen-batch-norm",)),
    "tf2.9.3": {
        "keras": (
            *MASKS,
            *("masked-merge", "masked-concatenate", "batch-norm-in-time", "activity-in-time", "frozen-regularizer"),
            "activity",
        ),
        "tf-keras": MASKS,
    },
    "tf2.8.4": dict.fromkeys(SUFFIX, ()),
    "tf2.4.4": {"keras": ("bfloat16",), "tf-keras": ()},
    "tf2.15.1": {"keras": ("masked-attention", "masked-merge", "masked-concatenate"), "tf-keras": ()},
}
"""Release -> target -> features with which it trains otherwise: seen in the next steps, see `replayed`."""
BFLOAT16 = ["keras3.15.1-bfloat16", "tf2.4.4-bfloat16"]
UNTRANSLATED = [("tf-keras", case) for case in (*BFLOAT16, "keras3.15.1jax-spectral")]
BOTH = [(to, case) for case in CASES for to in SUFFIX if (to, case) not in UNTRANSLATED]
ALIKE_HERE = (
    ("tf2.9.3-activity", "keras"),
    ("keras3.13.2-masked-merge", "tf-keras"),
    ("keras3.13.2-masked-concatenate", "tf-keras"),
    ("keras3.6.0-masked-attention", "tf-keras"),
    ("keras3.15.1-frozen-attention", "tf-keras"),
    ("keras3.15.1-float16", "tf-keras"),
    ("tf2.4.4-bfloat16", "keras"),
)
"""Called approximate, and alike in these steps: the first is otherwise in Keras 3.10 to 3.13, and not in the one that
is installed; in two others the mask, which is another one there, is handed to its only layer as an argument; in the
next attention itself is the same, and the masks behind it are not; one does not tell when it was frozen; SGD alone
rounds to 16 bits alike in all."""


def is_exact(case: str, to: str, folder: Path) -> tuple[bool, Path]:
    target = folder / f"model{SUFFIX[to]}"
    report = migrate.migrate_checkpoint(SOURCES[case], target, to=to)
    return report.fidelity == "exact", target


@pytest.mark.parametrize(("to", "case"), BOTH)
@pytest.mark.quick(60)
def test_exact_is_said_where_the_target_trains_alike(case: str, to: str, tmp_path: Path) -> None:
    release, _, feature = case.partition("-")
    exact, _ = is_exact(case, to, tmp_path)
    assert exact == (feature not in OTHERWISE[release][to])


@pytest.mark.usefixtures("loaded_here")
@pytest.mark.parametrize(
    ("feature", "to"),
    [
        ("convolved-words", "keras"),
        ("gates-in-series", "tf-keras"),
        broad("convolved-words", "tf-keras"),
        broad("gates-in-series", "keras"),
        *(broad("gates-of-words", to) for to in SUFFIX),  # altered, they are below
    ],
)
@pytest.mark.quick(1)
def test_layers_of_keras_1_are_written_as_today_has_them(feature: str, to: str, tmp_path: Path) -> None:
    exact, target = is_exact(f"keras1.2.2-{feature}", to, tmp_path)
    assert exact
    assert replayed(f"keras1.2.2-{feature}", to, target)
    assert migrate.verify(SOURCES[f"keras1.2.2-{feature}"], target).ok


@pytest.mark.usefixtures("loaded_here")
@pytest.mark.parametrize(
    ("case", "to"),
    [
        ("keras2.0.8-rows-within", "keras"),
        ("keras2.0.8-merged-first", "keras"),
        ("keras1.2.2-merged-first", "tf-keras"),
        broad("keras2.0.8-rows-within", "tf-keras"),
        broad("keras2.0.8-merged-first", "tf-keras"),
        broad("keras1.2.2-merged-first", "keras"),
    ],
)
@pytest.mark.quick(1)
def test_a_sequential_without_a_name_or_on_branches_is_read(case: str, to: str, tmp_path: Path) -> None:
    """Keras up to 2.2.2 lists the layers of a Sequential alone; a Merge at its beginning contains its branches."""
    exact, target = is_exact(case, to, tmp_path)
    assert exact
    assert replayed(case, to, target)
    assert migrate.verify(SOURCES[case], target).ok


@pytest.mark.usefixtures("loaded_here")
@pytest.mark.parametrize("to", ["keras", "tf-keras"])
@pytest.mark.quick(1)
def test_float64_stays_float64(to: str, tmp_path: Path) -> None:
    """Configs of layers of Keras before 2.3 do not show the dtype, which `K.set_floatx` set for all."""
    case = "keras2.2.4-in-double"
    _, target = is_exact(case, to, tmp_path)
    assert replayed(case, to, target)  # which finds the weights by their bits
    model = import_module(LIBRARY[to]).models.load_model(target)
    assert {np.dtype(layer.compute_dtype).name for layer in model.layers} == {"float64"}
    kept = [np.asarray(v) for v in model.optimizer.variables]
    assert {array.dtype.name for array in kept if array.ndim} == {"float64"}
    assert migrate.verify(SOURCES[case], target).ok


@pytest.mark.breadth
@pytest.mark.usefixtures("loaded_here")
def test_a_layer_in_a_wrapper_is_found_as_keras_before_1_2_calls_it(tmp_path: Path) -> None:
    """Its config has the forward layer's own name; as 1.0.8 and 1.1.2 wrote it, whose steps were compared by hand."""
    source, target = tmp_path / "source.h5", tmp_path / "model.h5"
    shutil.copy(SOURCES["keras1.2.2-gates-of-words"], source)
    with h5py.File(source, "r+") as file:
        model = json.loads(file.attrs["model_config"])
        for layer in model["config"]["layers"]:
            if layer["class_name"] == "Bidirectional":
                inner = layer["config"]["layer"]["config"]
                inner["name"] = f"forward_{inner['name']}"
        file.attrs["model_config"] = json.dumps(model).encode()
    assert migrate.migrate_checkpoint(source, target, to="tf-keras").fidelity == "exact"
    assert migrate.verify(source, target).ok
    assert replayed("keras1.2.2-gates-of-words", "tf-keras", target)


def _of_gates(state: OptimizerState, slots: Any = None, **settings: Any) -> OptimizerState:
    return replace(state, slots=slots or state.slots, hyperparameters={**state.hyperparameters, **settings})


def test_gates_are_joined_only_where_a_step_takes_each_number_by_itself() -> None:
    state = migrate.read(SOURCES["keras1.2.2-gates-in-series"])
    joined = keras1_weights.modern(state)
    names = ["lstm_1_W", "lstm_1_U", "lstm_1_b"]
    gates = {name: [f"{name}_{gate}" for gate in "ifco"] for name in names}
    for kind, per in joined.slots.items():
        assert not {v for parts in gates.values() for v in parts} & set(per)
        for name in names:
            arrays = [state.slots[kind][part].load() for part in gates[name]]
            np.testing.assert_array_equal(per[f"{name}_ifco"].load(), np.concatenate(arrays, axis=-1))
    ((slot, per),) = state.slots.items()
    lost = {slot: {name: array for name, array in per.items() if name != "lstm_1_U_c"}}
    for changed, why in [
        (replace(state, algorithm="Lamb"), "each gate as a separate variable"),
        (_of_gates(state, clipnorm=0.5), "each gate as a separate variable"),
        (_of_gates(state, lost), "lstm_1_U_c: slot m is missing"),
    ]:
        with pytest.raises(UnsupportedError, match=why):
            keras1_weights.modern(changed)


LSTM_1: dict[str, Any] = {"name": "lstm_1", "output_dim": 3, "consume_less": "cpu"}


@pytest.mark.parametrize(
    ("kind", "config", "why"),
    [
        ("LSTM", {**LSTM_1, "W_regularizer": {"name": "L1L2Regularizer", "l2": 0.1}}, "differ in which of them"),
        ("SimpleRNN", {**LSTM_1, "consume_less": "mem", "dropout_W": 0.5}, "uses with consume_less='cpu' only"),
        ("Dense", {"name": "d", "W_regularizer": {"name": "EigenvalueRegularizer"}}, "EigenvalueRegularizer of Keras"),
        (
            "TimeDistributed",
            {"name": "t", "layer": {"class_name": "BatchNormalization", "config": {}}},
            "around 'BatchNormalization'",
        ),
    ],
)
def test_what_only_keras_1_does_is_refused(kind: str, config: dict[str, Any], why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        keras1.modern({"class_name": "Sequential", "config": [{"class_name": kind, "config": config}]})


@pytest.mark.parametrize(
    ("implementation", "rates", "targets"),
    [
        (1, ("dropout",), {"keras"}),
        (1, ("dropout", "recurrent_dropout"), set()),
        (2, ("dropout",), set()),
        (2, ("recurrent_dropout",), {"keras", "tf-keras"}),
    ],
)
def test_gates_that_drop_out_otherwise_are_told(implementation: int, rates: tuple[str, ...], targets: set[str]) -> None:
    lstm = {"name": "lstm", "implementation": implementation, **dict.fromkeys(rates, 0.5)}
    layer = {"class_name": "Bidirectional", "config": {"name": "b", "layer": {"class_name": "LSTM", "config": lstm}}}
    document = {"class_name": "Sequential", "config": {"name": "m", "layers": [layer]}}
    source = Stored("h5", "keras2.3", (), None, (), model=StoredModel(document, None, None))
    assert {to for to in SUFFIX if training.differences(document, source, to)} == targets


def test_the_tables_of_keras_1_are_known() -> None:
    state = migrate.read(SOURCES["keras1.2.2-convolved-words"])
    reason = repeated_rows.difference(state, algorithms.find("Adam"), ("square",), "Keras 3")
    assert reason.startswith("embedding_1_W: if a batch contains a row several times")


@pytest.mark.parametrize("to", ["slots", "keras", "tf-keras"])
@pytest.mark.parametrize(
    ("case", "version"), [("keras3.15.1-softmax-binary", "3.99.0"), ("tf2.13.1-frozen-within", "2.30.0")]
)
def test_a_file_of_an_unknown_release_is_exact_only_if_confirmed(
    case: str, version: str, to: str, tmp_path: Path
) -> None:
    source = tmp_path / "source.h5"
    shutil.copy(SOURCES[case], source)
    with h5py.File(source, "r+") as file:
        file.attrs["keras_version"] = file["model_weights"].attrs["keras_version"] = version
    report = migrate.migrate_checkpoint(source, tmp_path / f"a{SUFFIX.get(to, '')}", to=to)
    assert report.fidelity == "approximate"
    (reason,) = report.reasons
    assert f"Keras {version[:4]} wrote it" in reason
    confirmed = migrate.migrate_checkpoint(
        source, tmp_path / f"b{SUFFIX.get(to, '')}", to=to, overrides=report.questions.answers
    )
    assert confirmed.fidelity == "exact"


@pytest.mark.parametrize(("version", "written"), [("2.9.0", 1.001e-5), ("2.11.1", 1.001e-5), ("2.12.0", 1e-6)])
def test_a_small_epsilon_is_what_the_release_of_tensorflow_made_of_it(
    version: str, written: float, tmp_path: Path
) -> None:
    source = tmp_path / "source.h5"
    shutil.copy(FEATURES / "tf2.9.3-small-epsilon.h5", source)
    with h5py.File(source, "r+") as file:
        file.attrs["keras_version"] = file["model_weights"].attrs["keras_version"] = version
    migrate.migrate_checkpoint(source, tmp_path / "model.h5", to="tf-keras")
    with h5py.File(tmp_path / "model.h5") as file:
        layers = json.loads(file.attrs["model_config"])["config"]["layers"]
    assert [x["config"]["epsilon"] for x in layers if x["class_name"] == "BatchNormalization"] == [written]


def batch_of(recorded: Any, key: str) -> Any:
    arrays = {name.partition("/")[2]: recorded[name] for name in recorded.files if name.startswith(f"{key}/")}
    if not all(name.isdigit() for name in arrays):
        return arrays
    return [*arrays.values()] if len(arrays) > 1 else arrays["0"]


GATE = re.compile(r"(.*_[WUb])_([ifcozrh])(?::0)?")


def as_later(case: str, weights: list[np.ndarray]) -> list[np.ndarray]:
    """With what Keras 1 has for each gate put side by side, in the order of Keras 2."""
    if not case.startswith("keras1."):
        return weights
    with h5py.File(SOURCES[case]) as file:
        layers = [file["model_weights"][name] for name in file["model_weights"].attrs["layer_names"]]
        names = [name.decode() for layer in layers for name in layer.attrs["weight_names"]]
    by_weight: dict[str, dict[str, np.ndarray]] = {}
    for name, weight in zip(names, weights, strict=True):
        match = GATE.fullmatch(name)
        by_weight.setdefault(match[1] if match else name, {})[match[2] if match else ""] = weight
    return [
        np.concatenate([gates[gate] for gate in sorted(gates, key="ifcozrh".index)], -1) for gates in by_weight.values()
    ]


def replayed(case: str, to: str, target: Path) -> bool:
    """Whether Keras goes on from a target as the source's release did: its first loss, and trained weights after each
    of three steps on the same batch."""
    recorded = np.load(FEATURES / f"{case}.npz")
    model = import_module(LIBRARY[to]).models.load_model(target)
    model.run_eagerly = True  # to compile three steps takes longer than to take them
    count = sum(name.startswith("at_save/") for name in recorded.files)
    kept = as_later(case, [recorded[f"at_save/{i}"] for i in range(count)])
    start = [np.squeeze(weight_array) for weight_array in kept]
    trained = {i: w for w in model.trainable_weights for i, v in enumerate(start) if np.array_equal(v, np.squeeze(w))}
    assert len(trained) == len(model.trainable_weights)
    for step in range(3):
        loss = np.ravel(model.train_on_batch(batch_of(recorded, "x"), batch_of(recorded, "y")))[0]
        if step == 0 and not np.isclose(loss, recorded["loss/0"], rtol=1e-4):
            return False
        after = as_later(case, [recorded[f"weight/{step}/{i}"] for i in range(count)])
        for i, weight in trained.items():
            want = np.squeeze(after[i])
            moved = np.linalg.norm(want - start[i])
            if np.linalg.norm(np.squeeze(weight) - want) > 1e-3 * moved + 1e-6 * np.linalg.norm(want):
                return False
    return True


@pytest.mark.parametrize("to", [pytest.param("keras", marks=needs_keras("3.14")), "tf-keras"])
def test_a_batch_renormalization_goes_on_as_it_was(to: str, tmp_path: Path) -> None:
    """Of images, too, with an epsilon that TensorFlow does not raise there."""
    for case in ("tf2.8.4-image-renorm", "tf1.15.5-batch-renorm"):
        exact, target = is_exact(case, to, tmp_path / case)
        assert exact
        assert replayed(case, to, target)


def test_a_batch_renormalization_says_which_keras_loads_it(tmp_path: Path) -> None:
    target = tmp_path / "model.keras"
    report = migrate.migrate_checkpoint(SOURCES["tf2.8.4-image-renorm"], target, to="keras")
    assert any("has renorm, so it needs Keras 3.14.0 or later" in text for text in report.warnings)
    with zipfile.ZipFile(target) as file:
        assert json.loads(file.read("metadata.json"))["keras_version"] == "3.14.0"


@pytest.mark.parametrize("case", [pytest.param(BFLOAT16[0], marks=needs_keras("3.13")), *BFLOAT16[1:]])
@pytest.mark.usefixtures("loaded_here")
def test_bfloat16_goes_to_keras_3_alone(case: str, tmp_path: Path) -> None:
    _, target = is_exact(case, "keras", tmp_path)
    assert replayed(case, "keras", target)
    assert migrate.verify(SOURCES[case], target).ok
    again = tmp_path / "again.keras"
    assert migrate.migrate_checkpoint(target, again, to="keras").fidelity == (
        "exact" if "3." in case else "approximate"
    )
    with pytest.raises(UnsupportedError, match="bfloat16, which tf_keras cannot load"):
        migrate.migrate_checkpoint(SOURCES[case], tmp_path / "model.h5", to="tf-keras")


def test_numbers_of_bfloat16_are_read_and_rounded() -> None:
    assert LazyArray((), "bfloat16", lambda: np.array(0x3D6F, np.uint16), "").number() == 0.058349609375
    numbers = np.array([0.1, -1.0, 1.00390625, 1.01171875])  # the last two lie in the middle
    assert [hex(bits) for bits in narrowed(numbers, "bfloat16")] == ["0x3dcd", "0xbf80", "0x3f80", "0x3f82"]


@pytest.mark.breadth
@pytest.mark.parametrize(("to", "case"), BOTH)
def test_the_next_steps(case: str, to: str, tmp_path: Path) -> None:
    exact, target = is_exact(case, to, tmp_path)
    assert replayed(case, to, target) == (exact or (case, to) in ALIKE_HERE)
