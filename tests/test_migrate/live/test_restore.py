"""`migrate.restore` into live optimizers: the next six steps are those that the source's release took."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from migrate.errors import StrictError
from migrate.live import values
from optim.errors import DtoptError, MismatchError, UnsupportedError
from tests.helpers import next_steps
from tests.places import CORPUS
from tests.test_migrate.confirm import confirmed
from tests.test_migrate.whole import test_resume as cases

EXACT, APPROXIMATE = "exact", "approximate"
KINDS = ("optim", "keras", "tf_keras", "legacy")
EPSILON, SCHEDULE = r"epsilon is .* the root", "schedule_decay is "
IN_FUNCTIONS = "once per variable"
CASES: dict[str, dict[str, str]] = {
    # What a live optimizer of each kind makes of a case: `exact`, or why it is approximate.
    "keras224-adam-eps-none-nested": dict.fromkeys(KINDS, EXACT),
    "keras224-adadelta-mlp": dict.fromkeys(KINDS, EXACT),
    "keras231-adam-amsgrad-mlp": dict.fromkeys(KINDS, EXACT),
    "keras231-nadam-eps-convbn": {"optim": EXACT, "keras": SCHEDULE, "tf_keras": SCHEDULE, "legacy": EXACT},
    "keras231-adagrad-decay-eps-nested": {"optim": EXACT, "keras": EPSILON, "tf_keras": EPSILON, "legacy": EXACT},
    "tf115-rmsprop-mlp": {"optim": EXACT, "keras": EPSILON, "tf_keras": EPSILON, "legacy": EXACT},
    "tf115-sgd-decay-clipvalue-embed": dict.fromkeys(KINDS, EXACT),
    "tf115-train-momentum-nesterov-mlp": dict.fromkeys(KINDS, EXACT),
    "tf115-train-rmsprop-centered-convbn": dict.fromkeys(KINDS[:3], EXACT),
    "tf20-ftrl-mlp": dict.fromkeys(KINDS, EXACT),
    "tf20-sgd-nesterov-decay-nested": dict.fromkeys(KINDS, EXACT),
    "tf24-sgd-momentum-ckpt-convbn": dict.fromkeys(KINDS, EXACT),
    "tf29-dtensor-adam-mlp": dict.fromkeys(KINDS, EXACT),
    "tf215-new-rmsprop-mlp": {"optim": EXACT, "keras": EXACT, "tf_keras": EXACT, "legacy": EPSILON},
    "tf215-new-lion-embed": {"optim": EXACT, "keras": EXACT, "tf_keras": EXACT},
    "tf215-new-adafactor-mlp": {"optim": EXACT, "keras": EXACT, "tf_keras": EXACT},
    "keras38-nadam-mlp": {"optim": EXACT, "keras": EXACT, "tf_keras": IN_FUNCTIONS},
    "keras38-adamw-convbn": {"optim": EXACT, "keras": EXACT, "tf_keras": EXACT},
    "extra-keras315-adam-accumulation-keras": {"optim": EXACT, "keras": EXACT},
    "extra-keras39-sgd-accumulation-ema-keras": {"optim": EXACT, "keras": EXACT},
    "extra-keras315-adam-accumulation-schedule-keras": {"optim": EXACT, "keras": EXACT},
}
PARAMETERS = [(name, kind) for name, kinds in CASES.items() for kind in kinds]
RULE = ("epsilon_inside", "learning_rate_in_momentum", "momentum_slot", "initial_velocity", "lazy_rows")
"""Keywords that only `optim` has."""


def _schedules(kind: str) -> Any:
    return import_module("keras" if kind == "keras" else "tf_keras").optimizers.schedules


def make(kind: str, state: Any) -> Any:
    """A new optimizer with the source's hyperparameters, as a user of that library writes it."""
    import optim

    if kind == "optim":
        return getattr(optim, state.algorithm).from_config(state.hyperparameters)
    home = import_module("keras" if kind == "keras" else "tf_keras").optimizers
    cls = getattr(home.legacy if kind == "legacy" else home, state.algorithm)
    parameters = set(inspect.signature(cls.__init__).parameters) | (
        {"clipnorm", "clipvalue", "global_clipnorm", "decay", "schedule_decay"} if kind == "legacy" else set()
    )
    arguments = {
        k: v for k, v in state.hyperparameters.items() if k in parameters and k not in ("name", "learning_rate")
    }
    if state.algorithm != "Nadam":
        arguments.pop("schedule_decay", None)
    rate, decay = state.hyperparameters["learning_rate"], state.hyperparameters.get("decay")
    if decay and kind != "legacy":
        rate = _schedules(kind).InverseTimeDecay(rate, 1, decay)
        arguments.pop("decay", None)
    if isinstance(rate, dict):
        rate = _schedules(kind).deserialize(rate)
    return cls(learning_rate=rate, **arguments)


