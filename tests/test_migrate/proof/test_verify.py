"""What `verify` says of large checkpoints, of which it steps a part, and what TensorFlow's reader would notice."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from migrate.bytes.arrays import LazyArray
from migrate.errors import AmbiguousError, ContradictionError, DamagedFileError
from migrate.proof import one_step, parity_sample, slots_target, stepping
from optim import slot_layout
from optim.bytes import protos
from optim.bytes.bundle import GRAPH_KEY
from optim.errors import CheckpointError
from tests.helpers.bundles import rewritten, written
from tests.places import CORPUS, KERAS, WILD

ADAM = CORPUS / "tf24-adam-convbn" / "source" / "model.h5"
ADAFACTOR = "tf215-new-adafactor-mlp"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the checkpoints of this file were large."""
    monkeypatch.setattr(parity_sample, "NUMBERS", 20)
    monkeypatch.setattr(parity_sample, "MOST", 16)
    monkeypatch.setattr(parity_sample, "LEAST", 16)


@pytest.mark.usefixtures("small")
def test_a_step_of_a_large_checkpoint_is_compared_on_a_sample(tmp_path: Path) -> None:
    migrate.migrate_checkpoint(ADAM, tmp_path / "out")
    seen: list[tuple[int, int]] = []
    result = migrate.verify(ADAM, tmp_path / "out", progress=lambda done, total: seen.append((done, total)))
    assert result.ok, result.differences
    assert result.parity is not None
    assert "up to 16 numbers of each variable" in result.notes[0]
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.usefixtures("small")
def test_a_sample_that_is_wrong_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = migrate.read(ADAM)
    wrong = replace(state, slots={"m": state.slots["v"], "v": state.slots["m"]})
    migrate.migrate_checkpoint(ADAM, tmp_path / "out")
    monkeypatch.setattr(one_step, "read_slots", lambda _: wrong)
    result = migrate.verify(ADAM, tmp_path / "out")
    assert not result.ok
    assert "a step from the target differs" in result.differences[0]


@pytest.mark.usefixtures("small")
def test_a_rule_that_needs_whole_variables_leaves_out_the_largest(tmp_path: Path) -> None:
    document = json.loads((CORPUS / ADAFACTOR / "case.json").read_text())["optimizer"]
    source, config = CORPUS / ADAFACTOR / "source" / "ckpt-1", {"class_name": "Adafactor", "config": document["config"]}
    migrate.migrate_checkpoint(source, tmp_path / "out", optimizer_config=config)
    result = migrate.verify(source, tmp_path / "out", optimizer_config=config)
    assert result.ok, result.differences
    assert result.parity is not None
    assert "largest variables, because Adafactor needs them whole" in result.notes[0]


def test_the_pieces_reach_from_the_first_number_to_the_last() -> None:
    state = migrate.read(ADAM)
    large = replace(state.variables[0], shape=(1 << 12, 1 << 12), array=None)
    chosen, note = parity_sample.sample(replace(state, variables=(large,)))
    pieces = chosen[large.name]
    assert note
    assert pieces is not None
    assert (pieces[0][0], pieces[-1][1]) == (0, 1 << 24)
    assert sum(end - start for start, end in pieces) == parity_sample.MOST
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(pieces))


def test_pieces_are_read_alone_and_as_they_are(tmp_path: Path) -> None:
    migrate.migrate_checkpoint(ADAM, tmp_path / "out")
    for state in (migrate.read(ADAM), migrate.read(tmp_path / "out")):
        name, array = next((n, a) for n, a in state.slots["v"].items() if a.size > 40)
        pieces = ((0, 3), (20, 24), (array.size - 2, array.size))
        part = parity_sample.reduced(state, {name: pieces}).slots["v"][name]
        flat = array.load().reshape(-1)
        assert array.extent is not None
        assert part.shape == (9, *(1 for _ in array.shape[1:]))
        assert part.load().reshape(-1).tolist() == [*flat[:3], *flat[20:24], *flat[-2:]]


