"""dtopt's own kernel: the rules' maths bit for bit, and TensorFlow's rules for buffers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from optim.devices import call
from optim.executors import native
from optim.native import direct, library
from optim.native.generate import builtin_programs, program_for
from optim.rule import hyperparameters
from optim.rules.adabelief import AdaBeliefRule
from optim.rules.adadelta import AdadeltaRule
from optim.rules.adagrad import AdagradRule
from optim.rules.adam import AdamRule
from optim.rules.adamax import AdamaxRule
from optim.rules.adan import AdanRule
from optim.rules.cocob import COCOBRule
from optim.rules.ftrl import FtrlRule
from optim.rules.lion import LionRule
from optim.rules.nadam import NadamRule
from optim.rules.proximal_adagrad import ProximalAdagradRule
from optim.rules.rectified_adam import RectifiedAdamRule
from optim.rules.rmsprop import RMSpropRule
from optim.rules.schedule_free_adamw import ScheduleFreeAdamWRule
from optim.rules.sgd import SGDRule
from optim.rules.yogi import YogiRule
from tests.test_optim.cases import FIRST, VARIANTS, WHOLE, Case, marked
from tests.test_optim.native.kernel_support import require_kernel

BOTH = (False, True)
RULES = (
    SGDRule(),
    *(SGDRule(nesterov, True, inside) for nesterov, inside in itertools.product(BOTH, BOTH)),
    *(AdamRule(amsgrad, nesterov=nesterov) for amsgrad, nesterov in itertools.product(BOTH, BOTH)),
    *(AdadeltaRule(new_delta) for new_delta in BOTH),
    *(AdagradRule(epsilon_inside=inside) for inside in BOTH),
    *(RMSpropRule(*choices) for choices in itertools.product(BOTH, BOTH, BOTH, BOTH)),
    LionRule(),
    AdamaxRule(),
    NadamRule(),
    *(FtrlRule(learning_rate_in_linear=inside) for inside in BOTH),
    *(AdaBeliefRule(amsgrad=amsgrad) for amsgrad in BOTH),
    *(RectifiedAdamRule(amsgrad=amsgrad) for amsgrad in BOTH),
    YogiRule(),
    AdanRule(),
    ScheduleFreeAdamWRule(),
    ProximalAdagradRule(),
    COCOBRule(),
)
HYPER = {
    "learning_rate": 0.1,
    "momentum": 0.9,
    "beta_1": 0.9,
    "beta_2": 0.999,
    "rho": 0.95,
    "epsilon": 1e-7,
    "schedule_decay": 0.004,
    "u_product": 0.9,
    "learning_rate_power": -0.5,
    "l1_regularization_strength": 0.01,
    "l2_regularization_strength": 0.02,
    "l2_shrinkage_regularization_strength": 0.03,
    "beta": 0.1,
    "alpha": 100.0,
}
SHAPES = ((), (0,), (1,), (3, 5), (64,), (130, 257), (70001,))
DTYPES = {"float32": np.float32, "float64": np.float64, "bfloat16": tf.bfloat16.as_numpy_dtype, "float16": np.float16}
NONE = np.zeros(0)
# Those that the kernel does not have look at whole tensors.
ADAM = next(case for case in VARIANTS if case.name == "adam")
CASES = [case for case in VARIANTS if case.optimizer not in WHOLE]


def _hyper(rule: Any) -> dict[str, Any]:
    """What a step gives a rule: numbers that leave nothing out, and its defaults for the rest."""
    defaults = {name: 0.0 if h.default is None else h.default for name, h in hyperparameters(type(rule)).items()}
    return {**defaults, **rule.scalars, **HYPER}


@pytest.fixture(autouse=True)
def _kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel, compiled at most once for this machine."""
    monkeypatch.setenv(library.VARIABLE, "build")
    require_kernel()


