"""`tools/gpu_check.py`, on the CPU: what is to run at the first try on a machine with a GPU."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.emulated_gpu import needs_nvrtc
from tests.test_optim.native.kernel_support import require_kernel
from tools import gpu_check
from tools.gpu import tables
from tools.gpu.tables import Table
from tools.gpu_check import Check, Report, Runner

TOOL = Path(gpu_check.__file__)
WORKER = """
import json, os, sys, time
pipe, *names = sys.argv[1:]
told = os.fdopen(int(pipe), "w", buffering=1)
if names[0] == "never begins":
    sys.exit("ImportError: no module of that name")
told.write(json.dumps({"tensorflow": "2.21.0", "gpus": 1}) + "\\n")
for name in names:
    told.write(json.dumps({"begins": name}) + "\\n")
    if name == "crashes":
        print("Fatal: an illegal memory access", file=sys.stderr, flush=True)
        os.abort()
    if name == "hangs":
        time.sleep(600)
    status = "failed" if name == "is wrong" else "ok"
    told.write(json.dumps({"ends": name, "status": status, "result": f"of {os.getpid()}", "seconds": 0.5}) + "\\n")
"""
"""A worker whose checks have no need of a GPU."""


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    report = Report(tmp_path / "checks.json", {"emulated": False})
    limits = dict.fromkeys(("good", "better", "is wrong", "crashes"), 30.0) | {"hangs": 0.5}
    worker = (sys.executable, str(script))
    return Runner(report, tmp_path, time.monotonic() + 60, worker=worker, limits=limits)


def results(runner: Runner) -> dict[str, tuple[str, str]]:
    """Status and result by name, of the file."""
    checks = json.loads(runner.report.path.read_text())["checks"]
    assert [Check(**check) for check in checks] == runner.report.checks
    return {check["name"]: (check["status"], check["result"]) for check in checks}


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("is wrong", "of "),
        ("crashes", "its process ended with SIGABRT: Fatal: an illegal memory access"),
        ("hangs", "no answer in time, see log-good.txt"),
    ],
)
def test_a_check_that_fails_leaves_the_others_alone(runner: Runner, bad: str, why: str) -> None:
    runner.checks(["good", bad, "better"])
    outcomes = results(runner)
    assert list(outcomes) == ["good", bad, "better"]
    assert [status for status, _ in outcomes.values()] == ["ok", "failed", "ok"]
    assert outcomes[bad][1].startswith(why)
    assert (outcomes["good"][1] == outcomes["better"][1]) == (bad == "is wrong")  # another process
    assert not runner.report.is_good
    assert runner.report.facts["tensorflow"] == "2.21.0"


def test_what_cannot_begin_is_told_once(runner: Runner) -> None:
    runner.checks(["never begins", "good"])
    why = "its process ended with 1: ImportError: no module of that name"
    assert results(runner) == {"never begins": ("failed", why), "good": ("failed", why)}


@pytest.mark.breadth
def test_what_has_no_time_left_is_told(runner: Runner) -> None:
    runner.limits = {**runner.limits, "hangs": 30.0}
    runner.deadline = time.monotonic() + 3
    runner.checks(["good", "hangs", "better"])
    runner.table(Table("gpt2", "eager", "optim-plain"))
    statuses = {name: status for name, (status, _) in results(runner).items()}
    assert statuses == {"good": "ok", "hangs": "no time", "better": "no time", "time of gpt2, eager": "no time"}


def test_a_full_disk_costs_no_result(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, text: str) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    runner.checks(["good", "better"])
    assert [check.status for check in runner.report.checks] == ["ok", "ok"]
    assert runner.report.problem == f"{runner.report.path} cannot be written: No space left on device"
    assert not runner.report.is_good
    monkeypatch.undo()
    runner.folder = runner.folder / "that is not there"
    runner.checks(["is wrong", "crashes"])
    outcomes = results(runner)
    assert [outcomes[name][0] for name in ("is wrong", "crashes")] == ["failed", "failed"]
    assert "cannot be run here: [Errno 2] No such file" in outcomes["crashes"][1]
    runner.table(Table("many-small", "eager", "optim-plain"))
    assert results(runner)["time of many-small, eager"][0] == "failed"
    assert runner.report.problem == ""


def test_the_results_of_an_earlier_run_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "checks.json"
    for text in ("", "{}", '{"checks": []}'):
        path.write_text(text)
        os.utime(path, (1e9, 1e9))
        gpu_check.keep(path)
    assert not path.exists()
    assert re.fullmatch(r"checks-20010909-\d{6}\.json", *os.listdir(tmp_path))


def test_the_gpus_name_and_speed_are_told() -> None:
    rows = [{"working_set": 2**31, "bytes_per_second": 3.009e12}]
    document = {"rows": rows, "context": {"gpu": {"name": "NVIDIA H100 80GB HBM3"}}}
    assert tables.Bandwidth().result(document) == (True, ["NVIDIA H100 80GB HBM3", "2,147 MB at 3,009 GB/s"])
    assert not tables.Bandwidth().result({"rows": [], "context": {}})[0]


def test_a_name_that_no_check_has_is_an_error_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        gpu_check.parsed(["--only", "nothing"])
    assert ended.value.code == 2
    assert "--only nothing: no check has that in its name; there are: kernel; rules eagerly" in capsys.readouterr().err


@pytest.mark.breadth
def test_every_check_has_a_limit_and_a_group() -> None:
    sys.path.insert(0, str(TOOL.parent))
    code = "import sys; sys.argv = ['']; import tools.gpu_checks as c; print(*c.CHECKS, sep=',')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=TOOL.parents[1])
    assert set(done.stdout.strip().split(",")) == set(gpu_check.CHECKS)
    grouped = [name for group in gpu_check.GROUPS for name in group]
    assert sorted([gpu_check.FIRST, *grouped]) == sorted(gpu_check.CHECKS)


def test_targets_are_judged_as_far_as_they_were_measured(tmp_path: Path) -> None:
    def row(peer: str, median: float, **more: Any) -> dict[str, Any]:
        return {"peer": peer, "status": "ok", "median": median, **more}

    def write(how: str, *rows: dict[str, Any]) -> None:
        (tmp_path / Table("resnet50", how, "").file).write_text(json.dumps({"rows": rows}))

    names = [Table("resnet50", how, "").name for how in ("eager", "function")]
    assert list(tables.targets(tmp_path, names)) == []
    shares = {"roof_fraction": 0.5, "device_roof_fraction": 0.8}  # with what the host takes, and without
    write("eager", row("optim-plain", 0.3e-3, **shares), row("torch-fused", 0.6e-3))
    write("function", row("optim-plain", 0.45e-3), {"peer": "optax", "status": "skipped"})
    assert list(tables.targets(tmp_path, [])) == []  # of an earlier run
    assert [line.split() for line in tables.targets(tmp_path, names)] == [
        ["met", "resnet50,", "eager", "/", "torch", "fused", "0.50", "(at", "most", "0.8)"],
        ["MISSED", "resnet50,", "function", "/", "eager", "1.50", "(at", "most", "1.3)"],
        ["MISSED", "resnet50,", "share", "of", "bandwidth", "0.80", "(at", "least", "0.85)"],
    ]


def call(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TOOL), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        **options,
    )


@needs_nvrtc
@pytest.mark.parametrize("only", ["buffers", pytest.param("", marks=pytest.mark.breadth)])
@pytest.mark.breadth
def test_all_checks_pass_through_emulated_launches(only: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTOPT_KERNELS", "build")
    require_kernel()
    monkeypatch.setenv("DTOPT_KERNELS", "off")  # it sets its own
    done = call("--emulated", "--into", tmp_path / "out", "--only", only, "--minutes", "9", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    checks = json.loads((tmp_path / "out" / "checks.json").read_text())["checks"]
    assert {check["status"] for check in checks} <= {"ok", "skipped"}
    assert any(only in check["name"] and check["status"] == "ok" for check in checks)


BROKEN = """
import json, sys
import tools.gpu_checks as c
from tests.helpers import emulated_gpu
from tools.gpu import fit, meshes, runs
from tools.gpu.device import named
fake, trained, way = emulated_gpu.library("fake_cuda"), runs.trained, sys.argv[1]
reset = fake.fake_reset
if way == "launches fail":
    fake.fake_reset = lambda version, fails_at: reset(version, 0)
