"""Run commands and measure their time and their peak memory."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from optim.errors import DtoptError

KIB = 1024
TAIL = 300


class CommandError(DtoptError):
    """A measured command failed; the message becomes the reason of the row."""


def environment(folder: Path) -> dict[str, str]:
    """Return an environment in which Python imports from the same path as this process, caches byte code, and is quiet.

    Byte code is cached even if this process has caching disabled.
    """
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    return {**inherited, **quiet, "PYTHONPATH": path, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}


def run(command: Sequence[str], env: Mapping[str, str], folder: Path, timeout: float) -> tuple[float, int]:
    """Return the seconds and peak resident bytes of a command run in `folder`.

    Raises: CommandError if it fails or takes longer than `timeout` seconds.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as stderr:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, env=dict(env), cwd=folder)
        ender = threading.Timer(timeout, process.kill)
        ender.start()
        try:
            status, usage = _wait(process)
        finally:
            ender.cancel()
        seconds = time.perf_counter() - start
        if status == -signal.SIGKILL and seconds >= timeout:
            raise CommandError(f"`{_shown(command)}` took longer than {timeout:.0f} s")
        if status != 0:
            stderr.seek(0)
            words = [line.strip() for line in stderr.read().splitlines() if line.strip()]
            raise CommandError(
                f"`{_shown(command)}` ended with {status}: {words[-1][-TAIL:] if words else 'no message'}"
            )
    return seconds, usage.ru_maxrss * KIB


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, resource.struct_rusage]:
    """Return the exit code and usage of a process; end it if this process is interrupted."""
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        process.kill()
        process.wait()
        raise
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage


def _shown(command: Sequence[str]) -> str:
    return " ".join(Path(word).name if os.path.isabs(word) else word for word in command)


def copy(files: Sequence[Path], dest: Path) -> float:
    """Return the seconds of `cp` and of syncing the copy to the disk."""
    dest.mkdir()
    start = time.perf_counter()
    subprocess.run(["cp", *map(str, files), str(dest)], check=True)
    subprocess.run(["sync", *map(str, dest.iterdir())], check=True)
    seconds = time.perf_counter() - start
    shutil.rmtree(dest)
    return seconds


def drop_from_cache(files: Sequence[Path]) -> None:
    """Drop files from the page cache; the disk may have its own cache."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