def _live(kind: str, name: str, oracle: Any) -> dict[str, Any]:
    import keras
    import tensorflow as tf

    trainable = cases._document(name)["trainable"]
    state = migrate.read(cases._source(name), **_hints(name))
    names = [v.name for v in state.variables if v.trainable]
    start = [oracle[f"at_save/var/{i}"] for i in range(len(trainable))]
    if kind == "keras":
        return {n: keras.Variable(x, name=n.replace("/", "_")) for n, x in zip(names, start, strict=True)}
    return {n: tf.Variable(x, name=n) for n, x in zip(names, start, strict=True)}


def _hints(name: str) -> dict[str, Any]:
    return dict(cases._hints(name))


def restore_hints(name: str) -> dict[str, Any]:
    hints = _hints(name)
    if "variables" in hints:
        hints["source_variables"] = hints.pop("variables")
    return hints


def _errors(optimizer: Any, live: dict[str, Any], name: str, oracle: Any) -> float:
    """The worst error over the recorded steps, in units of what rounding explains."""
    variables = list(live.values())
    return next_steps.error(next_steps.applying(optimizer, variables), variables, oracle, cases._document(name)["n"])


@pytest.mark.parametrize(("name", "kind"), PARAMETERS)
@pytest.mark.quick(15)
def test_the_next_six_steps(name: str, kind: str) -> None:
    import re

    oracle = np.load(CORPUS / name / "oracle.npz")
    state = migrate.read(cases._source(name), **_hints(name))
    optimizer, live = make(kind, state), _live(kind, name, oracle)
    hints = restore_hints(name)
    overrides = {} if state.fidelity == EXACT else confirmed(cases._source(name), **_hints(name))
    report = migrate.restore(cases._source(name), optimizer, live, overrides=overrides, **hints)
    expected = CASES[name][kind]
    assert report.fidelity == (EXACT if expected == EXACT else APPROXIMATE), report.reasons
    assert expected == EXACT or any(re.search(expected, reason) for reason in report.reasons)
    assert set(report.onto) == set(live)
    if expected == EXACT:
        assert _errors(optimizer, live, name, oracle) <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_method_of_ones_own_is_said(kind: str) -> None:
    name = "tf24-adam-convbn"
    oracle = np.load(CORPUS / name / "oracle.npz")
    optimizer, live = make(kind, migrate.read(cases._source(name))), _live(kind, name, oracle)
    applied = optimizer.apply_gradients
    optimizer.apply_gradients = lambda pairs: applied([(2 * g, v) for g, v in pairs])
    report = migrate.restore(cases._source(name), optimizer, live)
    assert report.fidelity == APPROXIMATE
    assert "apply_gradients of the live optimizer was replaced, and is not compared" in report.reasons


@pytest.mark.parametrize("option", ["gradient_transformers", "gradient_aggregator"])
def test_functions_of_gradients_that_no_config_holds_are_said(option: str) -> None:
    name = "tf24-adam-convbn"
    oracle = np.load(CORPUS / name / "oracle.npz")
    optimizer, live = make("legacy", migrate.read(cases._source(name))), _live("legacy", name, oracle)
    assert migrate.restore(cases._source(name), optimizer, live).fidelity == EXACT

    def twice(pairs: Any) -> Any:
        return [(2 * g, v) for g, v in pairs]

    setattr(optimizer, option, [twice] if option == "gradient_transformers" else twice)
    assert option in " ".join(migrate.restore(cases._source(name), optimizer, live).reasons)
    assert _errors(optimizer, live, name, oracle) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_an_optimizer_that_has_stepped_is_overwritten(kind: str) -> None:
    import tensorflow as tf

    name = "keras231-adam-amsgrad-mlp"
    oracle = np.load(CORPUS / name / "oracle.npz")
    optimizer, live = make(kind, migrate.read(cases._source(name))), _live(kind, name, oracle)
    optimizer.apply_gradients([(tf.ones(v.shape), v) for v in live.values()])
    overrides = confirmed(cases._source(name))
    report = migrate.restore(
        cases._source(name), optimizer, live, restore_variables=True, strict=True, overrides=overrides
    )
    assert report.variables == len(live)
    assert _errors(optimizer, live, name, oracle) <= 1


