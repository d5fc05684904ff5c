"""Every accepted option changes what happens, or raises; none is swallowed."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.experimental import dtensor

import optim
from optim.options.settings import Options
from tests.helpers.breadth import covering
from tests.helpers.dtensor_asserts import value_of
from tests.test_optim.support import put, variable

BASE = {"SGD": {"momentum": 0.9}, "Adam": {"learning_rate": 0.1, "beta_2": 0.9}, "Adadelta": {}}
# Own hyperparameters first, then options. Each list of values must give another trajectory than the defaults.
OWN: dict[str, dict[str, Any]] = {
    "SGD": {"learning_rate": 0.3, "momentum": 0.5, "nesterov": True},
    "Adam": {
        "learning_rate": 0.3,
        "beta_1": 0.5,
        "beta_2": 0.5,
        "epsilon": 0.5,
        "amsgrad": True,
        "bias_correction": False,
        "nesterov": True,
    },
    "Adadelta": {"learning_rate": 0.3, "rho": 0.5, "epsilon": 0.5, "new_delta_in_step": True},
}
ACTING: dict[str, dict[str, Any]] = {
    "clipnorm": {"clipnorm": 0.05},
    "clipvalue": {"clipvalue": 0.05},
    "global_clipnorm": {"global_clipnorm": 0.05},
    "adaptive_grad_clip": {"adaptive_grad_clip": 0.05},
    "gradients_clip_option": {"gradients_clip_option": {"clipvalue": 0.05}},
    "ema_option": {"ema_option": {"use_ema": True, "ema_overwrite_frequency": 2}},
    "use_ema": {"use_ema": True, "ema_overwrite_frequency": 1},
    "weight_decay": {"weight_decay": 0.5},
    "lookahead": {"lookahead": {"sync_period": 2}},
    "gradient_accumulation_steps": {"gradient_accumulation_steps": 3},
    "learning_rate_multipliers": {"learning_rate_multipliers": {"^w$": 0.5}},
    "loss_scale": {"loss_scale": 1e-3, "clipvalue": 0.05},
    "loss_scale_factor": {"loss_scale_factor": 1e-3, "clipvalue": 0.05},
    "lr": {"lr": 0.3},
    "decay": {"decay": 0.5},
}
# Options that qualify another: they act beside it.
QUALIFYING: dict[str, tuple[dict[str, Any], Any]] = {
    "clip_order": ({"clipvalue": 0.3, "clipnorm": 0.4}, "norm_first"),
    "ema_momentum": ({"use_ema": True, "ema_overwrite_frequency": 2}, 0.5),
    "ema_overwrite_frequency": ({"use_ema": True}, 2),
    "ema_start": ({"use_ema": True, "ema_overwrite_frequency": 1}, "first_step"),
    "weight_decay_exclude": ({"weight_decay": 0.5}, ["w"]),
    "count_calls": ({"use_ema": True, "ema_overwrite_frequency": 2, "gradient_accumulation_steps": 2}, True),
    "decoupled_weight_decay": ({"weight_decay": 0.5}, False),
    "learning_rate_in_weight_decay": ({"weight_decay": 0.5}, False),
}
# Options that change where and how, never what: their own tests look at the reports.
PLACING = {"jit_compile", "slot_placement", "executor", "mesh", "name"}
# Options that are tested elsewhere: they need gradients of a special kind or momentum, or move one rounding.
ELSEWHERE = {
    "cautious",
    "float32_powers",
    "lazy_rows",
    "lazy_rows_keep_slots",
    "learning_rate_in_momentum",
    "loss_scale_growth_steps",
    "master_copies",
    "momentum_slot",
    "repeated_rows",
    "rounding_seed",
    "slot_dtype",
    "stochastic_average",
    "stochastic_rounding",
}


def _trajectory(name: str, arguments: dict[str, Any], layout: Any = None) -> list[np.ndarray]:
    if name == "SGD" and "learning_rate" not in arguments and "lr" not in arguments:
        arguments = {"learning_rate": 0.1, **arguments}
    base = {key: value for key, value in BASE[name].items() if not (key == "learning_rate" and "lr" in arguments)}
    var = variable([1.0, -2.0, 3.0, 0.5], layout, "w")
    optimizer = getattr(optim, name)(**{**base, **arguments})
    values = []
    for step in range(6):
        gradient = np.array([2.0, -0.3, 0.1, 5.0]) * (1.0 if step < 2 else -0.1)
        optimizer.apply_gradients([(put(gradient, layout), var)])
        values.append(value_of(var))
    return values


def _differ(one: list[np.ndarray], two: list[np.ndarray]) -> bool:
    return any(np.max(np.abs(a - b)) > 1e-7 for a, b in zip(one, two, strict=True))


def test_every_option_is_in_a_table() -> None:
    tables = {*ACTING, *QUALIFYING, *PLACING, *ELSEWHERE}
    assert set(Options.__annotations__) <= tables
    for name, own in OWN.items():
        parameters = set(inspect.signature(getattr(optim, name)).parameters)
        assert parameters - tables <= set(own)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", OWN)
def test_every_hyperparameter_and_option_acts(name: str) -> None:
    plain = _trajectory(name, {})
    for argument, value in OWN[name].items():
        assert _differ(_trajectory(name, {argument: value}), plain), argument
    # Adam and Adadelta undo a constant scale of gradients, all but epsilon's share; that suffices to show an effect.
    for argument, options in ACTING.items():
        assert _differ(_trajectory(name, options), plain), argument


@pytest.mark.parametrize("argument", QUALIFYING)
@pytest.mark.parametrize("name", OWN)
def test_qualifying_options_act(name: str, argument: str) -> None:
    beside, value = QUALIFYING[argument]
    assert _differ(_trajectory(name, {**beside, argument: value}), _trajectory(name, beside))


@pytest.mark.parametrize("name", OWN)
def test_option_objects_mappings_and_keywords_are_the_same(name: str) -> None:
    clip, ema = (
        {"clipvalue": 0.3, "clipnorm": 0.4},
        {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2},
    )
    expected = _trajectory(name, {**clip, **ema})
    for given in (
        {"gradients_clip_option": clip, "ema_option": ema},
        {"gradients_clip_option": optim.GradientsClipOption(**clip), "ema_option": optim.EMAOption(**ema)},
        {"gradients_clip_option": clip, **ema, **clip},
    ):
        np.testing.assert_array_equal(_trajectory(name, given), expected)
    assert clip == {"clipvalue": 0.3, "clipnorm": 0.4}


def test_a_default_that_was_given_counts(devices: list[str]) -> None:
    """An option object that says what is the default anyway still contradicts a keyword that says otherwise."""
    import copy

    for option in (
        optim.EMAOption(use_ema=False),
        optim.EMAOption(False),
        {"use_ema": False},
        copy.deepcopy(optim.EMAOption(use_ema=False)),
    ):
        with pytest.raises(optim.errors.HyperparameterError, match="use_ema"):
            optim.SGD(0.1, ema_option=option, use_ema=True)
    clip = optim.GradientsClipOption(clip_order="value_first")
    with pytest.raises(optim.errors.HyperparameterError, match="clip_order"):
        optim.SGD(0.1, gradients_clip_option=clip, clip_order="norm_first")
    # What was not given, or given as None, is free.
    merged = optim.SGD(0.1, ema_option=optim.EMAOption(use_ema=True), ema_momentum=0.5, ema_overwrite_frequency=2)
    assert (merged.use_ema, merged.ema_momentum, merged.ema_overwrite_frequency) == (True, 0.5, 2)
    assert optim.SGD(0.1, gradients_clip_option=optim.GradientsClipOption(clipnorm=None), clipnorm=1.0).clipnorm == 1.0
    assert optim.EMAOption(True) == optim.EMAOption(use_ema=True)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.quick(1)
def test_how_and_where_change_nothing(name: str, mesh_2: Any) -> None:
    layout = dtensor.Layout(["x"], mesh_2)
    expected = _trajectory(name, {}, layout)
    for options in (
        {"jit_compile": True},
        {"jit_compile": False},
        {"executor": "portable"},
        {"executor": "local"},
        {"mesh": mesh_2},
        {"name": "other"},
    ):
        np.testing.assert_allclose(_trajectory(name, options, layout), expected, rtol=1e-13, err_msg=str(options))


@covering(1, layout=["plain", "mesh"], mode=["eager", "function"], name=OWN)
def test_jit_compile(name: str, layout: str, mode: str, mesh_2: Any) -> None:
    """XLA's step, all options on, equals the plain one; where XLA is impossible the step is refused."""
    place = None if layout == "plain" else dtensor.Layout(["x"], mesh_2)
    options = {"weight_decay": 0.1, "use_ema": True, "ema_overwrite_frequency": 2, "clipnorm": 1.0}
    ends = []
    for jit in (False, True):
        var, frozen = variable(np.ones(4), place, "w"), variable(np.ones(4), place, "frozen")
        optimizer = getattr(optim, name)(0.1, jit_compile=jit, **options)
        step = optimizer.apply_gradients
        step = tf.function(step, autograph=False) if mode == "function" else step
        gradient = put(np.linspace(-1, 2, 4), place)
        if jit and mode == "function" and layout == "mesh":
            with pytest.raises(optim.errors.UnsupportedError, match="jit_compile"):
                step([(gradient, var), (None, frozen)])
            np.testing.assert_array_equal(value_of(var), np.ones(4))
            return
        for _ in range(4):
            step([(gradient, var), (None, frozen)])
        ends.append(value_of(var))
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-12)


