"""`optim.legacy.v2` against the documentation of OptimizerV2, what its releases saved and did, and tf_keras's copy."""

from __future__ import annotations

import contextlib
import inspect
import json
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from optim import schedules
from optim.errors import GradientsError, HyperparameterError, NoGradientsError, UnsupportedError
from optim.layouts.placement import to_host
from optim.legacy import v2
from tests.helpers.breadth import covering
from tests.test_optim.legacy.legacy_support import Case, same_lists
from tests.test_optim.support import Place, put

NAMES = ("SGD", "RMSprop", "Adagrad", "Adadelta", "Adam", "Adamax", "Nadam", "Ftrl")
SIGNATURES = {
    "Adadelta": {"learning_rate": 0.001, "rho": 0.95, "epsilon": 1e-7, "name": "Adadelta"},
    "RMSprop": {
        "learning_rate": 0.001, "rho": 0.9, "momentum": 0.0, "epsilon": 1e-7, "centered": False, "name": "RMSprop",
    },
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "tf115-adadelta-checkpoint-nested": {},
    "tf115-adamax-mlp": {},
    "tf115-rmsprop-mlp": {},
    "tf115-sgd-decay-clipvalue-embed": {},
    "tf115-sgd-nesterov-checkpoint-embed": {},
    "tf20-adadelta-tfweights-convbn": {},
    "tf20-adam-amsgrad-savedmodel-mlp": {},
    "tf20-ftrl-mlp": {},
    "tf20-rmsprop-centered-momentum-embed": {},
    "tf20-sgd-nesterov-decay-nested": {},
    "extra-tf22-sgd-clipboth-order-trap-h5": {"clip_order": "norm_first"},
    "tf24-adagrad-decay-iav-nested": {},
    "tf24-sgd-clipboth-mlp": {},
    "tf215-legacy-nadam-ckpt-embed": {},
    "tf29-adam-clipnorm-decay-nested": {},
    "extra-tfk221-legacy-adam-keras": {},
}
MESH_CASES = (
    "tf115-adadelta-checkpoint-nested",
    "tf20-rmsprop-centered-momentum-embed",
    "tf215-legacy-nadam-ckpt-embed",
    "tf29-adam-clipnorm-decay-nested",
)
PLAIN = Place(None, {})


def resume(case: Case, place: Place, **changes: Any) -> list[np.ndarray]:
    """Set the weights, take the six steps of the release, and give the list as it was before them."""
    optimizer, live = case.optimizer(v2, **changes), case.variables(place)
    optimizer._create_all_weights(live)
    optimizer.set_weights(case.weights)
    restored = optimizer.get_weights()
    for step in range(case.document["n"]):
        layouts = [place.layout(n, v.shape.rank) for n, v in zip(case.names, live, strict=True)]
        optimizer.apply_gradients([(case.gradient(step, i, layouts[i]), v) for i, v in enumerate(live)])
        case.check(step, live)
    return restored


