"""Draws figures as SVG to stand in a page, with matplotlib: text stays text, its colour is the page's.

matplotlib comes with `pip install 'dtopt[report]'` and is imported here only.
"""

from __future__ import annotations

import importlib.util
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

from bench.page.section import Bars, Figure, Lines, alternative
from optim.errors import UnsupportedError

INK = "#010203"
"""Stands for the colour of the page's text until the SVG is written."""

PALETTE = ("#3b82c4", "#d9762b", "#2a9d6e", "#c2569b", "#8d7bd6", "#b8952f", "#6f7d8c", "#c94f4f")
"""Told apart on white and on black, and by most colour-blind readers."""

MARKERS = "os^Dvpx+"
WIDTH = 5.8
"""Inches at which text has its nominal size; pages scale it."""


def require() -> None:
    """Raises: UnsupportedError where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UnsupportedError(
            "matplotlib draws the plots of a page and is not installed: pip install 'dtopt[report]', or write"
            " --markdown or --csv"
        )


def svg(figure: Figure, number: int) -> str:
    """One figure; `number` keeps its ids apart from those of the others on the page."""
    with _axes(figure) as (drawn, axes):
        if isinstance(figure, Bars):
            _bars(axes, figure)
        else:
            _lines(axes, figure)
        written = io.StringIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        drawn.savefig(written, format="svg", bbox_inches="tight", transparent=True, metadata=nothing)
    return _for_a_page(written.getvalue(), number, alternative(figure))


@contextmanager
def _axes(figure: Figure) -> Iterator[tuple[Any, Any]]:
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    beside = len(figure.series) if isinstance(figure, Bars) and not figure.stacked else 1
    height = 1.1 + 0.3 * len(figure.labels) * (0.5 + 0.5 * beside) if isinstance(figure, Bars) else 3.6
    look = {
        "svg.fonttype": "none",
        "svg.hashsalt": "dtopt",
        "font.family": "sans-serif",
        "font.sans-serif": ["system-ui", "DejaVu Sans"],
        "font.size": 11,
        **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
    }
    # The name of the page's font is not one of this machine: matplotlib measures with its own and need not say so.
    logger = __import__("logging").getLogger("matplotlib.font_manager")
    level = logger.level
    logger.setLevel("ERROR")
    try:
        with mpl.rc_context(look):
            canvas = Canvas(figsize=(WIDTH, height))
            yield canvas, canvas.add_subplot()
    finally:
        logger.setLevel(level)


def _bars(axes: Any, figure: Bars) -> None:
    count = len(figure.labels)
    thickness = 0.75 if figure.stacked else 0.75 / len(figure.series)
    left = [0.0] * count
    for number, (name, values) in enumerate(figure.series.items()):
        known = [value or 0.0 for value in values]
        shift = 0.0 if figure.stacked else (number - (len(figure.series) - 1) / 2) * thickness
        places = [place + shift for place in range(count)]
        colour = PALETTE[number % len(PALETTE)]
        axes.barh(places, known, thickness * 0.92, left=left if figure.stacked else 0.0, color=colour, label=name)
        if figure.stacked:
            left = [a + b for a, b in zip(left, known, strict=True)]
        else:
            for place, value in zip(places, values, strict=True):
                if value is not None:
                    axes.annotate(
                        f"{value:.3g}", (value, place), (4, 0), textcoords="offset points", va="center", size=9
                    )
    for place, span in enumerate(figure.spans):
        if span:
            axes.plot(span, (place, place), color=INK, linewidth=1.2, marker="|")
    if figure.line:
        axes.axvline(figure.line[0], color=INK, linestyle="--", linewidth=1, label=figure.line[1])
    axes.set_yticks(range(count), figure.labels)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel(figure.unit)
    if len(figure.series) > 1 or figure.line:
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, fontsize=9)


def _write_values(axes: Any, places: list[float], values: Sequence[float | None], spans: Sequence[Any]) -> None:
    """Each value behind its bar, or behind its span where that is longer."""
    for number, (place, value) in enumerate(zip(places, values, strict=True)):
        if value is not None:
            end = max(value, spans[number][1]) if spans and spans[number] else value
            axes.annotate(f"{value:.3g}", (end, place), (4, 0), textcoords="offset points", va="center", size=9)


def _lines(axes: Any, figure: Lines) -> None:
    for number, (name, points) in enumerate(figure.series.items()):
        style = {"color": PALETTE[number % len(PALETTE)], "linestyle": "-" if number < len(PALETTE) else "--"}
        marker = MARKERS[number % len(MARKERS)] if len(points) <= 12 else None
        axes.plot(*zip(*points, strict=True), label=name, marker=marker, markersize=5, linewidth=1.6, **style)
    if figure.log_x:
        axes.set_xscale("log")
    if figure.log_y:
        axes.set_yscale("log")
    axes.set_xlabel(figure.x)
    axes.set_ylabel(figure.y)
    axes.grid(color=INK, alpha=0.15)
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.18), ncols=2, fontsize=9)


def _for_a_page(text: str, number: int, words: str) -> str:
    """The svg element alone: as wide as its place, with words instead of the picture, its ids its own."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    head, _, rest = text.partition(">")
    box = re.search(r'viewBox="[^"]*"', head)
    rest = re.sub(r'\bid="', f'id="f{number}-', rest)
    rest = rest.replace("url(#", f"url(#f{number}-").replace('href="#', f'href="#f{number}-')
    rest = rest.replace(INK, "currentColor")
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f'<svg {box[0] if box else ""} role="img" aria-label="{escape(words, quote=True)}" {names}>{rest.rstrip()}'