def arrays(seed: int, dtype: Any, *, positive: bool = False) -> list[Any]:
    random = np.random.default_rng(seed)
    made = [np.asarray(random.normal(size=shape) * 10.0 ** random.integers(-4, 4), dtype) for shape in SHAPES]
    return [np.abs(a) for a in made] if positive else made


def variables(values: Any) -> list[tf.Variable]:
    return [tf.Variable(tf.constant(v)) for v in values]


def handles(group: Any) -> list[Any]:
    return [v.handle for v in group]


def launch(rule: Any, scalars: Any, model: Any, slots: Any, gradients: Any, averages: Any = (), **more: Any) -> None:
    """One update; `slots` are groups in order."""
    numbers = {"scales": NONE, "decays": NONE, "options": [np.inf, 0.0, 0.0], "overwrite": False, **more}
    flat = [handle for group in slots for handle in handles(group)]
    program = program_for(rule) if not isinstance(rule, str) else None
    name = rule if program is None else program.name
    shapes, of_all = (
        ((len(slots), 0, 0, 0), len(scalars)) if program is None else (program.shapes, len(program.scalars))
    )
    tensors = [tf.convert_to_tensor(g) for g in gradients]
    held, sources = direct.hold(tensors), tf.range(len(tensors), dtype=tf.int64)
    none = tf.constant(NONE, tf.int64)
    part, number = call("DtoptGroup", handles(model), flat, handles(averages), [], none, sources, none, none)
    sizes = ("shapes", shapes, "passes", [], "powers", [], "scalars_of_all", of_all, "identity_at_zero", False)
    kind = tf.as_dtype(model[0].dtype).as_datatype_enum
    group, number = call("DtoptJoin", tf.reshape(number, [1]), none, "T", kind, "rule", name, *sizes)
    del part  # what is joined is held
    options = [*numbers["options"], *scalars]
    direct.update(int(number), held, options, numbers["scales"], numbers["decays"], overwrite=numbers["overwrite"])
    del group


def expected(rule: Any, variable: Any, gradient: Any, slots: Mapping[str, Any], c: Any, **more: Any) -> Any:
    """New variable and slots by the rule's own maths in NumPy, rounded where the kernel rounds.

    NumPy 1 computes scalars with Python's numbers in float64, so they are arrays; but rules ask what a power is.
    """
    dtype, shape = variable.dtype, np.shape(variable)
    wide = np.float64 if dtype == np.float64 else np.float32
    scalars = {name: wide(value) if name == "power" else np.array([value], wide) for name, value in c.items()}
    limit = wide(more["limit"])
    g = np.clip(np.atleast_1d(gradient).astype(wide) * wide(more["scale"]), -limit, limit)
    wide_slots = {name: np.atleast_1d(slot).astype(wide) for name, slot in slots.items()}
    decayed = np.atleast_1d(variable).astype(wide) * wide(more["decay"])
    change, new = rule.update(np, decayed, g, wide_slots, scalars)
    rounded = {name: value.astype(dtype).reshape(shape) for name, value in new.items()}
    return (decayed + change).astype(dtype).reshape(shape), rounded


def assert_same_bits(actual: Any, wanted: Any, what: str) -> None:
    """Equal bits, save those inside a NaN."""
    actual, wanted = np.asarray(actual), np.asarray(wanted)
    assert actual.dtype == wanted.dtype
    nan = np.isnan(wanted.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(actual.astype(np.float64)), nan, err_msg=what)
    assert actual[~nan].tobytes() == wanted[~nan].tobytes(), what


def test_every_built_in_rule_with_a_kernel_is_tested() -> None:
    """Those with sums, and what Muon and SOAP leave to Adam, are in test_native_sums.py, those that square each
    gradient of a row in test_squared_rows.py."""
    matrices = ("Muon", "SOAP")
    programs = [p for p in builtin_programs() if not p.has_sums and not p.powers and not p.name.startswith(matrices)]
    assert {program.name for program in programs} == {program_for(rule).name for rule in RULES}


