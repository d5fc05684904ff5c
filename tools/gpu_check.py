"""Check dtopt's kernels on a GPU and measure them, in five minutes: `python tools/gpu_check.py --into FOLDER`.

Run it in a checkout, in an environment with `pip install -e .` and `pip install 'tensorflow[and-cuda]'`. torch, optax
and Keras are measured if they are installed. FOLDER gets one JSON file for each workload, which `dtopt bench check` and
`dtopt bench report` take, and `checks.json`. The last lines are a short table; the exit status is 1 if a check failed.

`--emulated` runs the same checks on a CPU, through launches that g++ compiled, and measures nothing.

Without a package index, bring TensorFlow's wheel in parts (`split -b 24m`), and NVRTC and the CUDA libraries that
`tensorflow[and-cuda]` names as wheels of their own. The parts of the wheel's libraries that are for other GPUs can be
zeroed before it is packed: 213 MB instead of 573.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
os.environ["DTOPT_KERNELS"] = "build"
os.environ["DTOPT_GPU"] = "on"

import numpy as np  # noqa: E402 - the environment is read when TensorFlow is imported
import tensorflow as tf  # noqa: E402

from optim.native import cuda, gpu, library, modules  # noqa: E402
from optim.native.generate import program_for  # noqa: E402
from tests import emulated_gpu  # noqa: E402
from tests.test_optim.cases import FIRST, ROWS, WHOLE, Case  # noqa: E402
from tests.test_optim.support import gradient_values, start_values  # noqa: E402

STEPS = 3
MANY_STEPS = 2000
WORKLOADS = {"resnet50": 60, "gpt2": 60, "many-small": 40}
"""Measured, with seconds for each."""
PEERS = "optim-plain,torch,keras3,optax"
INEXACT = ("Ftrl",)
"""Optimizers with a power, which no two devices round alike."""
NORMS = ("clipnorm", "global_clipnorm", "loss_scale")
"""Options whose sums TensorFlow adds up in another order on another device."""
CLOSE = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 1e-2, "float16": 1e-3}
"""How far such results may be from the CPU's, in parts of the largest movement."""


@dataclass
class Check:
    """The result of one check."""

    name: str
    ok: bool
    result: str
    seconds: float


class Device:
    """Where the checks run: a GPU, or a CPU with emulated launches."""

    def __init__(self, emulated: bool):
        self.emulated = emulated
        self.name = "CPU:0" if emulated else "GPU:0"
        self.elements = 1 << 12 if emulated else 1 << 20
        """Of a variable that is large enough for a step to be under way while Python goes on."""
        path = library.status().path
        if path is None:
            raise SystemExit(f"the CPU's kernel is needed first: {library.status().reason}")
        self._gpus = gpu.Gpus(path) if emulated else None

    def begin(self, case: Case) -> None:
        """Launch from now on."""
        if self._gpus is None:
            return
        for program, module in emulated_gpu.modules(case.make()._algorithm.updating_rule).items():
            for dtype in cuda.TYPES:
                self._gpus.add(program, dtype, module)
        self._gpus.open(str(emulated_gpu.compiled("fake_cuda")), is_test=True)

    def end(self) -> None:
        if self._gpus is not None:
            self._gpus.close()


def trained(case: Case, dtype: str, device: str, in_function: bool, **more: Any) -> tuple[list[np.ndarray], str]:
    """Variables and slots after a few steps, and why the kernel did not update them; empty if it did."""
    values = start_values()
    with tf.device(device):
        variables = {name: tf.Variable(tf.constant(value, dtype), name=name) for name, value in values.items()}
        optimizer = case.make(**more)
        optimizer.build(list(variables.values()))

        def step(*gradients: Any) -> None:
            optimizer.apply_gradients(list(zip(gradients, variables.values(), strict=True)))

        run = tf.function(step) if in_function else step
        for k in range(STEPS):
            given = {n: g if g is not None else np.zeros_like(values[n]) for n, g in gradient_values(k).items()}
            run(*(tf.constant(given[name], dtype) for name in variables))
    found = [*variables.values(), *optimizer.variables]
    return [np.asarray(tf.cast(v, tf.float64)) for v in found], optimizer.executor_report().why_not_native


