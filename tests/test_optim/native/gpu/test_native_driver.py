"""CUDA's driver from Python, through the tests' driver, which checks contexts, streams and events."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tensorflow as tf

import optim
from bench.measuring import events
from optim.native import gpu
from optim.native.driver import Driver, DriverError, Facts
from tests.helpers import emulated_gpu
from tests.test_optim.native.kernel_support import require_kernel

MEMORY = 1 << 12


@pytest.fixture
def driver() -> Iterator[Driver]:
    path = emulated_gpu.compiled("fake_cuda")
    fake = emulated_gpu.library("fake_cuda")
    fake.fake_reset(12010, -1)
    fake.fake_gpus(1, 90, 0)
    yield Driver(str(path))
    assert fake.fake_wrong() == b""
    fake.fake_reset(12010, -1)


def test_facts_of_a_gpu_leave_out_what_the_driver_does_not_know(driver: Driver) -> None:
    facts = driver.facts(driver.first())
    assert facts == Facts("NVIDIA H100 80GB HBM3", 80 * 2**30, 1_980_000_000, None, 5120, 50 * 2**20)


def test_events_are_apart_by_the_work_between_them(driver: Driver) -> None:
    stream = driver.default_stream(driver.first())
    one, other = stream.allocate(MEMORY), stream.allocate(MEMORY)
    first, last = stream.event(), stream.event()
    stream.copy(one, other, MEMORY)
    stream.record(first)
    for _ in range(3):
        stream.fill(one, MEMORY)
    stream.record(last)
    assert stream.seconds(first, last) == pytest.approx(1.5e-3)


def test_what_fails_is_told_with_the_functions_name(driver: Driver) -> None:
    stream = driver.default_stream(driver.first())
    with pytest.raises(DriverError, match=r"cuMemAlloc_v2 failed: another error \(CUDA error 2\)"):
        stream.allocate(1 << 30)
    with pytest.raises(DriverError, match="has no cuFromTheFuture: install a later one"):
        driver.call("cuFromTheFuture")


def test_steps_are_timed_on_the_stream_on_which_they_are_launched(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch takes a millisecond there; what keeps the GPU at work before does not count."""
    monkeypatch.setenv("DTOPT_KERNELS", "build")
    require_kernel()
    gpus = emulated_gpu.all_kernels()
    emulated_gpu.pretend(gpus, monkeypatch)

    class Steps:
        def __init__(self) -> None:
            self.variables = [tf.Variable(tf.ones([5])) for _ in range(2)]
            self.optimizer = optim.Adam(0.1)
            self.run(1)

        def run(self, steps: int) -> None:
            for _ in range(steps):
                self.optimizer.apply_gradients([(tf.ones([5]), variable) for variable in self.variables])

        def synchronise(self) -> None:
            pass

    try:
        handle = gpu.stream("CPU:0")
        timer = events.DriverEvents(driver.stream(handle), "CUDA events", MEMORY)
        session = Steps()
        assert handle != 0
        assert events.sample(session, 3, timer, 0.01) == pytest.approx(1e-3)
        calls = emulated_gpu.driver_calls()
        assert calls[-30:].count("launch") == 3
        assert calls.count("fill") >= 0.046 / 0.5e-3  # 1.5 times 30 ms, and 1 ms
    finally:
        gpus.close()


def test_only_a_gpu_has_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTOPT_KERNELS", "build")
    require_kernel()
    with pytest.raises(tf.errors.FailedPreconditionError, match="only a GPU has a stream"):
        gpu.stream("CPU:0")
    monkeypatch.setenv("DTOPT_KERNELS", "off")
    with pytest.raises(gpu.BuildError, match="DTOPT_KERNELS=off"):
        gpu.stream("CPU:0")


def test_so_many_steps_are_timed_at_once_as_the_host_calls_soon() -> None:
    assert [events.steps_at_once(1000, seconds) for seconds in (0.0, 1e-3, 0.0101, 5.0)] == [1000, 20, 1, 1]
    assert events.steps_at_once(3, 1e-3) == 3
