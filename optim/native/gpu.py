"""Kernels for GPUs: the driver is opened, and the modules of rules are handed to the ops (`cpp/gpu_step.h`).

The environment variable DTOPT_GPU says whether steps on GPUs use them: `off` (the default, as they have been run by an
emulated launch only, and never on a device) or `on`. With `off` nothing of CUDA is loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import os
import threading
from functools import cache
from pathlib import Path
from typing import Any

import tensorflow as tf

from optim.errors import HyperparameterError
from optim.native import build, cuda, library, nvrtc
from optim.native.compiling import BuildError, is_intact
from optim.native.generate import Program

VARIABLE = "DTOPT_GPU"
MODES = ("off", "on")
DRIVER = "libcuda.so.1"

_log = logging.getLogger("optim")


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
        threads = cuda.shape(program, dtype).threads
        numbers = (len(program.slots), len(program.scalars), cuda.most_tensors(program), threads)
        for given in cuda.given(dtype):
            self._library.DtoptAddGpuKernel(
                program.name.encode(),
                *(ctypes.c_int64(tf.as_dtype(name).as_datatype_enum) for name in (dtype, given)),
                cuda.name(program, dtype, given).encode(),
                ptx.encode(),
                (ctypes.c_int64 * len(numbers))(*numbers),
            )


class _Modules:
    """The modules that this process has handed to the ops, and why others are not there."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.gpus: Gpus | None = None
        self.problem = ""
        """Why there is no driver."""
        self.reasons: dict[tuple[str, str], str] = {}
        """By program and dtype: empty once it was handed over."""


_modules = _Modules()
COMPILING = "it is being compiled in the background"


def is_on() -> bool:
    """Whether DTOPT_GPU asks for kernels on GPUs. Raises HyperparameterError: it is something else."""
    found = os.environ.get(VARIABLE) or "off"
    if found not in MODES:
        raise HyperparameterError(f"{VARIABLE} must be one of {', '.join(MODES)}, got {found!r}")
    return found == "on"


def why_not(program: Program, dtype: str) -> str:
    """Why no kernel updates variables of a dtype on a GPU; empty if one does. A missing one is compiled."""
    if not is_on():
        return f"dtopt's kernels for GPUs have not been run on a device yet; {VARIABLE}=on uses them"
    if not cuda.is_elementwise(program):
        return "its rule needs more than the gradient of an element, for which there is no kernel on GPUs yet"
    with _modules.lock:
        if _modules.gpus is None and not _modules.problem:
            _modules.problem = _open()
        if _modules.problem:
            return _modules.problem
        key = (program.name, dtype)
        if key not in _modules.reasons:
            _modules.reasons[key] = COMPILING
            thread = threading.Thread(target=_provide, args=(program, dtype), daemon=True, name="optim-compiling")
            thread.start()
        else:
            thread = None
    if thread is not None and (library.mode() == "build" or find(program, dtype) is not None):
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


def _provide(program: Program, dtype: str) -> None:
    """Hand a module to the ops, compiled first if it is not in the cache."""
    assert _modules.gpus is not None
    key = (program.name, dtype)
    try:
        _modules.gpus.add(program, dtype, module(program, dtype))
        _modules.reasons[key] = ""
    except (BuildError, OSError) as error:
        _log.warning("dtopt's GPU kernel is not used, steps run on TensorFlow's ops: %s", error)
        _modules.reasons[key] = str(error)


def module(program: Program, dtype: str) -> str:
    """The PTX of a rule for variables of a dtype, from the cache, or compiled and kept there.

    Raises:
      BuildError: there is no NVRTC, or it failed. OSError: the cache cannot be written.
    """
    found = find(program, dtype)
    if found is not None:
        return found.read_text(encoding="utf-8")
    text = nvrtc.find().ptx(cuda.source(program, dtype), headers(), cuda.OPTIONS)
    path = cached(program, dtype)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    record = {"key": _key(program, dtype), "size": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    for target, content in ((path, text), (path.with_suffix(".json"), json.dumps(record))):
        part = target.with_name(f"{target.name}.{os.getpid()}")
        part.write_text(content, encoding="utf-8")
        os.replace(part, target)
    return text


def find(program: Program, dtype: str) -> Path | None:
    """A module in the cache; None if there is none, or it is not whole."""
    path = cached(program, dtype)
    return path if is_intact(path, _key(program, dtype)) else None


def cached(program: Program, dtype: str) -> Path:
    """Where a module is in the user's cache."""
    return build.cache_folder() / f"gpu-{_key(program, dtype)[:16]}.ptx"


@cache
def headers() -> dict[str, str]:
    """What the text of a module includes, by name."""
    return {name: build.text(name) for name in build.GPU_SOURCES}


@cache
def _key(program: Program, dtype: str) -> str:
    return build.digest(cuda.source(program, dtype), *headers().values(), *cuda.OPTIONS)
