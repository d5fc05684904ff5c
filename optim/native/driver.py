"""CUDA's driver from Python: the GPUs, whether they accept a module, and how long they work.

`Driver` is the library, `Stream` a queue of work on one GPU. It queries only the GPUs that this process uses: a context
on another one would use memory there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from optim.native.compiling import BuildError

DRIVER = "libcuda.so.1"
PTX_IS_TOO_NEW = 222
"""CUDA_ERROR_UNSUPPORTED_PTX_VERSION: the PTX is of a newer CUDA than the driver."""
CLOCK, MEMORY_CLOCK, BUS_WIDTH, CACHE, MAJOR, MINOR = 13, 36, 37, 38, 75, 76
"""Attributes of cuda.h: CU_DEVICE_ATTRIBUTE_CLOCK_RATE, MEMORY_CLOCK_RATE (both kHz), GLOBAL_MEMORY_BUS_WIDTH (bits),
L2_CACHE_SIZE, COMPUTE_CAPABILITY_MAJOR and _MINOR."""
TIMED = 0
"""CU_EVENT_DEFAULT: an event that knows when it happened."""
NAME_BYTES = 256


class DriverError(BuildError):
    """CUDA's driver is missing, or one of its functions failed."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process uses.

    Attributes:
      capability: compute capability, 90 for 9.0.
    """

    device: int
    capability: int


@dataclass(frozen=True)
class Facts:
    """The driver's facts about a GPU; None for unknown ones.

    Attributes:
      memory, cache: bytes, `cache` of the level that all multiprocessors share.
      clock, memory_clock: the highest, in Hz.
      bus_width: bits that the memory moves at once.
    """

    name: str
    memory: int
    clock: int | None
    memory_clock: int | None
    bus_width: int | None
    cache: int | None


class Driver:
    """A loaded driver. Raises DriverError: it is missing, or lacks functions."""

    def __init__(self, path: str = DRIVER):
        try:
            self._library = ctypes.CDLL(path)
            self.call("cuInit", 0)
        except OSError as error:
            raise DriverError(f"the CUDA driver ({path}) cannot be used: {error}") from error

    def version(self) -> str:
        """Return the CUDA release of the driver."""
        version = self._number("cuDriverGetVersion")
        return f"{version // 1000}.{version % 1000 // 10}"

    def gpus(self) -> Sequence[Gpu]:
        """Return the GPUs on which this process has a context."""
        count = self._number("cuDeviceGetCount")
        devices = (self._number("cuDeviceGet", number) for number in range(count))
        return [self._gpu(device) for device in devices if self._is_used(device)]

    def first(self) -> Gpu:
        """Return the first GPU that CUDA_VISIBLE_DEVICES allows. Raises DriverError: there is no GPU."""
        return self._gpu(self._number("cuDeviceGet", 0))

    def facts(self, gpu: Gpu) -> Facts:
        """Return the name of a GPU, and the sizes and speeds of its memory."""
        name, memory = ctypes.create_string_buffer(NAME_BYTES), ctypes.c_size_t()
        self.call("cuDeviceGetName", name, NAME_BYTES, gpu.device)
        self.call("cuDeviceTotalMem_v2", ctypes.byref(memory), gpu.device)
        return Facts(
            name=name.value.decode(errors="replace"),
            memory=memory.value,
            clock=self._known(gpu.device, CLOCK, 1000),
            memory_clock=self._known(gpu.device, MEMORY_CLOCK, 1000),
            bus_width=self._known(gpu.device, BUS_WIDTH),
            cache=self._known(gpu.device, CACHE),
        )

    def stream(self, handle: int) -> Stream:
        """Return a stream of a framework by its handle, a CUstream or cudaStream_t that is not 0."""
        context = ctypes.c_void_p()
        self.call("cuStreamGetCtx", ctypes.c_void_p(handle), ctypes.byref(context))
        return Stream(self, context.value, handle)

    def default_stream(self, gpu: Gpu) -> Stream:
        """Return the default stream of a GPU; this process then keeps its context."""
        return Stream(self, self._retained(gpu).value, None)

    def result_of_loading(self, image: bytes, gpu: Gpu) -> int:
        """Load a module and drop it. Returns CUDA's error, 0 for success; the driver caches machine code on disk."""
        module = ctypes.c_void_p()
        context = self._retained(gpu)
        try:
            with self.current(context.value):
                code = int(self._library.cuModuleLoadDataEx(ctypes.byref(module), image, 0, None, None))
                if code == 0:
                    self.call("cuModuleUnload", module)
        finally:
            self.call("cuDevicePrimaryCtxRelease_v2", gpu.device)
        return code

    def text(self, code: int) -> str:
        """Describe an error."""
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(code, ctypes.byref(text))
        return f"{(text.value or b'unknown error').decode()} (CUDA error {code})"

    def call(self, function: str, *arguments: object) -> None:
        """Call a function of the driver with ctypes for handles and sizes. Raises DriverError: it failed."""
        act = getattr(self._library, function, None)
        if act is None:
            raise DriverError(f"the CUDA driver has no {function}: install a later one")
        code = act(*arguments)
        if code != 0:
            raise DriverError(f"{function} failed: {self.text(code)}")

    @contextmanager
    def current(self, context: int | None) -> Iterator[None]:
        """Make a context current in this thread for the duration of the block."""
        last = ctypes.c_void_p()
        self.call("cuCtxPushCurrent_v2", ctypes.c_void_p(context))
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(last))

    def _retained(self, gpu: Gpu) -> ctypes.c_void_p:
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), gpu.device)
        return context

    def _gpu(self, device: int) -> Gpu:
        major, minor = (self._number("cuDeviceGetAttribute", attribute, device) for attribute in (MAJOR, MINOR))
        return Gpu(device, 10 * major + minor)

    def _known(self, device: int, attribute: int, scale: int = 1) -> int | None:
        try:
            return scale * self._number("cuDeviceGetAttribute", attribute, device) or None
        except DriverError:
            return None

    def _is_used(self, device: int) -> bool:
        flags, is_active = ctypes.c_uint(), ctypes.c_int()
        self.call("cuDevicePrimaryCtxGetState", device, ctypes.byref(flags), ctypes.byref(is_active))
        return bool(is_active.value)

    def _number(self, function: str, *arguments: int) -> int:
        value = ctypes.c_int()
        self.call(function, ctypes.byref(value), *arguments)
        return value.value