def test_a_momentum_slot_without_momentum(devices: list[str]) -> None:
    var = tf.Variable([1.0], dtype=tf.float64)
    optimizer = optim.SGD(0.5, momentum_slot=True)
    optimizer.apply_gradients([(tf.constant([2.0], tf.float64), var)])
    assert optimizer.slot_names == ["m"]
    assert optimizer.get_slot(var, "m").numpy() == [-1.0]
    assert var.numpy() == [0.0]
    assert optim.SGD(0.5).slot_names == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_where_the_learning_rate_of_momentum_is() -> None:
    """It matters once the rate changes: outside, a new rate scales the whole velocity."""
    inside, outside = ({"decay": 0.5, "learning_rate_in_momentum": where} for where in (True, False))
    assert _differ(_trajectory("SGD", inside), _trajectory("SGD", outside))


def test_norms_join_dtypes_and_ignore_none(devices: list[str]) -> None:
    """One global norm over float32, float64 and bfloat16 variables."""
    for executor in ("local", "portable"):
        dtypes = (tf.float32, tf.float64, tf.bfloat16)
        variables = [tf.Variable(tf.zeros(2, d), name=d.name) for d in dtypes] + [tf.Variable(tf.zeros(2), name="none")]
        optimizer = optim.SGD(1.0, global_clipnorm=1.0, executor=executor)
        gradients = [tf.constant([3.0, 4.0], d) for d in dtypes] + [None]
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        norm = np.sqrt(75.0)
        for var, relative in zip(variables, (1e-6, 1e-14, 2.0**-8), strict=False):
            np.testing.assert_allclose(var.numpy().astype(np.float64), np.array([-3, -4]) / norm, rtol=relative)
        np.testing.assert_array_equal(variables[-1].numpy(), 0.0)