KEEPS_GRADIENT = {"previous_gradient", "largest_gradient"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.quick(8)
def test_the_rule_bit_for_bit(rule: Any, dtype: str) -> None:
    kind = DTYPES[dtype]
    program = program_for(rule)
    gradients = arrays(1, kind)
    # TensorFlow's threads take subnormal numbers for 0, which only a slot that keeps the gradient itself can show.
    odd = [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.0 if KEEPS_GRADIENT & {*program.slots} else 1e-40, 3e38]
    gradients[-1][: len(odd)] = np.array(odd, kind)
    old = arrays(2, kind)
    units = {slot.name: slot.unit for slot in rule.slots}
    state = {n: arrays(3 + k, kind, positive="^2" in units[n] or n == "u") for k, n in enumerate(program.slots)}
    if "average_gradient" in state:  # whose square may not exceed the mean of squares
        state["average_gradient"] = [a * kind(0.01) for a in state["average_gradient"]]
    c = {name: float(value) for name, value in rule.coefficients(np, _hyper(rule), 3.0).items()}
    scales, decays, limit = [1.0, 0.5, 0.25, 2.0, 1 / 3, 1.0, 0.7], [1.0, 0.9, 1.0, 0.99, 1.0, 0.999, 1.0], 5.0
    model, slots = variables(old), [variables(state[n]) for n in program.slots]
    options = {"scales": scales, "decays": decays, "options": [limit, 0.0, 0.0]}
    launch(rule, [c[name] for name in program.scalars], model, slots, gradients, **options)
    with np.errstate(all="ignore"):
        for i in range(len(SHAPES)):
            mine = {n: state[n][i] for n in program.slots}
            more = {"scale": scales[i], "decay": decays[i], "limit": limit}
            value, new = expected(rule, old[i], gradients[i], mine, c, **more)
            assert_same_bits(model[i].numpy(), value, f"variable {i}")
            for n, group in zip(program.slots, slots, strict=True):
                assert_same_bits(group[i].numpy(), new[n], f"{n} {i}")


@pytest.mark.parametrize("overwrite", BOTH)
@pytest.mark.parametrize("dtype", DTYPES)
def test_averages(dtype: str, overwrite: bool) -> None:
    kind = DTYPES[dtype]
    wide = np.float64 if dtype == "float64" else np.float32
    old, old_averages, gradients = arrays(1, kind), arrays(2, kind), arrays(3, kind)
    model, averages, plain = variables(old), variables(old_averages), variables(old)
    launch(SGDRule(), [0.1], plain, [], gradients)
    launch(SGDRule(), [0.1], model, [], gradients, averages, options=[np.inf, 0.9, 0.1], overwrite=overwrite)
    for value, average, before, alone in zip(model, averages, old_averages, plain, strict=True):
        new = alone.numpy()
        mean = (wide(0.9) * before.astype(wide) + wide(0.1) * new.astype(wide)).astype(kind)
        assert_same_bits(average.numpy(), mean, "average")
        assert_same_bits(value.numpy(), mean if overwrite else new, "variable")


@pytest.mark.parametrize("dtype", DTYPES)
def test_shards_have_the_bits_of_the_whole(dtype: str) -> None:
    kind = DTYPES[dtype]
    random = np.random.default_rng(0)
    w, g, m, v = (np.abs(random.normal(size=100_003)).astype(kind) for _ in range(4))
    cuts = [0, 1, 18, 18, 33_333, 65_536, 100_003]

    def run(parts: list[slice]) -> list[bytes]:
        model, *slots = ([tf.Variable(tf.constant(a[p])) for p in parts] for a in (w, m, v))
        launch(AdamRule(), [0.1, 0.001, 0.1, 1e-7], model, slots, [g[p] for p in parts])
        return [np.concatenate([x.numpy() for x in group]).tobytes() for group in (model, *slots)]

    assert run([slice(None)]) == run([slice(a, b) for a, b in itertools.pairwise(cuts)])


def test_who_has_read_a_variable_keeps_the_value() -> None:
    model, slot = variables(arrays(1, np.float32)), variables(arrays(2, np.float32))
    gradients = arrays(3, np.float32)
    before = [x.numpy().copy() for x in model + slot]
    read = [x.read_value() for x in model + slot]
    launch(SGDRule(momentum_slot=True), [0.1, 0.9], model, [slot], gradients)
    for old, kept, now in zip(before, read, model + slot, strict=True):
        np.testing.assert_array_equal(kept.numpy(), old)
        assert now.shape.num_elements() == 0 or not np.array_equal(now.numpy(), old)


def test_a_gradient_may_be_the_value_of_the_variable() -> None:
    model = tf.Variable([1.0, 2.0, 3.0])
    gradient = model.read_value()
    launch(SGDRule(), [0.5], [model], [], [gradient])
    np.testing.assert_array_equal(model.numpy(), [0.5, 1.0, 1.5])
    np.testing.assert_array_equal(gradient.numpy(), [1.0, 2.0, 3.0])


def _address(variable: tf.Variable) -> int:
    return np.asarray(memoryview(variable.read_value())).__array_interface__["data"][0]


def test_an_update_is_in_place() -> None:
    model = tf.Variable(np.ones(1000, np.float32))
    model.assign_add(model)  # in a buffer of its own
    address = _address(model)
    launch(SGDRule(), [0.5], [model], [], [np.ones(1000, np.float32)])
    assert _address(model) == address
    np.testing.assert_array_equal(model.numpy(), np.full(1000, 1.5))


def _uninitialized() -> tf.Variable:
    handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[2], shared_name="test_native_uninitialized")
    return type("Uninitialized", (), {"handle": handle})()


