"""`optim.keras_differences`: every row is one, `for_keras` sees to it or says so, and the documentation has it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.experimental import dtensor

import optim
from optim import keras_differences
from optim.keras_differences import CALLED, DIFFERENCES, KERAS_3, TF_KERAS
from tests.helpers.breadth import broad
from tests.helpers.keras_releases import needs_keras
from tests.places import ROOT

MODULES = {KERAS_3: keras, TF_KERAS: tf_keras}
CLASSES = {
    name: sorted(c for c in keras_differences.CLASSES if hasattr(module.optimizers, c))
    for name, module in MODULES.items()
}
TABLE = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
ROWS = np.random.default_rng(1).integers(0, 8, (6, 12))
SLICES = np.random.default_rng(2).normal(size=(6, 12, 3)).astype(np.float32)
GRADIENTS = np.random.default_rng(3).normal(size=(12, 8, 3)).astype(np.float32)
CLOSE = {"rtol": 2e-5, "atol": 2e-5}
"""Keras forms 1 − β₂ in float32, which is 6e-6 of a step: twelve steps of 0.1."""


@pytest.fixture(autouse=True)
def _devices(devices: list[str]) -> None:
    """Logical devices come before the first variable."""


def kind(name: str) -> Any:
    return keras.Variable if name == KERAS_3 else tf.Variable


def with_rows(optimizer: Any, variable: Any) -> np.ndarray:
    """The table after steps on batches that name rows several times."""
    for values, rows in zip(SLICES, ROWS, strict=True):
        optimizer.apply_gradients([(tf.IndexedSlices(tf.constant(values), tf.constant(rows), TABLE.shape), variable)])
    return variable.numpy()


def with_arrays(optimizer: Any, variable: Any, in_function: bool = False) -> np.ndarray:
    """The variable after each of twelve calls."""

    def step(gradient: Any) -> None:
        optimizer.apply_gradients([(gradient, variable)])

    optimizer.build([variable])
    call = tf.function(step) if in_function else step
    values = []
    for gradient in GRADIENTS:
        call(tf.constant(gradient))
        values.append(variable.numpy())
    return np.array(values)


def adopted(name: str, ours: Any) -> Any:
    """`for_keras`, which has nothing to say."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return optim.for_keras(ours, MODULES[name])


def compare(name: str, cls: str, arguments: dict[str, Any], run: Callable[[Any, Any], np.ndarray]) -> None:
    theirs = run(getattr(MODULES[name].optimizers, cls)(**arguments), kind(name)(TABLE))
    ours = run(adopted(name, getattr(optim, cls)(**arguments)), kind(name)(TABLE))
    np.testing.assert_allclose(ours, theirs, **CLOSE)


LIMITS: Sequence[dict[str, Any]] = ({}, {"clipnorm": 1.5}, {"clipvalue": 0.5}, {"global_clipnorm": 1.5})
SOLVED_APART = ("Nadam", "ScheduleFreeAdamW")
"""Classes of which `for_keras` has something to say in one Keras."""


@pytest.mark.parametrize(
    ("name", "cls", "limit"),
    [
        (KERAS_3, "RMSprop", {}),
        (KERAS_3, "Adamax", {"clipvalue": 0.5}),
        (TF_KERAS, "Adam", {"clipnorm": 1.5}),
        *(broad(name, cls, limit) for name in MODULES for cls in CLASSES[name] for limit in LIMITS),
    ],
    ids=str,
)
def test_tables_move_as_those_of_keras(name: str, cls: str, limit: dict[str, Any]) -> None:
    if cls in SOLVED_APART:
        pytest.skip("warned of")
    compare(name, cls, {"learning_rate": 0.1, **limit}, with_rows)


def test_a_limit_that_is_set_later_acts_on_each_gradient_of_a_row() -> None:
    ends = []
    for optimizer in (keras.optimizers.Adam(0.1), adopted(KERAS_3, optim.Adam(0.1))):
        optimizer.clipnorm = 1.5
        ends.append(with_rows(optimizer, keras.Variable(TABLE)))
    np.testing.assert_allclose(*ends, **CLOSE)


AVERAGED = {"use_ema": True, "ema_momentum": 0.7}
OVERWRITTEN = {**AVERAGED, "ema_overwrite_frequency": 2}


