"""Real peers on a tiny workload: each computes what the reference does, and says what it cannot do."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import peers
from bench.cases.algorithms import ALGORITHMS
from bench.cases.case import Case
from bench.peers import tensorflow
from tests.places import ROOT
from tests.test_bench.peers.small_peers import SMALL, checked, made


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(case: Case) -> Any:  # the logical devices of this process are set already
        import tensorflow as tf

        return tf

    monkeypatch.setattr("bench.cases.case.workload", lambda name: SMALL)
    monkeypatch.setattr(tensorflow, "start", start)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("optim-local", made("rmsprop:momentum=0.9:centered=true", clip="norm=0.05", weight_decay=0.1)),
        ("optim-local", made("nadam", clip="global_norm=0.1", ema=0.9, accumulate=2)),
        ("optim-local", made("adam:amsgrad=true", sparse_rows=5)),
        ("optim-local", made("sgd:momentum=0.9:nesterov=true", dtype="bfloat16")),
        ("optim-local", made("lion", in_situ=True)),
        ("optim-portable", made("adam", sparse_rows=5, lazy_rows=True)),
        ("optim-portable-zero1", made("adamw", clip="value=0.01", ema=0.9)),
        ("optim-portable", made("muon")),
        ("optim-portable", made("lamb", in_situ=True)),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.optimizer} {' '.join(value.options.words())}",
)
@pytest.mark.quick(2)
def test_ours(name: str, case: Case) -> None:
    found = checked(name, case)
    assert found.agrees, found
    assert found.unchecked == 0


@pytest.mark.breadth
@pytest.mark.parametrize(("keras", "count"), [("jax", 21), ("torch", 4)])
def test_peers_without_tensorflow(keras: str, count: int) -> None:
    """In a process without TensorFlow: the two do not start in one. Where one is not installed, that is the reason."""
    script = Path(__file__).with_name("small_peers.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, str(script), keras],
        capture_output=True,
        text=True,
        env=environment,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert len(found) == count
    for name, optimizer, options, result in found:
        package = "torch" if "torch" in name else "jax"
        installed = importlib.util.find_spec(package) is not None
        assert (result[0] is True) if installed else ("not installed" in result), (name, optimizer, options, result)


@pytest.mark.parametrize("optimizer", ["adadelta", "ftrl"])
def test_tf_keras(optimizer: str) -> None:
    pytest.importorskip("tf_keras")
    assert checked("tf_keras", made(optimizer, clip="norm=0.05")).agrees


def test_bfloat16_tells_a_right_step_from_a_wrong_one() -> None:
    """tf_keras forms 1 - 0.999 in bfloat16, where 0.999 is 1: its Adam does not move."""
    pytest.importorskip("tf_keras")
    assert not checked("tf_keras", made("adam", dtype="bfloat16")).agrees


@pytest.mark.parametrize("peer", peers.PEERS, ids=lambda peer: peer.name)
def test_every_optimizer_is_there_or_has_a_reason(peer: Any) -> None:
    reasons = {known.name: peer.unavailable(made(known.name)) for known in ALGORITHMS}
    assert all(reason is None or len(reason) > 10 for reason in reasons.values())
    if peer.name.startswith("optim-portable"):
        assert set(reasons.values()) == {None}


@pytest.mark.parametrize(
    ("name", "case", "reason"),
    [
        ("torch-foreach", made(ema=0.9), "keeps no moving average"),
        ("torch-foreach", made(accumulate=2), "accumulates no gradients"),
        ("torch-foreach", made(clip="norm=1"), "clips by value and global_norm only"),
        ("torch-foreach", made("adagrad", weight_decay=0.1), "only through the gradient"),
        ("torch-foreach", made("rmsprop"), "compare with -o rmsprop:epsilon_inside=false"),
        ("torch-fused", made("adadelta"), "has no Adadelta that can be compared"),
        ("optax", made("nadam"), "has no Nadam that can be compared"),
        ("optax", made("yogi"), "has no Yogi that can be compared"),
        ("optax", made("lars", weight_decay=0.1), "takes decay for a part of the gradient"),
        ("torch-foreach", made("radam"), "compare with -o radam:epsilon_hat=true"),
        ("optax", made(sparse_rows=3), "takes no sparse gradients"),
        ("optax", made(placement="zero1"), "placed like their variables"),
        ("tf_keras-mesh", made(accumulate=2), "accumulates no gradients"),
        ("tf_keras-mesh", made(placement="zero1"), "placed like their variables"),
        ("tf_keras-legacy", made("sgd:momentum=0.9", sparse_rows=3), "compare with --lazy-rows"),
        ("keras3", made(sparse_rows=3, lazy_rows=True), "updates every row"),
        ("keras3-jax", made(sparse_rows=3), "takes no sparse gradients"),
        ("optim-portable-zero1", made(placement="zero1"), "the same as its namesake"),
    ],
)
def test_reasons(name: str, case: Case, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.peers.abilities.installed", lambda module: True)  # or that would be the first reason
    (peer,) = peers.find((name,))
    assert reason in (peer.unavailable(case) or "")
