"""Whether the kernel is used, and why not.

The environment variable DTOPT_KERNELS says what happens: `auto` (the default) uses a build that is there, `build`
compiles at the first use if there is none, `off` leaves all to TensorFlow's kernels.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from optim.errors import HyperparameterError
from optim.native import build, direct

VARIABLE = "DTOPT_KERNELS"
MODES = ("auto", "build", "off")


@dataclass(frozen=True)
class KernelStatus:
    """Whether steps on CPU devices can use dtopt's own kernel; if not, `reason` says why and what to do."""

    available: bool
    reason: str
    path: Path | None = None


_NOT_BUILT = KernelStatus(False, "it was not compiled; call optim.build_kernels() once, or set DTOPT_KERNELS=build")
_lock = threading.Lock()
_known: dict[str, KernelStatus] = {}  # by mode; and "loaded" once there is one, for a process loads only one


def status() -> KernelStatus:
    """The state of the kernel under DTOPT_KERNELS, loading (or compiling) it at the first call.

    Raises:
      HyperparameterError: DTOPT_KERNELS is something else.
    """
    mode = os.environ.get(VARIABLE) or "auto"
    if mode not in MODES:
        raise HyperparameterError(f"{VARIABLE} must be one of {', '.join(MODES)}, got {mode!r}")
    if mode == "off":
        return KernelStatus(False, f"{VARIABLE}=off")
    with _lock:
        if "loaded" not in _known and mode not in _known:
            _known[mode] = _build_and_load() if mode == "build" else _load(build.cached())
        return _known.get("loaded") or _known[mode]


def build_kernels() -> KernelStatus:
    """Compile dtopt's own update kernel for this machine, which takes about half a minute, and use it from now on.

    The result stays in `$XDG_CACHE_HOME/dtopt/kernels` (`~/.cache/dtopt/kernels`), where later processes find it. Needs
    a C++ compiler (`CXX`, g++, c++ or clang++) and the headers that TensorFlow brings along. Raises nothing for want of
    them: the status says what is missing, and steps run on TensorFlow's kernels.
    """
    with _lock:
        if "loaded" not in _known:
            _known.clear()  # what was missing before may be there now
        return _known.get("loaded") or _build_and_load()


def _build_and_load() -> KernelStatus:
    try:
        return _load(build.build())
    except build.BuildError as error:
        return KernelStatus(False, str(error))


def _load(path: Path | None) -> KernelStatus:
    if path is None:
        return _NOT_BUILT
    try:
        tf.load_op_library(str(path))
        direct.load(path)
    except (tf.errors.OpError, OSError, RuntimeError) as error:
        return KernelStatus(False, f"{path} cannot be loaded: {str(error).splitlines()[0]}; delete it", path)
    _known["loaded"] = KernelStatus(True, "", path)
    return _known["loaded"]
