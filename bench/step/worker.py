"""The child process of one peer: `python -m bench.step.worker FD`, driven as `bench.measuring.serving` describes.

`prepare` builds the session. `check` makes the first steps and compares with the reference. `warm` warms up and
calibrates. `sample` times.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from bench import peers
from bench.cases.case import Case
from bench.cases.values import gradient
from bench.measuring import clock, events, source
from bench.measuring.environment import last_level_cache, package_version
from bench.measuring.serving import serve
from bench.peers.peer import Peer, Session
from bench.results import document
from bench.step import agreement, giving
from bench.step.judges import Judges

KIB = 1024
SINGLE_STEPS = 2
"""Steps waited for one by one before each sample of several steps. The first wakes threads that slept during the turns
of others; the last measures the latency.
"""

SMALL = 2**16
"""Elements of a tensor that can be read in negligible time."""

IDLES, IDLE = 4, 0.1
"""Number and seconds of the observations that show whether threads spin."""

UNKNOWN_CACHE = 64 * 1024**2


class Worker:
    """Owns the one session of this process."""

    def __init__(self, case: Case, peer: Peer, judges: Judges) -> None:
        self.case = case
        self._judges = judges
        self._expected_steps = 0
        self.peer = peer
        self.session: Session | None = None
        sizes = [tensor.elements for tensor in case.tensors]
        self._last_written = max(i for i, size in enumerate(sizes) if size <= max(min(sizes), SMALL))
        self._clear_cache = _cache_clearer() if case.options.cache == "cold" else None

    def prepare(self) -> dict[str, Any]:
        start = time.perf_counter()
        self.session = self.peer.prepare(self.case)
        self.session.calls = self.case.options.accumulate
        self.session.synchronise()
        versions: dict[str, str] = {name: package_version(name) or "from source" for name in self.peer.packages}
        if "dtopt" in versions:
            versions |= source.describe()
        return {
            "seconds": time.perf_counter() - start,
            "versions": versions,
            "remark": self.session.remark,
            "clock": self.session.clock,
        }

    def check(self) -> dict[str, Any]:
        """Make the first step (tracing and compilation included) and the other steps of the check, and compare."""
        session = self._prepared()
        agreement.give_gradients(self.case, session, 0)
        first_step = clock.sample(session, 1)
        result = agreement.check(self.case, session, self.peer.conventions)
        self._expected_steps = agreement.STEPS
        return {"first_step_seconds": first_step, "agreement": dataclasses.asdict(result)}

    def warm(self, most_seconds: float) -> dict[str, Any]:
        least = clock.LEAST_WARM_UP.get(self.case.device, 0.0)
        warm = clock.warm_up(self._prepared(), most_seconds, least_seconds=least)
        self._expected_steps += warm.steps
        return {**dataclasses.asdict(warm), "steps_per_sample": clock.steps_per_sample(warm.step_seconds)}

    def sample(self, steps: int) -> dict[str, Any]:
        """Time a step that is waited for, and steps without a wait between them.

        With a cold cache only the first kind is timed: a step would find the data of the step before it in the cache.
        """
        session = self._prepared()
        alone = _Returning(session)
        singles: list[float] = []
        if self._clear_cache:
            singles = clock.single_steps(alone, steps, before=self._clear_cache)
            seconds, latency = fmean(singles), median(singles)
        elif steps == 1:
            seconds = latency = clock.sample(alone, 1)
        else:
            singles = clock.single_steps(alone, SINGLE_STEPS)
            seconds, latency = clock.sample(session, steps), singles[-1]
            self._expected_steps += SINGLE_STEPS
        self._expected_steps += steps
        late, looked = self._late()
        on_device, timed = self._on_device(steps, alone.seconds)
        return {
            "seconds": seconds,
            "latency": latency,
            "host": alone.seconds,
            "late": late,
            "device_seconds": on_device,
            "told": sum(singles) + steps * seconds + looked + timed,
            "resident_bytes": _resident(),
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB,
            "device_peak_bytes": session.device_memory() if session.device_memory else None,
        }

    def _on_device(self, most: int, host_seconds: float) -> tuple[float | None, float]:
        """Return the seconds per step by the device's events, None if it has no events; and the seconds that this
        took."""
        session = self._prepared()
        if session.events is None:
            return None, 0.0
        steps = events.steps_at_once(most, host_seconds)
        start = time.perf_counter()
        seconds = events.sample(session, steps, session.events, host_seconds)
        self._expected_steps += steps
        return seconds, time.perf_counter() - start

    def _late(self) -> tuple[float, float]:
        """Return the seconds until the last element of a step is visible, beyond those of a second look; and the
        seconds of both.

        Elements are viewed and not read whole if reading copies. Copying a table takes longer than updating some of its
        rows, and two copies do not take the same time.
        """
        session, last = self._prepared(), self._last_written
        look = session.glance or session.read
        start = time.perf_counter()
        look(last)
        middle = time.perf_counter()
        look(last)
        end = time.perf_counter()
        return max(0.0, 2 * middle - start - end), end - start

    def check_again(self, place: float = 0.0) -> dict[str, Any]:
        """Compare after all steps made and the last ones; `place` chooses the elements, see `reference.positions`."""
        session = self._prepared()
        spins = self._spins()
        times = self._replace_gradients()
        reads = self._reads(), self._reads()
        if not self.peer.own_algorithm:
            self._expected_steps += giving.last_steps(self._expected_steps)
            agreement.finish(self.case, session)
        changed = self._changed(session)
        seen = None if self.peer.own_algorithm else agreement.see(self.case, session, place, giving.TURNS)
        changed = self._judges.changed() or changed  # to compare, nothing of the peer's runs any more
        if seen is None:
            result = agreement.moves(self.case, session)
        else:
            result = agreement.compare(self.case, seen, self.peer.conventions)
        return {
            "agreement": dataclasses.asdict(result),
            "reads": reads,
            "changed": changed,
            "spins": spins,
            "given": times,
        }

    def _spins(self) -> float:
        """Return the seconds of CPU time that this process uses after a step, when there is nothing to do.

        Threads that wait for the next step may spin before they sleep. The result is the maximum after a few steps: on
        a busy machine some threads spin earlier.
        """
        durations = []
        for _ in range(IDLES):
            clock.sample(self._prepared(), 1)
            self._expected_steps += 1
            start = time.process_time()
            time.sleep(IDLE)
            durations.append(time.process_time() - start)
        return max(durations)

    def _replace_gradients(self) -> tuple[list[float], list[float]]:
        """Return the seconds of steps with known gradients, and of the steps between them, with other numbers in new
        arrays.

        A cache of gradients would be no gain in training, where each is new. All arrays are kept, so that no new one
        has the identity or the address of an earlier one. An untimed step runs between making the arrays and each timed
        step: the new arrays may occupy memory that the step used before.
        """
        session = self._prepared()
        known = {index: gradient(self.case, index, 1) for index in sorted(giving.replaced_tensors(self.case))}
        arrays: list[Any] = []
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(giving.TURNS):
            replaced = {index: session.place(index, giving.scaled(array, turn)) for index, array in known.items()}
            clock.sample(session, 1)
            times[0].append(clock.sample(session, 1))
            for index, array in replaced.items():
                arrays.append(session.gradients[index])
                session.give(index, array)
            times[1].append(clock.sample(session, 1))
            self._expected_steps += giving.STEPS_OF_A_TURN
        return times

    def _reads(self) -> float:
        """Return the seconds to read every parameter.

        First it allocates as much memory as the largest parameter and its copy need: a virtual machine is slow to
        provide memory that it has never used.
        """
        np.ones((2, max(tensor.elements for tensor in self.case.tensors)), np.float32)
        start = time.perf_counter()
        for index in range(len(self.case.tensors)):
            self._prepared().read(index)
        return time.perf_counter() - start

    def _changed(self, session: Session) -> str | None:
        """Name the part of a session outside the peer that has changed."""
        if session.steps_made != self._expected_steps:
            return f"the number of its steps ({session.steps_made} of {self._expected_steps})"
        if type(session) is not Session:
            return "Session"
        methods = (name for name in vars(session) if callable(getattr(Session, name, None)))
        return next((f"Session.{name}" for name in methods), None)

    def share(self, steps: int) -> dict[str, float]:
        """Return the step's part of the time of forward, backward and step."""
        session = self._prepared()
        passes, trained = _Passes(session, step=False), _Passes(session, step=True)
        alone = clock.sample(passes, steps)
        return {"share": max(0.0, 1.0 - alone / clock.sample(trained, steps))}

    def trace(self, steps: int, path: str) -> dict[str, Any]:
        """Write a trace of `steps` steps to a file, see `bench.step.trace`."""
        from bench.step import trace

        document.write(json.dumps(trace.record(self._prepared(), steps)) + "\n", Path(path))
        return {}

    def _prepared(self) -> Session:
        if self.session is None:
            raise RuntimeError("the worker was asked to step before it was asked to prepare")
        return self.session


