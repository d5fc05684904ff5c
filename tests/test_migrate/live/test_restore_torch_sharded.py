"""`migrate.restore` into parameters that torch divides over processes, where torch is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import CORPUS, ROOT

SOURCE = CORPUS / "keras224-sgd-momentum-convbn" / "source" / "model.h5"
SHARDED = """
import os, sys
import numpy as np, torch, torch.distributed as dist, torch.multiprocessing as processes
import migrate

def steps(sharded, mesh):
    from torch.distributed.fsdp import fully_shard
    state = migrate.read(sys.argv[1])
    trained, h = [v for v in state.variables if v.trainable], state.hyperparameters
    module = torch.nn.Module()
    for i, v in enumerate(trained):
        module.register_parameter(f"p{i}", torch.nn.Parameter(torch.from_numpy(np.array(v.array.load()))))
    if sharded:
        fully_shard(module, mesh=mesh)
    live = dict(zip((v.name for v in trained), ((p, range(p.ndim)) for p in module.parameters())))
    optimizer = torch.optim.SGD(module.parameters(), lr=h["learning_rate"], momentum=h["momentum"])
    assert migrate.restore(sys.argv[1], optimizer, live).fidelity == "exact"
    for _ in range(3):
        for p in module.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
    return [(p.full_tensor() if sharded else p).detach().numpy().copy() for p in module.parameters()]

def run(rank):
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    for one, other in zip(steps(False, mesh), steps(True, mesh), strict=True):
        np.testing.assert_array_equal(one, other)
    dist.destroy_process_group()

if __name__ == "__main__":
    processes.spawn(run, nprocs=2)
    print("ALIKE")
"""


@pytest.mark.breadth
def test_each_process_gets_its_part_of_what_fully_shard_divides(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed (pip install torch)")
    program = tmp_path / "program.py"
    program.write_text(SHARDED)
    places = [str(ROOT), str(Path(torch.__file__).parents[1])]
    run = subprocess.run(
        [sys.executable, str(program), str(SOURCE), str(tmp_path / "meeting")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places), "CUDA_VISIBLE_DEVICES": ""},
    )
    assert "ALIKE" in run.stdout, run.stderr[-2000:]
