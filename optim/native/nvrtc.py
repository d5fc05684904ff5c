"""NVRTC, NVIDIA's compiler of CUDA C, as a library: it needs neither a GPU nor a toolkit, and comes with
`tensorflow[and-cuda]`, or alone as `nvidia-cuda-nvrtc-cu12` from the package index."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ctypes.util import find_library
from functools import cache
from pathlib import Path

from optim.native.compiling import BuildError

LEAST = 70
"""The compute capability of PTX, 7.0, or the least that a newer NVRTC supports: all later GPUs accept it."""
PACKAGES = ("nvidia.cuda_nvrtc", "nvidia.cu13")
"""Folders of CUDA 12 and 13 in which pip puts the library."""
NAMES = ("libnvrtc.so.12", "libnvrtc.so.13")


class Nvrtc:
    """A loaded library.

    Attributes:
      version: (major, minor) of its CUDA release.
      architecture: the compute capability of its PTX, 70 for 7.0.
    """

    def __init__(self, path: str):
        self._library = ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        supported = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", supported)
        self.architecture = least_architecture(supported)

    def ptx(self, source: str, headers: Mapping[str, str], options: Sequence[str]) -> str:
        """Compile a module to PTX, which a driver compiles for its GPU.

        Args:
          headers: the texts of the files that it includes, by name.

        Raises:
          BuildError: with the first lines of the compiler's output.
        """
        target = f"compute_{self.architecture}"
        return self._compiled("PTX", source, headers, target, options).rstrip(b"\0").decode(errors="replace")

    def machine_code(self, source: str, headers: Mapping[str, str], options: Sequence[str], capability: int) -> bytes:
        """Compile a module for one compute capability, 90 for 9.0. Arguments and errors as for `ptx`."""
        return self._compiled("CUBIN", source, headers, f"sm_{capability}", options)

    def _compiled(
        self, what: str, source: str, headers: Mapping[str, str], target: str, options: Sequence[str]
    ) -> bytes:
        program = ctypes.c_void_p()
        count = len(headers)
        texts = (ctypes.c_char_p * count)(*(text.encode() for text in headers.values()))
        names = (ctypes.c_char_p * count)(*(name.encode() for name in headers))
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"rule.cu", count, texts, names)
        try:
            all_ = [f"--gpu-architecture={target}", *options]
            words = (ctypes.c_char_p * len(all_))(*(option.encode() for option in all_))
            if self._library.nvrtcCompileProgram(program, len(all_), words) != 0:
                log = self._output("ProgramLog", program).rstrip(b"\0").decode(errors="replace")
                raise BuildError(f"NVRTC failed: {' / '.join(log.strip().splitlines()[:3])}")
            return self._output(what, program)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _output(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    def _call(self, function: str, *arguments: object) -> None:
        code = getattr(self._library, function)(*arguments)
        if code != 0:
            raise BuildError(f"{function}: {self._library.nvrtcGetErrorString(code).decode()}")


def least_architecture(supported: Iterable[int]) -> int:
    """Return the compute capability for PTX of an NVRTC that supports these."""
    return min((architecture for architecture in supported if architecture >= LEAST), default=LEAST)


@cache
def find() -> Nvrtc:
    """Return the library of the package that pip installed, or of the system.

    Raises:
      BuildError: there is no library.
    """
    for path in _places():
        try:
            return Nvrtc(path)
        except OSError:
            continue
    raise BuildError("NVRTC, which compiles kernels for GPUs, is not installed: pip install nvidia-cuda-nvrtc-cu12")


def _places() -> Iterator[str]:
    for package in PACKAGES:
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        for folder in spec.submodule_search_locations or () if spec is not None else ():
            yield from sorted(map(str, (Path(folder) / "lib").glob("libnvrtc.so.*")))
    yield from NAMES
    if name := find_library("nvrtc"):
        yield name
