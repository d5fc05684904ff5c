"""Calls of the kernel's library without an op (`calls.h`).

They check and unpack a step's gradients in one call (`gradients.h`), update groups of variables (`update.h`), and read
and write scalars (`scalars.h`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.dtensor.python import api
from tensorflow.python.eager import context

EAGER_TENSORS = ("python/lib_pywrap_tensorflow_common.so", "python/_pywrap_tensorflow_internal.so")
"""Files of TensorFlow 2.21, and earlier ones, with the functions that read the parts of an eager tensor."""
DTENSORS = ("libtensorflow_cc.so.2", *EAGER_TENSORS)
"""Files with the functions that read the parts of a DTensor."""
SYMBOLS = {
    "_Z22EagerTensor_CheckExactPK7_object": EAGER_TENSORS,
    "_Z18EagerTensor_HandlePK7_object": EAGER_TENSORS,
    "_ZN10tensorflow7dtensor6UnpackEP11TFE_ContextP16TFE_TensorHandlePvP10TSL_Status": DTENSORS,
    "_ZN10tensorflow7dtensor11FetchLayoutB5cxx11EP11TFE_ContextP16TFE_TensorHandlePvP10TSL_Status": DTENSORS,
    "TFE_DeleteTensorHandle": DTENSORS,
    "TFE_TensorHandleDataType": DTENSORS,
    "TFE_TensorHandleDeviceName": DTENSORS,
    "TFE_TensorHandleDim": DTENSORS,
    "TFE_TensorHandleNumDims": DTENSORS,
    "TFE_TensorHandleResolve": DTENSORS,
}
"""Functions of TensorFlow, first its private ones, and the files that may have them; in the order of struct Runtime."""
INSIDES = (
    "_ZTVN10tensorflow7dtensor18TensorWithLayoutTfE",
    "TFE_TensorHandleDevicePointer",
    "_ZNK10tensorflow7dtensor18TensorWithLayoutTf11num_tensorsEv",
    "_ZNK10tensorflow7dtensor18TensorWithLayoutTf10get_tensorEm",
    "_ZNK10tensorflow7dtensor18TensorWithLayoutTf6layoutEv",
    "_ZNK10tensorflow7dtensor6Layout8ToStringB5cxx11Ev",
)
"""Functions of the class of DTensors, next in that struct. They are not used if TensorFlow lacks one of them, or
has another version than those that we examined.
"""
TENSOR_OF = "_ZNK10tensorflow12TensorHandle6TensorEPPKNS_6TensorE"
"""`TensorHandle::Tensor`, which shares the buffer of a tensor on any device; the same condition applies."""
LOOKED_AT = ("2.16", "2.17", "2.18", "2.19", "2.20", "2.21")
FUNCTIONS = ("hold", "drop", "read", "write", "sort", "squares", "update", "control", "is_left_out")
"""Functions of the kernel's library, as in `calls.h`."""


