"""The parts of a page: sections with tables and figures. A figure is data until it is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.page.tables import Table
from bench.page.words import plain_number, speed


@dataclass(frozen=True)
class Bars:
    """Horizontal bars.

    Attributes: title; labels from top to bottom; series, name -> a value for each label, None for a missing one;
      stacked on each other, or side by side; unit; spans: (low, high) of the first series' values; line: (value, name)
        to draw across.
    """

    title: str
    labels: tuple[str, ...]
    series: Mapping[str, Sequence[float | None]]
    unit: str
    stacked: bool = False
    spans: tuple[tuple[float, float] | None, ...] = ()
    line: tuple[float, str] | None = None


@dataclass(frozen=True)
class Lines:
    """Curves.

    Attributes: title; series, name -> [(x, y)]; labels of x and y; whether each is logarithmic.
    """

    title: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Ratios:
    """Ratios to a baseline with their intervals, on a logarithmic axis.

    Attributes: title; baseline; labels from top to bottom; values, (ratio, low, high) of each, the edges None if there
      is no interval; verdicts: "faster", "slower", "same", "unclear", "not judged" or "baseline"; ours: labels to
        emphasize.
    """

    title: str
    baseline: str
    labels: tuple[str, ...]
    values: tuple[tuple[float, float | None, float | None], ...]
    verdicts: tuple[str, ...]
    ours: tuple[bool, ...]


Figure = Bars | Lines | Ratios


@dataclass(frozen=True)
class Section:
    """Attributes: title; answer: the main result in a sentence, and first: its picture; text, a paragraph each; tables;
    figures; reruns: commands that measure its rows again.
    """

    title: str
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    reruns: tuple[str, ...] = field(default=())
    answer: str = ""
    first: Figure | None = None


def alternative(figure: Figure) -> str:
    """Describe the figure in words, for readers who cannot see it; the tables next to it contain all its numbers."""
    if isinstance(figure, Lines):
        return f"{figure.title}. Curves of {figure.y} over {figure.x}: {', '.join(figure.series)}."
    if isinstance(figure, Ratios):
        parts = zip(figure.labels, figure.values, figure.verdicts, strict=True)
        text = "; ".join(f"{label} {speed(value[0])} ({word})" for label, value, word in parts)
        return f"{figure.title}, compared with {figure.baseline}: {text}."
    name = next(iter(figure.series))
    values = zip(figure.labels, figure.series[name], strict=True)
    shown = "; ".join(f"{label} {plain_number(value)}" for label, value in values if value is not None)
    return f"{figure.title}. {name}, in {figure.unit}: {shown}."
