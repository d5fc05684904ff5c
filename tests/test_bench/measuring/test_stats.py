"""Ratios and intervals on simulated rounds."""

from __future__ import annotations

import numpy as np
import pytest

from bench.measuring.stats import (
    Ratio,
    between,
    interval,
    log_ratios,
    median_absolute_deviation,
    paired_ratio,
    phases,
    ratio_by_way_of,
    relative_iqr,
    verdict,
)


def rounds(values: object) -> dict[tuple[int, int], float]:
    return {(0, i, 0): float(value) for i, value in enumerate(values)}  # type: ignore[call-overload]


def test_a_common_drift_cancels() -> None:
    drift = np.linspace(1.0, 4.0, 9)
    ratio = paired_ratio(rounds(0.4 * drift), "base", rounds(drift))
    assert ratio is not None
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((0.4, 0.4, 0.4))
    assert (ratio.baseline, ratio.rounds, ratio.verdict) == ("base", 9, "faster")


def test_only_shared_rounds_of_the_same_group_are_paired() -> None:
    mine = {(1, 0, 0): 2.0, (1, 1, 1): 2.0, (1, 2, 0): 2.0}
    base = {(0, 0, 0): 100.0, (1, 0, 0): 1.0, (1, 1, 1): 1.0, (2, 2, 0): 100.0}
    ratio = paired_ratio(mine, "base", base)
    assert ratio is not None
    assert (ratio.median, ratio.rounds) == (2.0, 2)
    assert paired_ratio({(3, 0, 0): 1.0}, "base", base) is None


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


@pytest.mark.parametrize("count", [6, 7, 8, 9, 12, 15, 25, 40, 80])
@pytest.mark.parametrize("shape", ["normal", "heavy tails", "skewed", "two modes"])
def test_intervals_cover_the_truth_as_often_as_they_say(count: int, shape: str) -> None:
    """Of 2,000 simulated medians 95% must be covered: fewer than 94% are not put down to chance."""
    random = np.random.default_rng([7, count])
    draw = {
        "normal": lambda: random.normal(0.0, 1.0, count),
        "heavy tails": lambda: random.standard_t(1.5, count),
        "skewed": lambda: random.exponential(1.0, count) - np.log(2.0),
        "two modes": lambda: random.choice([-1.0, 1.0], count) + random.normal(0.0, 0.3, count),
    }[shape]
    found = [interval(draw().tolist()) for _ in range(2000)]
    assert np.mean([low <= 0.0 <= high for low, high in found if True]) >= 0.94  # type: ignore[misc]


@pytest.mark.parametrize(("count", "peers", "processes"), [(9, 2, 1), (9, 6, 2), (15, 6, 2), (16, 2, 4), (40, 4, 3)])
def test_ratios_of_identical_twins(count: int, peers: int, processes: int) -> None:
    """Peers that are the same program in processes that differ by 3%, samples that differ by 5% more, the machine's
    phases by 20%: 94% of the intervals hold 1, and at most one run in twenty calls any twin different."""
    random = np.random.default_rng([3, count, peers])
    covered, called, runs = [], 0, 250
    for _ in range(runs):
        phases = random.normal(0.0, 0.2, count)
        twins = []
        for _ in range(peers):
            of_process = random.normal(0.0, 0.03 if processes > 1 else 0.0, processes)
            logs = phases + of_process[np.arange(count) % processes] + random.normal(0.0, 0.05, count)
            twins.append({(0, i, i % processes): float(np.exp(value)) for i, value in enumerate(logs)})
        base, *others = twins
        spread = between([log_ratios(other, base) for other in others])
        ratios = [paired_ratio(other, "", base, len(others), spread) for other in others]
        covered += [ratio.low <= 1.0 <= ratio.high for ratio in ratios if ratio and ratio.low and ratio.high]
        called += any(ratio is not None and ratio.verdict in ("faster", "slower") for ratio in ratios)
    assert np.mean(covered) >= 0.94
    assert called / runs <= 0.05


def test_a_tenth_is_found_at_the_default_budget() -> None:
    """Two versions in six processes each, 48 rounds, samples off by 4% and processes by 1%."""
    random = np.random.default_rng(5)
    found, runs = 0, 200
    for _ in range(runs):
        phases = random.normal(0.0, 0.2, 48)
        series = []
        for factor in (1.0, 1.1):
            of_process = random.normal(0.0, 0.01, 6)
            logs = np.log(factor) + phases + of_process[np.arange(48) % 6] + random.normal(0.0, 0.04, 48)
            series.append({(0, i, i % 6): float(np.exp(value)) for i, value in enumerate(logs)})
        spread = between([log_ratios(series[1], series[0])])
        ratio = paired_ratio(series[1], "", series[0], 1, spread)
        found += ratio is not None and ratio.verdict == "slower"
    assert found / runs >= 0.95


def test_phases_widen_an_interval_and_chance_does_not() -> None:
    """Of 300 series in which much of a round's noise is the last one's, 94% of the intervals hold the truth; without it
    fewer than 85% would."""
    random = np.random.default_rng(8)
    covered, without = [], []
    for _ in range(300):
        values = [0.0]
        for noise in random.normal(0.0, 1.0, 199):
            values.append(0.6 * values[-1] + float(noise))
        for found, kept in ((interval(values, 1, phases(values)), covered), (interval(values), without)):
            assert found is not None
            kept.append(found[0] <= 0.0 <= found[1])
    assert np.mean(covered) >= 0.94
    assert np.mean(without) < 0.85
    alone = [phases(random.normal(0.0, 1.0, 60).tolist()) for _ in range(300)]
    assert np.mean([value > 0 for value in alone]) < 0.06


def test_too_few_rounds_have_no_interval() -> None:
    assert interval([2.0, 1.0, 1.5, 1.2, 1.1]) is None
    assert interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == (1.0, 6.0)
    assert interval([]) is None
    assert interval([1.0, 2.0, 3.0, 4.0, 5.0, float("inf")]) == (1.0, float("inf"))
    assert interval([float(i) for i in range(20)]) == (5.0, 14.0)  # the 6th and the 15th
    assert interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], comparisons=5) is None  # each may miss less often


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.90, 0.98, "faster"),
        (1.02, 1.10, "slower"),
        (0.98, 1.02, "same"),
        (1.012, 1.028, "same"),
        (0.95, 1.05, "unclear"),
        (0.90, 0.995, "unclear"),
        (None, None, "unclear"),
    ],
)
def test_verdicts(low: float | None, high: float | None, word: str) -> None:
    assert verdict(low, high) == word


def test_spreads() -> None:
    assert median_absolute_deviation([1.0, 2.0, 3.0, 100.0]) == 1.0
    assert relative_iqr([1.0, 1.0, 1.0]) == 0.0
    assert relative_iqr([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2.0 / 3.0)
