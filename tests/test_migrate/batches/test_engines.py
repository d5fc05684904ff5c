"""Batches on engines: what a lost worker began is done again, and what was finished is not."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import migrate
from bench.migration.inputs import LAYERS, WIDTH, make_h5
from migrate.batches import engines
from migrate.batches.naming import Job
from migrate.batches.results import FAILED, MIGRATED, BatchItem
from migrate.batches.run import migrate_again, migrate_one
from optim.errors import HyperparameterError, UnsupportedError

GIGABYTE_ROWS = 10**9 // (LAYERS * WIDTH * 4 * 3)
ADAM = "keras224-adam-eps-none-nested"
DO = partial(migrate_again, partial(migrate_one, resume=False, to="slots", order=None))


@pytest.fixture
def sources(tmp_path: Path, load_case: Any) -> list[Path]:
    """Twelve checkpoints and one that is none."""
    folder = tmp_path / "runs"
    folder.mkdir()
    checkpoints = [folder / f"run{i}.h5" for i in range(12)]
    for path in checkpoints:
        shutil.copy(load_case(ADAM).source, path)
    (folder / "broken.h5").write_text("nothing")
    return [*checkpoints, folder / "broken.h5"]


def done_slowly(marks: str, do: Any, job: Job, begun: bool) -> BatchItem:
    """Notes each beginning; the first worker that comes to run3 kills itself."""
    with open(os.path.join(marks, "begun"), "a") as file:
        file.write(f"{os.path.basename(job.source)} {os.getpid()}\n")
    if job.source.endswith("run3.h5") and not begun:
        os.kill(os.getpid(), signal.SIGKILL)
    return do(job, begun)


def test_tasks_have_about_equal_bytes_and_the_largest_come_first() -> None:
    mega = 1 << 20
    tasks = engines.divided([1, 500 * mega, 30 * mega, 1, 40 * mega, 1])
    assert tasks[0] == [1]
    assert sorted(i for task in tasks for i in task) == list(range(6))
    assert all(len(task) <= engines.TASK_BYTES // engines.ITEM_BYTES for task in engines.divided([0] * 100))
    assert len(engines.divided([0] * 1000)) < 100


def test_any_executor_does_the_work(sources: list[Path], tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with ThreadPoolExecutor(2) as executor:
        report = migrate.batch(
            sources, tmp_path / "out", executor=executor, progress=lambda done, of: seen.append((done, of))
        )
    assert report.counts == {"migrated": 12, "failed": 1}
    assert report.items[12].status == "failed"
    assert seen[-1] == (13, 13)
    assert sorted(os.listdir(tmp_path / "out")) == sorted(f"run{i}" for i in range(12))
    exact = next(group for group in report.groups if group.outcome == "exact")
    assert (exact.count, exact.reason) == (12, "")


def test_a_dry_run_leaves_nothing(sources: list[Path], tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as executor:
        report = migrate.batch(sources, tmp_path / "out", executor=executor, dry_run=True)
    assert report.counts == {"planned": 12, "failed": 1}
    assert not (tmp_path / "out").exists()


class Forgetful(ThreadPoolExecutor):
    """Does every task twice, as an engine does that lost a result on its way, and keeps the second result."""

    def submit(self, function: Any, /, *arguments: Any, **more: Any) -> Any:
        def twice() -> Any:
            function(*arguments, **more)
            return function(*arguments, **more)

        return super().submit(twice)


def test_what_is_finished_is_not_done_again(sources: list[Path], tmp_path: Path) -> None:
    with Forgetful(1) as executor:
        report = migrate.batch(sources, tmp_path / "out", executor=executor)
    assert report.counts == {"migrated": 12, "failed": 1}, [item.problem for item in report.items]


def test_one_whose_worker_was_lost_after_the_target_counts_as_migrated(sources: list[Path], tmp_path: Path) -> None:
    """The worker died between giving the target its name and leaving the receipt."""
    out, receipts = tmp_path / "out", tmp_path / "receipts"
    receipts.mkdir()
    job = Job(str(sources[0]), str(out / "run0"))
    migrate.migrate_checkpoint(job.source, job.dest)
    (receipts / "0.begun").touch()
    (again,) = engines.do_task(DO, [job], [0], str(receipts), engines.release.version())
    assert again.status == MIGRATED
    (other,) = engines.do_task(DO, [job], [1], str(receipts), engines.release.version())
    assert other.status == FAILED
    assert "overwrite=True" in other.problem


def test_a_worker_of_another_version_is_refused(sources: list[Path]) -> None:
    with pytest.raises(UnsupportedError, match=r"the worker has dtopt .* and the caller 0\.0"):
        engines.do_task(lambda job, begun: BatchItem("", "", MIGRATED), [], [], None, "0.0")


def test_a_worker_may_have_the_light_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines.release, "installed", lambda: {"dtopt-light": "9.9"})
    assert engines.do_task(DO, [], [], None, "9.9") == []


@pytest.mark.parametrize("url", ["ray://here", "dask://", "localhost:8786"])
def test_engines_that_there_are_not_are_said(url: str) -> None:
    with pytest.raises(HyperparameterError, match="dask://HOST:PORT"), engines.connected(url):
        pass


def test_jobs_and_executor_are_not_given_together(sources: list[Path], tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as executor, pytest.raises(HyperparameterError, match="not both"):
        migrate.batch(sources, tmp_path / "out", jobs=2, executor=executor)


@pytest.fixture
def cluster() -> Any:
    """Two worker processes on this machine, with a nanny each that starts another when it dies."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, processes=True
    ) as running:
        yield running


