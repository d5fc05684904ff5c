"""What a step occupies beside the state and the gradients, measured in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.helpers.timing import ATTEMPTS, HANGS
from tests.places import ROOT

COUNT, SIDE = 6, 1024  # variables of 4 MB, in shards of 2 MB, with Adam's slots and an average

SCRIPT = f"""
import json, re
import tensorflow as tf
from tensorflow.experimental import dtensor
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
import optim

def kilobytes(key):
    return int(re.search(key + r":\\s+(\\d+)", open("/proc/self/status").read()).group(1))

mesh = dtensor.create_mesh([("x", 2)], devices=["CPU:0", "CPU:1"])
growth = {{}}
for placement, specs in (("like_variable", ["x", "unsharded"]), ("zero1", ["unsharded", "unsharded"])):
    layout = dtensor.Layout(specs, mesh)
    def tensor(value):
        rows = {SIDE} // 2 if "x" in specs else {SIDE}
        parts = []
        for device in mesh.local_devices():
            with tf.device(device):
                parts.append(tf.random.normal([rows, {SIDE}]) + value)
        return dtensor.pack([parts[0]] * 2 if rows == {SIDE} else parts, layout)
    variables = [dtensor.DVariable(tensor(i), name=f"{{placement}}_{{i}}") for i in range({COUNT})]
    gradients = [tensor(1.0) for _ in variables]
    optimizer = optim.Adam(slot_placement=placement, use_ema=True, weight_decay=0.1, global_clipnorm=1.0)
    pairs = list(zip(gradients, variables))
    for _ in range(3):
        optimizer.apply_gradients(pairs)
    found = []
    for _ in range({ATTEMPTS}):  # others may have pages of this process taken away, which then come back
        before = kilobytes("VmRSS")
        open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew
        optimizer.apply_gradients(pairs)
        found.append((kilobytes("VmHWM") - before) * 1024)
    growth[placement] = min(found)
    growth[placement + " kernels"] = sorted(set(optimizer.executor_report().kernels.values()))
print(json.dumps(growth))
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the system cannot start a peak anew")
@pytest.mark.parametrize("kernels", ["build"])
@pytest.mark.breadth
def test_a_step_allocates_less_than_the_largest_shard(kernels: str) -> None:
    environment = {**os.environ, "DTOPT_KERNELS": kernels, "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    growth = json.loads(done.stdout)
    for placement, shard in (("like_variable", SIDE * SIDE * 4 // 2), ("zero1", SIDE * SIDE * 4)):
        if growth[f"{placement} kernels"] != ["native"]:
            pytest.skip("dtopt's own kernel cannot be compiled here")
        assert growth[placement] < shard, growth
