"""`scale` with fake clients: what it asks, who dies, who hangs, who computes something else; and one real run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from bench import kinds
from bench.cases.layouts import parse_mesh
from bench.errors import OptionError, UnknownNameError
from bench.forecast.traffic import ALL_REDUCE, Collective
from bench.measuring.process import WorkerError
from bench.scale import parting, query
from bench.scale.crossing import sent_by_a_client
from bench.scale.group import (
    CLIENT_ID,
    JOBS,
    NUM_CLIENTS,
    Clients,
    Group,
    environments,
    find_clients,
    free_ports,
    start_client,
)
from bench.scale.setup import Setup
from bench.scale.wire import bytes_sent
from dtopt_cli.commands.bench import app
from dtopt_cli.exit_codes import Exit
from tests.helpers.timing import HANGS
from tests.places import ROOT


class FakeClient:
    """Answers at once, or dies or hangs when it is asked for `fails_at`."""

    made: ClassVar[list[FakeClient]] = []

    def __init__(self, setup: Setup, number: int, hello: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self.setup, self.number, self.hello, self.environment = setup, number, hello, environment
        self.pipe, self.theirs = Pipe()
        self.asked: list[str] = []
        self.stopped = False
        self.fails_at, self.way, self.seconds, self.movement = "", "", 0.01 / setup.mesh.devices, -0.003
        FakeClient.made.append(self)
        self._put({})

    def _put(self, answer: Mapping[str, Any]) -> None:
        self.theirs.send(answer)

    def request(self, do: str, **arguments: Any) -> None:
        self.asked.append(do)
        if do == self.fails_at:
            if self.way == "dies":
                self.theirs.close()
            return
        answers: Mapping[str, Any] = {
            "prepare": {"seconds": 1.0, "reported_bytes": {"parameters": 4, "slots": 8}},
            "check": {"gradient_error": 1e-7, "movements": [self.movement, -0.003]},
            "warm": {"step_seconds": 0.05},
            "leave": {},
            "sample": {"seconds": self.seconds * (1 + self.number), "sent": 1000.0, "peak_bytes": 5},
        }
        self._put(answers[do])

    def answer(self, timeout: float) -> Any:
        try:
            return self.pipe.recv()
        except EOFError:
            raise WorkerError("died of SIGKILL") from None

    def died(self) -> str | None:
        return "died of SIGKILL" if self.theirs.closed else None

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture(autouse=True)
def no_clients_before() -> None:
    FakeClient.made = []


def answer(launch: Any = FakeClient, **options: Any) -> tuple[Any, bool, bool]:
    chosen = {"mesh": ("1x1", "2x1", "2x2"), "rounds": 5, "threads": 1, "device": "cpu", **options}
    return query.answer(**chosen, launch=launch)


def failing(devices: int, number: int, at: str, way: str = "dies") -> Any:
    """A launch in which one client of the mesh of so many devices fails."""

    def launch(setup: Setup, client: int, *rest: Any) -> FakeClient:
        made = FakeClient(setup, client, *rest)
        if setup.mesh.devices == devices and client == number:
            made.fails_at, made.way = at, way
        return made

    return launch


def test_strong_efficiency_is_time_by_devices() -> None:
    result, hung, reports = answer()
    assert (hung, reports) == (False, True)
    assert [row.status for row in result.rows] == ["ok"] * 3
    # The fakes take a time inverse to their devices: ideal.
    assert [row.efficiency.median for row in result.rows] == pytest.approx([1, 1, 1])
    assert all(row.efficiency.baseline == "batch=1,model=1" for row in result.rows)
    assert result.context["interleaved"]
    assert kinds.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_weak_scaling_copies_the_model_over_axes_that_divide_no_examples() -> None:
    result, _, _ = answer(scaling="weak", mesh=("1x1", "2x1", "1x2", "2x2"))
    assert [row.copies for row in result.rows] == [1, 1, 2, 2]
    assert [row.parameters // result.rows[0].parameters for row in result.rows] == [1, 1, 2, 2]
    # Twice as fast on twice the devices with a constant share: twice as good as ideal.
    assert [row.efficiency.median for row in result.rows] == pytest.approx([1, 2, 2, 4])


def test_the_slowest_client_counts_and_every_client_is_kept() -> None:
    result, _, _ = answer(clients=2, mesh=("2x1", "4x1"))
    for row in result.rows:
        assert row.clients == 2
        assert all(
            sample.seconds == max(seconds) for sample, seconds in zip(row.samples, row.client_seconds, strict=True)
        )
        assert len(row.client_seconds[0]) == 2
        assert row.measured_sent_bytes == 1000.0
    for client in FakeClient.made:
        assert len(client.environment[JOBS].split(",")) == 2
        assert client.environment[CLIENT_ID] == str(client.number)
        assert client.environment[NUM_CLIENTS] == "2"


@pytest.mark.parametrize("at", ["prepare", "check", "warm", "sample"])
def test_a_client_that_dies_ends_its_mesh_and_the_others_go_on(at: str) -> None:
    result, hung, _ = answer(failing(4, 1, at), clients=2, mesh=("2x1", "4x1"))
    small, large = result.rows
    assert (small.status, large.status, hung) == ("ok", "failed", False)
    assert large.reason == "client 1 died of SIGKILL"
    assert all(client.stopped for client in FakeClient.made)


def test_the_death_of_one_client_is_the_reason_and_not_what_the_others_say_of_it() -> None:
    group = Group(
        Setup("gpt2:layer", "adam", parse_mesh("2x1"), "megatron", "zero1", clients=2), Clients(2), FakeClient
    )
    group.started(1)
    first, second = FakeClient.made
    second.theirs.close()
    with pytest.raises(WorkerError, match=r"^client 1 died of SIGKILL$"):
        raise group._ended(0, WorkerError("UnavailableError: Collective ops is aborted"))
    assert first.stopped
    assert second.stopped


@pytest.mark.parametrize("way", ["", "dies", "hangs"])
def test_clients_of_several_machines_part_before_one_ends(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the collective that another still reads is aborted. What was measured stands, however the parting goes."""
    monkeypatch.setenv(JOBS, "host1:1000,host2:1000")
    monkeypatch.setenv(CLIENT_ID, "1")
    result, hung, _ = answer(failing(2, 0, "leave", way) if way else FakeClient, mesh=("2x1", "1x2"), timeout=0.2)
    assert [row.status for row in result.rows] == ["ok", "ok"]
    assert not hung
    assert [client.asked[-1] for client in FakeClient.made] == ["leave", "leave"]
    assert all(client.stopped for client in FakeClient.made)


