"""Build the page sections of `dtopt bench train`: for each problem its curves, its learning rates and its table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from bench.page.section import Figure, Lines, Section
from bench.page.tables import Table
from bench.page.words import with_interval
from bench.results.document import Result
from bench.train.row import Row


def sections(result: Result) -> Iterator[Section]:
    """Yield one section for each problem."""
    for problem in dict.fromkeys(row.problem for row in result.rows):
        rows = [row for row in result.rows if row.problem == problem]
        first = rows[0]
        text = (
            f"Target: loss {first.target:.4g}, within {first.budget:,} steps, over {max(len(row.runs) for row in rows)}"
            " seeds. Every peer is given the same gradients, so only its step differs. A miss counts as later than"
            " any.",
        )
        yield Section(
            f"Training to a target: {problem}",
            text,
            (table(rows),),
            tuple(_figures([row for row in rows if row.status == "ok"])),
            tuple(row.rerun for row in rows),
        )


def table(rows: Sequence[Row]) -> Table:
    headings = ("optimizer", "peer", "mesh", "learning rate", "reached", "steps to target", "seconds", "vs first", "")
    caption = "Steps and seconds to the target: medians over seeds with 95% intervals"
    return Table(caption, headings, tuple(map(_cells, rows)), text=3)


def _cells(row: Row) -> tuple[str, ...]:
    head = (row.optimizer, row.peer, row.mesh, f"{row.learning_rate:g}")
    if row.status != "ok":
        return (*head, "", "", "", "", f"{row.status}: {row.reason}")
    seconds = "-" if row.median_seconds is None else f"{row.median_seconds:.3g}"
    ratio = row.ratio
    shown = "-" if ratio is None else with_interval(ratio.median, ratio.low, ratio.high)
    remark = ", ".join(["best"] * row.best + [f"{lost} diverged" for lost in [_diverged(row)] if lost])
    return (*head, f"{row.reached}/{len(row.runs)}", steps(row), seconds, shown, remark)


def _diverged(row: Row) -> int:
    return sum(run.diverged for run in row.runs)


def steps(row: Row) -> str:
    """Format `120 [100, 160]`; a miss is a dash."""
    if row.median_steps is None:
        return "missed"
    low, high = ("-" if edge is None else f"{edge:.0f}" for edge in (row.low_steps, row.high_steps))
    return f"{row.median_steps:.0f} [{low}, {high}]"


def _figures(rows: Sequence[Row]) -> Iterator[Figure]:
    best = [row for row in rows if row.best]
    curves = {f"{_name(row)} {row.learning_rate:g}": _curve(row) for row in best}
    if any(curves.values()):
        yield Lines(
            "Learning curves, best learning rates, median of the seeds",
            _with_points(curves),
            "steps",
            "loss",
            log_y=True,
        )
    if len({row.learning_rate for row in rows}) > 1:
        names = dict.fromkeys(map(_name, rows))
        by_rate = {
            name: [(row.learning_rate, row.median_steps) for row in rows if _name(row) == name and row.median_steps]
            for name in names
        }
        if any(by_rate.values()):
            title = "Sensitivity to the learning rate (rates that miss the target are left out)"
            yield Lines(title, _with_points(by_rate), "learning rate", "steps to target", log_x=True, log_y=True)


def _with_points(series: dict[str, list[tuple[float, float]]]) -> dict[str, Sequence[tuple[float, float]]]:
    return {name: points for name, points in series.items() if points}


def _name(row: Row) -> str:
    return f"{row.optimizer} {row.peer} {row.mesh}"


def _curve(row: Row) -> list[tuple[float, float]]:
    """Return the median loss of the seeds at each step that all have."""
    by_step: dict[int, list[float]] = {}
    for run in row.runs:
        for point in run.curve:
            by_step.setdefault(point.step, []).append(point.value)
    whole = {step: losses for step, losses in by_step.items() if len(losses) == len(row.runs)}
    return [
        (step, median(losses)) for step, losses in sorted(whole.items()) if all(x > 0 and x - x == 0 for x in losses)
    ]
