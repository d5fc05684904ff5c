"""Rules that add up, through the GPU's launches, emulated: each step is that of the CPU's kernel, bit for bit, whatever
the shapes of variables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import optim
from optim import rules
from optim.native import cuda, library
from optim.native.generate import _variants, program_for
from optim.native.gpu import Gpus
from tests.helpers import emulated_gpu
from tests.test_optim.cases import marked
from tests.test_optim.native.kernel_support import require_kernel
from tests.test_optim.native.test_native_sums import Along, Batch, Signed

RANKS = {
    1: [(1,), (7,), (2048,), (2049,), (40_001,), (0,)],
    2: [(3, 5), (130, 257), (2, 9001), (4099, 2), (1, 1), (70, 2048), (0, 3), (3, 0), (300, 512)],
    3: [
        (3, 5, 7),
        (2, 130, 257),
        (3, 3, 64, 32),
        (300, 2, 3),
        (5, 1, 1),
        (2, 3000, 40),
        (0, 3, 4),
        (2, 0, 4),
        (7, 400, 96),
        (2, 9, 5000),
    ],
}
"""Shapes of vectors, matrices and batches of matrices: rows shorter and longer than a run, one band and several, some
with parts of several matrices, and empty ones."""
SHAPES = [(), *(shape for shapes in RANKS.values() for shape in shapes)]


def _rules() -> Iterator[Any]:
    """One for each built-in program that adds up."""
    for rule in (rule for cls in rules.every() for rule in _variants(cls)):
        if set(_sums_of(rule)):
            yield rule


def _sums_of(rule: Any) -> list[str]:
    programs = [program_for(rule, rank) for rank in range(5)]
    return [program.name for program in programs if program is not None and program.name in emulated_gpu.SUMS]


EVERY = {name: rule for rule in reversed([*_rules()]) for name in _sums_of(rule)}
"""By program: a rule that has it."""
OWN = {"along": Along("elements"), "batch": Batch(), "one": Signed()}
QUICK = {"LambRule": "float64", "NovoGradRule": "bfloat16", "AdafactorRule": "float64", "LARSRule": "float32"}
"""Dtypes by rule. Only float64 shows the last bits of sums."""


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    monkeypatch.setenv(library.VARIABLE, "build")
    require_kernel()
    path = library.status().path
    assert path is not None
    emulated_gpu.library("fake_cuda").fake_reset(12010, -1)
    found = Gpus(path)
    yield found
    found.close()


def _values(random: Any, shape: Sequence[int], dtype: str) -> Any:
    return tf.cast(tf.constant(random.normal(size=shape) * 3.0), dtype)


def _trained(rule: Any, shapes: Sequence[Sequence[int]], dtype: str, steps: int = 2, **more: Any) -> list[np.ndarray]:
    random = np.random.default_rng(4)
    variables = [tf.Variable(_values(random, shape, dtype)) for shape in shapes]
    options = {"clipvalue": 4.0, "weight_decay": 0.1, **more}
    optimizer = optim.Optimizer(rule=rule, learning_rate=0.05, **options)
    for _ in range(steps):
        gradients = [_values(random, shape, dtype) for shape in shapes]
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
    assert set(optimizer.executor_report().kernels.values()) == {"native"}
    return [np.asarray(tf.cast(v, tf.float64)) for v in (*variables, *optimizer.variables)]


def _open(gpus: Gpus, rule: Any) -> None:
    emulated_gpu.add(gpus, rule)
    gpus.open(str(emulated_gpu.compiled("fake_cuda")), is_test=True)


def _assert_same(gpus: Gpus, rule: Any, shapes: Sequence[Sequence[int]], dtype: str, **more: Any) -> None:
    expected = _trained(rule, shapes, dtype, **more)
    assert "launch" not in emulated_gpu.driver_calls()
    _open(gpus, rule)
    found = _trained(rule, shapes, dtype, **more)
    assert "launch" in emulated_gpu.driver_calls()
    for ours, theirs in zip(found, expected, strict=True):
        is_nan = np.isnan(theirs)  # of an empty variable's mean; of the bits of a NaN nothing is promised
        assert np.array_equal(np.isnan(ours), is_nan)
        assert ours[~is_nan].tobytes() == theirs[~is_nan].tobytes()


FIRST = {name.partition("_")[0]: name for name in sorted(EVERY)}


def _is_quick(name: str, dtype: str) -> bool:
    rule = name.partition("_")[0]
    return FIRST[rule] == name and QUICK.get(rule) == dtype


@pytest.mark.parametrize(("name", "dtype"), marked(itertools.product(EVERY, cuda.TYPES), _is_quick))
@pytest.mark.quick(1)
def test_every_program_and_shape(gpus: Gpus, name: str, dtype: str) -> None:
    _assert_same(gpus, EVERY[name], SHAPES, dtype)


def test_a_step_on_a_gpu_without_a_kernel_is_refused(gpus: Gpus) -> None:
    """The host cannot reach a GPU's memory, so that it never takes the step instead."""
    rule = Along("rows")
    expected = _trained(rule, [(3, 4)], "float32")
    gpus.open(str(emulated_gpu.compiled("fake_cuda")), is_test=True)
    with pytest.raises(
        tf.errors.FailedPreconditionError, match=r"variable 0 of .* is on a GPU, and no kernel"
    ) as raised:
        _trained(rule, [(3, 4)], "float32")
    assert "DTOPT_GPU=off" in str(raised.value)
    assert "launch" not in emulated_gpu.driver_calls()
    gpus.close()
    assert [a.tobytes() for a in _trained(rule, [(3, 4)], "float32")] == [b.tobytes() for b in expected]


def test_every_built_in_program_that_adds_up_is_there() -> None:
    assert set(EVERY) == set(emulated_gpu.SUMS)
    assert len(EVERY) > 10


@pytest.mark.parametrize(
    ("kind", "dtype"), marked(itertools.product(OWN, cuda.TYPES), lambda kind, dtype: dtype == "float64")
)
@pytest.mark.quick(1)
def test_rules_of_ones_own(gpus: Gpus, kind: str, dtype: str) -> None:
    """Sums of every kind: of all, of matrices, rows and columns, of what depends on sums, with slots of every shape."""
    shapes = {"along": RANKS[2], "batch": RANKS[2] + RANKS[3], "one": SHAPES}[kind]
    _assert_same(gpus, OWN[kind], shapes, dtype)
