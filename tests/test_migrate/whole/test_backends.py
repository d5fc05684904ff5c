"""One `.keras` goes on alike under Keras 3 on TensorFlow, JAX and PyTorch, each in a process of its own.

With `DTOPT_TEST_DEVICE=GPU` each takes the GPU that it finds.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import migrate
from tests.helpers.placed import ON_GPU
from tests.places import CASE_FOLDER

MODELS = {
    "Adam, a model in a Sequential": "wild/tf29-a-sequential-of-functional-h5/source/model.h5",
    "Adam, nested": "wild/tf29-a-finetune-training-false-small-h5/source/model.h5",
    "Adam, Normalization": "wild/tf29-e-preprocessing-layers-h5/source/model.h5",
    "SGD, nesterov and decay": "corpus/tf20-sgd-nesterov-decay-nested/source/model.h5",
}
PROGRAM = """
import json, sys
import numpy as np, keras
model = keras.models.load_model(sys.argv[1])
data = np.load(sys.argv[2])
count = sum(key.startswith("x0") for key in data.files)
losses = []
for step in range(3):
    x = [data[f"x{step}_{i}"] for i in range(count)]
    model.reset_metrics()  # Keras before 3.15 returns the mean since then
    losses.append(float(np.ravel(model.train_on_batch(x if count > 1 else x[0], data[f"y{step}"]))[0]))
print("LOSSES", json.dumps([keras.backend.backend(), losses]))
"""
DEVICE = {"NVIDIA_TF32_OVERRIDE": "0"} if ON_GPU else {"CUDA_VISIBLE_DEVICES": ""}
"""On a GPU TensorFlow alone multiplies matrices in TF32, with 10 bits after the point, unless it is told not to."""


def _batches(path: Path) -> dict[str, np.ndarray]:
    """Three batches for a model, from its own inputs and outputs."""
    import keras

    model = keras.models.load_model(path)
    random = np.random.default_rng(0)
    batches: dict[str, np.ndarray] = {}
    for step in range(3):
        for i, tensor in enumerate(model.inputs):
            batches[f"x{step}_{i}"] = random.standard_normal((8, *tensor.shape[1:])).astype(np.float32)
        target = model.outputs[0].shape[1:]
        sparse = "sparse" in str(model.loss).lower()
        labels = random.integers(0, target[-1], (8, *target[:-1]))
        batches[f"y{step}"] = labels if sparse else random.random((8, *target)).astype(np.float32)
    return batches


@pytest.mark.breadth
@pytest.mark.parametrize("backend", ["jax", "torch"])
@pytest.mark.parametrize("name", MODELS)
def test_backends_see_the_same_losses(name: str, backend: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed (pip install {backend})")
    model, data = tmp_path / "model.keras", tmp_path / "data.npz"
    migrate.migrate_checkpoint(CASE_FOLDER / MODELS[name], model, to="keras")
    np.savez(data, **_batches(model))
    expected, losses = (_losses(library, model, data) for library in ("tensorflow", backend))
    np.testing.assert_allclose(losses, expected, rtol=1e-6, atol=1e-7)


def _losses(backend: str, model: Path, data: Path) -> list[float]:
    environment = {**os.environ, "KERAS_BACKEND": backend, **DEVICE}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(model), str(data)], capture_output=True, text=True, env=environment
    )
    lines = [line for line in run.stdout.splitlines() if line.startswith("LOSSES ")]
    assert lines, run.stderr[-2000:]
    used, losses = json.loads(lines[0].removeprefix("LOSSES "))
    assert used == backend
    return losses
