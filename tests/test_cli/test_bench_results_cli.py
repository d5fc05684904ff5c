"""`dtopt bench compare`, `check`, `report`, `train` and `migrate`: exit codes, `--json` alone, files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.check import machine
from bench.check.findings import Finding
from bench.kinds import load
from bench.migration import run as migration
from bench.results.document import Result
from bench.train import run as training
from dtopt_cli.commands import bench_migrate
from dtopt_cli.commands.bench import app
from optim.errors import DtoptError
from tests.places import RESULTS

QUIET, OTHER = str(RESULTS / "aa-5.json"), str(RESULTS / "aa-6.json")


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def changed(tmp_path: Path, factor: float = 1.0, **context: Any) -> str:
    """The quiet run with its rows slower, or of another machine."""
    document = json.loads(Path(QUIET).read_text())
    document["context"] |= context
    for row in document["rows"]:
        for sample in row["samples"]:
            sample["seconds"] *= factor
        row["median"], row["mad"] = row["median"] * factor, row["mad"] * factor
        row["bytes_per_second"] /= factor
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_compare_ends_with_its_verdict(tmp_path: Path) -> None:
    slower = changed(tmp_path, 2.0)
    assert call("compare", QUIET, slower).exit_code == 0
    result = call("compare", QUIET, slower, "--fail-above", "10%")
    assert result.exit_code == 1
    assert "Regression" in result.stdout
    assert call("compare", QUIET, OTHER, "--fail-above", "0%").exit_code == 5
    assert call("compare", slower, QUIET, "--fail-above", "10%").exit_code == 0
    document = json.loads(call("compare", QUIET, slower, "--json", "--fail-above", "10%").stdout)
    assert document["outcome"] == "regression"


def test_compare_refuses_other_machines_unless_forced(tmp_path: Path) -> None:
    elsewhere = changed(tmp_path, cpu="another one")
    refused = call("compare", QUIET, elsewhere).exception
    assert isinstance(refused, DtoptError)
    assert refused.exit_code == 6
    forced = call("compare", QUIET, elsewhere, "--force")
    assert forced.exit_code == 0
    assert "Not comparable" in forced.stdout
    usage = call("compare", QUIET, OTHER, "--fail-above", "much").exception
    assert isinstance(usage, DtoptError)
    assert usage.exit_code == 2


def test_check_of_a_run() -> None:
    calm = call("check", OTHER)
    assert calm.exit_code == 0
    assert "You can trust this run" in calm.stdout
    noisy = call("check", str(RESULTS / "aa-1.json"), "--json")
    assert noisy.exit_code == 5
    document = json.loads(noisy.stdout)
    assert (document["of"], document["stable"]) == ("run", False)
    assert "load" in {finding["what"] for finding in document["findings"]}


@pytest.mark.parametrize(("severity", "code"), [("noisy", 5), ("warning", 0)])
def test_check_of_the_machine(monkeypatch: pytest.MonkeyPatch, severity: str, code: int) -> None:
    findings = (Finding(severity, "load", "machine", "3 [processes]"),)
    monkeypatch.setattr(machine, "check", lambda seconds: findings)
    done = call("check")
    assert done.exit_code == code
    assert "machine: 3 [processes]" in done.stdout


def test_report_fills_the_tables_of_a_page_or_only_checks_them(tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "run.json").write_text(Path(QUIET).read_text())
    page = tmp_path / "page.md"
    empty = "# Page\n\n<!-- table: run.json -->\n<!-- end -->\n"
    page.write_text(empty)
    assert call("report", "--into", str(page), "--check").exit_code == 1
    assert page.read_text() == empty
    assert call("report", "--into", str(page)).exit_code == 0
    assert "torch-fused" in page.read_text()
    assert call("report", "--into", str(page), "--check").exit_code == 0
    assert call("report").exit_code == 2


def test_report_writes_a_page_markdown_or_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("report", OTHER)
    assert (done.exit_code, done.stdout) == (0, "")
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert call("report", OTHER, "--markdown").stdout.startswith("# dtopt bench")
    assert call("report", OTHER, QUIET, "--csv", "--output", "rows.csv").stdout == ""
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 7
    document = json.loads(call("report", OTHER, "--json", "--output", "x.html").stdout)
    assert document == {"written": "x.html", "results": 1, "bytes": (tmp_path / "x.html").stat().st_size}
    assert call("report", OTHER, "--markdown", "--csv").exit_code == 2
    assert "cannot write" in str(call("report", OTHER, "--csv", "--output", "absent/rows.csv").exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "rows.csv", "x.html"]


class Recorder:
    """Stands in for a function that measures: keeps what it was given."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.given: dict[str, Any] = {}
        self.words: tuple[Any, ...] = ()

    def __call__(self, *words: Any, **options: Any) -> Result:
        self.words, self.given = words, options
        return self.result


def empty(kind: str) -> Result:
    return Result(load(Path(QUIET)).context, (), (), kind=kind)


def test_every_option_of_train_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(empty("train"))
    monkeypatch.setattr(training, "run", recorder)
    words = [
        "--problem",
        "chars",
        "--problem",
        "quadratic",
        "-o",
        "sgd",
        "--learning-rate",
        "0.5",
        "-p",
        "optax",
        "--mesh",
        "2x2",
    ]
    words += ["--layout", "fsdp", "--device", "cpu", "--seeds", "3", "--threads", "1", "--timeout", "9"]
    assert call("train", *words).exit_code == 4
    expected = {
        "problems": ("chars", "quadratic"), "optimizers": ("sgd",), "learning_rates": (0.5,), "peer": ("optax",),
        "mesh": ("2x2",), "layout": "fsdp", "device": "cpu", "seeds": 3, "threads": 1, "timeout": 9.0,
    }  # fmt: skip
    assert {name: recorder.given[name] for name in expected} == expected


def test_every_option_of_migrate_arrives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recorder = Recorder(empty("migrate"))
    monkeypatch.setattr(migration, "run", recorder)
    words = ["--format", "h5", "--size", "200MB", "--rounds", "2", "--folder", str(tmp_path), "--timeout", "9"]
    assert call("migrate", *words).exit_code == 4
    assert recorder.words == (bench_migrate.MIGRATE,)
    expected = {"formats": ("h5",), "size": 200_000_000, "rounds": 2, "folder": tmp_path, "timeout": 9.0}
    assert {name: recorder.given[name] for name in expected} == expected