def test_client_0_ends_when_all_are_done_and_the_others_when_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three threads on one store, as of the coordination service: a value is waited for, and the end of client 0 ends
    all waiting."""
    values: dict[str, str] = {}
    changed = threading.Condition()
    ended: list[int] = []

    class Store:
        def set_config_key_value(self, key: str, value: str) -> None:
            with changed:
                values[key] = value
                changed.notify_all()

        def get_config_key_value(self, key: str) -> str:
            with changed:
                assert changed.wait_for(lambda: key in values or 0 in ended, timeout=HANGS)
                if key not in values:
                    raise OSError("Socket closed")
                return values[key]

    monkeypatch.setattr(parting, "_store", Store)

    def end(client: int) -> None:
        with suppress(OSError):
            parting.leave(3, client)
        with changed:
            ended.append(client)
            changed.notify_all()

    threads = [threading.Thread(target=end, args=(client,)) for client in (0, 1, 2)]
    for thread in threads[:2]:
        thread.start()
    time.sleep(0.2)
    assert ended == []
    threads[2].start()
    for thread in threads:
        thread.join(HANGS)
    assert ended[0] == 0
    assert sorted(ended) == [0, 1, 2]


@pytest.mark.timeout(HANGS)
def test_a_client_that_hangs_is_named_and_ends_its_mesh() -> None:
    result, hung, _ = answer(failing(2, 0, "sample", "hangs"), mesh=("1x1", "2x1"), timeout=0.2)
    assert hung
    assert result.rows[1].reason == "no answer within 0.2 s from client 0 while asked to sample"
    assert result.rows[0].status == "ok"


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("gradient_error", 0.5, "gradients are wrong"),
        ("movements", [-0.1, -0.003], "move differently from those on batch=1"),
    ],
)
def test_wrong_numbers_are_no_result(key: str, value: Any, says: str) -> None:
    class Wrong(FakeClient):
        def _put(self, answer: Mapping[str, Any]) -> None:
            wrong = key in answer and self.setup.mesh.devices == 4
            super()._put({**answer, key: value} if wrong else answer)

    result, _, _ = answer(Wrong)
    assert [row.status for row in result.rows] == ["ok", "ok", "failed"]
    assert says in result.rows[2].reason


def test_what_needs_too_much_memory_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query.environment, "available_memory", lambda: 10**9)
    result, _, _ = answer(mesh=("1x1", "64x1"))
    assert {row.status for row in result.rows} == {"skipped"}
    assert "not enough memory" in result.rows[0].reason


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"clients": 3, "mesh": ("2x1",)}, OptionError),
        ({"clients": 3}, OptionError),
        ({"mesh": ("batch=2,data=2",)}, OptionError),
        ({"scaling": "medium"}, UnknownNameError),
        ({"layout": "diagonal"}, UnknownNameError),
        ({"placement": "zero9"}, UnknownNameError),
        ({"optimizer": "adamant"}, UnknownNameError),
        ({"threads": 10**6}, OptionError),
    ],
)
def test_usage_errors(options: Any, error: type) -> None:
    with pytest.raises(error):
        answer(**options)
    assert FakeClient.made == []


def test_clients_on_several_machines_are_found_in_the_environment() -> None:
    assert find_clients(None, {}) == Clients(1)
    assert find_clients(3, {}) == Clients(3)
    named = {JOBS: "host1:1000,host2:1000", CLIENT_ID: "1"}
    found = find_clients(None, named)
    assert found == Clients(2, local_client=1)
    assert not found.prints
    assert find_clients(None, {**named, CLIENT_ID: "0"}).prints
    with pytest.raises(OptionError, match=JOBS):
        find_clients(2, named)
    for wrong in ("", "2", "x", "-1"):
        with pytest.raises(OptionError, match=CLIENT_ID):
            find_clients(None, {**named, CLIENT_ID: wrong})


def test_a_single_client_sees_no_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JOBS, "")
    monkeypatch.setenv(CLIENT_ID, "7")
    (only,) = environments(Clients(1), 1)
    assert JOBS not in only
    assert CLIENT_ID not in only


def test_what_crosses_between_clients() -> None:
    def reduced(axes: tuple[str, ...], devices: int) -> Collective:
        return Collective("gradients", ALL_REDUCE, axes, devices, 1000, 1)

    mesh = parse_mesh("batch=2,model=2")
    # Two rings over batch, each device's neighbour on the other client; none over model.
    assert sent_by_a_client([reduced(("batch",), 2)], mesh, 2, on_cpu=True) == 2 * 1000
    assert sent_by_a_client([reduced(("model",), 2)], mesh, 2, on_cpu=True) == 0
    # One ring over all four: one of its edges leaves client 0.
    assert sent_by_a_client([reduced(("batch", "model"), 4)], mesh, 2, on_cpu=True) == 1500
    assert sent_by_a_client([reduced(("batch",), 2)], mesh, 1, on_cpu=True) == 0


def test_bytes_on_the_wire_are_counted() -> None:
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with socket.create_connection(server.getsockname()) as client, server.accept()[0] as other:
            before = bytes_sent()
            client.sendall(b"x" * 4321)
            other.recv(5000)
            after = bytes_sent()
    if before is None or after is None:
        pytest.skip("this kernel does not count the bytes of a connection")
    assert after - before == 4321


def test_exit_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    good, _, _ = answer(mesh=("1x1",))
    bad = replace(good, rows=(replace(good.rows[0], status="failed", reason="why"),))
    none = replace(good, rows=(replace(good.rows[0], status="skipped", reason="why"),))
    for result, hung, code in (
        (good, False, 0),
        (bad, False, Exit.BROKEN),
        (bad, True, Exit.NO_ANSWER),
        (none, False, Exit.NOTHING_RAN),
        (replace(good, interrupted=True), False, Exit.INTERRUPTED),
    ):
        monkeypatch.setattr(query, "answer", lambda result=result, hung=hung, **options: (result, hung, True))
        done = CliRunner().invoke(app, ["scale", "--json"])
        assert done.exit_code == code, done.output
        assert json.loads(done.stdout)["kind"] == "dtopt bench scale"
        assert CliRunner().invoke(app, ["scale"]).exit_code == code


def test_hosts_that_do_not_report_print_failures_only(monkeypatch: pytest.MonkeyPatch) -> None:
    result, _, _ = answer(failing(1, 0, "check"), mesh=("1x1",))
    monkeypatch.setattr(query, "answer", lambda **options: (result, False, False))
    done = CliRunner().invoke(app, ["scale", "--json"])
    assert (done.exit_code, done.stdout) == (3, "")
    assert "died of SIGKILL" in done.stderr


@pytest.mark.breadth
def test_two_real_clients_send_what_was_predicted_and_one_that_is_killed_ends_its_mesh() -> None:
    """Both meshes are alive at the same time; the client of the second is killed when its first sample is due."""
    begun: list[Any] = []

    def launch(setup: Setup, number: int, hello: dict[str, Any], environment: dict[str, str]) -> Any:
        child = start_client(setup, number, hello, environment)
        if setup.mesh.devices == 4 and number == 1:
            ask = child.request

            def request(do: str, **arguments: Any) -> None:
                if do == "sample":
                    os.kill(child.pid, signal.SIGKILL)
                ask(do, **arguments)

            child.request = request  # type: ignore[method-assign]
        begun.append(child)
        return child

    options = {"layout": "replicated", "placement": "zero1", "rounds": 3, "threads": 2}
    result, hung, _ = answer(launch, clients=2, mesh=("2x1", "2x2"), **options)
    whole, killed = result.rows
    assert whole.status == "ok", whole.reason
    assert (whole.parameter_bytes, whole.slot_bytes) == (whole.reported_parameter_bytes, whole.reported_slot_bytes)
    # Gradients are all-reduced and new parameters gathered, by all-reduces on CPU, between two: S and S.
    assert whole.predicted_sent_bytes == 2 * whole.parameter_bytes
    assert whole.measured_sent_bytes == pytest.approx(whole.predicted_sent_bytes, rel=0.02)
    assert whole.gradient_error < 1e-6
    assert len(whole.samples) == 3
    assert (killed.status, hung) == ("failed", False)
    assert killed.reason.startswith("client 1 died of SIGKILL")
    assert len(begun) == 4


@pytest.mark.breadth
def test_the_same_command_on_every_host_and_client_0_prints(tmp_path: Path) -> None:
    """Two hosts, both this machine, with DTensor's own environment variables."""
    jobs = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    words = ["bench", "scale", "--mesh", "2x1", "--rounds", "2", "--device", "cpu", "--threads", "1", "--json"]
    hosts = [
        subprocess.Popen(
            [sys.executable, "-m", "dtopt_cli", *words],
            env={**os.environ, "PYTHONPATH": str(ROOT), JOBS: jobs, CLIENT_ID: str(number)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        for number in range(2)
    ]
    (first, errors), (second, _) = (host.communicate(timeout=500) for host in hosts)
    assert [host.returncode for host in hosts] == [0, 0], errors
    assert second == ""
    (row,) = kinds.from_json(json.loads(first)).rows
    assert (row.clients, row.status) == (2, "ok")
    assert row.measured_sent_bytes == pytest.approx(row.predicted_sent_bytes, rel=0.02)
    assert row.client_seconds == ()