class Expected(ctypes.Structure):
    """The properties of a gradient that can be used unchanged: those of its variable, in the variable's layout."""

    _fields_ = (
        ("layout", ctypes.c_char_p),
        ("dtype", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
    )


def expected(layout: str | None, dtype: int, shape: Sequence[int] | None) -> Expected:
    """Return the expected properties.

    Args:
      layout: as DTensor writes it, None without a mesh.
      dtype: as TensorFlow's C API numbers it.
      shape: of the whole tensor; None, which no tensor matches, if it is unknown.
    """
    text = None if layout is None else layout.encode()
    sizes = shape or ()
    return Expected(text, dtype, -1 if shape is None else len(sizes), (ctypes.c_int64 * len(sizes))(*sizes))


class AllExpected:
    """The expected properties of each gradient of a step, one after the other."""

    def __init__(self, properties: Sequence[Expected]):
        self._properties = [*properties]  # they own texts and shapes
        self._array = (Expected * len(properties))(*properties)
        self.count, self.address = len(properties), ctypes.addressof(self._array)


class _Runtime(ctypes.Structure):
    _fields_ = (
        ("is_eager_tensor", ctypes.c_void_p),
        ("handle_of", ctypes.c_void_p),
        ("unpack", ctypes.c_void_p),
        ("fetch_layout", ctypes.c_void_p),
        ("delete_handle", ctypes.c_void_p),
        ("dtype_of", ctypes.c_void_p),
        ("device_of", ctypes.c_void_p),
        ("dim_of", ctypes.c_void_p),
        ("rank_of", ctypes.c_void_p),
        ("resolve", ctypes.c_void_p),
        ("tensor_of", ctypes.c_void_p),
        ("dtensor_class", ctypes.c_void_p),
        ("object_of", ctypes.c_void_p),
        ("count_of", ctypes.c_void_p),
        ("part_of", ctypes.c_void_p),
        ("layout_of", ctypes.c_void_p),
        ("text_of", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("dtensor_device", ctypes.c_void_p),
    )


class _Method(ctypes.Structure):
    """`PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class _Loaded:
    """The functions of the kernel's library, and the functions of TensorFlow's Python side."""

    def __init__(self, library: Any, addresses: Sequence[int | None]):
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p] * 3
        table = (_Method * len(FUNCTIONS)).in_dll(library, "dtopt_functions")
        functions = {method.name.decode(): make(ctypes.addressof(method), None, None) for method in table}
        self.hold, self.drop, self.read, self.write = (functions[name] for name in FUNCTIONS[:4])
        self.sort, self.squares, self.update = (functions[name] for name in FUNCTIONS[4:7])
        self.control, self.is_left_out = (functions[name] for name in FUNCTIONS[7:])
        self.shares_buffers = addresses[len(SYMBOLS)] is not None
        self._library = library
        self._addresses = addresses
        self._last: tuple[Any, Any, Any] = (None, None, None)

    def runtime(self) -> Any:
        """A `_Runtime`; the same one until TensorFlow's context or DTensor's device changes."""
        device = None if api._dtensor_singleton is None else api._dtensor_singleton._device_info
        handle = context.context()._handle
        if self._last[2] is None or self._last[0] is not handle or self._last[1] is not device:
            runtime = _Runtime(*self._addresses, _pointer(handle), _pointer(device))
            runtime.address = ctypes.addressof(runtime)
            self._last = (handle, device, runtime)
        return self._last[2]


_loaded: list[_Loaded] = []


def load(path: Path, looks_inside: bool = True) -> None:
    """Find the required functions in the kernel at `path` and in TensorFlow; `available` shows if any are missing.

    Args:
      looks_inside: whether to read DTensors directly if possible, or always by DTensor's device.
    """
    addresses = [address(symbol, files) for symbol, files in SYMBOLS.items()]
    inside = [address(symbol, DTENSORS) for symbol in INSIDES]
    is_known = looks_inside and tf.version.VERSION.startswith(tuple(f"{v}." for v in LOOKED_AT))
    if None in inside or not is_known:
        inside = [None] * len(INSIDES)
    if None not in addresses:
        tensor_of = address(TENSOR_OF, DTENSORS) if is_known else None
        _loaded[:] = [_Loaded(ctypes.CDLL(str(path)), [*addresses, tensor_of, *inside])]


def available() -> bool:
    """Whether gradients can be read without ops: the kernel is loaded, and TensorFlow has the private functions."""
    return bool(_loaded)


def reads_gpus() -> bool:
    """Whether gradients on a GPU can be held: `hold` shares their buffers."""
    return bool(_loaded) and _loaded[0].shares_buffers


def address(symbol: str, files: Sequence[str]) -> int | None:
    """Return the address of a TensorFlow function in the first of these files of its wheel that has it; None if no file
    does."""
    for name in files:
        try:
            return ctypes.cast(ctypes.CDLL(str(Path(tf.sysconfig.get_lib()) / name))[symbol], ctypes.c_void_p).value
        except (OSError, AttributeError):
            continue
    return None


def read_scalar(number: int) -> float | None:
    """Return the value of the one variable in a group of that number; None if it cannot be read here."""
    value = _loaded[0].read(number) if _loaded else False
    return None if value is False else value


def write_scalar(number: int, value: float) -> bool:
    """Set the value of the one variable in a group, rounded to its dtype; False if it cannot be set here."""
    return bool(_loaded) and _loaded[0].write(number, value)


class Held:
    """Local tensors that the kernel finds under `number`, as long as this object lives."""

    _drop: Any = None

    def __init__(self, number: int):
        self.number = number
        self._drop = _loaded[0].drop

    def __del__(self) -> None:
        if self._drop is not None:  # Ctrl-C may come before it is set
            self._drop(self.number)


def hold(tensors: Sequence[Any]) -> Held:
    """Hold eager tensors; of a DTensor its parts on the local devices, in the order of its mesh."""
    loaded = _loaded[0]
    return Held(loaded.hold(loaded.runtime().address, [*tensors], 0))


def hold_if(tensors: Sequence[Any], wanted: AllExpected) -> Held | list[int]:
    """Hold tensors if all have the expected properties, checked in the same pass.

    If not, nothing is held. Returns the positions of all that are not eager tensors as expected, or that cannot be
    checked.
    """
    if not _loaded or len(tensors) != wanted.count:
        return list(range(len(tensors)))
    # Keeping Python's lock would deadlock with a tensor that Python code still computes, in asynchronous mode.
    context.context().sync_executors()
    loaded = _loaded[0]
    result = loaded.hold(loaded.runtime().address, [*tensors], wanted.address)
    return result if isinstance(result, list) else Held(result)


def sort(values: Any, indices: Any, rows: int, powers: Sequence[int] = ()) -> Held:
    """Sort `IndexedSlices` of a table with this many rows, without a mesh, in float32 or float64.

    Returns: each row once, and where the sums of its gradients and of their `powers` are.

    Raises RuntimeError: they do not fit the table, or each other.
    """
    context.context().sync_executors()  # as above
    loaded = _loaded[0]
    return Held(loaded.sort(loaded.runtime().address, values, indices, rows, [*powers]))


def place_of(rows: Held) -> int:
    """Return the argument of `update` for a variable whose gradient comes from `sort`."""
    return -2 - rows.number


def square_sums(group: int, tensors: Held, sources: Sequence[int]) -> list[float]:
    """Return the sum of squares of each of the tensors at `sources`, added up in float64 by the threads of any
    group."""
    sums: list[float] = _loaded[0].squares(group, tensors.number, [*sources])
    return sums


def update(
    group: int,
    tensors: Held,
    options: Sequence[float],
    scales: Sequence[float] = (),
    decays: Sequence[float] = (),
    rows: Sequence[int] = (),
    overwrite: bool = False,
    control: Held | None = None,
    packing: Sequence[float] = (),
) -> None:
    """Step the variables of a group, as `calls.h` describes. Raises RuntimeError: impossible; nothing changed."""
    number = NO_CONTROL if control is None else control.number
    _loaded[0].update(group, tensors.number, [*options], [*scales], [*decays], [*rows], overwrite, number, [*packing])


NO_CONTROL = -1


def control(group: int, tensors: Held, sources: Sequence[int], numbers: Sequence[float]) -> Held:
    """Return what the GPU of a group computes from the gradients at `sources`, as `calls.h` describes. It does not
    wait."""
    return Held(_loaded[0].control(group, tensors.number, [*sources], [*numbers]))


def is_left_out(control: Held) -> bool:
    """Whether the GPU left a step out. Waits for launches before that step, and not for later ones."""
    return bool(_loaded[0].is_left_out(control.number))


def _pointer(capsule: Any) -> int | None:
    """Return the pointer in a PyCapsule."""
    if capsule is None:
        return None
    name_of, pointer_of = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return pointer_of(capsule, name_of(capsule))
