"""No number in docs/benchmarks.md that its results files do not hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.kinds import prose as table
from tests.places import RESULTS, ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
SOURCE = RESULTS / "step-v1.json"


def page(folder: Path, text: str) -> Path:
    (folder / "page").mkdir()
    (folder / "page" / "run.json").write_text(SOURCE.read_text())
    found = folder / "page.md"
    found.write_text(text)
    return found


def test_the_page_holds_no_number_without_a_source() -> None:
    """Once the page is there: until then every results folder must be absent too."""
    if PAGE.exists():
        assert table.problems(PAGE) == []
    else:
        assert not table.folder_of(PAGE).exists()


def test_tables_are_made_from_the_file(tmp_path: Path) -> None:
    made = page(tmp_path, "# Run of 2026\n\n<!-- table: run.json -->\n<!-- end -->\n")
    assert table.problems(made) == ["a table differs from its results file: run `dtopt bench report --into`"]
    table.fill(made)
    text = made.read_text()
    rows = {row["peer"]: row for row in json.loads(SOURCE.read_text())["rows"]}
    assert f"| optim-local | {rows['optim-local']['median'] * 1e3:.0f} ±" in text
    assert "| tf_keras-mesh | failed | | | | | gave no answer within 300 s" in text
    assert table.problems(made) == []
    made.write_text(text.replace("| optim-local | 1", "| optim-local | 2"))
    assert len(table.problems(made)) == 1


@pytest.mark.parametrize(
    ("claim", "problem"),
    [
        ("{ms:.1f} ms <!-- run.json rows[peer=optim-local].median -->", ""),
        ("{ms:.0f} ms <!-- run.json rows[0].median -->", ""),
        ("64,000 <!-- run.json rows[peer=optim-local].parameters --> parameters", ""),
        ("Python 3.11 <!-- run.json context.python -->", ""),
        ("{ratio:.2f} <!-- run.json rows[0].median / rows[peer=torch-fused].median -->", ""),
        ("`-w resnet50` and [a link](page2.md)", ""),
        ("1.5 ms <!-- run.json rows[peer=optim-local].median -->", "is 0."),
        ("2 cores", "2: names no source"),
        ("GPT-2 and float64", ""),
        ("3 <!-- run.json rows[peer=nobody].threads -->", "0 of"),
        ("3 <!-- run.json context.nothing -->", "no 'nothing'"),
        ("3 <!-- other.json context.cpus -->", "No such file"),
        ("Python 3.1 <!-- run.json context.python -->", "is '3.11.7'"),
    ],
)
def test_numbers_of_the_text(claim: str, problem: str, tmp_path: Path) -> None:
    rows = {row["peer"]: row for row in json.loads(SOURCE.read_text())["rows"]}
    mine, other = rows["optim-local"]["median"], rows["torch-fused"]["median"]
    found = table.problems(
        page(tmp_path, f"# Run of 2026\n\nIt is {claim.format(ms=mine * 1e3, ratio=mine / other)}.\n")
    )
    assert len(found) == bool(problem)
    assert problem in "".join(found)
