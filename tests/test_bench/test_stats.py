"""Ratios and intervals on simulated rounds."""

from __future__ import annotations

import numpy as np
import pytest

from bench.stats import (
    Ratio,
    interval,
    median_absolute_deviation,
    paired_ratio,
    ratio_by_way_of,
    relative_iqr,
    verdict,
)


def rounds(values: object) -> dict[tuple[int, int], float]:
    return {(0, i): float(value) for i, value in enumerate(values)}  # type: ignore[call-overload]


def test_a_common_drift_cancels() -> None:
    drift = np.linspace(1.0, 4.0, 9)
    ratio = paired_ratio(rounds(0.4 * drift), "base", rounds(drift))
    assert ratio is not None
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((0.4, 0.4, 0.4))
    assert (ratio.baseline, ratio.rounds, ratio.verdict) == ("base", 9, "faster")


def test_only_shared_rounds_of_the_same_group_are_paired() -> None:
    mine = {(1, 0): 2.0, (1, 1): 2.0, (1, 2): 2.0}
    base = {(0, 0): 100.0, (1, 0): 1.0, (1, 1): 1.0, (2, 2): 100.0}
    ratio = paired_ratio(mine, "base", base)
    assert ratio is not None
    assert (ratio.median, ratio.rounds) == (2.0, 2)
    assert paired_ratio({(3, 0): 1.0}, "base", base) is None


def test_peers_without_a_common_round_are_compared_by_way_of_the_baseline() -> None:
    mine, other = Ratio("base", 0.4, 0.3, 0.5, 9, "faster"), Ratio("base", 4.0, 3.0, 5.0, 7, "slower")
    ratio = ratio_by_way_of(mine, other, "other")
    assert ratio is not None
    assert (ratio.baseline, ratio.rounds, ratio.verdict) == ("other", 7, "faster")
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((0.1, 0.06, 0.5 / 3))
    assert ratio_by_way_of(mine, Ratio("x", 1.0, 1.0, 1.0, 9, "same"), "other") is None


def test_one_outlier_does_not_move_the_median() -> None:
    noise = np.random.default_rng(1).normal(1.0, 0.01, 9)
    noise[4] = 30.0
    ratio = paired_ratio(rounds(noise), "base", rounds(np.ones(9)))
    assert ratio is not None
    assert ratio.median == pytest.approx(1.0, abs=0.02)
    assert ratio.high < 1.1


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    random = np.random.default_rng(7)
    covered = 0
    for _ in range(200):
        low, high = interval(list(np.exp(random.normal(0.0, 0.1, 9))))
        covered += low <= 1.0 <= high
    assert 0.88 <= covered / 200 <= 1.0


def test_intervals_of_few_values_are_their_range() -> None:
    assert interval([2.0]) == (2.0, 2.0)
    assert interval([2.0, 1.0]) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("low", "high", "rounds", "word"),
    [
        (0.90, 0.96, 9, "faster"),
        (1.04, 1.10, 9, "slower"),
        (0.98, 1.02, 9, "same"),
        (0.95, 1.05, 9, "unclear"),
        (0.90, 0.99, 9, "unclear"),
        (0.10, 0.20, 4, "unclear"),
    ],
)
def test_verdicts(low: float, high: float, rounds: int, word: str) -> None:
    assert verdict(low, high, rounds) == word


def test_spreads() -> None:
    assert median_absolute_deviation([1.0, 2.0, 3.0, 100.0]) == 1.0
    assert relative_iqr([1.0, 1.0, 1.0]) == 0.0
    assert relative_iqr([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2.0 / 3.0)
