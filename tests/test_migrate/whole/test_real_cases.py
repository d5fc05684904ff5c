"""Checkpoints that real releases wrote: every slot under its variable, bit for bit, and the step that came next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from migrate.algorithms import find
from migrate.algorithms.wrappers import innermost
from migrate.errors import AmbiguousError
from migrate.proof import parity
from migrate.releases.versions import UNKNOWN
from optim.errors import MismatchError
from tests.places import CORPUS
from tests.test_migrate.confirm import confirmed

REFUSED = {
    # More slots than variables are named.
    "extra-tf29-adam-refrozen-npz": MismatchError,
    # After a restore variables stand in an order that the list does not say, and all have one shape.
    "extra-tf24-adam-restored-same-shapes-npz": AmbiguousError,
    "extra-tf24-adam-restored-nested-same-npz": AmbiguousError,
    # Which variables joined later, no shape tells.
    "extra-tf24-adam-unfrozen-later-npz": AmbiguousError,
}
LOST_COUNTER = {"keras224-adadelta-mlp": "exact", "extra-k224-adadelta-decay-mlp-npz": "approximate"}
ASSUMED = {
    "tf24-sgd-clipboth-mlp",
    "extra-tf211-new-adam-wd-ema-h5",
    "extra-k122-sgd-nodecay-frozen-h5",
    "extra-k224-sgd-clipboth-frozen-h5",
}
"""TF 2.3 calls its Keras 2.4.0, too; no source records what is excluded from weight decay; and a frozen layer of the
same shape may have been the trained one."""
SWAPPED = {
    "extra-k224-sgd-flags-swapped-h5": "the slots would fit first/kernel, first/bias, ",
    "extra-k224-sgd-twins-flipped-h5": (
        "their names do not show their layers, and layers that are frozen by now are saved last"
    ),
}
"""Layers were frozen or unfrozen after compile, and the file does not say which of the trained ones came first."""
SUPPORTED = ("SGD", "Adam", "Adadelta", "LossScaleOptimizerV3")


def _cases() -> list[str]:
    names = []
    for path in sorted(CORPUS.glob("*/case.json")):
        document = json.loads(path.read_text())
        if document["format"].startswith(("h5", "weights.")) and document["optimizer"]["class"] in SUPPORTED:
            names.append(path.parent.name)
    return names


ELSEWHERE = ("extra-tfk221-new-adam-dict-held-weights", "extra-tf19-adam-clipnorm-h5")
"""Whose order, or norm, only a person knows: test_weights_h5.py and test_resume.py tell it."""
CASES = [name for name in _cases() if name not in (*REFUSED, *ELSEWHERE, *SWAPPED)]


def test_the_corpus_is_there() -> None:
    assert len(CASES) >= 20


@pytest.mark.parametrize("name", CASES)
def test_slots_iterations_and_order(name: str, load_case: Any) -> None:
    case = load_case(name)
    state = migrate.read(case.source, **case.hints)
    algorithm = find(state.algorithm)
    checked = 0
    for key in case.oracle.files:
        if not key.startswith("at_save/slot/"):
            continue
        _, _, slot, index = key.split("/")
        want, variable = case.oracle[key], case.document["trainable"][int(index)]
        if want.shape != tuple(variable["shape"]):
            assert want.shape == (1,)  # a placeholder of vhat
            continue
        got = state.slots[algorithm.slot_of(slot)][variable["name"].removesuffix(":0")].load()
        assert got.dtype == want.dtype
        assert got.tobytes() == want.tobytes(), key
        checked += 1
    assert checked == sum(len(owners) for owners in state.slots.values())
    if name in LOST_COUNTER:
        assert (state.iterations, state.fidelity) == (0, LOST_COUNTER[name])
    else:
        raced = case.generation in ("keras2.3", "optimizer_v1") and any(
            "before or after it raises" in r for r in state.reasons
        )
        fidelity = "approximate" if name in ASSUMED or raced else "exact"
        assert (state.iterations, state.fidelity) == (int(case.oracle["iterations"]), fidelity)
        if fidelity == "approximate":
            confirmed_state = migrate.read(case.source, overrides=confirmed(case.source, **case.hints), **case.hints)
            assert confirmed_state.fidelity == "exact"


@pytest.mark.parametrize("name", CASES)
def test_trained_variables(name: str, load_case: Any) -> None:
    case = load_case(name)
    state = migrate.read(case.source, **case.hints)
    assert sorted(v.name for v in state.variables if v.trainable) == sorted(case.names)
    for i, variable in enumerate(case.names):
        stored = next(v for v in state.variables if v.name == variable)
        if case.document["format"] == "h5":
            assert stored.array is not None
            assert stored.array.load().tobytes() == case.oracle[f"at_save/var/{i}"].tobytes()


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, load_case: Any) -> None:
    case = load_case(name)
    with pytest.raises(REFUSED[name]):
        migrate.read(case.source, **case.hints)


@pytest.mark.parametrize("name", SWAPPED)
def test_flags_that_deny_the_slots_are_never_exact(name: str, load_case: Any) -> None:
    case = load_case(name)
    state = migrate.read(case.source)
    assert any(SWAPPED[name] in reason for reason in state.reasons)
    truth = [{"name": v["name"], "shape": v["shape"]} for v in case.document["trainable"]]
    ordered_state = migrate.read(case.source, variables=truth)
    assert ordered_state.fidelity == "exact"
    for i, name in enumerate(case.names):
        assert np.array_equal(ordered_state.slots["m"][name].load(), case.oracle[f"at_save/slot/moments/{i}"])


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith(("keras224-", "tf2", "keras231-"))])
def test_generation_is_recognised(name: str, load_case: Any) -> None:
    case = load_case(name)
    state = migrate.read(case.source, **case.hints)
    assert state.source is not None
    assert state.source.generation == case.generation


@pytest.mark.parametrize("name", [n for n in CASES if n not in LOST_COUNTER and "lss" not in n])
def test_the_formulas_of_parity_are_those_of_the_release(name: str, load_case: Any) -> None:
    """One step of the real framework, from its own numbers: parity is checked by what it checks with."""
    case = load_case(name)
    state = migrate.read(case.source, **case.hints)
    optimizer = case.hints.get("optimizer_config") or (state.source.optimizer_config if state.source else None)
    versions = state.source.versions if state.source else UNKNOWN
    version = tuple(int(n) for n in (versions.keras or "2.2.4").split("-")[0].split("."))
    source = parity.Source(
        state.algorithm, innermost(optimizer)["config"], case.generation, version, state.iterations, _dtype(case)
    )
    count = range(len(case.names))
    gradients = {str(i): (lambda i=i: case.oracle[f"grad/0/{i}"].astype(np.float64)) for i in count}
    clip = parity.gradient_scale(source, gradients)
    for i in count:
        slots = {s: o[case.names[i]].load().astype(np.float64) for s, o in state.slots.items() if case.names[i] in o}
        start = case.oracle[f"at_save/var/{i}"].astype(np.float64)
        want = case.oracle[f"var/0/{i}"].astype(np.float64)
        got, _ = parity.step(source, start, clip(gradients[str(i)]()), slots)
        moved = np.linalg.norm(want - start)
        # float32 frameworks form 1 - beta_2**t with 1e-5 of relative error at small t
        assert np.linalg.norm(got - want) <= 2e-5 * moved + 2e-7 * np.linalg.norm(want), case.names[i]


def _dtype(case: Any) -> str:
    return str(case.oracle["at_save/var/0"].dtype)


@pytest.mark.parametrize(
    "name", ["keras224-sgd-momentum-convbn", "tf29-adam-clipnorm-decay-nested", "keras224-adadelta-mlp"]
)
def test_migrate_and_verify(name: str, load_case: Any, tmp_path: Path) -> None:
    case = load_case(name)
    report = migrate.migrate_checkpoint(case.source, tmp_path / "out")
    assert (report.fidelity, report.written) == ("exact", True)
    assert set(report.matched) == {f"{s}/{n}" for s, o in migrate.read(case.source).slots.items() for n in o}
    result = migrate.verify(case.source, tmp_path / "out")
    assert result.ok, result.differences
    assert result.parity is not None
    assert result.parity <= 1


def test_verify_sees_one_changed_bit_a_swap_and_a_hyperparameter(load_case: Any, tmp_path: Path) -> None:
    from dataclasses import replace

    case = load_case("keras224-adam-eps-none-nested")
    state = migrate.read(case.source)
    changed = state.slots["m"]["dense_1/bias"].load().copy()
    changed.view(np.uint32)[0] ^= 1
    array = replace(state.slots["m"]["dense_1/bias"], load=lambda: changed, extent=None)
    bit = replace(state, slots={**state.slots, "m": {**state.slots["m"], "dense_1/bias": array}})
    swap = replace(state, slots={"m": state.slots["v"], "v": state.slots["m"]})
    rate = replace(state, hyperparameters={**state.hyperparameters, "learning_rate": 0.1})
    count = replace(state, iterations=state.iterations + 1)
    for i, (wrong, message) in enumerate(
        ((bit, "1 of 4"), (swap, "differs in"), (rate, "learning_rate"), (count, "iterations"))
    ):
        migrate.write(wrong, tmp_path / str(i))
        result = migrate.verify(case.source, tmp_path / str(i))
        assert not result.ok
        assert any(message in difference for difference in result.differences), result.differences