class _Returning:
    """Steps that are waited for, and the seconds after which the last call returned."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.seconds = 0.0

    def run(self, steps: int) -> None:
        start = time.perf_counter()
        self._session.run(steps)
        self.seconds = time.perf_counter() - start

    def synchronise(self) -> None:
        self._session.synchronise()


class _Passes:
    """A forward and backward pass as a step of the clock, with or without the optimizer's step."""

    def __init__(self, session: Session, step: bool) -> None:
        self._session = session
        self._with_step = step

    def run(self, steps: int) -> None:
        assert self._session.compute is not None
        for _ in range(steps):
            gradients = self._session.compute()
            if self._with_step:
                self._session.apply(gradients)

    def synchronise(self) -> None:
        self._session.synchronise()


def _cache_clearer() -> Callable[[], object]:
    """Return a function that writes twice as much memory as the last-level cache holds."""
    import numpy as np

    scratch = np.ones(2 * (last_level_cache() or UNKNOWN_CACHE) // 8)
    return lambda: np.add(scratch, 1.0, out=scratch)


def _resident() -> int | None:
    """Return the resident bytes of this process."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return None


def _make(hello: dict[str, Any]) -> Worker:
    judges = Judges()  # before the peer's module
    return Worker(Case.from_message(hello["case"]), peers.load(hello["module"], hello["peer"]), judges)


if __name__ == "__main__":
    serve(_make)