def compared(device: Device, case: Case, dtype: str, in_function: bool, **more: Any) -> str:
    """What is wrong with a case on the device; empty if nothing is."""
    expected, _ = trained(case, dtype, "CPU:0", in_function, **more)
    device.begin(case)
    try:
        found, reason = trained(case, dtype, device.name, in_function, **more)
    finally:
        device.end()
    if reason:
        return f"not updated by the kernel: {reason}"
    if all(a.tobytes() == b.tobytes() for a, b in zip(found, expected, strict=True)):
        return ""
    start = [*start_values().values()]
    moved = max(float(np.max(np.abs(b - a))) for a, b in zip(start, expected[: len(start)], strict=True))
    worst = max(float(np.max(np.abs(a - b), initial=0)) for a, b in zip(found, expected, strict=True))
    inexact = case.optimizer in INEXACT or any(case.arguments.get(option) for option in NORMS)
    if inexact and worst <= CLOSE[dtype] * max(moved, 1.0):
        return ""
    return f"differs from the CPU by {worst:.3g}, where variables moved by {moved:.3g}"


def check_training(device: Device) -> tuple[bool, str]:
    """Every case of the conformance table that has a kernel: the bits of the CPU's."""
    cases = [case for case in ROWS if case.optimizer not in WHOLE or case.has_sums]
    runs = [(case, "float32", in_function, {}) for case in cases for in_function in (False, True)]
    few = [case for case in cases if FIRST[case.optimizer].name == case.name]
    runs += [(case, dtype, False, {}) for case in few for dtype in ("float64", "bfloat16", "float16")]
    runs += [(case, dtype, False, {"master_copies": True}) for case in few for dtype in ("bfloat16", "float16")]
    wrong = []
    for case, dtype, in_function, more in runs:
        how = "in a function" if in_function else "eagerly"
        if problem := compared(device, case, dtype, in_function, **more):
            wrong.append(f"{case.name} in {dtype}, {how}{', master copies' if more else ''}: {problem}")
    for line in wrong:
        print("  ", line, flush=True)
    return not wrong, f"{len(runs) - len(wrong)} of {len(runs)} runs as on the CPU"


def _adam() -> Case:
    return next(case for case in ROWS if case.name == "adam")


def check_buffers(device: Device) -> tuple[bool, str]:
    """A value that was read stays; what is assigned counts; a gradient may be freed once the call has returned."""
    device.begin(_adam())
    try:
        with tf.device(device.name):
            variable = tf.Variable(tf.zeros([device.elements]))
            optimizer = _adam().make()
            optimizer.apply_gradients([(tf.ones([device.elements]), variable)])
            before = variable.read_value()
            kept = float(before[0])
            for k in range(200):
                optimizer.apply_gradients(
                    [(tf.fill([device.elements], float(k % 7 + 1)), variable)]
                )  # freed right after
            if float(before[0]) != kept or not np.all(np.isfinite(variable.numpy())):
                return False, "a value that was read has changed"
            spread = float(tf.reduce_max(variable) - tf.reduce_min(variable))
            if spread != 0.0:
                return (
                    False,
                    f"elements with the same gradients differ by {spread}: a gradient was overwritten too early",
                )
            variable.assign(tf.fill([device.elements], 5.0))
            optimizer.apply_gradients([(tf.zeros([device.elements]), variable)])
            now = float(variable[0])
            return 4.0 < now < 5.0 + 1e-6, f"after an assignment a step begins with the new value ({now:.4f} from 5)"
    finally:
        device.end()


