"""Traces of steps: what a reader of Chrome's format needs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.step import trace
from tests.places import ROOT


class Sleeps:
    def run(self, steps: int) -> None:
        time.sleep(0.002 * steps)

    def synchronise(self) -> None: ...


def place(event: dict[str, Any]) -> tuple[Any, ...]:
    return event["pid"], event["tid"], event["ts"], -event["dur"]


def check(document: dict[str, Any], steps: int) -> list[dict[str, Any]]:
    """The complete events, after what the format asks for was found to hold."""
    events = json.loads(json.dumps(document, allow_nan=False))["traceEvents"]
    whole = [event for event in events if event["ph"] == "X"]
    assert {event["ph"] for event in events} == {"X", "M"}
    assert min(event["ts"] for event in whole) == 0
    for event in whole:
        assert event["dur"] >= 0
        assert event["name"]
    for event in events:
        assert all(isinstance(event[key], (int, str)) for key in ("pid", "tid"))
        assert not isinstance(event["tid"], int) or abs(event["tid"]) < 2**31
    for _, row in groupby(sorted(whole, key=place), key=lambda event: (event["pid"], event["tid"])):
        open_until: list[float] = []
        for event in row:  # readers draw what begins within another below it
            while open_until and open_until[-1] <= event["ts"]:
                open_until.pop()
            assert not open_until or event["ts"] + event["dur"] <= open_until[-1] + 1e-6
            open_until.append(event["ts"] + event["dur"])
    names = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in whole} <= names
    named = [event["name"] for event in whole if event["name"].startswith("step ")]
    assert named == [f"step {number}" for number in range(1, steps + 1)]
    return whole


def test_steps_without_a_framework_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    whole = check(trace.record(Sleeps(), 4), 4)
    assert all(event["dur"] >= 2000 for event in whole)
    assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(whole))


PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
import tensorflow as tf
from bench.step.trace import record
v = tf.ones([64, 64])
class Session:
    def run(self, steps):
        for _ in range(steps): tf.matmul(v, v).numpy()
    def synchronise(self): pass
json.dump(record(Session(), 3), open(sys.argv[2], "w"))
"""


@pytest.mark.breadth
def test_what_tensorflow_does_lies_within_the_steps(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    subprocess.run([sys.executable, "-c", PROGRAM, str(ROOT), str(file)], check=True)
    whole = check(json.loads(file.read_text()), 3)
    steps = [event for event in whole if event["name"].startswith("step ")]
    ran = [event for event in whole if "MatMul" in event["name"]]
    low, high = steps[0]["ts"], steps[-1]["ts"] + steps[-1]["dur"]
    inside = [event for event in ran if low - 1000 <= event["ts"] <= high + 1000]
    assert len(inside) >= 3
