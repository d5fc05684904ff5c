"""Which stored variable a live one is, and what a slot becomes where the rules differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import migrate
from migrate.errors import AmbiguousError
from migrate.live import conversions
from migrate.live.variable_matching import LiveVariable, match
from migrate.rules.comparison import Rule, compare, spelled_out
from migrate.state import StoredVariable
from optim.errors import MismatchError, UnsupportedError


def _live(*named: tuple[str, tuple[int, ...]]) -> list[LiveVariable]:
    return [LiveVariable(name, None, shape, True) for name, shape in named]


def _stored(*named: tuple[str, tuple[int, ...]]) -> list[StoredVariable]:
    return [StoredVariable(name, None, shape, "float32", True) for name, shape in named]


def _match(live: list[LiveVariable], stored: list[StoredVariable], **how: Any) -> dict[str, tuple[str, str]]:
    settings = {"needed": lambda v: True, "ordered": True, "equal": lambda g, v: True, **how}
    return {p.live.name: (p.stored.name, p.how) for p in match(live, stored, **settings)}


def test_names_come_before_shapes_and_order() -> None:
    live = _live(("b", (2,)), ("a", (2,)))
    assert _match(live, _stored(("a", (2,)), ("b", (2,)))) == {"b": ("b", "name"), "a": ("a", "name")}


def test_the_end_of_a_name_counts_where_it_is_the_only_one() -> None:
    live = _live(("sequential_1/d1/kernel", (2, 2)), ("sequential_1/d2/kernel", (2, 2)))
    matches = _match(live, _stored(("d2/kernel:0", (2, 2)), ("functional/d1/kernel", (2, 2))))
    assert matches == {
        "sequential_1/d1/kernel": ("functional/d1/kernel", "name"),
        "sequential_1/d2/kernel": ("d2/kernel:0", "name"),
    }


def test_a_name_with_another_shape_is_another_model() -> None:
    with pytest.raises(MismatchError, match=r"'d/kernel' has shape \[2, 3\], in the source \[3, 2\]"):
        _match(_live(("d/kernel", (2, 3))), _stored(("d/kernel", (3, 2))))


@pytest.mark.parametrize(
    ("stored", "live"),
    [
        (("dense_1/kernel", "dense_2/kernel", "dense_3/kernel"), ("dense/kernel", "dense_1/kernel", "dense_2/kernel")),
        (("block_1/a", "block_2/a"), ("model/block_2/a", "model/block_3/a")),
        (("layer1/w", "layer2/w"), ("layer0/w", "layer1/w")),
        (("Variable", "Variable_1"), ("Variable_1", "Variable_2")),
    ],
)
def test_numbers_that_shifted_tell_nothing(stored: tuple[str, ...], live: tuple[str, ...]) -> None:
    """Keras numbers layers as it makes them: these were taken for others of one shape, and exact."""
    ours, theirs = _live(*((name, (2, 2)) for name in live)), _stored(*((name, (2, 2)) for name in stored))
    matches = _match(ours, theirs)
    assert matches == {a: (b, "position") for a, b in zip(live, stored, strict=True)}
    assert {how for _, how in _match(ours, [*_stored(*((n, (2, 2)) for n in live))][::-1]).values()} == {"name"}


def test_layers_that_a_later_process_numbers_otherwise_get_their_own_state(tmp_path: Path) -> None:
    import tensorflow as tf

    import optim

    def kernels(*names: str) -> list[Any]:
        return [tf.Variable(tf.fill((2, 2), float(i)), name=f"{name}/kernel") for i, name in enumerate(names)]

    trained = kernels("dense_1", "dense_2", "dense_3")
    optimizer = optim.SGD(0.1, momentum=0.9)
    optimizer.apply_gradients([(variable + 1.0, variable) for variable in trained])
    optim.save_checkpoint(tmp_path / "saved", optimizer, trained)
    live, anew = kernels("dense", "dense_1", "dense_2"), optim.SGD(0.1, momentum=0.9)
    report = migrate.restore(tmp_path / "saved", anew, live, restore_variables=True)
    assert report.fidelity == "approximate"
    assert "matched by position alone" in report.reasons[0]
    assert [v.numpy().tolist() for v in live] == [v.numpy().tolist() for v in trained]
    assert migrate.restore(tmp_path / "saved", anew, live, restore_variables=True).fidelity == "exact"  # values tell


def test_shapes_decide_where_each_occurs_once() -> None:
    matches = _match(_live(("dense_7/kernel", (2, 3)), ("dense_7/bias", (3,))), _stored(("x", (3,)), ("y", (2, 3))))
    assert matches == {"dense_7/kernel": ("y", "shape"), "dense_7/bias": ("x", "shape")}


def test_position_decides_for_sequences_alone() -> None:
    live, stored = _live(("p", (2,)), ("q", (2,))), _stored(("x", (2,)), ("y", (2,)))
    assert _match(live, stored) == {"p": ("x", "position"), "q": ("y", "position")}
    with pytest.raises(AmbiguousError, match="'p' may be 'x' or 'y'"):
        _match(live, stored, ordered=False)


def test_position_never_contradicts_values() -> None:
    live, stored = _live(("p", (2,)), ("q", (2,))), _stored(("x", (2,)), ("y", (2,)))
    swapped = {("p", "y"), ("q", "x")}
    with pytest.raises(AmbiguousError, match="'p' would be 'x' of the source, but it has the value of 'y'"):
        _match(live, stored, equal=lambda g, v: (g.name, v.name) in swapped)


def test_what_is_left_over_is_listed() -> None:
    with pytest.raises(MismatchError, match=r"left over are q\[3\] live, and in the source none"):
        _match(_live(("p", (2,)), ("q", (3,))), _stored(("p", (2,))))
    with pytest.raises(MismatchError, match=r"left over are none live, and in the source y\[3\]"):
        _match(_live(("p", (2,))), _stored(("p", (2,)), ("y", (3,))))


# A model in new code, whose names are others.


@pytest.mark.parametrize("named", [True, False])
def test_a_keras_3_model_made_anew(named: bool, tmp_path: Path) -> None:
    """The second model of a process gets other names from Keras; a saved file has those of the first."""
    import keras
    import tensorflow as tf

    def model() -> Any:
        layers = [keras.layers.Dense(4, name=name if named else None) for name in ("first", "second", "third")]
        return keras.Sequential([keras.Input((4,)), *layers])

    def train(network: Any, optimizer: Any, count: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(count):
            gradients = [
                tf.constant(random.standard_normal(v.shape).astype("float32")) for v in network.trainable_variables
            ]
            optimizer.apply_gradients(list(zip(gradients, network.trainable_variables, strict=True)))

    old = model()
    old.compile(keras.optimizers.AdamW(0.01), loss="mean_squared_error")
    train(old, old.optimizer, 3, 0)
    old.save(tmp_path / "model.keras")
    new = model()
    new.set_weights(old.get_weights())
    optimizer = keras.optimizers.AdamW(0.01)
    overrides = {"weight_decay_exclude": []}
    report = migrate.restore(tmp_path / "model.keras", optimizer, new.trainable_variables, overrides=overrides)
    assert report.fidelity == "exact"
    assert {how for _, how in report.onto.values()} == {"name" if named else "position"}
    assert named or any("by position, as names differ" in warning for warning in report.warnings)
    train(old, old.optimizer, 2, 1)
    train(new, optimizer, 2, 1)
    for a, b in zip(old.get_weights(), new.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("order", [1, -1])
def test_a_position_that_values_do_not_prove_is_doubted(order: int, tmp_path: Path) -> None:
    """A new model under other names, given in the model's order or the other way round: nothing tells which it is."""
    import keras

    def model() -> Any:
        return keras.Sequential([keras.Input((4,)), *(keras.layers.Dense(4, use_bias=False) for _ in range(2))])

    old = model()
    old.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss="mean_squared_error")
    old.train_on_batch(np.ones((2, 4)), np.zeros((2, 4)))
    old.save(tmp_path / "model.keras")
    new, optimizer = model(), keras.optimizers.SGD(0.01, momentum=0.9)
    onto = new.trainable_variables[::order]
    report = migrate.restore(tmp_path / "model.keras", optimizer, onto, restore_variables=True)
    assert report.fidelity == "approximate"
    assert "matched by position alone" in report.reasons[0]
    assert "give a mapping of the source's names to variables" in report.reasons[0]
    named = dict(zip((stored for stored, _ in report.onto.values()), onto, strict=True))
    report = migrate.restore(tmp_path / "model.keras", optimizer, named, restore_variables=True)
    assert report.fidelity == "exact", report.reasons


