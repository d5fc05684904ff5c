"""`dtopt bench`: options, exit codes, `--json` alone on stdout, and one real run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench.cases.options import Options
from bench.kinds import from_json, load
from bench.measuring import environment
from bench.results.document import Result
from bench.step import run as runner
from bench.step.contest import Contest
from bench.step.query import Plan
from bench.step.row import Row
from bench.step.rows import rerun_command
from dtopt_cli.commands.bench import app
from dtopt_cli.exit_codes import Exit
from optim.errors import DtoptError
from tests.helpers.interrupts import listen_to_sigint
from tests.helpers.timing import HANGS, until
from tests.places import ROOT


class Recorder:
    """Stands in for `bench.step.run.run`: keeps the plan and answers with rows of the given statuses."""

    def __init__(self) -> None:
        self.plan: Plan | None = None
        self.statuses = ["ok"]
        self.interrupted = False

    def __call__(self, plan: Plan, **options: Any) -> Result:
        self.plan = plan
        rows = tuple(self._row(plan, status) for status in self.statuses)
        context = environment.describe(2) | {"rounds": 1, "order_seed": 0, "seconds": 1.0, "busy": False}
        return Result(context, (), rows, self.interrupted)

    @staticmethod
    def _row(plan: Plan, status: str) -> Row:
        from bench.results.records import Sample
        from bench.step.rows import make_rows

        contest = Contest(plan.cases[0], plan.peers[:1], plan.settings, None, None)  # type: ignore[arg-type]
        contestant = contest.contestants[0]
        contestant.status, contestant.reason = status, None if status == "ok" else "a reason"
        contestant.samples = [Sample(0, 0, 0, 1, 0.01)] if status == "ok" else []
        return make_rows(contest, plan.baseline, (), plan.again)[0]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    stand_in = Recorder()
    monkeypatch.setattr(runner, "run", stand_in)
    return stand_in


def call(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_without_a_command_it_is_step(recorder: Recorder) -> None:
    assert call().exit_code == 0
    plain = recorder.plan
    assert call("step").exit_code == 0
    assert plain is not None
    assert recorder.plan is not None
    assert recorder.plan.cases == plain.cases
    assert call("--quick", "--json").exit_code == 0
    assert [peer.name for peer in recorder.plan.peers] == ["optim-native", "tf_keras-mesh", "keras3", "torch-fused"]


def test_every_option_reaches_the_plan(recorder: Recorder) -> None:
    words = ["-w", "gpt2,one16m", "-w", "many-small", "-o", "sgd", "-p", "torch", "-p", "optax", "--mesh", "2x2"]
    words += ["--device", "cpu", "--layout", "fsdp", "--baseline", "optax", "--rounds", "3", "--seed", "5"]
    words += ["--threads", "1", "--timeout", "7"]
    assert call(*words).exit_code == 0
    plan = recorder.plan
    assert plan is not None
    assert [case.workload for case in plan.cases] == ["gpt2", "one16m", "many-small"]
    case = plan.cases[0]
    assert (case.optimizer, str(case.mesh), case.device, case.layout) == ("sgd", "batch=2,model=2", "cpu", "fsdp")
    assert (case.seed, case.threads, plan.seed, plan.baseline) == (5, 1, 5, "optax")
    assert [peer.name for peer in plan.peers] == [
        "torch-fused",
        "torch-foreach",
        "torch-forloop",
        "torch-compile",
        "torch-sparse",
        "optax",
    ]
    assert (plan.settings.pace.rounds, plan.settings.timeout) == (3, 7.0)


def test_every_option_of_a_step_reaches_the_case_and_the_rerun_command(recorder: Recorder) -> None:
    words = ["-o", "adam:amsgrad=true", "--global-clipnorm", "0.5", "--use-ema", "--ema-momentum", "0.9"]
    words += ["--gradient-accumulation-steps", "3"]
    words += ["--weight-decay", "0.1", "--slot-placement", "zero1", "--dtype", "bfloat16", "--sparse-rows", "7"]
    words += ["--lazy-rows", "--cache", "cold"]
    assert call(*words).exit_code == 0
    assert recorder.plan is not None
    case = recorder.plan.cases[0]
    assert (case.optimizer, case.algorithm.hyperparameters["amsgrad"]) == ("adam:amsgrad=true", True)
    assert case.options == Options(
        "global_norm=0.5", 0.9, 3, 0.1, "zero1", "bfloat16", sparse_rows=7, lazy_rows=True, cache="cold"
    )
    assert call(*rerun_command(case, "keras3", ["--baseline", "optax", "--rounds", "4"]).split()[2:]).exit_code == 0
    assert recorder.plan.cases == (case,)
    assert call("--in-situ").exit_code == 0
    assert recorder.plan.cases[0].options == Options(in_situ=True)


def test_the_default_says_what_would_tell_more_and_verbose_how_to_repeat(recorder: Recorder) -> None:
    plain = call().stdout
    assert "dtopt bench -w resnet50" in plain
    assert "dtopt bench step" not in plain
    assert "dtopt bench step -w gpt2:layer -o adam -p" in call("-w", "gpt2:layer", "--verbose").stdout
    assert "More:" not in call("-w", "gpt2:layer").stdout


def test_the_rerun_command_gives_the_same_case(recorder: Recorder) -> None:
    call("-w", "gpt2", "-o", "momentum", "--mesh", "batch=2", "--layout", "fsdp", "--seed", "3", "--threads", "1")
    assert recorder.plan is not None
    case = recorder.plan.cases[0]
    words = rerun_command(case, "keras3", ["--baseline", "optax", "--rounds", "4"]).split()
    assert words[:2] == ["dtopt", "bench"]
    assert call(*words[2:]).exit_code == 0
    assert recorder.plan.cases == (case,)
    assert [peer.name for peer in recorder.plan.peers] == ["keras3"]
    assert recorder.plan.baseline == "optax"
    assert recorder.plan.settings.pace.rounds == 4


@pytest.mark.parametrize(
    ("statuses", "interrupted", "code"),
    [
        (["ok", "skipped"], False, 0),
        (["skipped", "skipped"], False, 4),
        (["ok", "failed"], False, 3),
        (["ok", "interrupted"], True, 130),
    ],
)
def test_exit_codes(recorder: Recorder, statuses: list[str], interrupted: bool, code: int) -> None:
    recorder.statuses, recorder.interrupted = statuses, interrupted
    assert call().exit_code == code


def test_json_is_one_document_and_output_is_the_same(recorder: Recorder, tmp_path: Path) -> None:
    result = call("--json", "--output", str(tmp_path / "run.json"))
    assert from_json(json.loads(result.stdout)) == load(tmp_path / "run.json")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["-w", "gpt3"], 2),
        (["-o", "adamm"], 2),
        (["-p", "tensorflow"], 2),
        (["-o", "adam:amsgrad"], 2),
        (["-o", "adam:amsgrad=2"], 2),
        (["-o", "adam:epsilon=tiny"], 2),
        (["-o", "sgd:beta_1=0.9"], 2),
        (["--clipnorm", "0"], 2),
        (["--in", "graph"], 2),
        (["--weight-decay", "nan"], 2),
        (["--slot-placement", "zero3"], 2),
        (["--dtype", "float8"], 2),
        (["--cache", "hot"], 2),
        (["--lazy-rows"], 2),
        (["--in-situ", "--gradient-accumulation-steps", "2"], 2),
        (["--mesh", "model=0"], 2),
        (["--threads", "100000"], 2),
        (["--layout", "none"], 2),
        (["--device", "none"], 2),
        (["--baseline", "none"], 2),
    ],
)
def test_what_does_not_exist_is_a_usage_error(recorder: Recorder, words: list[str], code: int) -> None:
    result = call(*words)
    assert isinstance(result.exception, DtoptError)
    assert result.exception.exit_code == code
    assert recorder.plan is None


def test_words_after_options_are_not_swallowed(recorder: Recorder) -> None:
    assert call("--quick", "list").exit_code == 2
    assert call("--rounds", "0").exit_code == 2
    assert call("--clipnorm", "1", "--clipvalue", "1").exit_code == 2
    assert recorder.plan is None


@pytest.mark.parametrize("device", ["gpu", "tpu"])
def test_a_missing_device_says_how_to_get_one(recorder: Recorder, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_DEVICE_FILES", {"gpu": ("/dev/no-gpu",), "tpu": ("/dev/no-tpu",)})
    result = call("--device", device)
    assert isinstance(result.exception, DtoptError)
    assert result.exception.exit_code == Exit.NOTHING_RAN
    assert f"there is no {device.upper()} on this machine" in str(result.exception)
    assert "--device cpu" in str(result.exception)
    assert call("--device", "auto").exit_code == 0


def test_list_names_everything(recorder: Recorder) -> None:
    listing = call("list").stdout
    assert call("--list").stdout == listing
    assert recorder.plan is None
    for name in ("gpt2:layer", "many-small", "megatron", "adadelta", "optim-local", "torch-forloop"):
        assert name in listing


def test_env_as_json() -> None:
    document = json.loads(call("env", "--json").stdout)
    assert document["threads"] >= 1
    assert document["memory_bytes"] > 10**8
    assert "tensorflow" in document["packages"]
    assert "cpu" in call("env").stdout


def dtopt(*words: str) -> list[str]:
    return [sys.executable, "-m", "dtopt_cli", *words]


@pytest.mark.breadth  # `dtopt bench --quick` of README.md ends well in test_docs.py only where every row does
def test_a_real_run() -> None:
    words = ("bench", "--quick", "-p", "optim-local,tf_keras-mesh,torch-fused", "--rounds", "2", "--json")
    done = subprocess.run(dtopt(*words), cwd=ROOT, capture_output=True, text=True, timeout=HANGS, check=False)
    assert done.stderr == ""
    result = from_json(json.loads(done.stdout))
    rows = {row.peer: row for row in result.rows}
    for name in ("optim-local", "tf_keras-mesh"):
        row = rows[name]
        assert row.status == "ok", row.reason
        assert row.agreement is not None
        assert row.agreement.agrees
        assert len(row.samples) == 2
        assert row.ratio is not None
        assert row.ratio.baseline == "tf_keras-mesh"
    assert rows["torch-fused"].status in ("ok", "skipped")
    assert done.returncode == 0


@pytest.mark.breadth
def test_ctrl_c_ends_with_130_and_leaves_no_worker() -> None:
    words = ("bench", "-w", "one16m", "-p", "tf_keras", "--rounds", "100000", "--json")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = subprocess.Popen(dtopt(*words), cwd=ROOT, preexec_fn=listen_to_sigint, **pipes)
    assert until(lambda: len(children_of(started.pid)) >= 3), "the workers never started"
    children = children_of(started.pid)
    started.send_signal(signal.SIGINT)
    stdout, stderr = started.communicate(timeout=HANGS)
    assert started.returncode == 130, stderr
    assert from_json(json.loads(stdout)).interrupted
    # One that was being started when Ctrl-C came ends once it has loaded and finds nobody to talk to.
    assert until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in children))


def children_of(process: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