if way == "values are off":
    def nudged(*arguments):
        found = trained(*arguments)
        if "launch" in emulated_gpu.driver_calls():
            found.variables["odd"].assign_add(2e-5 + c.tf.zeros_like(found.variables["odd"]))
        return found
    runs.trained = nudged
if way == "nothing is launched":
    emulated_gpu.pretend = lambda gpus, replaced: None
runs.VARIANTS, runs.OPTIONS = (named("adam"), named("sgd")), (named("adam+clipvalue"),)
runs.FIRST, fit.WAYS = {"Adam": named("adam")}, fit.WAYS[:1]
meshes.divide(True)
meshes.RUNS, meshes.SIZES = meshes.RUNS[2:4], {2: (1, 2)}
device = c.Device(True)
print(json.dumps({name: c.run(name, lambda: device)["status"] for name in sys.argv[2:]}))
"""
"""Runs checks where something is wrong."""
OF_RUNS = ("rules eagerly", "rules in functions", "options", "dtypes")
OF_STEPS = ("few bits", "buffers", "loss scale", "meshes", "devices", "own rule", "fit of keras", "fit of tf_keras")


@pytest.mark.parametrize(
    ("way", "names"),
    [
        ("launches fail", (*OF_RUNS, *OF_STEPS)),
        ("values are off", OF_RUNS),
        ("nothing is launched", (*OF_RUNS, *OF_STEPS)),
    ],
)
@pytest.mark.breadth
def test_every_check_finds_what_is_wrong(
    way: str, names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTOPT_KERNELS", "build")
    require_kernel()
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, way, *names], capture_output=True, text=True, check=False, cwd=TOOL.parents[1]
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == dict.fromkeys(names, "failed")


OF_A_DEVICE = """
import json, time, types
import tools.gpu_checks as c
from tools.gpu import full_memory, waiting
device = types.SimpleNamespace(emulated=False, name="CPU:0")
timer = types.SimpleNamespace(occupy=lambda seconds: time.sleep(0.5))
waiting.events.of_stream, waiting.gpu.stream = (lambda handle, name: timer), (lambda device: 1)
found = [waiting.check_waiting(device)]
waiting.PART = 0.0
found.append(waiting.check_waiting(device))
full_memory.ELEMENTS, full_memory._filled = 100, list
found.append(full_memory.check_full_memory(device))
make = full_memory.named("adam").make
def made(text, breaks):
    optimizer, calls = make(), []
    apply = optimizer.apply_gradients
    def counted(pairs):
        calls.append(1)
        if len(calls) == 2:
            if breaks:
                apply(pairs)
            raise RuntimeError(text)
        apply(pairs)
    optimizer.apply_gradients = counted
    return types.SimpleNamespace(make=lambda: optimizer)
