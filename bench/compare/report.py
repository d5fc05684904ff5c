"""Show a comparison as a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bench.compare.pairing import USUAL, Change, Comparison, common, label, short
from bench.compare.statistics import Ratio
from bench.page import tables, terminal
from bench.page.tables import Table
from bench.page.words import interval
from bench.results.document import SCHEMA_VERSION
from bench.results.records import plain

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN = 8


def document(comparison: Comparison) -> dict[str, Any]:
    """Return the output of `dtopt bench compare --json`."""
    members = plain(comparison)
    members["changes"] = [{**change, "name": dict(change["name"])} for change in members["changes"]]
    for which in ("only_first", "only_second"):
        members[which] = [dict(name) for name in members[which]]
    outcome = comparison.outcome
    return {
        "kind": "dtopt bench compare",
        "schema_version": SCHEMA_VERSION,
        "outcome": outcome,
        "of": members.pop("kind"),
        **members,
    }


def render(comparison: Comparison) -> list[RenderableType]:
    """Return what to print on a rich console, from top to bottom."""
    parts: list[RenderableType] = []
    if comparison.forced:
        parts.append(
            f"[bold red]Not comparable, shown because of --force:[/] {'; '.join(map(_plain, comparison.forced))}."
        )
    parts += [
        *_common(comparison),
        _table(comparison),
        "",
        *_machine(comparison),
        *_left_out(comparison),
        *_summary(comparison),
    ]
    if comparison.notes:
        parts.append(f"[yellow]Between the runs:[/] {'; '.join(map(_plain, comparison.notes))}.")
    return parts


def markdown(comparison: Comparison) -> str:
    """Return the same as Markdown, for a comment on a pull request."""
    from rich.text import Text

    headings = ("", *_headings(comparison), "")
    lines = zip(short([change.name for change in comparison.changes]), comparison.changes, strict=True)
    rows = [tuple(Text.from_markup(cell).plain for cell in (n, *_numbers(c), _remark(c))) for n, c in lines]
    first, *rest = render(comparison)
    forced = [first] if comparison.forced else []
    text = [Text.from_markup(part).plain for part in (*forced, *rest) if isinstance(part, str) and part]
    return "\n\n".join(["## dtopt bench compare", tables.markdown(Table("", headings, tuple(rows))), *text]) + "\n"


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _table(comparison: Comparison) -> RenderableType:
    table = terminal.table(("", *_headings(comparison), ""), whole=1)
    names = short([change.name for change in comparison.changes])
    for change, name in zip(comparison.changes, names, strict=True):
        table.add_row(name, *_numbers(change), _remark(change))
    return table


def _headings(comparison: Comparison) -> tuple[str, ...]:
    unit = "steps" if comparison.kind == "train" else "ms"
    return f"before, {unit}", f"after, {unit}", "ratio", "rounds"


def _numbers(change: Change) -> tuple[str, str, str, str]:
    scale = 1e3 if change.unit == "s" else 1.0
    first, second = ("-" if value is None else f"{value * scale:.3g}" for value in (change.first, change.second))
    if change.ratio is None:
        return first, second, "-", ""
    ratio = change.ratio
    shown = f"[{terminal.VERDICTS[ratio.verdict]}]{ratio.median:.2f}[/] {_plain(interval(ratio.low, ratio.high))}"
    return first, second, shown, str(ratio.rounds)


def _remark(change: Change) -> str:
    if change.ratio is None:
        return _plain(change.reason or "")
    unit = "in units of the memory bandwidth limit" if change.ratio.in_roofs else ""
    gate = {"above": "[bold red]regression[/]", "unclear": "[yellow]too noisy to judge[/]"}.get(change.gate or "", "")
    return ", ".join(word for word in (change.ratio.verdict, gate, unit) if word)


def _common(comparison: Comparison) -> Iterator[str]:
    """Yield the members that are the same in all rows."""
    if shared := common([change.name for change in comparison.changes]):
        yield f"Of each: {_plain(shared)}."


def _machine(comparison: Comparison) -> Iterator[str]:
    ratios: list[Ratio] = [change.ratio for change in comparison.changes if change.ratio]
    roofs = [ratio.roofs for ratio in ratios if ratio.roofs is not None]
    if roofs:
        furthest = max(roofs, key=lambda value: max(value, 1 / value))
        yield (
            f"The machine itself (memory bandwidth limits of the same rounds) took {furthest:.2f} times as long in the"
            " second run; the intervals allow for that."
        )
    unclear = sum(ratio.verdict == "unclear" for ratio in ratios)
    if unclear:
        yield f"{unclear} of {len(ratios)} are unclear: more --rounds, and a quieter machine, narrow the intervals."


def _left_out(comparison: Comparison) -> Iterator[str]:
    for which, names in (("first", comparison.only_first), ("second", comparison.only_second)):
        if names:
            shown = "; ".join(_plain(label(name, USUAL)) for name in names[:SHOWN])
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            yield f"Only in the {which} result: {shown}{more}."


def _summary(comparison: Comparison) -> Iterator[str]:
    if comparison.fail_above is None:
        return
    limit = (
        f"{comparison.fail_above:.3g}".rstrip("0").rstrip(".")
        if comparison.fail_above > 1
        else f"{comparison.fail_above:.1%}"
    )
    yield {
        "broken": "Something failed that had been measured before.",
        "nothing": "Nothing could be compared.",
        "regression": f"[bold red]Regression:[/] slower by more than {limit} for certain.",
        "noisy": f"[yellow]Too noisy:[/] a slowdown of more than {limit} cannot be excluded.",
        "ok": f"No slowdown of more than {limit}.",
    }[comparison.outcome]
