"""Draw figures as SVG for a page, with matplotlib: text stays text and has the page's colour.

matplotlib comes with `pip install 'dtopt[report]'` and is imported only here.
"""

from __future__ import annotations

import importlib.util
import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

from bench.page.section import Bars, Figure, Lines, Ratios, alternative
from bench.page.words import plain_number, speed
from optim.errors import UnsupportedError

INK = "#010203"
"""Placeholder for the colour of the page's text until the SVG is written."""

PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f7f7f")
"""Okabe and Ito's colours (2008), distinguishable by colour-blind readers, on white and on black."""

VERDICTS = {
    "faster": ("#0072b2", "<"),
    "slower": ("#d55e00", ">"),
    "same": ("#009e73", "o"),
    "unclear": ("#7f7f7f", "D"),
    "not judged": ("#7f7f7f", "D"),
    "baseline": (INK, "|"),
}
"""Colour and marker of each verdict: the marker points to the side of the peer, so that colour is not needed."""

MARKERS = "os^Dvpx+"
WIDTH = 4.6
LETTERS = 26
"""Letters in a line of an axis's label."""
FITS, LEAST_AXES = 5.4, 1.3
"""Inches of a figure with its text, which then fits a phone's screen; and of the narrowest axes."""
BELOW_AXIS = 0.6
"""Inches from an axis to the legend under its name."""
TEXT, SMALL_TEXT = 13, 12.5
"""Font size in points; `_for_a_page` keeps text at 11 pixels or more on every screen."""

LOGARITHMIC = 10.0
"""Ratio of the largest to the smallest of some bars from which the axis is logarithmic."""


class Colours:
    """One colour for each name throughout a page."""

    def __init__(self, names: Sequence[str] = ("parameters", "gradients", "slots", "activations", "median")) -> None:
        self._of = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}

    def of(self, name: str) -> str:
        return self._of.setdefault(name, PALETTE[len(self._of) % len(PALETTE)])


def require() -> None:
    """Raise UnsupportedError if matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UnsupportedError(
            "matplotlib draws the plots of a page and is not installed: pip install matplotlib,"
            " or write --markdown or --csv"
        )


def svg(figure: Figure, number: int, colours: Colours) -> str:
    """Return one figure as SVG; `number` keeps its ids different from those of other figures on the page."""
    with _axes(figure) as (drawn, axes):
        if isinstance(figure, Ratios):
            _ratios(axes, figure)
        elif isinstance(figure, Bars):
            _bars(axes, figure, colours)
        else:
            _lines(axes, figure, colours)
        _fit(drawn, axes)
        written = io.StringIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        drawn.savefig(written, format="svg", bbox_inches="tight", transparent=True, metadata=nothing)
    return _for_a_page(written.getvalue(), number, alternative(figure))


def _fit(drawn: Any, axes: Any) -> None:
    """Make the axes narrower until the figure with the text around them is FITS inches wide."""
    for _ in range(2):  # wrapped text moves a little with the axes
        drawn.draw_without_rendering()
        excess = drawn.get_tightbbox().width - FITS
        place = axes.get_position()
        width = max(LEAST_AXES, place.width * WIDTH - excess) / WIDTH
        axes.set_position((place.x0, place.y0, width, place.height))


@contextmanager
def _axes(figure: Figure) -> Iterator[tuple[Any, Any]]:
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    beside = len(figure.series) if isinstance(figure, Bars) and not figure.stacked else 1
    height = 3.6 if isinstance(figure, Lines) else 1.2 + 0.34 * len(figure.labels) * (0.5 + 0.5 * beside)
    look = {
        "svg.fonttype": "none",
        "svg.hashsalt": "dtopt",
        "font.family": "sans-serif",
        "font.sans-serif": ["system-ui", "DejaVu Sans"],
        "font.size": TEXT,
        **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
    }
    # This machine may lack the page's font: matplotlib then measures with its own, without a warning.
    logger = __import__("logging").getLogger("matplotlib.font_manager")
    level = logger.level
    logger.setLevel("ERROR")
    try:
        with mpl.rc_context(look):
            canvas = Canvas(figsize=(WIDTH, height))
            yield canvas, canvas.add_subplot()
    finally:
        logger.setLevel(level)


def _ratios(axes: Any, figure: Ratios) -> None:
    axes.axvline(1.0, color=INK, linestyle="--", linewidth=1)
    for place, (value, verdict) in enumerate(zip(figure.values, figure.verdicts, strict=True)):
        middle, low, high = value
        colour, sign = VERDICTS[verdict]
        if low is not None and high is not None:
            axes.plot((low, high), (place, place), color=colour, linewidth=3, alpha=0.6, solid_capstyle="butt")
        axes.plot((middle,), (place,), color=colour, marker=sign, markersize=9, linestyle="none")
        _write_after_axes(axes, place, _judgement(middle, verdict))
    axes.set_yticks(range(len(figure.labels)), figure.labels)
    for label, ours in zip(axes.get_yticklabels(), figure.ours, strict=True):
        label.set_fontweight("bold" if ours else "normal")
    axes.set_ylim(len(figure.labels) - 0.4, -0.6)
    edges = [edge for value in figure.values for edge in value if edge is not None]
    axes.set_xscale("log")
    axes.set_xlim(min(edges) / 1.3, max(edges) * 1.3)
    _plain_ticks(axes, min(edges) / 1.3, max(edges) * 1.3)
    axes.set_xlabel(_lines_of(f"time compared with {figure.baseline} (left is faster)"))


def _write_after_axes(axes: Any, place: float, text: str) -> None:
    """Write a row's text at the right end of the axes, where no line of the figure crosses it."""
    end = axes.get_yaxis_transform()
    axes.annotate(text, (1.0, place), (8, 0), end, textcoords="offset points", va="center", size=SMALL_TEXT)


