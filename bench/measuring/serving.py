"""The other end of the pipe of `bench.measuring.process.Child`: answers requests in the child's process.

Requests and answers are dicts. An error is an answer too. The process ends at the end of the pipe. It also ends when
its parent ends, even while it is busy.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from bench.measuring.forking import tie
from optim.errors import DtoptError, UnsupportedError


def _answer(worker: Any, request: dict[str, Any]) -> dict[str, Any]:
    arguments = {key: value for key, value in request.items() if key != "do"}
    try:
        return {"ok": getattr(worker, request["do"])(**arguments)}
    except UnsupportedError as error:
        return {"unsupported": str(error)}
    except DtoptError as error:
        return {"error": str(error)}
    except Exception as error:  # the edge of the process: any error of a framework becomes a row with its reason
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {_first_line(error)}"}


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")


def answer_all(pipe: Connection, make: Callable[[dict[str, Any]], Any]) -> None:
    """Answer requests until the pipe ends. `make` takes the first message and returns the object with the methods."""
    hello = pipe.recv()
    try:
        os.sched_setaffinity(0, hello["cpus"])
        worker = make(hello)
        pipe.send({"ok": {}})
    except Exception as error:  # the edge of the process, as in _answer
        traceback.print_exc()
        pipe.send({"error": f"{type(error).__name__}: {_first_line(error)}"})
        return
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        pipe.send(_answer(worker, request))


def serve(make: Callable[[dict[str, Any]], Any]) -> None:
    """Serve the pipe that the command line names, then end."""
    tie()
    answer_all(Connection(int(sys.argv[1])), make)
    sys.stdout.flush()
    os._exit(0)  # frameworks can hang or crash when they shut down their threads; all answers are sent by now
