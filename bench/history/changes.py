"""Find permanent changes of a series: change points of its level.

The series is split where the two sides differ most, by the likelihood of a normal mean (Hawkins, JASA 72, 1977). The
split counts if shuffled series rarely have one as good. Each side is then searched again (Vostrikova, 1981). A shuffle
assumes only that noise does not depend on time. So no deviation has to be guessed, and a single outlier is not a
change. The price: a few runs show nothing, see `FEWEST`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from bench.measuring.stats import SAME

if TYPE_CHECKING:
    import numpy as np

SHUFFLES = 999
CHANCE = 0.02
"""Probability that a series without a change shows one."""

SIDE = 2
"""Least number of values on either side of a change: a single one is an outlier."""

FEWEST = 10
"""With fewer values no shuffle is rare enough: of ten, a split into fives is the best in 2 of 252."""


@dataclass(frozen=True)
class Change:
    """Attributes: at, the first value of the new level; factor: the new level over the old; chance: how often shuffled
    series split as well.
    """

    at: int
    factor: float
    chance: float


def changes(values: Sequence[float]) -> list[Change]:
    """Return the changes of a series of positive numbers, in order, without those below SAME."""
    import numpy as np

    logs = np.log(np.asarray(values, np.float64))
    places = sorted(_search(logs, 0, np.random.default_rng(0)))
    edges = [0, *(place for place, _ in places), len(logs)]
    levels = [float(np.median(logs[a:b])) for a, b in pairwise(edges)]
    candidates = [
        Change(place, float(np.exp(after - before)), chance)
        for (place, chance), before, after in zip(places, levels, levels[1:], strict=False)
    ]
    return [change for change in candidates if max(change.factor, 1 / change.factor) > 1 + SAME]


def _search(logs: np.ndarray, start: int, random: np.random.Generator) -> list[tuple[int, float]]:
    """Yield (place, chance) of the changes in a part that begins at `start`."""
    if len(logs) < FEWEST:
        return []
    import numpy as np

    gains = _gains(logs[None])[0]
    shuffled = random.permuted(np.tile(logs, (SHUFFLES, 1)), axis=1)
    chance = (1 + int(np.sum(_gains(shuffled).max(axis=1) >= gains.max()))) / (1 + SHUFFLES)
    if chance > CHANCE:
        return []
    place = SIDE + int(gains.argmax())
    before, after = _search(logs[:place], start, random), _search(logs[place:], start + place, random)
    return [*before, (start + place, chance), *after]


def _gains(series: np.ndarray) -> np.ndarray:
    """Return for each row and each place of a split the squares that two levels explain beyond one."""
    import numpy as np

    count = series.shape[1]
    before = np.arange(SIDE, count - SIDE + 1)
    centred = series - series.mean(axis=1, keepdims=True)
    sums = np.cumsum(centred, axis=1)[:, before - 1]
    return sums**2 * count / (before * (count - before))