def _judgement(ratio: float, verdict: str) -> str:
    """Return the label of an interval: the ratio if it shows which is faster, and the verdict if not."""
    return speed(ratio) if verdict in ("faster", "slower") else verdict


def _lines_of(label: str) -> str:
    """Break an axis's label into lines that are about as wide as the axes."""
    return textwrap.fill(label, LETTERS)


def _plain_ticks(axes: Any, low: float, high: float) -> None:
    """Put a few numbers in plain notation on a logarithmic axis."""
    from matplotlib.ticker import NullFormatter

    steps = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
    shown = [step for step in steps if low <= step <= high]
    axes.set_xticks(shown[:: max(1, -(-len(shown) // 5))])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def _bars(axes: Any, figure: Bars, colours: Colours) -> None:
    count = len(figure.labels)
    thickness = 0.75 if figure.stacked else 0.75 / len(figure.series)
    left = [0.0] * count
    all_known = [value for values in figure.series.values() for value in values if value]
    logarithmic = not figure.stacked and bool(all_known) and max(all_known) > LOGARITHMIC * min(all_known)
    for number, (name, values) in enumerate(figure.series.items()):
        known = [value or 0.0 for value in values]
        shift = 0.0 if figure.stacked else (number - (len(figure.series) - 1) / 2) * thickness
        places = [place + shift for place in range(count)]
        colour = colours.of(name)
        axes.barh(places, known, thickness * 0.92, left=left if figure.stacked else 0.0, color=colour, label=name)
        if figure.stacked:
            left = [a + b for a, b in zip(left, known, strict=True)]
        else:
            _write_values(axes, places, values, figure)
    for place, span in enumerate(figure.spans):
        if span:
            axes.plot(span, (place, place), color=INK, linewidth=1.2, marker="|")
    if figure.line:
        axes.axvline(figure.line[0], color=INK, linestyle="--", linewidth=1, label=figure.line[1])
    axes.set_yticks(range(count), figure.labels)
    axes.invert_yaxis()
    if logarithmic:
        axes.set_xscale("log")
        axes.set_xlim(min(all_known) / 2, max(all_known) * 3)
        _plain_ticks(axes, min(all_known) / 2, max(all_known) * 2)
    else:
        axes.set_xlim(left=0)
        axes.margins(x=0.15)
    axes.set_xlabel(_lines_of(figure.unit))
    if len(figure.series) > 1 or figure.line:
        below = -BELOW_AXIS / (axes.get_position().height * axes.figure.get_figheight())
        axes.legend(loc="upper left", bbox_to_anchor=(0.0, below), ncols=2, fontsize=SMALL_TEXT)


def _write_values(axes: Any, places: list[float], values: Sequence[float | None], figure: Bars) -> None:
    """Write each value after its bar, after its span if that is longer, or after the axes if a line may cross it."""
    spans: Sequence[Any] = figure.spans
    for number, (place, value) in enumerate(zip(places, values, strict=True)):
        if value is not None and figure.line:
            _write_after_axes(axes, place, plain_number(value))
        elif value is not None:
            end = max(value, spans[number][1]) if spans and spans[number] else value
            axes.annotate(
                plain_number(value), (end, place), (6, 0), textcoords="offset points", va="center", size=SMALL_TEXT
            )


def _lines(axes: Any, figure: Lines, colours: Colours) -> None:
    for number, (name, points) in enumerate(figure.series.items()):
        style = {"color": colours.of(name), "linestyle": "-" if number < len(PALETTE) else "--"}
        marker = MARKERS[number % len(MARKERS)] if len(points) <= 12 else None
        axes.plot(*zip(*points, strict=True), label=name, marker=marker, markersize=5, linewidth=1.6, **style)
    if figure.log_x:
        axes.set_xscale("log")
    elif all(isinstance(x, int) for points in figure.series.values() for x, _ in points):
        axes.xaxis.get_major_locator().set_params(integer=True)
    if figure.log_y:
        axes.set_yscale("log")
    axes.set_xlabel(figure.x)
    axes.set_ylabel(figure.y)
    axes.grid(color=INK, alpha=0.15)
    axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.18), ncols=1, fontsize=SMALL_TEXT)


def _for_a_page(text: str, number: int, words: str) -> str:
    """Return only the svg element: as wide as its container, with alternative text and unique ids."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    head, _, rest = text.partition(">")
    box = re.search(r'viewBox="[^"]*"', head)
    rest = re.sub(r'\bid="', f'id="f{number}-', rest)
    rest = rest.replace("url(#", f"url(#f{number}-").replace('href="#', f'href="#f{number}-')
    rest = rest.replace(INK, "currentColor")
    for place, colour in enumerate(PALETTE):  # the page's style makes them lighter in dark mode
        rest = rest.replace(colour, f"var(--c{place}, {colour})")
    # Text is of 11 to 15 pixels: on narrower screens the figure scrolls.
    width = float(box[0].split()[2]) if box else 0.0
    least, most = (width * pixels / SMALL_TEXT for pixels in (11, 15))
    style = f'style="width:{most:.0f}px;min-width:{least:.0f}px"'
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    role = f'role="img" aria-label="{escape(words, quote=True)}"'
    return f"<svg {box[0] if box else ''} {style} {role} {names}>{rest.rstrip()}"