for text, breaks in (("the GPU has no 8 bytes", False), ("something", False), ("the GPU has no 8 bytes", True)):
    full_memory.named = lambda name: made(text, breaks)
    found.append(full_memory.check_full_memory(device))
print(json.dumps(found))
"""
"""Runs what needs a device where a CPU and a sleep are one: a step that fails, or that waits."""


@pytest.mark.breadth
def test_checks_that_need_a_device_find_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTOPT_KERNELS", "build")
    require_kernel()
    done = subprocess.run(
        [sys.executable, "-c", OF_A_DEVICE], capture_output=True, text=True, check=False, cwd=TOOL.parents[1]
    )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout.splitlines()[-1])
    assert [ok for ok, _ in outcomes] == [True, False, False, True, False, False]
    texts = [text for _, text in outcomes]
    assert texts[0].startswith("6 of 6 ways return while the GPU works")
    assert "eagerly: the call took" in texts[1]
    assert texts[2] == "a step that has no room for a copy raised nothing"
    assert texts[3:5] == ["RuntimeError: the GPU has no 8 bytes", "RuntimeError: something"]
    assert texts[5].startswith("the step that failed has changed something")


@pytest.mark.breadth
def test_a_table_is_measured_and_read(runner: Runner) -> None:
    """What a busy machine makes of the times is not judged here."""
    runner.emulated, runner.deadline = True, time.monotonic() + 400
    (table,) = tables.EMULATED
    runner.table(table)
    assert re.match(r"optim-plain (\d+\.\d+ ms|failed \(its )", results(runner)[table.name][1])
    assert results(runner)[table.name][1].endswith(("; accepted", "; noisy"))


def test_without_a_gpu_it_says_what_to_install(tmp_path: Path) -> None:
    done = call("--into", tmp_path)
    assert done.returncode == 4
    assert "pip install -e '.[gpu]'" in done.stderr


def test_a_folder_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = call("--into", tmp_path / "file" / "folder")
    assert done.returncode == 2
    assert "cannot be written: Not a directory; choose another folder" in done.stderr


def test_what_was_found_is_kept_and_shown_when_it_is_ended(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER.replace('"hangs"', '"rules eagerly"'))
    code = (
        f"import sys; sys.path.insert(0, {str(TOOL.parents[1])!r}); from tools import gpu_check\n"
        f"sys.exit(gpu_check.main(['--into', {str(tmp_path / 'out')!r}], (sys.executable, {str(script)!r})))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while "kernel" not in process.stdout.readline():
        pass
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    rest = process.stdout.read()
    assert process.wait(30) == 130
    assert "ok       kernel" in rest
    assert "NO TIME  rules eagerly" in rest
    kept = json.loads((tmp_path / "out" / "checks.json").read_text())["checks"]
    assert kept[0]["name"] == "kernel"
    assert not [name for name in os.listdir("/proc") if name.isdigit() and str(script) in _command(name)]


def _command(process: str) -> str:
    try:
        return Path("/proc", process, "cmdline").read_text()
    except OSError:
        return ""
