"""A run that is asked to end keeps what it measured and leaves no process and no file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.kinds import from_json, load
from tests.helpers.interrupts import listen_to_sigint
from tests.helpers.timing import HANGS, until
from tests.places import FAKES, ROOT

SCRIPT = "import fake_peers, bench.peers; bench.peers.PEERS += (fake_peers.MARKS,); import dtopt_cli.app as a; a.main()"
"""The command with one more peer, which needs no framework."""

WORDS = ["-c", SCRIPT, "bench", "-w", "many-small", "-p", "marks", "--baseline", "marks", "--processes", "1"]


def workers(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


@pytest.fixture
def measuring(tmp_path: Path):
    """A run that has taken samples and would go on for an hour."""
    folder, mark = tmp_path / "temporary", tmp_path / "mark"
    folder.mkdir()
    paths = os.pathsep.join((str(ROOT), str(FAKES)))
    process = subprocess.Popen(
        [sys.executable, *WORDS, "--rounds", "100000", "--json", "--output", str(tmp_path / "run.json")],
        env={**os.environ, "PYTHONPATH": paths, "TMPDIR": str(folder), "MARK": str(mark)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        preexec_fn=listen_to_sigint,
    )
    if not until(lambda: mark.exists() or process.poll() is not None) or process.poll() is not None:
        process.kill()
        pytest.fail(f"it was never measured: {process.communicate()}")
    yield process, folder
    process.kill()
    process.wait()


@pytest.mark.breadth
@pytest.mark.parametrize("how", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.breadth)])
def test_what_was_measured_is_kept_and_nothing_is_left(measuring, how: signal.Signals, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    process, folder = measuring
    started = workers(process.pid)
    assert started
    process.send_signal(how)
    process.send_signal(signal.SIGTERM)  # impatience loses nothing
    stdout, stderr = process.communicate(timeout=HANGS)
    assert process.returncode == 130, stderr
    result = from_json(json.loads(stdout))
    assert result.interrupted
    assert load(tmp_path / "run.json") == result
    (row,) = result.rows
    assert row.status == "ok"
    assert row.samples
    assert until(lambda: not [pid for pid in started if os.path.exists(f"/proc/{pid}")])  # Linux ends some
    assert list(folder.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mark", "run.json", "temporary"]


@pytest.mark.breadth
def test_a_run_that_is_killed_takes_its_workers_along(measuring) -> None:  # type: ignore[no-untyped-def]
    process, _ = measuring
    started = workers(process.pid)
    process.kill()
    process.wait()
    assert until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in started))
