"""Count the bytes that this process has sent over its open TCP connections, from the kernel's counters.

TensorFlow's clients exchange collectives over TCP (gRPC). So the difference around a step is the traffic of the step,
with a few hundred bytes of framing per message. The counter is `tcpi_bytes_sent` of `struct tcp_info` (linux/tcp.h,
from Linux 4.19 on): payload, including retransmitted bytes and loopback.
"""

from __future__ import annotations

import os
import socket
import struct

_OFFSET = 200
"""Offset of tcpi_bytes_sent, a 64-bit number, in `struct tcp_info`."""


def bytes_sent() -> int | None:
    """Return the bytes sent on all open TCP connections; None if the kernel does not count them."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        count = _of_descriptor(int(name))
        if count is None:
            return None
        total += count
    return total


def _of_descriptor(descriptor: int) -> int | None:
    """Return the bytes of a descriptor; 0 if it is not a connected TCP socket."""
    try:
        if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
            return 0
        copy = socket.socket(fileno=os.dup(descriptor))
    except OSError:  # closed in between
        return 0
    with copy:
        if copy.family not in (socket.AF_INET, socket.AF_INET6) or copy.type != socket.SOCK_STREAM:
            return 0
        info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return None if len(info) < _OFFSET + 8 else int(struct.unpack_from("Q", info, _OFFSET)[0])
