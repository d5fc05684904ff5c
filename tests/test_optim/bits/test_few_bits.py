"""`slot_dtype` and `stochastic_rounding`: numbers by the papers' definitions, and the same bits from every executor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import optim
from optim.bits import codes, noise
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.bits import few_bits_reference as reference
from tests.test_optim.bits.few_bits_cases import OPTIONS, RULES, assert_same, bits_of, executor_of, gradients_of, train

MODES = ("portable", "function", "native", "native_function")
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38, 1e-45, 1.0, -1.5], np.float32)


# Codes.


@pytest.mark.parametrize("is_signed", [True, False])
def test_the_code_book_is_that_of_dynamic_tree_quantization(is_signed: bool) -> None:
    np.testing.assert_allclose(codes.code_book(is_signed), reference.code_book(is_signed), rtol=2e-7)


@pytest.mark.parametrize("size", [1, 2047, 2048, 5000])
@pytest.mark.parametrize("dtype", [codes.SIGNED, codes.UNSIGNED])
def test_codes_are_the_nearest(dtype: str, size: int) -> None:
    random = np.random.default_rng(size)
    value = (random.normal(size=size) * 10.0 ** random.uniform(-9, 0, size)).astype(np.float32)
    value = np.abs(value) if dtype == codes.UNSIGNED else value
    found, scales = codes.encode(value, dtype)
    wanted, wanted_scales = reference.encode(value, dtype == codes.SIGNED)
    np.testing.assert_array_equal(found.astype(int) + (128 if dtype == codes.SIGNED else 0), wanted)
    np.testing.assert_array_equal(scales, wanted_scales)
    np.testing.assert_allclose(
        codes.decode(found, scales), reference.decode(wanted, wanted_scales, dtype == codes.SIGNED), rtol=2e-7
    )


@pytest.mark.parametrize("is_signed", [True, False])
def test_steps_cut_at_the_borders(is_signed: bool) -> None:
    """Of each border, the numbers next to it, and the same without its sign or with one: the kernel's way to a code."""
    borders = codes.borders(is_signed)
    near = np.concatenate([borders, np.nextafter(borders, np.float32(2)), np.nextafter(borders, np.float32(-2))])
    shares = np.concatenate([near, -near, [0.0, -0.0, 1.0, -1.0, 1e-30]]).astype(np.float32)
    magnitudes, negative = np.maximum(np.abs(shares), np.float32(2**-23)).view(np.int32), np.signbit(shares)
    places = (magnitudes >> 16) - codes.FIRST_STEP + codes.STEPS * negative
    found = (codes.steps(is_signed)[places] + (magnitudes & 0xFFFF)) >> 16
    np.testing.assert_array_equal(np.where(negative, 255 - found, found), np.searchsorted(borders, shares))


@pytest.mark.parametrize("dtype", [codes.SIGNED, codes.UNSIGNED])
def test_tensorflow_encodes_as_numpy(dtype: str) -> None:
    random = np.random.default_rng(3)
    blocks = random.normal(size=(7, 2048)).astype(np.float32)
    blocks[1] = 0
    blocks[2, 5], blocks[3, 6], blocks[4, :9] = np.nan, np.inf, SPECIAL
    value = (np.abs(blocks) if dtype == codes.UNSIGNED else blocks).reshape(-1)[:-100].reshape(4, -1)
    found = codes.encoded(tf.constant(value), tf.as_dtype(dtype))
    wanted = codes.encode(value, dtype)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one.numpy(), other)
    np.testing.assert_array_equal(codes.decoded(*found).numpy(), codes.decode(*wanted))


# Stochastic rounding.


def test_rounding_is_that_of_the_reference() -> None:
    value = np.concatenate([np.random.default_rng(1).normal(size=500).astype(np.float32) * 10.0, SPECIAL[:2]])
    for iterations in (0, 7, 2**40 + 3):
        for key in (noise.step_key(5, iterations), noise.step_key(5, tf.constant(iterations, tf.int64))):
            found = noise.rounded(
                tf.constant(value), noise.array_key(key, 2, "m"), tf.cast(tf.range(value.size), tf.uint32)
            )
            wanted = reference.round_to_bfloat16(value, 5, iterations, 2, "m")
            np.testing.assert_array_equal(tf.cast(found, tf.float32).numpy(), wanted)


def test_rounding_is_unbiased_over_elements_and_over_steps() -> None:
    """The mean of the outcomes is within five standard deviations of the number."""
    count = 40_000
    index = tf.cast(tf.range(count), tf.uint32)
    for share in (0.01, 0.25, 0.5, 0.9):
        number = np.float32(1 + share * 2**-7)
        deviation = 2**-7 * np.sqrt(share * (1 - share) / count)
        over_elements = noise.rounded(tf.fill([count], number), noise.array_key(1, 0, "m"), index)
        keys = tf.constant([noise.array_key(noise.step_key(0, step), 3, "v") for step in range(count)], tf.uint32)
        over_steps = noise.rounded(tf.fill([count], number), keys, tf.fill([count], tf.constant(17, tf.uint32)))
        for found in (over_elements, over_steps):
            wide = tf.cast(found, tf.float64).numpy()
            assert set(wide) <= {1.0, 1.0 + 2**-7}
            assert abs(wide.mean() - number) < 5 * deviation


def test_what_bfloat16_has_stays_as_it_is() -> None:
    exact = tf.cast(tf.cast(tf.random.stateless_normal([1000], [1, 2]), tf.bfloat16), tf.float32)
    value = tf.concat([exact, tf.constant([np.inf, -np.inf, np.nan, 0.0, -0.0])], 0)
    found = noise.rounded(value, tf.constant(9, tf.uint32), tf.cast(tf.range(1005), tf.uint32))
    np.testing.assert_array_equal(tf.cast(found, tf.float32).numpy(), value.numpy())


