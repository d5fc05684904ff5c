"""How the clients of a mesh part when each machine ends its own: nobody goes while another still reads from it.

A client that has read its last collective is done, but its process may still be sending to those that have not: when it
ends, their collective is aborted. So they meet through the store of DTensor's coordination service, which is no
collective. The service lives in client 0, which therefore ends last to be needed and first to go: it waits until all
have said that they are done, and the others wait until its process, and the service with it, is gone. A mesh that is
started afterwards on the same ports then meets nothing of this one.
"""

from __future__ import annotations

from typing import Any

DONE, NEVER = "dtopt/bench/done", "dtopt/bench/never"


def leave(clients: int, client: int) -> None:
    """Returns in client 0 when all are done; raises in the others when client 0 has ended."""
    store = _store()
    store.set_config_key_value(f"{DONE}/{client}", "yes")
    if client == 0:
        for number in range(clients):
            store.get_config_key_value(f"{DONE}/{number}")
    else:
        store.get_config_key_value(NEVER)


def _store() -> Any:
    """Blocks for values that nobody has set yet, until the service ends."""
    from tensorflow.python.eager import context

    return context.context()
