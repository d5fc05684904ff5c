"""No step leaves anything behind: of a Python number that it makes a tensor of, TensorFlow keeps 760 bytes for ever."""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from tests.test_optim.support import put, variable

CHANGING = {"decay": 0.01, "weight_decay": 0.1}
CASES: Mapping[str, Mapping[str, Any]] = {
    "numbers that change": CHANGING,
    "a schedule": {"learning_rate": keras.optimizers.schedules.CosineDecay(1e-3, 100000)},
    "norms": {**CHANGING, "global_clipnorm": 1.0},
    "accumulation": {"gradient_accumulation_steps": 2},
    "a dynamic scale": {"loss_scale": "dynamic", "loss_scale_growth_steps": 2},
    "portable": {**CHANGING, "executor": "portable", "global_clipnorm": 1.0},
    "compiled": {**CHANGING, "jit_compile": True},
}
STEPS, ATTEMPTS = 60, 6
RATES = itertools.count(1.2345e-3, 1e-7)  # a number that some test has had is there already


def _pair(where: str, mesh: Any) -> tuple[Any, Any]:
    values = np.ones([8, 4])
    if where == "mesh":
        layout = dtensor.Layout(["x", "unsharded"], mesh)
        return put(values, layout, tf.float32), variable(values, layout, "v", tf.float32)
    weights = tf.Variable(values, dtype=tf.float32)
    if where == "plain":
        return tf.ones([8, 4]), weights
    return tf.IndexedSlices(tf.ones([3, 4]), tf.constant([1, 2, 2])), weights


@pytest.mark.filterwarnings("ignore:decay is the old")
@pytest.mark.parametrize("mode", ["native", "local"])
@pytest.mark.parametrize("where", ["plain", *(pytest.param(w, marks=pytest.mark.breadth) for w in ("mesh", "rows"))])
@pytest.mark.parametrize("case", CASES)
def test_a_step_leaves_no_object_behind(mesh_2: Any, case: str, where: str, mode: str) -> None:
    optimizer = optim.Adam(**{"learning_rate": next(RATES), **CASES[case]})
    pairs = [_pair(where, mesh_2)]
    found = []
    for _ in range(ATTEMPTS):  # what is allocated once, and what other threads allocate, is not there each time
        before = sys.getallocatedblocks()
        for _ in range(STEPS):
            optimizer.apply_gradients(pairs)
        gc.collect()
        found.append(sys.getallocatedblocks() - before)
        if found[-1] < STEPS // 2:
            return
    pytest.fail(f"objects left behind by {STEPS} steps each time: {found}")
