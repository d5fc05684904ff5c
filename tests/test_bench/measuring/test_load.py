"""Whose CPU time is whose, and what a process took that it was not given."""

from __future__ import annotations

import os
import subprocess
import sys

from bench.measuring import load

HELPED = """
import os, sys, time
if os.fork() == 0:
    while time.process_time() < 0.3: pass
    os._exit(0)
os.wait()
print(flush=True)
sys.stdin.read()
"""
"""Has a helper, which works and ends."""

KINDER = """
import os, subprocess
from bench.measuring import load
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
before = load.find_violations([child.pid], os.sched_getaffinity(0))
os.nice(1)
print(before, load.find_violations([child.pid], os.sched_getaffinity(0))[child.pid])
child.kill()
"""
"""Has a child that comes before it."""


def test_what_helpers_used_that_have_ended_counts() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HELPED], stdin=pipe, stdout=pipe, start_new_session=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        found = load.read([process.pid], sorted(os.sched_getaffinity(0)))
        process.stdin.close()
    assert found is not None
    assert found.sessions[process.pid] >= 0.25


def test_a_higher_priority_is_seen() -> None:
    found = subprocess.run([sys.executable, "-c", KINDER], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "{} took a higher priority than it was given"
