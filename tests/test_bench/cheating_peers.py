"""Peers that would be the fastest of all if one believed their clocks."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fake_peers

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


STOPS_AFTER_3 = Peer("stops after 3", "", __name__, ABLE, _stops_after(3))
STOPS_AFTER_9 = Peer("stops after 9", "", __name__, ABLE, _stops_after(9))
DOES_NOT_WAIT = Peer("does not wait", "", __name__, ABLE, _does_not_wait)
GLANCES_LATE = Peer("glances late", "", __name__, ABLE, _glances_late)
COPIES_TO_READ = Peer("copies to read", "", __name__, ABLE, _copies_to_read)
TAKES_MORE_THREADS = Peer("takes more threads", "", __name__, ABLE, _takes_more_threads)