def test_dvariables_of_any_layout() -> None:
    import tensorflow as tf
    from tensorflow.experimental import dtensor

    name = "keras231-adam-amsgrad-mlp"
    oracle = np.load(CORPUS / name / "oracle.npz")
    state = migrate.read(cases._source(name))
    mesh = dtensor.create_mesh([("x", 2), ("y", 2)], devices=[f"CPU:{i}" for i in range(4)])

    def put(array: Any, *axes: str) -> Any:
        whole = dtensor.copy_to_mesh(tf.constant(array), dtensor.Layout.replicated(mesh, array.ndim))
        return dtensor.relayout(whole, dtensor.Layout(axes, mesh))

    axes = [("unsharded",) * len(v.shape) for v in state.variables]
    axes[0] = tuple("x" if n % 2 == 0 else "unsharded" for n in state.variables[0].shape)
    starts = [oracle[f"at_save/var/{i}"] for i in range(len(axes))]
    live = [dtensor.DVariable(put(x, *a), name=v.name) for x, a, v in zip(starts, axes, state.variables, strict=True)]
    optimizer = make("optim", state)
    report = migrate.restore(cases._source(name), optimizer, live, overrides=confirmed(cases._source(name)))
    assert report.fidelity == EXACT
    assert {how for _, how in report.onto.values()} == {"name"}
    slot = optimizer.get_slot(live[0], "v")
    assert slot.layout == live[0].layout
    for step in range(6):
        pairs = [(put(oracle[f"grad/{step}/{i}"], *axes[i]), live[i]) for i in range(len(live))]
        optimizer.apply_gradients(pairs)
    for i, variable in enumerate(live):
        whole = dtensor.relayout(variable.read_value(), dtensor.Layout.replicated(mesh, variable.shape.rank))
        np.testing.assert_allclose(whole.numpy(), oracle[f"var/5/{i}"], rtol=0, atol=2e-6)


# What differs, and what is refused.


def _adam(**arguments: Any) -> Any:
    import keras

    return keras.optimizers.Adam(**{"learning_rate": 0.001, **arguments})


def test_other_hyperparameters_are_kept_and_said() -> None:
    name = "keras231-adam-amsgrad-mlp"
    oracle = np.load(CORPUS / name / "oracle.npz")
    state = migrate.read(cases._source(name))
    rate = state.hyperparameters["learning_rate"]
    optimizer, live = _adam(amsgrad=True, learning_rate=rate * 2, beta_1=0.8), _live("keras", name, oracle)
    with pytest.raises(StrictError, match=r"beta_1 is 0\.9 in the source and 0\.8 in the live"):
        migrate.restore(cases._source(name), optimizer, live, strict=True)
    assert not optimizer.built
    report = migrate.restore(cases._source(name), optimizer, live)
    assert report.fidelity == APPROXIMATE
    assert any(r.startswith("learning_rate is ") and "which is kept" in r for r in report.reasons)
    assert any(r.startswith("beta_1 is 0.9 in the source and 0.8 in") for r in report.reasons)
    assert float(optimizer.learning_rate) == pytest.approx(rate * 2)
    assert int(optimizer.iterations) == state.iterations


def test_amsgrad_that_begins_now_starts_from_v() -> None:
    name = "tf24-adam-convbn"
    oracle = np.load(CORPUS / name / "oracle.npz")
    state = migrate.read(cases._source(name))
    optimizer, live = _adam(amsgrad=True), _live("keras", name, oracle)
    report = migrate.restore(cases._source(name), optimizer, live)
    assert any(r.startswith("amsgrad is False") for r in report.reasons)
    for i, variable in enumerate(live):
        np.testing.assert_array_equal(optimizer._velocity_hats[i], state.slots["v"][variable].load())