ONES = np.ones(2, np.float32)
BAD: Mapping[str, tuple[Any, str]] = {
    "shape": (lambda a, b: ([a], [b], {"gradients": [np.ones(3, np.float32)]}), "its gradient"),
    "slot": (lambda a, b: ([a], [tf.Variable(np.ones(3, np.float32))], {}), "a slot of variable 0"),
    "dtype": (lambda a, b: ([a], [tf.Variable(np.ones(2))], {}), "a slot of variable 0"),
    "wider": (lambda a, b: ([a], [b], {"gradients": [np.ones(2)]}), "its gradient double"),
    "twice": (lambda a, b: ([a], [a], {}), "twice"),
    "uninitialized": (lambda a, b: ([a, _uninitialized()], [b, tf.Variable(ONES)], {}), "uninitialized"),
    "slots": (lambda a, b: ([a], [], {}), "0 slots"),
    "scalars": (lambda a, b: ([a], [b], {"scalars": [1.0]}), "scalars"),
    "scales": (lambda a, b: ([a], [b], {"scales": [1.0, 1.0]}), "scales"),
    "rule": (lambda a, b: ([a], [b], {"rule": "none"}), "no rule none"),
}


@pytest.mark.parametrize("name", BAD)
def test_nothing_changes_when_it_fails(name: str) -> None:
    make, message = BAD[name]
    a, b = tf.Variable(ONES), tf.Variable(ONES)
    model, slot, more = make(a, b)
    more = dict(more)
    rule, scalars = more.pop("rule", SGDRule(momentum_slot=True)), more.pop("scalars", [0.1, 0.9])
    gradients = more.pop("gradients", [ONES] * len(model))
    with pytest.raises(Exception, match=message):  # which class, the fast path leaves open
        launch(rule, scalars, model, [slot], gradients, **more)
    np.testing.assert_array_equal([a.numpy(), b.numpy()], [ONES, ONES])


# The optimizers.


