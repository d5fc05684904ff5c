"""Processes that can be interrupted, whatever started the tests."""

from __future__ import annotations

import signal


def listen_to_sigint() -> None:
    """For `preexec_fn`: a shell that runs the tests in the background has its children ignore SIGINT, and theirs."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
