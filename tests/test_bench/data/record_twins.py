"""Records one peer beside itself, as `--against` measures two versions: `python record_twins.py FILE [ROUNDS] [PEER]`.

The file holds the microseconds per step of both twins, round by round; their eight processes take turns.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from bench.step import against, run
from bench.step.query import make_plan
from tests.places import ROOT

PROCESSES = 8


def record(rounds: int, peer: str) -> dict[str, object]:
    before = os.getloadavg()[0]
    with against.home(str(ROOT)) as home:
        plan = make_plan(peer=(peer,), against=home, rounds=rounds, processes=PROCESSES)
        result = run.run(plan)
    times = [[round(1e6 * sample.seconds) for sample in row.samples] for row in result.rows]
    load = [round(x, 1) for x in (before, os.getloadavg()[0])]
    return {"peer": peer, "workload": plan.cases[0].workload, "load": load, "processes": PROCESSES, "twins": times}


if __name__ == "__main__":
    file, rounds, peer = (*sys.argv[1:], *("240", "optim-native")[len(sys.argv) - 2 :])
    Path(file).write_text(json.dumps(record(int(rounds), peer), separators=(",", ":")) + "\n")
