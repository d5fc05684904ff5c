"""`migrate.restore` into PyTorch and optax where TensorFlow is not installed; processes of their own, which lack it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.helpers.timing import HANGS
from tests.places import CASE_FOLDER

BEGIN = """
import sys
sys.modules["tensorflow"] = None
import migrate, numpy as np
state = migrate.read(source)
h = state.hyperparameters
trained = [v for v in state.variables if v.trainable]
"""
TORCH = """
import torch
onto = {v.name: (torch.nn.Parameter(torch.zeros(v.shape)), range(len(v.shape))) for v in trained}
parameters = [parameter for parameter, _ in onto.values()]
live = torch.optim.SGD(parameters, lr=rate(0), momentum=h["momentum"])
"""
OPTAX = """
import optax
onto = {v.name: v.name.replace("/", "_") for v in trained}
tx = optax.chain(optax.trace(h["momentum"]), optax.scale_by_learning_rate(schedule))
live = migrate.Optax(tx, {name: np.zeros(v.shape, np.float32) for v, name in zip(trained, onto.values())})
"""
CONSTANT = """
rate = schedule = lambda count: h["learning_rate"]
"""
FORMULA = """
rate = lambda count: migrate.learning_rate(state, count)
schedule = lambda count: sum(rate(n) * (count == n) for n in range(8)) + 0.001 * (count > 7)
"""
END = """
report = migrate.restore(source, live, onto)
assert "keras" not in sys.modules
print(report.fidelity, *report.reasons)
"""
SGD = "corpus/keras224-sgd-momentum-convbn/source/model.h5"
WARM = "graphs/scoped/warm/source/model.ckpt"


def _run(program: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=HANGS)


@pytest.mark.breadth
@pytest.mark.parametrize(
    ("source", "rate", "live", "output"),
    [
        (SGD, CONSTANT, OPTAX, "exact"),
        (WARM, FORMULA, OPTAX, "exact"),
        (SGD, CONSTANT, TORCH, "exact"),
        (WARM, FORMULA, TORCH, "approximate learning_rate is Formula"),
    ],
    ids=["constant-optax", "formula-optax", "constant-torch", "formula-torch"],
)
def test_no_tensorflow_is_needed_to_leave_it(source: str, rate: str, live: str, output: str) -> None:
    if live == TORCH and find_spec("torch") is None:
        pytest.skip("torch is not installed (pip install torch)")
    program = f"source = {str(CASE_FOLDER / source)!r}\n{BEGIN}{rate}{live}{END}"
    done = _run(program)
    assert done.stdout.startswith(output), done.stdout + done.stderr


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_keras_without_tensorflow(backend: str) -> None:
    if find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed (pip install {backend})")
    live = """
import os
os.environ["KERAS_BACKEND"] = backend
import keras
onto = {v.name: keras.Variable(np.zeros(v.shape, "float32")) for v in trained}
live = keras.optimizers.SGD(h["learning_rate"], h["momentum"])
"""
    end = """
report = migrate.restore(source, live, onto, restore_variables=True)
for slot, v in zip(live.momentums, trained):
    assert np.array_equal(keras.ops.convert_to_numpy(slot), state.slots["m"][v.name].load()), v.name
print(report.fidelity, *report.reasons)
"""
    done = _run(f"backend, source = {backend!r}, {str(CASE_FOLDER / SGD)!r}\n{BEGIN}{live}{end}")
    assert done.stdout == "exact\n", done.stdout + done.stderr
