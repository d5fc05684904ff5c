"""Results under names, change points, and the page of trends."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import html5lib
import numpy as np
import pytest
from typer.testing import CliRunner

from bench.errors import IncomparableError, ResultsError
from bench.history.changes import FEWEST, changes
from bench.history.trend import trends
from bench.kinds import load
from bench.results import document, store
from bench.results.document import Result
from dtopt_cli.commands.bench import app
from tests.places import RESULTS

RECORDED = load(RESULTS / "aa-5.json")


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "kept"))
    return tmp_path / "kept"


def run(number: int, factor: float = 1.0, machine: str = "one", dates: str = "2026-01-{:02d}T00:00:00+00:00") -> Result:
    """The recorded run as if commit `number` had made it, its rows, but not its roofs, slower by a factor."""
    context = {
        **RECORDED.context,
        "started": dates.format(number),
        "identity": machine,
        "source": {"commit": f"c{number:09d}"},
    }

    def slower(row: Any) -> Any:
        samples = tuple(replace(s, seconds=s.seconds * factor) for s in row.samples)
        speed = (row.bytes_per_second or 0.0) / factor
        return replace(row, samples=samples, median=row.median * factor, mad=row.mad * factor, bytes_per_second=speed)

    return replace(RECORDED, context=context, rows=tuple(map(slower, RECORDED.rows)))


def keep(count: int, slower_from: int = 99) -> None:
    random = np.random.default_rng(0)
    for number in range(1, count + 1):
        factor = float(np.exp(random.normal(0, 0.01))) * (1.1 if number >= slower_from else 1.0)
        document.save(run(number, factor), Path("@main"))


def test_steady_noise_has_no_change_even_with_outliers() -> None:
    """At most 2 in 100 series; so no more than 9 of 200, which 99% of such draws keep to."""
    random = np.random.default_rng(1)
    for noise in (random.normal(0, 0.05, (200, 25)), 0.02 * random.standard_t(2, (200, 25))):
        assert sum(bool(changes(list(np.exp(series)))) for series in noise) <= 9


@pytest.mark.parametrize("at", [2, 12, 23])
def test_a_tenth_is_found_where_it_happened(at: int) -> None:
    """In 25 runs that differ by 2% by themselves, from the second run after it on; 9 in 10 of 100."""
    random = np.random.default_rng(2)
    found = 0
    for _ in range(100):
        series = np.exp(random.normal(0, 0.02, 25))
        series[at:] *= 1.1
        each = changes(list(series))
        found += len(each) == 1 and abs(each[0].at - at) <= 1 and abs(each[0].factor - 1.1) < 0.05
    assert found >= 90


def test_two_changes_are_two_and_small_ones_none() -> None:
    random = np.random.default_rng(3)
    series = np.exp(random.normal(0, 0.005, 40))
    series[10:25] *= 1.3
    assert [(c.at, round(c.factor, 1)) for c in changes(list(series))] == [(10, 1.3), (25, 0.8)]
    small = np.exp(random.normal(0, 0.001, 40))
    small[20:] *= 1.02
    assert changes(list(small)) == []
    assert changes([1.0] * (FEWEST - 1 - 4) + [2.0] * 4) == []


def test_a_name_holds_every_result_and_stands_for_the_newest(kept: Path) -> None:
    document.require_writable(Path("@main"))
    keep(3)
    document.save(run(3, 2.0), Path("@main"))  # the same time and commit again
    assert len(store.files(Path("@main"))) == 4
    assert load(Path("@main")) == run(3, 2.0)
    assert load(Path("@main:c000000002")).context["source"]["commit"] == "c000000002"
    with pytest.raises(ResultsError, match="no result of commit beef"):
        load(Path("@main:beef"))
    with pytest.raises(ResultsError, match=r"no result is stored as @other \(stored names: @main\)"):
        load(Path("@other"))
    for wrong in ("@../x", "@", "@a/b"):
        with pytest.raises(ResultsError, match="is no name"):
            document.require_writable(Path(wrong))


def test_rows_of_machines_stay_apart_and_are_taken_in_units_of_the_roofs() -> None:
    found = trends([(f"{n}.json", run(n, machine=m)) for n, m in ((2, "one"), (1, "one"), (3, "two"))])
    assert {(t.machine, len(t.points), t.unit) for t in found} == {("one", 2, "roofs"), ("two", 1, "roofs")}
    assert [p.commit for p in found[0].points] == ["c000000001", "c000000002"]
    assert all(p.low <= p.value <= p.high for t in found for p in t.points)
    with pytest.raises(IncomparableError, match="no row that was measured"):
        trends([("a.json", replace(RECORDED, rows=()))])


def test_history_says_since_when_and_makes_a_page(tmp_path: Path) -> None:
    keep(14, slower_from=8)
    done = CliRunner().invoke(app, ["history", "@main"], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    assert "slower since c000000008 (run 8, 2026-01-08); before it c000000007" in done.stdout
    found = json.loads(CliRunner().invoke(app, ["history", "@main", "--json"]).stdout)
    assert all(t["changes"][0]["at"] == 7 and len(t["points"]) == 14 for t in found["trends"])
    assert "since c000000008" in CliRunner().invoke(app, ["history", "@main", "--markdown"]).stdout
    page = tmp_path / "trend.html"
    assert CliRunner().invoke(app, ["history", "@main", "--output", str(page)]).exit_code == 0
    html5lib.HTMLParser(strict=True).parse(page.read_text())
    assert page.read_text().count("<svg") == 1


def test_history_without_a_name_lists_them_and_few_runs_say_so() -> None:
    assert "Nothing is kept" in CliRunner().invoke(app, ["history"]).stdout
    keep(2)
    assert CliRunner().invoke(app, ["history"]).stdout == "@main: 2 results\n"
    said = CliRunner().invoke(app, ["history", "@main"]).stdout
    assert "fewer than 10 runs" in said


def test_compare_takes_names_and_prints_markdown() -> None:
    keep(2)
    document.save(run(3, 2.0), Path("@branch"))
    done = CliRunner().invoke(app, ["compare", "@main", "@branch", "--markdown", "--fail-above", "10%"])
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[2] == "|  | before, ms | after, ms | ratio | rounds |  |".replace("|  |", "| |")
    assert "slower, regression" in done.stdout
    assert "Regression: slower by more than 10.0% for certain." in lines
    assert "[bold" not in done.stdout
