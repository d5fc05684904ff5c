"""Kernels for GPUs: open the driver, and give the modules of rules to the ops (`cpp/gpu_step.h`).

The environment variable DTOPT_GPU switches steps on GPUs with these kernels `on` or `off`. `off` is the default,
because the kernels have run only by an emulated launch, and never on a device. With `off` nothing of CUDA is loaded.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from optim.errors import HyperparameterError
from optim.native import cuda, library, modules
from optim.native.compiling import BuildError
from optim.native.driver import DRIVER, Driver
from optim.native.generate import Program
from optim.native.mode import mode

VARIABLE = "DTOPT_GPU"
MODES = ("off", "on")

_log = logging.getLogger("optim")


class Gpus:
    """The interface of a library's ops to GPUs."""

    def __init__(self, path: Path):
        self._library: Any = ctypes.CDLL(str(path))
        self._library.DtoptOpenGpus.argtypes = [ctypes.c_char_p, ctypes.c_bool]
        self._library.DtoptOpenGpus.restype = ctypes.c_char_p
        self._library.DtoptAddGpuKernel.restype = None
        self._library.DtoptAddGpuLaunches.restype = None
        self._library.DtoptCloseGpus.restype = None

    def open(self, driver: str, is_test: bool = False) -> None:
        """Open CUDA's driver.

        Args:
          is_test: also launch the steps of variables on CPU devices, whose memory this driver's kernels use.

        Raises:
          BuildError: it is missing, or too old.
        """
        problem = self._library.DtoptOpenGpus(driver.encode(), is_test).decode()
        if problem:
            raise BuildError(problem)

    def close(self) -> None:
        """Launch no more steps, until a driver is opened again."""
        self._library.DtoptCloseGpus()

    def add(self, program: Program, dtype: str, image: bytes | str) -> None:
        """Add the module of a rule for variables of a dtype: PTX, or machine code of the GPU."""
        threads = cuda.shape(program, dtype).threads
        numbers = (program.shapes[0], len(program.scalars), cuda.most_tensors(program), threads, 0)
        for gradient_dtype in cuda.gradient_dtypes(dtype) if cuda.takes_dense(program) else ():
            self._add(program.name, dtype, gradient_dtype, cuda.name(program, dtype, gradient_dtype), image, numbers)
            if not cuda.is_elementwise(program):
                self._add_launches(program, dtype, gradient_dtype)
        if cuda.is_elementwise(program):
            of_one = (*numbers[:2], 1, threads, 0)
            name = cuda.row_name(program, dtype)
            self._add(f"{program.name} rows", dtype, cuda.summed(dtype), name, image, of_one)

    def add_packed(self, program: Program, image: bytes | str) -> None:
        """Add the module of a rule for state in few bits."""
        most = cuda.most_tensors(program, is_packed=True)
        numbers = (len(program.slots), len(program.scalars), most, cuda.PACKED_THREADS, 1)
        self._add(f"{program.name} packed", "float32", "float32", cuda.packed_name(program), image, numbers)

    def add_squares(self, image: bytes | str) -> None:
        """Add the module that adds up squares."""
        for dtype in cuda.TYPES:
            self._add("squares", dtype, dtype, cuda.squares_name(dtype), image, (0, 0, 0, cuda.SQUARES_THREADS, 0))
            self._add("table", dtype, dtype, cuda.table_name(dtype), image, (0, 0, 0, cuda.SQUARES_THREADS, 0))

    def _add_launches(self, program: Program, dtype: str, gradient_dtype: str) -> None:
        launches, passes = [*cuda.launches(program, dtype, gradient_dtype)], cuda.passes(program)
        numbers = [len(passes), *(number for counts in passes for number in counts)]
        visits = [number for launch in launches for number in (launch.visit, launch.number)]
        self._library.DtoptAddGpuLaunches(
            program.name.encode(),
            *(ctypes.c_int64(tf.as_dtype(kind).as_datatype_enum) for kind in (dtype, gradient_dtype)),
            ctypes.c_int64(sum(program.shapes[1:])),
            (ctypes.c_int64 * len(numbers))(*numbers),
            ctypes.c_int64(len(launches)),
            (ctypes.c_char_p * len(launches))(*(launch.name.encode() for launch in launches)),
            (ctypes.c_int64 * len(visits))(*visits),
        )

    def _add(
        self, rule: str, dtype: str, gradient_dtype: str, name: str, image: bytes | str, numbers: Sequence[int]
    ) -> None:
        data = image.encode() if isinstance(image, str) else image
        enums = (ctypes.c_int64(tf.as_dtype(kind).as_datatype_enum) for kind in (dtype, gradient_dtype))
        values, size = (ctypes.c_int64 * len(numbers))(*numbers), ctypes.c_int64(len(data))
        self._library.DtoptAddGpuKernel(rule.encode(), *enums, name.encode(), data, size, values)