@pytest.mark.parametrize("executor", ["local", "portable"])
@pytest.mark.parametrize("option", ["clipnorm", "global_clipnorm"])
def test_a_norm_that_is_not_finite_does_not_look_healthy(option: str, executor: str, mesh_2: Any) -> None:
    layout = dtensor.Layout(["x"], mesh_2)
    for poison in (np.nan, np.inf):
        var = variable(np.ones(4), layout, "w")
        optimizer = optim.SGD(1.0, executor=executor, **{option: 1.0})
        optimizer.apply_gradients([(put([1.0, 2.0, 3.0, poison], layout), var)])
        assert not np.isfinite(value_of(var)).all()


def test_a_gradient_of_zero_norm(mesh_2: Any) -> None:
    layout = dtensor.Layout(["x"], mesh_2)
    for executor in ("local", "portable"):
        for option in ("clipnorm", "global_clipnorm"):
            var = variable(np.ones(4), layout, "w")
            optim.SGD(1.0, executor=executor, **{option: 1.0}).apply_gradients([(put(np.zeros(4), layout), var)])
            np.testing.assert_array_equal(value_of(var), np.ones(4))


@pytest.mark.parametrize("mode", ["local", "portable", "function"])
@pytest.mark.quick(1)
def test_a_variable_left_out_of_a_whole_window_is_left_alone(mesh_2: Any, mode: str) -> None:
    """Accumulation: no gradient in any call of a window means no step for that variable, in every mode."""
    layout = dtensor.Layout(["x"], mesh_2)
    first, second = variable(np.ones(4), layout, "first"), variable(np.ones(4), layout, "second")
    optimizer = optim.Adam(
        0.1,
        gradient_accumulation_steps=2,
        executor="auto" if mode == "function" else mode,
        use_ema=True,
        ema_overwrite_frequency=1,
    )
    gradient = put(np.ones(4), layout)

    def both(g: Any) -> None:
        optimizer.apply_gradients([(g, first), (g, second)])

    def one(g: Any) -> None:
        optimizer.apply_gradients([(g, first), (None, second)])

    if mode == "function":
        both, one = tf.function(both, autograph=False), tf.function(one, autograph=False)
    both(gradient)
    both(gradient)
    kept = value_of(second), value_of(optimizer.get_slot(second, "m")), value_of(optimizer.get_slot(second, "average"))
    one(gradient)
    one(gradient)
    assert int(optimizer.iterations.numpy()) == 2
    np.testing.assert_array_equal(value_of(second), kept[0])
    np.testing.assert_array_equal(value_of(optimizer.get_slot(second, "m")), kept[1])
    np.testing.assert_array_equal(value_of(optimizer.get_slot(second, "average")), kept[2])
    both(gradient)
    one(gradient)
    assert not np.array_equal(value_of(second), kept[0])
