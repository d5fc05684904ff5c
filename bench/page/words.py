"""Format numbers as text: the same on a terminal and on a page."""

from __future__ import annotations


def size(count: int) -> str:
    """Format bytes with three digits: `13.5 GB`."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{three_digits(count / factor)} {unit}"
    return f"{count} B"


def interval(low: float | None, high: float | None, form: str = "{:.2f}") -> str:
    """Format `[0.98, 1.02]`; empty without an interval."""
    return "" if low is None or high is None else f"[{form.format(low)}, {form.format(high)}]"


def with_interval(middle: float, low: float | None, high: float | None, form: str = "{:.2f}") -> str:
    """Format `1.00 [0.98, 1.02]`."""
    return f"{form.format(middle)} {interval(low, high, form)}".rstrip()


def three_digits(value: float) -> str:
    """Format `1.23`, `12.3`, `123`."""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def duration(seconds: float) -> str:
    """Format `12.3 ms`, `1.23 s`, `12.3 min`, `2.31 h`."""
    if seconds < 1:
        return f"{three_digits(seconds * 1e3)} ms"
    for unit, factor in (("s", 1), ("min", 60), ("h", 3600)):
        if seconds < 600 * factor or unit == "h":
            return f"{three_digits(seconds / factor)} {unit}"
    return ""


def speed(ratio: float) -> str:
    """Format a ratio of times: `4.2x as fast` for less time, `1.3x the time` for more."""
    return f"{_two_digits(1 / ratio)}x as fast" if ratio < 1 else f"{_two_digits(ratio)}x the time"


def of_the_time(ratio: float, low: float | None, high: float | None) -> str:
    """Format `24% [12%, 40%] of the time`."""
    return f"{with_interval(ratio, low, high, '{:.0%}')} of the time"


def _two_digits(value: float) -> str:
    """Format `1.02`, `1.3`, `4.2`, `42`: two digits, and three if they are needed to differ from one."""
    return f"{value:.{2 if value < 1.2 else 1 if value < 10 else 0}f}"


def plain_number(value: float) -> str:
    """Format `0.00123`, `12.3`, `1,234`."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def short_mesh(mesh: str) -> str:
    """Format `8x1` for `batch=8,model=1`, which `--mesh` accepts, too; keep meshes of other axes unchanged."""
    axes = [axis.partition("=") for axis in mesh.split(",")]
    plain = [axis for axis, _, _ in axes] == ["batch", "model"]
    return "x".join(count for _, _, count in axes) if plain else mesh
