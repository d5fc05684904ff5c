"""`dtopt bench roof`: measured speeds as a table, as a result, and for `plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench import kinds
from bench.measuring import clock
from bench.roof import run as roof_run
from bench.roof.patterns import ROOFS
from dtopt_cli.commands.bench import app
from optim.errors import DtoptError


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that says 2 ms for each sample; what is timed still runs."""

    def sample(session: Any, steps: int) -> float:
        session.run(1)
        return 0.002

    monkeypatch.setattr(clock, "sample", sample)
    monkeypatch.setattr(clock, "warm_up", lambda session, seconds, **more: clock.WarmUp(1, 0.002, True, 0.05))
    monkeypatch.setattr(roof_run, "SIZES", ("gpt2:layer", "many-small"))


def call(*words: str) -> Any:
    return CliRunner().invoke(app, ["roof", *words])


@pytest.mark.usefixtures("timed")
def test_each_pattern_size_and_number_of_threads(tmp_path: Path) -> None:
    file = tmp_path / "roof.json"
    done = call("--rounds", "2", "--json", "--output", str(file))
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert document["kind"] == "dtopt bench roof"
    read = kinds.load(file)
    assert kinds.from_json(document) == read
    threads = {row.threads for row in read.rows}
    assert 1 in threads
    assert len(read.rows) == len(ROOFS) * len(threads) * 2
    for row in read.rows:
        assert [sample.seconds for sample in row.samples] == [0.002] * 2
        assert row.bytes_per_second == pytest.approx(row.bytes_per_step / 0.002)
        per_element = 12 if row.pattern == "a += b" else 28
        arrays = 2 if row.pattern == "a += b" else 4
        assert row.bytes_per_step / per_element == row.working_set / (arrays * 4)
    assert {roof.bytes_per_second for roof in read.roofs} == {
        row.bytes_per_second for row in read.rows if row.threads == max(threads) and row.working_set > 10**7
    }
    planned = CliRunner().invoke(app, ["plan", "-w", "gpt2:layer", "--mesh", "2", "--roof", str(file), "--json"])
    assert json.loads(planned.stdout)["rows"][0]["update_seconds"] > 0


@pytest.mark.usefixtures("timed")
def test_the_table_names_the_roof() -> None:
    done = call("--rounds", "1", "--threads", "1")
    assert done.exit_code == 0
    assert "4 reads, 3 writes" in done.stdout
    assert "GB/s (4 reads, 3 writes), the best of 1 samples" in done.stdout


def test_too_many_threads_are_a_usage_error() -> None:
    done = call("--threads", "100000")
    assert isinstance(done.exception, DtoptError)
    assert done.exception.exit_code == 2


def test_ctrl_c_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch, timed: None) -> None:
    samples = iter([0.002] * 5)

    def sample(session: Any, steps: int) -> float:
        try:
            return next(samples)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(clock, "sample", sample)
    done = call("--rounds", "9", "--json")
    assert done.exit_code == 130
    document = json.loads(done.stdout)
    assert document["interrupted"]
    assert sum(len(row["samples"]) for row in document["rows"]) == 5
