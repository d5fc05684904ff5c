"""Steps on GPUs, without one: the roof through the tests' driver, what `nvidia-smi` says, and who takes part."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from bench.cases.case import Case
from bench.cases.layouts import parse_mesh
from bench.check import run as check_run
from bench.errors import NoDeviceError, OptionError, ResultsError
from bench.forecast import devices, measured, query
from bench.forecast import report as plans
from bench.measuring import accelerators, clock, environment, events
from bench.measuring.process import WorkerError
from bench.measuring.rounds import Pace
from bench.peers import jax, tensorflow, torch
from bench.results.document import Result
from bench.roof import device, patterns
from bench.roof import report as roof_report
from bench.roof import run as roof
from bench.step import page, report
from bench.step import run as runner
from bench.step.contest import Settings
from bench.step.query import Plan
from bench.step.worker import Worker
from optim.errors import UnsupportedError
from optim.native import compiling
from optim.native.driver import Facts, Stream
from tests.helpers import emulated_gpu
from tests.places import ROOT
from tests.test_bench.step.test_contest import FakeWorker, peer

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


@pytest.fixture
def gpu(driver: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Stream, Facts]]:
    """The default stream of the tests' GPU, and what is known of it."""
    found = device.gpu.__wrapped__(driver)
    monkeypatch.setattr(device, "gpu", lambda: found)
    yield found
    assert emulated_gpu.library("fake_cuda").fake_wrong() == b""


def test_the_roof_copies_on_the_device_and_waits(gpu: tuple[Stream, Facts]) -> None:
    session = device.session(gpu[0], 1024)
    assert session.clock == "wall clock; CUDA events"
    done = len(driver_calls())
    assert clock.sample(session, 3) > 0
    assert driver_calls()[done:] == ["synchronise", "copy", "copy", "copy", "synchronise"]
    assert session.events is not None
    assert events.sample(session, 3, session.events, 0.0) == pytest.approx(0.5e-3)


def test_a_worker_times_steps_by_events_and_counts_them(gpu: tuple[Stream, Facts]) -> None:
    worker = Worker.__new__(Worker)
    worker.session, worker._expected_steps = device.session(gpu[0], 1024), 0
    found, seconds = worker._on_device(100, 1e-3)
    assert (found, worker._expected_steps, worker.session.steps_made) == (pytest.approx(0.5e-3), 20, 20)
    assert seconds > 0
    worker.session.events = None
    assert worker._on_device(100, 1e-3) == (None, 0.0)


class Timer:
    """Events of a stream, for frameworks."""

    def __init__(self, stream: int, name: str):
        self.stream, self.name = stream, name

    def occupy(self, seconds: float) -> None:
        pass


def test_steps_of_tensorflow_are_timed_on_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    from optim.native import gpu as gpus

    def missing(device: str) -> int:
        raise compiling.BuildError("there is no compiler")

    monkeypatch.setattr(events, "of_stream", Timer)
    monkeypatch.setattr(gpus, "stream", {"GPU:0": 77}.__getitem__)
    found = tensorflow.timing(CASE)["events"]
    assert (found.stream, found.name) == (77, "CUDA events on TensorFlow's stream")
    monkeypatch.setattr(gpus, "stream", missing)
    assert tensorflow.timing(CASE) == {"no_events": "there is no compiler"}
    assert tensorflow.timing(replace(CASE, device="cpu")) == {}