class Stream:
    """A queue of work on a GPU: work begins after all earlier work has ended. Errors are DriverErrors."""

    def __init__(self, driver: Driver, context: int | None, handle: int | None):
        self._driver, self._context, self._handle = driver, context, ctypes.c_void_p(handle)

    def allocate(self, size: int) -> int:
        """Return the address of `size` bytes of the GPU's memory."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def copy(self, to: int, of: int, size: int) -> None:
        """Begin to copy memory of the GPU to other memory of it."""
        addresses = ctypes.c_uint64(to), ctypes.c_uint64(of)
        self._call("cuMemcpyDtoDAsync_v2", *addresses, ctypes.c_size_t(size), self._handle)

    def fill(self, address: int, size: int) -> None:
        """Begin to fill memory with zeros."""
        self._call("cuMemsetD8Async", ctypes.c_uint64(address), ctypes.c_ubyte(0), ctypes.c_size_t(size), self._handle)

    def event(self) -> int:
        """Return a new event, which `record` puts into the queue."""
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), TIMED)
        assert event.value is not None
        return event.value

    def record(self, event: int) -> None:
        """Let an event happen after the work so far."""
        self._call("cuEventRecord", ctypes.c_void_p(event), self._handle)

    def seconds(self, first: int, last: int) -> float:
        """Wait until an event has happened. Returns the time since an earlier one, to half a microsecond."""
        milliseconds = ctypes.c_float()
        self._call("cuEventSynchronize", ctypes.c_void_p(last))
        self._call("cuEventElapsedTime", ctypes.byref(milliseconds), ctypes.c_void_p(first), ctypes.c_void_p(last))
        return milliseconds.value / 1e3

    def synchronise(self) -> None:
        """Wait for all work on the GPU."""
        self._call("cuCtxSynchronize")

    def _call(self, function: str, *arguments: object) -> None:
        with self._driver.current(self._context):
            self._driver.call(function, *arguments)