# Steps.


CASES = {
    "adam": (optim.Adam, {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}),
    "adagrad": (optim.Adagrad, {"epsilon": 1e-7}),
    "rmsprop": (optim.RMSprop, {"rho": 0.9, "momentum": 0.5, "epsilon": 1e-7}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("slot_dtype", ["bfloat16", "int8"])
@pytest.mark.quick(1)
def test_steps_follow_the_reference(name: str, slot_dtype: str) -> None:
    """The rule with numpy in float32, between which slots are stored as the reference has it."""
    make, hyper = CASES[name]
    optimizer = make(0.01, slot_dtype=slot_dtype, executor="portable", **hyper)
    variables = train(optimizer, "function")
    goal = reference.Reference(
        optimizer._algorithm.rule,
        {"learning_rate": 0.01, "base_learning_rate": 0.01, **hyper},
        gradients_of(0),
        slot_dtype,
    )
    for call in range(4):
        goal.step(gradients_of(1 + call))
    for key, var in variables.items():
        # A last bit of float32 decides now and then between two codes, or two numbers of bfloat16.
        assert np.mean(~np.isclose(value_of(var), goal.values[key], rtol=1e-5, atol=1e-6)) < 1e-4
        for slot, stored in goal.slots[key].items():
            found = optimizer.get_slot(var, slot)
            if stored.codes is None:
                is_close = np.isclose(tf.cast(found, tf.float32), stored.value, rtol=1e-6, atol=1e-12)
                assert np.mean(~is_close) < (1e-3 if found.dtype == tf.bfloat16 else 1e-9)
                continue
            off = 128 if found.dtype == tf.int8 else 0
            assert np.abs(found.numpy().astype(int) + off - stored.codes).max() <= 1
            assert np.mean(found.numpy().astype(int) + off != stored.codes) < 1e-3
            np.testing.assert_allclose(optimizer.get_slot(var, f"{slot}_scale"), stored.scales, rtol=1e-6)


def _run(options: dict[str, Any], mode: str) -> dict[str, np.ndarray]:
    options = dict(options)
    dtype = options.pop("dtype", tf.float32)
    optimizer = optim.Adam(0.01, executor=executor_of(mode), **options)
    variables = train(optimizer, mode, dtype)
    if mode in ("native", "native_function"):
        assert set(optimizer.executor_report().kernels.values()) == {"native"}
    return bits_of(optimizer, variables)


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.quick(4)
def test_every_executor_gives_the_same_bits(name: str, mode: str) -> None:
    assert_same(_run(OPTIONS[name], mode), _run(OPTIONS[name], "portable"))


@pytest.mark.parametrize("mode", ["native"])
@pytest.mark.parametrize("is_signed", [True, False])
def test_the_kernel_encodes_all_decades_and_borders(is_signed: bool, mode: str) -> None:
    """A slot that is the gradient, or its square."""
    borders = codes.borders(is_signed)
    near = np.concatenate([borders, codes.code_book(is_signed), *(10.0 ** -np.arange(9) * sign for sign in (1, -1))])
    near = np.concatenate([np.nextafter(near, np.float32(end)) for end in (-2, 2)] + [near]).astype(np.float32)
    random = np.random.default_rng(2)
    value = random.choice([-1, 1], 40_000) * 10.0 ** random.uniform(-9, 0, 40_000)
    value = np.concatenate([np.append(near, np.ones(-near.size % 2048)), value]).astype(np.float32)
    if is_signed:
        optimizer: Any = optim.SGD(
            0.1, momentum=0.0, momentum_slot=True, learning_rate_in_momentum=False, slot_dtype="int8"
        )
    else:
        optimizer, value = optim.RMSprop(0.1, rho=0.0, slot_dtype="int8"), np.sqrt(np.abs(value))
    weights = tf.Variable(tf.zeros([value.size]))
    optimizer.apply_gradients([(tf.constant(value), weights)])
    assert set(optimizer.executor_report().kernels.values()) == {"native"}
    slot = "m" if is_signed else "velocity"
    wanted = codes.encode(value if is_signed else np.square(value), codes.SIGNED if is_signed else codes.UNSIGNED)
    np.testing.assert_array_equal(optimizer.get_slot(weights, slot), wanted[0])
    np.testing.assert_array_equal(optimizer.get_slot(weights, f"{slot}_scale"), wanted[1])


@pytest.mark.breadth
@pytest.mark.parametrize("mode", ["native", "native_function"])
@pytest.mark.parametrize("slot_dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize(
    "make",
    RULES,
    ids=lambda made: made.__name__,
)
def test_other_rules_give_the_same_bits(make: Any, slot_dtype: str, mode: str) -> None:
    found = []
    for executor, how in ((executor_of(mode), mode), ("portable", "portable")):
        optimizer = make(0.01, slot_dtype=slot_dtype, executor=executor)
        found.append(bits_of(optimizer, train(optimizer, how)))
    assert_same(*found)


@pytest.mark.parametrize("name", ["Lamb", "Muon", "LARS", "NovoGrad"])
@pytest.mark.parametrize("slot_dtype", ["bfloat16", "int8"])
@pytest.mark.quick(1)
def test_rules_of_whole_tensors_step_with_ops(name: str, slot_dtype: str) -> None:
    optimizers = [getattr(optim, name)(0.01, slot_dtype=each) for each in (None, slot_dtype)]
    whole, rounded = (train(optimizer, "function") for optimizer in optimizers)
    for key, var in whole.items():
        change = value_of(var) - gradients_of(0)[key]
        assert np.linalg.norm(value_of(rounded[key]) - value_of(var)) < 0.2 * np.linalg.norm(change)
