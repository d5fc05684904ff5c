"""Eight logical devices for every test that uses TensorFlow; they are fixed once it starts.

They are CPUs, or with `DTOPT_TEST_DEVICE=GPU` parts of a GPU; then variables without a mesh lie on it, too.
"""

from __future__ import annotations

import functools
import gc
import os
from typing import Any

import pytest
import typer.main

from tests.helpers.breadth import ONLY_BROAD, leave_to_breadth, only_broad
from tests.helpers.once import share
from tests.helpers.placed import KIND, ON_GPU
from tests.places import ROOT

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
# The native kernel is compiled into the test run's own cache, not into the user's.
os.environ["XDG_CACHE_HOME"] = str(ROOT / ".pytest_cache" / "xdg")
# As in a user's shell: what is printed is written when there is more of it, or at the end.
os.environ.pop("PYTHONUNBUFFERED", None)
# What tests write need not outlast the machine; each wait for its disk is a few milliseconds, of thousands.
os.fsync = os.fdatasync = lambda descriptor: None
typer.main.get_command = functools.cache(typer.main.get_command)  # it makes all commands anew for each that is run
LOGICAL_DEVICES = 8
GPU_MEMORY = 2048
"""Of each logical device, in MiB."""
gc.disable()  # until `devices`: what is imported and collected stays
SELDOM = (20_000, 20, 20)
"""Thresholds of the garbage collector, which with its own takes a fifteenth of the time of tests that trace graphs."""


@pytest.hookimpl(tryfirst=True)  # before items are deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Names of tests are the same in each process that runs a part of them."""
    config.stash[ONLY_BROAD] = only_broad(items)
    leave_to_breadth(items)
    moving = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if moving:
        raise pytest.UsageError(f"{moving[0]} is called after an address; give it ids")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A suite of upstream's that could not be run is told apart from other skips."""
    from tests.upstream.sources import NOT_RUN

    skipped = (str(report.longrepr) for report in terminalreporter.stats.get("skipped", []))
    for line in sorted({text[text.index(NOT_RUN) :].rstrip("')") for text in skipped if NOT_RUN in text}):
        terminalreporter.write_line(line, red=True, bold=True)


@pytest.fixture(scope="session", autouse=True)
def devices() -> list[str]:
    """Names of the logical devices, set before any test starts TensorFlow.

    What was imported until then is no garbage: to look through it again and again takes up to a seventh of their time.
    """
    import tensorflow as tf

    gc.collect()
    gc.freeze()
    gc.set_threshold(*SELDOM)
    gc.enable()
    for kind in {"CPU", KIND}:
        physical = tf.config.list_physical_devices(kind)
        if not physical:
            raise pytest.UsageError(f"DTOPT_TEST_DEVICE is {KIND}, and TensorFlow finds no such device")
        memory = None if kind == "CPU" else GPU_MEMORY
        each = tf.config.LogicalDeviceConfiguration(memory_limit=memory)
        tf.config.set_logical_device_configuration(physical[0], [each] * LOGICAL_DEVICES)
    if ON_GPU:  # or it multiplies matrices in TF32, and adds up in an order that changes
        tf.config.experimental.enable_tensor_float_32_execution(False)
        tf.config.experimental.enable_op_determinism()
    return [f"{KIND}:{i}" for i in range(LOGICAL_DEVICES)]


@pytest.fixture(scope="session", autouse=True)
def _shared_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    own = tmp_path_factory.getbasetemp()
    share(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)


@pytest.fixture(scope="session")
def mesh_2(devices: list[str]) -> Any:
    """One axis x of size 2."""
    from tensorflow.experimental import dtensor

    return dtensor.create_mesh([("x", 2)], devices=devices[:2])


@pytest.fixture(scope="session")
def mesh_2x2(devices: list[str]) -> Any:
    """Axes batch and model of size 2 each."""
    from tensorflow.experimental import dtensor

    return dtensor.create_mesh([("batch", 2), ("model", 2)], devices=devices[:4])


@pytest.fixture(scope="session")
def mesh_2x2x2(devices: list[str]) -> Any:
    """Axes data, batch and model of size 2 each."""
    from tensorflow.experimental import dtensor

    return dtensor.create_mesh([("data", 2), ("batch", 2), ("model", 2)], devices=devices)
