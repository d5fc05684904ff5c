"""How fast a GPU copies its memory: what its kernels are held against, measured in the same rounds.

CUDA's driver copies one array to another, each larger than any cache: 4 bytes are read and 4 written per element.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from bench.peers.abilities import Abilities
from bench.peers.peer import Peer, Session
from optim.errors import UnsupportedError

if TYPE_CHECKING:
    from bench.cases.case import Case

DRIVER = "libcuda.so.1"
ELEMENTS = 64 * 1024 * 1024
"""Of each array: 256 MiB, five times the cache of an H100."""
FLOAT32 = 4


class DeviceMemory:
    """Two arrays on the first GPU, through the driver. Raises UnsupportedError: there is none, or no room."""

    def __init__(self, driver: str, size: int) -> None:
        self.size = size
        try:
            self._library: Any = ctypes.CDLL(driver)
        except OSError as error:
            raise UnsupportedError(f"there is no CUDA driver ({driver})") from error
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxPushCurrent_v2", context)
        self._from, self._to = self._allocated(), self._allocated()

    def copy(self) -> None:
        """Begin to copy one array to the other."""
        self._call("cuMemcpyDtoDAsync_v2", self._to, self._from, ctypes.c_size_t(self.size), None)

    def wait(self) -> None:
        """Return when the copies are done."""
        self._call("cuCtxSynchronize")

    def _allocated(self) -> ctypes.c_uint64:
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(self.size))
        return address

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, function)(*arguments)
        if code != 0:
            raise UnsupportedError(f"{function} of the CUDA driver failed with error {code}")


def session(memory: DeviceMemory) -> Session:
    """A session whose step is one copy."""
    return Session(
        place=lambda index, array: array,
        apply=lambda gradients: memory.copy(),
        wait=memory.wait,
        read=lambda index: [],  # type: ignore[arg-type, return-value]
    )


def _prepare(case: Case) -> Session:
    return session(DeviceMemory(DRIVER, ELEMENTS * FLOAT32))


COPY = Peer(
    name="roof: copy",
    summary="1 read, 1 write per element, by CUDA's driver",
    module=__name__,
    has=Abilities(("numpy",), "numpy"),
    prepare=_prepare,
)