def test_another_algorithm_is_refused() -> None:
    import keras

    with pytest.raises(UnsupportedError, match=r"Adam and the live one keras\.optimizers\.SGD"):
        migrate.restore(cases._source("tf24-adam-convbn"), keras.optimizers.SGD(), [keras.Variable(0.0)])


def test_another_library_is_refused() -> None:
    with pytest.raises(
        UnsupportedError, match=r"is not an optimizer of optim, Keras 3, tf_keras, torch\.optim or optax"
    ):
        migrate.restore(cases._source("tf24-adam-convbn"), object(), [0.0])


def test_a_subclass_is_never_called_exact() -> None:
    import keras

    class Mine(keras.optimizers.Adam):
        pass

    name = "keras231-adam-amsgrad-mlp"
    state = migrate.read(cases._source(name))
    optimizer = Mine(learning_rate=state.hyperparameters["learning_rate"], amsgrad=True)
    report = migrate.restore(
        cases._source(name), optimizer, _live("keras", name, np.load(CORPUS / name / "oracle.npz"))
    )
    assert any("class of your own" in reason for reason in report.reasons)


def test_a_schedule_with_the_name_of_a_stock_one_is_not_taken_for_it(tmp_path: Path) -> None:
    import keras

    import optim

    @keras.saving.register_keras_serializable()
    class InverseTimeDecay(keras.optimizers.schedules.InverseTimeDecay):
        def __call__(self, step: Any) -> Any:
            return 2 * super().__call__(step)

    source = optim.AdamW(optim.schedules.InverseTimeDecay(0.01, 10, 0.5))
    variables = _trained(source)
    optim.save_checkpoint(tmp_path / "c", source, variables)
    for cls, fidelity in (
        (InverseTimeDecay, APPROXIMATE),
        (keras.optimizers.schedules.InverseTimeDecay, EXACT),
    ):
        live = keras.optimizers.AdamW(cls(0.01, 10, 0.5))
        report = migrate.restore(tmp_path / "c", live, variables)
        assert report.fidelity == fidelity, report.reasons
        assert fidelity == EXACT or "the schedule InverseTimeDecay" in report.reasons[0]


def test_nesterov_without_a_momentum_of_its_own_is_compared() -> None:
    """`tf.contrib`'s Nadam is Adam with `nesterov`, which Keras's Adam does not have."""
    name = "extra-tf115-contrib-nadam-saver"
    state = migrate.read(cases._source(name), **_hints(name))
    live = {v.name: _variable(v) for v in state.variables if v.trainable}
    for kind, expected in (
        ("optim", ()),
        ("keras", ("nesterov is True in the source and False in the live optimizer",)),
    ):
        report = migrate.restore(cases._source(name), make(kind, state), live, **restore_hints(name))
        assert [reason[: len(text)] for reason, text in zip(report.reasons, expected, strict=True)] == list(expected)


def _variable(stored: Any) -> Any:
    import keras

    return keras.Variable(np.zeros(stored.shape, "float32"))


def test_more_steps_than_a_counter_holds_are_refused() -> None:
    import tensorflow as tf

    with pytest.raises(UnsupportedError, match="3000000000 is more than its int32 counts to"):
        values.filled("iterations", tf.Variable(0, dtype="int32"), 3_000_000_000)


def test_an_optimizer_built_on_other_variables_is_refused() -> None:
    import keras

    name = "keras231-adam-amsgrad-mlp"
    optimizer = _adam(amsgrad=True)
    optimizer.build([keras.Variable(np.zeros(3, np.float32), name="other")])
    with pytest.raises(MismatchError, match="built on other variables"):
        migrate.restore(cases._source(name), optimizer, _live("keras", name, np.load(CORPUS / name / "oracle.npz")))


def test_narrower_variables_are_refused_and_wider_ones_said() -> None:
    import tensorflow as tf

    import optim

    name = "keras231-adam-amsgrad-mlp"
    oracle, state = np.load(CORPUS / name / "oracle.npz"), migrate.read(cases._source(name))
    names = [v.name for v in state.variables]
    for dtype, message in (("bfloat16", "cannot hold it"), ("float64", "wider dtype")):
        live = {n: tf.Variable(tf.cast(oracle[f"at_save/var/{i}"], dtype)) for i, n in enumerate(names)}
        optimizer = optim.Adam.from_config(state.hyperparameters)
        if dtype == "bfloat16":
            with pytest.raises(MismatchError, match=message):
                migrate.restore(cases._source(name), optimizer, live)
            continue
        report = migrate.restore(cases._source(name), optimizer, live)
        assert any(message in reason for reason in report.reasons)