@pytest.mark.parametrize("name", NAMES)
def test_signatures_are_those_of_optimizer_v2(name: str) -> None:
    import tf_keras

    own, theirs = (inspect.signature(c) for c in (getattr(v2, name), getattr(tf_keras.optimizers.legacy, name)))
    shared = {p.name: p.default for p in own.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD}
    assert list(shared.items()) == [
        (p.name, p.default) for p in theirs.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    assert shared == SIGNATURES.get(name, shared)


@pytest.mark.parametrize("name", CASES)
def test_weights_and_steps_are_those_of_the_release(name: str) -> None:
    case = Case(name)
    same_lists(resume(case, PLAIN, **CASES[name]), case.weights)


@pytest.mark.parametrize("name", MESH_CASES)
@pytest.mark.quick(1)
def test_on_a_mesh_the_steps_are_the_same(name: str, mesh_2: Any) -> None:
    case = Case(name)
    assert case.sharding()
    same_lists(resume(case, Place(mesh_2, case.sharding())), case.weights)


def test_slots_of_variables_that_come_later_are_at_the_end() -> None:
    case = Case("extra-tf24-adam-unfrozen-later-npz")
    live = dict(zip(case.names, case.variables(PLAIN), strict=True))
    optimizer = case.optimizer(v2)
    optimizer._create_all_weights([v for n, v in live.items() if "frozen" not in n])
    optimizer._create_all_weights(list(live.values()))
    optimizer.set_weights(case.weights)
    written = [n.split(":")[0].split("/") for n in case.document["opt_weights"]["names"][1:]]
    for (_, layer, kind, slot), want in zip(written, case.weights[1:], strict=True):
        np.testing.assert_array_equal(optimizer.get_slot(live[f"{layer}/{kind}"], slot), want)


SPARSE: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "clipnorm": 0.5},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Adagrad": {"clipvalue": 0.3},
    "Adadelta": {"learning_rate": 1.0},
    "Adam": {"amsgrad": True, "decay": 0.1},
    "Adamax": {},
    "Nadam": {},
    "Ftrl": {"l1_regularization_strength": 0.01},
}


def slices(step: int, place: Place) -> tf.IndexedSlices:
    """Row 1 twice, row 3 once, with zeros in the second step; rows 0, 2 and 4 never."""
    values = np.random.default_rng(step).normal(size=(3, 4))
    values[1] *= step != 1
    layout = [place.layout("", rank) for rank in (2, 1)]
    return tf.IndexedSlices(
        put(values, layout[0], tf.float32), put([1, 3, 1], layout[1], tf.int64), tf.constant([6, 4])
    )


