"""The kernel's ops inside functions over DTensors: register with DTensor's compiler that each device runs them on its
parts.

TensorFlow has no public way to do this (`spmd_expander.h`). The private one is used if it is as in TensorFlow 2.16 to
2.21, which `spmd.h` checks; with other versions steps in such functions use TensorFlow's own ops.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from optim.native.direct import DTENSORS, address

NAMES = (
    *("DtoptStep", "DtoptStepTogether", "DtoptPartSquares"),
    *("DtoptGather", "DtoptWindowSquares", "DtoptWindowClear"),
)
OPS, LIKE = tuple(f"tf.{name}".encode() for name in NAMES), b"tf.ResourceApplyAdam"
_STRING = "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
_REGISTRY = "_ZN10tensorflow7dtensor20SPMDExpanderRegistry"
SYMBOLS = (
    f"{_REGISTRY}6GlobalEv",
    f"{_REGISTRY}27GetPropagateFnForFullOpNameERK{_STRING}",
    f"{_REGISTRY}19RegisterPropagateFnE{_STRING}St10unique_ptrINS0_16SPMDExpanderBaseESt14default_deleteIS9_EE",
    "_ZTVN10tensorflow7dtensor16NoOpSPMDExpanderE",
)
"""In the order of struct Spmd."""

_works: list[bool] = []


def load(path: Path) -> None:
    """Register the op of the kernel at `path` with DTensor's compiler, if possible."""
    addresses = [address(symbol, DTENSORS) for symbol in SYMBOLS]
    # PyDLL keeps Python's lock: no other thread can call a function that DTensor would compile meanwhile.
    expand = ctypes.PyDLL(str(path)).DtoptExpandLike
    expand.restype = ctypes.c_bool
    expand.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    _works[:] = [
        None not in addresses and all(expand((ctypes.c_void_p * len(addresses))(*addresses), op, LIKE) for op in OPS)
    ]


def available() -> bool:
    """Whether functions over DTensors may use the op."""
    return _works == [True]
