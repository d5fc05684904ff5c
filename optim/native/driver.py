"""CUDA's driver from Python: what kind of GPU it has, and whether it takes a module.

Only the GPUs that this process uses are looked at: a context on another one would take memory there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from optim.native.compiling import BuildError

PTX_IS_TOO_NEW = 222
"""CUDA_ERROR_UNSUPPORTED_PTX_VERSION: the PTX is of a newer CUDA than the driver."""
MAJOR, MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process uses.

    Attributes:
      capability: compute capability, 90 for 9.0.
    """

    device: int
    capability: int


class Driver:
    """A loaded driver. Raises BuildError: it is not there, or lacks functions."""

    def __init__(self, path: str):
        try:
            self._library = ctypes.CDLL(path)
            self._library.cuModuleUnload.argtypes = [ctypes.c_void_p]
            self._library.cuCtxPushCurrent_v2.argtypes = [ctypes.c_void_p]
            self._call("cuInit", 0)
        except (OSError, AttributeError) as error:
            raise BuildError(f"the CUDA driver ({path}) cannot be used: {error}") from error

    def version(self) -> str:
        """Return the CUDA release that the driver is of."""
        version = self._number("cuDriverGetVersion")
        return f"{version // 1000}.{version % 1000 // 10}"

    def gpus(self) -> Sequence[Gpu]:
        """Return the GPUs on which this process has a context."""
        count = self._number("cuDeviceGetCount")
        found = (self._number("cuDeviceGet", number) for number in range(count))
        return [Gpu(device, self._capability(device)) for device in found if self._is_used(device)]

    def result_of_loading(self, image: bytes, gpu: Gpu) -> int:
        """Load a module and drop it. Returns CUDA's error, 0 for none; the driver keeps what it compiled on disk."""
        module = ctypes.c_void_p()
        with self._context(gpu):
            code = int(self._library.cuModuleLoadDataEx(ctypes.byref(module), image, 0, None, None))
            if code == 0:
                self._call("cuModuleUnload", module)
        return code

    def text(self, code: int) -> str:
        """Describe an error."""
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(code, ctypes.byref(text))
        return f"{(text.value or b'unknown error').decode()} (CUDA error {code})"

    def _capability(self, device: int) -> int:
        major, minor = (self._number("cuDeviceGetAttribute", attribute, device) for attribute in (MAJOR, MINOR))
        return 10 * major + minor

    def _is_used(self, device: int) -> bool:
        flags, is_active = ctypes.c_uint(), ctypes.c_int()
        self._call("cuDevicePrimaryCtxGetState", device, ctypes.byref(flags), ctypes.byref(is_active))
        return bool(is_active.value)

    @contextmanager
    def _context(self, gpu: Gpu) -> Iterator[None]:
        context, last = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), gpu.device)
        try:
            self._call("cuCtxPushCurrent_v2", context)
            try:
                yield
            finally:
                self._call("cuCtxPopCurrent_v2", ctypes.byref(last))
        finally:
            self._call("cuDevicePrimaryCtxRelease_v2", gpu.device)

    def _number(self, function: str, *arguments: int) -> int:
        value = ctypes.c_int()
        self._call(function, ctypes.byref(value), *arguments)
        return value.value

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, function)(*arguments)
        if code != 0:
            raise BuildError(f"{function} failed: {self.text(code)}")
