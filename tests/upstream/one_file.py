"""What pytest collects for one file of upstream's tests: UPSTREAM_FILE, of the suite UPSTREAM_SUITE."""

from __future__ import annotations

import os
from pathlib import Path

import tensorflow as tf
from absl import flags

from tests.upstream import load

flags.FLAGS([__name__])  # combinations of strategies ask for flags, which absl's own main would have read
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
globals().update(load.all_of(Path(os.environ["UPSTREAM_FILE"]), os.environ["UPSTREAM_SUITE"]))