def _run(case: Case, steps: int, **more: Any) -> tuple[Any, list[tf.Variable]]:
    optimizer, model = case.make(**more), variables(arrays(7, np.float32))
    for step in range(steps):
        optimizer.apply_gradients(zip(arrays(100 + step, np.float32), model, strict=True))
    return optimizer, model


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.quick(5)
def test_close_to_the_reference_in_float64(case: Case) -> None:
    """Means of squares, which never cancel, within one part in a million; the rest within twenty roundings of the
    largest number that took part."""
    steps, model = 20, variables(arrays(7, np.float32))
    optimizer = case.make()
    random = np.random.default_rng(0)
    names = [str(i) for i in range(len(SHAPES))]
    training = case.reference(dict(zip(names, [v.numpy() for v in model], strict=True)))
    allowed = 20 * float(np.finfo(np.float32).eps)
    largest: dict[Any, float] = {}
    for _ in range(steps):
        gradients = [np.asarray(random.normal(size=shape), np.float32) for shape in SHAPES]
        optimizer.apply_gradients(zip(gradients, model, strict=True))
        training.apply(dict(zip(names, gradients, strict=True)))
        for name in names:
            for slot, value in {"value": training.values[name], **training.slots[name]}.items():
                largest[name, slot] = max(largest.get((name, slot), 0.0), np.max(np.abs(value), initial=0.0))
    units = {slot.name: slot.unit for slot in optimizer._rule.slots}
    for name, variable in zip(names, model, strict=True):
        value = training.values[name]
        np.testing.assert_allclose(variable.numpy(), value, rtol=0, atol=allowed * largest[name, "value"])
        for slot, value in training.slots[name].items():
            squares = units[slot] == "gradient^2"
            bounds = {"rtol": 1e-6, "atol": 0} if squares else {"rtol": 0, "atol": allowed * largest[name, slot]}
            np.testing.assert_allclose(optimizer.get_slot(variable, slot).numpy(), value, err_msg=slot, **bounds)
    assert set(optimizer.executor_report().kernels.values()) == {"native"}
    assert optimizer.executor_report().why_not_native == ""


# Not Ftrl with another power than the root: it subtracts two powers of nearly equal numbers, whose last bits differ
# between TensorFlow's library and C++'s. The float64 reference above covers it.
OTHER_POWERS = ("ftrl-all", "ftrl-2.4")


@pytest.mark.parametrize(
    "case",
    marked([(c,) for c in CASES if c.name not in OTHER_POWERS], lambda case: case == FIRST[case.optimizer]),
)
@pytest.mark.quick(6)
def test_the_portable_executor_agrees(case: Case) -> None:
    # Not with norms: the portable executor adds them up in float32, and rules that divide small differences by each
    # other make much of that.
    options = {"weight_decay": 0.1, "use_ema": True, "clipvalue": 0.01}
    optimizer, model = _run(case, 5, **options)
    other, others = _run(case, 5, executor="portable", **options)
    for mine, theirs in zip(optimizer.variables + model, other.variables + others, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=2e-6, atol=1e-9)


def square_sums(arrays: Any) -> list[float]:
    tensors = [tf.constant(a) for a in arrays]
    return native.square_sums(direct.hold(tensors), range(len(tensors)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_square_sums_are_exact_but_for_roundings_of_float64(dtype: str) -> None:
    shapes = [(), (0,), (1,), (33,), (4096,), (4097,), (130, 257), (200_003,)]
    random = np.random.default_rng(0)
    tensors = [(random.normal(size=s) * 10.0 ** random.integers(-2, 2, s)).astype(DTYPES[dtype]) for s in shapes]
    sums = square_sums(tensors)
    for found, tensor in zip(sums, tensors, strict=True):
        wanted = math.fsum(np.square(tensor.astype(np.float64)).ravel())
        assert abs(found - wanted) <= 64 * np.finfo(np.float64).eps * wanted
    # Neighbours in one call, and where a block of work ends, change no bit.
    assert sums == [square_sums([t])[0] for t in tensors]


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_square_sums_tell_what_is_not_finite(odd: float) -> None:
    for place in (0, 31, 32, 5000, 9999):
        tensor = np.ones(10_000, np.float32)
        tensor[place] = odd
        assert not math.isfinite(square_sums([tensor])[0])
    assert square_sums([tf.fill([100], 3e38)])[0] == pytest.approx(9e78)  # no float32 has that square
