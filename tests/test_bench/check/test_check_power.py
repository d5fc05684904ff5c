"""How often `check` accepts runs that mislead, and refuses honest ones, in simulated runs of two peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import binom

from bench.check.ratios import LIKELY, of_verdict
from bench.measuring.stats import ONE_PROCESS, Ratio, between, log_ratios, paired_ratio
from tests.helpers.breadth import covering

RUNS = 400
SHAPES = [(9, 3), (24, 6), (70, 4)]
"""Rounds and processes: those of nine rounds of a large model, and of a minute and five on a small one."""

Draw = Callable[[np.random.Generator, int, int, float], tuple[np.ndarray, float]]
"""(random, rounds, processes, noise) to the logarithms of one peer's times around the other's, and of the truth."""


@dataclass
class Tally:
    verdicts: int = 0
    refused: int = 0
    wrong: int = 0
    covered: int = 0


def contradicts(ratio: Ratio, truth: float) -> bool:
    return {"faster": truth >= 0, "slower": truth <= 0, "same": abs(truth) > np.log(1.06)}[ratio.verdict]


def tally(draw: Draw, rounds: int, processes: int, noise: float, comparisons: int = 1) -> Tally:
    found = Tally()
    for seed in range(RUNS):
        random = np.random.default_rng([seed, rounds])
        mine, truth = draw(random, rounds, processes, noise)
        phases, base = random.normal(0.0, 0.2, rounds), random.normal(0.0, noise, rounds)
        series = [{(0, i, i % processes): float(np.exp(x)) for i, x in enumerate(p + phases)} for p in (mine, base)]
        logs = log_ratios(*series)
        ratio = paired_ratio(series[0], "", series[1], comparisons, between([logs]) or ONE_PROCESS)
        assert ratio is not None
        assert ratio.low is not None
        assert ratio.high is not None
        judged = ratio.verdict != "unclear"
        refused = judged and any(f.severity == "noisy" for f in of_verdict(ratio.verdict, ratio, logs, "", comparisons))
        found.verdicts += judged
        found.refused += refused
        found.wrong += judged and not refused and contradicts(ratio, truth)
        found.covered += not refused and ratio.low <= np.exp(truth) <= ratio.high
    return found


def honest(truth: float, of_process: float = 0.02) -> Draw:
    def draw(random: np.random.Generator, rounds: int, processes: int, noise: float) -> tuple[np.ndarray, float]:
        own = np.resize(random.normal(0.0, of_process, processes), rounds)
        return truth + own + random.normal(0.0, noise, rounds), truth

    return draw


def drift(random: np.random.Generator, rounds: int, processes: int, noise: float) -> tuple[np.ndarray, float]:
    """A machine that grows hot: it is true what was measured first."""
    return np.linspace(-0.05, 0.25, rounds) + random.normal(0.0, noise, rounds), -0.05


def step(random: np.random.Generator, rounds: int, processes: int, noise: float) -> tuple[np.ndarray, float]:
    return np.where(np.arange(rounds) < 0.3 * rounds, -0.1, 0.2) + random.normal(0.0, noise, rounds), -0.1


def two_kinds(random: np.random.Generator, rounds: int, processes: int, noise: float) -> tuple[np.ndarray, float]:
    """Faster in most rounds, and slower in all: a long run takes the mean."""
    slow = random.random(rounds) < 0.35
    return np.where(slow, 0.5, -0.06) + random.normal(0.0, noise, rounds), 0.35 * 0.5 - 0.65 * 0.06


def slow_process(random: np.random.Generator, rounds: int, processes: int, noise: float) -> tuple[np.ndarray, float]:
    own = np.full(processes, -0.05)
    own[random.integers(processes)] = 0.4
    return np.resize(own, rounds) + random.normal(0.0, noise, rounds), float(own.mean())


@covering(1, draw=[drift, step, two_kinds, slow_process], shape=SHAPES, noise=[0.03, 0.1])
def test_runs_that_mislead_are_accepted_at_most_once_in_twenty(
    draw: Draw, shape: tuple[int, int], noise: float
) -> None:
    assert tally(draw, *shape, noise).wrong / RUNS <= 0.05


@covering(1, truth=[0.0, 0.1, 0.7], noise=[0.03, 0.15, 0.4], shape=[*SHAPES, (40, 1)])
def test_honest_runs_are_accepted_however_noisy(truth: float, noise: float, shape: tuple[int, int]) -> None:
    """Refused are few, and of those whose ratio is just beyond doubt about as many as `LIKELY` says: of few verdicts
    chance alone may refuse more than that part."""
    found = tally(honest(truth), *shape, noise)
    assert found.refused <= max(0.13 * found.verdicts, binom.ppf(0.995, found.verdicts, LIKELY), 2)
    assert found.covered / (RUNS - found.refused) >= 0.94
    assert found.wrong / RUNS <= 0.05


def test_one_process_of_programs_that_differ_by_a_tenth_is_called_different_at_most_once_in_twenty() -> None:
    assert tally(honest(0.0, 0.1), 40, 1, 0.02).wrong / RUNS <= 0.05


@covering(1, draw=[drift, step, two_kinds], shape=SHAPES[1:], noise=[0.03, 0.1])
def test_of_many_peers_as_few_mislead(draw: Draw, shape: tuple[int, int], noise: float) -> None:
    assert tally(draw, *shape, noise, comparisons=19).wrong / RUNS <= 0.05


@pytest.mark.parametrize("comparisons", [1, 19])
def test_an_honest_run_is_refused_for_a_drift_as_seldom_with_many_peers(comparisons: int) -> None:
    """In one of ten, where every ratio is judged: each takes its part."""
    refused = 0
    for seed in range(20):
        random = np.random.default_rng(seed)
        for _ in range(comparisons):
            logs = {(0, i, i % 2): float(x) for i, x in enumerate(0.3 + random.normal(0.0, 0.3, 24))}
            refused += any(of_verdict("slower", Ratio("", 1.35, 1.1, 1.6, 24, "slower", 2), logs, "", comparisons))
    assert refused <= 5