class _Modules:
    """The modules that this process has given to the ops, and why others are missing."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.gpus: Gpus | None = None
        self.problem = ""
        """Why there is no driver."""
        self.reasons: dict[str, str] = {}
        """By the key of a module: empty after the ops got it."""


_modules = _Modules()
COMPILING = "it is being compiled in the background"


def is_on() -> bool:
    """Whether DTOPT_GPU asks for kernels on GPUs. Raises HyperparameterError for another value."""
    setting = os.environ.get(VARIABLE) or "off"
    if setting not in MODES:
        raise HyperparameterError(f"{VARIABLE} must be one of {', '.join(MODES)}, got {setting!r}")
    return setting == "on"


def why_not(program: Program, dtype: str) -> str:
    """Explain why no kernel updates variables of a dtype on a GPU; empty if one does. A missing one is compiled."""
    if not is_on():
        return f"dtopt's kernels for GPUs have not been run on a device yet; {VARIABLE}=on uses them"
    return _why_no_module(cuda.source(program, dtype), lambda gpus, image: gpus.add(program, dtype, image))


def why_not_packed(program: Program) -> str:
    """Explain why no kernel updates variables with state in few bits; empty if one does. A missing one is compiled."""
    if not cuda.takes_packed(program):
        return "no kernel adds up powers of gradients for state in few bits"
    return _why_no_module(cuda.packed_source(program), lambda gpus, image: gpus.add_packed(program, image))


def why_no_squares() -> str:
    """Explain why no kernel adds up squares, or gradients of rows, on a GPU; empty if one does."""
    return _why_no_module(cuda.SQUARES, Gpus.add_squares)


def stream(device: str) -> int:
    """Return the handle of the CUDA stream on which TensorFlow runs the work of a GPU, and on which kernels are
    launched.

    Args:
      device: such as "GPU:0".

    Raises:
      BuildError: the ops are missing. tf.errors.OpError: it is not a GPU.
    """
    status = library.status()
    if status.path is None:
        raise BuildError(status.reason)
    with tf.init_scope(), tf.device(device):
        return int(library.ops().dtopt_stream())


def _why_no_module(source: str, add: Callable[[Gpus, bytes], None]) -> str:
    """Explain why the ops do not have a module yet; empty if they do. A missing one is compiled in the background."""
    with _modules.lock:
        if _modules.gpus is None and not _modules.problem:
            _modules.problem = _open()
        if _modules.problem:
            return _modules.problem
        key, thread = modules.key(source), None
        if key not in _modules.reasons:
            _modules.reasons[key] = COMPILING
            thread = threading.Thread(target=_provide, args=(source, add), daemon=True, name="optim-compiling")
            thread.start()
    if thread is not None and (mode() == "build" or modules.at_hand(source) is not None):
        thread.join()
    return _modules.reasons[key]


def _open() -> str:
    """Open the driver. Returns the problem."""
    path = library.status().path
    if path is None:
        return library.status().reason
    gpus = Gpus(path)
    try:
        gpus.open(DRIVER)
    except BuildError as error:
        return str(error)
    _modules.gpus = gpus
    return ""


def _provide(source: str, add: Callable[[Gpus, bytes], None]) -> None:
    """Give a module to the ops, in a form that the driver accepts; compile it first if necessary."""
    assert _modules.gpus is not None
    try:
        add(_modules.gpus, modules.accepted(source, Driver(DRIVER)))
        _modules.reasons[modules.key(source)] = ""
    except (BuildError, OSError) as error:
        _log.warning("dtopt's GPU kernel is not used, steps run on TensorFlow's ops: %s", error)
        _modules.reasons[modules.key(source)] = str(error)
