"""What the kernel's library does without an op, called through ctypes: a step's gradients are checked, and unpacked, in
one call each (`gradients.h`), and scalars read and written (`scalars.h`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.dtensor.python import api
from tensorflow.python.eager import context

EAGER_TENSORS = ("lib_pywrap_tensorflow_common.so", "_pywrap_tensorflow_internal.so")
"""Where TensorFlow 2.21, and earlier ones, keep the functions that take an eager tensor apart."""
IS_EAGER_TENSOR = "_Z22EagerTensor_CheckExactPK7_object"
HANDLE_OF = "_Z18EagerTensor_HandlePK7_object"
MESSAGE_SIZE = 1000


class Expected(ctypes.Structure):
    """What a gradient is like that can be used as it is: that of its variable, in the variable's layout."""

    _fields_ = (
        ("layout", ctypes.c_char_p),
        ("dtype", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
    )


def expected(layout: str | None, dtype: int, shape: Sequence[int] | None) -> Expected:
    """Args: `layout` as DTensor writes it, None without a mesh; `dtype` as TensorFlow's C API numbers it; `shape` of
    the whole tensor, None, which nothing fits, if it is not known."""
    text = None if layout is None else layout.encode()
    sizes = shape or ()
    return Expected(text, dtype, -1 if shape is None else len(sizes), (ctypes.c_int64 * len(sizes))(*sizes))


class _Runtime(ctypes.Structure):
    _fields_ = (
        ("is_eager_tensor", ctypes.c_void_p),
        ("handle_of", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("dtensor_device", ctypes.c_void_p),
    )


class _Loaded:
    """The kernel's library, and what TensorFlow's Python side has."""

    def __init__(self, library: Any, is_eager_tensor: int | None, handle_of: int | None):
        self.library = library
        self._functions = (is_eager_tensor, handle_of)
        self._last: tuple[Any, Any, Any] = (None, None, None)

    def runtime(self) -> Any:
        """A pointer to a `_Runtime`; the same one until TensorFlow's context or DTensor's device are others."""
        device = None if api._dtensor_singleton is None else api._dtensor_singleton._device_info
        handle = context.context()._handle
        if self._last[2] is None or self._last[0] is not handle or self._last[1] is not device:
            made = _Runtime(*self._functions, _pointer(handle), _pointer(device))
            self._last = (handle, device, ctypes.byref(made))
        return self._last[2]


_loaded: list[_Loaded] = []


def load(path: Path) -> None:
    """Find what is needed in the kernel at `path` and in TensorFlow. Raises OSError."""
    # PyDLL keeps Python's lock, under which DTensor's meshes are registered: nothing changes while they are read.
    library = ctypes.PyDLL(str(path))
    library.DtoptMisfits.restype = library.DtoptHold.restype = ctypes.c_int64
    library.DtoptMisfits.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64, ctypes.c_void_p]
    library.DtoptHold.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64]
    library.DtoptDrop.argtypes = [ctypes.c_int64]
    library.DtoptDrop.restype = None
    library.DtoptRead.restype = library.DtoptWrite.restype = ctypes.c_bool
    library.DtoptRead.argtypes = [ctypes.c_int64, ctypes.POINTER(ctypes.c_double)]
    library.DtoptWrite.argtypes = [ctypes.c_int64, ctypes.c_double]
    folder = Path(tf.sysconfig.get_lib()) / "python"
    for name in EAGER_TENSORS:
        try:
            found = ctypes.CDLL(str(folder / name))
            addresses = [ctypes.cast(found[symbol], ctypes.c_void_p).value for symbol in (IS_EAGER_TENSOR, HANDLE_OF)]
        except (OSError, AttributeError):
            continue
        _loaded[:] = [_Loaded(library, *addresses)]
        return
    raise OSError(f"TensorFlow {tf.version.VERSION} has no EagerTensor_Handle in {' or '.join(EAGER_TENSORS)}")


def read_scalar(number: int) -> float | None:
    """The value of the one variable in a group of that number; None if it cannot be read here."""
    value = ctypes.c_double()
    return value.value if _loaded[0].library.DtoptRead(number, value) else None


def write_scalar(number: int, value: float) -> bool:
    """Give it a value, rounded to its dtype; False if it cannot be given one here."""
    return bool(_loaded[0].library.DtoptWrite(number, float(value)))


def misfits(tensors: Sequence[Any], wanted: Sequence[Expected]) -> list[int]:
    """Positions of all that are no eager tensors as expected."""
    # A tensor that Python code still computes, in asynchronous mode, would wait for Python's lock, and this for it.
    context.context().sync_executors()
    count = len(tensors)
    found = (ctypes.c_int64 * count)()
    addresses = (ctypes.c_void_p * count)(*map(ctypes.addressof, wanted))
    number = _loaded[0].library.DtoptMisfits(_loaded[0].runtime(), _objects(tensors), addresses, count, found)
    return found[:number]


class Held:
    """Local tensors that the kernel's ops find under `number`, as long as this object lives."""

    def __init__(self, tensors: Sequence[Any]):
        """Args: eager tensors; a DTensor stands for its parts on the local devices, in the order of its mesh."""
        message = ctypes.create_string_buffer(MESSAGE_SIZE)
        self._library = _loaded[0].library
        runtime, objects = _loaded[0].runtime(), _objects(tensors)
        self.number = self._library.DtoptHold(runtime, objects, len(tensors), message, MESSAGE_SIZE)
        if self.number < 0:
            raise RuntimeError(f"the gradients cannot be read: {message.value.decode(errors='replace')}")

    def __del__(self) -> None:
        if getattr(self, "number", -1) >= 0:
            self._library.DtoptDrop(self.number)


def _objects(tensors: Sequence[Any]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*map(id, tensors))


def _pointer(capsule: Any) -> int | None:
    """What a PyCapsule holds."""
    if capsule is None:
        return None
    name_of, pointer_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return pointer_of(capsule, name_of(capsule))