# Conversions: the reference is `optim`'s own rule with the source's keywords.


def _rule(name: str, **arguments: Any) -> Rule:
    return Rule(name, spelled_out(name, arguments))


def _steps(rule: Rule, slots: dict[str, np.ndarray], steps: int = 5) -> np.ndarray:
    import tensorflow as tf

    import optim

    optimizer = getattr(optim, rule.algorithm).from_config(rule.values)
    variable = tf.Variable(np.linspace(-1, 1, 6))
    optimizer.build([variable])
    for slot, value in slots.items():
        optimizer.get_slot(variable, slot).assign(value)
    random = np.random.default_rng(5)
    for _ in range(steps):
        optimizer.apply_gradients([(tf.constant(random.standard_normal(6)), variable)])
    return np.asarray(variable.numpy())


CONVERTED = [
    ("SGD", {"momentum": 0.9, "nesterov": True}, {}, {"learning_rate_in_momentum": False}),
    ("RMSprop", {"momentum": 0.9}, {}, {"learning_rate_in_momentum": False}),
    ("Ftrl", {"l2_shrinkage_regularization_strength": 0.01}, {}, {"learning_rate_in_linear": True}),
    ("Adagrad", {}, {"epsilon": 0.0, "epsilon_inside": False}, {"epsilon": 0.05, "epsilon_inside": True}),
]


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(("name", "shared", "one", "other"), CONVERTED, ids=[c[0] for c in CONVERTED])
def test_converted_slots_make_the_same_steps(
    name: str, shared: dict[str, Any], one: dict[str, Any], other: dict[str, Any], there: bool
) -> None:
    pair = [_rule(name, learning_rate=0.05, **shared, **options) for options in (one, other)]
    source, live = pair if there else pair[::-1]
    names = {"SGD": ["m"], "RMSprop": ["velocity", "momentum"], "Ftrl": ["accumulator", "linear"]}.get(
        name, ["accumulator"]
    )
    random = np.random.default_rng(1)
    slots = {slot: np.abs(random.standard_normal(6)) + 0.1 for slot in names}
    plan = conversions.plan(source, live, compare(source, live), 7, frozenset(names))
    assert plan.left == {}
    assert plan.reasons == []
    changed = {slot: plan.changes[slot](value) if slot in plan.changes else value for slot, value in slots.items()}
    want = _steps(source, slots)
    np.testing.assert_allclose(_steps(live, changed), want, rtol=1e-10)
    assert not np.allclose(_steps(live, slots), want, rtol=1e-4)


