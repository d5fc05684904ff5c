"""Reading, converting, checking and rewriting where TensorFlow is not installed, as after `pip install dtopt-light`."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from migrate.proof import by_rule
from optim.errors import UnsupportedError
from tests.helpers.breadth import broad
from tests.places import CORPUS, ROOT

H5 = CORPUS / "keras231-adam-amsgrad-mlp" / "source" / "model.h5"
ABSENT = "import sys\nfor name in ('tensorflow', 'keras', 'tf_keras'): sys.modules[name] = None\n"
"""Python runs this at its start, also in processes that the command starts; an import of these is then an error."""
TARGETS = {"slots": "slots", "keras": "model.keras", "tf-keras": "model.h5", "list": "weights.npz"}


@pytest.fixture
def dtopt(tmp_path: Path) -> Any:
    """A function: arguments -> the command as it ended."""
    folder = tmp_path / "first"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(ABSENT)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
        words = [sys.executable, "-m", "dtopt_cli", *arguments]
        return subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    return run


def test_what_is_read(dtopt: Any) -> None:
    read = dtopt("migrate", "inspect", str(H5))
    assert (read.returncode, "Adam, 5 steps taken" in read.stdout) == (0, True), read.stderr


@pytest.mark.parametrize("target", ["slots", "keras", broad("tf-keras"), broad("list")])
def test_what_is_written_and_verified(target: str, dtopt: Any) -> None:
    name = TARGETS[target]
    written = dtopt("migrate", "checkpoint", str(H5), name, "--to", target, "--set", "iterations=5")
    assert (written.returncode, "fidelity: exact" in written.stdout) == (0, True), written.stderr
    verified = dtopt("migrate", "verify", str(H5), name, "--set", "iterations=5")
    assert (verified.returncode, verified.stdout.startswith("same: 12 slots")) == (0, True), verified.stderr
    if target == "slots":
        assert "one step agrees" in verified.stdout
        assert "TensorFlow is not installed, so its own reader was not used" in verified.stderr
    if target in ("keras", "tf-keras"):
        assert "not loaded" in verified.stderr


def test_what_needs_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import optim

    monkeypatch.setitem(sys.modules, "optim.optimizers.lion", None)
    with pytest.raises(ModuleNotFoundError, match="halted"):
        _ = optim.Lion
    absent = [name for name in sys.modules if name.startswith("optim.native.library")]
    for name in ("tensorflow", *absent):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ModuleNotFoundError, match=r"optim\.build_kernels needs TensorFlow, .*: pip install tensorflow"):
        _ = optim.build_kernels


def test_the_step_of_a_rule_alone(tmp_path: Path) -> None:
    """Of other hyperparameters it is another; with an option around the rule it is not taken."""
    state = migrate.read(H5, overrides={"iterations": 5})
    start = {v.name: np.ones(v.shape) for v in state.variables}
    gradients = {name: np.full(value.shape, 0.5) for name, value in start.items()}
    after = {}
    for beta in (0.9, 0.8):
        folder = tmp_path / str(beta)
        migrate.write(replace(state, hyperparameters={**state.hyperparameters, "beta_1": beta}), folder)
        after[beta] = by_rule.after(str(folder), start, gradients)
    assert all((after[0.9][name] != after[0.8][name]).any() for name in start)
    migrate.write(replace(state, hyperparameters={**state.hyperparameters, "clipnorm": 1.0}), tmp_path / "clipped")
    with pytest.raises(UnsupportedError, match="one with clipnorm needs TensorFlow"):
        by_rule.after(str(tmp_path / "clipped"), start, gradients)


def test_a_difference_is_seen(dtopt: Any, tmp_path: Path) -> None:
    assert dtopt("migrate", "checkpoint", str(H5), "slots").returncode == 0
    other = dtopt("migrate", "verify", str(H5), "slots", "--set", "iterations=6")
    assert (other.returncode, other.stdout.startswith("different")) == (1, True)


def test_programs_are_rewritten(dtopt: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from keras.optimizers import Adam\noptimizer = Adam(lr=1e-3)\n")
    done = dtopt("migrate", "code", "train.py", "--from", "keras==2.3.1")
    assert "optim.Adam(learning_rate=1e-3)" in done.stdout, done.stderr


def test_what_needs_tensorflow_says_so(dtopt: Any, tmp_path: Path) -> None:
    assert "tensorflow not installed: pip install tensorflow" in dtopt("bench", "step", "--quick").stdout
    done = subprocess.run(
        [sys.executable, "-c", ABSENT + "import sys; sys.argv = ['dtopt', 'nothing']\n"
         "from dtopt_cli import app\ndef ends(): import tensorflow\napp.app = ends\napp.main()"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        2,
        "dtopt: this needs TensorFlow, which is not installed: pip install tensorflow\n",
    )


def test_both_distributions_at_once_are_a_mistake(dtopt: Any, tmp_path: Path) -> None:
    for name in ("dtopt", "dtopt-light"):
        folder = tmp_path / "first" / f"{name.replace('-', '_')}-9.9.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.9\n")
    done = dtopt("--version")
    assert (done.returncode, done.stdout) == (0, "dtopt 9.9\n")
    assert done.stderr.endswith("Uninstall both, then install one:\n  pip uninstall -y dtopt dtopt-light\n")
