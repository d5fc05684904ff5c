"""Kernels for GPUs: the driver is opened, and the modules of rules are handed to the ops (`cpp/gpu_step.h`).

Nothing of CUDA is loaded before that. So far no step on a GPU asks for it: the ops launch kernels in tests only, on a
driver of the tests' own.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import tensorflow as tf

from optim.native import cuda
from optim.native.compiling import BuildError
from optim.native.generate import Program


class Gpus:
    """What the ops in a library know of GPUs."""

    def __init__(self, path: Path):
        self._library: Any = ctypes.CDLL(str(path))
        self._library.DtoptOpenGpus.argtypes = [ctypes.c_char_p, ctypes.c_bool]
        self._library.DtoptOpenGpus.restype = ctypes.c_char_p
        self._library.DtoptAddGpuKernel.restype = None
        self._library.DtoptCloseGpus.restype = None

    def open(self, driver: str, is_test: bool = False) -> None:
        """Open CUDA's driver.

        Args:
          is_test: also launch the steps of variables on CPU devices, whose memory this driver's kernels work on.

        Raises:
          BuildError: it is not there, or too old.
        """
        problem = self._library.DtoptOpenGpus(driver.encode(), is_test).decode()
        if problem:
            raise BuildError(problem)

    def close(self) -> None:
        """Launch no more steps, until a driver is opened again."""
        self._library.DtoptCloseGpus()

    def add(self, program: Program, dtype: str, ptx: str) -> None:
        """Take the module of a rule for variables of a dtype."""
        numbers = (
            len(program.slots),
            len(program.scalars),
            cuda.most_tensors(program),
            cuda.shape(program, dtype).threads,
        )
        for given in cuda.given(dtype):
            self._library.DtoptAddGpuKernel(
                program.name.encode(),
                *(ctypes.c_int64(tf.as_dtype(name).as_datatype_enum) for name in (dtype, given)),
                cuda.name(program, dtype, given).encode(),
                ptx.encode(),
                (ctypes.c_int64 * len(numbers))(*numbers),
            )
