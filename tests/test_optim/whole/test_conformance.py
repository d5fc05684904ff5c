"""What every optimizer promises, checked for every row of `cases.ROWS` on every kind of layout and in every mode.

Numbers are float64 and the tolerance 1e-12 (test_precision.py has the other dtypes): nothing but the order of
additions differs from the reference.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from tests.helpers.breadth import covering
from tests.helpers.dtensor_asserts import assert_dtensor_equal, layout_of
from tests.test_optim.cases import FIRST, OPTIONS, RATE, ROWS, VARIANTS, WHOLE, Case, is_one_of_few, marked
from tests.test_optim.support import (
    LAYOUTS,
    MODES,
    SHAPES,
    Place,
    executor_for,
    gradient_values,
    put_gradients,
    scaled_values,
    slot_layout,
    start_values,
    stepper,
)

TOLERANCE = {"rtol": 1e-12, "atol": 1e-14}
ALL_PLACES = [
    (layout, mode) for layout in LAYOUTS for mode in MODES if "native" not in mode or layout in ("plain", "mixed")
]
# Options are independent of the algorithm, so each meets a part of the places; all of them the hardest layout.
SOME_PLACES = [("mixed", mode) for mode in MODES]


def _is_first(case: Case, *_: Any) -> bool:
    return case == FIRST[case.optimizer]


def _is_of_its_kind(case: Case) -> bool:
    """One of the few, or whose rule looks at whole variables. SOAP's slots are of the same kind as Shampoo's."""
    return is_one_of_few(case) or (_is_first(case) and case.optimizer in WHOLE and case.optimizer != "SOAP")


def _is_quick(case: Case, layout: str, mode: str) -> bool:
    """The hardest layout in one mode; of a few optimizers in every mode, and a plain function. Variants, which differ
    in elementwise formulas only, without a mesh."""
    if is_one_of_few(case):
        return layout == "mixed" or (layout, mode) == ("plain", "function")
    where = "mixed" if _is_first(case) or case in OPTIONS else "plain"
    return (layout, mode) == (where, case.modes[0])


def _combinations() -> list[Any]:
    chosen = [(case, *place) for case in VARIANTS if _is_first(case) for place in ALL_PLACES]
    others = [place for place in ALL_PLACES if place[0] != "mixed"]
    for position, case in enumerate(case for case in ROWS if not _is_first(case)):
        extra = [others[(3 * position + k * 5) % len(others)] for k in range(2)]
        places = dict.fromkeys([*SOME_PLACES, *extra, ("plain", case.modes[0])])
        chosen += [(case, layout, mode) for layout, mode in places]
    return marked([(case, layout, mode) for case, layout, mode in chosen if mode in case.modes], _is_quick)


def _check_state(optimizer: Any, variables: dict[str, Any], reference: Any) -> None:
    for name, var in variables.items():
        layout = layout_of(var)
        assert_dtensor_equal(var, reference.values[name], layout, what=name, **TOLERANCE)
        for slot, expected in reference.slots[name].items():
            found = optimizer.get_slot(var, slot)
            where = slot_layout(layout, slot, np.ndim(expected))
            assert_dtensor_equal(found, expected, where, what=f"{slot} of {name}", **TOLERANCE)
        if reference.options.has_averages:
            average = optimizer.get_slot(var, "average")
            assert_dtensor_equal(average, reference.averages[name], layout, what=f"average of {name}", **TOLERANCE)
    assert int(optimizer.iterations.numpy()) == reference.iterations
    assert optimizer.current_loss_scale == reference.scale


def _train(step: Any, variables: dict[str, Any], reference: Any, calls: range) -> None:
    for call in calls:
        values = gradient_values(call)
        if reference.scale is not None:
            values = scaled_values(values, reference.scale, call, reference.options.gradient_accumulation_steps)
        step(put_gradients(values, variables, replicated=call == 2))
        reference.apply(values)


def test_every_optimizer_is_in_the_table() -> None:
    public = [getattr(optim, name) for name in optim.__all__]
    classes = {c.__name__ for c in public if isinstance(c, type) and issubclass(c, optim.Optimizer)}
    classes -= {"Optimizer", "RuleOptimizer", "Groups"}  # whose steps are those of its members: test_groups.py
    assert classes == {case.optimizer for case in VARIANTS}


@pytest.mark.parametrize(("case", "layout", "mode"), _combinations())
@pytest.mark.quick(8)
def test_steps_equal_the_reference(case: Case, layout: str, mode: str, request: Any) -> None:
    place = Place.named(layout, request)
    variables = place.variables(start_values())
    reference = case.reference(start_values())
    optimizer = case.make(mesh=place.mesh, executor=executor_for(mode))
    step = stepper(optimizer, mode)
    calls = 4 * case.loop.gradient_accumulation_steps + 2

    _train(step, variables, reference, range(calls))

    assert reference.iterations >= 4
    _check_state(optimizer, variables, reference)
    slots = {slot for name in SHAPES for slot in reference.slots[name]}
    extra = {"average"} if case.loop.has_averages else set()
    extra |= {"accumulated_gradient", "gathered"} if case.loop.gradient_accumulation_steps > 1 else set()
    assert set(optimizer.slot_names) == slots | extra
    if executor_for(mode) != "auto":
        assert optimizer.executor_report().executor == executor_for(mode)


@covering(1, case=[c for c in ROWS if c.loop.has_averages], layout=["plain", "mixed"])
@pytest.mark.quick(3)
def test_finalize_writes_the_averages(case: Case, layout: str, request: Any) -> None:
    place = Place.named(layout, request)
    variables = place.variables(start_values())
    reference = case.reference(start_values())
    optimizer = case.make()
    _train(optimizer.apply_gradients, variables, reference, range(4))
    optimizer.finalize_variable_values(list(variables.values()))
    for name, var in variables.items():
        assert_dtensor_equal(var, reference.averages[name], layout_of(var), what=name, **TOLERANCE)


@pytest.mark.parametrize("case", ROWS, ids=str)
def test_config_round_trip(case: Case, mesh_2: Any) -> None:
    optimizer = case.make(mesh=mesh_2, name="mine")
    config = optimizer.get_config()
    text = json.dumps(config, allow_nan=False)
    again = type(optimizer).from_config(json.loads(text))
    assert again.get_config() == config
    assert again.name == "mine"
    assert again.mesh == mesh_2
    assert config == json.loads(text)  # from_config changed nothing


@pytest.mark.parametrize(
    "case", marked([(case,) for case in ROWS], lambda case: is_one_of_few(case) or case in OPTIONS[-3:])
)
@pytest.mark.quick(3)
def test_what_a_config_makes_trains_as_the_reference(case: Case, mesh_2: Any) -> None:
    again = type(case.make()).from_config(case.make(mesh=mesh_2).get_config())
    place = Place(mesh_2, LAYOUTS["rows"][1])
    variables = place.variables(start_values())
    reference = case.reference(start_values())
    _train(again.apply_gradients, variables, reference, range(2 * case.loop.gradient_accumulation_steps))
    _check_state(again, variables, reference)


@pytest.mark.parametrize(
    ("case", "target"),
    marked(
        [(c, t) for c in [*VARIANTS, *OPTIONS[-3:], OPTIONS[10]] for t in ("plain", "rows", "zero1")],
        lambda case, target: target == "zero1" and (is_one_of_few(case) or case in OPTIONS[-2:]),
    ),
)
@pytest.mark.quick(1)
def test_checkpoint_resumes_elsewhere(case: Case, target: str, request: Any, tmp_path: Any) -> None:
    source = Place.named("mixed", request)
    variables = source.variables(start_values())
    reference = case.reference(start_values())
    optimizer = case.make()
    _train(optimizer.apply_gradients, variables, reference, range(3))
    optim.save_checkpoint(tmp_path / "c", optimizer, variables)

    place = Place.named("mixed" if target == "zero1" else target, request)
    others = place.variables(start_values(seed=9))
    # Another order than at saving: state is keyed by name.
    shuffled = dict(reversed(list(others.items())))
    options = {"slot_placement": "zero1"} if target == "zero1" else {}
    resumed = optim.load_checkpoint(tmp_path / "c", shuffled, mesh=place.mesh, **options)

    assert type(resumed) is type(optimizer)
    assert resumed.get_config() | {"mesh": None, "slot_placement": None} == optimizer.get_config() | {
        "mesh": None,
        "slot_placement": None,
    }
    _train(resumed.apply_gradients, others, reference, range(3, 6))
    for name, var in others.items():
        assert_dtensor_equal(var, reference.values[name], layout_of(var), what=name, **TOLERANCE)
        for slot, expected in reference.slots[name].items():
            found = resumed.get_slot(var, slot)
            assert_dtensor_equal(found, expected, layout_of(found), what=f"{slot} of {name}", **TOLERANCE)
    assert int(resumed.iterations.numpy()) == reference.iterations
    assert resumed.current_loss_scale == reference.scale


@pytest.mark.parametrize("case", marked([(case,) for case in VARIANTS], _is_of_its_kind))
@pytest.mark.quick(1)
def test_state_is_keyed_by_variable(case: Case, request: Any) -> None:
    """Gradients in any order, and for any subset, reach the slots of their own variables."""
    place = Place.named("mixed", request)
    variables = place.variables(start_values())
    reference = case.reference(start_values())
    optimizer = case.make()
    optimizer.build(list(variables.values()))
    random = np.random.default_rng(3)
    for call in range(5):
        names = list(random.permutation(list(SHAPES))[: 1 + call])
        values = {name: gradient_values(10 + call)[name] for name in names}
        optimizer.apply_gradients(put_gradients(values, variables))
        reference.apply(values)
    _check_state(optimizer, variables, reference)


@pytest.mark.parametrize(
    ("case", "mode"),
    marked(
        [(c, m) for c in [*VARIANTS, *OPTIONS[-3:]] for m in ("portable", "function")],
        lambda case, mode: mode == "portable" and _is_of_its_kind(case),
    ),
)
@pytest.mark.quick(1)
def test_zero1_equals_unsharded(case: Case, mode: str, mesh_2x2: Any) -> None:
    place = Place(mesh_2x2, {"table": ["model", "unsharded"]})
    variables = place.variables(start_values())
    reference = case.reference(start_values())
    optimizer = case.make(slot_placement="zero1", executor=executor_for(mode))
    _train(stepper(optimizer, mode), variables, reference, range(4 * case.loop.gradient_accumulation_steps))
    expected = {"kernel": ["batch", "model"], "table": ["model", "unsharded"], "bias": ["batch"]}
    for name, var in variables.items():
        assert_dtensor_equal(var, reference.values[name], layout_of(var), what=name, **TOLERANCE)
        for slot, value in reference.slots[name].items():
            found = optimizer.get_slot(var, slot)
            assert_dtensor_equal(found, value, found.layout, what=f"{slot} of {name}", **TOLERANCE)
            if name in ("kernel", "bias") and value.shape == SHAPES[name]:
                assert sorted(found.layout.sharding_specs) != ["unsharded"] * len(value.shape), expected[name]


@pytest.mark.parametrize(
    ("case", "mode"),
    marked(
        [(c, mode) for c in VARIANTS for mode in c.modes],
        lambda case, mode: _is_first(case) and (mode == "native" or is_one_of_few(case)) and mode != "portable",
    ),
)
@pytest.mark.quick(4)
def test_float32_follows_the_reference(case: Case, mode: str, request: Any) -> None:
    """Float32 on the mesh, within what its rounding allows.

    TensorFlow's fused Adam kernel (mode `local`) forms 1 − β₂ in float32, which for 0.999 is off by 1.3e-5: that much
    of v, and half of it (a root) of each update, is allowed there; ten roundings everywhere else.
    """
    place = Place.named("mixed", request)
    start = {name: value.astype(np.float32) for name, value in start_values().items()}
    variables = place.variables(start, tf.float32)
    reference = case.reference(start)
    optimizer = case.make(executor=executor_for(mode))
    step = stepper(optimizer, mode)
    for call in range(5):
        values = {n: None if g is None else g.astype(np.float32) for n, g in gradient_values(call).items()}
        step(put_gradients(values, variables))
        reference.apply(values)
    fused_adam = case.optimizer in ("Adam", "AdamW") and mode == "local"
    epsilon = float(np.finfo(np.float32).eps)
    for name, var in variables.items():
        moved = np.max(np.abs(reference.values[name] - start[name])) if start[name].size else 0.0
        size = np.max(np.abs(reference.values[name]))
        allowed = 10 * epsilon * (size + moved) + (1e-5 * moved if fused_adam else 0.0)
        assert_dtensor_equal(
            var, reference.values[name], layout_of(var), dtype=tf.float32, atol=allowed, what=f"{name}"
        )
        for slot, expected in reference.slots[name].items():
            relative = 1.4e-5 if fused_adam and slot in ("v", "vhat") else 20 * epsilon
            scale = np.max(np.abs(expected))
            if case.optimizer == "Ftrl" and slot == "linear":  # a sum of differences of √n / lr, times the variable
                rate = 1.0 if case.arguments.get("learning_rate_in_linear") else RATE
                scale = max(
                    scale, np.max(reference.slots[name]["accumulator"]) ** 0.5 / rate * np.max(np.abs(start[name]))
                )
            assert_dtensor_equal(
                optimizer.get_slot(var, slot),
                expected,
                slot_layout(layout_of(var), slot, np.ndim(expected)),
                dtype=tf.float32,
                rtol=relative,
                atol=20 * epsilon * scale,
                what=f"{slot} of {name}",
            )


def test_every_layout_is_used() -> None:
    assert {p.values[1] for p in _combinations()} == set(LAYOUTS)
    assert {p.values[2] for p in _combinations()} == set(MODES)


def test_gradients_of_a_tape_on_a_mesh(mesh_2x2: Any) -> None:
    """The usual loop, loss and all, in one `tf.function`."""
    place = Place(mesh_2x2, {"kernel": ["unsharded", "model"], "bias": ["model"]})
    start = {name: start_values()[name] for name in ("kernel", "bias")}
    inputs, targets = np.linspace(-1, 1, 48).reshape(8, 6), np.linspace(2, -1, 32).reshape(8, 4)
    rows = dtensor.Layout(["batch", "unsharded"], mesh_2x2)
    x = dtensor.relayout(dtensor.copy_to_mesh(tf.constant(inputs), dtensor.Layout.replicated(mesh_2x2, 2)), rows)
    y = dtensor.relayout(dtensor.copy_to_mesh(tf.constant(targets), dtensor.Layout.replicated(mesh_2x2, 2)), rows)
    variables = place.variables(start)
    optimizer = optim.Adam(0.1, global_clipnorm=1.0)

    @tf.function
    def train(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(x, variables["kernel"]) + variables["bias"] - y))
        named = list(variables.values())
        optimizer.apply_gradients(zip(tape.gradient(loss, named), named, strict=True))
        return loss

    case = next(c for c in VARIANTS if c.name == "adam")
    from tests.reference.common import Options, Training

    reference = Training(case.algorithm, lambda _: 0.1, start, Options(global_clipnorm=1.0))
    for _ in range(4):
        train(x, y)
        error = inputs @ reference.values["kernel"] + reference.values["bias"] - targets
        scaled = 2 * error / error.size
        reference.apply({"kernel": inputs.T @ scaled, "bias": scaled.sum(0)})
    for name, var in variables.items():
        assert_dtensor_equal(var, reference.values[name], var.layout, what=name, rtol=1e-11, atol=1e-13)
    assert train.experimental_get_tracing_count() == 1
