"""Results as JSON and back, and what is refused."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.errors import ResultsError
from bench.kinds import from_json, load
from bench.measuring.clock import WarmUp
from bench.measuring.stats import Ratio
from bench.results.document import Result, save
from bench.results.records import Roof, Sample
from bench.step import report
from bench.step.agreement import Agreement
from bench.step.row import Row
from tests.places import RESULTS

SAMPLES = tuple(Sample(0, i, i % 2, 10, 0.002 + 0.0001 * i) for i in range(5))
ROW = Row(
    workload="gpt2:layer",
    optimizer="adam",
    peer="tf_keras-mesh",
    mesh="model=2",
    layout="megatron",
    device="cpu",
    threads=2,
    seed=0,
    status="ok",
    reason=None,
    parameters=7_087_872,
    tensors=12,
    updated=7_092_480,
    bytes_per_parameter=28,
    bytes_per_step=198_589_440,
    working_set=113_000_000,
    regime="mixed",
    rerun="dtopt bench step -w gpt2:layer -p tf_keras-mesh",
    samples=SAMPLES,
    median=0.0022,
    mad=0.0001,
    bytes_per_second=198_589_440 / 0.0022,
    roof_fraction=0.5,
    ratio=Ratio("tf_keras-mesh", 1.0, 1.0, 1.0, 5, "same"),
    agreement=Agreement(3, 26317, 8e-6, "h0/mlp/in/kernel", 2e-4),
    prepare_seconds=4.0,
    first_step_seconds=0.5,
    warm_up=WarmUp(6, 0.1, True, 0.002),
    peak_bytes=900_000_000,
    versions={"tensorflow": "2.21.0"},
    layout_notes=("wte (50257, 768): dim 0 does not divide by 2: dim 1 is split over model instead",),
)
HALF = tuple(replace(sample, seconds=sample.seconds / 2) for sample in SAMPLES)
OURS = replace(
    ROW,
    peer="optim-local",
    samples=HALF,
    median=0.0011,
    mad=0.00005,
    bytes_per_second=198_589_440 / 0.0011,
    ratio=Ratio("tf_keras-mesh", 0.5, 0.49, 0.51, 5, "faster"),
    note="eager",
    beside=(Ratio("tf_keras-mesh", 0.5, 0.49, 0.51, 9, "faster"),),
    warnings=("samples spread by 30%: disturbed",),
)
SKIPPED = replace(
    ROW, peer="torch-fused", status="skipped", reason="torch not installed: pip install torch", samples=(), median=None
)
CONTEXT: dict[str, Any] = {
    "cpu": "A [good] CPU",
    "cpus": 2,
    "python": "3.11.7",
    "packages": {"tensorflow": "2.21.0"},
    "rounds": 5,
    "order_seed": 0,
    "seconds": 12.0,
    "busy": True,
    "load": 3.5,
}
RESULT = Result(
    CONTEXT, (Roof("gpt2:layer", "adam", "roof: a += b", 85_000_000, 6.0e10, SAMPLES),), (OURS, ROW, SKIPPED)
)


def document() -> dict[str, Any]:
    return json.loads(json.dumps(RESULT.to_json()))


def test_round_trip_through_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    save(RESULT, path)
    assert load(path) == RESULT
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]


def test_unknown_members_are_ignored() -> None:
    changed = document()
    changed["new"] = 1
    changed["rows"][0]["new"] = [1]
    assert from_json(changed) == RESULT


def test_an_error_that_is_no_number_is_written_as_null_and_agrees_with_nothing() -> None:
    row = replace(
        ROW, status="failed", reason="computes something else", agreement=Agreement(3, 1, float("nan"), "w", 2e-4)
    )
    read = from_json(json.loads(json.dumps(Result(CONTEXT, (), (row,)).to_json(), allow_nan=False)))
    assert read.rows[0].agreement is not None
    assert not read.rows[0].agreement.agrees


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(kind="other"), "this dtopt does not know the kind"),
        (lambda d: d.pop("kind"), "not a result of `dtopt bench`"),
        (lambda d: d.update(schema_version=3), "schema_version is 3 and this dtopt reads 1 and 2"),
        (lambda d: d["rows"][0].update(median="fast"), r"rows\[0\].median: Expected `float . null`, got `str`"),
        (lambda d: d["rows"][0].update(threads=None), r"rows\[0\].threads: Expected `int`, got `null`"),
        (lambda d: d["rows"][0].update(in_situ=1), r"rows\[0\].in_situ: Expected `bool`, got `int`"),
        (lambda d: d["rows"][0].update(samples=7), r"rows\[0\].samples: Expected `array`, got `int`"),
        (lambda d: d["rows"][0].update(versions=[]), r"rows\[0\].versions: Expected `object`, got `array`"),
        (lambda d: d["rows"][0].update(median=0.0001), "its median is 0.0001, but its samples give"),
        (lambda d: d["rows"][0].update(bytes_per_second=1e12), "its samples give"),
        (lambda d: d["rows"][0]["samples"][0].update(latency=0.0), "impossible"),
        (lambda d: d["rows"][0].update(cache="hot"), "cache 'hot' is not one of"),
        (lambda d: d["rows"][0].update(noise="loud"), "noise 'loud' is not one of"),
        (lambda d: d.pop("rows"), "damaged"),
        (lambda d: d["rows"][0].pop("peer"), "damaged"),
        (lambda d: d["rows"].append(5), "damaged"),
        (lambda d: d["rows"][0].update(status="great"), "status 'great' is not one of"),
        (lambda d: d["rows"][0].update(regime="l1"), "regime 'l1' is not one of"),
        (lambda d: d["rows"][0].update(samples=[]), "holds no samples"),
        (lambda d: d["rows"][2].update(reason=None), "without a reason"),
        (lambda d: d["rows"][0]["samples"][0].update(seconds=-1.0), "impossible"),
        (lambda d: d["roofs"][0]["samples"][0].update(steps=0), "impossible"),
        (lambda d: d["rows"][0]["ratio"].update(verdict="fast"), "verdict 'fast' is not one of"),
    ],
)
def test_broken_documents_are_refused(change: Any, message: str) -> None:
    changed = document()
    change(changed)
    with pytest.raises(ResultsError, match=message):
        from_json(changed)


def test_version_1_is_still_read() -> None:
    """A file that dtopt of schema version 1 wrote."""
    old = load(RESULTS / "step-v1.json")
    assert (old.kind, old.interrupted, len(old.roofs)) == ("step", False, 2)
    assert [row.status for row in old.rows] == ["ok", "failed", "ok"]
    row = old.rows[0]
    assert (row.optimizer, row.clip, row.accumulate, row.dtype, row.cache) == ("adam", None, 1, "float32", "warm")
    assert row.samples[0].latency is None
    assert from_json(json.loads(json.dumps(old.to_json()))) == old


def test_files_that_are_no_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="cannot read"):
        load(tmp_path / "absent.json")
    (tmp_path / "text.json").write_text("hello")
    with pytest.raises(ResultsError, match="is not JSON"):
        load(tmp_path / "text.json")
    with pytest.raises(ResultsError, match="a folder that exists"):
        save(RESULT, tmp_path / "no" / "run.json")


def printed(result: Result, width: int = 100) -> str:
    text = io.StringIO()
    console = Console(file=text, width=width, soft_wrap=True)
    for part in report.render(result, reruns=True):
        console.print(part)
    return text.getvalue()


def test_an_optimizer_without_a_reference_is_not_said_to_agree_with_one() -> None:
    own = replace(ROW, peer="mine:R", agreement=Agreement(57, 7_087_872, 0.0, "", 0.0))
    alone, beside = (printed(replace(RESULT, rows=rows)) for rows in ((own,), (OURS, own)))
    for text in (alone, beside):
        assert "Not compared, for lack of a reference: mine:R. Steps move every tensor." in text
    assert "Agreement:" not in alone
    assert "Agreement: all other peers match the float64 reference within 8e-06" in beside


def test_agreement_is_said_of_those_that_were_compared_alone() -> None:
    unknown, none = (replace(ROW, agreement=a) for a in (Agreement(3, 10, None, "w", 2e-4), None))
    text = printed(replace(RESULT, rows=(OURS, unknown, none)))
    assert "Agreement: the compared peers match the float64 reference within 8e-06" in text
    assert "Agreement:" not in printed(replace(RESULT, rows=(unknown, none)))


def test_the_report_says_what_matters() -> None:
    text = printed(RESULT)
    assert "One adam step on gpt2:layer (one of the 12 blocks of GPT-2 small)" in text
    assert "dim 1 is split over model instead" in text
    lines = {line.split()[0]: line for line in text.splitlines() if line.split()}
    assert "0.50 [0.49, 0.51]" in lines["optim-local"] or "0.50 [0.49, 0.51]" in text
    assert "optim-local takes 50% [49%, 51%] of the time of tf_keras-mesh." in text
    assert "Skipped torch-fused: torch not installed: pip install torch" in text
    assert "Warnings: optim-local (samples spread by 30%: disturbed)." in text
    assert "Memory bandwidth limit: 60.0 GB/s, moved in place in the same rounds (a += b)." in text
    assert "within 8e-06 of the movement after 3 steps (26,317 elements" in text
    assert "Other programs were running, so the times in ms are too high." in text
    assert "  dtopt bench step -w gpt2:layer -p tf_keras-mesh" in text


def test_the_table_fits_80_columns_and_the_fastest_comes_first() -> None:
    lines = printed(RESULT, width=80).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("peer"))
    table = [line.rstrip() for line in lines[start : start + 3]]
    assert all(len(line) <= 80 and "…" not in line for line in table)
    assert table[1].split()[:2] == ["optim-local", "1.10"]
    assert table[1].endswith("faster, eager")
    assert table[2].endswith("baseline")