def test_steps_of_torch_are_timed_by_its_own_events(monkeypatch: pytest.MonkeyPatch) -> None:
    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            self.calls: list[str] = []

        def record(self) -> None:
            self.calls.append("record")

        def synchronize(self) -> None:
            self.calls.append("synchronize")

        def elapsed_time(self, end: Any) -> float:
            assert (self.calls, end.calls) == (["record"], ["record", "synchronize"])
            return 1.5

    cuda = SimpleNamespace(Event=Event, current_stream=lambda: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(events, "of_stream", Timer)
    timer = torch._Events(SimpleNamespace(cuda=cuda))
    timer.occupy(1.0)
    timer.begin()
    assert timer.end() == pytest.approx(1.5e-3)


def driver_calls() -> list[str]:
    """Without those that make a context current."""
    return [call for call in emulated_gpu.driver_calls() if call not in ("push", "pop")]


def test_without_a_driver_or_room_there_is_no_roof(driver: str) -> None:
    with pytest.raises(UnsupportedError, match=r"the CUDA driver \(libcuda-that-is-not-there.so.1\) cannot be used"):
        device.gpu.__wrapped__("libcuda-that-is-not-there.so.1")
    with pytest.raises(UnsupportedError, match="cuMemAlloc_v2 failed: another error"):
        device.session(device.gpu.__wrapped__(driver)[0], 1 << 28)


@pytest.fixture
def roof_of_gpu(gpu: tuple[Stream, Facts], monkeypatch: pytest.MonkeyPatch) -> Result:
    """What `dtopt bench roof --device gpu` measures, where a copy of any size takes half a millisecond."""
    monkeypatch.setattr(environment, "find_device", lambda wanted: wanted)
    (found,) = accelerators.describe(said)
    monkeypatch.setattr(accelerators, "describe", lambda: [found])
    monkeypatch.setattr(clock, "sample", lambda session, steps, *more: session.run(1) or 0.5e-3)
    monkeypatch.setattr(clock, "LEAST_WARM_UP", {})
    monkeypatch.setattr(roof, "ELEMENTS_ON_GPU", (1 << 16, 1 << 10))
    return roof.run(rounds=2, device="gpu")


def test_the_memory_of_a_gpu_is_measured_alone(roof_of_gpu: Result) -> None:
    first, second = roof_of_gpu.rows
    assert (first.pattern, first.device, first.working_set, second.working_set) == ("copy", "gpu", 2 << 18, 2 << 12)
    assert first.regime == "cache"  # of the 50 MB of the GPU
    assert first.bytes_per_second == pytest.approx(8 * (1 << 16) / 0.5e-3)
    assert first.device_seconds == pytest.approx(0.5e-3)
    assert "--device gpu" in first.rerun
    assert [one.workload for one in roof_of_gpu.roofs] == ["0 MiB"]
    assert roof_of_gpu.context["gpu"]["name"] == "NVIDIA H100 80GB HBM3"
    text = " ".join(map(str, roof_report.render(roof_of_gpu)))
    assert "Memory bandwidth limit of NVIDIA H100 80GB HBM3, 85.9 GB, at most 1,980 MHz: 1.0 GB/s (copy)" in text
    assert "84.9 of 85.5 GB of its memory were free before the run, it ran at 1,980 of 1,980 MHz after it" in text
    from bench import kinds

    assert kinds.from_json(json.loads(json.dumps(roof_of_gpu.to_json()))) == roof_of_gpu


def test_a_gpu_that_is_not_there_is_told() -> None:
    with pytest.raises(NoDeviceError, match="there is no GPU on this machine"):
        roof.run(device="gpu")
    with pytest.raises(OptionError, match="the memory of cpu and gpu can be measured"):
        roof.run(device="tpu")


def test_the_share_of_the_memorys_clock_is_told() -> None:
    facts = {"name": "H100", "memory": 80 * 10**9, "clock": None, "memory_clock": 2.619e9, "bus_width": 5120}
    assert roof_report.peak(facts) == pytest.approx(3.35e12, rel=1e-3)  # NVIDIA's data sheet
    assert roof_report.device(facts) == "H100, 80.0 GB, memory at 2,619 MHz"


class Hosted(FakeWorker):
    """A worker whose calls return after a tenth of a step."""

    log: ClassVar[list[tuple[str, str]]] = []

    def sample(self, steps: int) -> dict[str, Any]:
        found = super().sample(steps)
        return {**found, "host": found["seconds"] / 10, **self.on_device(found["seconds"])}

    def prepare(self) -> dict[str, Any]:
        clocks = {"a": "wall clock; CUDA events on TensorFlow's stream", "b": "wall clock alone: it has no stream"}
        return {**super().prepare(), "clock": clocks.get(self.name, clock.WALL_CLOCK)}

    def on_device(self, seconds: float) -> dict[str, Any]:
        return {"device_seconds": seconds / 2, "device_peak_bytes": 10**9} if self.name == "a" else {}


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


def test_rows_have_the_time_of_both_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _run(monkeypatch)
    first, second = result.rows
    assert (first.device_seconds, second.device_seconds) == (pytest.approx(1e-3), None)
    assert first.device_roof_fraction == pytest.approx(2 * first.roof_fraction)
    assert report.on_device(result.rows) == (
        f"Time on the GPU: a 1.00 ms, {first.device_roof_fraction:.0%} of the memory bandwidth limit (CUDA events on"
        " TensorFlow's stream). No GPU time available: b (wall clock alone: it has no stream)."
    )
    assert report.device_memory(result.rows) == "Device memory, at most: a 1.00 GB."
    shown = page.table(result.rows)
    assert (shown.headings[6], shown.rows[0][6], shown.rows[1][6]) == ("GPU ms", "1.00", "-")
    assert len({len(row) for row in (shown.headings, *shown.rows)}) == 1
    from bench import kinds

    assert kinds.from_json(json.loads(json.dumps(result.to_json()))) == result
    assert not [finding for finding in check_run.check(result) if finding.what == "clocks"]
    with pytest.raises(ResultsError, match=r"its device_seconds is 0\.002, but its samples give 0\.001"):
        replace(first, device_seconds=2e-3).check()
    slow = replace(first, samples=tuple(replace(s, device_seconds=9e-3) for s in first.samples), device_seconds=9e-3)
    (found,) = [f for f in check_run.check(replace(result, rows=(slow, second))) if f.what == "clocks"]
    assert found.text == "9 ms by events of the GPU, 2 ms by the wall clock"


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
    known = tuple(replace(one, reached=0.5) for one in devices.DEVICES)
    monkeypatch.setattr(devices, "DEVICES", known)
    again = query.answer(workload="gpt2", mesh=["1x1"], device="h100")
    assert again.rows[0].update_seconds == pytest.approx(2 * planned.rows[0].update_seconds)
    assert "counted at 50% of the memory bandwidth" in text(again)


def test_plans_count_updates_at_what_was_measured(roof_of_gpu: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    def planned(result: Result) -> Any:
        read = lambda path: measured.read(result, str(path))  # noqa: E731
        found = query.answer(workload="gpt2", mesh=["1x2"], device="h100", roof=Path("run.json"), read_speed=read)
        return found.rows[0], " ".join(map(str, plans.render(found.rows)))

    row, text = planned(roof_of_gpu)
    assert row.update_bytes / row.update_seconds == pytest.approx(roof_of_gpu.roofs[0].bytes_per_second)
    assert "at 1 GB/s a device (copy on NVIDIA H100 80GB HBM3, in run.json)" in text
    steps = _run(monkeypatch)
    with pytest.raises(ResultsError, match=r"run\.json contains no speed of memory: give a result of"):
        planned(replace(steps, roofs=()))
    row, text = planned(steps)  # of other kernels
    assert row.update_bytes / row.update_seconds == pytest.approx(1e12)
    assert "at 1,000 GB/s a device (copy on H100, in run.json)" in text
    ours = replace(steps.rows[0], note="no mesh, dtopt's kernel")
    row, text = planned(replace(steps, rows=(ours, steps.rows[1])))
    assert row.update_bytes / row.update_seconds == pytest.approx(ours.bytes_per_step / 1e-3)
    assert f"dtopt's kernel on H100, {ours.device_roof_fraction:.0%} of a copy, in run.json" in text


def test_a_share_of_bandwidth_is_that_of_a_published_run() -> None:
    """Whoever publishes a table writes its share there; without one nothing is claimed."""
    folder = ROOT / "docs" / "benchmarks"
    from bench.kinds import load

    shares = {
        round(row.roof_fraction, 2)
        for file in folder.glob("gpu-*.json")
        for row in load(file).rows
        if row.peer == "optim-plain" and row.roof_fraction is not None and "dtopt's kernel" in row.note
    }
    assert {one.reached for one in devices.DEVICES if one.reached is not None} <= shares