def _trained(optimizer: Any) -> list[Any]:
    import tensorflow as tf

    variables = [tf.Variable(np.ones(shape, np.float32), name=f"d/{n}") for n, shape in (("k", (3, 4)), ("b", (4,)))]
    optimizer.apply_gradients([(tf.ones(v.shape), v) for v in variables])
    return variables


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_what_is_excluded_from_weight_decay_is_compared(library: str, tmp_path: Path) -> None:
    """Only `optim`'s own checkpoints record it."""
    from importlib import import_module

    import optim

    source = optim.AdamW(0.01, weight_decay=0.1, weight_decay_exclude=["b$"])
    variables = _trained(source)
    optim.save_checkpoint(tmp_path / "c", source, variables)
    for excluded in (False, True):
        live = import_module(library).optimizers.AdamW(0.01, weight_decay=0.1)
        if excluded:
            live.exclude_from_weight_decay(var_names=["d/b"])
        report = migrate.restore(tmp_path / "c", live, variables)
        assert report.reasons == (
            () if excluded else ("d/b: weight decay applies in the live optimizer and is excluded in the source",)
        )


def test_an_algorithm_that_only_optim_has(tmp_path: Path) -> None:
    import optim

    source, live = optim.Muon(0.1), optim.Muon(0.1)
    variables = _trained(source)
    optim.save_checkpoint(tmp_path / "c", source, variables)
    assert migrate.restore(tmp_path / "c", live, variables).fidelity == EXACT
    for slot in source.slot_names:
        for variable in variables:
            np.testing.assert_array_equal(live.get_slot(variable, slot), source.get_slot(variable, slot))


def test_inside_a_loss_scale_optimizer() -> None:
    import keras

    name = "tf24-adam-convbn"
    state = migrate.read(cases._source(name))
    inner = _adam(learning_rate=state.hyperparameters["learning_rate"], epsilon=state.hyperparameters["epsilon"])
    optimizer, live = (
        keras.optimizers.LossScaleOptimizer(inner),
        _live("keras", name, np.load(CORPUS / name / "oracle.npz")),
    )
    report = migrate.restore(cases._source(name), optimizer, live)
    reason = "the loss scale is none in the source and dynamic, doubled after 2000 steps"
    assert [text for text in report.reasons if not text.startswith(reason)] == []
    assert any("LossScaleOptimizer wraps the live optimizer" in warning for warning in report.warnings)
    assert int(inner.iterations) == state.iterations


@pytest.mark.parametrize("scale", [2.0**13, 2.0**15])
def test_the_current_loss_scale_is_restored_or_named(scale: float, tmp_path: Path) -> None:
    import keras
    import tensorflow as tf

    import optim

    source, live = (optim.Adam(0.1, loss_scale="dynamic") for _ in range(2))
    variable = tf.Variable([1.0, 2.0], name="w")
    while float(source.scale_loss(1.0)) > scale:
        source.apply_gradients([(tf.constant([np.inf, 1.0]), variable)])
    source.apply_gradients([(tf.constant([scale, scale]), variable)])
    optim.save_checkpoint(tmp_path / "c", source, [variable])
    assert migrate.restore(tmp_path / "c", live, [variable]).fidelity == EXACT
    assert float(live.scale_loss(1.0)) == scale
    wrapper = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1))
    report = migrate.restore(tmp_path / "c", wrapper, [keras.Variable([1.0, 2.0], name="w")])
    assert [r for r in report.reasons if "loss scale" in r] == [r for r in report.reasons if scale != 2.0**15]
    assert (report.fidelity == EXACT) == (scale == 2.0**15)


