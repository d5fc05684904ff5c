"""Any way of calling, with any options: eagerly, by several traces, unrolled and in loops of one `tf.function`, each
with gradients for other variables, of some by rows, in any order, repeated, or none; restored in between, also in the
midst of a window of accumulation.

Every draw is compared with the float64 reference, which knows nothing of `optim`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from tests.helpers.dtensor_asserts import layout_of, value_of
from tests.test_optim.draws import Draw, draw, seeds
from tests.test_optim.support import SHAPES, Place, put, start_values

QUICK = (8,)
JUMPY = ("Lion", "Yogi", "Muon")
"""Rules that roundings of float32 may turn around: compared in float64 alone."""
RESTORED = ("not", "by load_checkpoint", "before it is built", "after it is built")


@dataclass(frozen=True)
class Bundle:
    """Calls made together: `"call"`, or several in one function, `"unrolled"` or in a `"loop"`.

    `names` says of each call which variables have gradients, in a loop all the same; `bad` which call overflows.
    """

    how: str
    names: tuple[tuple[str, ...], ...]
    bad: int | None = None


@dataclass(frozen=True)
class Calls:
    options: Draw
    dtype: str
    bundles: tuple[Bundle, ...]
    restored: str
    by_rows: tuple[str, ...]

    def __str__(self) -> str:
        ways = "".join(f"{bundle.how[0]}{len(bundle.names)}" for bundle in self.bundles)
        return f"{self.options}-{self.dtype}-{ways}-{self.restored}-{','.join(self.by_rows)}"


def _calls(seed: int) -> Calls:
    random = np.random.default_rng([seed, 7])
    options = draw(random, without=())
    in_function = "function" in options.mode
    is_half = bool(random.random() < 0.3) and options.case.optimizer not in JUMPY
    if is_half:
        case = options.case
        options = replace(options, case=replace(case, arguments={**case.arguments, "master_copies": True}))

    def subset() -> tuple[str, ...]:
        return tuple(str(n) for n in random.permutation(list(SHAPES))[: random.integers(1, len(SHAPES) + 1)])

    bundles = []
    for _ in range(6 if in_function else 9):
        how = str(random.choice(["call", "unrolled", "loop"])) if in_function else "call"
        count = 1 if how == "call" else int(random.integers(2, 4))
        names = (subset(),) * count if how == "loop" else tuple(subset() for _ in range(count))
        overflows = options.case.loop.loss_scale is not None and random.random() < 0.3
        bundles.append(Bundle(how, names, int(random.integers(count)) if overflows else None))
    dtype = str(random.choice(["bfloat16", "float16"])) if is_half else "float64"
    restored = str(random.choice(RESTORED))
    by_rows = tuple(name for name, shape in SHAPES.items() if shape and random.random() < 0.35)
    return Calls(options, dtype, tuple(bundles), restored, by_rows)


DRAWS = {seed: _calls(seed) for seed in seeds(60)}


@dataclass(frozen=True)
class Rows:
    """A gradient by rows: `values`, of the rows `indices`."""

    values: np.ndarray
    indices: np.ndarray


def _base(number: int, by_rows: tuple[str, ...]) -> dict[str, Any]:
    """Gradients of a bundle's first call, arrays or Rows, whose float32 are exact."""
    random = np.random.default_rng(500 + number)
    drawn = lambda shape: np.asarray(random.normal(size=shape) * 3, np.float32).astype(np.float64)  # noqa: E731
    base: dict[str, Any] = {name: drawn(shape) for name, shape in SHAPES.items()}
    for name in by_rows:
        indices = random.integers(SHAPES[name][0], size=random.integers(7)).astype(random.choice(["int32", "int64"]))
        base[name] = Rows(drawn((len(indices), *SHAPES[name][1:])), indices)
    return base


def _given(gradient: Any, layout: Any, dtype: Any) -> Any:
    """What the optimizer gets: rows are replicated on the mesh."""
    if not isinstance(gradient, Rows):
        return put(gradient, layout, dtype)
    indices, rank = tf.constant(gradient.indices), gradient.values.ndim
    if layout is not None:
        indices = dtensor.copy_to_mesh(indices, dtensor.Layout.replicated(layout.mesh, 1))
        layout = dtensor.Layout.replicated(layout.mesh, rank)
    return tf.IndexedSlices(put(gradient.values, layout, dtype), indices)


def _scaled(gradient: Any, factor: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_scaled(gradient.values, factor), gradient.indices)
    return gradient * (tf.cast(factor, gradient.dtype) if tf.is_tensor(factor) else factor)


def _dense(gradient: Any, name: str, factor: float) -> np.ndarray:
    """What the reference gets."""
    if not isinstance(gradient, Rows):
        return gradient * factor
    dense = np.zeros(SHAPES[name])
    np.add.at(dense, gradient.indices, gradient.values * factor)
    return dense


def _factor(call: Any, bad: int | None) -> Any:
    """What the gradients of a bundle's call are, times those of the first."""
    if isinstance(call, int):
        return np.inf if call == bad else 1 + 0.25 * call
    usual = 1 + 0.25 * tf.cast(call, tf.float64)
    return usual if bad is None else tf.where(tf.equal(call, bad), tf.constant(np.inf, tf.float64), usual)