def schedule(module: Any) -> Any:
    return module.optimizers.schedules.CosineDecay(0.1, 10)


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("averaged", [{}, AVERAGED, OVERWRITTEN], ids=["plain", "averaged", "overwritten"])
@pytest.mark.parametrize("accumulation", [{}, {"gradient_accumulation_steps": 3}], ids=["", "accumulated"])
@pytest.mark.parametrize("rate", [0.1, "schedule"])
@pytest.mark.quick(4)
def test_averages_and_schedules_go_as_in_keras_3(
    rate: Any, accumulation: dict[str, Any], averaged: dict[str, Any], in_function: bool
) -> None:
    ends, rates, averages = [], [], []
    for make in (keras.optimizers.Adam, lambda **given: adopted(KERAS_3, optim.Adam(**given))):
        given = rate if rate == 0.1 else schedule(keras)
        optimizer, variable = make(learning_rate=given, **accumulation, **averaged), keras.Variable(TABLE)
        ends.append(with_arrays(optimizer, variable, in_function))
        rates.append(float(optimizer.learning_rate))
        if averaged:
            averages.append(optimizer._model_variables_moving_average[0].numpy())
    np.testing.assert_allclose(*ends, **CLOSE)
    np.testing.assert_allclose(*rates, rtol=1e-6)
    if averaged:
        np.testing.assert_allclose(*averages, **CLOSE)


def test_calls_are_counted_on_a_mesh(mesh_2x2: Any) -> None:
    layout = dtensor.Layout(["batch", "unsharded"], mesh_2x2)
    options = {**OVERWRITTEN, "gradient_accumulation_steps": 3, "count_calls": True}
    plain = with_arrays(optim.Adam(0.1, **options), tf.Variable(TABLE))
    for placement in ("like_variable", "zero1"):
        whole = dtensor.Layout.replicated(mesh_2x2, 2)
        variable = dtensor.DVariable(dtensor.relayout(dtensor.copy_to_mesh(tf.constant(TABLE), whole), layout))
        optimizer = optim.Adam(0.1, mesh=mesh_2x2, slot_placement=placement, **options)
        values = []
        for gradient in GRADIENTS:
            optimizer.apply_gradients([(dtensor.copy_to_mesh(tf.constant(gradient), whole), variable)])
            values.append(dtensor.relayout(variable.read_value(), whole).numpy())
        np.testing.assert_allclose(values, plain, **CLOSE)


@pytest.mark.breadth
def test_calls_are_counted_in_replicas() -> None:
    """As by Keras 3's own optimizer in no strategy, where it cannot accumulate."""
    ends = []
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
    makers = (lambda **given: adopted(KERAS_3, optim.Adam(**given))), keras.optimizers.Adam
    for make, scope in zip(makers, (strategy.scope, nullcontext), strict=True):
        with scope():
            dense = keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(1))
            model = keras.Sequential([keras.layers.Input((8,)), dense])
            optimizer = make(learning_rate=schedule(keras), gradient_accumulation_steps=3, **AVERAGED)
            model.compile(optimizer, "mse", jit_compile=False)
        x, y = GRADIENTS[:, :, 0], GRADIENTS[:, 0]
        losses = model.fit(x, y, batch_size=4, epochs=3, shuffle=False, verbose=0).history["loss"]
        ends.append([losses, dense.kernel.numpy()])  # which is its average now
    for ours, theirs in zip(*ends, strict=True):
        np.testing.assert_allclose(ours, theirs, **CLOSE)


@pytest.mark.parametrize("name", MODULES)
def test_defaults_are_those_of_the_installed_keras(name: str) -> None:
    """What was not asked for; tf_keras's Lion and RMSprop have others than `optim`."""
    for cls in CLASSES[name]:
        for averaged in ({}, {"use_ema": True}):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ours = optim.for_keras(getattr(optim, cls)(**averaged), MODULES[name]).inner.get_config()
            theirs = getattr(MODULES[name].optimizers, cls)(**averaged).get_config()
            for key in set(theirs) & set(ours) - {"name", "jit_compile"}:
                if key.startswith("ema_") and not averaged:
                    continue
                different = (theirs[key] or None) != (ours[key] or None)
                if different:
                    assert ours[key] == pytest.approx(theirs[key], rel=1e-6), (cls, key)


@pytest.mark.parametrize(
    ("ours", "same"),
    [
        (lambda: optim.Adam(0.1, repeated_rows=[]), {"repeated_rows": []}),
        (lambda: optim.Adam(0.1, ema_option=optim.EMAOption(True, ema_start="initial")), {"ema_start": "initial"}),
        (
            lambda: optim.Adam(schedule(keras), gradient_accumulation_steps=2, count_calls=False),
            {"count_calls": False},
        ),
        (lambda: optim.Adam.from_config(optim.Adam(0.1, use_ema=True).get_config()), {"ema_start": "initial"}),
    ],
)
def test_what_was_asked_for_wins(ours: Callable[[], Any], same: dict[str, Any]) -> None:
    config = adopted(KERAS_3, ours()).inner.get_config()
    assert {key: config[key] for key in same} == same


def test_an_option_that_was_set_wins_and_so_does_a_step_that_was_taken() -> None:
    optimizer = optim.Adam(0.1)
    optimizer.repeated_rows = []
    assert adopted(KERAS_3, optimizer).repeated_rows == []
    stepped = optim.Adam(0.1)
    with_arrays(stepped, tf.Variable(TABLE))
    assert adopted(KERAS_3, stepped).repeated_rows == []


