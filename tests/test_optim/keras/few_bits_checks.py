"""Run by `test_few_bits_on_backends.py` in a process of its own: state in fewer bits with Keras on JAX or PyTorch.

Prints one JSON line for each check: its name, and its traceback if it failed.

Usage: few_bits_checks.py FOLDER, which has a checkpoint of TensorFlow, and gets one of this backend.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import optim
from optim.errors import HyperparameterError, MismatchError
from tests.test_optim.bits import few_bits_reference as reference
from tests.test_optim.keras.check_runner import run_checks

BACKEND = keras.backend.backend()
SHAPES = {"kernel": (70, 100), "bias": (7,), "table": (3, 13, 110)}
OPTIONS: dict[str, dict[str, Any]] = {
    "bfloat16": {"slot_dtype": "bfloat16", "rounding_seed": 11},
    "int8": {"slot_dtype": "int8"},
    "rounds": {"stochastic_rounding": True, "dtype": "bfloat16"},
    "rounds int8": {"stochastic_rounding": True, "slot_dtype": "int8", "dtype": "bfloat16"},
}
HYPER = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}


def draws(seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def start(dtype: str = "float32") -> dict[str, Any]:
    return {name: keras.Variable(value, dtype=dtype, name=name) for name, value in draws(0).items()}


def numbers(variable: Any) -> np.ndarray:
    value = keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32"))
    return np.asarray(value, np.float32)


def step(optimizer: Any, variables: dict[str, Any], calls: Any, compiled: bool = False) -> None:
    """Call `apply`, or with JAX a compiled `stateless_apply`, which gets its state as arguments."""
    kinds = {name: str(v.dtype) for name, v in variables.items()}
    pure: Any = None
    if compiled:
        import jax

        pure = jax.jit(optimizer.stateless_apply)
    for call in calls:
        gradients = draws(1 + call)
        given = [keras.ops.convert_to_tensor(gradients[name], kinds[name]) for name in variables]
        if pure is None:
            optimizer.apply(given, list(variables.values()))
            continue
        optimizer.build(list(variables.values()))
        of = [v.value for v in variables.values()]
        after, state = pure([v.value for v in optimizer.variables], given, of)
        for variable, value in zip([*variables.values(), *optimizer.variables], [*after, *state], strict=True):
            variable.assign(value)


def check_steps_follow_the_reference() -> None:
    for name, options in OPTIONS.items():
        options = dict(options)
        dtype = options.pop("dtype", "float32")
        first = {key: numbers(variable) for key, variable in start(dtype).items()}
        hyper = {"learning_rate": 0.01, "base_learning_rate": 0.01, **HYPER}
        for way in ("eager", "compiled") if BACKEND == "jax" else ("eager", "ops"):
            inner = optim.Adam(0.01, **HYPER, **options)
            rule = inner._algorithm.rule
            how = {"rounds": "rounds" in name, "seed": options.get("rounding_seed", 0)}
            slot_dtype = options.get("slot_dtype", "bfloat16" if "rounds" in name else None)
            goal = reference.Reference(rule, hyper, first, slot_dtype, **how)
            variables, optimizer = start(dtype), optim.for_keras(inner)
            if way == "ops":
                optimizer._xp.kernel_steps = lambda: None
            step(optimizer, variables, range(3), compiled=way == "compiled")
            for call in range(3):
                low = {k: keras.ops.convert_to_tensor(g, dtype) for k, g in draws(1 + call).items()}
                goal.step({k: numbers(g) for k, g in low.items()})
            _assert_is(optimizer, variables, goal, f"{name}, {way}")


def _assert_is(optimizer: Any, variables: dict[str, Any], goal: Any, what: str) -> None:
    for key, variable in variables.items():
        # The last bit of float32 sometimes selects another code, or another number of bfloat16.
        is_far = ~np.isclose(numbers(variable), goal.values[key], rtol=1e-5, atol=1e-6)
        assert is_far.mean() < 1e-3, (what, key, is_far.mean())
        for slot, stored in goal.slots[key].items():
            found = optimizer.get_slot(variable, slot)
            if stored.codes is None:
                is_far = ~np.isclose(numbers(found), stored.value, rtol=1e-6, atol=1e-12)
                assert is_far.mean() < 2e-3, (what, key, slot, is_far.mean())
                continue
            codes = keras.ops.convert_to_numpy(found.value).astype(int) + (128 if str(found.dtype) == "int8" else 0)
            assert np.mean(codes != stored.codes) < 2e-3, (what, key, slot)
            scales = numbers(optimizer.get_slot(variable, f"{slot}_scale"))
            np.testing.assert_allclose(scales, stored.scales, rtol=1e-6)
            decoded = reference.decode(codes, scales, str(found.dtype) == "int8")
            assert np.abs(decoded - stored.value).max() < 0.02 * scales.max(), (what, key, slot)


def check_it_continues_a_checkpoint_of_tensorflow() -> None:
    """With the bits that TensorFlow stored, and its next variables."""
    for name in ("bfloat16", "int8"):
        variables = start()
        optimizer = optim.load_checkpoint(Path(sys.argv[1]) / f"tensorflow-{name}", variables)
        assert optimizer.slot_dtype == OPTIONS[name]["slot_dtype"]
        later = np.load(Path(sys.argv[1]) / f"tensorflow-{name}.npz")
        step(optimizer, variables, range(3, 5))
        for key, variable in variables.items():
            assert np.mean(~np.isclose(numbers(variable), later[key], rtol=1e-5, atol=1e-6)) < 1e-3, (name, key)


def check_tensorflow_can_continue() -> None:
    """`test_few_bits_on_backends.py` reads what this writes."""
    for name in ("bfloat16", "int8"):
        variables = start()
        optimizer = optim.for_keras(optim.Adam(0.01, **HYPER, **OPTIONS[name]))
        step(optimizer, variables, range(3))
        optim.save_checkpoint(Path(sys.argv[1]) / f"{BACKEND}-{name}", optimizer, variables)
        store: dict[str, Any] = {}
        optimizer.save_own_variables(store)
        again, others = optim.for_keras(optim.Adam(0.01, **HYPER, **OPTIONS[name])), start()
        for key, variable in others.items():
            variable.assign(variables[key].value)
        again.build(list(others.values()))
        again.load_own_variables(store)
        step(optimizer, variables, range(3, 5))
        step(again, others, range(3, 5))
        for key, variable in variables.items():
            np.testing.assert_array_equal(numbers(variable), numbers(others[key]))
        np.savez(Path(sys.argv[1]) / f"{BACKEND}-{name}.npz", **{k: numbers(v) for k, v in variables.items()})


def check_memory_is_reported() -> None:
    sizes = {}
    for slot_dtype in (None, "bfloat16", "int8"):
        optimizer = optim.for_keras(optim.Adam(0.01, slot_dtype=slot_dtype))
        optimizer.build([keras.Variable(np.zeros((64, 128), np.float32))])
        (sizes[slot_dtype],) = optimizer.memory_report().slot_bytes.values()
    assert sizes == {None: 8 * 8192, "bfloat16": 4 * 8192, "int8": 2 * 8192 + 2 * 4 * 4}, sizes


def check_what_is_refused() -> None:
    for make in (
        lambda: optim.SGD(0.1, slot_dtype="int8"),
        lambda: optim.Adam(0.1, rounding_seed=3),
        lambda: optim.Adam(0.1, slot_dtype="int8", lazy_rows=["table"]),
        lambda: optim.Adam(0.1, stochastic_rounding=True, master_copies=True),
    ):
        with pytest.raises(HyperparameterError):
            optim.for_keras(make())
    if BACKEND == "torch":
        variable = keras.Variable(np.zeros(3), dtype="float64")
        with pytest.raises(MismatchError, match="float64"):
            optim.for_keras(optim.Adam(0.1, slot_dtype="int8")).build([variable])


def check_slots_on_a_mesh_are_those_of_one_device() -> None:
    """With JAX: a 2x2 mesh whose model axis cuts rows, and so all blocks of codes; `zero1` cuts further."""
    if BACKEND != "jax":
        return
    distribution = keras.distribution
    mesh = distribution.DeviceMesh((2, 2), ["batch", "model"], distribution.list_devices("cpu"))
    layouts = distribution.LayoutMap(mesh)
    layouts[".*kernel"] = distribution.TensorLayout([None, "model"], mesh)
    placed = distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    for name in ("bfloat16", "int8"):
        expected, alone = start(), optim.for_keras(optim.Adam(0.01, **OPTIONS[name]))
        step(alone, expected, range(2), compiled=True)
        for placement in ("like_variable", "zero1"):
            distribution.set_distribution(placed)
            try:
                variables = start()
                optimizer = optim.for_keras(optim.Adam(0.01, slot_placement=placement, **OPTIONS[name]))
                step(optimizer, variables, range(2), compiled=True)
            finally:
                distribution.set_distribution(None)
            shard = optimizer.get_slot(variables["kernel"], "m").value.addressable_shards[0].data.shape
            assert shard == ((35, 50) if placement == "zero1" else (70, 50)), (placement, shard)
            for one, other in zip(optimizer.variables, alone.variables, strict=True):
                np.testing.assert_allclose(numbers(one), numbers(other), rtol=1e-6, atol=1e-12, err_msg=one.path)


if __name__ == "__main__":
    run_checks(globals())
