"""`optim.legacy.v1` against the documentation of tf.keras 1.x and what its releases saved and did."""

from __future__ import annotations

import inspect
import json
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import optim
from optim.errors import HyperparameterError, NoGradientsError, UnsupportedError
from optim.legacy import v1
from tests.helpers.breadth import broad
from tests.test_optim.legacy.legacy_support import Case, same_lists
from tests.test_optim.support import Place

DOCUMENTED = {
    "SGD": {"lr": 0.01, "momentum": 0.0, "decay": 0.0, "nesterov": False},
    "RMSprop": {"lr": 0.001, "rho": 0.9, "epsilon": None, "decay": 0.0},
    "Adagrad": {"lr": 0.01, "epsilon": None, "decay": 0.0},
    "Adadelta": {"lr": 1.0, "rho": 0.95, "epsilon": None, "decay": 0.0},
    "Adam": {"lr": 0.001, "beta_1": 0.9, "beta_2": 0.999, "epsilon": None, "decay": 0.0, "amsgrad": False},
    "Adamax": {"lr": 0.002, "beta_1": 0.9, "beta_2": 0.999, "epsilon": None, "decay": 0.0},
    "Nadam": {"lr": 0.002, "beta_1": 0.9, "beta_2": 0.999, "epsilon": None, "schedule_decay": 0.004},
}
# Keras 2.2.4 and tf.keras 1.13 have the lists of v1.
SAME_LIST = {
    "keras224-adadelta-mlp": {},
    "keras224-adam-eps-none-nested": {},
    "keras224-adam-saver-mlp": {},
    "keras224-nadam-mlp": {},
    "keras224-sgd-momentum-convbn": {},
    "extra-k224-adadelta-decay-mlp-npz": {},
    "extra-k224py27-adam-amsgrad-mlp-pkl": {},
    "extra-tf113-sgd-nested-saver": {},
    # Keras itself: clipnorm is the joint norm.
    "extra-k224-sgd-clipboth-frozen-h5": {"clipnorm": None, "global_clipnorm": 0.6},
}
OTHER_LIST = (
    "keras231-adadelta-saver-nested",
    "keras231-adagrad-decay-eps-nested",
    "keras231-nadam-eps-convbn",
    "extra-k122-adam-saver",
)
PLAIN = Place(None, {})


def resume(case: Case, place: Place, **changes: Any) -> Any:
    """Set the weights, take the six steps as the release took them, and give the optimizer as it was before them."""
    optimizer, live = case.optimizer(v1, **changes), case.variables(place)
    optimizer._create_all_weights(live)
    optimizer.iterations.assign(int(case.oracle["iterations"]))  # which not every list says
    optimizer.set_weights(case.weights)
    restored = optimizer.get_weights()
    for step in range(case.document["n"]):
        pairs = [
            (case.gradient(step, i, place.layout(n, live[i].shape.rank)), live[i]) for i, n in enumerate(case.names)
        ]
        # Of this loss they are the gradients.
        optimizer.get_updates(
            lambda pairs=pairs: sum(tf.reduce_sum(tf.convert_to_tensor(g) * v) for g, v in pairs), live
        )
        case.check(step, live)
    return restored


@pytest.mark.parametrize("name", DOCUMENTED)
def test_signatures_are_the_documented_ones(name: str) -> None:
    parameters = list(inspect.signature(getattr(v1, name)).parameters.values())
    assert {p.name: p.default for p in parameters[:-1]} == DOCUMENTED[name]
    assert parameters[-1].kind is inspect.Parameter.VAR_KEYWORD


@pytest.mark.parametrize("name", DOCUMENTED)
def test_config_goes_round(name: str) -> None:
    arguments = {k: v if isinstance(v, bool) else 0.125 for k, v in DOCUMENTED[name].items()}
    optimizer = getattr(v1, name)(**arguments, clipnorm=2.0, clipvalue=0.5)
    config = json.loads(json.dumps(optimizer.get_config()))
    assert config == {**arguments, "clipnorm": 2.0, "clipvalue": 0.5}
    before = dict(config)
    assert type(optimizer).from_config(config).get_config() == config == before


def test_a_config_of_keras_2_3_is_understood() -> None:
    assert v1.Adagrad.from_config({"learning_rate": 0.5, "decay": 0.0, "epsilon": 1e-7}).get_config()["lr"] == 0.5


@pytest.mark.parametrize("name", SAME_LIST)
def test_weights_and_steps_are_those_of_the_release(name: str) -> None:
    changes = SAME_LIST[name]
    case = Case(name)
    same_lists(resume(case, PLAIN, **changes), case.weights)


@pytest.mark.parametrize("name", OTHER_LIST)
def test_lists_of_other_releases_are_understood(name: str) -> None:
    resume(Case(name), PLAIN)


@pytest.mark.parametrize(
    "name",
    ["keras224-adam-eps-none-nested", OTHER_LIST[0], *map(broad, ["keras224-sgd-momentum-convbn", *OTHER_LIST[1:3]])],
)
@pytest.mark.quick(1)
def test_on_a_mesh_the_steps_are_the_same(name: str, mesh_2: Any) -> None:
    case = Case(name)
    assert case.sharding()
    restored = resume(case, Place(mesh_2, case.sharding()))
    if name not in OTHER_LIST:
        same_lists(restored, case.weights)