def check_memory(device: Device) -> tuple[bool, str]:
    """No growth of device memory over many steps."""
    if device.emulated:
        return True, "not measured on a CPU"
    with tf.device(device.name):
        variables = [tf.Variable(tf.zeros([512, 64])) for _ in range(20)]
        gradients = [tf.ones([512, 64]) for _ in variables]
        optimizer = _adam().make()

        def steps(count: int) -> int:
            for _ in range(count):
                optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
            variables[0].numpy()
            return int(tf.config.experimental.get_memory_info(device.name)["current"])

        before = steps(10)
        after = steps(MANY_STEPS)
    return after <= before, f"{(after - before) / MANY_STEPS:.1f} bytes a step over {MANY_STEPS} steps"


def check_modules(device: Device) -> tuple[bool, str]:
    """How long a module takes to compile: a user waits that long, in the background, at the first use of a rule."""
    start = time.perf_counter()
    program = program_for(_adam().make()._algorithm.updating_rule)
    assert program is not None
    text = modules.image(cuda.source(program, "float32")).decode()
    return ".entry" in text, f"Adam's module: {len(text)} bytes of PTX in {time.perf_counter() - start:.2f} s"


def measured(folder: Path, workload: str, seconds: int) -> tuple[bool, str]:
    """The peers of one workload, by `dtopt bench`."""
    lines = []
    for how in ("eager", "function"):
        path = folder / f"{workload}-{how}.json"
        command = [sys.executable, "-m", "dtopt_cli", "bench", "step", "--device", "gpu", "-w", workload, "-o", "adam"]
        command += [
            "-p",
            PEERS,
            "--baseline",
            "optim-plain",
            "--in",
            how,
            "--budget",
            str(seconds),
            "--output",
            str(path),
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3 * seconds + 60, check=False)
        if done.returncode != 0 or not path.exists():
            return False, f"{how}: exit {done.returncode}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
        lines.append(f"{how}: {path.name}")
        print(done.stdout, flush=True)
    return True, ", ".join(lines)


def run(name: str, check: Callable[[], tuple[bool, str]]) -> Check:
    """One check; an error of any kind is a failure of it alone."""
    print(f"{name} ...", flush=True)
    start = time.perf_counter()
    try:
        ok, result = check()
    except Exception as error:  # the other checks are to run, too
        traceback.print_exc()
        ok, result = False, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return Check(name, ok, result, time.perf_counter() - start)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--into", type=Path, default=Path("gpu-check"), help="folder for the results")
    parser.add_argument("--emulated", action="store_true", help="on a CPU, through emulated launches")
    parser.add_argument("--only", action="append", help="the checks with this in their name")
    options = parser.parse_args(arguments)
    if not options.emulated and not tf.config.list_physical_devices("GPU"):
        print("TensorFlow finds no GPU: pip install 'tensorflow[and-cuda]', and look at nvidia-smi", file=sys.stderr)
        return 4
    options.into.mkdir(parents=True, exist_ok=True)
    device = Device(options.emulated)
    checks: dict[str, Callable[[], tuple[bool, str]]] = {
        "modules": lambda: check_modules(device),
        "training": lambda: check_training(device),
        "buffers": lambda: check_buffers(device),
        "memory": lambda: check_memory(device),
    }
    if not options.emulated:
        for workload, seconds in WORKLOADS.items():
            checks[f"time of {workload}"] = lambda w=workload, s=seconds: measured(options.into, w, s)  # type: ignore[misc]
    chosen = {n: c for n, c in checks.items() if not options.only or any(part in n for part in options.only)}
    done = [run(name, check) for name, check in chosen.items()]
    (options.into / "checks.json").write_text(json.dumps([asdict(check) for check in done], indent=1))
    print(f"\nTensorFlow {tf.version.VERSION}, {device.name}")
    for check in done:
        print(f"{'ok  ' if check.ok else 'FAIL'} {check.name:<22} {check.seconds:6.1f} s  {check.result}")
    return 0 if all(check.ok for check in done) else 1


if __name__ == "__main__":
    sys.exit(main())
