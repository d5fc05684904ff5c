"""The child process of one peer: `python -m bench.worker FD`, driven by messages over the pipe FD.

Requests and their answers are dicts. `prepare` builds the session, `check` makes the first steps and compares
with the reference, `warm` warms up and calibrates, `sample` times. An error is an answer too. The end of the
pipe ends the process, so that no worker outlives its parent.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bench import agreement, clock
from bench.case import Case
from bench.environment import last_level_cache, package_version
from bench.peer import Peer, Session
from optim.errors import DtoptError, UnsupportedError

KIB = 1024
MOST_SINGLE_STEPS = 5
"""Steps that are waited for one by one in each sample, for the latency."""

UNKNOWN_CACHE = 64 * 1024**2


class Worker:
    """Holds the one session of this process."""

    def __init__(self, case: Case, peer: Peer) -> None:
        self.case = case
        self.peer = peer
        self.session: Session | None = None
        self._clear_cache = _cache_clearer() if case.options.cache == "cold" else None

    def prepare(self) -> dict[str, Any]:
        start = time.perf_counter()
        self.session = self.peer.prepare(self.case)
        self.session.calls = self.case.options.accumulate
        self.session.synchronise()
        versions = {name: package_version(name) or "from source" for name in self.peer.packages}
        return {"seconds": time.perf_counter() - start, "versions": versions}

    def check(self) -> dict[str, Any]:
        """First step (tracing and compilation included), the other steps of the check, and the comparison."""
        session = self._prepared()
        agreement.give_gradients(self.case, session, 0)
        first_step = clock.sample(session, 1)
        found = agreement.check(self.case, session, self.peer.conventions)
        return {"first_step_seconds": first_step, "agreement": dataclasses.asdict(found)}

    def warm(self, most_seconds: float) -> dict[str, Any]:
        warm = clock.warm_up(self._prepared(), most_seconds)
        return {**dataclasses.asdict(warm), "steps_per_sample": clock.steps_per_sample(warm.step_seconds)}

    def sample(self, steps: int) -> dict[str, Any]:
        """Times steps twice: without a wait between them, and waiting for each. From a cold cache there is only the
        second: a step would find what the one before it left."""
        session = self._prepared()
        if self._clear_cache:
            singles = clock.single_steps(session, steps, before=self._clear_cache)
            seconds = fmean(singles)
        else:
            seconds = clock.sample(session, steps)
            singles = [seconds] if steps == 1 else clock.single_steps(session, min(steps, MOST_SINGLE_STEPS))
        return {
            "seconds": seconds,
            "latency": median(singles),
            "step_share": self._step_share(session, steps) if session.compute else None,
            "resident_bytes": _resident(),
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB,
            "device_peak_bytes": session.device_memory() if session.device_memory else None,
        }

    @staticmethod
    def _step_share(session: Session, steps: int) -> float:
        """The step's part of forward, backward and step."""
        passes, trained = _Passes(session, step=False), _Passes(session, step=True)
        alone = clock.sample(passes, steps)
        return max(0.0, 1.0 - alone / clock.sample(trained, steps))

    def _prepared(self) -> Session:
        if self.session is None:
            raise RuntimeError("the worker was asked to step before it was asked to prepare")
        return self.session


class _Passes:
    """Forward and backward pass as a step of the clock, with or without the optimizer's."""

    def __init__(self, session: Session, step: bool) -> None:
        self._session = session
        self._with_step = step

    def step(self) -> None:
        assert self._session.compute is not None
        gradients = self._session.compute()
        if self._with_step:
            self._session.apply(gradients)

    def synchronise(self) -> None:
        self._session.synchronise()


def _cache_clearer() -> Callable[[], object]:
    """Writes twice as much memory as the last-level cache holds."""
    import numpy as np

    scratch = np.ones(2 * (last_level_cache() or UNKNOWN_CACHE) // 8)
    return lambda: np.add(scratch, 1.0, out=scratch)


def _resident() -> int | None:
    """Bytes of this process in memory now."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return None


def load_peer(module: str, name: str) -> Peer:
    """The Peer record of that name in a module. Raises: LookupError."""
    for value in vars(importlib.import_module(module)).values():
        if isinstance(value, Peer) and value.name == name:
            return value
    raise LookupError(f"{module} holds no Peer named {name!r}")


def _answer(worker: Any, request: dict[str, Any]) -> dict[str, Any]:
    arguments = {key: value for key, value in request.items() if key != "do"}
    try:
        return {"ok": getattr(worker, request["do"])(**arguments)}
    except UnsupportedError as error:
        return {"unsupported": str(error)}
    except DtoptError as error:
        return {"error": str(error)}
    except Exception as error:  # the edge of the process: whatever a framework raises becomes a row with its reason
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {_first_line(error)}"}


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")


def serve(pipe: Connection, make: Callable[[dict[str, Any]], Any]) -> None:
    """Answers requests until the pipe ends. `make` takes the first message and gives what has the methods."""
    hello = pipe.recv()
    try:
        os.sched_setaffinity(0, hello["cpus"])
        worker = make(hello)
        pipe.send({"ok": {}})
    except Exception as error:  # the edge of the process, as in _answer
        traceback.print_exc()
        pipe.send({"error": f"{type(error).__name__}: {_first_line(error)}"})
        return
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        pipe.send(_answer(worker, request))


def main(make: Callable[[dict[str, Any]], Any]) -> None:
    """Serves the pipe that the command line names, then ends."""
    serve(Connection(int(sys.argv[1])), make)
    sys.stdout.flush()
    os._exit(0)  # frameworks can hang or crash while they shut down their threads; everything is answered by now


def _make(hello: dict[str, Any]) -> Worker:
    return Worker(Case.from_message(hello["case"]), load_peer(hello["module"], hello["peer"]))


if __name__ == "__main__":
    main(_make)