def test_set_weights_of_nadam_finds_the_product_again() -> None:
    weights = tf.Variable([1.0, 2.0])
    trained = v1.Nadam(schedule_decay=0.01)
    for _ in range(5):
        trained.get_updates(lambda: tf.reduce_sum(weights**2), [weights])
    resumed = v1.Nadam(schedule_decay=0.01)
    resumed._create_all_weights([weights])
    saved = trained.get_weights()
    pickled = np.empty(len(saved), object)  # what np.save makes of a list
    pickled[:] = saved
    resumed.set_weights(pickled)
    want = trained._modern._state.scalars["u_product"].numpy()
    assert want != 1
    assert resumed._modern._state.scalars["u_product"].numpy() == pytest.approx(want, rel=1e-12)


def test_the_orders_of_weights() -> None:
    a, b = tf.Variable([1.0, 2.0]), tf.Variable([[3.0]])
    expected = {
        "SGD": [(), (2,), (1, 1)],
        "RMSprop": [(2,), (1, 1)],
        "Adagrad": [(2,), (1, 1)],
        "Adadelta": [(2,), (1, 1)] * 2,
        "Adam": [(), (2,), (1, 1), (2,), (1, 1), (1,), (1,)],
        "Adamax": [(), (2,), (1, 1), (2,), (1, 1)],
        "Nadam": [(), (2,), (1, 1), (2,), (1, 1)],
    }
    for name, shapes in expected.items():
        optimizer = getattr(v1, name)()
        assert optimizer.get_weights() == []
        optimizer.get_updates(lambda: tf.reduce_sum(a) * tf.reduce_sum(b), [a, b])
        assert [w.shape for w in optimizer.get_weights()] == shapes, name
        assert optimizer.iterations.numpy() == 1


@pytest.mark.parametrize("traced", [False, True])
def test_get_updates_takes_a_step_and_names_what_it_wrote(traced: bool) -> None:
    weights, optimizer = tf.Variable([1.0, 2.0]), v1.SGD(lr=0.1, momentum=0.9)
    wrote: list[Any] = []

    def loss() -> Any:
        return tf.reduce_sum(weights**2)

    def step() -> None:
        wrote[:] = optimizer.get_updates(loss() if traced else loss, [weights])

    (tf.function(step) if traced else step)()
    assert wrote[0] is optimizer.iterations
    assert wrote[1] is optimizer.weights[1]
    assert wrote[2] is weights
    assert len(wrote) == 3
    np.testing.assert_allclose(weights, [0.8, 1.6], rtol=1e-6)


def test_get_gradients_are_clipped_norm_first() -> None:
    weights = tf.Variable([3.0, 4.0])
    (gradient,) = v1.SGD(clipnorm=1.0, clipvalue=0.7).get_gradients(lambda: tf.reduce_sum(weights**2), [weights])
    np.testing.assert_allclose(gradient, [0.6, 0.7], rtol=1e-6)


def test_attributes_act() -> None:
    weights = tf.Variable([1.0])
    optimizer = v1.SGD(lr=0.5)
    optimizer.lr = 0.25
    assert float(optimizer.lr) == 0.25
    optimizer.momentum = 0.5
    optimizer.decay = 1.0
    assert optimizer.get_config() == {"lr": 0.25, "momentum": 0.5, "decay": 1.0, "nesterov": False}
    for _ in range(2):
        optimizer.get_updates(lambda: weights, [weights])
    # m = -1/4; then m = 1/2·(-1/4) - 1/4 / (1 + 1)
    np.testing.assert_allclose(weights, [1 - 0.25 - 0.25])
    with pytest.raises(AttributeError, match="make another"):
        optimizer.nesterov = True
    assert v1.RMSprop().epsilon == 1e-7
    assert v1.RMSprop(epsilon=0.0).epsilon == 0.0


def test_documented_errors() -> None:
    weights, other = tf.Variable([1.0, 2.0]), tf.Variable([1.0])
    optimizer = v1.Adadelta()
    with pytest.raises(TypeError, match="global"):
        v1.Adadelta(globalclip=1.0)
    with pytest.raises(HyperparameterError, match="clipvalue"):
        v1.Adadelta(clipvalue=-1.0)
    with pytest.raises(HyperparameterError, match="learning_rate"):
        v1.Adadelta(lr=-1.0)
    with pytest.raises(NoGradientsError, match="None for gradient"):
        optimizer.get_gradients(lambda: tf.reduce_sum(weights), [weights, other])
    with pytest.raises(UnsupportedError, match="callable"):
        optimizer.get_updates(tf.constant(1.0), [weights])
    with pytest.raises(ValueError, match="before its first step"):
        optimizer.set_weights([np.zeros(2)])
    optimizer.get_updates(lambda: tf.reduce_sum(weights**2), [weights])
    before = optimizer.get_weights()
    for wrong in ([np.ones(2)], [np.ones(2), np.ones(3)], [np.ones(2), np.array(["a", "b"])]):
        with pytest.raises(ValueError, match="set_weights of Adadelta"):
            optimizer.set_weights(wrong)
    same_lists(optimizer.get_weights(), before)


def test_it_is_found_from_optim() -> None:
    assert optim.legacy.v1.Adadelta is v1.Adadelta
    assert "legacy" in dir(optim)
