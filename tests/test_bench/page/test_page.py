"""The page, Markdown and CSV: valid, self-contained, accessible, every number in a table."""

from __future__ import annotations

import csv
import importlib.util
import io
import re
from dataclasses import replace
from typing import Any

import html5lib
import pytest

from bench.forecast import query
from bench.kinds import KINDS, load
from bench.kinds import page as make
from bench.measuring.stats import Ratio
from bench.migration.row import COMMANDS, Command, OfCopy
from bench.migration.row import Row as MigrateRow
from bench.page import tables
from bench.page.tables import Table
from bench.page.words import duration, of_the_time, speed
from bench.results.document import Result
from bench.results.records import Sample
from bench.roof.row import Row as RoofRow
from bench.scale.row import Efficiency
from bench.scale.row import Row as ScaleRow
from bench.train.row import Point, Run
from bench.train.row import Row as TrainRow
from optim.errors import UnsupportedError
from tests import places

STEP = load(places.RESULTS / "aa-6.json")
SAMPLES = tuple(Sample(0, i, 0, 10, 0.01 + 0.001 * i) for i in range(5))
SVG = "{http://www.w3.org/2000/svg}"
HTML = "{http://www.w3.org/1999/xhtml}"


def scaling() -> Result:
    common: dict[str, Any] = {
        "workload": "gpt2:layer", "optimizer": "adam", "clients": 1, "layout": "megatron", "placement": "zero1",
        "clip": "none", "ema": False, "scaling": "strong", "device": "cpu", "threads": 2, "copies": 1,
        "parameters": 7, "tensors": 2, "device_bytes": 160, "parameter_bytes": 40, "slot_bytes": 80,
        "device_sent_bytes": 11, "predicted_sent_bytes": 12, "rerun": "dtopt bench scale",
    }  # fmt: skip
    good = ScaleRow(**common, mesh="batch=1", devices=1, status="ok", reason=None, samples=SAMPLES, median=0.012,
                    mad=0.001, efficiency=Efficiency("batch=1", 1.0, 0.9, 1.1, 5))  # fmt: skip
    bad = ScaleRow(**common, mesh="batch=2", devices=2, status="failed", reason="client 1 <died>")
    return Result(STEP.context, (), (good, bad), kind="scale")


def training() -> Result:
    curve = tuple(Point(step, 2.0 / (1 + step), 0.001 * step) for step in range(0, 50, 10))
    runs = tuple(Run(seed, 40, 0.04, curve, False, 0.03, 0.01, 0.002, 0.005) for seed in range(3))
    row = TrainRow("teacher", "adam", 0.01, "good", "model=1", "megatron", "cpu", 2, 1, 0.05, 100, "ok", None,
                   "dtopt bench train", None, runs, 3, 40.0, 40.0, 40.0, 0.04, True,
                   Ratio("good model=1", 1.0, 1.0, 1.0, 3, "unclear"))  # fmt: skip
    lost = tuple(replace(run, steps=None, seconds=None) for run in runs)
    missed = replace(row, learning_rate=0.1, runs=lost, reached=0, median_steps=None, best=False, ratio=None)
    return Result(STEP.context, (), (row, replace(row, learning_rate=0.03, best=False), missed), kind="train")


def migration() -> Result:
    found = tuple(Command(name, (1.0, 1.1), 1.05, 2.0e8, None if name.startswith("cp") else 10**8) for name in COMMANDS)
    row = MigrateRow("h5", 10**9, "ok", None, "dtopt bench migrate", 10**9, 10**7, found, OfCopy(0.8, 0.7, 0.9, 2),
                     OfCopy(0.9, 0.8, 1.0, 2))  # fmt: skip
    failed = MigrateRow("keras", 10**9, "failed", "it <broke>", "dtopt bench migrate")
    return Result(STEP.context, (), (row, failed), kind="migrate")


def roofs() -> Result:
    row = RoofRow("a += b", 2, 10**8, "dram", 10**8, SAMPLES, 0.012, 0.001, 1.0e10, "dtopt bench roof")
    return Result(STEP.context, STEP.roofs, (row,), kind="roof")


def plans() -> Result:
    return query.answer(workload="gpt2", devices=2, memory="3GB", bandwidth="10GB/s", link=("1GB/s",))


RESULTS = [
    ("step.json", STEP),
    ("old.json", load(places.RESULTS / "step-v1.json")),
    ("scale.json", scaling()),
    ("train.json", training()),
    ("migrate.json", migration()),
    ("roof.json", roofs()),
    ("plan.json", plans()),
]


@pytest.fixture(scope="module")
def page() -> str:
    return make.html(RESULTS)


@pytest.fixture(scope="module")
def tree(page: str) -> Any:
    """Parsed as browsers do; anything that they would have to repair is an error."""
    return html5lib.HTMLParser(strict=True).parse(page)


def texts(element: Any) -> str:
    return " ".join("".join(element.itertext()).split())


def test_every_kind_of_result_is_shown() -> None:
    assert {result.kind for _, result in RESULTS} == set(KINDS)


