"""Peers that would be the fastest of all if one believed their clocks."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import fake_peers
import numpy as np

from bench.cases.case import Case
from bench.peers.abilities import Abilities
from bench.peers.peer import Peer, Session

ABLE = Abilities(("numpy",), "numpy")


def _stops_after(last: int) -> Callable[[Case], Session]:
    """Does nothing from some step on."""

    def prepare(case: Case) -> Session:
        session = fake_peers._session(case)
        work, made = session.apply, [0]

        def apply(gradients: list[Any]) -> None:
            made[0] += 1
            if made[0] <= last:
                work(gradients)

        session.apply = apply
        return session

    return prepare


def _finds_memory_taken(case: Case) -> Session:
    """No cheat: its step after arrays were made is slow, as when these have got the memory that it had for its own."""
    session = fake_peers._session(case)
    work, place, taken = session.apply, session.place, [False]

    def placed(index: int, array: Any) -> Any:
        taken[0] = True
        return place(index, array)

    def apply(gradients: list[Any]) -> None:
        time.sleep(0.1 * taken[0])
        taken[0] = False
        work(gradients)

    session.apply, session.place = apply, placed
    return session


def _does_not_wait(case: Case) -> Session:
    """Steps in the background; whoever reads a parameter waits for them, and `wait` does not."""
    session = fake_peers._session(case)
    work, read = session.apply, session.read
    pool = ThreadPoolExecutor(1)

    def late(index: int) -> Any:
        pool.submit(lambda: None).result()
        return read(index)

    session.apply = lambda gradients: pool.submit(work, list(gradients))
    session.read = late
    return session


def _glances_late(case: Case) -> Session:
    """The same, and has something that may be looked at instead."""
    session = _does_not_wait(case)
    session.glance = session.read
    return session


def _copies_to_read(case: Case) -> Session:
    """No cheat: the first read after a step takes long, as where a whole table is copied into new memory."""
    session = fake_peers._session(case)
    work, read, stepped = session.apply, session.read, [False]

    def apply(gradients: list[Any]) -> None:
        stepped[0] = True
        work(gradients)

    def copy(index: int) -> Any:
        if stepped[0]:
            time.sleep(0.1)
        stepped[0] = False
        return read(index)

    session.apply, session.read = apply, copy
    session.glance = lambda index: read(index)[:1]
    return session


def _takes_more_threads(case: Case) -> Session:
    """Frees itself from its CPUs and keeps another one busy."""
    session = fake_peers._session(case)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))

    def burn() -> None:
        while True:
            hashlib.pbkdf2_hmac("sha256", b"", b"", 100_000)  # without the interpreter's lock

    for _ in range(2):
        threading.Thread(target=burn, daemon=True).start()
    return session


def _own_clock(case: Case) -> Session:
    """Lets the clock of its process run at a tenth."""
    from bench.measuring import clock

    honest = clock.sample
    clock.sample = lambda session, steps, clock=time.perf_counter: honest(session, steps, clock) / 10
    return fake_peers._session(case)


def _own_judge(case: Case) -> Session:
    """Never steps, and compares its parameters with themselves."""
    from bench.step import agreement

    agreement._difference = lambda *arguments: 0.0
    session = fake_peers._session(case)
    session.apply = lambda gradients: None
    return session


def _half_of_the_steps(case: Case) -> Session:
    """Takes every second step, and counts as many."""
    session = fake_peers._session(case)
    work, calls = session.apply, [0]

    def apply(gradients: list[Any]) -> None:
        calls[0] += 1
        if calls[0] <= 3 or calls[0] % 2:
            work(gradients)
        else:
            session.steps_made -= 1

    session.apply = apply
    return session


def _runs_itself(case: Case) -> Session:
    """Brings its own loop, which is empty."""
    session = fake_peers._session(case)

    def run(steps: int) -> None:
        session.steps_made += steps

    session.run = run  # type: ignore[method-assign]
    return session


def _when_read(case: Case) -> Session:
    """Keeps the steps for the day when somebody reads a parameter, and may be looked at without."""
    session = fake_peers._session(case)
    work, read, left = session.apply, session.read, []
    session.apply = lambda gradients: left.append(list(gradients))

    def catch_up(index: int) -> Any:
        while left:
            work(left.pop(0))
        return read(index)

    session.read, session.glance = catch_up, lambda index: None
    return session


def _when_others_are_read(case: Case) -> Session:
    """Steps with the last tensor alone, which is looked at after each sample, and with all when another one is read."""
    whole, small = fake_peers._session(case), fake_peers._session(replace(case, shapes=case.shapes[-1:]))
    work, read, left = whole.apply, whole.read, []
    last = len(case.tensors) - 1

    def apply(gradients: list[Any]) -> None:
        left.append(list(gradients))
        small.apply(gradients[-1:])

    def catch_up(index: int) -> Any:
        while left and index != last:
            work(left.pop(0))
        return read(index) if not left else small.read(0)

    whole.apply, whole.read = apply, catch_up
    return whole


def _in_the_background(case: Case) -> Session:
    """Steps in a thread that goes on while others have their turn, and may be looked at meanwhile."""
    session = _does_not_wait(case)
    session.glance = lambda index: None
    return session


def _helper_elsewhere(case: Case) -> Session:
    """Has a helper on all CPUs, in a session of its own, whose parent has ended."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
            while True:
                time.sleep(0.01)
        os._exit(0)
    return fake_peers._session(case)


