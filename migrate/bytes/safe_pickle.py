"""Read pickles of numpy arrays without running anything that the file names.

A pickle is a program. Here it may name the few constructors with which numpy arrays and scalars are written.
Replacements below get the parts and check them, because numpy's C code does not. Python 2
wrote str for bytes, hence latin1.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from migrate.errors import DamagedFileError
from optim.errors import UnsupportedError


class _Dtype:
    """`numpy.dtype('f4', False, True)`, then `__setstate__((3, '<', ...))` for the byte order."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        text = code.decode("latin1") if isinstance(code, bytes) else code
        if not isinstance(text, str) or text.lstrip("<>|=")[:1] not in tuple("biufcO") or len(text) > 4:
            raise UnsupportedError(f"it holds an array of dtype {code!r}, which no optimizer state has")
        self.dtype = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        order = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "=", "|"):
            raise UnsupportedError(f"it holds an array of byte order {order!r}")
        if any(part is not None for part in state[2:5]):
            raise UnsupportedError("it holds an array with named fields, which no optimizer state has")
        self.dtype = self.dtype.newbyteorder(">" if order == ">" else "<")


class _Array:
    """`numpy.ndarray`, built by `_reconstruct` and `__setstate__((1, shape, dtype, fortran_order, data))`."""

    value: Any = None

    def __init__(self, *_: Any) -> None:
        return

    def __setstate__(self, state: Any) -> None:
        shape, dtype, fortran, data = state[-4:]
        if not isinstance(dtype, _Dtype):
            raise UnsupportedError("it builds an array from something that is no dtype")
        if dtype.dtype.hasobject:
            if not isinstance(data, list):
                raise UnsupportedError("it builds an array of objects from raw memory")
            self.value = data
        else:
            self.value = _from_bytes(data, dtype).reshape(shape, order="F" if fortran else "C")


def _from_bytes(data: Any, dtype: _Dtype) -> np.ndarray:
    raw = data.encode("latin1") if isinstance(data, str) else data
    if dtype.dtype.hasobject or not isinstance(raw, (bytes, bytearray, memoryview)):
        raise UnsupportedError("it builds an array from something that is not bytes")
    array = np.frombuffer(raw, dtype=dtype.dtype)
    return array.astype(dtype.dtype.newbyteorder("="))


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _scalar(dtype: Any, data: Any = b"") -> np.ndarray:
    if not isinstance(dtype, _Dtype):
        raise UnsupportedError("it builds a number from something that is no dtype")
    return _from_bytes(data, dtype).reshape(())


def _frombuffer(buffer: Any, dtype: Any, shape: Any, order: Any = "C") -> np.ndarray:
    """The constructor that protocol 5 uses for contiguous arrays."""
    if not isinstance(dtype, _Dtype):
        raise UnsupportedError("it builds an array from something that is no dtype")
    return _from_bytes(buffer, dtype).reshape(shape, order="F" if order == "F" else "C")


def _encode(text: Any, encoding: Any = None) -> bytes:
    """`_codecs.encode`, with which protocols up to 2 write bytes from Python 3."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise UnsupportedError("it encodes text differently than numpy does")
    return text.encode("latin1")


def _empty_bytes() -> bytes:
    """`bytes()`, with which protocols up to 2 write b"" from Python 3."""
    return b""


ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _empty_bytes,
    ("builtins", "bytes"): _empty_bytes,
    **{
        (f"{package}.{module}", name): function
        for package in ("numpy.core", "numpy._core")
        for module, name, function in (
            ("multiarray", "_reconstruct", _reconstruct),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _frombuffer),
        )
    },
}


class _NumpyOnly(pickle.Unpickler):
    """An unpickler that resolves only names of this file."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            called = f"{module}.{name}"
            shown = called if called.isprintable() else repr(called)
            raise UnsupportedError(
                f"it calls {shown}; only numpy arrays, numbers, lists and tuples are read, and nothing in a pickle is"
                " ever run. If it is an optimizer's list and you trust it, load it there and save it with numpy.savez"
            )
        return ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise UnsupportedError("it refers to objects outside itself")