@needs_keras("3.15")
def test_what_a_constructor_decides_is_named() -> None:
    arguments = {"learning_rate": 0.1, "weight_decay": 0.3}
    with pytest.warns(UserWarning, match="differently from Keras 3") as caught:
        optim.for_keras(optim.ScheduleFreeAdamW(**arguments), keras)
    assert {each.filename for each in caught} == {__file__}
    lines = {str(each.message).splitlines()[-1] for each in caught}
    assert lines == {f"optim.ScheduleFreeAdamW(..., {each})" for each in ("weight_decay_in_step=False", "late_z=True")}
    ours = adopted(KERAS_3, optim.ScheduleFreeAdamW(**arguments, late_z=True, weight_decay_in_step=False))
    theirs = keras.optimizers.ScheduleFreeAdamW(**arguments)
    np.testing.assert_allclose(
        *(with_arrays(optimizer, keras.Variable(TABLE)) for optimizer in (ours, theirs)), rtol=2e-4, atol=2e-5
    )


def test_early_releases_have_another_muon() -> None:
    """Keras 3.10 to 3.12; their steps are compared in test_keras_configs.py."""
    early = keras_differences.reproducing(KERAS_3, "Muon", {"weight_decay": 0.1}, release=(3, 12))
    assert early["rms_rate"] is None
    assert early["adam_weight_decay"] == 0.1
    assert "rms_rate" not in keras_differences.reproducing(KERAS_3, "Muon", {}, release=(3, 13))


def test_nadam_of_tf_keras_goes_wrong_in_a_function() -> None:
    """Of two variables or more: eagerly its steps are those of `optim`."""
    with pytest.warns(UserWarning, match="product of momenta"):
        ours = optim.for_keras(optim.Nadam(0.1), tf_keras)

    def run(optimizer: Any, in_function: bool) -> np.ndarray:
        variables = [tf.Variable(TABLE), tf.Variable(TABLE)]
        optimizer.build(variables)

        def step(gradient: Any) -> None:
            optimizer.apply_gradients([(gradient, v) for v in variables])

        call = tf.function(step) if in_function else step
        for gradient in GRADIENTS:
            call(tf.constant(gradient))
        return variables[0].numpy()

    expected = run(ours, True)
    np.testing.assert_allclose(run(tf_keras.optimizers.Nadam(0.1), False), expected, **CLOSE)
    assert np.abs(run(tf_keras.optimizers.Nadam(0.1), True) - expected).max() > 1e-3


@pytest.mark.parametrize("options", [{"use_ema": True, "ema_momentum": 0.5}, {"gradient_accumulation_steps": 2}])
def test_missing_gradients_are_told_once(options: dict[str, Any]) -> None:
    """Whatever else Keras warns of: what is warned of is so."""
    ends = []
    for optimizer in (keras.optimizers.SGD(0.1, **options), adopted(KERAS_3, optim.SGD(0.1, **options))):
        variables = [keras.Variable(TABLE), keras.Variable(TABLE)]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for number in range(4):
                second = tf.ones_like(TABLE) if number % 2 == 0 else None
                optimizer.apply_gradients([(tf.ones_like(TABLE), variables[0]), (second, variables[1])])
        averages = getattr(optimizer, "_model_variables_moving_average", None) if "use_ema" in options else variables
        ends.append(averages[1].numpy())
    assert sum("differently from Keras 3: If a variable has no gradient" in str(w.message) for w in caught) == 1
    assert np.abs(ends[0] - ends[1]).max() > 0.01


def test_rows_under_a_root_are_told_once() -> None:
    optimizer, variable = adopted(KERAS_3, optim.RMSprop(0.1, centered=True)), keras.Variable(TABLE)
    with_arrays(optimizer, variable)
    with pytest.warns(UserWarning, match="root of a negative number") as caught:
        with_rows(optimizer, variable)
    assert len(caught) == 1
    ends = [
        with_rows(made, keras.Variable(TABLE))
        for made in (keras.optimizers.RMSprop(0.1, centered=True), optim.RMSprop(0.1, centered=True))
    ]
    assert np.abs(ends[0] - ends[1]).max() > 0.1


def test_an_overflow_under_a_constant_scale() -> None:
    ends = []
    for optimizer in (
        keras.optimizers.SGD(0.1, loss_scale_factor=2.0),
        adopted(KERAS_3, optim.SGD(0.1, loss_scale=2.0)),
    ):
        variable = keras.Variable([1.0])
        optimizer.apply_gradients([(tf.constant([np.inf]), variable)])
        ends.append(float(variable.numpy()[0]))
    assert ends == [-np.inf, 1.0]


def test_the_documentation_has_the_table() -> None:
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    rows = page.partition("| what differs |")[2].partition("\n\n")[0].splitlines()[2:]
    expected = [
        f"| {d.name} | {', '.join(CALLED[each] for each in d.keras)} | {d.sentence} |"
        f" {f'`{d.arguments}`' if d.arguments else ''} |"
        for d in DIFFERENCES
    ]
    assert rows == expected
