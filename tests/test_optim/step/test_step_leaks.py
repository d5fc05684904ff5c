"""No step leaves anything behind: of a Python number that it makes a tensor of, TensorFlow keeps 760 bytes for ever, of
a sum of DTensor's over the devices of a mesh some 400 a device."""

from __future__ import annotations

import ctypes
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
@pytest.mark.quick(5)
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


SUMS: Mapping[str, tuple[Any, Mapping[str, Any]]] = {
    **{f"{kind.__name__}": (kind, {}) for kind in (optim.Lamb, optim.Adafactor, optim.NovoGrad, optim.LARS)},
    "ConditionalGradient": (optim.ConditionalGradient, {}),
    "zero1": (optim.Lamb, {"slot_placement": "zero1"}),
    "norms": (optim.Lamb, {"global_clipnorm": 1.0, "use_ema": True, "weight_decay": 0.1}),
    "a dynamic scale": (optim.Lamb, {"loss_scale": "dynamic"}),
}
USUAL = ("Lamb", "Adafactor")


class _Allocated(ctypes.Structure):
    """`struct mallinfo2` of the GNU C library."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in ("arena", "", "", "", "mapped", "", "", "used", "", ""))


def _bytes_in_use() -> int:
    found = ctypes.CDLL(None).mallinfo2
    found.restype = _Allocated
    now = found()
    return int(now.used + now.mapped)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs the GNU C library, 2.33 or later")
@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c in USUAL else pytest.mark.breadth) for c in SUMS])
@pytest.mark.quick(1)
def test_a_sum_over_a_divided_variable_leaves_no_memory_behind(mesh_2: Any, case: str) -> None:
    kind, options = SUMS[case]
    optimizer = kind(next(RATES), **options)
    values = np.ones([8, 4])
    layout = dtensor.Layout(["x", "unsharded"], mesh_2)
    pairs = [(put(values, layout, tf.float32), variable(values, layout, "v", tf.float32))]
    found = []
    for _ in range(ATTEMPTS):
        before = _bytes_in_use()
        for _ in range(STEPS):
            optimizer.apply_gradients(pairs)
        gc.collect()
        found.append((_bytes_in_use() - before) / STEPS)
        if found[-1] < 200:
            return
    pytest.fail(f"bytes left behind by a step: {found}")
