"""`dtopt migrate batch`: one summary, one exit code, and Ctrl-C."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.interrupts import listen_to_sigint
from tests.helpers.timing import HANGS, until
from tests.places import CORPUS

ADAM = CORPUS / "keras224-adam-eps-none-nested" / "source" / "model.h5"
SGD = CORPUS / "tf29-adam-clipnorm-decay-nested" / "source" / "model.h5"
DECAYED = CORPUS / "extra-k224-adadelta-decay-mlp-npz"
MANY = 400


@pytest.fixture
def dtopt(main: Any) -> Any:
    return partial(main, "migrate", "batch")


def test_all_well_is_zero_and_says_where(dtopt: Any, tmp_path: Path) -> None:
    code, out, err = dtopt(str(ADAM), str(SGD), "--into", str(tmp_path / "out"))
    assert (code, err) == (0, "")
    assert "2 in all: 2 migrated" in out
    assert dtopt(str(ADAM), str(SGD), "--into", str(tmp_path / "out"), "--resume", "--quiet") == (0, "", "")


def test_a_broken_source_is_three_and_listed(dtopt: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.h5").write_text("no checkpoint")
    code, out, _ = dtopt(str(tmp_path / "bad.h5"), str(ADAM), "--into", str(tmp_path / "out"), "--json", "--jobs", "2")
    document = json.loads(out)
    assert code == 3
    assert document["counts"] == {"migrated": 1, "failed": 1}
    assert [item["status"] for item in document["items"]] == ["failed", "migrated"]
    assert document["items"][1]["report"]["fidelity"] == "exact"
    code, out, err = dtopt(str(tmp_path / "bad.h5"), "--into", str(tmp_path / "out"), "--quiet")
    assert (code, out) == (3, "")
    assert "of no known format" in err


def test_where_all_fails_no_folder_is_left(dtopt: Any, tmp_path: Path) -> None:
    for name in ("bad.h5", "worse.h5"):
        (tmp_path / name).write_text("no checkpoint")
    code, _, _ = dtopt(*map(str, tmp_path.glob("*.h5")), "--into", str(tmp_path / "new" / "out"), "--jobs", "2")
    assert code == 3
    assert sorted(os.listdir(tmp_path)) == ["bad.h5", "worse.h5"]


def test_a_line_break_in_a_path_is_shown_in_one_line(dtopt: Any, tmp_path: Path) -> None:
    folder = tmp_path / "a\nb"
    folder.mkdir()
    shutil.copy(ADAM, folder / "model.h5")
    (folder / "bad.h5").write_text("no checkpoint")
    _, out, _ = dtopt(str(folder / "model.h5"), str(folder / "bad.h5"), "--into", str(folder / "out"))
    assert "a\nb" not in out
    assert out.count(r"a\nb/model.h5 -> ") == out.count(r"a\nb/bad.h5 is of no known format") == 1


def test_strict_refusals_are_one(dtopt: Any, tmp_path: Path) -> None:
    document = json.loads((DECAYED / "case.json").read_text())
    optimizer = {"class_name": document["optimizer"]["class"], "config": document["optimizer"]["config"]}
    (tmp_path / "optimizer.json").write_text(json.dumps(optimizer))
    names = [{"name": v["name"], "shape": v["shape"]} for v in document["trainable"]]
    (tmp_path / "variables.json").write_text(json.dumps(names))
    arguments = [str(DECAYED / "source" / "weights.npz"), "--into", str(tmp_path / "out"), "--generation", "keras2"]
    arguments += ["--optimizer-config", str(tmp_path / "optimizer.json")]
    arguments += ["--variables", str(tmp_path / "variables.json")]
    code, out, _ = dtopt(*arguments, "--strict")
    assert code == 1
    assert "refused by --strict" in out
    code, out, _ = dtopt(*arguments)
    assert code == 0
    assert "approximate: iterations" in out


@pytest.mark.parametrize("arguments", [["--shard", "3/2"], ["--shard", "one"], ["--jobs", "0"], ["--to", "tape"]])
def test_wrong_options_are_two(dtopt: Any, tmp_path: Path, arguments: list[str]) -> None:
    code, out, _ = dtopt(str(ADAM), "--into", str(tmp_path / "out"), *arguments)
    assert (code, out) == (2, "")
    assert not (tmp_path / "out").exists()


def test_shards_meet_in_one_folder(dtopt: Any, tmp_path: Path) -> None:
    for shard in ("1/2", "2/2"):
        assert dtopt(str(ADAM), str(SGD), "--into", str(tmp_path / "out"), "--shard", shard)[0] == 0
    assert len(os.listdir(tmp_path / "out")) == 2


@pytest.mark.parametrize(("processes", "number"), [("1", signal.SIGINT), ("2", signal.SIGINT), ("2", signal.SIGTERM)])
@pytest.mark.quick(1)
def test_ctrl_c_keeps_what_is_done(dtopt: Any, tmp_path: Path, processes: str, number: int) -> None:
    """And so does SIGTERM, by which a scheduler ends a job."""
    sources = tmp_path / "sources"
    sources.mkdir()
    for i in range(MANY):
        shutil.copy(ADAM, sources / f"m{i:03}.h5")
    out = tmp_path / "out"
    command = [sys.executable, "-m", "dtopt_cli", "migrate", "batch", str(sources), "--into", str(out)]
    run = subprocess.Popen(
        [*command, "--jobs", processes],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=listen_to_sigint,
    )
    assert until(lambda: out.is_dir() and any(not n.startswith(".") for n in os.listdir(out)), pause=0.01)
    os.killpg(run.pid, number)  # as a terminal does: the whole group
    stdout, stderr = run.communicate(timeout=HANGS)
    assert run.returncode == 130
    assert "not reached" in stdout
    assert stderr.strip() == "dtopt: interrupted: finished targets are kept; --resume continues from there"
    done = os.listdir(out)
    assert 0 < len(done) < MANY
    assert not [name for name in done if name.startswith(".")]
    some = [str(sources / f"{name}.h5") for name in sorted(done)[:3]]
    code, text, _ = dtopt(*some, "--into", str(out), "--resume")
    assert (code, f"{len(some)} in all: {len(some)} skipped" in text) == (0, True)


def test_a_list_is_written_in_the_order_asked_for(dtopt: Any, tmp_path: Path) -> None:
    code, out, _ = dtopt(str(ADAM), "--into", str(tmp_path / "out"), "--to", "list", "--order", "keras2:2")
    assert code == 0
    assert os.listdir(tmp_path / "out") == ["model.npz"]
    code, out, _ = dtopt(str(SGD), "--into", str(tmp_path / "out"), "--order", "keras2")
    assert (code, out) == (2, "")


def test_a_report_groups_by_reason_and_a_dry_run_writes_nothing(dtopt: Any, tmp_path: Path) -> None:
    for name in ("a.h5", "b.h5"):
        shutil.copy(ADAM, tmp_path / name)
    (tmp_path / "bad.h5").write_text("no checkpoint")
    code, out, _ = dtopt(
        *sorted(map(str, tmp_path.iterdir())), "--into", str(tmp_path / "out"), "--dry-run", "--report"
    )
    assert code == 3
    assert "2  exact\n" in out
    assert "1  failed\n" in out
    assert "3 in all: 2 planned, 1 failed" in out
    assert not (tmp_path / "out").exists()


def test_an_engine_that_does_not_answer_is_said(dtopt: Any, tmp_path: Path) -> None:
    code, _, err = dtopt(str(ADAM), "--into", str(tmp_path / "out"), "--engine", "ray://here")
    assert (code, "give a Dask scheduler, dask://HOST:PORT" in err) == (2, True)
    assert dtopt(str(ADAM), "--into", str(tmp_path), "--engine", "dask://here:1", "--jobs", "2")[0] == 2
