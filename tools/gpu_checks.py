"""The checks of `gpu_check.py`: `python tools/gpu_checks.py FD [--emulated] NAME...` runs some, one after the other.

Each check reports to the pipe FD when it begins and how it ended. pytest is not needed.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
for package in {"tests", "tools"} - sys.modules.keys():  # one in site-packages may have the same name
    sys.modules[package] = types.ModuleType(package)
    sys.modules[package].__path__ = [str(ROOT / package)]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # why there is no GPU is a warning
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["DTOPT_KERNELS"] = "build"
os.environ["DTOPT_GPU"] = "on"

import tensorflow as tf  # noqa: E402 - the environment is read when it is imported

from tools.gpu import (  # noqa: E402
    few_bits,
    fit,
    full_memory,
    kernel,
    memory,
    meshes,
    own_rule,
    replicas,
    runs,
    steps,
    waiting,
)
from tools.gpu.device import Device, NothingToCheckError, first_line  # noqa: E402

CHECKS: dict[str, Callable[[Device], tuple[bool, str]]] = {
    "kernel": kernel.check_kernel,
    "rules eagerly": runs.check_rules_eagerly,
    "rules in functions": runs.check_rules_in_functions,
    "options": runs.check_options,
    "dtypes": runs.check_dtypes,
    "few bits": few_bits.check_few_bits,
    "buffers": memory.check_buffers,
    "loss scale": steps.check_loss_scale,
    "rows": steps.check_rows,
    "meshes": meshes.check,
    "replicas": replicas.check_replicas,
    "devices": replicas.check_devices,
    "own rule": own_rule.check_own_rule,
    "waiting": waiting.check_waiting,
    "full memory": full_memory.check_full_memory,
    "fit of keras": lambda device: fit.check_fit(device, "keras"),
    "fit of tf_keras": lambda device: fit.check_fit(device, "tf_keras"),
    "memory": memory.check_memory,
}


def run(name: str, device: Callable[[], Device]) -> dict[str, Any]:
    """Run one check. An error of any kind is its result."""
    start = time.perf_counter()
    try:
        ok, result = CHECKS[name](device())
        status = "ok" if ok else "failed"
    except NothingToCheckError as error:
        status, result = "skipped", str(error)
    except Exception as error:  # the other checks are to run, too
        traceback.print_exc()
        status, result = "failed", first_line(error)
    return {"status": status, "result": result, "seconds": time.perf_counter() - start}


def main(arguments: Sequence[str]) -> int:
    pipe, *rest = arguments
    emulated = "--emulated" in rest
    names = [word for word in rest if word != "--emulated"]
    with os.fdopen(int(pipe), "w", buffering=1) as messages:
        gpus = [] if emulated else tf.config.list_physical_devices("GPU")
        messages.write(json.dumps({"tensorflow": tf.version.VERSION, "gpus": len(gpus)}) + "\n")
        if not emulated and not gpus:
            return 4
        if "meshes" in names:
            meshes.divide(emulated)
        if "full memory" in names and not emulated:
            full_memory.limit()
        tf.config.experimental.enable_tensor_float_32_execution(False)  # products of 10 bits are no reference
        devices: list[Device] = []

        def device() -> Device:
            if not devices:
                devices.append(Device(emulated))
            return devices[0]

        for name in names:
            messages.write(json.dumps({"begins": name}) + "\n")
            messages.write(json.dumps({"ends": name, **run(name, device)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main(sys.argv[1:]))  # frameworks may hang while they shut down; everything is told by now
