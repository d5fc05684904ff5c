"""Synchronize the exit of a mesh's clients if each machine ends its own: a client waits while others read from it.

A client that has read its last collective is done. Its process may still be sending to clients that have not; if it
ended, their collective would be aborted. So they meet through the store of DTensor's coordination service, which is not
a collective.

The service runs in client 0. It waits until all others have reported that they are done, and then exits first. The
others wait until its process, and the service with it, is gone. A mesh that is started later on the same ports then
finds no trace of this one.
"""

from __future__ import annotations

from typing import Any

DONE, NEVER = "dtopt/bench/done", "dtopt/bench/never"


def leave(clients: int, client: int) -> None:
    """Return in client 0 when all are done; raise in the others when client 0 has ended."""
    store = _store()
    store.set_config_key_value(f"{DONE}/{client}", "yes")
    if client == 0:
        for number in range(clients):
            store.get_config_key_value(f"{DONE}/{number}")
    else:
        store.get_config_key_value(NEVER)


def _store() -> Any:
    """Return the store. A read of a value that is not set yet blocks until the service ends."""
    from tensorflow.python.eager import context

    return context.context()