@pytest.mark.breadth
def test_a_worker_that_is_killed_costs_only_its_own_item(
    cluster: Any, sources: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "TASK_BYTES", 3 * engines.ITEM_BYTES)
    marks, out = tmp_path / "marks", tmp_path / "out"
    marks.mkdir()
    jobs = [Job(str(path), str(out / path.stem)) for path in sources]
    do = partial(done_slowly, str(marks), DO)
    with engines.connected(f"dask://{cluster.scheduler_address.removeprefix('tcp://')}") as executor:
        assert isinstance(executor, Executor)
        results = dict(engines.in_executor(executor, do, jobs, [engines.size_of(j) for j in jobs], str(out)))
    assert [results[i].status for i in range(13)] == [MIGRATED] * 12 + [FAILED]
    assert sorted(os.listdir(out)) == sorted(f"run{i}" for i in range(12))
    begun = [line.split()[0] for line in (marks / "begun").read_text().splitlines()]
    assert {name: begun.count(name) for name in begun} == {path.name: 1 + (path.name == "run3.h5") for path in sources}


@pytest.mark.breadth
def test_a_thousand_and_two_large_ones_while_a_worker_dies(cluster: Any, tmp_path: Path, load_case: Any) -> None:
    marks, out, runs = tmp_path / "marks", tmp_path / "out", tmp_path / "runs"
    marks.mkdir()
    runs.mkdir()
    for i in range(1000):
        shutil.copy(load_case(ADAM).source, runs / f"run{i}.h5")
    for i in range(2):
        make_h5(runs / f"large{i}.h5", GIGABYTE_ROWS)
    sources = sorted(runs.iterdir())
    jobs = [Job(str(path), str(out / path.stem)) for path in sources]
    do = partial(done_slowly, str(marks), DO)
    with engines.connected(f"dask://{cluster.scheduler_address.removeprefix('tcp://')}") as executor:
        results = dict(engines.in_executor(executor, do, jobs, [engines.size_of(j) for j in jobs], str(out)))
    assert [results[i].status for i in range(1002)] == [MIGRATED] * 1002
    assert sorted(os.listdir(out)) == sorted(path.stem for path in sources)
    begun = Counter(line.split()[0] for line in (marks / "begun").read_text().splitlines())
    again = {name for name, times in begun.items() if times > 1}
    assert again == {"run3.h5"}
    for name in ("large1", "run999"):
        assert migrate.verify(runs / f"{name}.h5", out / name).ok
