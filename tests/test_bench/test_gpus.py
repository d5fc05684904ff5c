"""Steps on GPUs, without one: the roof through the tests' driver, what `nvidia-smi` says, and who takes part."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bench.cases.case import Case
from bench.cases.layouts import parse_mesh
from bench.forecast import devices, query
from bench.forecast import report as plans
from bench.measuring import accelerators, clock, environment
from bench.measuring.process import WorkerError
from bench.measuring.rounds import Pace
from bench.peers import jax
from bench.results.document import Result
from bench.roof import device, patterns
from bench.step import report
from bench.step import run as runner
from bench.step.contest import Settings
from bench.step.query import Plan
from optim.errors import UnsupportedError
from optim.native import compiling
from tests import emulated_gpu
from tests.test_bench.test_contest import FakeWorker, peer

CASE = Case("gpt2:layer", "adam", parse_mesh("model=1"), "replicated", device="gpu", threads=1)
LINE = "NVIDIA H100 80GB HBM3, 550.54.15, 81559, 80994, 1980, 1980, 2619, 700.00, [N/A]\n"


def said(command: Sequence[str]) -> str:
    assert command == accelerators.COMMAND
    return LINE


def test_what_nvidia_smi_says_is_read() -> None:
    (found,) = accelerators.describe(said)
    assert found["name"] == "NVIDIA H100 80GB HBM3"
    assert found["memory.total"] == 81559 * 1024**2
    assert (found["clocks.mem"], found["power.limit"], found["temperature.gpu"]) == (2619, 700.0, None)
    assert accelerators.free_memory([found, {"memory.free": 5}, {}]) == 5
    assert accelerators.free_memory([]) is None


@pytest.mark.parametrize("error", [OSError(), subprocess.CalledProcessError(9, "nvidia-smi")])
def test_without_it_nothing_is_known(error: Exception) -> None:
    def fails(command: Sequence[str]) -> str:
        raise error

    assert accelerators.describe(fails) == []


def test_results_of_different_gpus_are_of_different_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "describe", lambda: [{"name": "H100"}])
    on_gpu, on_cpu = environment.describe(1, "gpu"), environment.describe(1)
    assert (on_gpu["accelerators"], on_cpu["accelerators"]) == ([{"name": "H100"}], [])
    monkeypatch.setattr(accelerators, "describe", lambda: [{"name": "A100"}])
    assert len({on_gpu["identity"], on_cpu["identity"], environment.describe(1, "gpu")["identity"]}) == 3
    assert on_cpu["identity"] == environment.identity()


@pytest.fixture
def driver() -> str:
    try:
        compiling.compiler()
    except compiling.BuildError as error:
        pytest.skip(str(error))
    fake = emulated_gpu.library("fake_cuda")
    fake.fake_reset(12010, -1)
    fake.fake_gpus(1, 90, 0)
    return str(emulated_gpu.compiled("fake_cuda"))


def test_the_roof_copies_on_the_device_and_waits(driver: str) -> None:
    session = device.session(device.DeviceMemory(driver, 4096))
    assert clock.sample(session, 3) > 0
    calls = emulated_gpu.library("fake_cuda").fake_calls().decode().split()
    assert calls == ["retain", "push", "synchronise", "copy", "copy", "copy", "synchronise"]


def test_without_a_driver_or_room_there_is_no_roof(driver: str) -> None:
    with pytest.raises(UnsupportedError, match="there is no CUDA driver"):
        device.DeviceMemory("libcuda-that-is-not-there.so.1", 4096)
    with pytest.raises(UnsupportedError, match="cuMemAlloc_v2 of the CUDA driver failed with error 2"):
        device.DeviceMemory(driver, 1 << 30)


class Hosted(FakeWorker):
    """A worker whose calls return after a tenth of a step."""

    log: ClassVar[list[tuple[str, str]]] = []

    def sample(self, steps: int) -> dict[str, Any]:
        found = super().sample(steps)
        return {**found, "host": found["seconds"] / 10}


def _run(monkeypatch: pytest.MonkeyPatch, free: int | None = None, peers: int = 2) -> Result:
    """A contest of peers that take 2, 4, ... ms, of which the host has a tenth; the roof copies at 1 TB/s."""
    monkeypatch.setattr(
        accelerators, "describe", lambda: [{"name": "H100", "driver_version": "550", "memory.free": free}]
    )
    plan = Plan((CASE,), tuple(map(peer, "abcd"[:peers])), "a", Settings(Pace(6), 3))

    def launch(one: Any, case: Case) -> FakeWorker:
        is_roof = one is device.COPY
        seconds = 8 * device.ELEMENTS / 1e12 if is_roof else 2e-3 * (1 + "abcd".index(one.name))
        return Hosted(one.name, lambda n: seconds, 0.0)

    return runner.run(plan, launch, available_memory=lambda: 10**15)


def test_rows_have_a_share_of_the_copy_and_the_hosts_time(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _run(monkeypatch)
    (roof,) = result.roofs
    assert roof.name == "roof: copy"
    assert roof.bytes_per_second == pytest.approx(1e12)
    row = result.rows[0]
    assert row.roof_fraction == pytest.approx(row.bytes_per_step / 2e-3 / 1e12)
    assert row.host == pytest.approx(2e-4)
    assert {sample.process for sample in row.samples} == {0}  # one process of each shares the GPU
    assert report.hosts(result.rows) == (
        "The call of a step that is waited for returns, and leaves the device to work: a after 0.20 of 3.00 ms,"
        " b after 0.40 of 6.00 ms."
    )
    assert "1000.0 GB/s, copied on the device in the same rounds" in report.best_roof(row, result.roofs)
    assert any("H100, driver 550; " in str(part) for part in report.render(result))


def test_peers_that_do_not_fit_on_the_gpu_together_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    def groups(free: int | None) -> set[int]:
        return {sample.group for row in _run(monkeypatch, free, 4).rows for sample in row.samples}

    assert groups(None) == groups(80 * 10**9) == {0}
    assert len(groups(8 * 10**9)) > 1


def test_tpus_have_no_roof() -> None:
    assert patterns.roofs(Case("gpt2:layer", "adam", parse_mesh("model=1"), "replicated", device="tpu")) == ()


def test_a_framework_that_finds_no_gpu_is_skipped_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedError, match=r"JAX finds no GPU: pip install 'jax\[cuda12\]'"):
        jax.device(CASE)
    worker = runner.start(next(p for p in runner_peers() if p.name == "optim-plain"), CASE)
    try:
        worker.answer(120)
        worker.request("prepare")
        with pytest.raises(WorkerError, match=r"TensorFlow finds no GPU: pip install 'tensorflow\[and-cuda\]'"):
            worker.answer(120)
    finally:
        worker.stop()


def runner_peers() -> Sequence[Any]:
    from bench import peers

    return peers.PEERS


def test_the_clocks_of_a_gpu_are_warmed_up() -> None:
    class Steps:
        now = 0.0

        def run(self, steps: int) -> None:
            self.now += 0.001 * steps

        def synchronise(self) -> None:
            pass

    steps = Steps()
    warm = clock.warm_up(steps, 5.0, clock=lambda: steps.now, least_seconds=0.5)
    assert warm.steady
    assert warm.seconds == pytest.approx(0.5, abs=0.002)


def test_a_plan_says_whether_the_share_of_bandwidth_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def text(result: Result) -> str:
        return " ".join(map(str, plans.render(result.rows)))

    planned = query.answer(workload="gpt2", mesh=["1x1"], device="h100")
    assert "Not measured: the part of the memory bandwidth of h100" in text(planned)
    measured = tuple(replace(one, reached=0.5) for one in devices.DEVICES)
    monkeypatch.setattr(devices, "DEVICES", measured)
    again = query.answer(workload="gpt2", mesh=["1x1"], device="h100")
    assert again.rows[0].update_seconds == pytest.approx(2 * planned.rows[0].update_seconds)
    assert "counted at 50% of the memory bandwidth" in text(again)


def test_a_share_of_bandwidth_is_that_of_a_published_run() -> None:
    """Whoever publishes a table writes its share there; without one nothing is claimed."""
    folder = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
    from bench.kinds import load

    shares = {
        round(row.roof_fraction, 2)
        for file in folder.glob("gpu-*.json")
        for row in load(file).rows
        if row.peer == "optim-plain" and row.roof_fraction is not None and "dtopt's kernel" in row.note
    }
    assert {one.reached for one in devices.DEVICES if one.reached is not None} <= shares
