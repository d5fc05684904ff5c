"""How long the command line takes to answer, beside a bare Python start in the same run.

    python benchmarks/startup.py

Targets: `dtopt --help` under 0.3 s, `dtopt migrate inspect FILE.h5` under 0.6 s. Exit code 1 if one is missed.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "tests/fixtures/corpus/tf24-adam-convbn/source/model.h5"
RUNS = 15
DTOPT = str(Path(sys.executable).with_name("dtopt"))
COMMANDS: dict[str, tuple[list[str], float | None]] = {
    "python -c pass": ([sys.executable, "-c", "pass"], None),
    "dtopt --help": ([DTOPT, "--help"], 0.3),
    "dtopt migrate inspect FILE.h5": ([DTOPT, "migrate", "inspect", str(FILE)], 0.6),
}


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> int:
    samples: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(RUNS):  # in turn, so that a slow moment of the machine meets all of them
        for name, (command, _) in COMMANDS.items():
            samples[name].append(seconds(command))
    bare = statistics.median(samples["python -c pass"])
    missed = False
    for name, (_, target) in COMMANDS.items():
        median = statistics.median(samples[name])
        verdict = "" if target is None else f"   target {target} s: {'met' if median <= target else 'MISSED'}"
        missed |= target is not None and median > target
        print(f"{name:<32}{median:6.3f} s  {median / bare:5.1f}x a bare start{verdict}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
