"""How fast `dtopt migrate` is and how much memory it takes, beside `cp` of the same file in the same run.

    python benchmarks/migration.py [--size GB] [--rounds N] [--folder DIR]

Makes its own inputs, one after the other: a tf.keras `.h5`, a TensorFlow checkpoint and a `.keras`. `cp` is followed by
`sync` of the copy, as a migration syncs what it writes. Each round measures both with the input in the page cache, and
both with it dropped from there (the disk below may cache for itself). Targets, each beside its number, for the input in
the page cache, where the disk hides least: at least half of `cp`'s throughput, migration and `verify` together in at
most twice the time of the migration, at most 500 MB and two of the largest tensor of memory, `inspect` in under a
second. Every command is a process of its own, start of Python included; byte code is compiled before, as for an
installed program. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from migration_inputs import ADAM, INPUTS, WIDTH, rows_for

ROOT = str(Path(__file__).resolve().parent.parent)
MEGABYTE = 1_000_000
DTOPT = (sys.executable, "-m", "dtopt_cli", "migrate")


@dataclass(frozen=True)
class Measured:
    """Of one input: `seconds` and `memory` (MB) of each command, the median and the greatest of the rounds."""

    name: str
    megabytes: float
    largest: float
    """MB of the largest tensor."""
    seconds: dict[str, float]
    memory: dict[str, float]


@dataclass(frozen=True)
class Row:
    """One line of the report; `met` is None where there is no target."""

    text: str
    target: str = ""
    met: bool | None = None


def environment(folder: Path) -> dict[str, str]:
    """So that Python finds this source tree, and keeps its byte code even where it is told not to."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
    return {**kept, **quiet, "PYTHONPATH": ROOT, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}


def run(command: list[str], env: dict[str, str]) -> tuple[float, float]:
    """(seconds, greatest resident memory in MB) of a command, which must succeed."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{' '.join(command)} failed")
    return seconds, usage.ru_maxrss * 1024 / MEGABYTE


def copied(files: list[Path], dest: Path) -> float:
    """Seconds of `cp`, and of writing the copy through to disk."""
    dest.mkdir()
    start = time.perf_counter()
    subprocess.run(["cp", *map(str, files), str(dest)], check=True)
    subprocess.run(["sync", *map(str, dest.iterdir())], check=True)
    seconds = time.perf_counter() - start
    shutil.rmtree(dest)
    return seconds


def drop_from_cache(files: list[Path]) -> None:
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def measure(name: str, folder: Path, size: int, rounds: int) -> Measured:
    """Make an input of about `size` bytes in `folder`, and measure."""
    file, make, needs_config = INPUTS[name]
    source, dest, copy = folder / file, folder / "out", folder / "copy"
    rows = rows_for(size)
    # In a process of its own: what a child of this one needs at most would else begin at what making the input took.
    maker = multiprocessing.get_context("spawn").Process(target=make, args=(source, rows))
    maker.start()
    maker.join()
    if maker.exitcode != 0:
        raise SystemExit(f"making {source.name} failed")
    files, env = sorted(folder.glob(file + "*")), environment(folder)
    hints = []
    if needs_config:
        (folder / "optimizer.json").write_text(json.dumps(ADAM))
        hints = ["--optimizer-config", str(folder / "optimizer.json")]
    commands = {
        "migrate": [*DTOPT, "checkpoint", str(source), str(dest), "--quiet", *hints],
        "verify": [*DTOPT, "verify", str(source), str(dest), *hints],
        "inspect": [*DTOPT, "inspect", str(source), *hints],
    }
    seconds, memory = defaultdict(list), defaultdict(list)

    def sample(what: str, command: str) -> None:
        taken, peak = run(commands[command], env)
        seconds[what].append(taken)
        memory[command].append(peak)

    run([sys.executable, "-c", "import tensorflow"], env)  # compiles the byte code
    run(commands["inspect"], env)
    for _ in range(rounds):  # in turn, so that a slow moment of the machine meets all of them
        drop_from_cache(files)
        seconds["cp cold"].append(copied(files, copy))
        drop_from_cache(files)
        sample("migrate cold", "migrate")
        shutil.rmtree(dest)
        seconds["cp"].append(copied(files, copy))
        for command in commands:
            sample(command, command)
        shutil.rmtree(dest)
    return Measured(
        name,
        sum(path.stat().st_size for path in files) / MEGABYTE,
        rows * WIDTH * 4 / MEGABYTE,
        {what: statistics.median(values) for what, values in seconds.items()},
        {command: max(values) for command, values in memory.items()},
    )


def report(measured: Measured) -> Iterator[Row]:
    """What was measured, beside its targets."""
    s, m = measured.seconds, measured.memory
    limit = 500 + 2 * measured.largest

    def speed(what: str) -> str:
        return f"{s[what]:7.2f} s  {measured.megabytes / s[what]:6.0f} MB/s"

    ratio, cold, both = s["cp"] / s["migrate"], s["cp cold"] / s["migrate cold"], 1 + s["verify"] / s["migrate"]
    yield Row(f"cp and sync         {speed('cp')}")
    yield Row(f"migrate             {speed('migrate')}  {ratio:5.2f}x cp", "0.5x", ratio >= 0.5)
    yield Row(f"cp, input dropped   {speed('cp cold')}")
    yield Row(f"migrate, likewise   {speed('migrate cold')}  {cold:5.2f}x cp")
    yield Row(f"verify              {speed('verify')}")
    yield Row(f"migrate and verify  {both:7.2f} times migrate", "2", both <= 2)
    for command, peak in m.items():
        yield Row(f"memory of {command:<10}{peak:7.0f} MB", f"{limit:.0f} MB", peak <= limit)
    yield Row(f"inspect             {s['inspect']:7.2f} s", "1 s", s["inspect"] <= 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, default=4.0, metavar="GB", help="of tensors in each input (default: 4)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where to put them; three times as much must be free (default: a temporary)")
    options = parser.parse_args()
    met = []
    for name in INPUTS:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            measured = measure(name, Path(folder), int(options.size * 1e9), options.rounds)
        load = "/".join(f"{n:.1f}" for n in os.getloadavg())
        print(
            f"{name}: {measured.megabytes:.0f} MB, largest tensor {measured.largest:.0f} MB, medians of"
            f" {options.rounds} rounds, load {load} on {os.cpu_count()} cores"
        )
        for row in report(measured):
            verdict = "" if row.met is None else f"   target {row.target}: {'met' if row.met else 'MISSED'}"
            print(f"  {row.text}{verdict}", flush=True)
            met.append(row.met is not False)
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
