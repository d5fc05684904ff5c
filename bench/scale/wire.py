"""Bytes that this process has sent over its open TCP connections, counted by the kernel.

TensorFlow's clients exchange collectives over TCP (gRPC), so the difference around a step is what the step sent, with a
few hundred bytes of framing per message. The counter is `tcpi_bytes_sent` of `struct tcp_info` (linux/tcp.h, from Linux
4.19 on): payload, retransmitted bytes included, of loopback too.
"""

from __future__ import annotations

import os
import socket
import struct

_OFFSET = 200
"""Of tcpi_bytes_sent, a 64-bit number, in `struct tcp_info`."""


def bytes_sent() -> int | None:
    """Bytes sent on all TCP connections that are open now; None where the kernel does not count them."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        count = _of_descriptor(int(name))
        if count is None:
            return None
        total += count
    return total


def _of_descriptor(descriptor: int) -> int | None:
    """0 for what is no connected TCP socket."""
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
