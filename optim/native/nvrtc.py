"""NVRTC, NVIDIA's compiler of CUDA C, as a library: it needs neither a GPU nor a toolkit, and comes with
`tensorflow[and-cuda]`, or alone as `nvidia-cuda-nvrtc-cu12` from the package index."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from ctypes.util import find_library
from functools import cache
from pathlib import Path

from optim.native.compiling import BuildError

PACKAGES = ("nvidia.cuda_nvrtc", "nvidia.cu13")
"""Of CUDA 12 and 13, in which pip puts the library."""
NAMES = ("libnvrtc.so.12", "libnvrtc.so.13")


class Nvrtc:
    """A loaded library.

    Attributes:
      version: (major, minor) of the CUDA release that it is of.
    """

    def __init__(self, path: str):
        self._library = ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)

    def ptx(self, source: str, headers: Mapping[str, str], options: Sequence[str]) -> str:
        """Compile a module.

        Args:
          headers: the texts of the files that it includes, by name.

        Raises:
          BuildError: with the first lines of what the compiler says.
        """
        program = ctypes.c_void_p()
        count = len(headers)
        texts = (ctypes.c_char_p * count)(*(text.encode() for text in headers.values()))
        names = (ctypes.c_char_p * count)(*(name.encode() for name in headers))
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"rule.cu", count, texts, names)
        try:
            words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            if self._library.nvrtcCompileProgram(program, len(options), words) != 0:
                lines = self._text("ProgramLog", program).strip().splitlines()
                raise BuildError(f"NVRTC failed: {' / '.join(lines[:3])}")
            return self._text("PTX", program)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _text(self, what: str, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, buffer)
        return buffer.value.decode(errors="replace")

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, function)(*arguments)
        if code != 0:
            raise BuildError(f"{function}: {self._library.nvrtcGetErrorString(code).decode()}")


@cache
def find() -> Nvrtc:
    """The library, of the package that pip installed, or of the system.

    Raises:
      BuildError: there is none.
    """
    for path in _places():
        try:
            return Nvrtc(path)
        except OSError:
            continue
    raise BuildError("NVRTC is not installed; pip install nvidia-cuda-nvrtc-cu12")


def _places() -> Iterator[str]:
    for package in PACKAGES:
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        for folder in spec.submodule_search_locations or () if spec is not None else ():
            yield from sorted(map(str, (Path(folder) / "lib").glob("libnvrtc.so.*")))
    yield from NAMES
    if found := find_library("nvrtc"):
        yield found
