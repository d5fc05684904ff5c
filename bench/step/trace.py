"""Record what a worker does in a few steps, as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing.

The format is Chrome's ("Trace Event Format", Google, 2016): a JSON object. Its `traceEvents` are complete events ("X")
with `ts` and `dur` in microseconds, and metadata ("M") that names threads. TensorFlow records XPlanes, which are
converted; for other frameworks only the steps are recorded.
"""

from __future__ import annotations

import glob
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.measuring.clock import Steps

STEPS_ROW = "steps"


def record(session: Steps, steps: int) -> dict[str, Any]:
    """Return the trace of `steps` steps, waiting for each."""
    profile = _tensorflow if "tensorflow" in sys.modules else _nothing
    marks: list[tuple[int, int]] = []  # nanoseconds

    def work() -> None:
        for _ in range(steps):
            start = time.time_ns()
            session.run(1)
            session.synchronise()
            marks.append((start, time.time_ns()))

    session.synchronise()
    events = profile(work)
    process = os.getpid()
    events += [_name("thread_name", process, 0, STEPS_ROW), _name("process_name", process, 0, f"worker {process}")]
    events += [_complete(f"step {i}", process, 0, 1000 * a, 1000 * (b - a)) for i, (a, b) in enumerate(marks, 1)]
    first = min(event["ts"] for event in events if "ts" in event)
    for event in events:  # from 0: microseconds since 1970 lose their fractions in a double, and events no longer nest
        if "ts" in event:
            event["ts"] = (event["ts"] - first) / 1e6
            event["dur"] /= 1e6
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _nothing(work: Callable[[], None]) -> list[dict[str, Any]]:
    work()
    return []


def _tensorflow(work: Callable[[], None]) -> list[dict[str, Any]]:
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        try:
            work()
        finally:
            tf.profiler.experimental.stop()
        return list(_of_planes(folder))


def _of_planes(folder: str) -> Iterator[dict[str, Any]]:
    """Convert XPlanes to events: a plane is a process, a line is a thread (`xplane.proto` of OpenXLA)."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    for file in glob.glob(f"{folder}/**/*.xplane.pb", recursive=True):
        space = xplane_pb2.XSpace.FromString(Path(file).read_bytes())
        began = max(map(_began, space.planes), default=0)
        for process, plane in enumerate((plane for plane in space.planes if plane.lines), 1):
            yield _name("process_name", process, 0, plane.name)
            for thread, line in enumerate(plane.lines, 1):  # the ids are too long for readers of the format
                yield _name("thread_name", process, thread, line.display_name or line.name)
                for event in line.events:
                    kind = plane.event_metadata[event.metadata_id]
                    start = 1000 * (began + line.timestamp_ns) + event.offset_ps
                    yield _complete(kind.display_name or kind.name, process, thread, start, event.duration_ps)


def _began(plane: Any) -> int:
    """Return when the times of a space begin, in nanoseconds since 1970, from its environment plane; 0 if it is not
    stored."""
    for stat in plane.stats:
        if plane.stat_metadata[stat.metadata_id].name == "profile_start_time":
            return int(stat.uint64_value or stat.int64_value)
    return 0


def _complete(name: str, process: int, thread: int, start: int, duration: int) -> dict[str, Any]:
    """Return a complete event; start and duration are in picoseconds."""
    return {"name": name, "ph": "X", "pid": process, "tid": thread, "ts": start, "dur": duration}


def _name(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
