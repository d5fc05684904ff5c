"""Reading, converting, checking and rewriting where TensorFlow is not installed, as after `pip install dtopt-light`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "fixtures" / "corpus"
H5 = CORPUS / "keras231-adam-amsgrad-mlp" / "source" / "model.h5"
ABSENT = "import sys\nfor name in ('tensorflow', 'keras', 'tf_keras'): sys.modules[name] = None\n"
"""Python runs this at its start, also in processes that the command starts; an import of these is then an error."""
TARGETS = {"slots": "slots", "keras": "model.keras", "tf-keras": "model.h5", "list": "weights.npz"}


@pytest.fixture
def dtopt(tmp_path: Path) -> object:
    """A function: arguments -> the command as it ended."""
    folder = tmp_path / "first"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(ABSENT)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
        words = [sys.executable, "-m", "dtopt_cli", *arguments]
        return subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    return run


def test_what_is_read_written_and_verified(dtopt: object, tmp_path: Path) -> None:
    """In one test: each command is a process of its own."""
    assert callable(dtopt)
    read = dtopt("migrate", "inspect", str(H5))
    assert (read.returncode, "Adam, 5 steps taken" in read.stdout) == (0, True), read.stderr
    for target, name in TARGETS.items():
        written = dtopt("migrate", "checkpoint", str(H5), name, "--to", target, "--set", "iterations=5")
        assert (written.returncode, "fidelity: exact" in written.stdout) == (0, True), written.stderr
        verified = dtopt("migrate", "verify", str(H5), name, "--set", "iterations=5")
        assert (verified.returncode, verified.stdout.startswith("same: 12 slots")) == (0, True), verified.stderr
        if target == "slots":
            assert (
                "TensorFlow is not installed, so its own reader was not asked and no step was taken" in verified.stderr
            )
        if target in ("keras", "tf-keras"):
            assert "not loaded" in verified.stderr


def test_a_difference_is_seen(dtopt: object, tmp_path: Path) -> None:
    assert callable(dtopt)
    assert dtopt("migrate", "checkpoint", str(H5), "slots").returncode == 0
    other = dtopt("migrate", "verify", str(H5), "slots", "--set", "iterations=6")
    assert (other.returncode, other.stdout.startswith("different")) == (1, True)


def test_programs_are_rewritten(dtopt: object, tmp_path: Path) -> None:
    assert callable(dtopt)
    (tmp_path / "train.py").write_text("from keras.optimizers import Adam\noptimizer = Adam(lr=1e-3)\n")
    done = dtopt("migrate", "code", "train.py", "--from", "keras==2.3.1")
    assert "optim.Adam(learning_rate=1e-3)" in done.stdout, done.stderr


def test_what_needs_tensorflow_says_so(dtopt: object, tmp_path: Path) -> None:
    assert callable(dtopt)
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