def loads(data: bytes, where: str) -> Any:
    """Load a pickle of numpy arrays, strings and numbers, in lists and in mappings by strings. Tuples become lists.

    Raises:
      UnsupportedError: it calls anything but numpy's constructors, or has other values.
      DamagedFileError: it is truncated or not a pickle.
    """
    return _plain(_loaded(data, where), where, lambda array: array)


def loads_config(data: bytes, where: str) -> dict[str, Any]:
    """Load a mapping of strings, numbers and the like from a pickle, as from `get_config()`, in JSON's types.

    Raises: as `loads`.
    """
    config = _plain(_loaded(data, where), where, _as_number)
    if not isinstance(config, dict):
        raise UnsupportedError(f"{where} is a pickle that is refused: it is no mapping, as get_config() gives it")
    return config


def is_pickle(data: bytes) -> bool:
    """Whether bytes begin like a pickled mapping of any protocol, unlike any JSON."""
    return data.startswith((b"\x80", b"(d", b"}"))


def _loaded(data: bytes, where: str) -> Any:
    try:
        _check_memo(data)
        return _NumpyOnly(io.BytesIO(data), encoding="latin1").load()
    except UnsupportedError as error:
        raise UnsupportedError(f"{where} is a pickle that is refused: {error}") from None
    # The errors of a malformed pickle are not documented; these are those of its instructions and the replacements.
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        OverflowError,
        MemoryError,
        RecursionError,
    ) as error:
        reason = str(error) or type(error).__name__
        raise DamagedFileError(f"{where} is not a readable pickle ({reason}); the file is damaged") from error


def _check_memo(data: bytes) -> None:
    """Refuse a memo with gaps: Python allocates it up to the greatest index, which four bytes can make 32 GB."""
    for count, (name, argument) in enumerate(_instructions(data)):
        if name in ("PUT", "BINPUT", "LONG_BINPUT") and not 0 <= (argument or 0) <= count + 1:
            raise pickle.UnpicklingError(f"its memo starts at {argument}")


_OPCODES = {opcode.code: opcode for opcode in pickletools.opcodes}


def _instructions(data: bytes) -> Iterator[tuple[str, Any]]:
    """Yield a pickle's instructions by name with their arguments, whose lengths are checked.

    Like `pickletools.genops`, but that reads Python 2's strings as ASCII although they may contain bytes of arrays.
    """
    stream = io.BytesIO(data)
    while code := stream.read(1):
        opcode = _OPCODES.get(code.decode("latin1"))
        if opcode is None:
            raise pickle.UnpicklingError(f"there is no instruction {code!r}")
        if opcode.name == "STRING":
            yield opcode.name, stream.readline()
        else:
            yield opcode.name, None if opcode.arg is None else opcode.arg.reader(stream)
        if opcode.name == "STOP":
            return
    raise pickle.UnpicklingError("it ends before its last instruction")


def _plain(content: Any, where: str, of_array: Callable[[np.ndarray], Any]) -> Any:
    """The unpickled value without the replacements. A list that occurs twice is converted once."""
    open_ = object()
    seen: dict[int, Any] = {}

    def convert(value: Any) -> Any:
        if isinstance(value, _Array):
            value = value.value
        if isinstance(value, np.ndarray):
            return of_array(value)
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if not isinstance(value, (dict, list, tuple)):
            raise UnsupportedError(
                f"it holds {type(value).__name__}; only arrays, strings, numbers, lists and dicts are allowed"
            )
        if id(value) not in seen:
            seen[id(value)] = open_
            if isinstance(value, dict):
                seen[id(value)] = {_as_word(key): convert(member) for key, member in value.items()}
            else:
                seen[id(value)] = [convert(member) for member in value]
        if seen[id(value)] is open_:
            raise UnsupportedError("it holds itself")
        return seen[id(value)]

    try:
        return convert(content)
    except (UnsupportedError, RecursionError) as error:
        reason = str(error) if isinstance(error, UnsupportedError) else "its lists are nested too deep"
        raise UnsupportedError(f"{where} is a pickle that is refused: {reason}") from None


def _as_word(key: Any) -> str:
    if not isinstance(key, str):
        raise UnsupportedError(f"it has {type(key).__name__} for a name")
    return key


def _as_number(array: np.ndarray) -> Any:
    if array.shape != ():
        raise UnsupportedError("it holds an array; only strings, numbers, lists and dicts are allowed")
    return array.item()