def test_a_changing_rate_has_no_factor() -> None:
    source = _rule("SGD", learning_rate=0.1, momentum=0.9, decay=0.5, learning_rate_in_momentum=False)
    live = _rule("SGD", learning_rate=0.1, momentum=0.9, decay=0.5)
    plan = conversions.plan(source, live, compare(source, live), 4, frozenset({"m"}))
    assert "no factor is exact" in plan.reasons[0]
    assert plan.changes["m"](np.ones(1))[0] == pytest.approx(-0.1 / 3)


def test_a_rate_of_zero_cannot_be_taken_out() -> None:
    live, source = (_rule("SGD", learning_rate=0.0, momentum=0.9, learning_rate_in_momentum=x) for x in (False, True))
    with pytest.raises(UnsupportedError, match="divided by the learning rate, which is 0"):
        conversions.plan(source, live, compare(source, live), 0, frozenset({"m"}))


def test_an_accumulator_below_the_offset_is_refused() -> None:
    source, live = (
        _rule("Adagrad", epsilon=0.0, epsilon_inside=False),
        _rule("Adagrad", epsilon=0.1, epsilon_inside=True),
    )
    plan = conversions.plan(source, live, compare(source, live), 1, frozenset({"accumulator"}))
    with pytest.raises(UnsupportedError, match="make the live optimizer with epsilon=0"):
        plan.changes["accumulator"](np.array([0.05]))


def test_decay_is_inverse_time_decay() -> None:
    schedule = {
        "class_name": "InverseTimeDecay",
        "config": {"initial_learning_rate": 0.1, "decay_steps": 1, "decay_rate": 0.5, "staircase": False, "name": "n"},
    }
    assert compare(_rule("SGD", learning_rate=0.1, decay=0.5), _rule("SGD", learning_rate=schedule)) == {}
    differences = compare(_rule("SGD", learning_rate=0.1, decay=0.4), _rule("SGD", learning_rate=schedule))
    assert list(differences) == ["learning_rate"]
