"""Every table on a terminal: whole at 80 columns, and nothing cut at 60."""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from bench.compare import pairing
from bench.compare import report as of_comparison
from bench.history import report as of_history
from bench.history import trend
from bench.kinds import KINDS
from bench.results.document import Result
from tests.test_bench.page.test_page import RESULTS

FOLDERS = {"plan": "forecast", "migrate": "migration"}
OF_A_RUN = {"client": None, "interleaved": True}


def reports() -> Iterator[tuple[str, list[Any]]]:
    for name, result in RESULTS:
        found = importlib.import_module(f"bench.{FOLDERS.get(result.kind, result.kind)}.report")
        run: Any = replace(result, context={**result.context, **OF_A_RUN})
        yield name, found.render(run.rows if result.kind == "plan" else run)
    step = RESULTS[0][1]
    yield "compare", of_comparison.render(pairing.compare(step, step, fail_above=0.1))
    yield "history", of_history.render(trend.trends([("a.json", step), ("b.json", step)]))


REPORTS = dict(reports())


def printed(parts: list[Any], width: int) -> list[str]:
    text = io.StringIO()
    console = Console(file=text, width=width)
    for part in parts:
        console.print(part)
    return text.getvalue().splitlines()


def cells(part: Table) -> set[str]:
    """The words of a table, markup taken away."""
    from rich.text import Text

    found = [cell for column in part.columns for cell in (column.header, *column.cells)]
    return {
        w for cell in found for w in (Text.from_markup(cell).plain if isinstance(cell, str) else cell.plain).split()
    }


def test_every_kind_has_a_report_here() -> None:
    assert {result.kind for _, result in RESULTS} == set(KINDS)


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("width", [60, 80])
def test_nothing_is_cut_and_nothing_runs_over(name: str, width: int) -> None:
    tables = [part for part in REPORTS[name] if isinstance(part, Table)]
    assert tables
    lines = printed(REPORTS[name], width)
    assert max(map(len, lines)) <= width
    assert not [line for line in lines if "…" in line]
    for table in tables:
        together = "".join(sorted("".join(printed([table], width)).replace(" ", "")))
        assert together == "".join(sorted("".join(printed([table], 1000)).replace(" ", "")))


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("width", [60, 80])
def test_no_word_is_broken(name: str, width: int) -> None:
    for table in (part for part in REPORTS[name] if isinstance(part, Table)):
        words = set(" ".join(printed([table], width)).split())
        assert cells(table) <= words


@pytest.mark.parametrize("name", ["step.json", "scale.json", "roof.json", "plan.json"])
def test_rows_of_numbers_are_single_lines_at_80_columns(name: str) -> None:
    for table in (part for part in REPORTS[name] if isinstance(part, Table)):
        assert len(printed([table], 80)) == 1 + table.row_count


@pytest.mark.parametrize(("width", "whole"), [(60, False), (80, True)])
def test_versions_have_whole_intervals_where_there_is_room(width: int, whole: bool) -> None:
    from bench.step import report

    run: Result = RESULTS[0][1]
    names = dict(
        zip(dict.fromkeys(row.peer for row in run.rows), ("optim-native", "optim-native@24e5948fb1"), strict=False)
    )
    rows = tuple(replace(row, peer=names[row.peer]) for row in run.rows if row.peer in names)
    (table,) = (part for part in report.render(replace(run, rows=rows)) if isinstance(part, Table))
    lines = printed([table], width)
    assert cells(table) <= set(" ".join(lines).split())
    assert any("[" in line and "]" in line for line in lines) == whole


def test_a_model_of_one_s_own_is_reported(tmp_path: Path) -> None:
    from bench.step import page, report

    run: Result = RESULTS[0][1]
    own = replace(run, rows=tuple(replace(row, workload="model.h5") for row in run.rows))
    assert "One adam step on model.h5\n" in "\n".join(printed(report.render(own), 80))
    assert "model.h5" in next(iter(page.sections(own))).title
