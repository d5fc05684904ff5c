"""Workers that are forked from one process: what they have, what they cannot touch, and what is left of them."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cases.case import Case
from bench.cases.layouts import parse_mesh
from bench.measuring.process import Child, WorkerError, allowed_cpus, worker_environment
from bench.measuring.rounds import Pace
from bench.measuring.server import Server
from bench.peers.peer import Home
from bench.step import run as runner
from bench.step.contest import Settings
from bench.step.query import Plan, make_plan
from bench.step.run import Starts
from tests.helpers.timing import HANGS, until
from tests.places import FAKES, ROOT


def make_server() -> Server:
    return Server(worker_environment(2), allowed_cpus())


@pytest.fixture
def light(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers find a tensorflow that is there at once: where nothing depends on what it is."""
    (tmp_path / "light").mkdir()
    (tmp_path / "light" / "tensorflow.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "light"))


def probe(server: Server) -> Child:
    child = Child("forked_probe", {"cpus": allowed_cpus()}, server.fork([str(FAKES)]))
    child.answer(HANGS)
    return child


def ask(child: Child, do: str) -> object:
    child.request(do)
    return child.answer(HANGS)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One for the tests that leave it as it is."""
    made = make_server()
    yield made
    made.stop()


@pytest.fixture
def two(server: Server) -> Iterator[tuple[Child, Child]]:
    children = (probe(server), probe(server))
    yield children
    for child in children:
        child.stop()


def test_a_worker_begins_with_tensorflow_that_has_started_nothing(two: tuple[Child, Child]) -> None:
    """Nor is there anything of a version of `optim`, or of the other peers' frameworks."""
    state = ask(two[1], "state")
    assert isinstance(state, dict)
    assert "tensorflow" in state["loaded"]
    assert not {"optim", "jax", "keras", "tf_keras", "torch"} & set(state["loaded"])
    assert state["threads"] == 1, "a thread of the server would be missing in what it forks"
    assert not state["started"]


def test_a_worker_is_a_process_like_a_fresh_one(two: tuple[Child, Child]) -> None:
    states = [ask(child, "state") for child in two]
    for child, state in zip(two, states, strict=True):
        assert isinstance(state, dict)
        assert state["session"] == child.pid
        assert state["path"] == [state["folder"], str(FAKES)]
        assert state["sockets"] == 1, "it must reach nobody but who asks it"
    assert states[0]["folder"] != states[1]["folder"]  # type: ignore[index]


def test_workers_compute_with_all_threads(two: tuple[Child, Child]) -> None:
    assert ask(two[0], "compute") == ask(two[1], "compute") == 2 * 600 * 600 * 150.0


def test_what_one_does_no_other_one_sees(two: tuple[Child, Child], server: Server) -> None:
    ask(two[0], "mark")
    later = probe(server)
    assert [ask(child, "state")["marked"] for child in (*two, later)] == [True, False, False]  # type: ignore[index]
    later.stop()


def test_a_death_has_its_signal_as_the_reason(two: tuple[Child, Child]) -> None:
    with pytest.raises(WorkerError, match="died of SIGSEGV"):
        ask(two[0], "die")
    assert two[0].died() is not None
    assert two[1].died() is None


def test_a_stopped_worker_leaves_no_process_and_no_folder(server: Server) -> None:
    child = probe(server)
    folder = ask(child, "state")["folder"]  # type: ignore[index]
    child.stop()
    child.stop()
    assert not os.path.exists(f"/proc/{child.pid}")
    assert not os.path.exists(folder)


@pytest.mark.breadth
@pytest.mark.usefixtures("light")
def test_workers_end_with_their_server_and_later_ones_start_afresh(tmp_path: Path) -> None:
    plan = make_plan(peer=("optim-local",), against=Home("other", str(tmp_path)))
    starts = Starts(plan)
    assert starts._server is not None
    one, other = probe(starts._server), probe(starts._server)
    with pytest.raises(WorkerError, match="died of SIGKILL"):
        ask(one, "kill_the_server")
    with pytest.raises(WorkerError, match="died of SIGKILL"):
        ask(other, "state")
    assert until(lambda: not any(os.path.exists(f"/proc/{child.pid}") for child in (one, other)))
    worker = starts(plan.peers[0], plan.cases[0])
    assert worker.answer(HANGS) == {}
    assert starts.ways == {"fresh"}
    for child in (one, other, worker):
        child.stop()
    starts.stop()


@pytest.mark.breadth
@pytest.mark.usefixtures("light")
def test_two_versions_are_forked_and_find_each_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one has no `optim` of its own that could be taken: its workers say so."""
    monkeypatch.syspath_prepend(str(FAKES))
    good = importlib.import_module("fake_peers").GOOD
    (tmp_path / "optim").mkdir()
    (tmp_path / "optim" / "__init__.py").write_text("raise RuntimeError('this is the other one')\n")
    case = Case("many-small", "adam", parse_mesh("model=2"), "replicated", threads=1)
    plan = Plan((case,), (good, good.at(Home("other", str(tmp_path)))), "good", Settings(Pace(2), 2, 0.1, forked=True))
    found = runner.run(plan)
    ours, theirs = found.rows
    assert (ours.status, len(ours.samples)) == ("ok", 2)
    assert {sample.process for sample in ours.samples} == {0, 1}
    assert theirs.status == "failed"
    assert "this is the other one" in (theirs.reason or "")
    assert found.context["starts"] == ["forked"]


@pytest.mark.breadth
def test_who_is_killed_takes_server_and_workers_along() -> None:
    code = (
        "from tests.test_bench.measuring.test_server import make_server, probe;"
        "child = probe(make_server()); print(child.pid, flush=True); input()"
    )
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as main:
        assert main.stdout is not None
        worker = int(main.stdout.readline())
        server = int(Path(f"/proc/{worker}/stat").read_text().rpartition(") ")[2].split()[1])
        assert server != main.pid
        main.kill()
    assert until(lambda: not any(os.path.exists(f"/proc/{process}") for process in (worker, server)))


def test_peers_are_forked_where_all_of_them_can_share_an_import(tmp_path: Path) -> None:
    """The interpreter of another environment would have a server of its own, and its workers what that has at random:
    where its code lies in memory would look like a difference of the versions."""
    here, there = Home("other", str(tmp_path)), Home("other", str(tmp_path), python="/there/bin/python")
    forked = make_plan(against=here).settings
    assert forked.forked
    assert not make_plan(against=there).settings.forked
    assert not make_plan(peer=("optim-local", "torch-fused"), against=here).settings.forked
    assert not make_plan().settings.forked
    assert (forked.processes_of(2), make_plan(against=there).settings.processes_of(2)) == (8, 6)
