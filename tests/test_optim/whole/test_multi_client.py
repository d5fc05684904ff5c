"""Two clients on this machine, through DTensor's own runtime: they train, save and resume as one process does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import optim
from bench.scale.group import free_ports
from tests.helpers.dtensor_asserts import value_of
from tests.places import ROOT
from tests.reference.adam import Adam
from tests.reference.common import Options, Training
from tests.test_optim.whole import multi_client

pytestmark = pytest.mark.breadth  # two clients take ten seconds to start


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    """What two clients left behind."""
    folder = tmp_path_factory.mktemp("clients")
    (folder / "taken").mkdir()
    (folder / "taken" / "mine.txt").write_text("mine")
    ports = ",".join(str(port) for port in free_ports(2))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "DTOPT_KERNELS": "off"}
    command = [sys.executable, "-m", "tests.test_optim.whole.multi_client"]
    logs = [folder / f"client-{client}.log" for client in range(2)]
    clients = []
    try:
        for client, log in enumerate(logs):
            with log.open("w") as file:
                words = [*command, str(client), ports, str(folder)]
                clients.append(subprocess.Popen(words, cwd=ROOT, env=environment, stdout=file, stderr=file))
        codes = [client.wait(timeout=500) for client in clients]
    finally:
        for process in clients:
            process.kill()
    assert codes == [0, 0], "\n".join(log.read_text()[-3000:] for log in logs)
    return folder


def _reference(steps: int) -> Training:
    """The same training by NumPy."""
    values = multi_client.data()
    x, y = values["x"], values["y"]
    options = Options(global_clipnorm=0.5, weight_decay=0.1, use_ema=True)
    training = Training(Adam(), lambda _: 0.05, {"kernel": values["kernel"], "bias": values["bias"]}, options)
    for _ in range(steps):
        scaled = 2 * (x @ training.values["kernel"] + training.values["bias"] - y) / y.size
        training.apply({"kernel": x.T @ scaled, "bias": scaled.sum(0)})
    return training


def test_two_clients_train_save_and_resume(folder: Path) -> None:
    """Every client ends with the values of one process, after resuming on a mesh of another shape."""
    reference = _reference(multi_client.EAGER + multi_client.TRACED + multi_client.RESUMED)
    found = [np.load(folder / f"client-{client}.npz") for client in range(2)]
    for one in found:
        for name in ("kernel", "bias"):
            np.testing.assert_allclose(one[name], reference.values[name], rtol=1e-11, err_msg=name)
            np.testing.assert_allclose(one[f"m of {name}"], reference.slots[name]["m"], rtol=1e-10, atol=1e-15)
    for key in set(found[0].files) - {"refusal"}:
        np.testing.assert_array_equal(found[0][key], found[1][key], err_msg=key)


def test_only_the_first_client_writes_and_its_error_reaches_all(folder: Path) -> None:
    prefix = Path(str(np.load(folder / "client-1.npz")["prefix"]))
    names = {f"{prefix.name}.index", f"{prefix.name}.data-00000-of-00001", "checkpoint"}
    assert {path.name for path in (folder / "checkpoint").iterdir()} == names
    for client in range(2):
        assert "mine.txt" in str(np.load(folder / f"client-{client}.npz")["refusal"])


@pytest.mark.parametrize("place", ["mesh_2x2", "mesh_2x2x2"])
def test_one_process_resumes_what_two_clients_saved(place: str, folder: Path, request: Any) -> None:
    mesh = request.getfixturevalue(place)
    variables, x, y = multi_client.laid_out(mesh, tuple(mesh.dim_names[-2:]))
    optimizer = optim.load_checkpoint(folder / "checkpoint", variables, mesh=mesh)
    assert int(optimizer.iterations.numpy()) == multi_client.EAGER + multi_client.TRACED
    multi_client.train(optimizer, variables, x, y, multi_client.RESUMED, 0)
    reference = _reference(multi_client.EAGER + multi_client.TRACED + multi_client.RESUMED)
    for name, variable in variables.items():
        np.testing.assert_allclose(value_of(variable), reference.values[name], rtol=1e-11, err_msg=name)
        average = optimizer.get_slot(variable, "average")
        np.testing.assert_allclose(value_of(average), reference.averages[name], rtol=1e-11)
