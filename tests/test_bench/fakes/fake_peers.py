"""Peers of numpy alone, good and bad, for tests of workers in real processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.cases.case import Case
from bench.cases.values import parameter
from bench.peers.abilities import Abilities
from bench.peers.peer import Peer, Session

ABLE = Abilities(("numpy",), "numpy")


def _session(case: Case, on_step: Callable[[int], None] = lambda step: None, beta_2: float | None = None) -> Session:
    """Adam in float64; `on_step(n)` is called before step n, from 1."""
    values = [parameter(case, i).astype(np.float64) for i in range(len(case.tensors))]
    m = [0.0 * value for value in values]
    v = [0.0 * value for value in values]
    made = [0]
    h = case.algorithm.hyperparameters
    b1, b2 = h["beta_1"], beta_2 or h["beta_2"]

    def apply(gradients: list[Any]) -> None:
        made[0] += 1
        on_step(made[0])
        t = made[0]
        alpha = h["learning_rate"] * np.sqrt(1 - b2**t) / (1 - b1**t)
        for i, g in enumerate(gradients):
            m[i] += (1 - b1) * (g - m[i])
            v[i] += (1 - b2) * (np.square(g) - v[i])
            values[i] -= alpha * m[i] / (np.sqrt(v[i]) + h["epsilon"])

    return Session(
        place=lambda i, array: array.astype(np.float64),
        apply=apply,
        wait=lambda: None,
        read=lambda i: values[i].astype(np.float32),
    )


def _crash_on_step_9(step: int) -> None:
    if step == 9:
        os.kill(os.getpid(), signal.SIGABRT)


def _hang_on_step_9(step: int) -> None:
    if step == 9:
        time.sleep(600)


def _raise(case: Case) -> Session:
    raise ValueError("the framework does not know this shape\nsecond line")


GOOD = Peer("good", "right", __name__, ABLE, _session)
TWIN = Peer("twin", "right too", __name__, ABLE, _session, on_mesh=True)
WRONG = Peer("wrong", "another beta", __name__, ABLE, lambda case: _session(case, beta_2=0.99))
CRASHES = Peer("crashes", "aborts", __name__, ABLE, lambda case: _session(case, _crash_on_step_9))
HANGS = Peer("hangs", "sleeps", __name__, ABLE, lambda case: _session(case, _hang_on_step_9))
RAISES = Peer("raises", "cannot be prepared", __name__, ABLE, _raise)
ABSENT = Peer("absent", "not installed", __name__, Abilities(("nothing",), "nothing"), _raise)

SLEEP = 0.06


def _sleep(seconds: float) -> Callable[[Case], Session]:
    """Sleeps and computes nothing: arithmetic would take as long as the machine is busy."""

    def prepare(case: Case) -> Session:
        values = [parameter(case, i) for i in range(len(case.tensors))]
        return Session(lambda i, array: array, lambda g: time.sleep(seconds), lambda: None, lambda i: values[i])

    return prepare


def _marks(case: Case) -> Session:
    """Sleeps, and makes the file MARK names once some samples have been taken."""
    session = _sleep(SLEEP)(case)
    made = [0]

    def apply(gradients: list[Any]) -> None:
        made[0] += 1
        time.sleep(SLEEP)
        if made[0] == 30:
            open(os.environ["MARK"], "w").close()

    session.apply = apply
    return session


MARKS = Peer("marks", "tells that it is measured", __name__, ABLE, _marks, own_algorithm=True)
SLEEPS = Peer("sleeps", "takes 60 ms", __name__, ABLE, _sleep(SLEEP))
WAITS = Peer("waits", "the same, and waits a tenth of it", __name__, ABLE, _sleep(1.1 * SLEEP))