def _rounds_to_half(case: Case) -> Session:
    """Computes with half the digits once the first steps were checked."""
    session = fake_peers._session(case)
    work, made = session.apply, [0]

    def apply(gradients: list[Any]) -> None:
        made[0] += 1
        work(gradients if made[0] <= 3 else [g.astype("float16") for g in gradients])

    session.apply = apply
    return session


def _own_arithmetic(case: Case) -> Session:
    """Never steps, and gives arrays that differ from nothing."""

    class Equal(np.ndarray):
        def __array_ufunc__(self, *arguments: Any, **options: Any) -> Any:
            return np.zeros(self.shape)

        def astype(self, *arguments: Any, **options: Any) -> Any:
            return self

    session = fake_peers._session(case)
    read = session.read
    session.apply = lambda gradients: None
    session.read = lambda index: read(index).view(Equal)
    return session


def _looks_over_the_shoulder(case: Case) -> Session:
    """Never steps, and takes what is expected from whoever reads it."""
    session = fake_peers._session(case)
    read = session.read
    session.apply = lambda gradients: None

    def known(index: int) -> Any:
        values, frame = read(index), sys._getframe(1)
        while frame and "wanted" not in frame.f_locals:
            frame = frame.f_back  # type: ignore[assignment]
        if frame:
            values.reshape(-1)[frame.f_locals["wanted"].positions] = frame.f_locals["wanted"].end
        return values

    session.read = known
    return session


def _own_worker(case: Case) -> Session:
    """Lets its worker say less than it measured."""
    worker = sys.modules["__main__"].Worker  # type: ignore[attr-defined]
    honest = worker.sample

    def sample(self: Any, steps: int) -> dict[str, Any]:
        found = honest(self, steps)
        return {**found, "seconds": found["seconds"] / 1.5, "latency": found["latency"] / 1.5}

    worker.sample = sample
    return fake_peers._session(case)


def _judge_changed_while_reading(case: Case) -> Session:
    """Stops, and changes the judge when the comparison has begun."""
    session = _stops_after(3)(case)
    read = session.read

    def late(index: int) -> Any:
        from bench.step import agreement

        if session.steps_made > 3:
            agreement._difference = lambda *arguments: 0.0
        return read(index)

    session.read = late
    return session


def _remembers(case: Case) -> Session:
    """Takes the gradient for the one that it was ten times."""
    session = fake_peers._session(case)
    work, given = session.apply, []

    def apply(gradients: list[Any]) -> None:
        given.append(list(gradients) if len(given) < 10 else given[-1])
        work(given[-1])

    session.apply = apply
    return session


def _remembers_each(case: Case) -> Session:
    """Computes for gradients that it has not seen, and has it at hand for the others."""
    session = fake_peers._session(case)
    work, seen = session.apply, []

    def apply(gradients: list[Any]) -> None:
        if not any(gradients[0] is one for one in seen):
            seen.append(gradients[0])
            time.sleep(0.1)
        work(gradients)

    session.apply = apply
    return session


def _remembers_by(mark: Callable[[Any], Any]) -> Callable[[Case], Session]:
    """The same, and knows gradients by a mark of theirs, without keeping their memory from being used again."""

    def prepare(case: Case) -> Session:
        session = fake_peers._session(case)
        work, seen = session.apply, set()

        def apply(gradients: list[Any]) -> None:
            if mark(gradients[0]) not in seen:
                seen.add(mark(gradients[0]))
                time.sleep(0.1)
            work(gradients)

        session.apply = apply
        return session

    return prepare


def _own_session(case: Case) -> Session:
    """Brings a session of its own kind."""

    class Own(Session):
        pass

    session = fake_peers._session(case)
    return Own(session.place, session.apply, session.wait, session.read)


PEERS = tuple(
    Peer(name, "", __name__, ABLE, prepare)
    for name, prepare in (
        ("own clock", _own_clock),
        ("own judge", _own_judge),
        ("half of the steps", _half_of_the_steps),
        ("runs itself", _runs_itself),
        ("when read", _when_read),
        ("when others are read", _when_others_are_read),
        ("in the background", _in_the_background),
        ("helper elsewhere", _helper_elsewhere),
        ("rounds to half", _rounds_to_half),
        ("own arithmetic", _own_arithmetic),
        ("looks over the shoulder", _looks_over_the_shoulder),
        ("own worker", _own_worker),
        ("judge changed while reading", _judge_changed_while_reading),
        ("remembers", _remembers),
        ("remembers each", _remembers_each),
        ("remembers places", _remembers_by(lambda gradient: gradient.ctypes.data)),
        ("remembers numbers", _remembers_by(lambda gradient: gradient.tobytes())),
        ("own session", _own_session),
    )
)
STOPS_AFTER_3 = Peer("stops after 3", "", __name__, ABLE, _stops_after(3))
STOPS_AFTER_9 = Peer("stops after 9", "", __name__, ABLE, _stops_after(9))
DOES_NOT_WAIT = Peer("does not wait", "", __name__, ABLE, _does_not_wait)
GLANCES_LATE = Peer("glances late", "", __name__, ABLE, _glances_late)
COPIES_TO_READ = Peer("copies to read", "", __name__, ABLE, _copies_to_read)
TAKES_MORE_THREADS = Peer("takes more threads", "", __name__, ABLE, _takes_more_threads)
FINDS_MEMORY_TAKEN = Peer("finds memory taken", "", __name__, ABLE, _finds_memory_taken)
