"""Describe the machine and the software that a result belongs to."""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.errors import NoDeviceError, OptionError
from bench.measuring import accelerators, source

BUSY_LOAD = 0.5
"""Runnable processes before a run above which the machine is called busy."""

PACKAGES = ("dtopt", "numpy", "scipy", "tensorflow", "tf_keras", "keras", "torch", "jax", "jaxlib", "optax")

VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "DTOPT_GPU",
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "TF_ENABLE_ONEDNN_OPTS",
)
"""Environment variables that change speed and that the runner does not set; recorded if they are set."""

VARIABLE_PREFIXES = ("DTENSOR_", "XLA_", "TF_XLA_", "JAX_", "OMP_", "MKL_", "KMP_")

_DEVICE_FILES = {"gpu": ("/dev/nvidiactl", "/dev/kfd"), "tpu": ("/dev/accel0", "/dev/vfio/0")}

_HOW_TO_GET = {
    "gpu": "run it on a machine with an NVIDIA GPU and driver (`nvidia-smi` shows it), with"
    " `pip install 'tensorflow[and-cuda]'`, and in a container start it with `--gpus all`",
    "tpu": "run it on a Cloud TPU VM with `pip install tensorflow-tpu -f"
    " https://storage.googleapis.com/libtpu-tf-releases/index.html`",
}


def find_device(choice: str) -> str:
    """Return the device for "auto", "cpu", "gpu" or "tpu".

    Raises: OptionError; NoDeviceError, which shows how to get a missing one.
    """
    present = [name for name, files in _DEVICE_FILES.items() if any(Path(file).exists() for file in files)]
    if choice not in ("auto", "cpu", *_DEVICE_FILES):
        raise OptionError(f"no device is called {choice!r}; there are: auto, cpu, {', '.join(_DEVICE_FILES)}")
    if choice == "auto":
        return "gpu" if "gpu" in present else "cpu"
    if choice != "cpu" and choice not in present:
        files = " and ".join(_DEVICE_FILES[choice])
        raise NoDeviceError(
            f"there is no {choice.upper()} on this machine ({files} do not exist); {_HOW_TO_GET[choice]},"
            " or measure here with --device cpu"
        )
    return choice


class Log:
    """The context that a result stores about its run. Create it before the run; ask for `context` afterwards."""

    def __init__(self, command: str, threads: int, device: str = "cpu") -> None:
        self._began, self._device = time.monotonic(), device
        started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        self._members = describe(threads, device) | {"command": command, "started": started}

    def context(self, **further: Any) -> dict[str, Any]:
        """Return machine, versions, command, dates and load, and the additions of the kind of result."""
        after: dict[str, Any] = {"seconds": time.monotonic() - self._began, "load_after": load()}
        if self._device == "gpu":  # immediately, before its clocks fall
            after["accelerators_after"] = accelerators.describe()
        return {**self._members, **after, "busy": self._members["load"] > BUSY_LOAD, **further}


def describe(threads: int, device: str = "cpu") -> dict[str, Any]:
    """Describe the machine and its software. Values that cannot be read are None."""
    gpus = accelerators.describe() if device == "gpu" else []
    return {
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "cpus_allowed": len(os.sched_getaffinity(0)),
        "threads": threads,
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "memory_bytes": _meminfo("MemTotal"),
        "last_level_cache_bytes": last_level_cache(),
        "huge_pages": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "load": load(),
        "python": platform.python_version(),
        "packages": versions(),
        "source": source.describe(),
        "accelerators": gpus,
        "identity": identity([gpu["name"] for gpu in gpus]),
        "variables": _variables(),
    }


def identity(gpus: Sequence[str] = ()) -> str:
    """Return an id that is equal for machines with equal times, whatever their names.

    It is a hash of the processor, the number of processors and their caches, the memory in whole GB, and the GPUs of a
    run on them.
    """
    memory = round((_meminfo("MemTotal") or 0) / 1e9)
    parts = (platform.system(), platform.machine(), _cpu_model(), os.cpu_count(), last_level_cache(), memory, *gpus)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def versions() -> dict[str, str]:
    """Return the versions of the installed packages."""
    return {name: version for name in PACKAGES if (version := package_version(name)) is not None}


def package_version(name: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def load() -> float:
    """Return the number of runnable processes, mean of the last minute."""
    return os.getloadavg()[0]


def available_memory() -> int:
    """Return the bytes that can be allocated without swapping."""
    return _meminfo("MemAvailable") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def last_level_cache() -> int | None:
    """Return the bytes of the largest cache that a core can use."""
    sizes = [_read(str(file)) for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    units = {"K": 1024, "M": 1024**2}
    return max((int(size[:-1]) * units[size[-1]] for size in sizes if size and size[-1] in units), default=None)


def regime(working_set: int, cache: int | None) -> str:
    """Classify the memory of the numbers: "cache" (half of it or less), "dram" (four times or more, STREAM's rule),
    "mixed".
    """
    if cache is None:
        return "unknown"
    if working_set <= cache / 2:
        return "cache"
    return "dram" if working_set >= 4 * cache else "mixed"


def _variables() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if name in VARIABLES or name.startswith(VARIABLE_PREFIXES)
    }


def _cpu_model() -> str | None:
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        if line.lower().startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or None


def _meminfo(key: str) -> int | None:
    for line in (_read("/proc/meminfo") or "").splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None
