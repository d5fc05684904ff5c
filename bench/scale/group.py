"""The clients of one mesh on this machine: started, driven and ended together.

DTensor's clients wait for each other in every collective, so after the death of one the others would wait forever. All
pipes are watched together, and a failure of one ends all.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from bench.errors import OptionError
from bench.measuring.process import Child, HungError, WorkerError, allowed_cpus, fresh, worker_environment
from bench.scale.setup import Setup

JOBS, CLIENT_ID, NUM_CLIENTS, JOB_NAME = "DTENSOR_JOBS", "DTENSOR_CLIENT_ID", "DTENSOR_NUM_CLIENTS", "DTENSOR_JOB_NAME"

FIRST_PORT, TRIED_PORTS = 10_000, 200

GRACE = 1.0
"""Seconds to look for a death when a client reports an error."""

PARTING = 60.0
"""Seconds that a client waits at the end for those of other machines."""

Launch = Callable[[Setup, int, dict[str, Any], dict[str, str]], Child]
"""Maps (setup, number of the client on this machine, first message, environment) to the client's process."""


@dataclass(frozen=True)
class Clients:
    """The clients of a mesh.

    Attributes:
      count: DTensor clients of the whole mesh.
      local_client: the one client of this machine if others are on other machines; None if all are here.
    """

    count: int
    local_client: int | None = None

    @property
    def prints(self) -> bool:
        """Whether this machine reports the result."""
        return self.local_client in (None, 0)


def find_clients(count: int | None, environment: Mapping[str, str]) -> Clients:
    """Return the `--clients N` of this machine, or those that DTensor's environment variables name. Raises:
    OptionError."""
    jobs = [job for job in environment.get(JOBS, "").split(",") if job.strip()]
    if not jobs:
        return Clients(count or 1)
    if count is not None:
        raise OptionError(f"--clients starts clients on this machine, but {JOBS} names some already; unset one of them")
    text = environment.get(CLIENT_ID, "")
    if not text.isdigit() or int(text) >= len(jobs):
        raise OptionError(f"{CLIENT_ID} is {text!r}; with {len(jobs)} jobs in {JOBS} it must be 0 to {len(jobs) - 1}")
    return Clients(len(jobs), int(text))


def free_ports(count: int) -> list[int]:
    """Return unused ports of this machine, below the range for outgoing connections.

    The kernel could give a port of that range to any process before the clients listen on it.
    """
    ports: list[int] = []
    candidates = random.sample(range(FIRST_PORT, _first_handed_out()), TRIED_PORTS)
    for port in candidates:
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise OptionError(f"no {count} ports are free between {FIRST_PORT} and {_first_handed_out()}")


def _first_handed_out() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        first = 0
    return first if first > FIRST_PORT + TRIED_PORTS else 2**15


def environments(clients: Clients, threads: int) -> list[dict[str, str]]:
    """Return the environment of each client of this machine."""
    base = worker_environment(threads)
    if clients.local_client is not None:
        return [base]
    plain = {name: value for name, value in base.items() if name not in (JOBS, CLIENT_ID, NUM_CLIENTS, JOB_NAME)}
    if clients.count == 1:
        return [plain]
    jobs = ",".join(f"127.0.0.1:{port}" for port in free_ports(clients.count))
    named = {**plain, JOBS: jobs, NUM_CLIENTS: str(clients.count), JOB_NAME: "worker"}
    return [{**named, CLIENT_ID: str(number)} for number in range(clients.count)]


def start_client(setup: Setup, number: int, hello: dict[str, Any], environment: dict[str, str]) -> Child:
    return Child("bench.scale.client", hello, fresh(environment))


class Group:
    """The processes of one mesh. Every method raises WorkerError, which names the client, after ending all
    processes."""

    def __init__(self, setup: Setup, clients: Clients, launch: Launch = start_client) -> None:
        self._first = clients.local_client or 0
        self._children: list[Child] = []
        self._request = "start"
        several = clients.count > 1 or clients.local_client is not None
        cpus = allowed_cpus()
        try:
            for number, environment in enumerate(environments(clients, setup.threads)):
                mine = [cpus[(number * setup.threads + i) % len(cpus)] for i in range(setup.threads)]
                hello = {"setup": setup.to_message(), "several": several, "alone": clients.local_client is not None}
                self._children.append(launch(setup, number, {**hello, "cpus": sorted(set(mine))}, environment))
        except BaseException:
            self.stop()
            raise

    def started(self, timeout: float) -> None:
        """Wait until every process runs."""
        self._answers(timeout)

    def ask(self, do: str, timeout: float, **arguments: Any) -> list[dict[str, Any]]:
        """Send every client the same request at the same time; return the answers in the order of the clients."""
        self._request = do
        for number, child in enumerate(self._children):
            try:
                child.request(do, **arguments)
            except WorkerError as error:
                raise self._ended(number, error) from None
        return self._answers(timeout)

    def leave(self, timeout: float) -> None:
        """End the processes when the clients of other machines no longer need them.

        The measurements remain valid. A failure here means only that another machine finished or failed earlier.
        """
        with suppress(WorkerError):
            self.ask("leave", min(timeout, PARTING))
        self.stop()

    def _answers(self, timeout: float) -> list[dict[str, Any]]:
        answers: dict[int, dict[str, Any]] = {}
        until = time.monotonic() + timeout
        while len(answers) < len(self._children):
            waiting = {child.pipe: i for i, child in enumerate(self._children) if i not in answers}
            ready = wait(list(waiting), max(0.0, until - time.monotonic()))
            if not ready:
                silent = ", ".join(str(self._first + number) for number in waiting.values())
                self.stop()
                raise HungError(f"no answer within {timeout:g} s from client {silent} while asked to {self._request}")
            for number in sorted(waiting[pipe] for pipe in ready):  # type: ignore[index]
                try:
                    answers[number] = self._children[number].answer(0)
                except WorkerError as error:
                    raise self._ended(number, error) from None
        return [answers[number] for number in range(len(self._children))]

    def _ended(self, number: int, error: WorkerError) -> WorkerError:
        """End all clients, and return the error with the client's number.

        A client that dies makes the others fail, and their errors may arrive first: the death is the cause.
        """
        until = time.monotonic() + GRACE
        while len(self._children) > 1:
            dead = [(i, how) for i, child in enumerate(self._children) if (how := child.died()) is not None]
            if dead:
                number, error = dead[0][0], WorkerError(dead[0][1])
            if dead or time.monotonic() > until:
                break
            time.sleep(0.05)
        self.stop()
        who = f"client {self._first + number}" if len(self._children) > 1 or self._first else "the process"
        return type(error)(f"{who} {error}")

    def stop(self) -> None:
        for child in self._children:
            child.stop()