def test_tensorflow_would_notice_another_value_dtype_or_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the reader of this package: what it says is held against what TensorFlow reads."""
    migrate.migrate_checkpoint(ADAM, tmp_path / "out")
    numbers = {"value": np.float32([1, 2]), "dtype": np.float32([1, 2]), "key": np.float32(1)}
    other = written(tmp_path / "other", numbers)
    true = written(tmp_path / "true", {"value": np.float32([1, 3]), "dtype": np.int32([1, 2])})
    target = slots_target.Target(str(tmp_path / "out"))
    target.bundle = migrate_reader(other)
    monkeypatch.setattr(target.bundle, "prefix", true)
    monkeypatch.setattr(target, "array", lambda key: read_from(str(other), key))
    differences = list(slots_target.tensorflow_differences(target))
    assert len(differences) == 3
    assert any("sees key" in line for line in differences)
    assert any(line.startswith("dtype is int32[2] to TensorFlow") for line in differences)
    assert any(line.startswith("value has other bits") for line in differences)


def migrate_reader(prefix: str) -> Any:
    from optim.bytes.bundle import BundleReader

    return BundleReader(prefix)


def read_from(prefix: str, key: str) -> Any:
    from migrate.readers.bundle_arrays import lazy

    return lazy(migrate_reader(prefix), key)


def test_a_schedule_of_ones_own_leaves_the_step_out_and_says_so(tmp_path: Path) -> None:
    source = WILD / "tf29-g-hf-adamweightdecay-warmup-h5" / "source" / "model.h5"
    migrate.migrate_checkpoint(source, tmp_path / "out")
    verification = migrate.verify(source, tmp_path / "out")
    assert verification.ok
    assert verification.parity is None
    assert any("WarmUp" in note for note in verification.notes)


def test_a_slot_of_a_number_is_no_hyperparameter_of_its_name() -> None:
    number = LazyArray((), "float32", lambda: np.float32(1), "")
    names = ["training/RMSprop/learning_rate", "training/RMSprop/rho", "training/RMSprop/scale/momentum"]
    assert set(stepping._settings([(name, number) for name in names])) == {"learning_rate", "rho"}
    assert not stepping._settings([("RMSprop/scale/momentum", number)])


Texts = dict[str, bytes]


def _told(change: Callable[[dict[str, Any]], Any]) -> Callable[[Any, Texts], None]:
    def changed(numbers: Any, texts: Texts) -> None:
        document = json.loads(texts[slot_layout.METADATA_KEY])
        change(document)
        texts[slot_layout.METADATA_KEY] = json.dumps(document).encode()

    return changed


def _config(**more: Any) -> Callable[[Any, Texts], None]:
    return _told(lambda document: document["optimizer"]["config"].update(more))


def _graph(numbers: Any, texts: Texts) -> None:
    """Two slots exchanged where TensorFlow looks for them."""
    graph = protos.ObjectGraph()
    graph.ParseFromString(texts[GRAPH_KEY])
    first, *_, last = (
        n.attributes[0] for n in graph.nodes if n.attributes and "/slots/" in n.attributes[0].checkpoint_key
    )
    first.checkpoint_key, last.checkpoint_key = last.checkpoint_key, first.checkpoint_key
    texts[GRAPH_KEY] = graph.SerializeToString()


ALTERED: dict[str, Callable[[Any, Texts], Any]] = {
    "clipping that does not act on one gradient": _config(clipnorm=1e6),
    "a little decay": _config(weight_decay=1e-9),
    "rows": _config(lazy_rows=[".*"]),
    "an unknown option": _config(no_such=1),
    "an option that is off, and on in the class": _config(bias_correction=False),
    "how often it was saved": lambda n, t: n.update({slot_layout.SAVE_COUNTER_KEY: np.int64(7)}),
    "the release that wrote the source": _told(lambda document: document["provenance"]["versions"].update(keras="2.2")),
    "a counter with a fraction": lambda n, t: n.update({slots_target.COUNTER: np.float64(4.5)}),
    "a counter of another dtype": lambda n, t: n.update({slots_target.COUNTER: np.int32(4)}),
    "a number more": lambda n, t: n.update({slot_layout.scalar_key("u_product"): np.float64(0.5)}),
    "a key more": lambda n, t: n.update({"own/.ATTRIBUTES/VARIABLE_VALUE": np.float32(1)}),
    "a variable that is not trained": _told(lambda document: document["variables"][0].update(trainable=False)),
    "the order of variables": _told(lambda document: document["variables"].reverse()),
    "a slot that the table leaves out": _told(lambda document: document["slots"]["m"].pop()),
    "no object graph": lambda n, t: t.pop(GRAPH_KEY),
    "an object graph of other slots": _graph,
}


@pytest.mark.parametrize("what", ALTERED)
def test_what_was_changed_in_slots_is_found(what: str, tmp_path: Path) -> None:
    migrate.migrate_checkpoint(ADAM, tmp_path / "out")
    with rewritten(Path(slot_layout.current_prefix(str(tmp_path / "out")))) as (numbers, texts):
        ALTERED[what](numbers, texts)
    try:
        verification = migrate.verify(ADAM, tmp_path / "out")
    except (ContradictionError, DamagedFileError, CheckpointError):
        return  # "damaged" is an answer, too
    assert not verification.ok


def test_an_option_that_no_single_step_shows_is_found(tmp_path: Path) -> None:
    """Gradients are accumulated, so that no step is compared."""
    source = CORPUS / "extra-keras312-adam-accumulation-keras" / "source" / "model.keras"
    migrate.migrate_checkpoint(source, tmp_path / "out")
    assert migrate.verify(source, tmp_path / "out").ok
    with rewritten(Path(slot_layout.current_prefix(str(tmp_path / "out")))) as (numbers, texts):
        _config(bias_correction=False)(numbers, texts)
    assert "bias_correction = False" in migrate.verify(source, tmp_path / "out").differences[0]


def test_why_a_target_is_not_exact_may_not_be_forgotten(tmp_path: Path) -> None:
    """Who migrates it again would be told that it is exact."""
    source = CORPUS / "tf24-sgd-clipboth-mlp" / "source" / "model.h5"
    assert migrate.migrate_checkpoint(source, tmp_path / "out").fidelity == "approximate"
    assert migrate.verify(source, tmp_path / "out").ok
    with rewritten(Path(slot_layout.current_prefix(str(tmp_path / "out")))) as (numbers, texts):
        _told(lambda document: document["provenance"].update(fidelity="exact", reasons=[]))(numbers, texts)
    assert migrate.read(tmp_path / "out").fidelity == "exact"
    assert "does not contain why it is not exact" in migrate.verify(source, tmp_path / "out").differences[0]


def test_an_altered_state_file_is_a_difference(tmp_path: Path) -> None:
    """TensorFlow's `latest_checkpoint` reads all of it, and finds nothing where a word is none that it knows."""
    migrate.migrate_checkpoint(ADAM, tmp_path / "out")
    pointer = tmp_path / "out" / "checkpoint"
    text = pointer.read_text()
    pointer.write_text(text.replace("all_model", "any_model"))
    assert migrate.verify(ADAM, tmp_path / "out").differences == (
        "its file checkpoint, with which TensorFlow finds the newest state, was altered",
    )
    pointer.write_text(text.replace("state-", "state-\0", 1))
    with pytest.raises(AmbiguousError, match="which is missing; name one of"):
        migrate.verify(ADAM, tmp_path / "out")


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("optimizer", ["Adam", "AdamW"])
def test_a_file_saved_before_the_first_step_agrees(suffix: str, optimizer: str, tmp_path: Path) -> None:
    """Its optimizer has no slots yet; the formula rounded as float64 does, and was 3.6 times off."""
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(getattr(keras.optimizers, optimizer)(), "mse")
    model.save(source := tmp_path / f"source{suffix}")
    assert migrate.inspect(source).unmade == ("m", "v")
    migrate.migrate_checkpoint(source, tmp_path / "out")
    result = migrate.verify(source, tmp_path / "out")
    assert result.ok, result.differences
    assert result.parity is not None
    assert migrate.inspect(ADAM).unmade == ()


def test_variables_without_slots_do_not_stop_it(tmp_path: Path) -> None:
    """They made it end with "the variables do not fit"."""
    source = KERAS / "frozen" / "k224-untrained-flat-h5" / "source" / "m.h5"
    assert migrate.migrate_checkpoint(source, tmp_path / "out").fidelity == "approximate"
    result = migrate.verify(source, tmp_path / "out")
    assert result.ok, result.differences
    assert result.parity is not None
    assert result.notes == ("no step was compared of c1/kernel, c1/bias, which can be trained and have no slots",)
