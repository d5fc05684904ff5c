"""Exit codes of the commands; `docs/benchmarking.md` lists those of `dtopt bench`."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """The codes. USAGE, BROKEN, NOTHING_RAN and INCOMPARABLE are `exit_code`s of `DtoptError`s."""

    OK = 0
    NO = 1
    """The answer is no: slower, does not fit, a number differs."""
    USAGE = 2
    BROKEN = 3
    NOTHING_RAN = 4
    TOO_NOISY = 5
    INCOMPARABLE = 6
    NO_ANSWER = 124
    """As of `timeout`."""
    INTERRUPTED = 130
    """As in shells for SIGINT."""
    NOBODY_READS = 141
    """The output's reader is gone, as after `head`; as in shells for SIGPIPE."""
