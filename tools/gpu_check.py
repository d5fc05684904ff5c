"""Check dtopt's kernels on a GPU and measure them, in five minutes: `python tools/gpu_check.py --into FOLDER`.

Run it in a checkout, in an environment with

    pip install -e '.[gpu]'                      # TensorFlow for NVIDIA GPUs, and NVRTC
    pip install torch 'jax[cuda12]' optax keras tf_keras     # what is compared with, if you like: each may be missing

and with g++, unless the checkout was built elsewhere. A first run compiles dtopt's kernel of the CPU for a minute. The
torch of the package index is for CUDA 13 and needs driver R580 (`nvidia-smi` shows the driver). For an older one:
`pip install torch --index-url https://download.pytorch.org/whl/cu126`. Without it the table skips torch.

FOLDER gets `checks.json`, written again after each check, a log of each process, and one file for each table, which
`dtopt bench check` and `dtopt bench report` read. The `checks.json` of an earlier run is kept under its time. The last
lines are a short table. A check that crashes or hangs leaves the others alone. The exit status is 0 if all is well, 1
if a check failed or had no time, 2 for a wrong option, 4 if TensorFlow finds no GPU.

`--minutes 10` has time for all tables. `--only fit` runs the checks with that in their name. `--emulated` runs the
checks on a CPU, through launches that g++ compiled, and one small table.

A machine without a package index needs wheels of what pip would install: of TensorFlow, NVRTC
(nvidia-cuda-nvrtc-cu12) and the libraries that `tensorflow[and-cuda]` names. To bring a large wheel in parts:
`split -b 24m WHEEL part-`, and there `cat part-* > WHEEL`. TensorFlow's wheel becomes smaller, 213 MB instead of 573,
if the machine code of other GPUs in its libraries is zeroed, and `tensorflow/include` left out, before it is packed
with zstd. Then compile dtopt's kernel where the whole wheel is (`python -m optim.native.prebuild`), and bring that.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.gpu.tables import BUDGET, EMULATED, TABLES, Bandwidth, Table, targets  # noqa: E402

WORKER = ROOT / "tools" / "gpu_checks.py"
CHECKS = {
    "kernel": 150.0,
    "rules eagerly": 120.0,
    "dtypes": 120.0,
    "few bits": 120.0,
    "memory": 60.0,
    "rules in functions": 120.0,
    "options": 120.0,
    "buffers": 60.0,
    "loss scale": 60.0,
    "rows": 60.0,
    "meshes": 120.0,
    "replicas": 60.0,
    "devices": 60.0,
    "own rule": 120.0,
    "waiting": 60.0,
    "full memory": 90.0,
    "fit of keras": 120.0,
    "fit of tf_keras": 120.0,
}
"""The checks of `gpu_checks.py`, with the seconds that each may take."""
FIRST = "kernel"
"""The check that the others wait for."""
GROUPS = (
    ("rules eagerly", "dtypes", "memory"),
    ("rules in functions",),
    ("options", "few bits", "buffers", "loss scale", "rows", "replicas", "devices"),
    ("fit of keras", "fit of tf_keras", "own rule", "waiting"),
    ("meshes",),
    ("full memory",),
)
"""Checks that one process makes, one after the other, next to the processes of other groups."""
ALONE = ("meshes", "full memory")
"""The checks that make logical devices of the GPU, and so have their own processes."""
START = 90.0
"""Seconds in which a process has to begin its first check."""
AROUND = 60.0
"""Seconds that the command of a table may take in addition to its rounds."""
NO_GPU = 4
WIDTH = 120
"""Letters of a good result that the table shows; the file has all."""
VERDICTS: Mapping[int | None, str] = {0: "accepted", 5: "noisy"}
"""The verdict of `dtopt bench check` on a table, by its exit status."""


@dataclass
class Check:
    """The result of one check: ok, failed, skipped, or "no time"."""

    name: str
    status: str
    result: str
    seconds: float = 0.0


@dataclass
class Report:
    """All results so far, in a file that is written again after each."""

    path: Path
    facts: dict[str, Any]
    checks: list[Check] = field(default_factory=list)
    problem: str = ""
    """Why the file does not have the last results."""
    _lock: Any = field(default_factory=threading.Lock)

    def add(self, check: Check) -> None:
        """Keep a result, and write it if there is room for it."""
        with self._lock:
            self.checks.append(check)
            print(line_of(check), flush=True)
            part = self.path.with_suffix(".part")
            try:
                part.write_text(json.dumps({**self.facts, "checks": [asdict(c) for c in self.checks]}, indent=1))
                os.replace(part, self.path)
                self.problem = ""
            except OSError as error:
                self.problem = f"{self.path} cannot be written: {error.strerror}"

    @property
    def is_good(self) -> bool:
        return not self.problem and all(check.status in ("ok", "skipped") for check in self.checks)


def line_of(check: Check) -> str:
    is_good = check.status in ("ok", "skipped")
    status = check.status if is_good else check.status.upper()
    result = f"{check.result[:WIDTH]}..." if is_good and len(check.result) > WIDTH + 3 else check.result
    return f"{status:<8} {check.name:<27} {check.seconds:6.1f} s  {result}"


class Processes:
    """The processes that run, so that all can be ended."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[Any]] = set()
        self._is_closed = False

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **options)
        self._running.add(process)
        if self._is_closed:
            self.end(process)
        return process

    def wait(self, process: subprocess.Popen[Any], seconds: float) -> int | None:
        """Wait until a process has ended, and end it if it does not. Returns its status, None if it did not."""
        try:
            return process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.end(process)

    def end(self, process: subprocess.Popen[Any]) -> None:
        """End a process with those that it started."""
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._running.discard(process)

    def end_all(self) -> None:
        self._is_closed = True
        for process in list(self._running):
            self.end(process)


