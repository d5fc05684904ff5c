"""How many checkpoints a cluster of Dask migrates in an hour.

    python docs/benchmarks/fleet.py [SMALL [LARGE [WORKERS]]]

SMALL (1000) `.h5` models of 0.9 MB and LARGE (2) of 1 GB, on WORKERS (2) processes of this machine. They are links to
two files, so that they come from memory and not from a disk.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import migrate
from bench.migration.inputs import LAYERS, WIDTH, make_h5

GIGABYTE_ROWS = 10**9 // (LAYERS * WIDTH * 4 * 3)
"""Rows of each kernel, so that kernels and two slots have 1 GB."""


def sources(folder: Path, small: int, large: int) -> list[Path]:
    made = []
    for kind, rows, count in (("small", 1, small), ("large", GIGABYTE_ROWS, large)):
        first = folder / f"{kind}.h5"
        make_h5(first, rows)
        for i in range(count):
            made.append(folder / f"{kind}{i}.h5")
            os.link(first, made[-1])
    return made


def main(small: int = 1000, large: int = 2, workers: int = 2) -> None:
    from distributed import LocalCluster

    with tempfile.TemporaryDirectory() as scratch:
        found = sources(Path(scratch), small, large)
        size = sum(path.stat().st_size for path in found)
        with LocalCluster(n_workers=workers, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster:
            start = time.perf_counter()
            with cluster.get_client().get_executor() as executor:
                report = migrate.batch(found, Path(scratch) / "out", executor=executor)
            seconds = time.perf_counter() - start
    print(f"{report.counts}: {len(found)} checkpoints, {size / 1e9:.2f} GB in {seconds:.1f} s by {workers} workers")
    print(f"{len(found) / seconds * 3600:,.0f} checkpoints, {size / seconds * 3600 / 1e9:,.0f} GB an hour")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
