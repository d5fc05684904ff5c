"""Two programs and their checkpoints, carried over and run on: the next losses are those that the old release had.

The programs, their state after six batches and the losses of the next six are from Keras 2.2.4 on TensorFlow 1.12.3 and
from TensorFlow 1.15.5, see `tests/fixtures/cases/stories/`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from migrate import migrate_checkpoint
from migrate.code.hints import from_code
from migrate.code.run import migrate_code
from tests.helpers import keras_releases
from tests.places import ROOT, STORIES


def run(folder: Path, program: str) -> list[float]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.fspath(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "KERAS_BACKEND": "tensorflow",
    }
    done = subprocess.run(
        [sys.executable, program], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [float(line) for line in done.stdout.split()]


def losses(folder: Path) -> list[float]:
    return [float(line) for line in (folder / "next_losses.txt").read_text().split()]


@pytest.mark.breadth
def test_a_keras_22_program_with_pickled_weights_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "keras22"
    shutil.copytree(STORIES / "keras22", folder)
    hint = from_code(os.fspath(folder / "train.py"))
    variables = [
        {"name": "dense/kernel", "shape": [5, 8]},
        {"name": "dense/bias", "shape": [8]},
        {"name": "dense_1/kernel", "shape": [8, 1]},
        {"name": "dense_1/bias", "shape": [1]},
    ]
    migrate_checkpoint(
        os.fspath(folder / "optimizer.pkl"),
        os.fspath(folder / "optimizer.slots"),
        optimizer_config=hint.optimizer_config,
        generation=hint.generation,
        variables=variables,
    )
    report = migrate_code([folder / "train.py"], write=True)
    assert report.exit_code == 0
    wanted = np.array(losses(folder))
    if keras_releases.INSTALLED < keras_releases.LOSS_OF_BATCH:
        wanted = np.cumsum(wanted) / np.arange(1, len(wanted) + 1)
    np.testing.assert_allclose(run(folder, "train.py"), wanted, rtol=2e-6, atol=5e-6)


@pytest.mark.breadth
def test_a_tf_115_graph_goes_on_as_its_findings_say(tmp_path: Path) -> None:
    folder = tmp_path / "tf115"
    shutil.copytree(STORIES / "tf115", folder)
    report = migrate_code([folder / "train.py"])
    assert report.exit_code == 1
    call = "optim.SGD(learning_rate=0.05, momentum=0.9, nesterov=True, learning_rate_in_momentum=False)"
    assert call in report.findings[0].message
    assert call.replace("learning_rate=0.05", "0.05") in (folder / "train_by_hand.py").read_text()
    hint = from_code(os.fspath(folder / "train.py"))
    migrate_checkpoint(
        os.fspath(folder / "model.ckpt"), os.fspath(folder / "model.slots"), optimizer_config=hint.optimizer_config
    )
    np.testing.assert_allclose(run(folder, "train_by_hand.py"), losses(folder), rtol=2e-6, atol=5e-6)
