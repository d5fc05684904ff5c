"""What `--against` calls different in the recorded noise of a shared machine with two cores.

Two peers that ran in the same rounds differ by more than two versions of one would: what is left of their ratio, its
median taken away, is the noise of a pair of twins, and rather too much of it. Blocks of it are drawn, so that slow
phases stay in one piece; processes, of which each peer had one in these runs, differ by a further 1%.
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from bench.kinds import load
from bench.measuring.stats import between, log_ratios, paired_ratio

RECORDED = sorted((Path(__file__).parent / "data").glob("aa-*.json"))
BLOCK, ROUNDS, PROCESSES, OF_PROCESS = 6, 48, 6, 0.01
"""Rounds as many as `--against` makes in its default budget."""


def noises(path: Path) -> list[np.ndarray]:
    """Of each pair of peers the logarithm of their ratio, round by round, around its median."""
    times = [{s.round: s.seconds for s in row.samples} for row in load(path).rows]
    found = [np.log([a[i] / b[i] for i in sorted(a.keys() & b.keys())]) for a, b in combinations(times, 2)]
    return [one - np.median(one) for one in found]


def verdict(noise: np.ndarray, factor: float, random: np.random.Generator) -> str:
    starts = random.integers(0, len(noise), -(-ROUNDS // BLOCK))
    drawn = noise[((starts[:, None] + np.arange(BLOCK)) % len(noise)).ravel()[:ROUNDS]]
    ours, theirs = random.normal(0.0, OF_PROCESS, (2, PROCESSES))
    mine = {(0, i, i % PROCESSES): factor * float(np.exp(x + ours[i % PROCESSES])) for i, x in enumerate(drawn)}
    base = {(0, i, i % PROCESSES): float(np.exp(theirs[i % PROCESSES])) for i in range(ROUNDS)}
    ratio = paired_ratio(mine, "", base, 1, between([log_ratios(mine, base)]))
    assert ratio is not None
    return ratio.verdict


@pytest.mark.breadth
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_twins_are_not_called_different(path: Path) -> None:
    """At most 5 times in 100 of each pair, whatever the load."""
    random = np.random.default_rng(1)
    for noise in noises(path):
        found = Counter(verdict(noise, 1.0, random) for _ in range(100))
        assert found["slower"] + found["faster"] <= 5


@pytest.mark.breadth
def test_a_tenth_is_never_taken_for_a_gain_and_is_found_where_rounds_agree_within_a_twentieth() -> None:
    """Power depends on the noise: 9 in 10 where the median deviation of a round is below 5% and phases are short."""
    random = np.random.default_rng(2)
    steady = []
    for path in RECORDED:
        for noise in noises(path):
            found = Counter(verdict(noise, 1.1, random) for _ in range(60))
            assert found["faster"] == 0
            if np.std(noise) < 0.08:
                steady.append(found["slower"] / 60)
    assert len(steady) == 3
    assert np.mean(steady) >= 0.9
