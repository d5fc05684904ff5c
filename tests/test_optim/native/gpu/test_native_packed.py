"""State in few bits on a GPU, emulated: each step leaves the bits of the CPU's kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import optim
from optim.native import cuda
from optim.native.gpu import Gpus
from tests.helpers import emulated_gpu
from tests.helpers.emulated_gpu import KERNELS, needs_nvrtc
from tests.test_optim.bits.few_bits_cases import OPTIONS, RULES, SHAPES, assert_same, bits_of, gradients_of, train
from tests.test_optim.native.gpu.test_native_cuda import is_ieee, ptx_of

MODES = ["native", "native_function"]
Launching = Callable[[], None]


def _both(
    gpus: Gpus, launching: Launching, make: Callable[[], Any], run: Callable[[Any], dict[str, Any]]
) -> list[dict[str, np.ndarray]]:
    """What is left after steps on a CPU, and by launches."""
    found = []
    for prepare in (lambda: None, launching):
        prepare()
        optimizer = make()
        emulated_gpu.add(gpus, optimizer._algorithm.updating_rule)
        found.append(bits_of(optimizer, run(optimizer)))
        assert set(optimizer.executor_report().kernels.values()) == {"native"}
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.quick(5)
def test_launches_leave_the_bits_of_the_cpu(gpus: Gpus, launching: Launching, name: str, mode: str) -> None:
    options = dict(OPTIONS[name])
    dtype = options.pop("dtype", tf.float32)
    found = _both(gpus, launching, lambda: optim.Adam(0.01, **options), lambda o: train(o, mode, dtype))
    assert_same(*found)
    steps = 4 // options.get("gradient_accumulation_steps", 1)
    assert emulated_gpu.driver_calls().count("launch") >= steps


@pytest.mark.breadth
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("slot_dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("make", RULES, ids=lambda made: made.__name__)
def test_other_rules(gpus: Gpus, launching: Launching, make: Any, slot_dtype: str, mode: str) -> None:
    assert_same(*_both(gpus, launching, lambda: make(0.01, slot_dtype=slot_dtype), lambda o: train(o, mode)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("slot_dtype", ["bfloat16", "int8"])
@pytest.mark.quick(2)
def test_nan_infinity_and_zero_spread_as_on_the_cpu(
    gpus: Gpus, launching: Launching, slot_dtype: str, mode: str
) -> None:
    """One of each in a block; another block has nothing but zeros."""

    def run(optimizer: Any) -> dict[str, Any]:
        gradient = gradients_of(1)["kernel"].reshape(-1)[:6_999]
        gradient[[5, 2_050]], gradient[4_096:6_144] = [np.nan, np.inf], 0
        variable = tf.Variable(tf.zeros(gradient.shape))
        apply = optimizer.apply_gradients if mode == "native" else tf.function(optimizer.apply_gradients)
        optimizer.build([variable])
        for _ in range(3):
            apply([(tf.constant(gradient), variable)])
        return {"kernel": variable}

    for ours, theirs in zip(
        *(found.values() for found in _both(gpus, launching, lambda: optim.Adam(0.01, slot_dtype=slot_dtype), run)),
        strict=True,
    ):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours.astype(np.float32), theirs.astype(np.float32))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.quick(1)
def test_gradients_may_have_another_dtype(gpus: Gpus, launching: Launching, dtype: str, mode: str) -> None:
    """That of a master copy's variable; and a skipped step, and norms, are known to the GPU alone."""
    options = {"master_copies": True, "slot_dtype": "int8", "global_clipnorm": 1.0, "loss_scale": "dynamic"}
    assert_same(
        *_both(gpus, launching, lambda: optim.Adam(0.01, **options), lambda o: train(o, mode, tf.as_dtype(dtype)))
    )
    assert "wait" not in emulated_gpu.driver_calls() or mode == "native"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("slot_dtype", ["bfloat16", "int8"])
@pytest.mark.quick(2)
def test_rows_are_made_dense(gpus: Gpus, launching: Launching, slot_dtype: str, mode: str) -> None:
    def run(optimizer: Any) -> dict[str, Any]:
        table = tf.Variable(tf.ones([500, 20]))
        values = tf.constant(gradients_of(1)["kernel"][:3, :20])
        rows = tf.IndexedSlices(values, tf.constant([7, 499, 7]), tf.constant([500, 20]))
        apply = optimizer.apply_gradients if mode == "native" else tf.function(optimizer.apply_gradients)
        optimizer.build([table])
        for _ in range(2):
            apply([(rows, table)])
        return {"table": table}

    assert_same(*_both(gpus, launching, lambda: optim.Adam(0.01, slot_dtype=slot_dtype), run))


@pytest.mark.parametrize("mode", ["native"])
def test_one_launch_updates_all_variables_of_the_same_dtypes(gpus: Gpus, launching: Launching, mode: str) -> None:
    """Small variables keep their slots in float32."""
    launching()
    optimizer = optim.Adam(0.01, slot_dtype="int8")
    emulated_gpu.add(gpus, optimizer._algorithm.updating_rule)
    train(optimizer, mode, steps=1)
    assert emulated_gpu.driver_calls().count("launch") == 2
    train(optim.Adam(0.01, slot_dtype="bfloat16"), mode, steps=1)
    assert emulated_gpu.driver_calls().count("launch") == 3
    assert emulated_gpu.driver_calls().count("copy from the host") <= 1


@pytest.mark.parametrize("name", [name for name, program in KERNELS.items() if cuda.takes_packed(program)])
def test_the_argument_of_a_launch_fits(name: str) -> None:
    program = KERNELS[name]
    size, most = cuda.packed_argument(program).itemsize, cuda.most_tensors(program, is_packed=True)
    assert size <= cuda.MOST_BYTES < cuda.packed_argument(program, most + 2).itemsize
    assert cuda.packed_argument(program).isalignedstruct


@needs_nvrtc
@pytest.mark.parametrize("name", [name for name, program in KERNELS.items() if cuda.takes_packed(program)])
@pytest.mark.quick(2)
def test_nvrtc_compiles_it(name: str) -> None:
    program = KERNELS[name]
    ptx = ptx_of(cuda.packed_source(program))
    assert f".entry {cuda.packed_name(program)}(" in ptx
    assert f"[{cuda.packed_argument(program).itemsize}]" in ptx
    assert ".local" not in ptx  # all arrays of a thread are registers
    assert is_ieee(ptx, program)


def test_shapes_have_whole_blocks_and_parts_of_them() -> None:
    sizes = [int(np.prod(shape)) for shape in SHAPES.values()]
    assert any(size > cuda.PACKED_THREADS and size % 2048 for size in sizes)
