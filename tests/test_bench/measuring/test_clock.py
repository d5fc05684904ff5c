"""Sampling and warm-up on a clock that the fake session moves."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator

import pytest

from bench.measuring.clock import sample, steps_per_sample, warm_up


class FakeSession:
    """Steps that take the given times, and a wait that takes `waiting`; `now` is the clock."""

    def __init__(self, steps: Iterable[float], waiting: float = 0.0) -> None:
        self._steps: Iterator[float] = iter(steps)
        self._waiting = waiting
        self.time = 0.0
        self.calls: list[str] = []
        self.collected = False

    def now(self) -> float:
        return self.time

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.collected |= gc.isenabled()
            self.calls.append("step")
            self.time += next(self._steps)

    def synchronise(self) -> None:
        self.calls.append("wait")
        self.time += self._waiting


def forever(value: float) -> Iterator[float]:
    while True:
        yield value


def test_the_wait_for_the_devices_is_inside_the_sample() -> None:
    session = FakeSession([1.0, 1.0, 1.0, 1.0], waiting=2.0)
    assert sample(session, 4, session.now) == pytest.approx((4 * 1.0 + 2.0) / 4)


def test_what_was_pending_before_is_not() -> None:
    session = FakeSession([1.0])
    sample(session, 1, session.now)
    assert session.calls == ["wait", "step", "wait"]


def test_the_collector_is_off_within_and_as_before_after() -> None:
    session = FakeSession([1.0])
    assert gc.isenabled()
    sample(session, 1, session.now)
    assert gc.isenabled()
    assert not session.collected


def test_warm_up_ends_when_two_windows_agree() -> None:
    session = FakeSession([9.0, 5.0, 3.0, 1.0, 1.0, 1.0, 1.05, 1.0, 1.02, *[7.0] * 9])
    warm = warm_up(session, most_seconds=1000.0, clock=session.now)
    assert warm.steady
    assert warm.steps == 8  # medians of 3.0, 1.0, 1.0 and of 1.0, 1.05, 1.0
    assert warm.step_seconds == pytest.approx(1.0)


def test_warm_up_that_never_settles_stops_at_the_steps() -> None:
    session = FakeSession(0.9**n for n in range(100))
    warm = warm_up(session, most_seconds=1000.0, most_steps=30, clock=session.now)
    assert not warm.steady
    assert warm.steps == 30


def test_warm_up_that_never_settles_stops_at_the_seconds() -> None:
    session = FakeSession(forever(2.0))
    warm = warm_up(session, most_seconds=5.0, clock=session.now)
    assert (warm.steady, warm.steps, warm.seconds) == (False, 3, 6.0)


@pytest.mark.parametrize(("step", "steps"), [(0.5, 1), (0.1, 1), (0.04, 2), (0.001, 50), (1e-7, 1000), (0.0, 1000)])
def test_samples_last_long_enough(step: float, steps: int) -> None:
    assert steps_per_sample(step) == steps
