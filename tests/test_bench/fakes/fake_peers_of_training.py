"""Adam of numpy alone at the learning rate of the case, once right and once with steps twice as long."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.cases.case import Case
from bench.cases.values import parameter
from bench.peers.abilities import Abilities
from bench.peers.peer import Peer, Session

ABLE = Abilities(("numpy",), "numpy")


def _session(case: Case, factor: float = 1.0) -> Session:
    values = [parameter(case, i).astype(np.float64) for i in range(len(case.tensors))]
    m, v = [0.0 * value for value in values], [0.0 * value for value in values]
    h = case.algorithm.hyperparameters
    made = [0]

    def apply(gradients: list[Any]) -> None:
        made[0] += 1
        alpha = factor * h["learning_rate"] * np.sqrt(1 - h["beta_2"] ** made[0]) / (1 - h["beta_1"] ** made[0])
        for i, g in enumerate(gradients):
            m[i] += (1 - h["beta_1"]) * (g - m[i])
            v[i] += (1 - h["beta_2"]) * (np.square(g) - v[i])
            values[i] -= alpha * m[i] / (np.sqrt(v[i]) + h["epsilon"])

    return Session(
        place=lambda i, array: array.astype(np.float64),
        apply=apply,
        wait=lambda: None,
        read=lambda i: values[i].astype(np.float32),
    )


GOOD = Peer("good", "right", __name__, ABLE, _session)
DOUBLE = Peer("double", "steps twice as long", __name__, ABLE, lambda case: _session(case, 2.0))
ABSENT = Peer("absent", "", __name__, Abilities(("nothing",), "nothing"), _session)
ALL = {peer.name: peer for peer in (GOOD, DOUBLE, ABSENT)}