# All or nothing.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["read", "assign"])
@pytest.mark.quick(3)
def test_a_failure_on_the_way_leaves_everything_as_it_was(kind: str, how: str, monkeypatch: Any) -> None:
    import tensorflow as tf

    from optim.checkpoints import assigning

    name = "keras231-adam-amsgrad-mlp"
    oracle = np.load(CORPUS / name / "oracle.npz")
    optimizer, live = make(kind, migrate.read(cases._source(name))), _live(kind, name, oracle)
    optimizer.apply_gradients([(tf.ones(v.shape), v) for v in live.values()])
    kept = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    before = [v.numpy() for v in (*kept, *live.values())]
    count, original = 0, values.stored

    def failing(original: Any) -> Any:
        def wrapped(*args: Any, **keywords: Any) -> Any:
            nonlocal count
            count += 1
            if count == 7:
                raise OSError("the disk is gone")
            return original(*args, **keywords)

        return wrapped

    if how == "read":
        monkeypatch.setattr(values, "stored", lambda *a: _failing_value(original(*a), failing))
    else:
        monkeypatch.setattr(assigning.Assignment, "run", failing(assigning.Assignment.run))
    with pytest.raises(OSError, match="the disk is gone"):
        migrate.restore(cases._source(name), optimizer, live, restore_variables=True)
    assert count == 7
    for old, now in zip(before, (*kept, *live.values()), strict=True):
        assert now.numpy().tobytes() == old.tobytes()
    monkeypatch.undo()
    overrides = confirmed(cases._source(name))
    report = migrate.restore(cases._source(name), optimizer, live, restore_variables=True, overrides=overrides)
    assert report.fidelity == EXACT
    assert _errors(optimizer, live, name, oracle) <= 1


def _failing_value(value: Any, failing: Any) -> Any:
    return replace(value, load=failing(value.load))


def test_a_damaged_source_changes_nothing(tmp_path: Path) -> None:
    name = "tf24-sgd-momentum-ckpt-convbn"
    for path in (CORPUS / name / "source").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    data = next(tmp_path.glob("*.data-*"))
    damaged = bytearray(data.read_bytes())
    oracle = np.load(CORPUS / name / "oracle.npz")
    place = bytes(damaged).find(oracle["at_save/slot/momentum/5"].tobytes())
    assert place > 0
    damaged[place] ^= 1
    data.write_bytes(damaged)
    optimizer, live = make("keras", migrate.read(cases._source(name), **_hints(name))), _live("keras", name, oracle)
    before = [variable.numpy() for variable in live.values()]
    with pytest.raises(DtoptError, match=r"checksum|damaged"):
        migrate.restore(tmp_path, optimizer, live, **restore_hints(name))
    assert int(optimizer.iterations) == 0
    assert not optimizer.built, "no slot was made"
    for old, variable in zip(before, live.values(), strict=True):
        assert variable.numpy().tobytes() == old.tobytes()


def test_the_report_is_json() -> None:
    name = "tf24-adam-convbn"
    optimizer, live = _adam(), _live("keras", name, np.load(CORPUS / name / "oracle.npz"))
    report = migrate.restore(cases._source(name), optimizer, live)
    document = json.loads(json.dumps(report.to_dict()))
    assert document["target"] == "live"
    assert document["dest"].startswith("keras.optimizers.Adam (keras 3.")
    assert document["onto"] == {n: [n, "name"] for n in live}
    assert set(document["matched"]) == {f"{slot}/{n}" for slot in ("m", "v") for n in live}


@pytest.mark.parametrize("library", ["keras", "optim"])
def test_a_variable_that_is_frozen_in_the_live_model_alone_is_a_reason(library: str) -> None:
    import keras
    import tensorflow as tf

    import optim

    source = CORPUS / "keras224-sgd-momentum-convbn" / "source" / "model.h5"
    state = migrate.read(source)
    rate, momentum = (state.hyperparameters[name] for name in ("learning_rate", "momentum"))
    for frozen in (False, True):
        live: dict[str, Any] = {}
        for v in state.variables[:6]:
            can = not (frozen and v.name == "dense_2/bias")
            zeros = np.zeros(v.shape, np.float32)
            live[v.name] = (
                keras.Variable(zeros, trainable=can) if library == "keras" else tf.Variable(zeros, trainable=can)
            )
        optimizer_class = keras.optimizers.SGD if library == "keras" else optim.SGD
        report = migrate.restore(source, optimizer_class(learning_rate=rate, momentum=momentum), live)
        message = "dense_2/bias: trained in the source, and trainable is False"
        assert any(message in reason for reason in report.reasons) == frozen
        assert (report.fidelity == "exact") != frozen