@covering(1, name=NAMES, mode=["mesh", "function", "plain"])
@pytest.mark.quick(2)
def test_sparse_gradients_move_what_they_move_in_optimizer_v2(name: str, mode: str, mesh_2: Any) -> None:
    import tf_keras

    start = np.random.default_rng(9).normal(size=(6, 4))
    place = Place(mesh_2, {"table": ["x", "unsharded"]}) if mode == "mesh" else PLAIN
    (table,) = place.variables({"table": start}, tf.float32).values()
    with tf.device("CPU"):  # on GPUs TensorFlow lacks some of their kernels
        theirs = tf.Variable(start.astype(np.float32))
    own, peer = (getattr(m, name)(**SPARSE[name]) for m in (v2, tf_keras.optimizers.legacy))

    def apply(gradient: tf.IndexedSlices) -> None:
        own.apply_gradients([(gradient, table)])

    for step in range(4):
        (tf.function(apply) if mode == "function" else apply)(slices(step, place))
        peer.apply_gradients([(slices(step, PLAIN), theirs)])
    np.testing.assert_allclose(to_host(table), theirs, rtol=1e-5, atol=1e-6)
    for mine, want in zip(own.get_weights(), peer.get_weights(), strict=True):
        np.testing.assert_allclose(mine, want, rtol=5e-5, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_config_is_that_of_optimizer_v2_and_goes_round(name: str) -> None:
    import tf_keras

    own = getattr(v2, name)(clipvalue=0.5, global_clipnorm=2.0, name="Mine")
    theirs = getattr(tf_keras.optimizers.legacy, name)(clipvalue=0.5, global_clipnorm=2.0, name="Mine")
    config = json.loads(json.dumps(own.get_config()))
    assert config == theirs.get_config()
    before = dict(config)
    assert type(own).from_config(config).get_config() == config == before


def test_from_config_understands_old_names_schedules_and_custom_objects() -> None:
    class Halving(schedules.LearningRateSchedule):
        def __init__(self, top: float):
            self.top = top

        def __call__(self, step: Any) -> Any:
            return self.top * 0.5 ** tf.cast(step, tf.float64)

        def get_config(self) -> dict[str, Any]:
            return {"top": self.top}

    assert float(v2.SGD.from_config({"lr": 0.5}).learning_rate) == 0.5
    document = v2.Adam(learning_rate=Halving(0.5)).get_config()
    made = v2.Adam.from_config(document, custom_objects={"Halving": Halving})
    assert isinstance(made.learning_rate, Halving)
    with pytest.raises(HyperparameterError, match="Halving"):
        v2.Adam.from_config(document)
    asked = v2.Adam.from_config({"beta_1": "warm"}, custom_objects={"warm": lambda: 0.25})
    assert asked.get_config()["beta_1"] == 0.25
    assert v2.Nadam.from_config({"decay": 0.01}).schedule_decay == 0.01
    with pytest.raises(HyperparameterError, match="contradicts"):
        v2.Nadam(decay=0.01, schedule_decay=0.02)


@pytest.mark.parametrize("name", sorted(set(v2.__all__) - {"Optimizer"}))
def test_lr_overrides_learning_rate(name: str) -> None:
    """As in OptimizerV2, for whatever was written for it."""
    for keywords in ({"lr": 0.25}, {"learning_rate": 0.5, "lr": 0.25}):
        with pytest.warns(DeprecationWarning, match="overrides"):
            optimizer = getattr(v2, name)(**keywords)
        assert float(optimizer.learning_rate) == 0.25
        assert optimizer.get_config()["learning_rate"] == 0.25


def test_hyperparameters_are_attributes_that_act() -> None:
    weights = tf.Variable([1.0])
    with pytest.warns(DeprecationWarning, match="old name"):
        optimizer = v2.SGD(lr=0.5, momentum=0.5)
    optimizer.learning_rate = 0.25
    optimizer.momentum = 0.0
    optimizer.clipvalue = 0.5
    optimizer.decay = 1.0
    for _ in range(2):
        optimizer.minimize(lambda: weights, [weights])
    np.testing.assert_allclose(weights, [1 - 0.125 - 0.0625])
    optimizer.lr = schedules.ExponentialDecay(1.0, 1, 0.5)
    optimizer.learning_rate = 2.0
    assert float(optimizer.lr) == 2.0
    with pytest.raises(AttributeError, match="no slot"):
        v2.SGD().momentum = 0.9
    with pytest.raises(AttributeError, match="make another"):
        v2.Adam().amsgrad = True
    assert v2.Adam(epsilon=0).epsilon == v2.Adam(epsilon=None).epsilon == 1e-7
    optimizer = v2.SGD()
    optimizer.iterations = 7
    assert [int(w) for w in optimizer.get_weights()] == [7]


def test_apply_gradients_returns_iterations_by_name_and_skips_none() -> None:
    a, b, optimizer = tf.Variable([1.0]), tf.Variable([1.0]), v2.Adam()
    assert optimizer.get_weights() == []
    names: list[str] = []

    @tf.function
    def step() -> Any:
        pairs = [(tf.ones(1), a), (None, b)]
        steps = optimizer.apply_gradients(pairs, "mine", experimental_aggregate_gradients=False)
        names.append(steps.op.name)
        return steps

    assert step().numpy() == 1
    assert set(names) == {"mine"}
    assert optimizer.apply_gradients([(tf.ones(1), a), (None, b)]) is optimizer.iterations
    assert [w.shape for w in optimizer.get_weights()] == [(), (1,), (1,)]
    assert b.numpy() == 1
    assert optimizer.iterations.numpy() == 2


@pytest.mark.parametrize(("given", "label"), [(None, "Mine"), ("step", "step")])
def test_a_step_has_its_name_in_profiles(given: str | None, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    labels: list[str] = []
    monkeypatch.setattr(tf.profiler.experimental, "Trace", lambda name: labels.append(name) or contextlib.nullcontext())
    weights = tf.Variable([1.0])
    v2.SGD(name="Mine").apply_gradients([(tf.ones(1), weights)], name=given)
    assert labels == [label]


def test_minimize_takes_grad_loss_and_a_callable_list() -> None:
    made: list[Any] = []

    def loss() -> Any:
        made[:] = made or [tf.Variable([1.0, 2.0])]
        return made[0] ** 2

    v2.SGD(0.5).minimize(loss, lambda: made, grad_loss=tf.constant([1.0, 0.5]), name="step")
    np.testing.assert_allclose(made[0], [0.0, 1.0])


def test_get_gradients_and_updates() -> None:
    weights, optimizer = tf.Variable([3.0, 4.0]), v2.SGD(0.1, momentum=0.9, clipnorm=1.0)
    (gradient,) = optimizer.get_gradients(lambda: tf.reduce_sum(weights**2), [weights])
    np.testing.assert_allclose(gradient, [6.0, 8.0])
    wrote = optimizer.get_updates(lambda: tf.reduce_sum(weights**2), [weights])
    assert wrote[0] is optimizer.iterations
    assert wrote[1] is optimizer.get_slot(weights, "momentum")
    assert wrote[2] is weights
    np.testing.assert_allclose(weights, [2.94, 3.92], rtol=1e-6)


def test_slots_and_weights_can_be_added() -> None:
    weights, optimizer = tf.Variable([1.0, 2.0]), v2.Adam()
    assert optimizer.get_slot_names() == ["m", "v"]
    assert optimizer.add_slot(weights, "m", initializer="ones") is optimizer.get_slot(weights, "m")
    np.testing.assert_array_equal(optimizer.get_slot(weights, "m"), [1, 1])
    added = optimizer.add_slot(weights, "seen", initializer=lambda shape, dtype: tf.fill(shape, 3.0), shape=[3])
    assert optimizer.get_slot(weights, "seen") is added is optimizer.add_slot(weights, "seen", shape=[3])
    np.testing.assert_array_equal(added, [3, 3, 3])
    assert optimizer.get_slot_names() == ["m", "v", "seen"]
    assert optimizer.weights[-1] is added
    assert [id(v) for v in optimizer.variables()] == [id(v) for v in optimizer.weights]
    adagrad = v2.Adagrad()
    np.testing.assert_array_equal(adagrad.add_slot(weights, "accumulator"), [0, 0])
    count = optimizer.add_weight("count", [], tf.int64, initializer=5)
    assert count.numpy() == 5
    assert not any(count is w for w in optimizer.weights)
    with pytest.raises(UnsupportedError, match="shape"):
        optimizer.add_slot(weights, "m", shape=[5])
    with pytest.raises(UnsupportedError, match="no effect"):
        optimizer.add_weight("trained", [], trainable=True)
    with pytest.raises(KeyError, match="nothing"):
        optimizer.get_slot(weights, "nothing")


def test_lists_of_v1_are_understood_and_real_vhats_are_not_lost() -> None:
    weights = tf.Variable([1.0, 2.0])
    optimizer = v2.Adadelta()
    optimizer.apply_gradients([(tf.ones(2), weights)])
    optimizer.set_weights([np.array([1.0, 2.0]), np.array([3.0, 4.0])])
    same_lists(optimizer.get_weights(), [np.array(0), np.array([1.0, 2.0]), np.array([3.0, 4.0])])
    optimizer = v2.Adam()
    optimizer.apply_gradients([(tf.ones(2), weights)])
    optimizer.set_weights([np.array(5), np.ones(2), np.ones(2), np.zeros(1)])
    assert optimizer.iterations.numpy() == 5
    with pytest.raises(ValueError, match="amsgrad"):
        optimizer.set_weights([np.array(6), np.ones(2), np.ones(2), np.ones(2)])
    assert optimizer.iterations.numpy() == 5


def test_documented_errors_change_nothing() -> None:
    weights, optimizer = tf.Variable([1.0, 2.0]), v2.Adadelta()
    for wrong in (None, "", 3, "no spaces"):
        with pytest.raises(ValueError, match="name must be"):
            v2.Adadelta(name=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected"):
        v2.Adadelta(clip=1.0)
    with pytest.raises(ValueError, match="exclude each other"):
        v2.Adadelta(clipnorm=1.0, global_clipnorm=1.0)
    with pytest.raises(GradientsError):
        optimizer.apply_gradients([weights])
    with pytest.raises(NoGradientsError):
        optimizer.apply_gradients([(None, weights)])
    with pytest.raises(UnsupportedError, match="callable"):
        optimizer.minimize(tf.constant(1.0), [weights])
    with pytest.raises(GradientsError):
        optimizer.minimize(lambda: weights, [3.0])
    with tf.distribute.OneDeviceStrategy("CPU:0").scope(), pytest.raises(UnsupportedError, match="Strategy"):
        optimizer.apply_gradients([(tf.ones(2), weights)])
    bound = tf.Variable(tf.ones([3, 2]), constraint=tf.abs)
    with pytest.raises(UnsupportedError, match="constraint"):
        optimizer.apply_gradients([(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2])), bound)])
    np.testing.assert_array_equal(weights, [1, 2])
    assert optimizer.iterations.numpy() == 0


