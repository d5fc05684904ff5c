"""Show a result as a table: what was measured, how fast each peer is, and whether the result is reliable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bench.cases.workloads import summary
from bench.measuring import accelerators, stats
from bench.measuring.rounds import Pace
from bench.page import terminal
from bench.page.words import of_the_time, size, three_digits
from bench.results.document import Result
from bench.results.records import Roof
from bench.step.agreement import Agreement
from bench.step.ratios import OURS
from bench.step.row import Row

if TYPE_CHECKING:
    from rich.console import RenderableType

REGIMES = {
    "cache": "the cache holds all of it",
    "mixed": "partly in cache",
    "dram": "in main memory",
    "unknown": "the size of the cache is unknown",
}
SHOWN_LAYOUT_NOTES = 3
SLEEPING = 1e-3
"""Seconds of CPU time that a process may use in a tenth of a second of sleep."""

DEVICE_HEADING = "GPU ms"

LONG = 9
"""Letters from which a heading leaves out the name of the baseline."""


def render(result: Result, reruns: bool = False) -> list[RenderableType]:
    """Return what to print on a rich console, from top to bottom; with `reruns` also the command of each row."""
    parts: list[RenderableType] = []
    for rows in _cases(result):
        case = (rows[0].workload, rows[0].optimizer)
        roofs = [roof for roof in result.roofs if (roof.workload, roof.optimizer) == case]
        parts += [*_head(rows), "", _table(rows), "", *_comparisons(rows), *_roof(rows[0], roofs)]
        parts += [
            *_agreement(rows),
            *filter(None, [waiting(rows), hosts(rows), on_device(rows), device_memory(rows)]),
            *_not_judged(rows),
            *_warnings(rows),
            *_left_out(rows),
            "",
        ]
    return [*parts, *_run(result), *(_reruns(result.rows) if reruns else ())]


def _cases(result: Result) -> Iterator[list[Row]]:
    """Return the rows of each workload and optimizer together, in the order of the run."""
    for key in dict.fromkeys((row.workload, row.optimizer) for row in result.rows):
        yield [row for row in result.rows if (row.workload, row.optimizer) == key]


def _head(rows: Sequence[Row]) -> Iterator[RenderableType]:
    from rich.text import Text

    row = rows[0]
    title = Text(f"One {row.optimizer} step on {row.workload}", style="bold")
    if known := summary(row.workload):
        title.append(f" ({known})", style="not bold")
    yield title
    yield (
        f"{row.parameters:,} {row.dtype} parameters in {row.tensors:,} tensors; mesh {row.mesh}, layout"
        f" {row.layout}, {row.device}; {row.threads} threads per peer"
    )
    if settings := options(row):
        yield f"With {', '.join(settings)}."
    notes = next((row.layout_notes for row in rows if row.layout_notes), ())
    yield from notes[:SHOWN_LAYOUT_NOTES]
    if len(notes) > SHOWN_LAYOUT_NOTES:
        yield f"and {len(notes) - SHOWN_LAYOUT_NOTES} more such tensors"


def options(row: Row) -> list[str]:
    """Describe in words what the step does in addition to the optimizer's rule; empty for defaults."""
    values = {
        "gradients clipped to {}": row.clip,
        "a moving average of momentum {}": row.ema,
        "{} gradients to a step": row.accumulate if row.accumulate > 1 else None,
        "weight decay {}": row.weight_decay,
        "slots placed {}": row.placement if row.placement != "like_variable" else None,
        "gradients of {:,} rows of each table": row.sparse_rows,
        "other rows left alone": True if row.lazy_rows else None,
        "the cache cleared before each step": True if row.cache == "cold" else None,
        "a small forward and backward pass": True if row.in_situ else None,
    }
    return [text.format(value) for text, value in values.items() if value is not None]