def _run(optimizer: Any, variables: Mapping[str, Any], bundle: Bundle, base: Mapping[str, Any], mode: str) -> None:
    """Make the calls of a bundle; gradients of float16 and bfloat16 variables are float32."""

    def apply(call: Any, names: tuple[str, ...], given: Mapping[str, Any]) -> None:
        factor, scale = _factor(call, bundle.bad), optimizer.current_loss_scale
        if scale is not None:
            factor = factor * (tf.cast(scale, tf.float64) if tf.is_tensor(scale) else scale)
        scaled = {n: _scaled(g, factor) for n, g in given.items()}
        optimizer.apply_gradients([(scaled[n] if n in names else None, v) for n, v in variables.items()])

    wide = {n: tf.float64 if v.dtype == tf.float64 else tf.float32 for n, v in variables.items()}
    given = {n: _given(base[n], layout_of(v), wide[n]) for n, v in variables.items()}
    if "function" not in mode:
        apply(0, bundle.names[0], given)
        return

    @tf.function
    def together(given: Mapping[str, Any]) -> None:
        if bundle.how == "loop":
            for call in tf.range(len(bundle.names)):
                apply(call, bundle.names[0], given)
        else:
            for call, names in enumerate(bundle.names):
                apply(call, names, given)

    together(given)


def _reference_calls(reference: Any, bundle: Bundle, base: Mapping[str, Any]) -> None:
    for call, names in enumerate(bundle.names):
        factor = _factor(call, bundle.bad) * (reference.scale or 1.0)
        with np.errstate(invalid="ignore"):
            reference.apply({n: _dense(base[n], n, factor) if n in names else None for n in SHAPES})


def _check(optimizer: Any, variables: Mapping[str, Any], reference: Any, when: str) -> None:
    for name, variable in variables.items():
        is_half = variable.dtype != tf.float64
        tolerance = {"rtol": 2e-3} if is_half else {"rtol": 1e-9}
        expected = {"master" if is_half else "": reference.values[name], **reference.slots[name]}
        if reference.options.has_averages:
            expected["average"] = reference.averages[name]
        for slot, want in expected.items():
            found = value_of(optimizer.get_slot(variable, slot) if slot else variable)
            atol = 1e-3 * float(np.max(np.abs(want))) + 1e-6 if is_half else 1e-11
            np.testing.assert_allclose(found, want, **tolerance, atol=atol, err_msg=f"{slot} of {name} {when}")
    assert int(optimizer.iterations.numpy()) == reference.iterations
    assert optimizer.current_loss_scale == reference.scale


def _restored(optimizer: Any, variables: Mapping[str, Any], calls: Calls, place: Any, path: Any) -> tuple[Any, Any]:
    """The optimizer and the variables to go on with."""
    if calls.restored == "not":
        return optimizer, variables
    dtype = next(iter(variables.values())).dtype
    others = place(calls.options.saved_onto if "load" in calls.restored else calls.options.layout)
    fresh = others.variables(start_values(5), dtype)
    if "load" in calls.restored:
        optim.save_checkpoint(path, optimizer, variables)
        return optim.load_checkpoint(path, fresh), fresh
    again = type(optimizer).from_config(optimizer.get_config())
    if "after" in calls.restored:
        again.build(list(fresh.values()))
    saved = tf.train.Checkpoint(optimizer=optimizer, **variables).write(str(path))
    status = tf.train.Checkpoint(optimizer=again, **fresh).read(saved)
    if "before" in calls.restored:
        again.build(list(fresh.values()))
    status.assert_consumed()
    return again, fresh


@pytest.mark.filterwarnings("ignore:decay is the old", "ignore:no gradients for")
@pytest.mark.parametrize(
    ("calls", "mode"),
    [
        pytest.param(d, d.options.mode, id=f"{i}-{d}", marks=[] if i in QUICK else [pytest.mark.breadth])
        for i, d in DRAWS.items()
    ],
)
@pytest.mark.breadth
def test_calls_of_all_kinds(calls: Calls, mode: str, request: Any, tmp_path: Any) -> None:
    case, dtype = calls.options.case, tf.as_dtype(calls.dtype)
    place = lambda name: Place.named(name, request)  # noqa: E731
    start = {n: np.asarray(tf.cast(tf.cast(v, dtype), tf.float64)) for n, v in start_values().items()}
    variables, reference = place(calls.options.layout).variables(start, dtype), case.reference(start)
    optimizer = case.make(executor="portable" if mode == "portable" else "auto")
    optimizer = type(optimizer).from_config({**optimizer.get_config(), "slot_placement": calls.options.placement})
    optimizer.build(list(variables.values()))
    for number, bundle in enumerate(calls.bundles):
        if number == len(calls.bundles) // 2:
            optimizer, variables = _restored(optimizer, variables, calls, place, tmp_path / "c")
        base = _base(number, calls.by_rows)
        _run(optimizer, variables, bundle, base, mode)
        _reference_calls(reference, bundle, base)
        _check(optimizer, variables, reference, f"after {number + 1} of {len(calls.bundles)}")
