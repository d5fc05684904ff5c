"""Fork workers from a process that has imported TensorFlow: `python -m bench.measuring.forking FD`.

The import is most of a worker's start. It starts no device and no thread of TensorFlow. Threads that numpy's BLAS may
have are ended at a fork and start again in the child.

This process imports neither `optim` nor a peer. Each worker imports these itself, so that no worker sees the work of
another, and versions of `optim` that share an interpreter share a server.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""From linux/prctl.h."""


def tie() -> None:
    """Make Linux end this process when its parent ends, even if the parent is killed.

    Processes that this process starts remain its descendants, even if their parent has ended.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)


def imported_tensorflow() -> Any:
    """Import TensorFlow without the optional packages that it imports if they are installed.

    They are half of the import time (`tensorflow/__init__.py`, `tensorflow/lite/python/util.py`). A worker that needs
    them imports them later.
    """
    beside = [name for name in ("jax", "keras") if name not in sys.modules]
    sys.modules.update(dict.fromkeys(beside))  # type: ignore[arg-type]
    try:
        import tensorflow as tf
    finally:
        for name in beside:
            del sys.modules[name]
    return tf


def _become(pipe: int, output: int, module: str, folder: str, paths: list[str]) -> None:
    """Become what a new interpreter would be that runs the module, with these folders first on its path."""
    os.setsid()
    tie()
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    os.chdir(folder)
    sys.path[:1] = [folder, *paths]
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ["PYTHONPATH"]])
    sys.argv = [module, str(pipe)]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _fork(server: Connection, **request: Any) -> int:
    pipe, output = recv_handle(server), recv_handle(server)
    child = os.fork()
    if child:
        os.close(pipe)
        os.close(output)
        return child
    try:
        server.close()
        _become(pipe, output, **request)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _ended(server: Connection, process: int) -> int | None:
    pid, status = os.waitpid(process, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if pid else None


def serve() -> None:
    """Answer requests until the pipe ends: with the id of each forked process, or with its exit status."""
    tie()
    server = Connection(int(sys.argv[1]))
    os.sched_setaffinity(0, server.recv()["cpus"])
    imported_tensorflow()
    server.send({"ok": {}})
    while True:
        try:
            request = server.recv()
        except EOFError:
            return
        answer = _fork if request.pop("do") == "fork" else _ended
        server.send({"ok": answer(server, **request)})


if __name__ == "__main__":
    serve()