def _table(rows: Sequence[Row]) -> RenderableType:
    baseline = next((row.ratio.baseline for row in rows if row.ratio), "")
    share = ("share",) if any(row.step_share is not None for row in rows) else ()
    has_events = any(row.device_seconds is not None for row in rows)
    ratio = f"vs {baseline if len(baseline) < LONG else 'baseline'}" if baseline else ""
    headings = ("peer", "ms/step", ratio, "latency", "GB/s", "limit", *([DEVICE_HEADING] * has_events), *share, "")
    table = terminal.table(headings, whole=1, rather=(2,))
    if any("@" in row.peer for row in rows):  # two versions: names are long, and may go on in a second line
        table.columns[0].no_wrap = False
    for row in sorted(_measured(rows), key=lambda row: row.median or 0.0):
        name, *others = cells(row, bool(share), has_events)
        table.add_row(name.replace("@", " @"), *others, style="bold" if row.peer.startswith(OURS) else None)
    for row in rows:
        if row.status == "failed":
            table.add_row(row.peer, "failed", style="red")
    return table


def _measured(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.status == "ok"]


def cells(row: Row, with_share: bool = False, with_events: bool = False) -> tuple[str, ...]:
    """Return a measured row in rich's markup.

    The cells are peer, time, ratio, latency, speed, share of the memory bandwidth limit, remark. Time on the device and
    share of the step are added on request.
    """
    time = f"{_digits(row.median)} ±{_digits(row.mad)}"
    speed = f"{(row.bytes_per_second or 0.0) / 1e9:.1f}"
    roof = f"{row.roof_fraction:.0%}" if row.roof_fraction is not None else "-"
    alone = _digits(row.latency) if row.latency is not None else "-"
    share = ("-" if row.step_share is None else f"{row.step_share:.0%}",) if with_share else ()
    events = ("-" if row.device_seconds is None else _digits(row.device_seconds),) if with_events else ()
    return row.peer, time, _ratio(row), alone, speed, roof, *events, *share, _remark(row)


def plain_cell(cell: str) -> str:
    """Return a cell without markup."""
    from rich.text import Text

    return Text.from_markup(cell).plain


def _ratio(row: Row) -> str:
    if row.ratio is None or row.ratio.baseline == row.peer:
        return "1" if row.ratio else "-"
    return shown_ratio(row.ratio)


def shown_ratio(ratio: stats.Ratio) -> str:
    """Return a ratio in rich's markup, coloured by its verdict."""
    edges = "" if ratio.low is None or ratio.high is None else ", ".join(map(three_digits, (ratio.low, ratio.high)))
    # Without the backslash rich would read the bracket as markup.
    return f"[{terminal.VERDICTS[ratio.verdict]}]{three_digits(ratio.median)}[/]" + (f" \\[{edges}]" if edges else "")


def _remark(row: Row) -> str:
    verdict = ""
    if row.ratio:
        verdict = "baseline" if row.ratio.baseline == row.peer else judged(row.ratio)
    return ", ".join(word for word in (verdict, row.note) if word)


def judged(ratio: stats.Ratio) -> str:
    """Return the verdict in a word."""
    return ratio.verdict if ratio.low is not None or ratio.why else "not judged"


def _digits(seconds: float | None) -> str:
    """Format milliseconds with three digits, more than the precision of the median of a few samples."""
    return three_digits((seconds or 0.0) * 1e3)


def answer(rows: Sequence[Row]) -> str | None:
    """Answer the main question in a sentence of plain text: our fastest peer against each other one."""
    ours = [row for row in _measured(rows) if row.beside]
    if not ours:
        return None
    best = min(ours, key=lambda row: row.median or 0.0)
    by_verdict: dict[str, list[stats.Ratio]] = {}
    for ratio in best.beside:
        by_verdict.setdefault(WORDS[judged(ratio)], []).append(ratio)
    parts = [f"{word} {_others(ratios)}" for word, ratios in by_verdict.items()]
    return f"{best.peer} makes a step in {_digits(best.median)} ms: {'; '.join(parts)}."


WORDS = {
    "faster": "faster than",
    "slower": "slower than",
    "same": "as fast as",
    "unclear": "unclear against",
    "not judged": "not judged against",
}
"""Verdicts in a sentence."""


def _others(ratios: Sequence[stats.Ratio]) -> str:
    """Name each peer with its ratio; if there are many, only count them, because the picture shows them."""
    if len(ratios) <= FEW:
        return ", ".join(f"{ratio.baseline} ({_times(ratio)})" for ratio in ratios)
    medians = [ratio.median for ratio in ratios]
    return f"{len(ratios)} peers ({min(medians):.0%} to {max(medians):.0%} of the time)"