def test_it_asks_for_nothing_beside_itself(page: str, tree: Any) -> None:
    assert "default-src 'none'" in page
    assert not re.findall(r"<(script|link|img|iframe|object|embed|base)\b", page)
    assert not re.findall(r"url\((?!#)|@import", page)
    for element in tree.iter():
        for name, value in element.attrib.items():
            if str(name).endswith(("href", "src")):
                assert value.startswith("#"), (element.tag, name, value)


def test_ids_are_unique_and_references_lead_somewhere(page: str, tree: Any) -> None:
    ids = [element.get("id") for element in tree.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)
    assert {link.get("href")[1:] for link in tree.iter(f"{HTML}a")} <= set(ids)


def test_it_says_its_language_fits_phones_and_print_and_both_schemes(page: str, tree: Any) -> None:
    assert tree.get("lang") == "en"
    assert 'content="width=device-width, initial-scale=1"' in page
    assert "@media print" in page
    assert "prefers-color-scheme: dark" in page


def test_figures_have_words_and_the_page_s_colour(page: str, tree: Any) -> None:
    drawn = list(tree.iter(f"{SVG}svg"))
    assert len(drawn) >= 12
    for picture in drawn:
        assert picture.get("role") == "img"
        assert len(picture.get("aria-label")) > 20
        assert picture.get("viewBox")
        assert picture.get("width") is None
        assert list(picture.iter(f"{SVG}text"))
    assert page.count("currentColor") > len(drawn)
    assert "#010203" not in page


def test_tables_have_captions_and_heads(tree: Any) -> None:
    found = list(tree.iter(f"{HTML}table"))
    assert len(found) == 7
    for table in found:
        assert table.find(f"{HTML}caption") is not None
        heads = list(table.find(f"{HTML}thead").iter(f"{HTML}th"))
        assert all(head.get("scope") == "col" for head in heads)
        for line in table.find(f"{HTML}tbody"):
            assert len(line) == len(heads)
            assert line[0].get("scope") == "row"


def test_numbers_reasons_and_reruns_are_there(tree: Any) -> None:
    said = texts(tree)
    for words in ("68%", "5.78 [5.66, 5.95]", "failed: client 1 <died>", "failed: it <broke>", "40 [40, 40]", "missed",
                  "0.80 [0.70, 0.90]", "10.0", "best, fits", STEP.rows[0].rerun, "AMD EPYC"):  # fmt: skip
        assert words in said, words


def test_without_matplotlib_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match="pip install matplotlib") as caught:
        make.html(RESULTS[:1])
    assert caught.value.exit_code == 3
    assert make.markdown(RESULTS[:1])


def test_markdown_has_every_table_and_command() -> None:
    text = make.markdown(RESULTS)
    assert len(re.findall(r"^\|---\|", text, re.MULTILINE)) == 7
    assert "| torch-foreach | 23.1 ±0.96 | 5.78 [5.66, 5.95] |" in text
    assert STEP.rows[0].rerun in text


def test_bars_in_cells_do_not_break_markdown() -> None:
    assert tables.markdown(Table("", ("a", ""), (("x|y", "z\nz"),))).splitlines()[-1] == "| x\\|y | z z |"


def test_csv_has_a_line_for_each_row() -> None:
    lines = list(csv.DictReader(io.StringIO(make.csv_text(RESULTS))))
    assert len(lines) == sum(len(result.rows) for _, result in RESULTS)
    first = lines[0]
    assert (first["file"], first["kind"], first["peer"]) == ("step.json", "dtopt bench step", STEP.rows[0].peer)
    assert float(first["ratio.median"]) == STEP.rows[0].ratio.median


def test_a_result_without_rows_is_a_page_too() -> None:
    for _, result in RESULTS:
        html5lib.HTMLParser(strict=True).parse(make.html([("empty.json", replace(result, rows=()))]))


def test_numbers_are_written_as_people_do() -> None:
    assert [duration(x) for x in (0.0123, 1.5, 136.0, 5400.0, 90000.0)] == [
        "12.3 ms", "1.50 s", "136 s", "90.0 min", "25.0 h"
    ]  # fmt: skip
    assert [speed(x) for x in (0.24, 0.98, 1.02, 1.5, 40.0)] == [
        "4.2x as fast", "1.02x as fast", "1.02x the time", "1.5x the time", "40x the time"
    ]  # fmt: skip
    assert of_the_time(0.24, 0.12, 0.4) == "24% [12%, 40%] of the time"


def test_the_page_has_no_nameless_columns_odd_numbers_or_lists_of_one(page: str) -> None:
    assert not re.search(r"<th[^>]*></th>", page)
    assert not re.search(r"\de\+0\d", page)
    assert not re.search(r"[\d.]+x (faster|slower)", page)
    assert not re.search(r"<dd>(True|False|\[.*)</dd>", page)
    assert "<dt>other programs were running</dt><dd>" in page
    assert "<nav" in page
    assert "<nav" not in make.html(RESULTS[:1])