def test_its_state_is_kept_by_a_checkpoint(tmp_path: Any) -> None:
    weights = tf.Variable([1.0, 2.0], name="weights")
    optimizer = v2.Adam()
    optimizer.apply_gradients([(tf.ones(2), weights)])
    prefix = tf.train.Checkpoint(optimizer=optimizer, weights=weights).write(str(tmp_path / "ckpt"))
    other = v2.Adam()
    other._create_all_weights([weights])
    tf.train.Checkpoint(optimizer=other, weights=weights).read(prefix).assert_consumed()
    same_lists(other.get_weights(), optimizer.get_weights())


COMPLEX = {
    "SGD": ({}, {"momentum": 0.9}),
    "RMSprop": ({}, {"momentum": 0.9}, {"centered": True}, {"centered": True, "momentum": 0.9}),
    "Adagrad": ({},),
    "Adadelta": ({},),
    "Adam": ({},),
    "Nadam": ({},),
}


@pytest.mark.parametrize("dtype", [tf.complex64, tf.complex128], ids=lambda d: d.name)
@pytest.mark.parametrize(("name", "options"), [(n, o) for n, each in COMPLEX.items() for o in each], ids=str)
def test_complex_variables_move_as_those_of_tf_keras(name: str, options: dict[str, Any], dtype: Any) -> None:
    import tf_keras

    values, gradient = tf.constant([1 + 1j, 2 - 1j], dtype), tf.constant([0.1 + 0.2j, 0.3 - 0.1j], dtype)
    mine, theirs = tf.Variable(values), tf.Variable(values)
    ours = getattr(v2, name)(learning_rate=0.1, **options)
    other = getattr(tf_keras.optimizers.legacy, name)(learning_rate=0.1, **options)
    for _ in range(3):
        ours.apply_gradients([(gradient, mine)])
        other.apply_gradients([(gradient, theirs)])
    np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=2e-6)


def test_a_checkpoint_of_optimizer_v2_is_restored(tmp_path: Any) -> None:
    """`tf.train.Checkpoint(optimizer=...)`, written with tf_keras's legacy Adam: iterations and slots, late or soon."""
    import tf_keras

    weights, theirs = tf.Variable([1.0, 2.0], name="w"), tf_keras.optimizers.legacy.Adam(0.1)
    theirs.apply_gradients([(tf.ones(2), weights)])
    path = tf.train.Checkpoint(optimizer=theirs, w=weights).write(str(tmp_path / "ckpt"))
    for is_built in (False, True):
        other, ours = tf.Variable([0.0, 0.0], name="w"), v2.Adam(0.1)
        if is_built:
            ours._create_all_weights([other])
        tf.train.Checkpoint(optimizer=ours, w=other).read(path).expect_partial()
        same_lists(ours.get_weights(), theirs.get_weights())