FEW = 3


def _times(ratio: stats.Ratio) -> str:
    return of_the_time(ratio.median, ratio.low, ratio.high)


def _comparisons(rows: Sequence[Row]) -> Iterator[RenderableType]:
    """Compare our peers with every other one; with many of ours, only the fastest. Add why a ratio has no verdict."""
    from rich.markup import escape

    ours = sorted((row for row in _measured(rows) if row.beside), key=lambda row: row.median or 0.0)
    for row in ours[: len(ours) if len(ours) <= FEW else 1]:
        parts = (f"{of_the_time(r.median, r.low, r.high)} of {r.baseline}" for r in row.beside)
        yield escape(f"{row.peer} takes {'; '.join(parts)}.")
    for why in dict.fromkeys(r.why for row in rows for r in (*row.beside, row.ratio) if r and r.why):
        yield f"[yellow]No verdict:[/] {why}."


def _roof(row: Row, roofs: Sequence[Roof]) -> Iterator[RenderableType]:
    yield (
        f"A step moves at least {row.bytes_per_parameter:.3g} bytes per parameter; {row.working_set / 1e6:,.0f} MB"
        f" of parameters, gradients and slots, {REGIMES[row.regime]}, cache {row.cache}."
    )
    if row.touched_bytes is not None:
        dense = row.bytes_per_parameter * row.parameters
        yield (
            f"With dense gradients: {dense / 1e6:,.0f} MB; the touched rows are {row.touched_bytes / 1e6:,.1f} MB."
            " GB/s and the share of the memory bandwidth limit count the dense bytes."
        )
    if roofs:
        yield f"Memory bandwidth limit: {best_roof(row, roofs)}."


def best_roof(row: Row, roofs: Sequence[Roof]) -> str:
    """Return the highest memory bandwidth, and how it was measured."""
    best = max(roofs, key=lambda roof: roof.bytes_per_second)
    if row.device != "cpu":
        return f"{best.bytes_per_second / 1e9:.1f} GB/s, copied on the device in the same rounds"
    kind = best.name.removeprefix("roof: ")
    return f"{best.bytes_per_second / 1e9:.1f} GB/s, moved in place in the same rounds ({kind})"


def _agreement(rows: Sequence[Row]) -> Iterator[RenderableType]:
    compared = [(row.peer, row.agreement) for row in _measured(rows) if row.agreement]
    custom = [peer for peer, agreement in compared if not agreement.tolerance]  # `agreement.moves` allows no error
    errors = [(a.error, a) for _, a in compared if a.tolerance and a.error is not None]
    if custom:
        yield f"Not compared, for lack of a reference: {', '.join(custom)}. Steps move every tensor."
    if errors:
        error, worst = max(errors, key=lambda pair: pair[0])
        whole = len(errors) + len(custom) == len(_measured(rows))
        who = "the compared peers" if not whole else "all other peers" if custom else "all peers"
        within = f"within {error:.0e} of the movement" if error else "to the last rounding"
        yield (
            f"Agreement: {who} match the float64 reference {within}"
            f" after {worst.steps} steps ({worst.elements:,} elements compared, of {_tensors_of(worst)})."
        )


def _tensors_of(agreement: Agreement) -> str:
    left = agreement.unchecked
    return f"every tensor but the {left} largest" if left else "every tensor"


def waiting(rows: Sequence[Row]) -> str | None:
    """Describe in a sentence what peers' threads do during the turns of others; None if that was not measured."""
    known = [(row.peer, row.spins) for row in _measured(rows) if row.spins is not None]
    awake = [f"{peer} ({_digits(spins)} ms of CPU time)" for peer, spins in known if spins > SLEEPING]
    if not awake:
        return "After a step the threads of all peers sleep until the next." if known else None
    others = "; those of all others sleep at once" if len(awake) < len(known) else ""
    return f"After a step threads of {', '.join(awake)} spin before they sleep{others}."


def hosts(rows: Sequence[Row]) -> str | None:
    """Describe in a sentence how soon peers' calls return on an asynchronous device."""
    known = [row for row in _measured(rows) if row.host is not None and row.device != "cpu"]
    if not known:
        return None
    parts = (f"{row.peer} after {_digits(row.host)} of {_digits(row.latency)} ms" for row in known)
    return f"The call of a step that is waited for returns, and leaves the device to work: {', '.join(parts)}."


