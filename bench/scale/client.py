"""The process of one DTensor client: `python -m bench.scale.client FD`, driven as `bench.measuring.serving` describes.

Send every request to all clients of the mesh at the same time: their steps wait for each other.
"""

from __future__ import annotations

import resource
import time
from typing import Any

from bench.measuring.serving import serve
from bench.scale import parting
from bench.scale.setup import Setup
from bench.scale.wire import bytes_sent

CHECK_STEPS = 3
WARM_STEPS = 4
KIB = 1024


class Client:
    """Owns the one session of this process.

    Args:
      setup: the mesh.
      several: whether DTensor's environment variables name several clients.
      alone: whether this machine cannot reach another client, because it runs on another machine. Then numbers are
        collected through the mesh.
    """

    def __init__(self, setup: Setup, several: bool, alone: bool) -> None:
        self._setup = setup
        self._several = several
        self._alone = alone
        self._session: Any = None

    def prepare(self) -> dict[str, Any]:
        from bench.scale.session import Session, start

        begun = time.perf_counter()
        mesh = start(self._setup, self._several)
        self._session = Session(self._setup, mesh)
        self._session.synchronise()
        return {"seconds": time.perf_counter() - begun, "reported_bytes": self._session.reported_bytes()}

    def check(self) -> dict[str, Any]:
        """Return the error of the reduced gradients, and how far every parameter moves in the first steps."""
        error = self._session.reduced_gradient_error()
        for _ in range(CHECK_STEPS):
            self._session.step()
        self._session.synchronise()
        return {"gradient_error": self._largest(error), "movements": self._session.movements()}

    def warm(self) -> dict[str, Any]:
        """Run as many steps on every client, and return the time of the last."""
        for _ in range(WARM_STEPS - 1):
            self._session.time(1)
        return {"step_seconds": self._largest(self._session.time(1))}

    def sample(self, steps: int) -> dict[str, Any]:
        before = bytes_sent()
        seconds = self._session.time(steps)
        after = bytes_sent()
        sent = None if before is None or after is None or not self._several else (after - before) / steps
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB
        return {
            "seconds": self._largest(seconds),
            "sent": None if sent is None else self._largest(sent),
            "peak_bytes": peak,
        }

    def leave(self) -> dict[str, Any]:
        """Return when no client needs this process any more.

        Clients of one machine are ended together, after all have answered. Between machines each client is ended by its
        own parent, so they meet here first.
        """
        if self._alone:
            from tensorflow.experimental import dtensor

            parting.leave(self._setup.clients, dtensor.client_id())
        return {}

    def _largest(self, value: float) -> float:
        return self._session.largest_of_all_clients(value) if self._alone else value


def _make(hello: dict[str, Any]) -> Client:
    return Client(Setup.from_message(hello["setup"]), hello["several"], hello["alone"])


if __name__ == "__main__":
    serve(_make)
