"""Compile `update.cc` and keep the result in the user's cache.

One build serves one version of the sources, TensorFlow and processor: all that it depends on is hashed into its name.
The compiler is not, so that a build outlives it: with the flags below, IEEE arithmetic leaves no compiler a choice of
results.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import tensorflow as tf

SOURCE = Path(__file__).with_name("update.cc")
HEADERS = ("numbers.h", "rules.h", "pieces.h", "threads.h", "groups.h", "gradients.h", "scalars.h")
COMPILERS = ("g++", "c++", "clang++")  # the environment variable CXX goes before
FLAGS = (
    "-O3",
    "-march=native",
    "-fno-math-errno",  # a vector sqrt; values stay the same
    "-fno-trapping-math",  # vector code for choices; values stay the same
    "-ffp-contract=off",  # no fused multiply-add, or vector bodies and scalar tails would round differently
    "-w",
    "-shared",
    "-fPIC",
)
LIMIT = 600  # seconds that a compiler may take


class BuildError(Exception):
    """Why there is no build; never leaves `optim.native`."""


def cached() -> Path | None:
    """The build for this machine, or None if there is none."""
    path = _path()
    return path if path.is_file() and _is_ours(path) else None


def build() -> Path:
    """Compile, unless that was done before; processes that build at the same time wait for one of them.

    Raises:
      BuildError: no compiler, or it failed, or the cache cannot be written.
    """
    found = cached()
    if found is not None:
        return found
    path = _path()
    command = [_compiler(), str(SOURCE), *FLAGS, *tf.sysconfig.get_compile_flags()]
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _lock(path.with_suffix(".lock")):
            return cached() or _compile(command, path)
    except OSError as error:
        raise BuildError(f"the cache {path.parent} cannot be used: {error}; set XDG_CACHE_HOME to a folder") from error


def _compile(command: list[str], path: Path) -> Path:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        try:
            done = subprocess.run(
                [*command, "-o", str(made), *_link_flags()],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"{command[0]} took longer than {LIMIT} s") from error
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
            raise BuildError(f"{command[0]} failed: {' / '.join(said[:3]) or f'exit status {done.returncode}'}")
        os.replace(made, path)
    return path


def _link_flags() -> list[str]:
    """TensorFlow's, and the same for the library beside it that has DTensor."""
    flags = tf.sysconfig.get_link_flags()
    return [*flags, *(f.replace("framework", "cc") for f in flags if f.startswith("-l"))]


def _compiler() -> str:
    names = [os.environ["CXX"]] if os.environ.get("CXX") else COMPILERS
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise BuildError(f"no C++ compiler: {', '.join(names)} not found; install one, or set CXX")
    return found


def _path() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root) / "dtopt" / "kernels" / f"update-{_key()}.so"


@cache
def _key() -> str:
    parts = (
        *(SOURCE.with_name(name).read_text(encoding="utf-8") for name in (SOURCE.name, *HEADERS)),
        tf.version.VERSION,
        tf.version.GIT_VERSION,
        " ".join([*FLAGS, *(f for f in tf.sysconfig.get_compile_flags() if not f.startswith("-I"))]),
        platform.system(),
        platform.machine(),
        _processor(),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def _processor() -> str:
    """What `-march=native` goes by: the model and its instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    names = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.split("\t")[0].strip() in names}))


def _is_ours(path: Path) -> bool:
    """Whether nobody but this user and root can have put it there: it is about to be run."""
    if os.name != "posix":
        return True
    status = path.stat()
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & 0o022


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    if os.name != "posix":  # os.replace alone keeps builds whole; the lock only spares a second one
        yield
        return
    import fcntl

    with open(path, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