def on_device(rows: Sequence[Row]) -> str | None:
    """Describe in a sentence of plain text how long steps take by the GPU's clock, and which peers lack that
    time."""
    timed = [row for row in _measured(rows) if row.device_seconds is not None]
    others = [f"{row.peer} ({row.clock})" for row in _measured(rows) if row.device != "cpu" and row not in timed]
    parts = []
    for row in timed:
        limit = row.device_roof_fraction
        share = f", {limit:.0%} of the memory bandwidth limit" if limit is not None else ""
        parts.append(f"{row.peer} {_digits(row.device_seconds)} ms{share} ({row.clock.partition('; ')[2]})")
    without = f"No GPU time available: {', '.join(others)}." if timed and others else ""
    return " ".join(filter(None, [f"Time on the GPU: {'; '.join(parts)}." if parts else "", without])) or None


def device_memory(rows: Sequence[Row]) -> str | None:
    """State in a sentence of plain text the peak of each peer's device memory."""
    known = [f"{row.peer} {size(row.device_peak_bytes)}" for row in _measured(rows) if row.device_peak_bytes]
    return f"Device memory, at most: {', '.join(known)}." if known else None


def _warnings(rows: Sequence[Row]) -> Iterator[RenderableType]:
    doubtful = [f"{row.peer} ({', '.join(row.warnings)})" for row in rows if row.warnings]
    if doubtful:
        yield f"[yellow]Warnings:[/] {'; '.join(doubtful)}."


def _left_out(rows: Sequence[Row]) -> Iterator[RenderableType]:
    from rich.text import Text

    for row in rows:
        if row.status != "ok":
            line = Text(f"{row.status.capitalize()} ", style="red" if row.status == "failed" else "dim")
            yield line.append(f"{row.peer}: {row.reason}")


def _not_judged(rows: Sequence[Row]) -> Iterator[RenderableType]:
    """Show how to get an interval for ratios without one."""
    ratios = [row.ratio for row in _measured(rows) if row.ratio and row.ratio.baseline != row.peer]
    without = [ratio for ratio in ratios if ratio.low is None]
    if without:
        least = Pace().least(len(ratios))
        yield (
            f"[yellow]Not judged:[/] {len(without)} of {len(ratios)} ratios: {without[0].rounds} rounds are too few"
            f" for so many intervals. Use --rounds {least}."
        )


def _run(result: Result) -> Iterator[RenderableType]:
    context = result.context
    packages = ", ".join(f"{name} {version}" for name, version in context["packages"].items())
    gpus = "".join(f"{gpu['name']}, driver {gpu['driver_version']}; " for gpu in context.get("accelerators", ()))
    yield f"{gpus}{context['cpu']}, {context['cpus']} CPUs; Python {context['python']}, {packages}."
    yield from filter(
        None, [accelerators.sentence(context.get("accelerators", ()), context.get("accelerators_after", ()))]
    )
    processes = context.get("processes", 1)
    many = f"{processes} processes" if processes > 1 else "one process"
    forked = ", forked from one that had imported TensorFlow" if "forked" in context.get("starts", ()) else ""
    yield (
        f"{context['rounds']} rounds in random order (seed {context['order_seed']}), {many} of each peer{forked},"
        f" {context['seconds']:.0f} s in all."
    )
    if len(context.get("starts", ())) > 1:
        yield "[yellow]Memory cannot be compared:[/] some processes were forked from one, others started separately."
    if processes == 1:
        yield (
            "With one process per peer, process-to-process variation is unknown; intervals assume 10%. To measure it,"
            " use more --processes or a longer --budget."
        )
    if context["busy"]:
        yield "[yellow]Other programs were running,[/] so the times in ms are too high."
    if result.interrupted:
        yield "[yellow]Interrupted:[/] only what was measured until then is shown."


def _reruns(rows: Sequence[Row]) -> Iterator[RenderableType]:
    from rich.text import Text

    again = [row for row in rows if row.status in ("ok", "failed")]
    if again:
        yield ""
        yield "One row again:"
    for row in again:
        yield Text(f"  {row.rerun}", style="dim")