@dataclass
class Progress:
    """The checks of one process: which are not done, and the one that it makes since a moment."""

    remaining: list[str]
    current: str = ""
    began: float = field(default_factory=time.monotonic)
    limit: float = START

    def begin(self, name: str, limit: float) -> None:
        self.current, self.began, self.limit = name, time.monotonic(), limit

    @property
    def left(self) -> float:
        return self.limit - (time.monotonic() - self.began)


@dataclass
class Runner:
    """Runs checks in separate processes until a moment of `time.monotonic`."""

    report: Report
    folder: Path
    deadline: float
    emulated: bool = False
    worker: Sequence[str] = (sys.executable, str(WORKER))
    limits: Mapping[str, float] = field(default_factory=lambda: CHECKS)
    processes: Processes = field(default_factory=Processes)
    gpus: int = 0

    def stop(self) -> None:
        """End all processes; what has not ended has no time any more."""
        self.deadline = 0.0
        self.processes.end_all()

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    def checks(self, names: Sequence[str]) -> None:
        """Run checks one after the other, in a new process after one that died or hung."""
        remaining = list(names)
        while remaining and self.left > 1.0:
            try:
                remaining = self._in_one_process(remaining)
            except OSError as error:  # a full disk, or no memory for a process
                done = {check.name for check in self.report.checks}
                left = [name for name in remaining if name not in done]
                self._lost(Progress(left), left, f"it cannot be run here: {error}")
                return
        for name in remaining:
            self.report.add(Check(name, "no time", "the time was up before it began"))

    def _in_one_process(self, names: Sequence[str]) -> list[str]:
        """Run checks until the process ends. Returns those that are still to be run."""
        log = self.folder / f"log-{names[0].replace(' ', '-')}.txt"
        ours, theirs = os.pipe()
        command = [*self.worker, str(theirs), *(["--emulated"] if self.emulated else []), *names]
        state = Progress(list(names))
        with open(log, "w") as output, os.fdopen(ours) as pipe:
            process = self.processes.start(command, pass_fds=(theirs,), stdout=output, stderr=output, cwd=self.folder)
            os.close(theirs)
            for message in self._messages(pipe, lambda: min(state.left, self.left)):
                if message is None:
                    self.processes.end(process)
                    return self._lost(
                        state, [state.current or state.remaining[0]], f"no answer in time, see {log.name}"
                    )
                self._hear(state, message)
            self.processes.wait(process, 10.0)
        if process.returncode == NO_GPU or not state.remaining:
            return []
        why = f"its process ended with {ending(process.returncode)}: {last_line(log)}"
        # What did not begin in this process will not in another.
        return self._lost(state, [state.current] if state.current else list(state.remaining), why)

    def _hear(self, state: Progress, message: dict[str, Any]) -> None:
        if "begins" in message:
            state.begin(message["begins"], self.limits[message["begins"]])
        elif "ends" in message:
            name = message.pop("ends")
            self.report.add(Check(name, **message))
            state.remaining.remove(name)
            state.begin("", START)
        else:
            self.gpus = message["gpus"]
            self.report.facts["tensorflow"] = message["tensorflow"]

    def _lost(self, state: Progress, names: Sequence[str], why: str) -> list[str]:
        """Report checks that did not end. Returns those that are still to be run."""
        status = "no time" if self.left <= 0 else "failed"
        for name in names:
            self.report.add(Check(name, status, why, time.monotonic() - state.began))
        return [name for name in state.remaining if name not in names]

    @staticmethod
    def _messages(pipe: Any, left: Callable[[], float]) -> Iterator[dict[str, Any] | None]:
        """Yield the messages of a process until it ends; None when there is no time left."""
        rest = b""
        while True:
            if not select.select([pipe], [], [], max(left(), 0.0))[0]:
                yield None
                return
            data = os.read(pipe.fileno(), 65536)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield json.loads(line)

    def table(self, table: Table | Bandwidth) -> None:
        """Measure one table. Its rows are read from its file, whatever the exit status of the command."""
        try:
            self._table(table)
        except (OSError, ValueError, LookupError) as error:  # a full disk, or a file of another program
            self.report.add(Check(table.name, "failed", f"{type(error).__name__}: {error}"))

    def _table(self, table: Table | Bandwidth) -> None:
        start, path = time.monotonic(), self.folder / table.file
        if self.left < BUDGET + 10:
            self.report.add(Check(table.name, "no time", f"{max(self.left, 0):.0f} s were left"))
            return
        path.unlink(missing_ok=True)
        log = path.with_suffix(".txt")
        environment = {**os.environ, "DTOPT_GPU": "on", "COLUMNS": "160", "PYTHONPATH": python_path()}
        with open(log, "w") as output:
            process = self.processes.start(
                table.command(path, self.emulated), stdout=output, stderr=output, cwd=self.folder, env=environment
            )
            try:
                process.wait(min(BUDGET + AROUND, self.left))
            except subprocess.TimeoutExpired:
                process.terminate()  # what was measured is kept
            self.processes.wait(process, 15.0)
        ok, result = self._measured(table, path, log, process.returncode, environment)
        self.report.add(Check(table.name, "ok" if ok else "failed", result, time.monotonic() - start))

    def _measured(
        self, table: Table | Bandwidth, path: Path, log: Path, code: int, environment: Mapping[str, str]
    ) -> tuple[bool, str]:
        """Whether what counts was measured, and the table in a line."""
        if not path.exists():
            return False, f"exit status {ending(code)}: {last_line(log)}"
        is_measured, parts = table.result(json.loads(path.read_text()))
        checked = self.processes.start(
            [sys.executable, "-m", "dtopt_cli", "bench", "check", str(path)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
            env=environment,
        )
        accepted = self.processes.wait(checked, 60.0)
        parts.append(VERDICTS.get(accepted, f"`dtopt bench check` ended with {accepted}"))
        return is_measured and accepted in VERDICTS, "; ".join(parts)


def python_path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))


def ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else str(code)


def last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no message"


def run(runner: Runner, chosen: Callable[[str], bool]) -> int:
    """Run the chosen checks and tables. Returns the exit status."""
    tables = [table for table in (EMULATED if runner.emulated else TABLES) if chosen(table.name)]
    names = [name for name in CHECKS if chosen(name)]
    runner.checks([FIRST])
    if not runner.emulated and not runner.gpus and not runner.report.checks:
        log = runner.folder / f"log-{FIRST}.txt"
        print(
            f"TensorFlow finds no GPU: pip install -e '.[gpu]', and look at nvidia-smi. TensorFlow: {last_line(log)}",
            file=sys.stderr,
        )
        return NO_GPU
    groups = [[name for name in group if name in names] for group in GROUPS]
    at_once = max(1, min(len(groups), (os.cpu_count() or 1) // 4))
    if at_once == 1:
        groups = [[name for name in names if name not in (FIRST, *ALONE)], *([name] for name in names if name in ALONE)]
    with ThreadPoolExecutor(at_once) as pool:
        try:
            list(pool.map(runner.checks, filter(None, groups)))
        except KeyboardInterrupt:
            runner.stop()
            raise
    for table in tables:
        runner.table(table)
    return 0 if runner.report.is_good else 1


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        epilog="The top of this file describes what to install, and a machine without a package index.",
    )
    parser.add_argument("--into", type=Path, default=Path("gpu-check"), help="folder for the results")
    parser.add_argument("--emulated", action="store_true", help="on a CPU, through emulated launches")
    tables = EMULATED if "--emulated" in (sys.argv if arguments is None else arguments) else TABLES
    names = [*CHECKS, *(table.name for table in tables)]
    only = f"the checks with this in their name, and '{FIRST}'; there are: {'; '.join(names)}"
    parser.add_argument("--only", action="append", metavar="NAME", help=only)
    parser.add_argument("--minutes", type=float, default=5.0, help="after which nothing new begins (default: 5)")
    options = parser.parse_args(arguments)
    for part in options.only or ():
        if not any(part in name for name in names):
            parser.error(f"--only {part}: no check has that in its name; there are: {'; '.join(names)}")
    try:
        options.into.mkdir(parents=True, exist_ok=True)
        keep(options.into / "checks.json")
        (options.into / "checks.json").write_text("{}")
    except OSError as error:
        parser.error(f"--into {options.into} cannot be written: {error.strerror}; choose another folder")
    return options


def keep(path: Path) -> None:
    """Rename the results of an earlier run, by when it ended."""
    if path.exists() and "checks" in path.read_text():
        ended = time.strftime("%Y%m%d-%H%M%S", time.localtime(path.stat().st_mtime))
        path.rename(path.with_name(f"{path.stem}-{ended}.json"))


def interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None, worker: Sequence[str] = (sys.executable, str(WORKER))) -> int:
    options = parsed(arguments)
    began, folder = time.monotonic(), options.into.resolve()
    facts = {"started": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "command": sys.argv[1:], "emulated": options.emulated}
    report, deadline = Report(folder / "checks.json", facts), began + 60 * options.minutes
    runner = Runner(report, folder, deadline, options.emulated, worker)
    signal.signal(signal.SIGTERM, interrupted)
    try:
        code = run(runner, lambda name: not options.only or any(part in name for part in options.only))
    except KeyboardInterrupt:
        code = 130
    finally:
        runner.stop()
    if code != NO_GPU:
        order = [*CHECKS, *(table.name for table in (*TABLES, *EMULATED))]
        print(
            f"\nTensorFlow {runner.report.facts.get('tensorflow', '?')}, {time.monotonic() - began:.0f} s, in {folder}"
        )
        checks = sorted(report.checks, key=lambda check: order.index(check.name))
        measured = [check.name for check in checks if check.status == "ok"]
        print(*map(line_of, checks), *targets(folder, measured), *filter(None, [report.problem]), sep="\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
