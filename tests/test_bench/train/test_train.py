"""`train`: gradients against finite differences, runs of good and bad peers, rows of the grid."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from statistics import median
from typing import Any

import numpy as np
import pytest

from bench import peers
from bench.cases.layouts import parse_mesh
from bench.cases.values import parameter
from bench.errors import OptionError, UnknownNameError
from bench.kinds import from_json
from bench.measuring.process import WorkerError
from bench.train import page as of_training
from bench.train import run as training
from bench.train.problems import NAMES, PROBLEMS, problem
from bench.train.worker import TrainingCase, train
from tests.places import FAKES

sys.path.append(str(FAKES))  # workers find the module of the fakes by the same path
fakes = importlib.import_module("fake_peers_of_training")


def case(name: str, seed: int = 0, optimizer: str = "adam") -> TrainingCase:
    return TrainingCase(name, optimizer, parse_mesh("1"), "replicated", seed=seed)


def start(name: str, seed: int = 0) -> list[np.ndarray]:
    return [parameter(case(name, seed), i).astype(np.float64) for i in range(len(problem(name).tensors))]


def look_at_the_first_batch(name: str, task: Any) -> None:
    """So that the loss is that of the gradients of seed 0 and step 0."""
    random = np.random.default_rng([0, 0])
    if name == "teacher":
        task._x = random.standard_normal((64, 16), dtype=np.float32).astype(np.float64)
    elif name == "chars":
        task._x, task._y = task._at(task._learned, random.integers(0, len(task._learned) - 8, 128))
    else:
        rows = random.integers(0, 2000, 128)
        task._slopes = lambda w, b, _, slopes=task._slopes: slopes(w, b, slice(None))
        task.x, task.y, task.optimum = task.x[rows], task.y[rows], 0.0


@pytest.mark.parametrize("name", ["logistic", "teacher", "chars"])
def test_gradients_are_those_of_the_loss(name: str) -> None:
    """Against central differences along random directions."""
    task, values = problem(name).make(), start(name)
    look_at_the_first_batch(name, task)
    slopes = task.gradients(values, 0, 0)
    random = np.random.default_rng(7)
    for number in range(len(values)):  # each tensor alone
        along = [random.standard_normal(v.shape) * (i == number) for i, v in enumerate(values)]
        ends = [task.loss([v + side * 1e-4 * d for v, d in zip(values, along, strict=True)]) for side in (1.0, -1.0)]
        rise = (ends[0] - ends[1]) / 2e-4 * (np.log(2.0) if name == "chars" else 1.0)  # told in bits
        assert rise == pytest.approx(float(np.sum(slopes[number] * along[number])), rel=1e-3, abs=1e-6)


def test_the_gradient_of_the_quadratic_is_exact() -> None:
    task, (theta,) = problem("quadratic").make(), start("quadratic")
    (slope,) = task.gradients([theta], 0, 0)
    centre = np.random.default_rng([0, 0]).normal(0.0, 0.3, (128, 100)).mean(axis=0)
    off, direction = theta - centre, np.random.default_rng(5).standard_normal(100)
    ends = [task.loss([off + side * 1e-3 * direction]) for side in (1.0, -1.0)]
    assert (ends[0] - ends[1]) / 2e-3 == pytest.approx(slope @ direction, rel=1e-4)


def test_newton_finds_the_optimum_of_the_logistic_problem() -> None:
    """No step from zero by gradient descent gets below it, and the gap becomes small."""
    task = problem("logistic").make()
    values = [np.zeros((32, 1)), np.zeros(1)]
    for step in range(400):
        values = [v - 0.2 * g for v, g in zip(values, task.gradients(values, 0, step), strict=True)]
    assert 0.0 < task.loss(values) < 0.05


@pytest.mark.parametrize("found", PROBLEMS, ids=NAMES)
def test_batches_and_starts_depend_on_the_seed_alone(found: Any) -> None:
    task, values = found.make(), start(found.name)
    once, again, other = (task.gradients(values, seed, 3)[0] for seed in (0, 0, 1))
    assert np.array_equal(once, again)
    assert not np.array_equal(once, other)
    assert once.dtype == np.float32
    assert not np.array_equal(start(found.name)[0], start(found.name, seed=1)[0])
    assert np.isfinite(task.loss(values))
    assert task.loss(values) > found.target


def trained(lr: float, name: str = "quadratic", seed: int = 0) -> Any:
    one = case(name, seed, f"adam:learning_rate={lr}")
    return train(fakes.GOOD.prepare(one), problem(name), problem(name).make(), seed)


def test_a_run_ends_at_the_target_at_the_budget_or_when_it_diverges() -> None:
    good = trained(0.03)
    assert good.steps is not None
    assert good.curve[-1].loss <= problem("quadratic").target < good.curve[-2].loss
    assert good.steps == good.curve[-1].step
    assert good.seconds == pytest.approx(good.step_seconds + good.gradient_seconds)
    slow = trained(1e-5)
    assert (slow.steps, slow.seconds, slow.diverged) == (None, None, False)
    assert slow.curve[-1].step == problem("quadratic").budget
    wild = trained(1e6)
    assert wild.diverged
    assert wild.steps is None


class InProcess:
    """A worker without a process; `fail` is what it answers to the run of that number."""

    def __init__(self, peer: Any, case: TrainingCase, fail: dict[int, Exception] | None = None) -> None:
        self.peer, self.case, self.fail = peer, case, fail or {}
        self.answers: list[Any] = [{}]
        self.runs = 0

    def request(self, do: str, **arguments: Any) -> None:
        self.answers.append({"numpy": "2"} if do == "versions" else arguments)

    def answer(self, timeout: float) -> Any:
        found = self.answers.pop(0)
        if "seed" not in found:
            return found
        self.runs += 1
        if self.runs in self.fail:
            raise self.fail[self.runs]
        case = dataclasses.replace(self.case, workload=found["name"], optimizer=found["optimizer"], seed=found["seed"])
        task = problem(found["name"]).make()
        return dataclasses.asdict(train(self.peer.prepare(case), problem(found["name"]), task, found["seed"]))

    def stop(self) -> None:
        self.answers = []


@pytest.fixture
def with_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find", lambda names: tuple(fakes.ALL[name] for name in names))


@pytest.mark.breadth
@pytest.mark.usefixtures("with_fakes")
def test_rows_of_a_grid() -> None:
    found = training.run(
        problems=("quadratic",), peer=("good", "double"), learning_rates=(1e-5, 0.03), seeds=3, launch=InProcess
    )
    rows = {(row.peer, row.learning_rate): row for row in found.rows}
    assert len(rows) == 4
    good, double = rows["good", 0.03], rows["double", 0.03]
    assert (good.reached, good.best, good.ratio and good.ratio.median) == (3, True, 1.0)
    assert good.median_steps is not None
    assert (good.low_steps, good.high_steps) == (None, None), "three seeds are too few for an interval"
    assert double.ratio is not None
    assert double.ratio.median < 1.0  # steps twice as long get there sooner at this rate
    missed = rows["good", 1e-5]
    assert (missed.reached, missed.median_steps, missed.best, missed.ratio) == (0, None, False, None)
    assert "missed" in of_training.table([missed]).rows[0]
    assert "--learning-rate 0.03 -p good" in good.rerun
    assert from_json(found.to_json()) == found


@pytest.mark.usefixtures("with_fakes")
def test_six_seeds_have_an_interval_from_the_first_to_the_last() -> None:
    """All six lie on one side of the median once in 32 times, less often than 5%."""
    (row,) = training.run(
        problems=("quadratic",), peer=("good",), learning_rates=(0.03,), seeds=6, launch=InProcess
    ).rows
    steps = [float(run.steps) for run in row.runs if run.steps]
    assert len(steps) == 6
    assert (row.low_steps, row.median_steps, row.high_steps) == (min(steps), median(steps), max(steps))


@pytest.mark.usefixtures("with_fakes")
def test_a_peer_that_fails_or_is_absent_is_a_row_with_its_reason() -> None:
    def launch(peer: Any, case: TrainingCase) -> InProcess:
        return InProcess(peer, case, {2: WorkerError("died of SIGABRT")} if peer.name == "double" else None)

    found = training.run(
        problems=("quadratic",), peer=("good", "double", "absent"), learning_rates=(0.03, 0.02), seeds=1, launch=launch
    )
    told = [(row.peer, row.status, row.reason) for row in found.rows if row.learning_rate == 0.02]
    absent = "nothing not installed: pip install nothing"
    assert told == [("good", "ok", None), ("double", "failed", "died of SIGABRT"), ("absent", "skipped", absent)]


@pytest.mark.usefixtures("with_fakes")
def test_ctrl_c_keeps_what_was_measured() -> None:
    def launch(peer: Any, case: TrainingCase) -> InProcess:
        return InProcess(peer, case, {2: KeyboardInterrupt()})  # type: ignore[dict-item]

    found = training.run(problems=("quadratic",), peer=("good",), learning_rates=(0.03, 0.02), seeds=1, launch=launch)
    assert found.interrupted
    assert [row.status for row in found.rows] == ["ok", "interrupted"]


@pytest.mark.usefixtures("with_fakes")
def test_a_real_process_gives_the_same_steps() -> None:
    real = training.run(problems=("quadratic",), peer=("good",), learning_rates=(0.03,), seeds=1, threads=1)
    here = training.run(
        problems=("quadratic",), peer=("good",), learning_rates=(0.03,), seeds=1, threads=1, launch=InProcess
    )
    assert [row.status for row in real.rows] == ["ok"]
    assert real.rows[0].median_steps == here.rows[0].median_steps


def test_what_cannot_be_asked_for() -> None:
    with pytest.raises(UnknownNameError, match="quadratic, logistic, teacher, chars"):
        training.run(problems=("mnist",))
    with pytest.raises(OptionError, match="--learning-rate"):
        training.run(optimizers=("adam:learning_rate=0.1",))
